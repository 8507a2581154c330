"""Actor: a hostile handler, as the user of its worker and as another user, also in a worktree.

It looks for the worker's secrets wherever a process can look, and says what it found: in a folder
with a clone of which the settings contain a token, as after `actions/checkout`. The tables are what
it can read in each set-up. `pytest -s` prints them; docs/concepts/handlers.md has the answer.

Wall: with `run_as` nothing is left. As the same user, the credentials stay out of the environment,
out of the processes and out of the worktree, and the files of the user are as open to it as to the
worker.
"""

import os
import pwd
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.architecture.pages import DOCS, table

from .conftest import LIMIT_S, SECRETS, Victim
from .git_victims import ALONE, git, remote_repository
from .handlers import POWERLESS, needs_powerless, needs_root, printed, serve, work

LOOK = """\
see() { sed "s|^|SEEN $1 |" 2>/dev/null; }
env | see environment
warden=$PPID
worker=$(sed -n 's/^PPid:[[:space:]]*//p' /proc/$warden/status)
tr '\\0' '\\n' < /proc/$worker/environ 2>/dev/null | see worker-environ
tr '\\0' '\\n' < /proc/$warden/environ 2>/dev/null | see warden-environ
for pid in $worker $warden; do
    ls -l /proc/$pid/fd 2>/dev/null | grep -- '->' | see open-files
    head -c 50 /proc/$pid/maps 2>/dev/null | tr -d '\\n' | see memory
done
root=$(dirname "$DIBS_CONFIG")
for file in "$root"/.dibs/backlog.db "$root"/.dibs/events.jsonl "$root"/.dibs/runs/*/output.log; do
    test -r "$file" && echo "SEEN dibs-files $file"
done
cat "$root"/secret-file 2>/dev/null | see secret-file
cat "$root"/shop/.git/config 2>/dev/null | see clone
cat .git/config 2>/dev/null | see worktree
git config --list 2>/dev/null | see worktree
env | grep -E '^DIBS_(SIGNING|LEASES|GITHUB)' | see dibs-credentials
echo 'SEEN itself' $(id -un)
exit 0
"""
PLACES = {
    "environment": "other credentials in its environment",
    "dibs-credentials": "credentials of dibs in its environment",
    "worker-environ": "environment, memory and open files of worker and warden",
    "warden-environ": "environment, memory and open files of worker and warden",
    "open-files": "environment, memory and open files of worker and warden",
    "memory": "environment, memory and open files of worker and warden",
    "worktree": "the settings of git in its worktree",
    "dibs-files": "files of the worker's user: `.dibs`, the clone",
    "secret-file": "files of the worker's user: `.dibs`, the clone",
    "clone": "files of the worker's user: `.dibs`, the clone",
}
"""Each with its row in the guide."""
COLUMNS = {
    "same user": "",
    'same user, `env = "inherit"`': 'env = "inherit"',
    "`run_as`": 'run_as = "nobody"',
}
TREES = {"in the folder": "", "in a worktree": 'worktree = "shop"'}


def _found(victim: Victim) -> Mapping[str, set[str]]:
    """By place: the names of secrets that were read there; `all` for a place without names."""
    found: dict[str, set[str]] = {place: set() for place in PLACES}
    for line in printed(victim).decode(errors="replace").splitlines():
        if not line.startswith("SEEN "):
            continue
        _, place, text = line.split(" ", 2)
        if place in {"open-files", "memory", "dibs-files"}:
            found[place].add("all")
        elif place in found:
            found[place] |= {name for name, secret in SECRETS.items() if secret in text}
    return found


def _attacked(victim: Victim, column: str, tree: str) -> Mapping[str, set[str]]:
    victim.env |= ALONE
    serve(victim, LOOK, f"{COLUMNS[column]}\n{TREES[tree]}")
    (victim.folder / ".dibs").chmod(0o700)
    secret, clone = victim.folder / "secret-file", victim.folder / "shop"
    secret.write_text(SECRETS["GITHUB_TOKEN"], "utf-8")
    secret.chmod(0o600)
    remote = remote_repository(victim.home.parent / "shop.git", {"README": "a shop\n"})
    git(victim.folder, "clone", "--quiet", str(remote), str(clone))
    token = SECRETS["GITHUB_TOKEN"]
    git(clone, "config", "http.extraheader", f"AUTHORIZATION: {token}")
    git(clone, "remote", "add", "mirror", f"https://x:{token}@git.acme.example/shop.git")
    clone.chmod(0o700)
    victim.env["DIBS_CONFIG"] = str(victim.folder / "dibs.toml")  # the operator names the file
    done = work(victim, before=() if "run_as" in column else POWERLESS)
    assert done.returncode == 0, done.stdout + done.stderr
    who = "nobody" if "run_as" in column else pwd.getpwuid(os.geteuid()).pw_name
    assert f"SEEN itself {who}\n".encode() in printed(victim), done.stderr
    in_a_tree = b"SEEN worktree remote.origin.url" in printed(victim)
    assert in_a_tree is bool(TREES[tree]), "it ran where it was meant to"
    return _found(victim)


def _table(columns: Mapping[str, Mapping[str, set[str]]]) -> Iterator[str]:
    yield f"| what it could read | {' | '.join(columns)} |"
    yield f"|---|{'---|' * len(columns)}"
    for place in PLACES:
        cells = [", ".join(sorted(found[place])) or "nothing" for found in columns.values()]
        yield f"| {place} | {' | '.join(cells)} |"


def _as_the_guide_says(column: str, victim: Victim) -> None:
    """The secrets that were read are in the places of the guide's table, and in no other."""
    guide = table(DOCS / "concepts" / "handlers.md", "What it cannot reach")
    said = {row[0]: row[guide.columns.index(column)] for row in guide.rows}
    assert said.keys() == set(PLACES.values())
    found = {}
    for tree in TREES:
        inner = Victim(victim.home.parent / tree.replace(" ", "-"))
        inner.home.parent.chmod(0o755)
        found[tree] = _attacked(inner, column, tree)
    print("", column, *_table(found), sep="\n")
    for tree, places in found.items():
        read = {PLACES[place] for place, names in places.items() if names}
        assert read == {row for row, answer in said.items() if answer == "yes"}, tree


@needs_root
def test_as_another_user_it_reads_nothing(reachable: Victim) -> None:
    _as_the_guide_says("`run_as`", reachable)


@needs_powerless
@pytest.mark.parametrize("column", [one for one in COLUMNS if "run_as" not in one])
def test_as_the_same_user_it_reads_files_but_no_credential_of_dibs(
    victim: Victim, column: str
) -> None:
    _as_the_guide_says(column, victim)


@needs_root
def test_the_result_is_out_of_reach_of_the_workers_group(reachable: Victim) -> None:
    """On some systems all users have one primary group."""
    place = reachable.home.parent / "everybodys"
    place.mkdir()
    place.chmod(0o777)
    script = f"""\
        umask 000
        echo '{{"note": "by nobody"}}' > "$DIBS_RESULT"
        echo "$DIBS_RESULT" > {place}/part && mv {place}/part {place}/path
        until test -e {place}/tried; do sleep 0.05; done
        """
    serve(reachable, script, 'run_as = "nobody"')
    attack = f"""\
        until test -e {place}/path; do sleep 0.05; done
        result=$(cat {place}/path)
        cat "$result"; rm -f "$result"; echo '{{}}' > "$result"
        touch {place}/tried
        """
    member = ("setpriv", "--reuid=65533", f"--regid={os.getegid()}", "--clear-groups")
    with subprocess.Popen([*member, "sh", "-c", attack], stdout=subprocess.PIPE) as attacker:
        work(reachable)
        stolen, _ = attacker.communicate(timeout=LIMIT_S)
    assert stolen == b""
    assert "by nobody" in reachable.dibs("show", "1").stdout


@needs_root
def test_what_run_as_gives_a_handler(reachable: Victim) -> None:
    """It can do its work: input, output and result are its own, and nothing of root's is left."""
    serve(
        reachable,
        """\
        cat > /dev/null < /dev/stdin && echo INPUT
        echo OUTPUT > /dev/stdout
        echo "$HOME $USER $LOGNAME ${XDG_RUNTIME_DIR-none} ${TMPDIR-none}"
        grep -E '^(Groups|CapEff|CapPrm|CapAmb|NoNewPrivs):' /proc/self/status
        echo '{"next": "done", "note": "by nobody"}' > "$DIBS_RESULT"
        """,
        'run_as = "nobody"\nnext = ["review", "done"]',
    )
    done = work(reachable, env={"XDG_RUNTIME_DIR": "/run/user/0", "TMPDIR": "/tmp"})
    shown = printed(reachable).decode()
    assert "advanced to done" in done.stdout + done.stderr, shown
    home = pwd.getpwnam("nobody").pw_dir
    assert f"INPUT\nOUTPUT\n{home} nobody nobody none none\n" in shown
    facts = dict(line.split(":\t") for line in shown.splitlines() if ":\t" in line)
    assert facts["Groups"].split() in ([], ["65534"])
    assert int(facts["CapEff"], 16) == int(facts["CapPrm"], 16) == int(facts["CapAmb"], 16) == 0
    assert facts["NoNewPrivs"] == "1"
    [kept] = (reachable.folder / ".dibs" / "runs").glob("*/result.json")
    assert "by nobody" in kept.read_text("utf-8")


@needs_root
def test_a_python_handler_is_not_imported_by_the_worker(reachable: Victim) -> None:
    reachable.configure('[[stage]]\nname = "ready"\npython = "theirs:work"\nrun_as = "nobody"\n')
    text = "import os\nopen(f'imported-{os.getuid()}', 'w')\ndef work(_): pass\n"
    (reachable.folder / "theirs.py").write_text(text, "utf-8")
    reachable.dibs("add", "work for a handler")
    work(reachable)
    reachable.dibs("doctor", "--offline")
    assert list(reachable.folder.glob("imported-0")) == []


@needs_root
@pytest.mark.parametrize(
    "planted",
    [
        'mkfifo "$DIBS_RESULT"',
        'ln -s /etc/hostname "$DIBS_RESULT"',
        'own=$(dirname "$DIBS_RESULT"); mv "$own" "$own.x"; ln -s "$PWD" "$own"; echo "MOVED $own"',
    ],
)
def test_another_users_result_leads_the_worker_nowhere(reachable: Victim, planted: str) -> None:
    serve(reachable, f"{planted}\nexit 0", 'run_as = "nobody"')
    (reachable.folder / "result.json").write_text('{"note": "STOLEN"}', "utf-8")
    done = work(reachable, limit_s=25)
    told = done.stdout + done.stderr
    assert "STOLEN" not in told + reachable.dibs("show", "1").stdout
    assert ("it is not a regular file" in told) is ("$own" not in planted)
    for line in printed(reachable).decode().splitlines():
        if line.startswith("MOVED "):
            Path(line.split()[1]).unlink()
            Path(f"{line.split()[1]}.x").rmdir()


@needs_root
def test_it_cannot_kill_its_warden_and_leaves_no_process(reachable: Victim) -> None:
    serve(
        reachable,
        """\
        setsid sh -c 'trap "" TERM; while :; do sleep 0.05; done' &
        echo "PID $!"
        kill -KILL $PPID || echo REFUSED
        """,
        'run_as = "nobody"',
    )
    done = work(reachable)
    shown = printed(reachable).decode()
    assert "REFUSED" in shown
    assert "advanced" in done.stdout + done.stderr
    [pid] = [line.split()[1] for line in shown.splitlines() if line.startswith("PID")]
    assert not (Path("/proc") / pid).exists()


@pytest.mark.parametrize(
    ("user", "why"),
    [("no-such-user", "there is no user 'no-such-user'"), ("root", "keeps nothing from a handler")],
)
def test_a_user_that_is_no_wall_is_refused_at_the_start(
    victim: Victim, user: str, why: str
) -> None:
    serve(victim, "exit 0", f'run_as = "{user}"')
    done = work(victim)
    assert done.returncode != 0
    assert why in done.stdout + done.stderr
    assert "claimed" not in victim.dibs("list").stdout


@needs_powerless
def test_a_worker_that_may_not_change_its_user_is_refused_at_the_start(victim: Victim) -> None:
    serve(victim, "exit 0", 'run_as = "nobody"')
    done = work(victim, before=POWERLESS)
    assert done.returncode != 0
    assert "may not run a handler as 'nobody'" in done.stdout + done.stderr
