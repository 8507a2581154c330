"""Refs of a git repository as registers that many machines swap: names, and access with git.

`Names` defines which refs a store uses. `GitRemote` reaches any git remote with git itself;
`GithubRefs`, in another package, uses GitHub's API. Both know refs, and commits with a message and
an empty tree. Neither knows what a message means.

A push names the commit at which it expects each ref (`--force-with-lease`). The server compares
under its own lock, and `--atomic` moves several refs in one step. A read is one fetch: it asks for
the refs of some folders only, which `git ls-remote` cannot, and brings their last commits along. It
fetches no older commit, so the length of a record's history costs a reader nothing.
"""

import hashlib
import os
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from dibs.adapters.git.program import GitCommands, outage, spoken
from dibs.adapters.system import make_folder, wall_clock
from dibs.adapters.wrappers.leases import Recent
from dibs.core.durations import describe_span
from dibs.core.errors import Damaged, NotPermitted, Outage
from dibs.core.ids import IssueRef
from dibs.core.lease import Lease
from dibs.ports.refs import EMPTY_TREE, Move, SwapRefused

_PLAIN = frozenset(string.ascii_letters + string.digits + "_-")
_LONGEST_PART = 80


class Names:
    """The names of the refs. Each ref has its own folder, so a client can fetch a single ref.

    `leases/REPO/KEY/record` is the record of an issue and is never deleted. The entry
    `held/REPO/KEY/FENCE-RUN` exists while a lease is held: with the entries, a client can list the
    held leases without reading all records. Each grant under a limit moves `stages/STAGE/slots`.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.leases = f"{prefix}/leases/"
        self.held = f"{prefix}/held/"
        self._entry = re.compile(re.escape(self.held) + r"([^/]+/[^/]+)/[^/]+")

    def record(self, issue: IssueRef) -> str:
        return f"{self.leases}{_path(issue)}/record"

    def is_record(self, ref: str) -> bool:
        return ref.startswith(self.leases) and ref.endswith("/record")

    def entry(self, lease: Lease) -> str:
        return f"{self.held}{_path(lease.issue)}/{lease.fence}-{quoted(lease.run)}"

    def record_of(self, entry: str) -> str | None:
        """The ref of the record that an entry under `held` is about; None if not our entry."""
        found = self._entry.fullmatch(entry)
        return f"{self.leases}{found[1]}/record" if found else None

    def slots(self, stage: str) -> str:
        return f"{self.prefix}/stages/{quoted(stage)}/slots"


def folder_of(ref: str) -> str:
    return ref.rpartition("/")[0] + "/"


def quoted(text: str) -> str:
    """Any text as a part of a ref's name: legible if possible, and different for different texts.

    Only letters, digits, `_` and `-` stand for themselves. Git forbids many of the remaining
    characters in some places (dots, `@{`, `~`), and a percent sign would have to be quoted again in
    an address.
    """
    if not text:
        return "="
    raw = text.encode("utf-8", "surrogatepass")
    name = "".join(sign if (sign := chr(byte)) in _PLAIN else f"={byte:02X}" for byte in raw)
    if len(name) <= _LONGEST_PART:
        return name
    # File systems limit the length of a name. No short name contains two equals signs in a row.
    return f"{name[:_LONGEST_PART]}=={hashlib.sha256(raw).hexdigest()}"


def _path(issue: IssueRef) -> str:
    return f"{quoted(issue.repo)}/{quoted(issue.key)}"


_MOST_REMEMBERED = 10_000
# As git itself estimates: with so many files in one of the 256 folders, there are thousands.
_SAMPLE, _MANY = "17", 40
_FETCHED = re.compile(r"([0-9a-f]{40})\t[^\t]*\t'(refs/[^']+)'")
_REFUSED = re.compile(r"!\t([^\t]*)\t(.*)")
# Refusals by the server's rules, not by its comparison: trying again does not help.
_DECLINED = re.compile(
    r"hook declined|denied|deny|protected|prohibited|not allowed|forbidden|read.only|hidden ref"
    r"|not permitted|refusing",
    re.IGNORECASE,
)
_UNCLEAR = "failed to report status"
_LOCK_FILE = re.compile(r"Unable to create '([^'\n]+\.lock)': File exists")


class GitRemote:
    """The refs of a remote, given as an address, a path, or the name of a remote in `root`."""

    atomic = True
    guesses = True  # a push that expects the wrong commit is refused before objects are sent

    def __init__(self, remote: str, folder: Path, root: Path, *, timeout_s: float) -> None:
        self._objects = folder.absolute() / "objects"
        self._git = GitCommands(self._objects, root, timeout_s=timeout_s)
        address = self._git.resolve(remote)
        self._git.reach(address)
        self._address = address.given
        self._is_path = address.is_path
        self.name = self._git.name
        self.identity = f"git:{address.identity(root)}"
        self._ready = False
        self._messages: Recent[str, str] = Recent(_MOST_REMEMBERED)

    def close(self) -> None:
        """Does nothing, because nothing stays open between two calls."""

    # Reading

    def tips(self, folders: Sequence[str]) -> Mapping[str, str]:
        self._prepare()
        wanted = "".join(f"+{folder}*:{folder}*\n" for folder in folders)
        with self._git.folder() as place:
            fetch = ("fetch", "--quiet", "--depth=1", "--no-tags", "--stdin", self._address)
            ran = self._git.run(place, *fetch, given=wanted.encode())
            try:
                fetched = (place / "FETCH_HEAD").read_text("utf-8", errors="replace")
            except FileNotFoundError:
                fetched = ""
        found = {ref: commit for commit, ref in _FETCHED.findall(fetched)}
        if ran.code:
            # If no ref matches a fetch with a depth, git fails without an error message. The second
            # text is about an empty repository, by the old protocol.
            loud = any(line.startswith(("fatal:", "error:")) for line in ran.err.splitlines())
            none_match = ran.code == 1 and not loud
            if found or not (none_match or "no matching remote head" in ran.err):
                raise outage(ran, self.name)
        return found

    def messages(self, commits: Iterable[str]) -> Mapping[str, str]:
        wanted = set(commits)
        known = {commit: self._messages.get(commit) for commit in wanted}
        cached = {commit: message for commit, message in known.items() if message is not None}
        unknown = sorted(wanted - cached.keys())
        if not unknown:
            return cached
        asked = "".join(f"{commit}\n" for commit in unknown).encode()
        with self._git.folder() as place:
            ran = self._git.run(place, "cat-file", "--batch", given=asked)
        if ran.code:
            raise outage(ran, self.name)
        read = _parse_batch(ran.out)
        if missing := [commit for commit in unknown if commit not in read]:
            raise Damaged(f"{self.name}: {missing[0]} is not a commit, or did not come")
        for commit, message in read.items():
            self._messages.put(commit, message)
        return {**cached, **read}

    # Writing

    def commit(self, message: str, parent: str | None) -> str | None:
        self._prepare()
        parents = ("-p", parent) if parent is not None else ()
        with self._git.folder([parent] if parent is not None else ()) as place:
            ran = self._git.run(place, "commit-tree", EMPTY_TREE, *parents, given=message.encode())
        if ran.code and parent is not None and "not a valid object" in ran.err:
            return None  # the parent was pruned since we read it
        if ran.code:
            raise outage(ran, self.name)
        commit = ran.out.decode("ascii").strip()
        assert commit, "an empty name would make the push delete the ref"
        self._messages.put(commit, message)
        return commit

    def swap(self, moves: Sequence[Move]) -> SwapRefused | None:
        # A guarded move has no `+`, which would push even if the ref is not where we expect it.
        leases = [
            f"--force-with-lease={move.ref}:{move.expected or ''}" for move in moves if move.guarded
        ]
        changes = [
            f"{'' if move.guarded or not move.to else '+'}{move.to or ''}:{move.ref}"
            for move in moves
        ]
        push = ("push", "--porcelain", "--atomic", "--no-verify", *leases, self._address)
        with self._git.folder([move.expected for move in moves if move.expected]) as place:
            ran = self._git.run(place, *push, *changes)
        if not ran.code:
            return None
        # If git names no ref that was refused, the outcome is open, and an error is raised.
        refusals = _REFUSED.findall(ran.out.decode("utf-8", "replace"))
        reasons = "; ".join(sorted({reason for _, reason in refusals}))
        if not refusals or _UNCLEAR in reasons or "unpacker error" in reasons:
            raise outage(ran, self.name)
        if _DECLINED.search(reasons):
            raise NotPermitted(f"{self.name} declined the push: {reasons}; {spoken(ran.err)}")
        # A request may reach the server twice, because curl repeats a request without a reply. So a
        # refusal by the server may be caused by our own first request.
        locked = ""
        if (lock := _LOCK_FILE.search(ran.err)) is not None:
            age = ""
            with suppress(OSError):
                if self._is_path:  # otherwise the file is not on this machine
                    lasted_s = wall_clock().timestamp() - Path(lock[1]).stat().st_mtime
                    age = f" for {describe_span(timedelta(seconds=lasted_s))}"
            locked = (
                f"the lock file {os.path.normpath(lock[1])} has been in the way{age}; a git process"
                " that was killed may have left it: see the runbook"
            )
        return SwapRefused(reasons, sure="[remote" not in reasons, locked=locked)

    # The object folder

    def _prepare(self) -> None:
        """Create the folder and the empty tree, and prune old objects. Done once per client."""
        if self._ready:
            return
        if any(folder.is_symlink() for folder in (self._objects, self._objects.parent)):
            # A repository can bring the link along, and old objects are removed here.
            raise NotPermitted(f"{self._objects.parent} is a symbolic link, or has one in it")
        try:
            make_folder(self._objects)
        except OSError as flaw:
            raise NotPermitted(
                f"{self._objects.parent} cannot be made: {flaw.strerror}; {self.name} works there"
            ) from flaw
        with self._git.folder() as place:
            if not (self._objects / EMPTY_TREE[:2] / EMPTY_TREE[2:]).exists():
                ran = self._git.run(place, "mktree")
                if ran.code:
                    raise outage(ran, self.name)
            crowded = False
            with suppress(OSError):
                crowded = sum(1 for _ in (self._objects / _SAMPLE).iterdir()) > _MANY
            if crowded:
                # Younger objects may be part of a push that is under way. A client that remembers
                # an older object reads again when it is gone.
                with suppress(Outage):
                    self._git.run(place, "prune", "--expire=1.day.ago")
        self._ready = True


def _parse_batch(out: bytes) -> dict[str, str]:
    """The messages of commits, by commit, in the output of `cat-file --batch`."""
    read, at = {}, 0
    while (end := out.find(b"\n", at)) >= 0:
        words = out[at:end].decode("ascii", "replace").split()
        at = end + 1
        if len(words) == 3:  # otherwise the line reports a missing object
            commit, kind, size = words[0], words[1], int(words[2])
            if kind == "commit":
                message = out[at : at + size].partition(b"\n\n")[2]
                read[commit] = message.decode("utf-8", "replace")
            at += size + 1
    return read
