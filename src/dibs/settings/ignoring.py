"""Keep `.dibs/` out of version control: `git add -A` would commit the live database."""

from pathlib import Path

from msgspec import Struct

from dibs.adapters.system import WorkingTree, small_text, working_tree

LINE = ".dibs/"
_ANYWHERE = {".dibs", ".dibs/", "**/.dibs", "**/.dibs/"}
_HERE = {"/.dibs", "/.dibs/"}


class Ignored(Struct, frozen=True):
    """Where git reads that it ignores `.dibs/`."""

    file: Path
    wrote: bool
    """False: the line was there before."""


class NotIgnored(Struct, frozen=True):
    why: str


def ignore_in_git(root: Path, *, dry_run: bool = False) -> Ignored | NotIgnored | None:
    """Add `.dibs/` to the folder's .gitignore; if .gitignore cannot be written, to info/exclude.

    None outside of a git working tree. An existing line is enough: in the .gitignore of the folder
    or of a folder above, or in info/exclude.
    """
    root = root.resolve()
    tree = working_tree(root)
    if tree is None:
        return None
    own, exclude = root / ".gitignore", tree.repository_dir / "info" / "exclude"
    if (found := _ignoring(tree, root, exclude)) is not None:
        return Ignored(found, wrote=False)
    if dry_run:
        return Ignored(own, wrote=True)
    flaws = []
    for file in (own, exclude):
        try:
            file.parent.mkdir(exist_ok=True)
            _append(file)
        except OSError as flaw:
            flaws.append(f"{file} cannot be written: {flaw.strerror or flaw}")
        else:
            return Ignored(file, wrote=True)
    return NotIgnored("; ".join(flaws))


def _ignoring(tree: WorkingTree, root: Path, exclude: Path) -> Path | None:
    """The file with a line for `.dibs/`, read without git: its absence must not matter."""
    folders = [folder for folder in (root, *root.parents) if folder.is_relative_to(tree.top)]
    for file in (*(folder / ".gitignore" for folder in folders), exclude):
        wanted = _ANYWHERE | _HERE if file.parent == root else _ANYWHERE
        try:
            lines = small_text(file, errors="replace").splitlines()
        except OSError:
            continue
        if wanted & {line.rstrip() for line in lines}:
            return file
    return None


def _append(file: Path) -> None:
    """Add the line at the end, with the file's own line ends; the rest of the file stays."""
    if file.is_symlink():
        raise OSError("it is a symbolic link, which git does not follow")
    before = small_text(file, errors="replace", newline="") if file.exists() else ""
    end = "\r\n" if "\r\n" in before else "\n"
    gap = end if before and not before.endswith("\n") else ""
    with file.open("a", encoding="utf-8", newline="") as opened:
        opened.write(gap + LINE + end)
