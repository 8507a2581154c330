"""Pull requests in several repositories that belong together: planned, opened, linked, resumed.

Decides when a step is done: a branch that was pushed at this commit, a pull request that is there,
a text that shows its siblings. Every step first looks and then acts, and the state is written
after each, so whoever executes the plan again goes on where the last one was cut off.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import assert_never

from dibs.adapters.clocks import wall_clock
from dibs.adapters.git_program import GitProgram
from dibs.adapters.homes import chains_folder
from dibs.core.errors import BadConfiguration, DibsError, Misuse, NotPermitted, Outage
from dibs.ports.git import Git
from dibs.ports.pulls import PullRequest, PullRequests, PullState
from dibs.worktrees.chain_bodies import first_body, is_of_chain, refreshed
from dibs.worktrees.chain_plan import BadChain, Open, Plan, Push, Refresh, RepoTarget, Step
from dibs.worktrees.chain_state import ChainFiles, ChainState, ChainStates, state_file
from dibs.worktrees.repository import Repository, refused

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
