"""REST: comments on issues, and reactions to either."""

from .exchange import Answer, Call, needs_token
from .records import Comment, Issue, Reaction
from .refusal import not_found
from .rest_issues import since


def list_comments(call: Call) -> Answer:
    return call.page(_recent(call, call.view.comments(call.issue.id)), call.bodies.comment)


def list_repository_comments(call: Call) -> Answer:
    found = _recent(call, call.view.repository_comments(call.repository.id))
    sort = call.asked("sort")
    if sort:
        found.sort(
            key=lambda one: (one.updated_at if sort == "updated" else one.created_at, one.id)
        )
        if call.asked("direction", "desc") != "asc":
            found.reverse()
    return call.page(found, call.bodies.comment)


def _recent(call: Call, comments: list[Comment]) -> list[Comment]:
    at = since(call)
    return [one for one in comments if at is None or one.updated_at >= at]


def get_comment(call: Call) -> Answer:
    return Answer(200, call.bodies.comment(_comment(call)))


def create_comment(call: Call) -> Answer:
    issue = call.issue
    needs_token(call.viewer)
    made = call.acts.create_comment(issue, call.text("IssueComment", "body"))
    told = call.bodies.comment(made)
    return Answer(201, told, {"Location": told["url"]})


def edit_comment(call: Call) -> Answer:
    comment = _comment(call)
    changed = call.acts.edit_comment(comment, call.text("IssueComment", "body"))
    return Answer(200, call.bodies.comment(changed))


def delete_comment(call: Call) -> Answer:
    call.acts.delete_comment(_comment(call))
    return Answer(204)


def _comment(call: Call) -> Comment:
    found = call.view.comment(call.number("comment_id"))
    if found is None or found.repository_id != call.repository.id:
        raise not_found()
    return found


def list_issue_reactions(call: Call) -> Answer:
    return _list(call, call.issue)


def add_issue_reaction(call: Call) -> Answer:
    return _add(call, call.issue)


def remove_issue_reaction(call: Call) -> Answer:
    return _remove(call, call.issue)


def list_comment_reactions(call: Call) -> Answer:
    return _list(call, _comment(call))


def add_comment_reaction(call: Call) -> Answer:
    return _add(call, _comment(call))


def remove_comment_reaction(call: Call) -> Answer:
    return _remove(call, _comment(call))


def _list(call: Call, subject: Issue | Comment) -> Answer:
    content = call.asked("content")
    found = [one for one in call.view.reactions(subject.id) if content in ("", one.content)]
    return call.page(found, call.bodies.reaction)


def _add(call: Call, subject: Issue | Comment) -> Answer:
    reaction, new = call.acts.react(subject, call.text("Reaction", "content"))
    return Answer(201 if new else 200, call.bodies.reaction(reaction))


def _remove(call: Call, subject: Issue | Comment) -> Answer:
    wanted = call.number("reaction_id")
    found: list[Reaction] = [one for one in call.view.reactions(subject.id) if one.id == wanted]
    if not found:
        raise not_found()
    call.acts.unreact(found[0])
    return Answer(204)
