"""A feature in several repositories: branches with work on them, and the chain for it."""

from collections.abc import Sequence
from pathlib import Path

from dibs.worktrees import CrossRepoPRChain, Plan, RepoTarget

from .filehost import FileHost
from .places import Clone, clone, commit

BRANCH = "batman/42"
NAMES = ("backend", "frontend", "mobile")


def clones(place: Path) -> list[Clone]:
    made = [clone(place, name) for name in NAMES]
    for one in made:
        one("checkout", "--quiet", "-b", BRANCH)
        commit(one.path, "feature", f"{one.name}\n")
        one("checkout", "--quiet", "main")
    return made


def targets(place: Path, names: Sequence[str] = NAMES) -> list[RepoTarget]:
    return [
        RepoTarget(
            repo_name=name,
            gh_repo=f"acme/{name}",
            branch=BRANCH,
            title=f"The feature in {name}",
            acceptance_criteria=f"{name} works",
            checkout_path=place / name,
        )
        for name in names
    ]


def chain_in(place: Path, **given) -> CrossRepoPRChain:
    return CrossRepoPRChain(FileHost(place / "host"), place / "state", 1700000000.0, **given)


def planned(chain: CrossRepoPRChain, wanted: Sequence[RepoTarget]) -> Plan:
    return chain.plan(
        feature_id="42",
        feature_title="The feature",
        parent_repo="backend",
        parent_issue=7,
        parent_gh_org="acme",
        targets=wanted,
    )
