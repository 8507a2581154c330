"""A repository's labels, and the labels of issues. The case of a label's name does not matter."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from .changing import KEEP, Changing, Keep, alone, checked_filled, checked_label_count
from .node_ids import node_id
from .records import Issue, Label, Permission, Repository
from .refusal import Kind, Refusal, invalid, not_found

UNCHOSEN_COLOR = "ededed"
MOST_NAME_CHARACTERS = 50
MOST_DESCRIPTION_CHARACTERS = 100
_COLOR = re.compile(r"[0-9a-fA-F]{6}")


class LabelActs(Changing):
    @alone
    def create_label(
        self,
        repository: Repository,
        name: str,
        *,
        color: str = UNCHOSEN_COLOR,
        description: str | None = None,
    ) -> Label:
        self._needs(repository, Permission.WRITE)
        _checked_label(name, color, description)
        with self.state.lock:
            if self.state.primary().label_named(repository.id, name):
                raise invalid("Label", "name", "already_exists")
            label = self._put_label(repository, name, color, description)
        self._tell("label", "created", repository, label=label)
        return label

    @alone
    def edit_label(
        self,
        label: Label,
        *,
        name: str | Keep = KEEP,
        color: str | Keep = KEEP,
        description: str | Keep | None = KEEP,
    ) -> Label:
        repository = self.repository_of(label)
        self._needs(repository, Permission.WRITE)
        new_name = label.name if name is KEEP else name
        new_color = label.color if color is KEEP else color
        new_description = label.description if description is KEEP else description
        _checked_label(new_name, new_color, new_description)
        with self.state.writing() as write:
            taken = self.state.primary().label_named(repository.id, new_name)
            if taken and taken.id != label.id:
                raise invalid("Label", "name", "already_exists")
            changed = write.label(
                replace(
                    label,
                    name=new_name,
                    color=new_color.lower(),
                    description=new_description,
                    updated_at=write.stamp,
                )
            )
        self._tell("label", "edited", repository, label=changed)
        return changed

    @alone
    def delete_label(self, label: Label) -> None:
        """Delete the label, also from every issue that has it."""
        repository = self.repository_of(label)
        self._needs(repository, Permission.WRITE)
        with self.state.writing() as write:
            write.label(replace(label, deleted=True, updated_at=write.stamp))
            for issue_id in self.state.labelled.having(label.id, lately_too=False):
                issue = self.state.issues.newest(issue_id)
                if issue and label.id in issue.labels:
                    left = tuple(other for other in issue.labels if other != label.id)
                    write.issue(replace(issue, labels=left))
        self._tell("label", "deleted", repository, label=label)

    @alone
    def add_labels(self, issue: Issue, names: Sequence[str]) -> Issue:
        """Add labels as REST does: an unknown name creates a label."""
        current = self._triaged(issue)
        checked_label_count(names)
        repository = self.repository_of(current)
        wanted = [self._found_or_made(repository, name) for name in names]
        return self._set_labels(current, add=wanted)

    @alone
    def add_label_ids(self, issue: Issue, label_ids: Iterable[int]) -> Issue:
        """Add labels as GraphQL does: only labels that exist."""
        current = self._triaged(issue)
        return self._set_labels(current, add=self._known(current, label_ids))

    @alone
    def remove_label(self, issue: Issue, name: str) -> Issue:
        """Remove the label; 404 if the issue does not have it."""
        current = self._triaged(issue)
        found = [la for la in self._labels_on(current) if la.name.lower() == name.lower()]
        if not found:
            raise not_found("Label does not exist")
        return self._set_labels(current, remove=found)

    @alone
    def remove_label_ids(self, issue: Issue, label_ids: Iterable[int]) -> Issue:
        """Remove these labels; ignore those that the issue does not have."""
        current = self._triaged(issue)
        return self._set_labels(current, remove=self._known(current, label_ids))

    @alone
    def replace_labels(self, issue: Issue, names: Sequence[str]) -> Issue:
        current = self._triaged(issue)
        checked_label_count(names)
        repository = self.repository_of(current)
        wanted = [self._found_or_made(repository, name) for name in names]
        kept = {label.id for label in wanted}
        gone = [label for label in self._labels_on(current) if label.id not in kept]
        return self._set_labels(current, add=wanted, remove=gone)

    @alone
    def drop_label(self, issue: Issue, label: Label) -> Issue:
        """Remove the label without a permission check, as another bot of the repository."""
        return self._set_labels(issue, remove=[label])

    def _triaged(self, issue: Issue) -> Issue:
        current = self._newest(issue)
        self._needs(self.repository_of(current), Permission.TRIAGE)
        return current

    def _labels_on(self, issue: Issue) -> list[Label]:
        return self.state.primary().labels_on(issue)

    def _known(self, issue: Issue, label_ids: Iterable[int]) -> list[Label]:
        view = self.state.primary()
        found = [view.label(label_id) for label_id in label_ids]
        known = [la for la in found if la and la.repository_id == issue.repository_id]
        if len(known) != len(found):
            raise Refusal(Kind.NOT_FOUND, "Could not resolve to a node of this repository")
        return known

    def _found_or_made(self, repository: Repository, name: str) -> Label:
        with self.state.lock:
            found = self.state.primary().label_named(repository.id, name)
            if found:
                return found
            _checked_label(name, UNCHOSEN_COLOR, None)
            return self._put_label(repository, name, UNCHOSEN_COLOR, None)

    def _put_label(
        self, repository: Repository, name: str, color: str, description: str | None
    ) -> Label:
        number = self.state.next_id("big")
        node = node_id("label", repository.id, number)
        with self.state.writing() as write:
            now = write.stamp
            return write.label(
                Label(number, node, repository.id, name, color.lower(), description, now, now)
            )

    def _set_labels(
        self, issue: Issue, *, add: Sequence[Label] = (), remove: Sequence[Label] = ()
    ) -> Issue:
        """Compute new labels from the current ones under the lock: concurrent adds both count."""
        with self.state.writing() as write:
            current = self._newest(issue)
            leaving = {label.id for label in remove} & set(current.labels)
            coming = {la.id: la for la in add if la.id not in current.labels}
            if not leaving and not coming:
                return current
            kept = tuple(number for number in current.labels if number not in leaving)
            changed = write.issue(replace(current, labels=(*kept, *coming), updated_at=write.stamp))
            gone = [label for label in remove if label.id in leaving]
            for label in coming.values():
                self._trace(write, changed, "labeled", label=(label.name, label.color))
            for label in gone:
                self._trace(write, changed, "unlabeled", label=(label.name, label.color))
        for label in coming.values():
            self._tell_issue(changed, "labeled", label=label)
        for label in gone:
            self._tell_issue(changed, "unlabeled", label=label)
        return changed


def _checked_label(name: str, color: str, description: str | None) -> None:
    checked_filled("Label", "name", name)
    if len(name) > MOST_NAME_CHARACTERS:
        raise invalid("Label", "name", "custom", "name is too long (maximum is 50 characters)")
    if not _COLOR.fullmatch(color):
        raise invalid("Label", "color", "invalid")
    if description and len(description) > MOST_DESCRIPTION_CHARACTERS:
        raise invalid(
            "Label", "description", "custom", "description is too long (maximum is 100 characters)"
        )
