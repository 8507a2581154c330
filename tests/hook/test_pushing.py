"""Real pushes with the backlog in SQLite: who is refused, who is let through, and what is said."""

import json
import sqlite3
import threading

import pytest

import dibs
from dibs.adapters.system import SystemClock, SystemThreads
from dibs.hook.guard import in_time
from dibs.hook.rules import parse_updates

from .repositories import Clone

PATIENT = '[hook]\ntimeout = "60s"\n'  # a busy machine is no tracker that does not answer


class Backlog:
    """A clone whose backlog is beside its files, and others who work on it."""

    def __init__(self, clone: Clone, settings: str = PATIENT) -> None:
        self.clone = clone
        clone.write("dibs.toml", f'ttl = "60s"\n{settings}')
        clone.write(".git/info/exclude", "dibs.toml\n.dibs\n")
        self.add()
        assert clone.dibs("hook", "install").code == 0

    def add(self, title="Prices are wrong"):
        with dibs.open(self.clone.folder) as backlog:
            return backlog.add(title).ref.key

    def claim(self, key="1", holder="worker-7"):
        """Somebody elsewhere takes it; their run."""
        with dibs.open(self.clone.folder, holder=holder) as backlog:
            held = backlog.try_lease(key)
            held._supervision.stop()
            return held.run, held.fence

    def expire(self):
        """As if the ttl had passed without a renewal."""
        sql = sqlite3.connect(self.clone.folder / ".dibs" / "backlog.db", isolation_level=None)
        sql.execute("UPDATE leases SET expires_at = expires_at - 3600000")
        sql.close()


@pytest.fixture
def backlog(clone):
    return Backlog(clone)


# Refused, and let through


def test_what_another_holds_is_refused_and_it_is_said_who_and_what_to_look_at(backlog, clone):
    run, fence = backlog.claim()
    clone.commit("Prices are right\n\nCloses #1")
    pushed = clone.push("main")
    assert pushed.refused("#1 HELD", "worker-7 holds it", f"run {run}", f"fence {fence}")
    assert "dibs show 1" in pushed.err
    assert "revoke" not in pushed.err
    assert "--no-verify" not in pushed.err, "whoever pastes what it reads must not paste that"
    assert clone.git("rev-parse", "origin/main") != clone.git("rev-parse", "main")


def test_what_nobody_holds_goes_out_and_it_is_said_what_was_checked(backlog, clone):
    clone.commit("Prices are right\n\nCloses #1")
    pushed = clone.push("main")
    assert pushed.went_out
    assert (pushed.out, pushed.err) == ("", "dibs: checked #1: nobody else is at work\n")
    clone.commit("Part of #1")
    pushed = clone.push("main")
    assert pushed.went_out
    assert "dibs: the push closes no issue of sqlite:.dibs/backlog.db" in pushed.err


def test_flaw_22_the_holder_pushes_with_its_run_in_the_environment(backlog, clone):
    run, fence = backlog.claim()
    clone.commit("Closes #1")
    holder = {"DIBS_RUN": run, "DIBS_FENCE": str(fence), "DIBS_ISSUE": "#1"}
    assert clone.push("main", **holder).went_out


def test_a_holder_whose_fence_is_not_the_leases_is_refused(backlog, clone):
    run, fence = backlog.claim()
    clone.commit("Closes #1")
    pushed = clone.push("main", DIBS_RUN=run, DIBS_FENCE=str(fence + 1), DIBS_ISSUE="#1")
    assert pushed.refused("LEASE_LOST", f"your fence is {fence + 1}")


def test_a_holder_whose_lease_ran_out_is_refused_before_anybody_else_has_it(backlog, clone):
    run, _ = backlog.claim()
    backlog.expire()
    clone.commit("Closes #1")
    assert clone.push("main", DIBS_RUN=run).refused("LEASE_LOST", run, "ran out")
    assert clone.push("main").went_out, "anybody else finds it free"


def test_flaw_07_a_holder_that_another_came_after_is_refused_and_told_who(backlog, clone):
    run, _ = backlog.claim()
    backlog.expire()
    backlog.claim(holder="worker-8")
    clone.commit("Closes #1")
    assert clone.push("main", DIBS_RUN=run).refused("LEASE_LOST", "HELD", "worker-8")


def test_a_run_that_never_held_it_says_so_in_vain(backlog, clone):
    clone.commit("Closes #1")
    pushed = clone.push("main", DIBS_RUN="beef", DIBS_ISSUE="1")
    assert pushed.refused("LEASE_LOST", "beef is not there")


def test_a_run_for_one_issue_does_not_close_another_ones(backlog, clone):
    other = backlog.add()
    mine, _ = backlog.claim("1", "worker-1")
    backlog.claim(other, "worker-2")
    clone.commit(f"Closes #1, closes #{other}")
    pushed = clone.push("main", DIBS_RUN=mine, DIBS_ISSUE="#1")
    assert pushed.refused(f"#{other} HELD", "worker-2")
    assert "#1 " not in pushed.err


def test_a_lease_that_was_ended_is_just_over(backlog, clone):
    run, _ = backlog.claim()
    assert clone.dibs("release", "1", "--run", run, "--outcome", "advanced").code == 0
    clone.commit("Closes #1")
    assert clone.push("main", DIBS_RUN=run).went_out


def test_flaw_22_a_person_who_took_it_here_pushes_from_here_and_not_from_elsewhere(backlog, clone):
    elsewhere = clone.worktree("elsewhere", "-b", "elsewhere")
    assert clone.dibs("take", "1").code == 0
    for place, branch in ((clone, "main"), (elsewhere, "elsewhere")):
        place.commit(f"Closes #1, on {branch}")
    assert clone.push("main").went_out
    assert elsewhere.push("elsewhere").refused("ann holds it")
    assert clone.dibs("give-back", "1").code == 0
    assert elsewhere.push("elsewhere").went_out
    assert clone.dibs("take", "1", "--as", "bob").code == 0
    clone.commit("Closes #1 again")
    assert clone.push("main").went_out, "what counts is where it was taken, not by whom"


def test_a_script_that_claims_here_pushes_from_here(backlog, clone):
    tree = clone.worktree("agent", "-b", "agent")
    claimed = tree.dibs("--config", clone.folder / "dibs.toml", "claim", "1")
    assert claimed.code == 0, claimed.err
    tree.commit("Closes #1")
    assert tree.push("agent").went_out
    clone.commit("Closes #1 as well")
    assert clone.push("main").refused("HELD")


def test_the_environment_says_who_a_handler_is_whatever_was_taken_in_its_folder(backlog, clone):
    other = backlog.add()
    assert clone.dibs("take", "1").code == 0
    run, _ = backlog.claim(other)
    clone.commit("Closes #1")
    assert clone.push("main", DIBS_RUN=run, DIBS_ISSUE=f"#{other}").refused("#1 HELD", "ann")


def test_flaw_22_what_keeps_workers_off_keeps_nobody_from_pushing(backlog, clone):
    """The step that the old hook recommended made it refuse the push."""
    with dibs.open(clone.folder) as opened:
        opened._services.tracker.edit_labels(
            opened.reference("1"), add=["do-not-pickup", "paused", "parked"]
        )
    clone.commit("Closes #1")
    assert clone.push("main").went_out


AGENTS = f'preset = "agent"\n{PATIENT}'
TRAILERS = "Agent-Codename: lucius\nAgent-Firing-Id: {}\n"


def test_an_old_runners_claim_is_refused_and_its_own_commits_are_not(clone):
    """Its claim is a label and a comment; the label alone would be nobody's."""
    Backlog(clone, AGENTS)
    with dibs.open(clone.folder) as opened:
        ref, tracker = opened.reference("1"), opened._services.tracker
        tracker.edit_labels(ref, add=["agent:in-flight"])
        tracker.comment(ref, "<!-- agent-claim:codename=lucius firing_id=f-1 ts=x -->")
    clone.commit("Closes #1")
    assert clone.push("main").refused("FOREIGN_CLAIM", "lucius")
    clone.commit("Closes #1\n\n" + TRAILERS.format("f-2"), "--amend")
    assert clone.push("main").refused("FOREIGN_CLAIM")
    clone.commit("Closes #1\n\n" + TRAILERS.format("f-1"), "--amend")
    assert clone.push("main").went_out


def test_a_pull_request_that_the_label_tells_of_is_refused_to_all_but_its_author(clone):
    """The embedded backlog knows no pull requests: the lease before says whose it is."""
    backlog = Backlog(clone, AGENTS)
    elsewhere = clone.worktree("elsewhere", "-b", "elsewhere")
    run, _ = backlog.claim()
    assert clone.dibs("release", "1", "--run", run, "--outcome", "advanced").code == 0
    for place in (clone, elsewhere):
        place.commit("Closes #1")
    pushed = elsewhere.push("elsewhere")
    assert pushed.refused("#1 PULL_OPEN", "carries 'agent:pr-open'")
    assert elsewhere.push("elsewhere", DIBS_RUN=run).went_out
    with dibs.open(clone.folder) as opened:
        opened._services.tracker.edit_labels(opened.reference("1"), remove=["agent:pr-open"])
    assert clone.push("main").went_out


def test_the_working_tree_that_moved_it_on_may_push_more_of_it(clone):
    Backlog(clone, AGENTS)
    elsewhere = clone.worktree("elsewhere", "-b", "elsewhere")
    assert clone.dibs("take", "1").code == 0
    [run] = json.loads((clone.folder / ".git/dibs-runs.json").read_text())["runs"]
    assert clone.dibs("release", "1", "--run", run, "--outcome", "advanced").code == 0
    for place, branch in ((clone, "main"), (elsewhere, "elsewhere")):
        place.commit(f"Closes #1, on {branch}")
    assert elsewhere.push("elsewhere").refused("#1 PULL_OPEN")
    assert clone.push("main").went_out


def test_flaw_01_labels_that_somebody_took_off_make_nothing_free(backlog, clone):
    """A loser of the old race strips the winner's label; here the lease speaks, not the label."""
    backlog.claim()
    with dibs.open(clone.folder) as opened:
        ref = opened.reference("1")
        opened._services.tracker.edit_labels(ref, remove=["claimed", "stage:processing"])
    clone.commit("Closes #1")
    assert clone.push("main").refused("HELD", "worker-7")


# Ways around it


def test_no_verify_is_gits_own(backlog, clone):
    backlog.claim()
    clone.commit("Closes #1")
    assert clone.push("--no-verify", "main").went_out


def test_the_old_variable_skips_our_check_and_not_the_hook_before(backlog, clone, tmp_path):
    backlog.claim()
    clone.commit("Closes #1")
    hooks = clone.folder / ".git" / "hooks"
    before = clone.write(".git/hooks/pre-push.before-dibs", "#!/bin/sh\nexit 1\n", mode=0o755)
    assert clone.push("main", LABEL_STATE_SKIP_DEDUP_CHECK="1").code != 0
    before.unlink()
    assert hooks.exists()
    assert clone.push("main", LABEL_STATE_SKIP_DEDUP_CHECK="0").refused("HELD")
    skipped = clone.push("main", LABEL_STATE_SKIP_DEDUP_CHECK="1")
    assert skipped.went_out
    assert "nothing was checked" in skipped.err


# Which commits are new


def test_flaw_22_every_form_is_seen_in_a_real_push(backlog, clone):
    backlog.claim()
    for number, message in enumerate(
        ["Fix #1", "Closes: #1", "- fixes #1", "Prices (resolves #1)", "FIXED GH-1"]
    ):
        clone.git("checkout", "--quiet", "-b", f"form{number}", "origin/main")
        clone.commit(message)
        assert clone.push(f"form{number}").refused("#1 HELD"), message


def test_flaw_22_a_number_that_is_only_mentioned_is_not_looked_at(backlog, clone):
    other = backlog.add()
    backlog.claim(other)
    clone.commit(f"Closes #1 (see #{other})")
    assert clone.push("main").went_out


def test_what_the_remote_has_already_is_not_looked_at_again(backlog, clone):
    clone.commit("Closes #1")
    assert clone.push("main").went_out
    backlog.claim()
    clone.git("checkout", "--quiet", "-b", "more")
    clone.commit("Something else")
    assert clone.push("more").went_out, "a new branch brings only what is new"
    assert clone.push("main:refs/heads/copy").went_out


def test_a_forced_push_is_looked_through_as_well(backlog, clone):
    clone.commit("To be replaced")
    assert clone.push("main").went_out
    clone.commit("Closes #1", "--amend")
    backlog.claim()
    assert clone.push("--force", "main").refused("HELD")


def test_a_forced_push_over_commits_that_we_never_fetched(backlog, clone, tmp_path):
    other = clone.beside(tmp_path / "other")
    clone.git("clone", "--quiet", clone.remote, tmp_path / "other", cwd=tmp_path)
    other.commit("From elsewhere")
    assert other.push("main").went_out
    backlog.claim()
    clone.commit("Closes #1")
    assert clone.push("--force", "main").refused("HELD")


def test_deleting_a_branch_closes_nothing(backlog, clone):
    clone.git("checkout", "--quiet", "-b", "old")
    clone.commit("Closes #1")
    assert clone.push("old").went_out
    backlog.claim()
    assert clone.push("--delete", "old").went_out


@pytest.mark.parametrize("tag", [["v1"], ["-m", "a release", "v1"]], ids=["light", "annotated"])
def test_a_tag_brings_its_commits(backlog, clone, tag):
    clone.commit("Closes #1")
    clone.git("tag", *tag)
    backlog.claim()
    assert clone.push("v1").refused("HELD")
    assert clone.push("--no-verify", "main").went_out
    assert clone.push("v1").went_out, "they are there by now"


def test_a_tag_of_something_else_than_a_commit_is_no_commit(backlog, clone):
    backlog.claim()
    blob = clone.git("hash-object", "-w", "dibs.toml")
    clone.git("tag", "a-file", blob)
    clone.commit("Closes #1")
    assert clone.push("a-file").went_out
    assert clone.push("main", "a-file").refused("HELD")


def test_several_branches_at_once_and_what_was_typed_with_spaces(backlog, clone):
    clone.commit("Closes #1")
    clone.git("branch", "one")
    clone.git("branch", "two", "HEAD~1")
    backlog.claim()
    assert clone.push("two", "one").refused("HELD")
    assert clone.push(":/Closes #1:refs/heads/three").refused("HELD")


def test_a_shallow_clone(backlog, clone, tmp_path):
    clone.commit("Old work\n\nCloses #1")
    clone.commit("More")
    assert clone.push("main").went_out
    shallow = clone.beside(tmp_path / "shallow", DIBS_CONFIG=str(clone.folder / "dibs.toml"))
    address = f"file://{clone.remote}"
    clone.git("clone", "--quiet", "--depth=1", address, shallow.folder, cwd=tmp_path)
    assert shallow.dibs("hook", "install").code == 0
    backlog.claim()
    shallow.commit("Nothing")
    assert shallow.push("main").went_out
    shallow.commit("Closes #1")
    assert shallow.push("main").refused("HELD")


def test_the_first_push_to_an_empty_remote_brings_everything(backlog, clone, tmp_path):
    clone.commit("Closes #1")
    assert clone.push("main").went_out
    clone.git("init", "--quiet", "--bare", tmp_path / "mirror.git", cwd=tmp_path)
    clone.git("remote", "add", "mirror", tmp_path / "mirror.git")
    backlog.claim()
    assert clone.push("main", remote="mirror").refused("HELD")
    assert clone.push("main", remote=str(tmp_path / "mirror.git")).went_out, "origin has it all"


def test_a_linked_working_tree_finds_the_backlog_of_the_first(backlog, clone):
    tree = clone.worktree("linked", "-b", "linked")
    assert not (tree.folder / ".dibs").exists()
    backlog.claim()
    tree.commit("Closes #1")
    assert tree.push("linked").refused("HELD")
    assert not (tree.folder / ".dibs").exists(), "looking makes nothing"


def test_a_working_tree_that_is_named_in_the_environment(backlog, clone, tmp_path):
    backlog.claim()
    clone.commit("Closes #1")
    pushed = clone.push("main", GIT_DIR=str(clone.folder / ".git"), GIT_WORK_TREE=str(clone.folder))
    assert pushed.refused("HELD")


def test_issues_of_other_repositories_and_unknown_ones_are_nobodys(backlog, clone):
    backlog.claim()
    clone.commit("Closes acme/tools#1, fixes https://github.com/acme/tools/issues/1, closes #999")
    assert clone.push("main").went_out


def test_a_repository_without_a_backlog_is_left_alone_and_told_so(clone):
    installed = clone.dibs("hook", "install")
    assert installed.code == 0
    assert "the hook checks nothing yet: there is no backlog" in installed.err
    clone.commit("Closes #1")
    pushed = clone.push("main")
    assert pushed.went_out
    assert "nothing was checked: there is no backlog in" in pushed.err
    assert "GH_ORG is not set; dibs hook uninstall removes this hook" in pushed.err
    assert not (clone.folder / ".dibs").exists()


def test_a_backlog_that_was_never_made_refuses_if_it_has_to_be_sure(clone):
    assert clone.dibs("hook", "install").code == 0
    clone.write("dibs.toml", "[hook]\nstrict = true\n")
    clone.commit("Closes #1")
    assert clone.push("main").refused("could not be checked: there is no backlog in", "strict")


# Rubbish, and too much


@pytest.mark.parametrize(
    "message",
    [
        b"\xff\xfe closes #1 \x80\x81",
        "Prix corrigés\n\nclôt, closes #1".encode("latin-1"),
        b"closes #1\r\n",
        b"a\n" + b"x" * 3_000_000 + b"\ncloses #1",
    ],
    ids=["no text", "latin-1", "carriage return", "long"],
)
def test_a_message_of_any_bytes_is_read(backlog, clone, message):
    clone.commit(message)
    backlog.claim()
    assert clone.push("main").refused("#1 HELD")


def test_a_message_in_another_encoding_is_read_as_it_was_meant(backlog, clone):
    backlog.claim()
    clone.git("config", "i18n.commitEncoding", "latin-1")
    clone.commit("résumé, closes #1".encode("latin-1"))
    assert clone.push("main").refused("#1 HELD")


def test_a_push_of_many_commits_is_looked_through_and_bounded(backlog, clone):
    """6,000 commits that say something of closing are more than are read; said, and let pass."""
    stream = [b"reset refs/heads/many\n"]
    for number in range(6_000):
        text = b"fixes acme/tools#%d" % (number + 1)
        stream.append(
            b"commit refs/heads/many\ncommitter A <a@b> %d +0000\ndata %d\n%s\n"
            % (1_700_000_000 + number, len(text), text)
        )
    done = clone.run("git", "fast-import", "--quiet", given=b"".join(stream))
    assert done.code == 0, done.err
    pushed = clone.push("many")
    assert pushed.went_out
    assert "not checked: only 5000 of its commits" in pushed.err
    clone.write("dibs.toml", f"{PATIENT}strict = true\n")
    clone.git("commit", "--quiet", "--allow-empty", "-m", "x")
    assert clone.push("many:refs/heads/again").went_out, "nothing of it is new"


def test_a_push_that_closes_more_issues_than_can_be_looked_at(backlog, clone):
    backlog.claim()
    many = " ".join(f"fixes #{number}" for number in range(2, 200))
    clone.commit(f"fixes #1 {many}")
    assert clone.push("main").refused("#1 HELD", "only 100 were looked at")


@pytest.mark.parametrize(
    "said",
    [
        b"rubbish\n",
        b"a b c\n",
        b"\xff\xfe\n",
        b"x" * 100_000,
        b"refs/heads/x 123 refs/heads/x 456\n",
    ],
)
def test_rubbish_on_standard_input_is_said_to_be_that(backlog, clone, said):
    done = clone.dibs("hook", "run", "origin", "somewhere", given=said)
    assert done.code == 0
    assert "not checked" in done.err
    assert "Traceback" not in done.err
    clone.write("dibs.toml", "[hook]\nstrict = true\n")
    done = clone.dibs("hook", "run", "origin", "somewhere", given=said)
    assert done.code == 1
    assert "could not be checked" in done.err


def test_a_commit_that_is_not_there_is_said_to_be_missing_nothing(backlog, clone):
    line = f"refs/heads/x {'1' * 40} refs/heads/x {'0' * 40}\n".encode()
    done = clone.dibs("hook", "run", "origin", str(clone.remote), given=line)
    assert done.code == 0
    assert "Traceback" not in done.err
    assert parse_updates(line)[0].creates


def test_broken_settings_do_not_keep_anybody_from_pushing_their_repair(backlog, clone):
    clone.write("dibs.toml", "ttl = 7\n")
    clone.commit("Closes #1")
    pushed = clone.push("main")
    assert pushed.went_out
    assert "nothing was checked" in pushed.err


def test_the_text_of_a_pull_request_that_is_to_be_opened(backlog, clone, tmp_path):
    backlog.claim()
    body = tmp_path / "body.md"
    body.write_text("`closes #1`\n> closes #1\n")
    words = ("hook", "run", "--body", body, "origin", clone.remote)
    assert clone.dibs(*words, given=b"").code == 0
    body.write_text("It is done.\n\n- Closes: #1\n")
    done = clone.dibs(*words, given=b"")
    assert done.code == 1
    assert "#1 HELD" in done.err


def test_programs_read_what_was_found_as_json(backlog, clone):
    run, _ = backlog.claim()
    clone.commit("Closes #1")
    sha = clone.git("rev-parse", "HEAD")
    line = f"refs/heads/main {sha} refs/heads/main {'0' * 40}\n".encode()
    done = clone.dibs("hook", "run", "--json", "origin", clone.remote, given=line)
    assert done.code == 1
    assert '"code": "HELD"' in done.out
    assert run in done.out


# A backlog that does not answer


def locked(clone):
    sql = sqlite3.connect(clone.folder / ".dibs" / "backlog.db", isolation_level=None)
    sql.execute("PRAGMA locking_mode=EXCLUSIVE")
    sql.execute("BEGIN EXCLUSIVE")
    sql.execute("CREATE TABLE in_the_way (x)")
    return sql


def test_a_backlog_that_does_not_answer_in_time_warns_and_lets_pass(clone):
    backlog = Backlog(clone, '[hook]\ntimeout = "300ms"\n')
    backlog.claim()
    clone.commit("Closes #1")
    sql = locked(clone)
    try:
        pushed = clone.push("main")
    finally:
        sql.close()
    assert pushed.went_out
    assert "the push was not checked" in pushed.err


SLOW = """
import sys, time
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "dibs.adapters.sqlite.tracker":
            time.sleep(5)
sys.meta_path.insert(0, Slow())
"""


def test_the_time_of_a_busy_machine_is_not_the_trackers(clone, tmp_path):
    """A program that is slow to start is no tracker that does not answer."""
    backlog = Backlog(clone, '[hook]\ntimeout = "4s"\n')
    backlog.claim()
    clone.commit("Closes #1")
    (tmp_path / "sitecustomize.py").write_text(SLOW)
    assert clone.push("main", PYTHONPATH=str(tmp_path)).refused("#1 HELD")


class Asleep(SystemClock):
    """The clock of a machine that sleeps through the first wait, whatever was to be waited for."""

    def __init__(self):
        self.awake = threading.Event()

    def wait(self, event, seconds):
        if self.awake.is_set():
            return super().wait(event, 30)
        self.awake.set()
        return False


def test_the_time_of_a_sleeping_machine_is_not_the_trackers():
    clock = Asleep()
    assert in_time(lambda: clock.awake.wait(30), 3.0, clock, SystemThreads())


def test_a_backlog_that_does_not_answer_in_time_refuses_if_it_has_to_be_sure(clone):
    Backlog(clone, '[hook]\ntimeout = "300ms"\nstrict = true\n')
    clone.commit("Closes #1")
    sql = locked(clone)
    try:
        pushed = clone.push("main")
    finally:
        sql.close()
    assert pushed.refused("could not be checked", "strict")
    assert clone.push("main").went_out


def test_a_runs_worktree_of_another_repository_is_judged_by_the_backlog_of_its_worker(
    backlog, clone, tmp_path
):
    """The worker says where its configuration is; nothing is beside the clone."""
    run, _ = backlog.claim()
    other = Clone.made(tmp_path / "elsewhere")
    assert other.dibs("hook", "install").code == 0
    other.commit("Closes #1")
    for named in (clone.folder / "dibs.toml", clone.folder):
        found = {"DIBS_CONFIG": str(named)}
        assert other.push("main", DIBS_RUN="another", **found).refused("#1 HELD")
    assert other.push("main", DIBS_RUN=run, **found).went_out


def test_a_run_of_a_bundle_holds_each_of_its_issues_by_another_lease(backlog, clone):
    backlog.add()
    backlog.add()
    (first, fence), (second, _) = backlog.claim("1"), backlog.claim("2")
    held = {"DIBS_RUN": first, "DIBS_FENCE": str(fence), "DIBS_ISSUE": "#1"}
    clone.commit("Closes #1, closes #2")
    assert clone.push("main", **held).refused("#2 HELD")
    assert clone.push("main", **held, DIBS_RUNS=f"{first} {second}").went_out
    clone.commit("Closes #3")
    backlog.claim("3", holder="worker-8")
    assert clone.push("main", **held, DIBS_RUNS=f"{first} {second}").refused("#3 HELD")
