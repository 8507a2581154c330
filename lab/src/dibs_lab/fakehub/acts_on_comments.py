"""Comments and reactions."""

from dataclasses import replace

from . import access
from .changing import Changing, alone, checked_body, checked_filled
from .node_ids import node_id
from .records import Comment, Issue, Permission, Reaction
from .refusal import FULL, forbidden, invalid, not_found

CONTENTS = ("+1", "-1", "laugh", "confused", "heart", "hooray", "rocket", "eyes")


class CommentActs(Changing):
    @alone
    def create_comment(self, issue: Issue, body: str) -> Comment:
        current = self._newest(issue)
        repository = self.repository_of(current)
        access.can_comment(self.state, self.viewer, repository, current)
        self._needs_room(current)
        checked_filled("IssueComment", "body", body)
        checked_body("IssueComment", body)
        with self.state.writing() as write:
            # Under the lock, so that ids and times rise together, as with a database sequence.
            current = self._newest(issue)
            number = self.state.next_id("big")
            node = node_id("comment", repository.id, number)
            login, now = self.viewer.login, write.stamp
            comment = write.comment(
                Comment(number, node, repository.id, current.id, login, body, now, now)
            )
            current = self._touch(write, current)
        self._tell("issue_comment", "created", repository, issue=current, comment=comment)
        return comment

    @alone
    def edit_comment(self, comment: Comment, body: str) -> Comment:
        current, issue = self._both(comment)
        repository = self.repository_of(current)
        access.can_change_comment(self.state, self.viewer, repository, current)
        checked_filled("IssueComment", "body", body)
        checked_body("IssueComment", body)
        before = current.body
        with self.state.writing() as write:
            current, issue = self._both(comment)
            changed = write.comment(replace(current, body=body, updated_at=write.stamp))
            issue = self._touch(write, issue)
        changes: dict[str, object] = {"body": {"from": before}}
        self._tell(
            "issue_comment", "edited", repository, issue=issue, comment=changed, changes=changes
        )
        return changed

    @alone
    def delete_comment(self, comment: Comment) -> Comment:
        current, issue = self._both(comment)
        repository = self.repository_of(current)
        access.can_change_comment(self.state, self.viewer, repository, current)
        with self.state.writing() as write:
            current, issue = self._both(comment)
            deleted = write.comment(replace(current, deleted=True, updated_at=write.stamp))
            issue = self._touch(write, issue)
        self._tell("issue_comment", "deleted", repository, issue=issue, comment=deleted)
        return deleted

    @alone
    def react(self, subject: Issue | Comment, content: str) -> tuple[Reaction, bool]:
        """The reaction, and whether it is new: a repeated reaction returns the first."""
        repository = self.repository_of(subject)
        self._needs(repository, Permission.READ)
        if content not in CONTENTS:
            raise invalid("Reaction", "content", "invalid")
        login = self.viewer.login
        with self.state.writing() as write:
            for known in self.state.primary().reactions(subject.id):
                if (known.author, known.content) == (login, content):
                    return known, False
            number = self.state.next_id("big")
            node = node_id("reaction", repository.id, number)
            made = Reaction(number, node, subject.id, login, content, write.stamp)
            return write.reaction(made), True

    @alone
    def unreact(self, reaction: Reaction) -> Reaction:
        if reaction.author.lower() != self.viewer.login.lower():
            raise forbidden("You can only remove your own reactions")
        with self.state.writing() as write:
            return write.reaction(replace(reaction, deleted=True))

    def _needs_room(self, issue: Issue) -> None:
        most, state = self.state.most_comments, self.state
        if most is None or len(state.comments_of.get(issue.id, ())) < most:
            return  # true for most issues, so their comments are not counted one by one
        if state.primary().comment_count(issue.id) >= most:
            raise forbidden(FULL)

    def _both(self, comment: Comment) -> tuple[Comment, Issue]:
        found = self.state.comments.newest(comment.id)
        issue = self.state.issues.newest(comment.issue_id)
        if found is None or found.deleted or issue is None or not issue.present:
            raise not_found()
        return found, issue
