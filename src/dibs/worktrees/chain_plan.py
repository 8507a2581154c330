"""What a chain of pull requests will do, as data: whose, in which order, which step after which.

Pure: a plan can be built, printed and judged without a repository or a host. Whether a step is
done already is for whoever executes it to find out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dibs.core.errors import Misuse
from dibs.core.ids import StageName
from dibs.core.presets import AGENT, AUTHORED
from dibs.worktrees.naming import fit_for_a_branch

_LABELS = (AGENT.stage(StageName("pr-open")).label, AUTHORED)


class BadChain(Misuse, ValueError):
    """There is no such chain: nothing in it, something twice, or something without a name."""

    code = "BAD_CHAIN"
    hint = "look at the targets of the plan"


@dataclass(frozen=True, slots=True)
class RepoTarget:
    """One pull request of the chain."""

    repo_name: str
    """What you call the repository; the key of everything."""
    gh_repo: str
    """`owner/repo` at the host."""
    branch: str
    title: str
    acceptance_criteria: str = ""
    extra_labels: tuple[str, ...] = ()
    checkout_path: Path | None = None
    """Where the branch is pushed from; without it, the branch must be at the host already."""
    remote: str = "origin"
    base: str = ""
    """What the pull request goes into: the repository's default branch, if empty."""


@dataclass(frozen=True, slots=True)
class Push:
    """The target's branch goes to its remote."""

    repo_name: str


@dataclass(frozen=True, slots=True)
class Open:
    """The target has a pull request."""

    repo_name: str


@dataclass(frozen=True, slots=True)
class Refresh:
    """The text of a pull request that is open shows every other one that is, up to `upto`."""

    repo_name: str
    upto: str


Step = Push | Open | Refresh


@dataclass(frozen=True, slots=True)
class Plan:
    feature_id: str
    feature_title: str
    parent_repo: str
    parent_issue: int
    parent_gh_org: str
    targets: tuple[RepoTarget, ...]
    state_file: Path
    approved_by: str = "operator"
    base_labels: tuple[str, ...] = _LABELS

    def __post_init__(self) -> None:
        if not self.feature_id.strip():
            raise BadChain("a chain is named after a feature, and this one has no name")
        if not self.targets:
            raise BadChain(f"the chain of {self.feature_id} has no targets")
        names = [one.repo_name for one in self.targets]
        if twice := {name for name in names if names.count(name) > 1}:
            raise BadChain(f"the chain of {self.feature_id} has {', '.join(sorted(twice))} twice")
        for one in self.targets:
            if not fit_for_a_branch(one.branch):
                raise BadChain(f"{one.repo_name}: {one.branch!r} is not a name of a branch")

    def total(self) -> int:
        return len(self.targets)

    def part(self, repo_name: str) -> int:
        """Which one it is, from 1."""
        return [one.repo_name for one in self.targets].index(repo_name) + 1

    def target(self, repo_name: str) -> RepoTarget:
        return self.targets[self.part(repo_name) - 1]

    def labels(self, target: RepoTarget) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.base_labels, *target.extra_labels)))

    @property
    def parent(self) -> str:
        """The issue that the chain is for, as hosts make a link of it."""
        repo = self.parent_repo
        full = repo if "/" in repo or not self.parent_gh_org else f"{self.parent_gh_org}/{repo}"
        return f"{full}#{self.parent_issue}"

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(_steps([one.repo_name for one in self.targets]))


def _steps(names: Sequence[str]) -> Iterator[Step]:
    """Each one is pushed and opened, and then all that are open learn of it."""
    for place, name in enumerate(names):
        yield Push(name)
        yield Open(name)
        for earlier in names[: place + 1]:
            yield Refresh(earlier, name)
