"""A repository of a run's own, and a stand-in for a repository that an agent wrote.

The working tree of a worker's run is registered in the operator's clone, but `.git` in it is a
repository of its own: its settings, hooks and refs are copies, its objects are added to those of
the clone. So nothing that an agent writes there is a setting or a hook of the clone.

The worker runs no git command on a repository that an agent could write: settings and attributes
there name programs. It copies what is data (refs, HEAD, index, unfinished merges) into a stand-in,
a git folder of its own making, and runs git with that. `bring` moves commits from the stand-in to
the clone; git checks each object on the way.
"""

import os
import pwd
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from dibs.adapters.git.program import is_local_path
from dibs.worktrees.repository import CHECKOUT_S, QUIETLY, Repository, refused, run_with
from dibs.worktrees.sessions import Entry
from dibs.worktrees.values import RECOVERED, BadWorktree, Unsaveable, fit_for_a_branch

# Commits of an unfinished merge, pick or rebase; only one working tree has names for them.
UNFINISHED = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "REBASE_HEAD", "MERGE_AUTOSTASH")
SET_ASIDE = ("rebase-merge/autostash", "rebase-apply/autostash", "rebase-merge/orig-head")
_DATA = ("index", "shallow", "info/exclude", "info/sparse-checkout", *UNFINISHED, *SET_ASIDE)
_OPENED = frozenset({".gitignore", ".gitattributes", ".gitmodules"})
_LARGEST = 1 << 28
"""Bytes of all files that are copied into a stand-in; the index is the large one."""
_LARGEST_LIST = 1 << 24
_LARGEST_LINE = 1 << 12
_MOST_REFS = 200_000
_MOST_STRAYS = 10_000
"""A git command asks for each of them."""
_HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_SHA256 = 64
_STASHES = "logs/refs/stash"
_KNOWN = "refs/remotes/dibs-known/"
# Wins over every .gitattributes. A filter is a program; an encoding is a converter chosen by name.
_ATTRIBUTES = b"* -filter -working-tree-encoding\n"
# Settings of the clone that its runs need. None of them names a program or contains a secret.
_COPIED = re.compile(
    r"remote\..+\.(url|pushurl|fetch|push|promisor|partialclonefilter)|branch\..+\.(remote|merge)"
    r"|url\..+\.(insteadof|pushinsteadof)|(user|author|committer)\.(name|email|signingkey)"
    r"|commit\.gpgsign|gpg\.format|extensions\.partialclone|push\.(default|autosetupremote)"
    r"|core\.(filemode|symlinks|ignorecase|precomposeunicode|autocrlf|eol|hookspath"
    r"|sparsecheckout|sparsecheckoutcone)",
    re.DOTALL,
)
_ACCOUNT = re.compile(r"(https?://)[^/]*@", re.IGNORECASE)
# Caches that an agent could have forged are not used.
_STAND_IN = (
    ("gc.auto", "0"),
    ("core.commitGraph", "false"),
    ("core.multiPackIndex", "false"),
    ("pack.useBitmaps", "false"),
    # The content of files that a sparse working tree never had may be absent, as in partial clones;
    # nothing is fetched, for the name of the remote could be a folder that the agent made.
    ("remote.dibs-none.promisor", "true"),
    ("protocol.allow", "never"),
    ("protocol.file.allow", "never"),
)
_CHECKED = (
    *("-c", "fetch.fsckObjects=true", "-c", "core.alternateRefsCommand=true"),
    *("-c", "protocol.allow=never", "-c", "protocol.file.allow=always"),
)


class Apart(Struct, frozen=True):
    """Each working tree has a separate repository instead of the git folder of the clone."""

    run_as: str | None = None
    """The user to whom they belong; None: the user of this process."""

    def give(self, own: Repository, path: Path, objects: Path, mode: int) -> None:
        """Give a working tree to the user, with copies of objects which the user cannot read.

        A folder changes its owner after everything in it, and `path` gets its `mode` and its owner
        at the very end: the user can put no link in place of what is still to be given away.
        """
        if self.run_as is None:
            return
        try:
            account = pwd.getpwnam(self.run_as)
        except KeyError:
            raise BadWorktree(f"there is no user {self.run_as!r} to give {path} to") from None
        above = all(folder.stat().st_mode & stat.S_IXOTH for folder in objects.parents)
        readable = above and objects.stat().st_mode & 0o5 == 0o5
        if not readable or (objects / "info/alternates").exists():
            doing = f"its objects cannot be copied for {self.run_as}"
            own.output(*QUIETLY, "repack", "-a", "-d", "--quiet", doing=doing, timeout=CHECKOUT_S)
            (own.folder / "objects/info/alternates").unlink()
        user = (account.pw_uid, account.pw_gid)
        for _, folders, files, folder in os.fwalk(path, topdown=False):
            for name in (*folders, *files):
                os.chown(name, *user, dir_fd=folder, follow_symlinks=False)
        path.chmod(mode)  # only its owner may do so
        os.lchown(path, *user)


def take_back(path: Path, run_as: str) -> None:
    """Take a working tree back from the user who had been given the tree, and shut the tree.

    Processes of the user may still run inside. Each folder is taken and shut before the content is
    read: afterwards the user can move no entry of the folder. Only files of the user are taken: a
    name may be a hard link to a file elsewhere. Raises `Unsaveable` at a folder of a third user,
    who could move the entries.
    """
    us = os.geteuid()
    try:
        user = pwd.getpwnam(run_as).pw_uid
    except KeyError:
        return  # it was given to nobody, or nobody is left to move anything
    waiting = [path]
    while waiting:
        place = waiting.pop()
        seen = place.lstat()
        if stat.S_ISDIR(seen.st_mode) and seen.st_uid not in {us, user}:
            raise Unsaveable(f"{place} belongs to the user with the number {seen.st_uid}")
        if seen.st_uid == user:
            os.lchown(place, us, -1)
        if stat.S_ISDIR(seen.st_mode):
            place.chmod(0o700)
            waiting += place.iterdir()
        elif stat.S_ISREG(seen.st_mode) and seen.st_uid == user:
            place.chmod(stat.S_IMODE(seen.st_mode) & 0o777 | 0o600)


# Making


def add_apart(repo: Repository, entry: Entry, apart: Apart) -> None:
    """Make a working tree with a separate repository. No hook and no filter runs.

    Until the working tree is complete, the clone has a lock on the working tree, with the reason
    which git uses while making a working tree.
    """
    path, branch, start = Path(entry.path), entry.branch, entry.start
    repo.register(path, branch, start, new=entry.new_branch)
    mode = stat.S_IMODE(path.stat().st_mode)
    if apart.run_as is not None:
        path.chmod(0o700)  # nobody else is in it before it is complete
    admin = repo.admin_folder(path)
    if admin is None:
        raise BadWorktree(f"{repo.name}: {repo.folder} did not register {path}")
    own = path / ".git"
    own.unlink()
    settings = tuple(_settings(repo, admin, Path(entry.checkout)))
    stores = [repo.folder / "objects"]
    _begin(own, _refs_of(repo), objects=stores, settings=(*settings, ("gc.auto", "0")))
    (own / "HEAD").write_bytes(os.fsencode(f"ref: refs/heads/{branch}\n"))
    for folder in (repo.folder, admin):  # what is of this working tree alone counts
        for name in ("shallow", "info/exclude", "info/sparse-checkout"):
            _copy(folder / name, own / name)
    places = (f"--git-dir={own}", f"--work-tree={path}")
    words = ("-c", "submodule.recurse=false", "read-tree", "-m", "-u", "HEAD")
    # If the clone is a partial one, git fetches what is missing: into the clone.
    env = {"GIT_OBJECT_DIRECTORY": str(repo.folder / "objects")}
    done = run_with(repo.git, (*places, *QUIETLY, *words), env, cwd=path, timeout=CHECKOUT_S)
    if done.returncode:
        raise refused(done, f"{repo.name}: {start} cannot be checked out at {path}")
    (own / "info/attributes").unlink()
    _copy(repo.folder / "info/attributes", own / "info/attributes")
    found = repo.output("rev-parse", "--git-path", "hooks", doing="it has no place for hooks")
    hooks = repo.folder / found.rstrip("\n")
    for hook in sorted(hooks.iterdir()) if hooks.is_dir() else ():
        if hook.is_file() and hook.suffix != ".sample":  # such as the pre-push hook of dibs
            (own / "hooks").mkdir(exist_ok=True)
            shutil.copy(hook, own / "hooks" / hook.name)
    apart.give(Repository(repo.name, own, repo.git), path, repo.folder / "objects", mode)
    (admin / "locked").unlink()


def _copy(source: Path, target: Path) -> None:
    """Copy a file of the clone, if the file exists; a link by the operator is followed."""
    if (content := _read(source.resolve(), _LARGEST)) is not None:
        target.write_bytes(content)


def _settings(repo: Repository, admin: Path, checkout: Path) -> Iterator[tuple[str, str]]:
    """The settings of the clone for the repository of a run."""
    words = (f"--git-dir={admin}", "config", "--list", "-z", "--show-scope")
    listed = repo.git(words, cwd=admin).stdout.split("\0")
    for scope, pair in zip(listed[::2], listed[1::2], strict=False):
        name, _, value = pair.partition("\n")
        if scope not in {"local", "worktree"} or not _COPIED.fullmatch(name):
            continue
        if name == "core.hookspath" and value.startswith(("/", "~")):
            continue  # the hooks themselves are copied
        if name.endswith(("url", "pushurl")) and is_local_path(value):
            value = str(checkout / value)
        yield _ACCOUNT.sub(r"\1", name), _ACCOUNT.sub(r"\1", value)


def _refs_of(repo: Repository) -> dict[str, str]:
    words = ("for-each-ref", "--format=%(objectname) %(refname)", "refs/heads", "refs/tags")
    listed = repo.output(*words, "refs/remotes", doing="its refs cannot be listed")
    pairs = (line.split(" ", 1) for line in listed.splitlines())
    return {name: value for value, name in pairs}


def _begin(
    folder: Path,
    refs: Mapping[str, str],
    *,
    objects: Iterable[Path],
    settings: Iterable[tuple[str, str]],
) -> None:
    """Make a git folder with refs, which reads the objects of other git folders."""
    for name in ("objects/info", "objects/pack", "refs/heads", "info"):
        (folder / name).mkdir(parents=True)
    stores = "".join(f"{_quoted(str(one))}\n" for one in objects)
    (folder / "objects/info/alternates").write_bytes(os.fsencode(stores))
    (folder / "info/attributes").write_bytes(_ATTRIBUTES)
    text = "".join(f"{value} {name}\n" for name, value in sorted(refs.items()))
    (folder / "packed-refs").write_bytes(os.fsencode(text))
    lines = ["[core]\n\trepositoryformatversion = 0\n\tbare = false\n"]
    if any(len(value) == _SHA256 for value in refs.values()):
        lines = ["[core]\n\trepositoryformatversion = 1\n\tbare = false\n"]
        lines.append("[extensions]\n\tobjectformat = sha256\n")
    for name, value in settings:
        section, _, key = name.rpartition(".")
        section, _, subsection = section.partition(".")
        escaped = re.sub(r'(["\\])', r"\\\1", subsection)
        head = f'[{section} "{escaped}"]' if subsection else f"[{section}]"
        lines.append(f"{head}\n\t{key} = {_quoted(value)}\n")
    (folder / "config").write_bytes(os.fsencode("".join(lines)))


def _quoted(text: str) -> str:
    """Quote a text for a file of git settings, or for a list of object folders."""
    escaped = re.sub(r'(["\\])', r"\\\1", text)
    return f'"{escaped}"'.replace("\n", "\\n").replace("\t", "\\t")


# Standing in


class StandIn(Struct, frozen=True):
    """A git folder of the worker's making for a repository that an agent wrote."""

    repo: Repository
    refs: Mapping[str, str]
    """The refs of the agent's repository, by name."""
    strays: tuple[str, ...] = ()
    """Commits that only refs of the agent's repository name; stashes are among them."""


def stand_in(
    folder: Path, place: Path, clone: Repository, *, within: Iterable[Path], known: str | None
) -> StandIn:
    """Make a stand-in at `place` for the repository in `folder`.

    The repository may read objects of the clone and of folders `within`. With `known`, the refs of
    the clone count as pushed, except for the branch `known`. Raises `Unsaveable` if the
    repository has a file which git does not make, or objects elsewhere.
    """
    if place.is_symlink():
        place.unlink()
    shutil.rmtree(place, ignore_errors=True)
    stores = [clone.folder / "objects"]
    shared = _shared_folder(folder, within)
    if folder.exists():
        stores.insert(0, shared / "objects")
        seen = {stores[1].resolve(), *_other_stores(stores[1])}
        found = [stores[0]]
        for store in found:  # grows: a store may name others
            if store.resolve() in seen:
                continue
            if not _is_within(store.resolve(), within):
                raise Unsaveable(f"{stores[0]} takes objects from {store.resolve()}")
            _check_files(store)
            seen.add(store.resolve())
            found += _other_stores(store)
    refs = refs_in(shared)
    of_clone: dict[str, str] = {}
    if known is not None:
        branch = f"refs/heads/{known}"
        of_clone = {name: value for name, value in _refs_of(clone).items() if name != branch}
    known_refs = {f"{_KNOWN}{name[5:]}": value for name, value in of_clone.items()}
    _begin(place, refs | known_refs, objects=stores, settings=_STAND_IN)
    head = _head_text(folder)
    (place / "HEAD").write_bytes(os.fsencode(f"{head}\n"))
    room = _LARGEST
    for name in (*_DATA, *(one.name for one in folder.glob("sharedindex.*"))):
        if (content := _read(folder / name, room)) is not None:
            room -= len(content)
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_bytes(content)
            # With its time stamp: git uses it to choose the entries to compare by content.
            was = (folder / name).lstat()
            os.utime(place / name, ns=(was.st_atime_ns, was.st_mtime_ns))
    stashes = (
        (_read(folder / _STASHES, _LARGEST_LIST) or b"").decode("utf-8", "replace").splitlines()
    )
    strays = [value for name, value in refs.items() if not name.startswith("refs/remotes/")]
    strays += [line.split(" ")[1] for line in stashes if line.count(" ") > 1]
    strays += [_head_text(linked) for linked in folder.glob("worktrees/*")]
    ours = set(of_clone.values())
    named = [one for one in dict.fromkeys(strays) if _HASH.fullmatch(one) and one not in ours]
    if len(named) > _MOST_STRAYS:
        raise Unsaveable(f"{folder} names more than {_MOST_STRAYS} commits which the clone lacks")
    return StandIn(Repository(clone.name, place, clone.git), refs, tuple(named))


def stand_in_for_tree(entry: Entry, clone: Repository, admin: Path) -> StandIn:
    """Make a stand-in for the own repository of a working tree.

    If that repository is gone, the files are those of the commit that was checked out.
    """
    path = Path(entry.path)
    _check_files(path, _OPENED)
    folder = git_folder(path, within=(path,)) if os.path.lexists(path / ".git") else path / ".git"
    stand = stand_in(folder, admin / "dibs-copy", clone, within=(path,), known=entry.branch)
    if not folder.exists():
        doing = f"{path} cannot be compared with {entry.start}"
        for words in (
            ("read-tree", entry.start),
            ("update-ref", "--no-deref", "HEAD", entry.start),
        ):
            stand.repo.output(*QUIETLY, *words, doing=doing)
    return stand


def git_folder(place: Path, *, within: Iterable[Path]) -> Path:
    """The git folder of the working tree at `place`. Raises `Unsaveable` if not `within`."""
    folder = _named_folder(place)
    if folder != place / ".git" and not _is_within(folder, within):
        raise Unsaveable(f"{place / '.git'} leads to {folder}")
    return folder


def _named_folder(place: Path) -> Path:
    folder = place / ".git"
    if folder.is_symlink() or not folder.is_dir():
        text = (_read(folder) or b"").decode("utf-8", "surrogateescape")
        folder = (place / text.removeprefix("gitdir:").strip()).resolve()
    return folder


def is_repository(place: Path) -> bool:
    """Whether `.git` at `place` is, or leads to, a git folder, even a damaged one."""
    folder = _named_folder(place)
    return any((folder / name).exists() for name in ("objects", "commondir"))


def is_as_cloned(folder: Path, refs: Mapping[str, str]) -> bool:
    """Whether no commit was made in a repository since it was cloned or initialized.

    By the log of HEAD: only commits of the clone were checked out, and branches name no others.
    """
    if (folder / "worktrees").exists() or (folder / "commondir").exists():
        return False
    text = (_read(folder / "logs/HEAD", _LARGEST_LIST) or b"").decode("utf-8", "replace")
    entries = [line.partition("\t") for line in text.splitlines()]
    if not entries:
        return not refs and not _HASH.fullmatch(_head_text(folder))
    (_, _, first), *later = entries
    seen = {facts.split(" ")[1] for facts, _, _ in entries if " " in facts}
    branches = {value for name, value in refs.items() if name.startswith("refs/heads/")}
    only_moved = all(deed.startswith("checkout: ") for _, _, deed in later)
    return first.startswith("clone: ") and only_moved and branches <= seen


def head_in(folder: Path, *, within: Iterable[Path]) -> str | None:
    """The commit that is checked out, read without git."""
    head = _head_text(folder)
    if _HASH.fullmatch(head):
        return head
    return refs_in(_shared_folder(folder, within)).get(head.removeprefix("ref: "))


def _shared_folder(folder: Path, within: Iterable[Path]) -> Path:
    """The folder with the refs and objects; differs from `folder` in a linked working tree."""
    if (named := _read(folder / "commondir")) is None:
        return folder
    shared = (folder / os.fsdecode(named).strip()).resolve()
    if not _is_within(shared, within):
        raise Unsaveable(f"{folder} belongs to {shared}")
    return shared


def _head_text(folder: Path) -> str:
    """The content of HEAD; an unborn branch if the content is not valid."""
    head = (_read(folder / "HEAD") or b"").decode("utf-8", "surrogateescape").strip()
    symbolic = head.startswith("ref: refs/") and fit_for_a_branch(head.removeprefix("ref: "))
    return head if symbolic or _HASH.fullmatch(head) else "ref: refs/heads/dibs-none"


def refs_in(folder: Path) -> dict[str, str]:
    """The refs of a repository, read without git. Symbolic refs are left out."""
    if (folder / "reftable").exists():
        raise Unsaveable(f"{folder} keeps its refs in a table, which this dibs cannot read")
    found: dict[str, str] = {}
    for count, (name, value) in enumerate(_ref_texts(folder)):
        if count == _MOST_REFS:
            raise Unsaveable(f"{folder} has more than {_MOST_REFS} refs")
        found.pop(name, None)  # a file in `refs` counts more than a line of `packed-refs`
        if (
            name.startswith("refs/")
            and not name.startswith(("refs/replace/", _KNOWN))
            and fit_for_a_branch(name)
            and _HASH.fullmatch(value)
        ):
            found[name] = value
    return found


def _ref_texts(folder: Path) -> Iterator[tuple[str, str]]:
    """Name and content of each ref; raises `Unsaveable` instead of following a link."""
    packed = _read(folder / "packed-refs", _LARGEST_LIST) or b""
    for line in packed.splitlines():
        value, _, name = line.decode("utf-8", "surrogateescape").partition(" ")
        if name and value[0] not in "#^":
            yield name, value
    for top, folders, files in os.walk(folder / "refs"):
        for place in (Path(top), *(Path(top, name) for name in folders)):
            if place.is_symlink():
                raise Unsaveable(f"{place} is a link, which git would not have made")
        for file in files:
            text = _read(Path(top, file), _LARGEST_LINE) or b""
            yield str(Path(top, file).relative_to(folder)), text.decode("ascii", "replace").strip()


def bring(stand: Repository, clone: Repository, branch: str) -> None:
    """Fetch the work saved in the stand-in into the clone; git checks every object."""
    saved = f"+{RECOVERED}/{branch}/*:{RECOVERED}/{branch}/*"
    words = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules")
    place = ("--upload-pack=git-upload-pack", str(stand.folder), saved)
    doing = f"the work on {branch} cannot be taken over"
    clone.output(*QUIETLY, *_CHECKED, *words, *place, doing=doing, timeout=CHECKOUT_S)


def _other_stores(store: Path) -> list[Path]:
    """The stores of objects in the list of alternates of a store."""
    named = (_read(store / "info/alternates", _LARGEST_LIST) or b"").decode(
        "utf-8", "surrogateescape"
    )
    lines = [re.sub(r'\\(["\\])', r"\1", line.strip('"')) for line in named.splitlines()]
    return [(store / line).resolve() for line in lines if line]


def _is_within(place: Path, folders: Iterable[Path]) -> bool:
    return any(place.is_relative_to(folder.resolve()) for folder in folders)


def _read(path: Path, most: int = _LARGEST_LINE) -> bytes | None:
    """The content of a regular file; None without a file. Never blocks, and follows no link.

    Raises `Unsaveable` if the file has more than `most` bytes.
    """
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as flaw:
        raise Unsaveable(f"{path} cannot be read: {flaw.strerror}") from flaw
    with os.fdopen(descriptor, "rb") as file:
        seen = os.fstat(descriptor)
        if stat.S_ISDIR(seen.st_mode):
            return None
        if not stat.S_ISREG(seen.st_mode) or seen.st_size > most:
            raise Unsaveable(f"{path} is not a regular file, or is larger than {most} bytes")
        return file.read(seen.st_size)


def _check_files(folder: Path, named: frozenset[str] | None = None) -> None:
    """Raise `Unsaveable` if git would wait for a file or be led elsewhere.

    With `named`, only files of these names are looked at; git follows no link there.
    """
    for top, folders, files in os.walk(folder):
        for name in (*folders, *files) if named is None else named.intersection(files):
            kind = Path(top, name).lstat().st_mode
            if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind) or (named and stat.S_ISLNK(kind))):
                raise Unsaveable(f"{Path(top, name)} is no file that git would have made")
