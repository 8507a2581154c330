"""How far a chain has got, in a file that is whole at any moment.

The file has the fields of the published system, so that a chain that was begun there goes on here;
ours come on top. It only saves work: what it forgot is found again at the host.
"""

import contextlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from dibs.adapters.whole_files import locked, replace_whole, written
from dibs.core.errors import Damaged, Unavailable
from dibs.worktrees.chain_plan import Plan
from dibs.worktrees.naming import file_name


@dataclass
class ChainState:
    feature_id: str
    parent_repo: str
    parent_issue: int
    repos: list[str]
    prs: dict[str, str] = field(default_factory=dict)
    """The addresses of those that are open, by the names of their repositories."""
    created_at: float = 0.0
    pushed: dict[str, str] = field(default_factory=dict)
    """The commit that each branch was pushed at."""
    shown: dict[str, list[str]] = field(default_factory=dict)
    """Which others the text of each one shows."""


class ChainStates(Protocol):
    """Where the state of chains is kept, if not in files."""

    def alone(self, plan: Plan) -> AbstractContextManager[None]:
        """Nobody else executes this chain meanwhile; Unavailable if somebody does."""
        ...

    def read(self, plan: Plan) -> ChainState | None: ...

    def write(self, plan: Plan, state: ChainState) -> None:
        """As a whole or not at all, and safe from a crash when it returns."""
        ...


class ChainFiles:
    """A file for each chain, where its plan says."""

    @contextlib.contextmanager
    def alone(self, plan: Plan) -> Iterator[None]:
        path = plan.state_file.with_name(f".{plan.state_file.name}.lock")
        with written(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = locked(path, create=True)
        if descriptor is None:
            raise Unavailable(f"another process is executing the chain of {plan.feature_id}")
        try:
            yield
        finally:
            os.close(descriptor)

    def read(self, plan: Plan) -> ChainState | None:
        with written(plan.state_file):
            try:
                text = plan.state_file.read_bytes()
            except FileNotFoundError:
                return None
        try:
            return msgspec.json.decode(text, type=ChainState)
        except msgspec.MsgspecError as flaw:
            raise Damaged(f"{plan.state_file} is not the state of a chain: {flaw}") from flaw

    def write(self, plan: Plan, state: ChainState) -> None:
        text = msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n"
        with written(plan.state_file):
            replace_whole(plan.state_file, text)


def state_file(folder: Path, feature_id: str) -> Path:
    return folder / f"{file_name(feature_id)}.json"
