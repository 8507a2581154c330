"""An approval that names what was approved: a later change of the issue's text voids it.

Whoever wrote an issue may change its text without being allowed to write anywhere else, so what is
done under an approval must be what a person has read. Decides the spelling of that mark and whether
the newest one still holds. A label that a person put on by hand names no text, and opens the gate
as it always did.
"""

from collections.abc import Iterable

from dibs.core.issue import Comment, Issue, Thread
from dibs.core.mark_line import VERSION, plain, read_line, shortened, starts_as, write_line

_KIND = "approved"
_DIGITS = 32


def text_of(issue: Issue) -> str:
    """A name for what the issue asks for."""
    asked = f"{len(issue.title)}:{issue.title}{issue.body}"
    from hashlib import sha256  # loads OpenSSL: not at every start

    return sha256(asked.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


def render_approval(issue: Issue, stage: str, by: str) -> str:
    fields = [("stage", stage), ("text", text_of(issue)), ("v", str(VERSION)), ("by", by)]
    line = write_line(_KIND, [(key, shortened(value, 300)) for key, value in fields])
    return f"{line}\nApproved by {plain(by) or 'somebody'}, out of {plain(stage)}."


def changed_since(thread: Thread, stage: str) -> bool:
    """Whether the newest approval out of this stage names another text than the issue has now."""
    texts = [text for text in _texts(thread.comments, stage) if text]
    return bool(texts) and texts[-1] != text_of(thread.issue)


def _texts(comments: Iterable[Comment], stage: str) -> Iterable[str]:
    for comment in sorted(comments, key=lambda one: (one.created_at, one.id)):
        if not comment.by_writer or not starts_as(comment.body, (_KIND,)):
            continue
        try:
            _, fields = read_line(comment.body)
            if fields.take("stage") == stage:
                yield fields.take("text") or ""
        except ValueError:
            continue
