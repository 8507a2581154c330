"""One write under way: it stores records so that readers see them at once or after its lag."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from .records import Comment, Event, Issue, Label, Reaction

if TYPE_CHECKING:
    from .state import State


class LabelledIssues:
    """The issues that have a label now, and those that ever had it; lists read only these."""

    def __init__(self) -> None:
        self._now: dict[int, dict[int, None]] = {}
        self._ever: dict[int, dict[int, None]] = {}

    def note(self, before: Issue | None, issue: Issue) -> None:
        for label_id in before.labels if before else ():
            if label_id not in issue.labels:
                self._now[label_id].pop(issue.id, None)
        for label_id in issue.labels:
            self._now.setdefault(label_id, {})[issue.id] = None
            self._ever.setdefault(label_id, {})[issue.id] = None

    def having(self, label_id: int, *, lately_too: bool) -> list[int]:
        """Rising ids; with `lately_too` also issues that a lagging reader may still see with it."""
        kept = self._ever if lately_too else self._now
        return sorted(kept.get(label_id, ()))


@dataclass(frozen=True, slots=True)
class Write:
    """Make it with `State.writing()`."""

    state: "State"
    now: datetime
    stamp: datetime
    arrives_at: datetime

    def issue(self, issue: Issue) -> Issue:
        state = self.state
        if issue.id not in state.issues:
            state.numbers[issue.repository_id, issue.number] = issue.id
            state.issues_of.setdefault(issue.repository_id, []).append(issue.id)
            if issue.pull:
                state.pulls_of.setdefault(issue.repository_id, []).append(issue.id)
            state.nodes[issue.node_id] = ("issue", issue.id)
        state.labelled.note(state.issues.newest(issue.id), issue)
        state.issues.put(issue.id, issue, arrives_at=self.arrives_at, now=self.now)
        return issue

    def comment(self, comment: Comment) -> Comment:
        if comment.id not in self.state.comments:
            self.state.comments_of.setdefault(comment.issue_id, []).append(comment.id)
            self.state.nodes[comment.node_id] = ("comment", comment.id)
        self.state.comments.put(comment.id, comment, arrives_at=self.arrives_at, now=self.now)
        return comment

    def reaction(self, reaction: Reaction) -> Reaction:
        if reaction.id not in self.state.reactions:
            self.state.reactions_of.setdefault(reaction.subject_id, []).append(reaction.id)
            self.state.nodes[reaction.node_id] = ("reaction", reaction.id)
        self.state.reactions.put(reaction.id, reaction, arrives_at=self.arrives_at, now=self.now)
        return reaction

    def event(self, event: Event) -> Event:
        self.state.events_of.setdefault(event.issue_id, []).append(event.id)
        self.state.nodes[event.node_id] = ("event", event.id)
        self.state.events.put(event.id, event, arrives_at=self.arrives_at, now=self.now)
        return event

    def label(self, label: Label) -> Label:
        """Write a label. Labels of a repository do not lag; only issues and their comments do."""
        if label.id not in self.state.labels:
            self.state.labels_of.setdefault(label.repository_id, []).append(label.id)
            self.state.nodes[label.node_id] = ("label", label.id)
        self.state.labels.put(label.id, label, arrives_at=self.now, now=self.now)
        return label
