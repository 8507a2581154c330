"""Real pushes with the backlog on the fake GitHub: leases in comments, pull requests, outages."""

import shutil
from contextlib import contextmanager

import pytest

import dibs
from dibs_lab.fakehub import FakeHub, Fault, Limits, Permission, Wrong

REPOSITORY = "acme/shop"
SETTINGS = """
tracker = "github:{repositories}"
preset = "agent"
settle = "0s"
[github]
pace = false
[hook]
timeout = "{timeout}"
strict = {strict}
"""


class Hub:
    """The fake, its accounts, and a clone whose backlog it keeps."""

    def __init__(self, hub, clone, monkeypatch):
        self.hub, self.clone = hub, clone
        for login in ("fleet", "colleague"):
            hub.user(login)
        for name in (REPOSITORY, "acme/tools"):
            hub.repository(name)
            for login in ("fleet", "colleague"):
                hub.state.grant(name, login, Permission.WRITE)
        self.configure()
        clone.write(".git/info/exclude", "dibs.toml\n.dibs\n")
        for name, value in (("GITHUB_TOKEN", "fleet-token"), ("GITHUB_API_URL", hub.url)):
            clone.environment[name] = value
            monkeypatch.setenv(name, value)
        assert clone.dibs("init").code == 0
        assert clone.dibs("hook", "install").code == 0
        clone.commit("Settings")
        assert clone.push("main").went_out

    def configure(self, repositories=REPOSITORY, *, timeout="60s", strict="false"):
        settings = SETTINGS.format(repositories=repositories, timeout=timeout, strict=strict)
        self.clone.write("dibs.toml", settings)

    def add(self):
        with dibs.open(self.clone.folder) as backlog:
            return backlog.add("Prices are wrong").ref.key

    @contextmanager
    def held(self, key, holder="worker-7"):
        with (
            dibs.open(self.clone.folder, holder=holder) as backlog,
            backlog.lease(key) as lease,
        ):
            yield lease

    def issue(self, key):
        return self.hub.state.view().issue(self.hub.state.named(REPOSITORY).id, int(key))

    def acting(self, login="colleague"):
        return self.hub.state.acting(self.hub.state.viewer(f"{login}-token"))

    def pull(self, key, head, login="colleague", repository=REPOSITORY, body="Closes #{}"):
        named = self.hub.state.named(repository)
        return self.acting(login).create_pull(named, "Mend it", head, "main", body=body.format(key))

    def branch(self, name, message):
        self.clone.git("checkout", "--quiet", "-b", name, "origin/main")
        return self.clone.commit(message)


@pytest.fixture
def hub(clone, monkeypatch):
    for name in ("GITHUB_API_URL", "GH_TOKEN", "DIBS_LEASES"):
        monkeypatch.delenv(name, raising=False)
    with FakeHub(limits=Limits.off()) as server:
        yield Hub(server, clone, monkeypatch)


def test_what_another_holds_is_refused_and_the_holder_is_let_through(hub, clone):
    key = hub.add()
    hub.branch("fix", f"Closes #{key}")
    with hub.held(key) as lease:
        hub.hub.counts.reset()
        assert clone.push("fix").refused(f"acme/shop#{key} HELD", "worker-7", lease.run)
        told = hub.hub.counts.told()
        assert told["requests"] == 3, told  # the texts, the issue, its pull requests
        holder = {"DIBS_RUN": lease.run, "DIBS_FENCE": str(lease.fence)}
        stale = {**holder, "DIBS_FENCE": str(lease.fence + 1)}
        assert clone.push("fix", **stale).refused("LEASE_LOST")
        assert clone.push("fix", **holder).went_out


def test_flaw_11_a_claim_is_seen_behind_any_number_of_comments(hub, clone):
    key = hub.add()
    hub.branch("fix", f"Closes #{key}")
    with hub.held(key):
        issue = hub.issue(key)
        for number in range(120):
            hub.acting().create_comment(issue, f"comment {number}")
        assert clone.push("fix").refused("HELD", "worker-7")


def test_an_open_pull_request_of_somebody_else_is_refused_until_it_is_closed(hub, clone):
    key = hub.add()
    pull = hub.pull(key, "theirs")
    hub.branch("mine", f"Fixes #{key}")
    pushed = clone.push("mine")
    assert pushed.refused("PULL_OPEN", "colleague", f"acme/shop#{pull.number}", "branch theirs")
    hub.acting().edit_pull(pull, state="closed")
    assert clone.push("mine").went_out


def test_the_agents_morning_pull_request_and_the_persons_in_the_afternoon(hub, clone):
    """They share an account: what tells them apart is the branch."""
    key = hub.add()
    pull = hub.pull(key, "agent/quick", "fleet")
    hub.branch("careful", f"Fixes #{key}")
    assert clone.push("careful").refused("PULL_OPEN", f"acme/shop#{pull.number}", "agent/quick")


def test_more_commits_for_an_open_pull_request_go_to_its_own_branch(hub, clone):
    key = hub.add()
    hub.pull(key, "mend", "fleet")
    hub.branch("mend", f"Fixes #{key}")
    assert clone.push("mend").went_out


def test_a_branch_of_the_same_name_in_a_fork_is_another_one(hub, clone):
    key = hub.add()
    hub.pull(key, "mallory:patch-1")
    hub.branch("patch-1", f"Fixes #{key}")
    assert clone.push("patch-1").refused("PULL_OPEN")


def test_a_holder_is_let_through_and_told_of_somebodys_pull_request(hub, clone):
    key = hub.add()
    with hub.held(key) as lease:
        hub.pull(key, "theirs")
        hub.branch("mine", f"Fixes #{key}")
        pushed = clone.push("mine", DIBS_RUN=lease.run)
    assert pushed.went_out
    assert "colleague has an open pull request" in pushed.err


def test_the_text_of_the_pull_request_that_is_open_from_the_branch_counts(hub, clone):
    key = hub.add()
    hub.pull(key, "mend", "fleet")
    sha = hub.branch("mend", "No keyword here")
    line = f"refs/heads/mend {sha} refs/heads/mend {'0' * 40}\n".encode()
    words = ("hook", "run", "origin", "https://github.com/acme/shop.git")
    assert clone.dibs(*words, given=line).code == 0
    with hub.held(key):
        done = clone.dibs(*words, given=line)
        assert done.code == 1
        assert f"acme/shop#{key} HELD" in done.err
        elsewhere = ("hook", "run", "origin", "git@github.com:other/thing.git")
        assert clone.dibs(*elsewhere, given=line).code == 0


def test_across_repositories(hub, clone):
    hub.configure("acme/shop,acme/tools")
    assert clone.dibs("init").code == 0
    tools = hub.acting().create_issue(
        hub.hub.state.named("acme/tools"), "Sharpen", labels=["agent:implement"]
    )
    sha = hub.branch("mend", f"Closes ACME/Tools#{tools.number}")
    line = f"refs/heads/mend {sha} refs/heads/mend {'0' * 40}\n".encode()
    with hub.held(f"acme/tools#{tools.number}"):
        assert clone.push("mend").refused(f"acme/tools#{tools.number} HELD")
        clone.commit(f"Closes https://github.com/acme/tools/issues/{tools.number}", "--amend")
        assert clone.push("mend").refused(f"acme/tools#{tools.number} HELD")
        sha = clone.commit(f"Closes #{tools.number}", "--amend")
        line = f"refs/heads/mend {sha} refs/heads/mend {'0' * 40}\n".encode()
        for address, code in {
            "git@github.com:acme/tools.git": 1,
            "https://github.com/someone/tools": 1,
            "ssh://git@github.com/acme/shop": 0,
            "https://github.com/acme/other.git": 0,
        }.items():
            done = clone.dibs("hook", "run", "origin", address, given=line)
            assert done.code == code, (address, done.err)


def test_a_label_that_says_in_flight_is_believed_while_it_is_fresh(hub, clone):
    """As an older fleet leaves it between its label and its comment."""
    key = hub.add()
    issue = hub.issue(key)
    hub.acting().add_labels(issue, ["agent:in-flight"])
    hub.branch("mend", f"Closes #{key}")
    assert clone.push("mend").refused("CLAIM_LABEL_ONLY")


CLAIM = "<!-- agent-claim:codename=lucius firing_id=f-1 ts=2026-05-01T19:42:33Z -->"
TRAILERS = "Agent-Codename: lucius\nAgent-Firing-Id: f-1\n"


def test_an_old_runner_pushes_its_own_though_its_label_is_on(hub, clone):
    key = hub.add()
    issue = hub.issue(key)
    hub.acting().add_labels(issue, ["agent:in-flight"])
    hub.acting().create_comment(issue, CLAIM)
    hub.branch("lucius/7", f"Closes #{key}\n\n{TRAILERS}")
    assert clone.push("lucius/7").went_out
    hub.branch("mine", f"Closes #{key}")
    assert clone.push("mine").refused("FOREIGN_CLAIM", "lucius")


def test_its_later_commits_are_its_own_too_if_only_its_pull_request_closes_the_issue(hub, clone):
    key = hub.add()
    issue = hub.issue(key)
    hub.acting().add_labels(issue, ["agent:in-flight"])
    hub.acting().create_comment(issue, CLAIM)
    hub.pull(key, "lucius/7", "fleet")
    sha = hub.branch("lucius/7", f"More tests\n\n{TRAILERS}")
    line = f"refs/heads/lucius/7 {sha} refs/heads/lucius/7 {'0' * 40}\n".encode()
    words = ("hook", "run", "origin", "https://github.com/acme/shop.git")
    done = clone.dibs(*words, given=line)
    assert (done.code, "PULL_OPEN" in done.err) == (0, False), done.err


def test_a_pull_request_that_is_not_linked_is_known_by_the_label(hub, clone):
    """Its text says "Part of #7", or it is one of a chain: no keyword, for it must not close."""
    key = hub.add()
    hub.acting().add_labels(hub.issue(key), ["agent:pr-open"])
    pull = hub.pull(key, "batman/7", "fleet", body="For acme/shop#{}: prices in euros")
    hub.branch("mine", f"Closes #{key}")
    assert clone.push("mine").refused(f"acme/shop#{key} PULL_OPEN", "carries 'agent:pr-open'")
    sha = hub.branch("batman/7", f"Closes #{key}")
    line = f"refs/heads/batman/7 {sha} refs/heads/batman/7 {'0' * 40}\n".encode()
    words = ("hook", "run", "origin", "https://github.com/acme/shop.git")
    assert clone.dibs(*words, given=line).code == 0, "its own branch"
    hub.acting().edit_pull(pull, state="closed")
    assert clone.dibs(*words, given=line).code == 1, "the label still says that there is one"


def test_a_label_that_nobody_took_off_yet_refuses_nothing(hub, clone):
    key = hub.add()
    hub.acting().add_labels(hub.issue(key), ["agent:pr-open"])
    pull = hub.pull(key, "theirs")
    hub.branch("mine", f"Closes #{key}")
    assert clone.push("mine").refused("PULL_OPEN", f"acme/shop#{pull.number}")
    hub.acting().edit_pull(pull, state="closed")
    assert clone.push("mine").went_out


def test_a_fleet_needs_no_settings_but_its_environment(hub, clone):
    """GH_ORG, a token, and the repository that is pushed to: as for the published hook."""
    key = hub.add()
    (clone.folder / "dibs.toml").unlink()
    shutil.rmtree(clone.folder / ".dibs")
    fleet = {"GH_ORG": "acme"}
    installed = clone.dibs("hook", "install", **fleet)
    assert "it checks the issues of github:acme/REPOSITORY" in installed.out
    sha = hub.branch("mend", f"Closes #{key}")
    line = f"refs/heads/mend {sha} refs/heads/mend {'0' * 40}\n".encode()
    hook = clone.folder / ".git/hooks/pre-push"

    def push(address="http://127.0.0.1/acme/shop.git", **environment):
        return clone.run(hook, "origin", address, given=line, **environment)

    hub.acting().add_labels(hub.issue(key), ["agent:pr-open"])
    assert push(**fleet).refused(f"acme/shop#{key} PULL_OPEN")
    assert push("http://127.0.0.1/me/shop.git", **fleet).refused("PULL_OPEN"), "a fork"
    assert push("ssh://git@ssh.127.0.0.1:443/acme/shop", **fleet).refused("PULL_OPEN")
    assert push("git@acme-work:acme/shop.git", **fleet).refused("PULL_OPEN"), "an alias of ssh's"
    hub.acting().remove_label(hub.issue(key), "agent:pr-open")
    pushed = push(**fleet)
    assert pushed.went_out
    assert f"checked acme/shop#{key}: nobody else is at work" in pushed.err
    hub.hub.counts.reset()
    for address, environment, words in (
        ("https://gitlab.example/acme/shop.git", fleet, "is no repository on 127.0.0.1"),
        (str(clone.remote), fleet, "is no repository on 127.0.0.1"),
        ("https://gist.127.0.0.1/acme/shop.git", fleet, "is no repository on 127.0.0.1"),
        ("", fleet, "the remote has no address: no repository"),
        ("http://127.0.0.1/acme/shop.git", {}, "GH_ORG is not set"),
    ):
        pushed = push(address, **environment)
        assert pushed.went_out
        assert "nothing was checked" in pushed.err
        assert words in pushed.err
    clone.environment.pop("GITHUB_TOKEN")
    assert "not checked: no token for 127.0.0.1" in push(**fleet).err
    installed = clone.dibs("hook", "install", **fleet)
    assert "the hook checks nothing yet: no token for 127.0.0.1" in installed.err
    assert hub.hub.counts.told()["requests"] == 0, "no other address gets the token"
    assert not (clone.folder / ".dibs").exists()


def test_a_server_that_is_slow_warns_and_lets_pass_unless_it_has_to_be_sure(hub, clone):
    key = hub.add()
    hub.branch("mend", f"Closes #{key}")
    with hub.held(key):
        hub.hub.faults.add(Fault(Wrong.SLOW, seconds=(8.0, 8.0), kind="query|GET"))
        hub.configure(timeout="500ms", strict="true")
        assert clone.push("mend").refused("could not be checked", "within 0.5 s")
        hub.configure(timeout="500ms")
        pushed = clone.push("mend")
        hub.hub.faults.clear()
    assert pushed.went_out
    assert "was not checked" in pushed.err


def test_a_refusal_is_reported_at_once_and_not_as_silence(hub, clone):
    """A second refusal would come after five seconds, and the hook waits for three."""
    hub.branch("mend", f"Closes #{hub.add()}")
    pushed = clone.push("mend:refs/heads/one", GITHUB_TOKEN="wrong")
    assert pushed.went_out
    assert "the push was not checked: " in pushed.err
    assert "GitHub answered 401 Bad credentials" in pushed.err
    assert "asking again" not in pushed.err
    hub.configure("acme/nosuch", strict="true")
    pushed = clone.push("mend")
    assert pushed.refused("could not be checked", "/repos/acme/nosuch", "404 Not Found")
    assert "asking again" not in pushed.err


def test_a_server_that_is_gone_and_a_token_that_is_missing_let_pass(hub, clone):
    key = hub.add()
    hub.branch("mend", f"Closes #{key}")
    clone.environment.pop("GITHUB_TOKEN")
    pushed = clone.push("mend:refs/heads/one")
    assert pushed.went_out
    assert "was not checked" in pushed.err
    assert "fleet-token" not in pushed.err
    hub.hub.faults.add(Fault(Wrong.DROP_BEFORE))
    pushed = clone.push("mend:refs/heads/two", GITHUB_TOKEN="fleet-token")
    hub.hub.faults.clear()
    assert pushed.went_out
    clone.git("push", "--quiet", "--no-verify", "origin", ":one")


def test_a_push_without_a_keyword_costs_one_request(hub, clone):
    hub.branch("plain", "Nothing of note")
    hub.hub.counts.reset()
    assert clone.push("plain").went_out
    assert hub.hub.counts.told()["requests"] <= 1
