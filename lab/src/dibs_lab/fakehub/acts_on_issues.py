"""Opening, editing, closing, assigning, locking, moving and deleting issues."""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from . import access
from .acts_on_labels import LabelActs
from .changing import KEEP, Keep, alone, checked_body, checked_filled
from .node_ids import node_id
from .records import Association, Edit, Issue, Permission, PullPart, Repository, StateReason
from .refusal import invalid

if TYPE_CHECKING:
    from .state import Write

MOST_ASSIGNEES = 10
REASONS: dict[str, StateReason] = {
    "completed": "completed",
    "not_planned": "not_planned",
    "duplicate": "duplicate",
}
LOCK_REASONS = ("off-topic", "too heated", "resolved", "spam")
_MENTION = re.compile(r"(?<![\w/&])#(\d+)\b")


class IssueActs(LabelActs):
    """The acts on an issue. Pull requests are issues here too."""

    @alone
    def create_issue(
        self,
        repository: Repository,
        title: str,
        *,
        body: str | None = None,
        labels: Sequence[str] = (),
        assignees: Sequence[str] = (),
    ) -> Issue:
        """Create an issue. Without triage rights, labels and assignees are dropped, not refused."""
        self._needs(repository, Permission.READ)
        checked_filled("Issue", "title", title)
        checked_body("Issue", body)
        trusted = access.may(self.state, self.viewer, repository, Permission.TRIAGE)
        issue = self._open(repository, title, body, None)
        self._tell_issue(issue, "opened")
        if trusted and labels:
            issue = self.add_labels(issue, labels)
        if trusted and assignees:
            issue = self.assign(issue, assignees)
        return issue

    @alone
    def edit_issue(
        self,
        issue: Issue,
        *,
        title: str | Keep = KEEP,
        body: str | Keep | None = KEEP,
        state: str | Keep = KEEP,
        state_reason: str | Keep | None = KEEP,
        labels: Sequence[str] | Keep = KEEP,
        assignees: Sequence[str] | Keep = KEEP,
    ) -> Issue:
        """PATCH: a field that is not given stays as it is."""
        current = self._changeable(issue)
        current = self._edit_text(current, title, body)
        if labels is not KEEP and self._trusted(current):
            current = self.replace_labels(current, labels)
        if assignees is not KEEP and self._trusted(current):
            current = self._set_assignees(current, self._logins(assignees))
        if state is KEEP:
            return current
        if state not in ("open", "closed"):
            raise invalid("Issue", "state", "invalid")
        if state == "open":
            return self.reopen_issue(current)
        return self.close_issue(current, _reason(state_reason))

    @alone
    def close_issue(self, issue: Issue, reason: str = "completed") -> Issue:
        current = self._changeable(issue)
        if reason not in REASONS:
            raise invalid("Issue", "state_reason", "invalid")
        if current.state == "closed" and current.state_reason in (REASONS[reason], None):
            return current
        with self.state.writing() as write:
            closed = write.issue(
                replace(
                    current,
                    state="closed",
                    state_reason=None if current.pull else REASONS[reason],
                    closed_at=write.stamp,
                    closed_by=self.viewer.login,
                    updated_at=write.stamp,
                )
            )
            self._trace(write, closed, "closed", state_reason=closed.state_reason)
        self._tell_issue(closed, "closed")
        return closed

    @alone
    def reopen_issue(self, issue: Issue) -> Issue:
        current = self._changeable(issue)
        if current.state == "open":
            return current
        if current.pull and current.pull.merged_at:
            raise invalid("PullRequest", "state", "invalid", "state cannot be changed.")
        with self.state.writing() as write:
            opened = write.issue(
                replace(
                    current,
                    state="open",
                    state_reason=None if current.pull else "reopened",
                    closed_at=None,
                    closed_by=None,
                    updated_at=write.stamp,
                )
            )
            self._trace(write, opened, "reopened")
        self._tell_issue(opened, "reopened")
        return opened

    @alone
    def delete_issue(self, issue: Issue) -> Issue:
        current = self._newest(issue)
        self._needs(self.repository_of(current), Permission.ADMIN)
        with self.state.writing() as write:
            deleted = write.issue(replace(current, deleted=True, updated_at=write.stamp))
        self._tell_issue(deleted, "deleted")
        return deleted

    @alone
    def convert_issue(self, issue: Issue) -> Issue:
        """Make the issue a discussion: its number stays taken, but the issue no longer exists."""
        current = self._newest(issue)
        self._needs(self.repository_of(current), Permission.TRIAGE)
        with self.state.writing() as write:
            converted = write.issue(replace(current, converted=True, updated_at=write.stamp))
            self._trace(write, converted, "converted_to_discussion")
        return converted

    @alone
    def transfer_issue(self, issue: Issue, to: Repository) -> Issue:
        """Make a new issue there with the text, the comments and those labels that exist there."""
        current = self._newest(issue)
        self._needs(self.repository_of(current), Permission.WRITE)
        self._needs(to, Permission.WRITE)
        view = self.state.primary()
        there = [view.label_named(to.id, label.name) for label in view.labels_on(current)]
        with self.state.writing() as write:
            made = self._put_new(write, to, current.title, current.body, None)
            made = write.issue(
                replace(
                    made,
                    author=current.author,
                    state=current.state,
                    state_reason=current.state_reason,
                    assignees=current.assignees,
                    labels=tuple(label.id for label in there if label),
                    created_at=current.created_at,
                )
            )
            for comment in view.comments(current.id):
                number = self.state.next_id("big")
                node = node_id("comment", to.id, number)
                write.comment(
                    replace(comment, id=number, node_id=node, repository_id=to.id, issue_id=made.id)
                )
            gone = replace(current, moved_to=(to.id, made.number), updated_at=write.stamp)
            write.issue(gone)
        self._tell_issue(gone, "transferred")
        return made

    @alone
    def lock_issue(self, issue: Issue, reason: str | None = None) -> Issue:
        if reason is not None and reason not in LOCK_REASONS:
            raise invalid("Issue", "lock_reason", "invalid")
        return self._set_lock(issue, reason, locked=True)

    @alone
    def unlock_issue(self, issue: Issue) -> Issue:
        return self._set_lock(issue, None, locked=False)

    @alone
    def assign(self, issue: Issue, logins: Sequence[str]) -> Issue:
        """Assign these accounts. As on GitHub, those that cannot be assigned are left out."""
        current = self._triaged(issue)
        repository = self.repository_of(current)
        known = [user.login for login in logins if (user := self.state.users.get(login.lower()))]
        fit = [login for login in known if self._assignable(repository, login)]
        wanted = list(dict.fromkeys((*current.assignees, *fit)))[:MOST_ASSIGNEES]
        return self._set_assignees(current, wanted)

    @alone
    def unassign(self, issue: Issue, logins: Sequence[str]) -> Issue:
        current = self._triaged(issue)
        leaving = {login.lower() for login in logins}
        left = [login for login in current.assignees if login.lower() not in leaving]
        return self._set_assignees(current, left)

    def _assignable(self, repository: Repository, login: str) -> bool:
        user = self.state.users.get(login.lower())
        if user is not None and user.kind == "Bot":
            return True
        return login.lower() == self.viewer.login.lower() or access.association(
            self.state, repository, login, self.viewer
        ) in (Association.OWNER, Association.MEMBER, Association.COLLABORATOR)

    def _set_assignees(self, current: Issue, wanted: Sequence[str]) -> Issue:
        came = [login for login in wanted if login not in current.assignees]
        left = [login for login in current.assignees if login not in wanted]
        if not came and not left:
            return current
        with self.state.writing() as write:
            changed = write.issue(replace(current, assignees=tuple(wanted), updated_at=write.stamp))
            for login in came:
                self._trace(write, changed, "assigned", assignee=login)
            for login in left:
                self._trace(write, changed, "unassigned", assignee=login)
        for login in came:
            self._tell_issue(changed, "assigned", assignee=login)
        for login in left:
            self._tell_issue(changed, "unassigned", assignee=login)
        return changed

    def _set_lock(self, issue: Issue, reason: str | None, *, locked: bool) -> Issue:
        current = self._newest(issue)
        self._needs(self.repository_of(current), Permission.TRIAGE)
        if current.locked == locked:
            return current
        kind = "locked" if locked else "unlocked"
        with self.state.writing() as write:
            changed = write.issue(
                replace(current, locked=locked, lock_reason=reason, updated_at=write.stamp)
            )
            self._trace(write, changed, kind, lock_reason=reason)
        self._tell_issue(changed, kind)
        return changed

    def _edit_text(self, current: Issue, title: str | Keep, body: str | Keep | None) -> Issue:
        new_title = current.title if title is KEEP else title
        new_body = current.body if body is KEEP else body
        if (new_title, new_body) == (current.title, current.body):
            return current
        checked_filled("Issue", "title", new_title)
        checked_body("Issue", new_body)
        changes: dict[str, object] = {}
        if new_title != current.title:
            changes["title"] = {"from": current.title}
        if new_body != current.body:
            changes["body"] = {"from": current.body or ""}
        with self.state.writing() as write:
            changed = write.issue(
                replace(current, title=new_title, body=new_body, updated_at=write.stamp)
            )
            if "body" in changes:
                # As on GitHub, the first edit puts the text as it was opened before itself.
                opened = () if current.edits else ((current.author, current.created_at),)
                made = (*opened, (self.viewer.login, write.stamp))
                edits = (*current.edits, *(self._edit(current, *one) for one in made))
                changed = write.issue(replace(changed, edits=edits))
            if "title" in changes:
                self._trace(write, changed, "renamed", rename=(current.title, new_title))
        self._tell_issue(changed, "edited", changes=changes)
        return changed

    def _edit(self, issue: Issue, editor: str, at: datetime) -> Edit:
        number = self.state.next_id("big")
        return Edit(number, node_id("edit", issue.repository_id, number), editor, at)

    def _open(
        self, repository: Repository, title: str, body: str | None, pull: PullPart | None
    ) -> Issue:
        with self.state.writing() as write:
            issue = self._put_new(write, repository, title, body, pull)
            self._mention(write, issue, body)
        return issue

    def _put_new(
        self,
        write: "Write",
        repository: Repository,
        title: str,
        body: str | None,
        pull: PullPart | None,
    ) -> Issue:
        number = self.state.next_number(repository.id)
        identity = self.state.next_id("big")
        node = node_id("pull" if pull else "issue", repository.id, identity)
        author, now = self.viewer.login, write.stamp
        return write.issue(
            Issue(identity, node, repository.id, number, title, body, author, now, now, pull=pull)
        )

    def _mention(self, write: "Write", source: Issue, text: str | None) -> None:
        """Add an event to the history of each issue that the text names."""
        for number in {int(found) for found in _MENTION.findall(text or "")} - {source.number}:
            found = self.state.numbers.get((source.repository_id, number))
            issue = None if found is None else self.state.issues.newest(found)
            if issue and issue.present:
                self._trace(write, issue, "cross-referenced", source=source.id)

    def _changeable(self, issue: Issue) -> Issue:
        current = self._newest(issue)
        access.can_change_issue(self.state, self.viewer, self.repository_of(current), current)
        return current

    def _trusted(self, issue: Issue) -> bool:
        repository = self.repository_of(issue)
        return access.may(self.state, self.viewer, repository, Permission.TRIAGE)


def _reason(given: str | Keep | None) -> str:
    return "completed" if given is KEEP or given is None else given
