"""Pull requests, as far as a backlog needs them: they name issues, and a merge closes these."""

import re
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha1

from . import access
from .acts_on_issues import IssueActs
from .changing import KEEP, Keep, alone, checked_body, checked_filled
from .records import Issue, Permission, PullPart, Repository
from .refusal import Kind, Refusal, invalid

_CLOSES = re.compile(
    r"\b(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?):?\s+([\w.-]+/[\w.-]+)?#(\d+)\b", re.IGNORECASE
)


class PullActs(IssueActs):
    @alone
    def create_pull(
        self,
        repository: Repository,
        title: str,
        head: str,
        base: str,
        *,
        body: str | None = None,
        draft: bool = False,
    ) -> Issue:
        """Open a pull request; every reader may. Branches are names: the fake has no files."""
        self._needs(repository, Permission.READ, access.PULLS)
        checked_filled("PullRequest", "title", title)
        checked_body("PullRequest", body)
        if not head or not base or head == base:
            raise invalid("PullRequest", "head", "invalid")
        self._refuse_a_second(repository, head, base)
        part = PullPart(
            head,
            base,
            _sha(repository, head),
            _sha(repository, base),
            draft,
            closes=closed_by(body),
            closes_elsewhere=self._elsewhere(repository, body),
        )
        pull = self._open(repository, title, body, part)
        self._tell_issue(pull, "opened")
        return pull

    def _refuse_a_second(self, repository: Repository, head: str, base: str) -> None:
        """Refuse a second open pull request from the same branch into the same base."""
        for one in self.state.primary().issues(repository.id):
            part = one.pull
            if part and one.state == "open" and (part.head, part.base) == (head, base):
                name = head if ":" in head else f"{repository.owner}:{head}"
                message = f"A pull request already exists for {name}."
                told = {"resource": "PullRequest", "code": "custom", "message": message}
                raise Refusal(Kind.UNPROCESSABLE, "Validation Failed", errors=(told,))

    @alone
    def edit_pull(
        self,
        pull: Issue,
        *,
        title: str | Keep = KEEP,
        body: str | Keep | None = KEEP,
        state: str | Keep = KEEP,
    ) -> Issue:
        changed = self.edit_issue(pull, title=title, body=body, state=state)
        if body is KEEP or changed.pull is None:
            return changed
        part = replace(
            changed.pull, closes_elsewhere=self._elsewhere(self.repository_of(changed), body)
        )
        if part != changed.pull:
            with self.state.writing() as write:
                changed = write.issue(replace(changed, pull=part))
        return self.link_pull(changed, closed_by(body))

    def _elsewhere(self, repository: Repository, body: str | None) -> tuple[tuple[int, int], ...]:
        """The issues of other repositories that the text names: every reader may name them."""
        named = [(name, int(number)) for name, number in _CLOSES.findall(body or "") if name]
        found = [(self.state.names.get(name.lower()), number) for name, number in named]
        return tuple((at, number) for at, number in found if at not in (None, repository.id))

    @alone
    def link_pull(self, pull: Issue, closes: Sequence[int]) -> Issue:
        """Set the issues that the merge closes, as the box beside a pull request does."""
        current = self._changeable(pull)
        if current.pull is None or current.pull.closes == tuple(closes):
            return current
        with self.state.writing() as write:
            part = replace(current.pull, closes=tuple(closes))
            return write.issue(replace(current, pull=part, updated_at=write.stamp))

    @alone
    def merge_pull(self, pull: Issue) -> Issue:
        """Merge the pull request and close its issues."""
        current = self._newest(pull)
        repository = self.repository_of(current)
        self._needs(repository, Permission.WRITE, access.CONTENTS)
        if current.pull is None or current.state == "closed" or current.pull.draft:
            raise Refusal(Kind.NOT_ALLOWED, "Pull Request is not mergeable")
        with self.state.writing() as write:
            part = replace(
                current.pull,
                merged_at=write.stamp,
                merged_by=self.viewer.login,
                merge_sha=_sha(repository, f"merge of {current.number}"),
            )
            merged = write.issue(
                replace(
                    current,
                    state="closed",
                    closed_at=write.stamp,
                    closed_by=self.viewer.login,
                    updated_at=write.stamp,
                    pull=part,
                )
            )
            self._trace(write, merged, "merged")
            self._trace(write, merged, "closed")
            self.state.contributors.add((repository.id, merged.author.lower()))
        self._tell_issue(merged, "closed")
        for issue in self.state.primary().issues_closed_by(merged):
            # An issue of another repository is closed only for those who may close it there.
            if issue.state == "open" and self._trusted(issue):
                self.close_issue(issue)
        return merged


def closed_by(body: str | None) -> tuple[int, ...]:
    """The numbers after GitHub's closing keywords, of the pull request's own repository."""
    found = _CLOSES.findall(body or "")
    return tuple(dict.fromkeys(int(number) for name, number in found if not name))


def _sha(repository: Repository, name: str) -> str:
    return sha1(f"{repository.id} {name}".encode(), usedforsecurity=False).hexdigest()
