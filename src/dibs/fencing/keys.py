"""Idempotency keys, for effects at places that compare no fence."""

import hashlib

from dibs.core.ids import IssueRef


def key_for(issue: IssueRef | str, fence: int | None, step: int | str) -> str:
    """A key that every retry of this effect has in common, and no other effect has.

    With a fence it tells the retries of one holder. Without one it stands for the effect on the
    issue whoever holds it: right for what must happen once, even if the first holder vanished
    before it could note that it had done it.
    """
    parts = (str(issue), "" if fence is None else str(fence), str(step))
    # With their lengths, so that no two lists of parts run into the same text.
    text = "".join(f"{len(part)}:{part}" for part in parts)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]
    return f"dibs-{digest}" if fence is None else f"dibs-{fence}-{digest}"
