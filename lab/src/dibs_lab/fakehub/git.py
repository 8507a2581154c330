"""Git objects and refs of the fake's repositories, in memory: real object names, one lock.

Enough for commits and refs over GitHub's API: a ref is created once and moved only forward unless
forced. There are no files except those that trees name, no packs, no fetch, no push. A new
repository has one commit on its default branch, as if it had been created with a README.
"""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha1

from .records import Repository
from .refusal import Kind, Refusal, not_found, unprocessable

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
README = b"# A repository of the fake\n"


@dataclass(frozen=True, slots=True)
class Signature:
    name: str
    email: str
    at: datetime

    def line(self) -> str:
        zone = self.at.strftime("%z") or "+0000"
        return f"{self.name} <{self.email}> {int(self.at.timestamp())} {zone}"


@dataclass(frozen=True, slots=True)
class Commit:
    sha: str
    tree: str
    parents: tuple[str, ...]
    message: str
    author: Signature
    committer: Signature


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a tree."""

    mode: str
    path: str
    sha: str

    @property
    def kind(self) -> str:
        return {"040000": "tree", "160000": "commit"}.get(self.mode, "blob")


class Objects:
    """One repository's commits, trees, blobs and refs."""

    def __init__(self, *, branch: str, by: Signature, knows_empty_tree: bool) -> None:
        self._lock = threading.Lock()
        self.knows_empty_tree = knows_empty_tree
        self._blobs: dict[str, bytes] = {}
        self._trees: dict[str, tuple[Entry, ...]] = {EMPTY_TREE: ()}
        self._commits: dict[str, Commit] = {}
        self._refs: dict[str, str] = {}
        readme = self.make_blob(README)
        tree = self.make_tree((Entry("100644", "README.md", readme),))
        self._refs[f"refs/heads/{branch}"] = self.make_commit(tree, (), "Begin", by, by).sha

    # objects

    def make_blob(self, content: bytes) -> str:
        sha = _sha("blob", content)
        self._blobs[sha] = content
        return sha

    def blob(self, sha: str) -> bytes:
        found = self._blobs.get(sha)
        if found is None:
            raise not_found()
        return found

    def make_tree(self, entries: Iterable[Entry]) -> str:
        ordered = sorted(entries, key=_tree_order)
        raw = b"".join(
            f"{entry.mode.lstrip('0')} {entry.path}".encode() + b"\0" + bytes.fromhex(entry.sha)
            for entry in ordered
        )
        sha = _sha("tree", raw)
        self._trees[sha] = tuple(ordered)
        return sha

    def tree(self, name: str) -> tuple[str, tuple[Entry, ...]]:
        """A tree by its own name, or by that of a commit or a branch."""
        sha = self._refs.get(f"refs/heads/{name}", name)
        if sha in self._commits:
            sha = self._commits[sha].tree
        if not self._has_tree(sha):
            raise not_found()
        return sha, self._trees[sha]

    def make_commit(
        self, tree: str, parents: Iterable[str], message: str, author: Signature, by: Signature
    ) -> Commit:
        above = tuple(parents)
        if not self._has_tree(tree):
            raise unprocessable("Tree SHA does not exist")
        if not all(parent in self._commits for parent in above):
            raise unprocessable("Parent SHA does not exist or is not a commit object")
        lines = [
            f"tree {tree}",
            *(f"parent {parent}" for parent in above),
            f"author {author.line()}",
            f"committer {by.line()}",
            "",
            message,
        ]
        sha = _sha("commit", "\n".join(lines).encode())
        commit = Commit(sha, tree, above, message, author, by)
        self._commits[sha] = commit
        return commit

    def commit(self, sha: str) -> Commit:
        found = self._commits.get(sha)
        if found is None:
            raise not_found()
        return found

    def log(self, name: str) -> list[Commit]:
        """The first parents from a branch or commit back to the first commit."""
        sha: str | None = self._refs.get(f"refs/heads/{name}", name)
        found = []
        while sha in self._commits:
            commit = self._commits[sha]
            found.append(commit)
            sha = commit.parents[0] if commit.parents else None
        if not found:
            raise Refusal(Kind.NOT_FOUND, f"No commit found for SHA: {name}")
        return found

    # refs

    def ref(self, name: str) -> str:
        found = self._refs.get(name)
        if found is None:
            raise not_found()
        return found

    def refs(self, prefix: str) -> list[tuple[str, str]]:
        with self._lock:
            return sorted(pair for pair in self._refs.items() if pair[0].startswith(prefix))

    def make_ref(self, name: str, sha: str) -> None:
        if not name.startswith("refs/") or name.count("/") < 2 or name.endswith("/"):
            raise unprocessable("Reference name must start with 'refs/' and have two slashes")
        if sha not in self._commits:
            raise unprocessable("Object does not exist")
        with self._lock:
            if name in self._refs:
                raise unprocessable("Reference already exists")
            self._refs[name] = sha

    def move_ref(self, name: str, sha: str, *, force: bool) -> None:
        with self._lock:
            old = self._refs.get(name)
            if old is None:
                raise unprocessable("Reference does not exist")
            if sha not in self._commits:
                raise unprocessable("Object does not exist")
            if not force and not self._descends(sha, old):
                raise unprocessable("Update is not a fast forward")
            self._refs[name] = sha

    def drop_ref(self, name: str) -> None:
        with self._lock:
            if self._refs.pop(name, None) is None:
                raise unprocessable("Reference does not exist")

    def _has_tree(self, sha: str) -> bool:
        return sha in self._trees and (self.knows_empty_tree or sha != EMPTY_TREE)

    def _descends(self, sha: str, ancestor: str) -> bool:
        seen: set[str] = set()
        ahead = [sha]
        while ahead:
            current = ahead.pop()
            if current == ancestor:
                return True
            if current not in seen:
                seen.add(current)
                ahead.extend(self._commits[current].parents)
        return False


class Git:
    """The objects of every repository, created on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._repositories: dict[int, Objects] = {}
        self.knows_empty_tree = True
        """Some servers accept the empty tree although nobody stored it, some do not."""

    def of(self, repository: Repository) -> Objects:
        with self._lock:
            found = self._repositories.get(repository.id)
            if found is None:
                by = Signature(repository.owner, "noreply@fakehub.invalid", repository.created_at)
                found = Objects(
                    branch=repository.default_branch,
                    by=by,
                    knows_empty_tree=self.knows_empty_tree,
                )
                self._repositories[repository.id] = found
            return found


def signature(given: object, name: str, now: datetime) -> Signature:
    """Author or committer of a request: name, email, date, each optional."""
    told: Mapping[str, object] = given if isinstance(given, dict) else {}
    date = told.get("date")
    at = datetime.fromisoformat(date) if isinstance(date, str) else now
    return Signature(
        str(told.get("name", name)),
        str(told.get("email", f"{name}@users.fakehub.invalid")),
        at if at.tzinfo else at.replace(tzinfo=UTC),
    )


def _sha(kind: str, content: bytes) -> str:
    head = f"{kind} {len(content)}\0".encode()
    return sha1(head + content, usedforsecurity=False).hexdigest()


def _tree_order(entry: Entry) -> bytes:
    """Git sorts folders as if their names ended in a slash."""
    return (entry.path + "/" if entry.kind == "tree" else entry.path).encode()
