"""A hostile repository, as a person meets it and as a worker does.

The actor: somebody who made a repository, by hand, and gets a person to clone or to unpack it. The
attack: the person looks around with dibs, pushes with the hook in place, or has a worker of their
own work in a worktree of it. Every setting, file, attribute and name in the repository is the
attacker's. The wall: a home with other programs' files, and a server of the attacker's on this
machine. Nothing at home changes, the server hears nothing, and every command ends by itself with a
readable answer.
"""

import os
import shutil
import sqlite3
import stat
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from .conftest import PROGRAM, SECRETS, Ear, Victim

LIMIT_S = 30
_MOST_MEMORY_KB = 2_000_000
_LOOKS = (
    *(("list",), ("show", "1"), ("status",), ("why", "1"), ("ready",), ("runs",)),
    *(("doctor",), ("config", "show"), ("config", "validate"), ("stores",), ("prime",)),
)
_WRITES = (
    *(("init",), ("add", "another issue"), ("take", "1"), ("give-back", "1"), ("runs",)),
    *(("runs", "--output", "aaaaaaaaaaaa"), ("status",), ("hook", "install")),
)
_HOOKS = (
    *("pre-commit", "post-checkout", "post-commit", "post-index-change", "reference-transaction"),
    *("post-merge", "pre-push", "pre-receive", "post-rewrite", "fsmonitor-watchman", "prepare"),
)


class Trap:
    """The victim's home, with what is to lose there, and the hostile repository in it."""

    def __init__(self, victim: Victim, ear: Ear) -> None:
        self.victim, self.ear = victim, ear
        self.home, self.folder = victim.home, victim.folder
        self.may_be_called = False
        self.proof = self.home / "PWNED"
        self.payload = f"touch {self.proof}"
        (self.home / ".ssh").mkdir(mode=0o700)
        (self.home / ".ssh" / "authorized_keys").write_text("ssh-ed25519 AAAA ann\n")
        (self.home / ".netrc").write_text("machine git.acme.example password CANARYnetrc\n")
        (self.home / ".config").mkdir()
        with sqlite3.connect(self.home / "history.db") as foreign:
            foreign.execute("CREATE TABLE visits (address TEXT)")
        foreign.close()
        self.victim.env |= {
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": str(self.home / ".config" / "git"),
            "GIT_TERMINAL_PROMPT": "0",
            "AWS_ACCESS_KEY_ID": "AKIACANARY0000000000",
            "AWS_SESSION_TOKEN": "CANARYawssession",
            **{f"GIT_{who}_NAME": "Ann" for who in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{who}_EMAIL": "ann@acme.example" for who in ("AUTHOR", "COMMITTER")},
        }
        (self.home / ".config" / "git").write_text("")
        self.before = self.picture()

    def picture(self) -> dict[str, tuple[int, bytes]]:
        """The mode and the content of everything at home that is not in the repository."""
        found: dict[str, tuple[int, bytes]] = {}
        for place in sorted(self.home.rglob("*")):
            if place == self.folder or self.folder in place.parents:
                continue
            kind = place.lstat().st_mode
            content = place.read_bytes() if stat.S_ISREG(kind) else b""
            found[str(place.relative_to(self.home))] = (kind, content)
        return found

    def git(self, *words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["git", *words],
            cwd=folder or self.folder,
            env=self.victim.env,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
        )

    def dibs(self, *words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command with 2 GB of memory, which no file of the attacker's may fill."""
        limited = f'ulimit -v {_MOST_MEMORY_KB}; exec "$@"'
        ran = subprocess.run(
            ["sh", "-c", limited, "sh", PROGRAM, *words],
            cwd=folder or self.folder,
            env=self.victim.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
        )
        told = f"dibs {' '.join(words)} ended with {ran.returncode}: {ran.stdout}{ran.stderr}"
        assert "Traceback" not in ran.stderr, told
        assert ran.returncode >= 0, told
        assert ran.returncode == 0 or ran.stderr.strip() or ran.stdout.strip(), told
        assert len(ran.stdout + ran.stderr) < 20_000, told
        return ran

    def look_around(self, *more: tuple[str, ...]) -> None:
        """Run every command that looks, and check after each that nothing happened."""
        for words in (*_LOOKS, *more):
            ran = self.dibs(*words)
            self.hold(f"dibs {' '.join(words)}: {ran.stdout}{ran.stderr}")
            for secret in (*SECRETS.values(), "CANARYnetrc", "root:x:"):
                assert secret not in ran.stdout + ran.stderr, words

    def hold(self, what: str) -> None:
        after = self.picture()
        assert not self.proof.exists(), f"the attacker's command ran: {what}"
        changed = {
            name for name in {*after, *self.before} if after.get(name) != self.before.get(name)
        }
        assert not changed, f"{sorted(changed)} changed: {what}"
        sent = f"{self.ear.heard[:300]!r} was sent: {what}"
        assert not any(secret.encode() in self.ear.heard for secret in SECRETS.values()), sent
        assert self.may_be_called or self.ear.heard == b"", sent


@pytest.fixture
def trap(victim: Victim, ear: Ear) -> Trap:
    return Trap(victim, ear)


_OFTEN = {
    *("api", "tracker-of-another-program", "journal", "handlers", "git-by-an-option-of-ssh"),
    *("settings-are-a-secret", "settings-are-a-fifo", "settings-of-ten-gigabytes"),
    *("state-is-elsewhere", "journal-is-elsewhere", "git-of-ten-gigabytes"),
}


def _cases(names: Iterable[str]) -> list[ParameterSet]:
    """Each is a dozen starts of the program; the long tier has them all."""
    return [pytest.param(name, marks=() if name in _OFTEN else pytest.mark.long) for name in names]


# Settings

_STAGE = '[[stage]]\nname = "ready"\nnext = "review"\n[[stage]]\nname = "review"\n'
_SETTINGS: dict[str, str] = {
    "api": 'tracker = "github:victim/repo"\n[github]\napi = "{ear}"\n',
    "tracker-of-another-program": 'tracker = "sqlite:../history.db"\n',
    "tracker-by-its-whole-path": 'tracker = "sqlite:{home}/history.db"\n',
    "tracker-outside": 'tracker = "sqlite:../made.db"\n',
    "leases-outside": 'leases = "sqlite:../made.db"\n',
    "dynamodb": 'leases = "dynamodb://Tab?endpoint={ear}&region=eu-central-1"\n',
    "postgres": 'leases = "postgres://127.0.0.1:{port}/db"\n',
    "redis": 'leases = "redis://127.0.0.1:{port}/0"\n',
    "etcd": 'leases = "etcd://127.0.0.1:{port}/dibs?timeout=1"\n',
    "git-over-http": 'leases = "git:http://127.0.0.1:{port}/x.git"\n',
    "git-by-a-program": "leases = 'git:ext::sh -c {spaceless}'\n",
    "git-by-an-option": "leases = 'git:--upload-pack={payload};'\n",
    "git-by-an-option-of-ssh": "leases = 'git:ssh://-oProxyCommand={spaceless}/x'\n",
    "git-by-a-host-that-is-an-option": "leases = 'git:-oProxyCommand={spaceless}:x'\n",
    "journal": 'journal = "../.ssh/authorized_keys"\n',
    "journal-by-its-whole-path": 'journal = "{home}/.ssh/authorized_keys"\n',
    "runs": 'runs = "../.config/autostart"\n',
    "handlers": (
        'preset = "none"\n[[stage]]\nname = "ready"\nnext = "other"\nrun = "{payload}"\n'
        '[[stage]]\nname = "other"\nnext = "review"\npython = "evil:handle"\n'
        '[[stage]]\nname = "review"\n[[loop]]\nname = "l"\nevery = "1s"\nrun = "{payload}"\n'
    ),
    "worktree": (
        'preset = "none"\n[[stage]]\nname = "ready"\nnext = "review"\nrun = "{payload}"\n'
        'worktree = "."\nworktree_base = "--upload-pack={payload}"\n[[stage]]\nname = "review"\n'
    ),
}


def _written(name: str, trap: Trap) -> str:
    return (
        _SETTINGS[name]
        .replace("{ear}", trap.ear.url)
        .replace("{port}", str(trap.ear.port))
        .replace("{home}", str(trap.home))
        .replace("{spaceless}", trap.payload.replace(" ", "${IFS}"))
        .replace("{payload}", trap.payload)
    )


# A repository may name a store which is given no credential of the victim's.
_GIVEN_NOTHING = {"redis", "etcd", "git-over-http"}
_EVIL_MODULE = """
import os, pathlib
pathlib.Path({proof!r}).write_text(repr(dict(os.environ)))
def handle(work): ...
"""


@pytest.mark.parametrize("name", _cases(_SETTINGS))
def test_to_look_around_beside_hostile_settings_does_nothing(trap: Trap, name: str):
    trap.dibs("init")
    trap.dibs("add", "an issue")
    (trap.folder / "evil.py").write_text(_EVIL_MODULE.format(proof=str(trap.proof)))
    (trap.folder / "click.py").write_text(_EVIL_MODULE.format(proof=str(trap.proof)))
    trap.victim.configure(_written(name, trap))
    trap.may_be_called = name in _GIVEN_NOTHING
    trap.look_around(*_WRITES)


def test_the_same_settings_in_pyproject_do_nothing(trap: Trap):
    api = (
        f'[tool.dibs]\ntracker = "github:victim/repo"\n[tool.dibs.github]\napi = "{trap.ear.url}"\n'
    )
    (trap.folder / "pyproject.toml").write_text(api)
    trap.look_around()


# Files


def _symlink(place: str, to: str) -> Callable[[Trap], None]:
    def make(trap: Trap) -> None:
        (trap.folder / place).parent.mkdir(parents=True, exist_ok=True)
        (trap.folder / place).symlink_to(to.replace("HOME", str(trap.home)))

    return make


def _fifo(place: str) -> Callable[[Trap], None]:
    def make(trap: Trap) -> None:
        (trap.folder / place).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(trap.folder / place)

    return make


def _ten_gigabytes(place: str) -> Callable[[Trap], None]:
    """A file without content that takes no room on the disk."""

    def make(trap: Trap) -> None:
        (trap.folder / place).parent.mkdir(parents=True, exist_ok=True)
        with (trap.folder / place).open("wb") as file:
            file.truncate(10 * 1024**3)

    return make


def _in_git(make: Callable[[Trap], None]) -> Callable[[Trap], None]:
    """The same in a repository, in place of what git put there."""

    def made(trap: Trap) -> None:
        trap.git("init", "--quiet", "--initial-branch=main")
        shutil.rmtree(trap.folder / ".git" / "hooks")
        for name in ("info/exclude", "config"):
            (trap.folder / ".git" / name).unlink()
        make(trap)

    return made


_FILES: dict[str, Callable[[Trap], None]] = {
    "settings-are-passwords": _symlink("dibs.toml", "/etc/passwd"),
    "settings-are-a-secret": _symlink("dibs.toml", "../.netrc"),
    "settings-are-the-environment": _symlink("dibs.toml", "/proc/self/environ"),
    "settings-are-the-kernel's-log": _symlink("dibs.toml", "/proc/kmsg"),
    "settings-are-endless": _symlink("dibs.toml", "/dev/zero"),
    "settings-are-the-terminal": _symlink("dibs.toml", "/dev/tty"),
    "settings-are-a-fifo": _fifo("dibs.toml"),
    "settings-are-a-folder": lambda trap: (trap.folder / "dibs.toml").mkdir(),
    "settings-of-ten-gigabytes": _ten_gigabytes("dibs.toml"),
    "pyproject-is-a-fifo": _fifo("pyproject.toml"),
    "pyproject-of-ten-gigabytes": _ten_gigabytes("pyproject.toml"),
    "state-is-elsewhere": _symlink(".dibs", "../.ssh"),
    "state-is-a-fifo": _fifo(".dibs"),
    "database-is-another's": _symlink(".dibs/backlog.db", "HOME/history.db"),
    "database-is-made-elsewhere": _symlink(".dibs/backlog.db", "HOME/made.db"),
    "database-is-a-fifo": _fifo(".dibs/backlog.db"),
    "database-of-ten-gigabytes": _ten_gigabytes(".dibs/backlog.db"),
    "journal-is-elsewhere": _symlink(".dibs/events.jsonl", "HOME/.ssh/authorized_keys"),
    "journal-is-a-fifo": _fifo(".dibs/events.jsonl"),
    "runs-are-elsewhere": _symlink(".dibs/runs", "HOME/.config"),
    "hint-is-elsewhere": _symlink(".dibs/wake", "HOME/.ssh/authorized_keys"),
    "git-is-a-fifo": _fifo(".git"),
    "git-of-ten-gigabytes": _ten_gigabytes(".git"),
    "ignored-by-a-fifo": _in_git(_fifo(".gitignore")),
    "ignored-by-ten-gigabytes": _in_git(_ten_gigabytes(".gitignore")),
    "excluded-by-a-fifo": _in_git(_fifo(".git/info/exclude")),
    "hook-is-a-fifo": _in_git(_fifo(".git/hooks/pre-push")),
    "hook's-draft-is-elsewhere": _in_git(
        _symlink(".git/hooks/.pre-push.part", "HOME/.ssh/authorized_keys")
    ),
    "leases-of-the-clone-are-a-fifo": _in_git(_fifo(".git/dibs-runs.json")),
    "leases-of-the-clone-are-elsewhere": _in_git(
        _symlink(".git/dibs-runs.json", "HOME/.ssh/authorized_keys")
    ),
    "leases-of-the-clone-are-drafted-elsewhere": _in_git(
        _symlink(".git/.dibs-runs.json.part", "HOME/.ssh/authorized_keys")
    ),
    "leases-of-the-clone-are-drafted-in-a-fifo": _in_git(_fifo(".git/.dibs-runs.json.part")),
    "a-worker-is-a-fifo": _fifo(".dibs/workers/1-a.json"),
    "a-run's-output-is-a-fifo": _fifo(".dibs/runs/aaaaaaaaaaaa/output.log"),
    "git's-common-folder-is-a-fifo": lambda trap: (
        _fifo(".git/commondir")(trap),
        (trap.folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n"),
    ),
}


@pytest.mark.parametrize("name", _cases(_FILES))
def test_to_look_around_and_to_add_an_issue_beside_hostile_files_harms_nobody(
    trap: Trap, name: str
):
    _FILES[name](trap)
    trap.look_around(*_WRITES, ("list",))


# What git would run


def _hostile_git(trap: Trap, folder: Path) -> None:
    """Put commands wherever the settings, the hooks and the attributes of a repository take one."""
    payload = trap.payload
    for key in (
        *("core.fsmonitor", "core.sshCommand", "core.pager", "core.editor", "core.askPass"),
        *("core.gitProxy", "core.alternateRefsCommand", "credential.helper", "diff.external"),
        *("filter.evil.clean", "filter.evil.smudge", "filter.evil.process", "diff.evil.command"),
        *("diff.evil.textconv", "merge.evil.driver", "gpg.program", "gpg.ssh.program"),
        *("uploadpack.packObjectsHook", "remote.origin.uploadpack", "remote.origin.receivepack"),
        *("alias.status", "sequence.editor", "trailer.x.cmd", "submodule.sub.update"),
        *(
            "interactive.diffFilter",
            "man.x.cmd",
            "pager.log",
            "pager.config",
            "gc.recentObjectsHook",
        ),
    ):
        value = (
            f"!{payload}" if key.startswith(("alias.", "credential.", "submodule.")) else payload
        )
        trap.git("config", key, value, folder=folder)
    for key, value in (
        ("protocol.ext.allow", "always"),
        ("filter.evil.required", "true"),
        ("commit.gpgSign", "true"),
        ("url.ext::sh.insteadOf", "ext-sh:"),
        ("core.worktree", str(folder)),
        ("maintenance.auto", "true"),
        ("submodule.recurse", "true"),
        ("fetch.recurseSubmodules", "true"),
        ("include.path", str(folder / "more-settings")),
    ):
        trap.git("config", key, value, folder=folder)
    (folder / "more-settings").write_text(f"[core]\n\tsshCommand = {payload}\n")
    hooks = folder / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in _HOOKS:
        (hooks / name).write_text(f"#!/bin/sh\n{payload}\n")
        (hooks / name).chmod(0o755)
    (folder / ".git" / "info").mkdir(exist_ok=True)
    (folder / ".git" / "info" / "attributes").write_text("* filter=evil diff=evil merge=evil\n")


def _files_of_the_attacker(trap: Trap, folder: Path) -> None:
    """Write what a commit can bring: attributes, submodules and links."""
    (folder / ".gitattributes").write_text("* filter=evil diff=evil merge=evil\n")
    (folder / ".gitmodules").write_text(
        f'[submodule "sub"]\n\tpath = sub\n\turl = ext::sh -c {trap.payload.replace(" ", "% ")}\n'
        f"\tupdate = !{trap.payload}\n\tfetchRecurseSubmodules = true\n"
    )
    (folder / "link").symlink_to("../.ssh")
    (folder / "readme").write_text("welcome\n")


def _origin(trap: Trap) -> Path:
    """The attacker's repository, with a submodule and a branch for each hostile name."""
    made = trap.home.parent / "attacker"
    made.mkdir()
    trap.git("init", "--quiet", "--initial-branch=main", folder=made)
    _files_of_the_attacker(trap, made)
    (made / "dibs.toml").write_text(_written("handlers", trap))
    (made / "evil.py").write_text(_EVIL_MODULE.format(proof=str(trap.proof)))
    trap.git("add", "--all", folder=made)
    nothing = "0123456789012345678901234567890123456789"
    trap.git("update-index", "--add", "--cacheinfo", f"160000,{nothing},sub", folder=made)
    message = f"closes #1 $({trap.payload}) `{trap.payload}` \x1b]52;c;AAAA\x07"
    assert trap.git("commit", "--quiet", "-m", message, folder=made).returncode == 0
    trap.git("config", "receive.denyCurrentBranch", "ignore", folder=made)
    return made


_BRANCHES = (
    "$(touch${IFS}PWNED)",
    "`touch${IFS}PWNED`",
    "a;touch${IFS}PWNED",
    "x'y\"z",
    "\u202egnp",
)


def test_a_clone_is_looked_at_and_pushed_from_with_the_hook_in_place(trap: Trap):
    origin = _origin(trap)
    shutil.rmtree(trap.folder)
    cloned = trap.git("clone", "--quiet", str(origin), str(trap.folder), folder=trap.home)
    assert cloned.returncode == 0, cloned.stderr
    trap.look_around()
    assert trap.dibs("hook", "install").returncode == 0
    for number, branch in enumerate(_BRANCHES):
        assert trap.git("checkout", "--quiet", "-b", branch).returncode == 0, branch
        (trap.folder / f"file{number}").write_text("mine\n")
        trap.git("add", f"file{number}")
        message = f"fixes #1 $({trap.payload}) `{trap.payload}`"
        assert trap.git("commit", "--quiet", "-m", message).returncode == 0
        pushed = trap.git("push", "--quiet", "origin", branch)
        assert pushed.returncode == 0, pushed.stderr
        assert "Traceback" not in pushed.stderr
        assert not (trap.folder / "PWNED").exists(), branch
        trap.hold(f"git push of {branch}: {pushed.stderr}")


def test_a_push_does_not_ask_the_server_that_a_clone_names(trap: Trap):
    origin = _origin(trap)
    (origin / "dibs.toml").write_text(_written("api", trap))
    trap.git("commit", "--quiet", "--all", "-m", "settings", folder=origin)
    shutil.rmtree(trap.folder)
    trap.git("clone", "--quiet", str(origin), str(trap.folder), folder=trap.home)
    trap.dibs("hook", "install")
    (trap.folder / "mine").write_text("mine\n")
    trap.git("add", "mine")
    trap.git("commit", "--quiet", "-m", "fixes #1")
    pushed = trap.git("push", "--quiet", "origin", "HEAD:refs/heads/mine")
    trap.hold(f"git push: {pushed.stderr}")
    assert pushed.stderr.strip(), "what was not checked is told"


@pytest.mark.parametrize(
    "leases",
    [
        "git:origin",
        *(
            pytest.param(leases, marks=pytest.mark.long)
            for leases in ("auto", "git:ssh://127.0.0.1/x", "git:ext-sh:x", "git:../attacker")
        ),
    ],
)
def test_an_unpacked_repository_is_looked_at_and_runs_nothing_of_its_own(trap: Trap, leases: str):
    """Whoever packs a folder packs `.git` as well: its settings and hooks are the attacker's."""
    trap.git("init", "--quiet", "--initial-branch=main")
    trap.git("remote", "add", "origin", f"ssh://127.0.0.1:{trap.ear.port}/x.git")
    _files_of_the_attacker(trap, trap.folder)
    trap.victim.configure(f'leases = "{leases}"\n')
    _hostile_git(trap, trap.folder)
    assert not trap.proof.exists()
    trap.look_around()


# A worker


def _worked(trap: Trap) -> subprocess.CompletedProcess[str]:
    """Let a worker with settings of the victim's own work one issue in a worktree there."""
    own = trap.home / "own"
    own.mkdir()
    settings = (
        'preset = "none"\n[[stage]]\nname = "ready"\nnext = "review"\n'
        'run = "echo done > result.txt"\n'
        f'worktree = "{trap.folder}"\nworktree_base = "main"\n[[stage]]\nname = "review"\n'
    )
    (own / "dibs.toml").write_text(settings)
    trap.dibs("init", folder=own)
    trap.dibs("add", "an issue", folder=own)
    return trap.dibs("work", "--once", folder=own)


def _untouched(trap: Trap, worked: subprocess.CompletedProcess[str]) -> None:
    shutil.rmtree(trap.home / "own")
    trap.hold(f"dibs work: {worked.stdout}{worked.stderr}")


def test_a_worker_works_in_a_worktree_of_a_hostile_clone(trap: Trap):
    origin = _origin(trap)
    shutil.rmtree(trap.folder)
    trap.git("clone", "--quiet", str(origin), str(trap.folder), folder=trap.home)
    worked = _worked(trap)
    assert worked.returncode == 0, worked.stderr
    _untouched(trap, worked)


def test_a_worker_runs_nothing_of_an_unpacked_repository_s_own_making(trap: Trap):
    trap.git("init", "--quiet", "--initial-branch=main")
    _files_of_the_attacker(trap, trap.folder)
    trap.git("add", "--all")
    trap.git("commit", "--quiet", "-m", "begin")
    _hostile_git(trap, trap.folder)
    assert not trap.proof.exists()
    _untouched(trap, _worked(trap))


# The control


def test_the_attackers_commands_would_be_seen(trap: Trap):
    """Control: git itself, run by hand in the same unpacked repository, does run them."""
    trap.git("init", "--quiet", "--initial-branch=main")
    _files_of_the_attacker(trap, trap.folder)
    _hostile_git(trap, trap.folder)
    trap.git("add", "--all")
    assert trap.proof.exists()


def test_python_itself_imports_the_modules_of_the_folder(trap: Trap):
    """Control, and no wall: `python -m dibs` puts the folder before the installed modules."""
    (trap.folder / "click.py").write_text(_EVIL_MODULE.format(proof=str(trap.proof)))
    python = str(Path(PROGRAM).with_name("python"))
    words = [python, "-m", "dibs", "list"]
    subprocess.run(
        words,
        cwd=trap.folder,
        env=trap.victim.env,
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert trap.proof.exists()


def test_settings_that_the_victim_names_are_obeyed(trap: Trap):
    """Control: with `--config` the same file counts, and its server hears of it."""
    trap.victim.configure(_written("api", trap))
    trap.dibs("--config", str(trap.folder / "dibs.toml"), "list")
    assert trap.ear.heard


def test_a_worker_that_is_started_there_does_run_the_commands_of_the_folder(trap: Trap):
    """Control, and no wall: `dibs work` runs the commands of the settings it is started with."""
    trap.victim.configure(_written("handlers", trap))
    trap.dibs("add", "an issue")
    trap.dibs("work", "--once", "--stage", "ready")
    assert trap.proof.exists()
