"""Refs of a git repository as registers that many machines swap: their names, and the port.

`GitRemote` reaches a repository with git itself, `GithubRefs` through GitHub's API. Both know refs
and commits with a message; what a message means is not theirs to know.

Any git remote, by git itself: commits with an empty tree, and refs that are swapped by a push.

A push says where it expects each ref (`--force-with-lease`), the server compares under its own
lock, and `--atomic` makes several refs one step. A look is one fetch: it asks for the refs of some
folders only, which `git ls-remote` cannot, and brings their last commits along. Nothing older is
fetched, so that the length of a record's history costs a reader nothing.
"""

import hashlib
import re
import string
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from dibs.adapters.git.program import Address, Git, Ran, outage, parse_address, spoken
from dibs.core.errors import BadConfiguration, Damaged, NotPermitted, Outage
from dibs.core.ids import IssueRef
from dibs.core.lease import Lease
from dibs.core.references import without_secrets
from dibs.ports.refs import EMPTY_TREE, Move, Refused

_PLAIN = frozenset(string.ascii_letters + string.digits + "_-")
_LONGEST_PART = 80


class Names:
    """Where things are kept. Each ref has a folder of its own, so that it can be asked for alone.

    `leases/REPO/KEY/record` is the record of an issue and is never deleted. While a lease is held,
    `held/REPO/KEY/FENCE-RUN` says so: what is in flight can be listed without all that ever was.
    `stages/STAGE/slots` is moved by each grant under a limit.
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
        """The record that an entry under `held` is about; None if it is none of ours."""
        found = self._entry.fullmatch(entry)
        return f"{self.leases}{found[1]}/record" if found else None

    def slots(self, stage: str) -> str:
        return f"{self.prefix}/stages/{quoted(stage)}/slots"


def folder_of(ref: str) -> str:
    return ref.rpartition("/")[0] + "/"


def quoted(text: str) -> str:
    """Any text as one part of a ref's name: legible where it can be, and never the same for two.

    Only letters, digits, `_` and `-` stand for themselves. Git forbids much of the rest somewhere
    (dots, `@{`, `~`), and a percent sign would have to be quoted again in an address.
    """
    if not text:
        return "="
    raw = text.encode("utf-8", "surrogatepass")
    name = "".join(sign if (sign := chr(byte)) in _PLAIN else f"={byte:02X}" for byte in raw)
    if len(name) <= _LONGEST_PART:
        return name
    # A file system takes names of so many bytes only. No short name has two signs in a row.
    return f"{name[:_LONGEST_PART]}=={hashlib.sha256(raw).hexdigest()}"


def _path(issue: IssueRef) -> str:
    return f"{quoted(issue.repo)}/{quoted(issue.key)}"


_MOST_REMEMBERED = 10_000
# As git itself estimates: so many files in one of the 256 folders, and there are thousands.
_SAMPLE, _MANY = "17", 40
_FETCHED = re.compile(r"([0-9a-f]{40})\t[^\t]*\t'(refs/[^']+)'")
_REFUSED = re.compile(r"!\t([^\t]*)\t(.*)")
# Said by the server's rules, and not by its lock: trying again will not help.
_DECLINED = re.compile(
    r"hook declined|denied|deny|protected|prohibited|not allowed|forbidden|read.only|hidden ref"
    r"|not permitted|refusing",
    re.IGNORECASE,
)
_UNCLEAR = "failed to report status"


class GitRemote:
    """The refs of one remote: an address, a path, or the name of one of the repository's own."""

    atomic = True
    guesses = True  # a push that expects the wrong thing is refused before anything is sent

    def __init__(self, remote: str, folder: Path, root: Path, *, timeout_s: float) -> None:
        if not remote or remote.startswith("-"):
            shown = without_secrets(remote)
            raise BadConfiguration(f"'git:{shown}' names no remote; write it as git:REMOTE")
        self._objects = folder.absolute() / "objects"
        self._git = Git(self._objects, root, timeout_s=timeout_s)
        address = self._resolve(remote)
        self._git.reach(address)
        self._address = address.given
        self.name = self._git.name
        self.identity = f"git:{address.identity(root)}"
        self._lock = threading.Lock()
        self._ready = False
        self._messages: OrderedDict[str, str] = OrderedDict()

    def _resolve(self, remote: str) -> Address:
        """One address for reading and writing: a remote may have several, or one for each."""
        if remote.startswith("~/"):
            return parse_address(str(Path(remote).expanduser()))
        if ":" not in remote:  # otherwise it is no name, and may have a password in it
            return parse_address(self._told("remote", "get-url", "--push", remote) or remote)
        address = parse_address(remote)
        if address.account is not None:
            return address
        # A rule of the user's (`insteadOf`) may bring an account along.
        return parse_address(self._told("ls-remote", "--get-url", remote) or remote)

    def _told(self, *words: str) -> str:
        ran = self._git.ask(*words)
        return "" if ran.code else ran.out.decode("utf-8", "surrogateescape").strip()

    def close(self) -> None:
        """Nothing stays open between two calls."""

    # Looking

    def tips(self, folders: Sequence[str]) -> Mapping[str, str]:
        self._prepare()
        wanted = "".join(f"+{folder}*:{folder}*\n" for folder in folders)
        with self._git.folder() as place:
            fetch = ("fetch", "--quiet", "--depth=1", "--no-tags", "--stdin", self._address)
            ran = self._git.run(place, *fetch, given=wanted.encode())
            found = _fetched(place)
        if ran.code and not _nothing_there(ran, found):
            raise outage(ran, self.name)
        return found

    def messages(self, commits: Iterable[str]) -> Mapping[str, str]:
        wanted = set(commits)
        with self._lock:
            known = {one: self._messages[one] for one in wanted if one in self._messages}
        unknown = sorted(wanted - known.keys())
        if not unknown:
            return known
        asked = "".join(f"{commit}\n" for commit in unknown).encode()
        with self._git.folder() as place:
            ran = self._git.run(place, "cat-file", "--batch", given=asked)
        if ran.code:
            raise outage(ran, self.name)
        read = _batch(ran.out)
        if missing := [commit for commit in unknown if commit not in read]:
            raise Damaged(f"{self.name}: {missing[0]} is not a commit, or did not come")
        self._remember(read.items())
        return {**known, **read}

    def _remember(self, messages: Iterable[tuple[str, str]]) -> None:
        with self._lock:
            for commit, message in messages:
                self._messages[commit] = message
            while len(self._messages) > _MOST_REMEMBERED:
                self._messages.popitem(last=False)

    # Writing

    def commit(self, message: str, parent: str | None) -> str | None:
        self._prepare()
        parents = ("-p", parent) if parent is not None else ()
        with self._git.folder([parent] if parent is not None else ()) as place:
            ran = self._git.run(place, "commit-tree", EMPTY_TREE, *parents, given=message.encode())
        if ran.code and parent is not None and "not a valid object" in ran.err:
            return None  # pruned since we read it
        if ran.code:
            raise outage(ran, self.name)
        commit = ran.out.decode("ascii").strip()
        assert commit, "an empty name would make the push delete the ref"
        self._remember([(commit, message)])
        return commit

    def swap(self, moves: Sequence[Move]) -> Refused | None:
        # Without `+`: that would push even where the ref is not as expected.
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
        return self._refusal(ran) if ran.code else None

    def _refusal(self, ran: Ran) -> Refused:
        """What was said of each ref; anything else leaves it open, and is raised."""
        told = _REFUSED.findall(ran.out.decode("utf-8", "replace"))
        reasons = "; ".join(sorted({reason for _, reason in told}))
        if not told or _UNCLEAR in reasons:
            raise outage(ran, self.name)
        if "unpacker error" in reasons:
            raise outage(ran, self.name)
        if _DECLINED.search(reasons):
            raise NotPermitted(f"{self.name} declined the push: {reasons}; {spoken(ran.err)}")
        # What reaches the server may reach it twice: curl sends again what it got no reply to.
        return Refused(reasons, sure="[remote" not in reasons)

    # The object folder

    def _prepare(self) -> None:
        """Once for each client: the folder, the empty tree, and no more old objects than needed."""
        if self._ready:
            return
        try:
            self._objects.mkdir(parents=True, exist_ok=True)
        except OSError as flaw:
            raise NotPermitted(
                f"{self._objects.parent} cannot be made: {flaw.strerror}; {self.name} works there"
            ) from flaw
        with self._git.folder() as place:
            if not (self._objects / EMPTY_TREE[:2] / EMPTY_TREE[2:]).exists():
                ran = self._git.run(place, "mktree")
                if ran.code:
                    raise outage(ran, self.name)
            if _crowded(self._objects):
                # What is younger may be on its way. Whoever remembers what is older looks again.
                with suppress(Outage):
                    self._git.run(place, "prune", "--expire=1.day.ago")
        self._ready = True


def _fetched(place: Path) -> dict[str, str]:
    try:
        text = (place / "FETCH_HEAD").read_text("utf-8", errors="replace")
    except FileNotFoundError:
        return {}
    return {ref: commit for commit, ref in _FETCHED.findall(text)}


def _nothing_there(ran: Ran, found: Mapping[str, str]) -> bool:
    """Git calls it a failure, without a word, if no ref matches a fetch with a depth."""
    if found:
        return False
    if ran.code == 1 and not ran.failed_loudly:
        return True
    return "no matching remote head" in ran.err  # an empty repository, by the old protocol


def _batch(out: bytes) -> dict[str, str]:
    """The messages of commits, as `cat-file --batch` tells them."""
    read, at = {}, 0
    while (end := out.find(b"\n", at)) >= 0:
        words = out[at:end].decode("ascii", "replace").split()
        at = end + 1
        if len(words) == 3:  # otherwise it says that there is no such object
            commit, kind, size = words[0], words[1], int(words[2])
            if kind == "commit":
                message = out[at : at + size].partition(b"\n\n")[2]
                read[commit] = message.decode("utf-8", "replace")
            at += size + 1
    return read


def _crowded(objects: Path) -> bool:
    try:
        return sum(1 for _ in (objects / _SAMPLE).iterdir()) > _MANY
    except OSError:
        return False
