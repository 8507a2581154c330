"""Chains: pull requests in several repositories that belong together. Plan, open, link, resume.

A `Plan` is data: the targets, and the steps in their order. Building one reads nothing.

`CrossRepoPRChain.execute` does the steps that are not done yet: push the branch, open the pull
request, show the other pull requests in its text. Every step looks before it acts, and the state
is written after each step, so executing the plan again continues where the last execution stopped.

The text of a pull request has one part of ours, between two marks. Only this part is replaced, as
often as needed; everything outside the marks belongs to people. These functions are pure.

The state is in a file that is complete at every moment. It has the fields of the published system,
so a chain begun there continues here, plus fields of our own. The file only saves work: anything
missing from it is looked up at the host.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol, assert_never

import msgspec

from dibs.adapters.git.program import GitProgram
from dibs.adapters.system import (
    chains_folder,
    locked,
    make_folder,
    replace_whole,
    wall_clock,
    written,
)
from dibs.core.errors import BadConfiguration, Damaged, Misuse, NotPermitted, Outage, Unavailable
from dibs.core.ids import StageName
from dibs.core.presets import AGENT, AUTHORED
from dibs.ports.pulls import PullRequests, PullState
from dibs.ports.system import Git
from dibs.worktrees.repository import Repository, refused
from dibs.worktrees.values import file_name, fit_for_a_branch, ignored

_LABELS = (AGENT.stage(StageName("pr-open")).label, AUTHORED)


class BadChain(Misuse, ValueError):
    """The chain is not valid: no targets, a target twice, or a missing or bad name."""

    code = "BAD_CHAIN"
    hint = "look at the targets of the plan"


@dataclass(frozen=True, slots=True)
class RepoTarget:
    """One pull request of the chain."""

    repo_name: str
    """Your name for the repository; the key in the state and in the result."""
    gh_repo: str
    """`owner/repo` at the host."""
    branch: str
    title: str
    acceptance_criteria: str = ""
    extra_labels: tuple[str, ...] = ()
    checkout_path: Path | None = None
    """The clone to push the branch from; None: the branch must be at the host already."""
    remote: str = "origin"
    base: str = ""
    """The branch to merge into; empty: the repository's default branch."""


@dataclass(frozen=True, slots=True)
class Push:
    """Push the target's branch to its remote."""

    repo_name: str


@dataclass(frozen=True, slots=True)
class Open:
    """Open a pull request for the target."""

    repo_name: str


@dataclass(frozen=True, slots=True)
class Refresh:
    """Show all open pull requests of the chain, up to `upto`, in the text of the target's."""

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
        names = [target.repo_name for target in self.targets]
        if twice := {name for name in names if names.count(name) > 1}:
            raise BadChain(f"the chain of {self.feature_id} has {', '.join(sorted(twice))} twice")
        for target in self.targets:
            if not fit_for_a_branch(target.branch):
                raise BadChain(f"{target.repo_name}: {target.branch!r} is not a name of a branch")

    def total(self) -> int:
        return len(self.targets)

    def part(self, repo_name: str) -> int:
        """The target's position in the chain, from 1."""
        return [target.repo_name for target in self.targets].index(repo_name) + 1

    def target(self, repo_name: str) -> RepoTarget:
        return self.targets[self.part(repo_name) - 1]

    def labels(self, target: RepoTarget) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.base_labels, *target.extra_labels)))

    @property
    def parent(self) -> str:
        """The parent issue as `owner/repo#number`, which hosts turn into a link."""
        repo = self.parent_repo
        full = repo if "/" in repo or not self.parent_gh_org else f"{self.parent_gh_org}/{repo}"
        return f"{full}#{self.parent_issue}"

    @property
    def steps(self) -> tuple[Step, ...]:
        """For each target: push, open, then refresh the texts of all targets so far."""
        names = [target.repo_name for target in self.targets]
        steps: list[Step] = []
        for place, name in enumerate(names, 1):
            steps += [Push(name), Open(name)]
            steps += [Refresh(earlier, name) for earlier in names[:place]]
        return tuple(steps)


# GitHub accepts 65,536 characters; the difference is room for the marked part, which grows.
_LONGEST = 50_000
_CUT = "\n\n(The rest is too long for a pull request.)"


def first_body(plan: Plan, target: RepoTarget, urls: Mapping[str, str]) -> str:
    """The text with which a pull request is opened."""
    criteria = target.acceptance_criteria.strip()
    if len(criteria) > _LONGEST:
        criteria = criteria[:_LONGEST] + _CUT
    parts = [
        f"For {plan.parent}: {_line(plan.feature_title)}",
        f"### Accepted when\n\n{criteria}" if criteria else "",
        f"Approved by {_line(plan.approved_by)}.",
        section(plan, target, urls),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def section(plan: Plan, target: RepoTarget, urls: Mapping[str, str]) -> str:
    """The marked part of the text: a numbered list of the chain's pull requests."""
    begin, end = _marks(plan.feature_id)
    lines = []
    for place, listed in enumerate(plan.targets, 1):
        url = urls.get(listed.repo_name, "not open yet")
        shown = "this one" if listed.repo_name == target.repo_name else url
        lines.append(f"{place}. {_line(listed.repo_name)}: {shown}")
    heading = f"### Part {plan.part(target.repo_name)} of {plan.total()} for {plan.parent}"
    return "\n".join([begin, heading, "", *lines, end])


def refreshed(body: str, plan: Plan, target: RepoTarget, urls: Mapping[str, str]) -> str:
    """The text with its marked part brought up to date; appended if the text has none."""
    wanted = section(plan, target, urls)
    pattern = _pattern(plan.feature_id)
    if not pattern.search(body):
        return f"{body.rstrip()}\n\n{wanted}\n" if body.strip() else f"{wanted}\n"
    # A browser may have changed the line ends; such a difference alone changes nothing.
    return pattern.sub(
        lambda found: found[0] if _lines(found[0]) == _lines(wanted) else wanted, body
    )


def is_of_chain(body: str, feature_id: str) -> bool:
    return _pattern(feature_id).search(body) is not None


def _marks(feature_id: str) -> tuple[str, str]:
    # In an HTML comment, two dashes or `>` would end it; `file_name` encodes `>`.
    name = file_name(feature_id).replace("--", "-%2D")
    return f"<!-- dibs:chain {name} -->", f"<!-- dibs:end-of-chain {name} -->"


def _pattern(feature_id: str) -> re.Pattern[str]:
    """Match from a begin mark to the next end mark, with no second begin mark in between.

    If a person deleted an end mark, the text after the begin mark must not count as ours.
    """
    begin, end = map(re.escape, _marks(feature_id))
    return re.compile(f"{begin}(?:(?!{begin}).)*?{end}", re.DOTALL)


def _line(text: str) -> str:
    """The text on one line, with `<!--` escaped: the text cannot imitate a mark."""
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
    """The URL of each open pull request, by repository name."""
    created_at: float = 0.0
    pushed: dict[str, str] = field(default_factory=dict)
    """The commit at which each branch was pushed, by repository name."""
    shown: dict[str, list[str]] = field(default_factory=dict)
    """The repository names of the pull requests shown in each text, by repository name."""


class ChainStates(Protocol):
    """Stores the state of chains; the default is `ChainFiles`."""

    def alone(self, plan: Plan) -> AbstractContextManager[None]:
        """Lock the chain for an execution; raise `Unavailable` while another execution runs."""
        ...

    def read(self, plan: Plan) -> ChainState | None: ...

    def write(self, plan: Plan, state: ChainState) -> None:
        """Write the whole state atomically; after the return, a crash cannot lose the state."""
        ...


class ChainFiles:
    """Stores each chain's state in the file given by `Plan.state_file`."""

    @contextlib.contextmanager
    def alone(self, plan: Plan) -> Iterator[None]:
        path = plan.state_file.with_name(f".{plan.state_file.name}.lock")
        with written(path):
            make_folder(path.parent)
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


@dataclass(frozen=True, slots=True)
class Result:
    """The open pull requests by repository name, and the repositories with a failed step."""

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
    """The host; None: GitHub, with the token from the environment."""
    state_dir: Path = field(default_factory=chains_folder)
    now: float | None = None
    git: Git = field(default_factory=GitProgram, kw_only=True)
    states: ChainStates = field(default_factory=ChainFiles, kw_only=True)
    reached: Reached = field(default=ignored, kw_only=True, repr=False)

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
        """Build the plan. Pure: reads no file and sends no request. Raises `BadChain`."""
        return Plan(
            feature_id=feature_id,
            feature_title=feature_title,
            parent_repo=parent_repo,
            parent_issue=parent_issue,
            parent_gh_org=parent_gh_org,
            targets=tuple(targets),
            state_file=self.state_dir / f"{file_name(feature_id)}.json",
            approved_by=approved_by,
        )

    def execute(self, plan: Plan, *, check: Check = ignored) -> Result:
        """Do every step not done yet. A failure in one repository does not stop the others.

        `check` is called before every visible change (push, pull request, label, text). Pass a
        function which raises if you may no longer act, such as `HeldLease.check`.
        """
        with self.states.alone(plan), self._host() as client:
            state = self.states.read(plan)
            if state is None:
                now = self.now if self.now is not None else wall_clock().timestamp()
                parent = (plan.parent_repo, plan.parent_issue)
                state = ChainState(plan.feature_id, *parent, repos=[], created_at=now)
            if (state.parent_repo, state.parent_issue) != (plan.parent_repo, plan.parent_issue):
                raise BadChain(
                    f"{plan.state_file} is about {state.parent_repo}#{state.parent_issue}, "
                    f"not about {plan.parent_repo}#{plan.parent_issue}"
                )
            state.repos = [target.repo_name for target in plan.targets]
            self.states.write(plan, state)
            self.reached(ChainStep.BEGUN)
            execution = _Execution(self, client, plan, state, check)
            for step in plan.steps:
                execution.take(step)
            return execution.result()

    @contextmanager
    def _host(self) -> Iterator[PullRequests]:
        """The given client, or GitHub; the GitHub adapter is imported only when needed."""
        if self.client is not None:
            yield self.client
            return
        try:
            from dibs.adapters.github.pulls import GithubPulls  # noqa: PLC0415
        except ModuleNotFoundError as missing:
            raise BadConfiguration(
                f"pull requests on GitHub need {missing.name}, which is not installed; "
                "install dibs with its extra: dibs[github]"
            ) from missing
        with closing(GithubPulls.from_environment()) as opened:
            yield opened


class _Execution(msgspec.Struct):
    """A single execution of a plan: does the steps in order, and collects the failures."""

    chain: CrossRepoPRChain
    client: PullRequests
    plan: Plan
    state: ChainState
    check: Check
    failures: dict[tuple[str, type[Step]], str] = {}

    def take(self, step: Step) -> None:
        """Do a step and note its failure; a later success of the same kind clears the note."""
        key = (step.repo_name, type(step))
        target = self.plan.target(step.repo_name)
        try:
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
        except (Outage, Misuse) as flaw:
            self.failures[key] = str(flaw)
        else:
            self.failures.pop(key, None)

    def _write_state(self, step: ChainStep) -> None:
        self.chain.states.write(self.plan, self.state)
        self.chain.reached(step)

    def result(self) -> Result:
        reasons: dict[str, str] = {}
        for (name, _), why in self.failures.items():
            reasons.setdefault(name, why)
        failed = [target.repo_name for target in self.plan.targets if target.repo_name in reasons]
        return Result(self.plan.feature_id, dict(self.state.prs), failed, reasons)

    # Pushing

    def _push(self, target: RepoTarget) -> None:
        if target.checkout_path is None:
            return
        pushed = self.state.pushed.get(target.repo_name)
        if pushed is not None and not target.checkout_path.is_dir():
            return  # the clone was removed after the push
        repo = Repository.at(target.repo_name, target.checkout_path, self.chain.git)
        commit = repo.commit(f"refs/heads/{target.branch}")
        if commit is None:
            # The local branch was deleted, with its working tree, after the push.
            commit = repo.commit(f"refs/remotes/{target.remote}/{target.branch}")
            if commit is None and pushed is None:
                raise BadChain(f"{target.repo_name}: {repo.folder} has no branch {target.branch!r}")
        elif commit != pushed:
            self.check()
            self._send(target, commit)
            self.chain.reached(ChainStep.PUSHED)
        if commit is not None and commit != pushed:
            self.state.pushed[target.repo_name] = commit
            self._write_state(ChainStep.PUSH_NOTED)

    def _send(self, target: RepoTarget, commit: str) -> None:
        """Push without force: commits of another person on the remote branch stay.

        Raises `BadChain` or `NotPermitted` if a second push would be refused as well.
        """
        words = ("push", target.remote, f"{commit}:refs/heads/{target.branch}")
        place = target.checkout_path or Path()
        answer = self.chain.git(words, cwd=place, timeout=PUSH_S)
        if answer.returncode:
            doing = f"{target.repo_name}: {target.branch} was not pushed to {target.remote}"
            err = answer.stderr
            if "non-fast-forward" in err or "fetch first" in err:
                raise BadChain(f"{doing}: the branch there has commits that this one has not")
            if "pre-receive hook declined" in err or "protected branch" in err.lower():
                raise NotPermitted(f"{doing}: the server's rules refuse it")
            raise refused(answer, doing)

    # Opening

    def _open(self, target: RepoTarget) -> None:
        if target.repo_name in self.state.prs:
            return
        # First choice: a pull request of this chain, in any state; second: any open one.
        pulls = self.client.find(target.gh_repo, head=target.branch)
        ours = [pull for pull in pulls if is_of_chain(pull.body, self.plan.feature_id)]
        foreign = [
            pull
            for pull in pulls
            if pull.state is PullState.OPEN and target.base in {"", pull.base}
        ]
        found = next(iter((*ours, *foreign)), None)
        if found is None:
            self.check()
            found = self.client.create(
                target.gh_repo,
                title=target.title,
                body=first_body(self.plan, target, self.state.prs),
                head=target.branch,
                base=target.base,
            )
            if is_of_chain(found.body, self.plan.feature_id):
                self.state.shown[target.repo_name] = self._open_besides(target)
            self.chain.reached(ChainStep.OPENED)
        # An earlier execution may have died between the requests for opening and for labelling.
        # A pull request that does not belong to the chain gets no labels.
        present = {label.lower() for label in found.labels}
        missing = [label for label in self.plan.labels(target) if label.lower() not in present]
        if missing and is_of_chain(found.body, self.plan.feature_id):
            self.check()
            self.client.add_labels(found, missing)
            self.chain.reached(ChainStep.LABELLED)
        self.state.prs[target.repo_name] = found.url
        self._write_state(ChainStep.OPEN_NOTED)

    # Showing each other

    def _open_besides(self, target: RepoTarget) -> list[str]:
        """Names of the other repositories with a pull request."""
        names = (other.repo_name for other in self.plan.targets)
        return [name for name in names if name in self.state.prs and name != target.repo_name]

    def _refresh(self, target: RepoTarget) -> None:
        others = self._open_besides(target)
        shown = self.state.shown.get(target.repo_name)
        if shown is not None and set(others) <= set(shown):
            return
        url = self.state.prs[target.repo_name]
        pulls = self.client.find(target.gh_repo, head=target.branch)
        found = next((pull for pull in pulls if pull.url == url), None)
        if found is None:
            raise BadChain(f"{target.repo_name}: {url} does not come from {target.branch!r}")
        body = refreshed(found.body, self.plan, target, self.state.prs)
        if body != found.body:
            self.check()
            self.client.edit_body(found, body=body)
            self.chain.reached(ChainStep.REFRESHED)
        self.state.shown[target.repo_name] = others
        self._write_state(ChainStep.REFRESH_NOTED)
