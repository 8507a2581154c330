"""Pull requests in several repositories that belong together: planned, opened, linked, resumed.

Decides when a step is done: a branch that was pushed at this commit, a pull request that is there,
a text that shows its siblings. Every step first looks and then acts, and the state is written
after each, so whoever executes the plan again goes on where the last one was cut off.

The text of a pull request in a chain: ours between two marks, everything else people's.

What stands between the marks is replaced and nothing else is touched, however often it is done.
Pure: text in, text out.

What a chain of pull requests will do, as data: whose, in which order, which step after which.

Pure: a plan can be built, printed and judged without a repository or a host. Whether a step is
done already is for whoever executes it to find out.

How far a chain has got, in a file that is whole at any moment.

The file has the fields of the published system, so that a chain that was begun there goes on here;
ours come on top. It only saves work: what it forgot is found again at the host.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol, assert_never

import msgspec

from dibs.adapters.files import locked, replace_whole, written
from dibs.adapters.git.program import GitProgram
from dibs.adapters.system import chains_folder, wall_clock
from dibs.core.errors import (
    BadConfiguration,
    Damaged,
    DibsError,
    Misuse,
    NotPermitted,
    Outage,
    Unavailable,
)
from dibs.core.ids import StageName
from dibs.core.presets import AGENT, AUTHORED
from dibs.ports.pulls import PullRequest, PullRequests, PullState
from dibs.ports.system import Git
from dibs.worktrees.repository import Repository, refused
from dibs.worktrees.values import file_name, fit_for_a_branch

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


# GitHub takes 65,536 characters; the rest is room for the marked part, which grows.
_LONGEST = 50_000
_CUT = "\n\n(The rest is too long for a pull request.)"


def first_body(plan: Plan, target: RepoTarget, urls: Mapping[str, str]) -> str:
    """What a pull request says when it is opened."""
    wanted = target.acceptance_criteria.strip()
    if len(wanted) > _LONGEST:
        wanted = wanted[:_LONGEST] + _CUT
    said = [
        f"For {plan.parent}: {_line(plan.feature_title)}",
        f"### Accepted when\n\n{wanted}" if wanted else "",
        f"Approved by {_line(plan.approved_by)}.",
        section(plan, target, urls),
    ]
    return "\n\n".join(part for part in said if part) + "\n"


def section(plan: Plan, target: RepoTarget, urls: Mapping[str, str]) -> str:
    """The marked part: every pull request of the chain, as far as it is open."""
    begin, end = _marks(plan.feature_id)
    lines = [f"{place}. {_entry(one, target, urls)}" for place, one in enumerate(plan.targets, 1)]
    heading = f"### Part {plan.part(target.repo_name)} of {plan.total()} for {plan.parent}"
    return "\n".join([begin, heading, "", *lines, end])


def refreshed(body: str, plan: Plan, target: RepoTarget, urls: Mapping[str, str]) -> str:
    """The same text with the marked part as it is now; at the end, if there was none."""
    wanted = section(plan, target, urls)
    pattern = _pattern(plan.feature_id)
    if not pattern.search(body):
        return f"{body.rstrip()}\n\n{wanted}\n" if body.strip() else f"{wanted}\n"
    # Text that went through a browser has other line ends; they are no difference.
    return pattern.sub(
        lambda found: found[0] if _lines(found[0]) == _lines(wanted) else wanted, body
    )


def is_of_chain(body: str, feature_id: str) -> bool:
    return _pattern(feature_id).search(body) is not None


def _entry(one: RepoTarget, here: RepoTarget, urls: Mapping[str, str]) -> str:
    name = _line(one.repo_name)
    if one.repo_name == here.repo_name:
        return f"{name}: this one"
    return f"{name}: {urls.get(one.repo_name, 'not open yet')}"


def _marks(feature_id: str) -> tuple[str, str]:
    # Two dashes would end the comment, and `>` too.
    name = file_name(feature_id).replace("--", "-%2D")
    return f"<!-- dibs:chain {name} -->", f"<!-- dibs:end-of-chain {name} -->"


def _pattern(feature_id: str) -> re.Pattern[str]:
    """From a beginning to the end that follows, with no other beginning in between.

    A mark that somebody deleted must not make what people wrote a part of ours.
    """
    begin, end = map(re.escape, _marks(feature_id))
    return re.compile(f"{begin}(?:(?!{begin}).)*?{end}", re.DOTALL)


def _line(text: str) -> str:
    """In one line, and unable to pass for a mark."""
    return " ".join(text.split()).replace("<!--", "&lt;!--")


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


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


PUSH_S = 600.0


class ChainStep(StrEnum):
    """The points at which a crash must do no harm."""

    BEGUN = "chain.begun"
    PUSHED = "chain.pushed"
    PUSH_NOTED = "chain.push_noted"
    OPENED = "chain.opened"
    LABELLED = "chain.labelled"
    OPEN_NOTED = "chain.open_noted"
    REFRESHED = "chain.refreshed"
    REFRESH_NOTED = "chain.refresh_noted"


Reached = Callable[[ChainStep], None]
Check = Callable[[], None]


def _unwatched(step: ChainStep) -> None:
    """Nobody watches: passing a step does nothing."""


def _unchecked() -> None:
    """Nobody's lease is asked for."""


@contextmanager
def _on_github() -> Iterator[PullRequests]:
    """With the token of the environment; what it needs is imported only now."""
    try:
        from dibs.adapters.github.pulls import GithubPulls  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        raise BadConfiguration(
            f"pull requests on GitHub need {missing.name}, which is not installed; "
            "install dibs with its extra: dibs[github]"
        ) from missing
    with closing(GithubPulls.from_environment()) as opened:
        yield opened


@dataclass(frozen=True, slots=True)
class Result:
    """What is open now, and what could not be done, why."""

    feature_id: str
    opened: dict[str, str]
    failed: list[str]
    reasons: dict[str, str]

    @property
    def ok(self) -> bool:
        return not self.failed


@dataclass
class CrossRepoPRChain:
    client: PullRequests | None = None
    """The host; GitHub with the token of the environment, if there is none."""
    state_dir: Path = field(default_factory=chains_folder)
    now: float | None = None
    git: Git = field(default_factory=GitProgram, kw_only=True)
    states: ChainStates = field(default_factory=ChainFiles, kw_only=True)
    reached: Reached = field(default=_unwatched, kw_only=True, repr=False)

    def plan(
        self,
        *,
        feature_id: str,
        feature_title: str,
        parent_repo: str,
        parent_issue: int,
        parent_gh_org: str,
        targets: Sequence[RepoTarget],
        approved_by: str = "operator",
    ) -> Plan:
        """Pure: reads nothing and asks nobody. Raises BadChain."""
        return Plan(
            feature_id=feature_id,
            feature_title=feature_title,
            parent_repo=parent_repo,
            parent_issue=parent_issue,
            parent_gh_org=parent_gh_org,
            targets=tuple(targets),
            state_file=state_file(self.state_dir, feature_id),
            approved_by=approved_by,
        )

    def execute(self, plan: Plan, *, check: Check = _unchecked) -> Result:
        """Whatever is not done yet. What fails for one repository is not in the way of the others.

        `check` is called before everything that others will see: let it raise if you may no longer
        act, such as `HeldLease.check`.
        """
        with self.states.alone(plan), self._host() as client:
            state = self.states.read(plan) or self._new(plan)
            if (state.parent_repo, state.parent_issue) != (plan.parent_repo, plan.parent_issue):
                raise BadChain(
                    f"{plan.state_file} is about {state.parent_repo}#{state.parent_issue}, "
                    f"not about {plan.parent_repo}#{plan.parent_issue}"
                )
            state.repos = [one.repo_name for one in plan.targets]
            self.states.write(plan, state)
            self.reached(ChainStep.BEGUN)
            execution = _Execution(self, client, plan, state, check)
            for step in plan.steps:
                execution.take(step)
            return execution.result()

    def _host(self) -> AbstractContextManager[PullRequests]:
        return _on_github() if self.client is None else nullcontext(self.client)

    def _new(self, plan: Plan) -> ChainState:
        now = self.now if self.now is not None else wall_clock().timestamp()
        return ChainState(plan.feature_id, plan.parent_repo, plan.parent_issue, [], created_at=now)


@dataclass
class _Execution:
    """One walk through the steps."""

    chain: CrossRepoPRChain
    client: PullRequests
    plan: Plan
    state: ChainState
    check: Check
    failures: dict[tuple[str, type[Step]], str] = field(default_factory=dict)

    def take(self, step: Step) -> None:
        key = (step.repo_name, type(step))
        try:
            self._take(step)
        except (Outage, Misuse) as flaw:
            self.failures[key] = str(flaw)
        else:
            self.failures.pop(key, None)

    def _take(self, step: Step) -> None:
        target = self.plan.target(step.repo_name)
        match step:
            case Push():
                self._push(target)
            case Open():
                if (step.repo_name, Push) not in self.failures:
                    self._open(target)
            case Refresh():
                if step.repo_name in self.state.prs:
                    self._refresh(target)
            case _:
                assert_never(step)

    def _noted(self, step: ChainStep) -> None:
        self.chain.states.write(self.plan, self.state)
        self.chain.reached(step)

    def result(self) -> Result:
        reasons: dict[str, str] = {}
        for (name, _), why in self.failures.items():
            reasons.setdefault(name, why)
        failed = [one.repo_name for one in self.plan.targets if one.repo_name in reasons]
        return Result(self.plan.feature_id, dict(self.state.prs), failed, reasons)

    # Pushing

    def _push(self, target: RepoTarget) -> None:
        if target.checkout_path is None:
            return
        known = self.state.pushed.get(target.repo_name)
        if known is not None and not target.checkout_path.is_dir():
            return  # it has done its part, and is gone
        repo = Repository.at(target.repo_name, target.checkout_path, self.chain.git)
        commit = repo.commit(f"refs/heads/{target.branch}")
        if commit is None:
            # Its working tree was cleared after it had been pushed.
            commit = repo.commit(f"refs/remotes/{target.remote}/{target.branch}")
            if commit is None and known is None:
                raise BadChain(f"{target.repo_name}: {repo.folder} has no branch {target.branch!r}")
        elif commit != known:
            self.check()
            self._send(target, commit)
            self.chain.reached(ChainStep.PUSHED)
        if commit is not None and commit != known:
            self.state.pushed[target.repo_name] = commit
            self._noted(ChainStep.PUSH_NOTED)

    def _send(self, target: RepoTarget, commit: str) -> None:
        """Never by force: what somebody else pushed to this branch stays."""
        words = ("push", target.remote, f"{commit}:refs/heads/{target.branch}")
        place = target.checkout_path or Path()
        answer = self.chain.git(words, cwd=place, timeout=PUSH_S)
        if answer.returncode:
            doing = f"{target.repo_name}: {target.branch} was not pushed to {target.remote}"
            raise _rejected(answer.stderr, doing) or refused(answer, doing)

    # Opening

    def _open(self, target: RepoTarget) -> None:
        if target.repo_name in self.state.prs:
            return
        found = self._existing(target)
        if found is None:
            self.check()
            found = self._created(target)
            self.chain.reached(ChainStep.OPENED)
        if self._is_ours(found):
            self._label(found, self.plan.labels(target))
        self.state.prs[target.repo_name] = found.url
        self._noted(ChainStep.OPEN_NOTED)

    def _created(self, target: RepoTarget) -> PullRequest:
        found = self.client.create(
            target.gh_repo,
            title=target.title,
            body=first_body(self.plan, target, self.state.prs),
            head=target.branch,
            base=target.base,
        )
        if self._is_ours(found):
            self.state.shown[target.repo_name] = self._open_besides(target)
        return found

    def _is_ours(self, pull: PullRequest) -> bool:
        return is_of_chain(pull.body, self.plan.feature_id)

    def _label(self, pull: PullRequest, labels: Sequence[str]) -> None:
        """A host may need a request of its own for it, before which somebody may have died."""
        known = {label.lower() for label in pull.labels}
        missing = [label for label in labels if label.lower() not in known]
        if missing:
            self.check()
            self.client.add_labels(pull, missing)
            self.chain.reached(ChainStep.LABELLED)

    def _existing(self, target: RepoTarget) -> PullRequest | None:
        """One of this chain, in whatever state; or one that somebody else has open from it."""
        pulls = self.client.find(target.gh_repo, head=target.branch)
        ours = [one for one in pulls if self._is_ours(one)]
        theirs = [
            one for one in pulls if one.state is PullState.OPEN and target.base in {"", one.base}
        ]
        return next(iter((*ours, *theirs)), None)

    # Showing each other

    def _open_besides(self, target: RepoTarget) -> list[str]:
        names = (one.repo_name for one in self.plan.targets)
        return [name for name in names if name in self.state.prs and name != target.repo_name]

    def _refresh(self, target: RepoTarget) -> None:
        others = self._open_besides(target)
        shown = self.state.shown.get(target.repo_name)
        if shown is not None and set(others) <= set(shown):
            return
        url = self.state.prs[target.repo_name]
        found = [
            one for one in self.client.find(target.gh_repo, head=target.branch) if one.url == url
        ]
        if not found:
            raise BadChain(f"{target.repo_name}: {url} does not come from {target.branch!r}")
        body = refreshed(found[0].body, self.plan, target, self.state.prs)
        if body != found[0].body:
            self.check()
            self.client.edit_body(found[0], body=body)
            self.chain.reached(ChainStep.REFRESHED)
        self.state.shown[target.repo_name] = others
        self._noted(ChainStep.REFRESH_NOTED)


def _rejected(err: str, doing: str) -> DibsError | None:
    """A refusal that pushing again does not change."""
    if "non-fast-forward" in err or "fetch first" in err:
        return BadChain(f"{doing}: the branch there has commits that this one has not")
    if "pre-receive hook declined" in err or "protected branch" in err.lower():
        return NotPermitted(f"{doing}: the server's rules refuse it")
    return None
