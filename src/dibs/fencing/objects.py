"""Fenced writes of objects in S3, or in a store that speaks like it and has conditional writes.

The fence travels with the object as metadata. A write reads it together with the object's ETag,
refuses lower fences, and puts the new object on the condition that the ETag is still the same
(`If-Match`, or `If-None-Match: *` for the first one). The store checks that condition in the same
step as the write, so the fence that was read is still the highest when the write is applied, or the
write is not applied and looks again.

That holds only if an ETag names one write. S3's is a digest of the bytes and ignores the metadata:
a stamp would not change it, and a body that comes back would bring its ETag back. So objects are
written as gzip whose header names the write, with `Content-Encoding: gzip`: any HTTP client and any
gzip reads them, and no two have the same bytes.

Takes any client with `put_object`, `head_object` and `get_object` as boto3 has them. Errors of the
client are the caller's, and go through.
"""

import gzip
import io
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Protocol

from dibs.core.errors import Misuse, Unavailable
from dibs.core.ids import Fence
from dibs.fencing.values import (
    Applied,
    Conflict,
    Mark,
    Missing,
    Outcome,
    Reading,
    check,
    other_version,
)

__all__ = ["Client", "guarded_put", "read", "stamp"]

FENCE, STEP, WRITE, EMPTY = "dibs-fence", "dibs-step", "dibs-write", "dibs-empty"
"""Metadata of a fenced object. The last one says that it was stamped before anybody wrote it."""

_TRIES = 20
_KEPT = ("ContentType", "CacheControl", "ContentDisposition", "ContentLanguage")
_LOST_RACE = {
    "PreconditionFailed",
    "ConditionalRequestConflict",  # another conditional write is under way
    "NoSuchKey",  # the object has been deleted since
}


class Client(Protocol):
    """What is used of boto3's S3 client."""

    def put_object(self, **arguments: Any) -> Any: ...
    def head_object(self, **arguments: Any) -> Any: ...
    def get_object(self, **arguments: Any) -> Any: ...


def guarded_put(
    client: Client,
    bucket: str,
    key: str,
    body: bytes,
    fence: int,
    *,
    version: str | None = None,
    step: int | None = None,
    create: bool = True,
    content_type: str = "application/octet-stream",
) -> Outcome:
    """Put the object, if no higher fence has been here.

    With `version`, an ETag, only if the object is still that one; with `create=False`, only if
    there is one.
    """
    check(fence, step)
    place, write = _Place(client, bucket, key), secrets.token_hex(8)
    for _ in range(_TRIES):
        there = place.head()
        if there is not None and there.write == write:
            return Applied(there.etag)  # the client sent it twice, because the reply was lost
        mark = there.mark if there is not None else Mark()
        told = mark.refusal(fence, step) or _missed(there, version, create=create)
        if told is not None:
            return told
        new = _Object(body, mark.after(fence, step), write, {"ContentType": content_type})
        if (etag := place.put(new, there)) is not None:
            return Applied(etag)
    raise _too_busy(bucket, key)


def stamp(client: Client, bucket: str, key: str, fence: int) -> Outcome:
    """Raise the object's fence and keep its content: right after the lease was granted.

    Where there is no object yet, an empty one is put, which `read` does not show.
    """
    check(fence)
    place, write = _Place(client, bucket, key), secrets.token_hex(8)
    for _ in range(_TRIES):
        there, body = place.get()
        mark = there.mark if there is not None else Mark()
        if (told := mark.refusal(fence)) is not None:
            return told
        if there is not None and mark.fence == fence:
            return Applied(there.etag)
        kept = there.kept if there is not None else {}
        empty = there is None or there.empty
        new = _Object(body, mark.after(fence), write, kept, empty=empty)
        if (etag := place.put(new, there)) is not None:
            return Applied(etag)
    raise _too_busy(bucket, key)


def read(client: Client, bucket: str, key: str) -> Reading[bytes] | None:
    """The object's content, with its fence and its version."""
    there, body = _Place(client, bucket, key).get()
    if there is None or there.empty:
        return None
    return Reading(body, Fence(there.mark.fence), there.etag)


@dataclass(frozen=True, slots=True)
class _There:
    """What the store says of an object that exists."""

    etag: str
    mark: Mark
    write: str
    empty: bool
    sealed: bool
    """Whether it was written here; else its bytes are as somebody put them."""
    kept: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Object:
    body: bytes
    mark: Mark
    write: str
    kept: Mapping[str, Any] = field(default_factory=dict)
    empty: bool = False

    @property
    def metadata(self) -> dict[str, str]:
        ours = {FENCE: str(self.mark.fence), STEP: str(self.mark.step), WRITE: self.write}
        marks = {EMPTY: "1"} if self.empty else {}
        return {**self.kept.get("Metadata", {}), **ours, **marks}

    @property
    def sealed(self) -> bytes:
        """Gzip, with the name of this write in the place of a file's name."""
        buffer = io.BytesIO()
        name = f"fence-{self.mark.fence}-{self.write}"
        with gzip.GzipFile(filename=name, mode="wb", fileobj=buffer, mtime=0) as packed:
            packed.write(self.body)
        return buffer.getvalue()


@dataclass(frozen=True, slots=True)
class _Place:
    client: Client
    bucket: str
    key: str

    def head(self) -> _There | None:
        try:
            return _there(self.client.head_object(Bucket=self.bucket, Key=self.key))
        except Exception as failure:
            if _said(failure)[0] == HTTPStatus.NOT_FOUND:
                return None
            raise

    def get(self) -> tuple[_There | None, bytes]:
        try:
            reply = self.client.get_object(Bucket=self.bucket, Key=self.key)
        except Exception as failure:
            if _said(failure)[0] == HTTPStatus.NOT_FOUND:
                return None, b""
            raise
        there, stored = _there(reply), reply["Body"].read()
        return there, gzip.decompress(stored) if there.sealed else stored

    def put(self, new: _Object, over: _There | None) -> str | None:
        """The new ETag; None if what was seen there is there no more."""
        condition = {"IfNoneMatch": "*"} if over is None else {"IfMatch": over.etag}
        plain = {name: value for name, value in new.kept.items() if name != "Metadata"}
        try:
            reply = self.client.put_object(
                Bucket=self.bucket,
                Key=self.key,
                Body=new.sealed,
                Metadata=new.metadata,
                ContentEncoding="gzip",
                **plain,
                **condition,
            )
        except Exception as failure:
            status, code = _said(failure)
            if status == HTTPStatus.PRECONDITION_FAILED or code in _LOST_RACE:
                return None
            raise
        return str(reply["ETag"])


def _there(reply: Mapping[str, Any]) -> _There:
    metadata = {name.lower(): value for name, value in reply.get("Metadata", {}).items()}
    encoding = reply.get("ContentEncoding", "")
    sealed = WRITE in metadata
    if not sealed and encoding not in ("", "aws-chunked", "identity"):
        raise Misuse(f"an object that is stored as {encoding} already cannot be fenced")
    ours = (FENCE, STEP, WRITE, EMPTY)
    foreign = {name: value for name, value in metadata.items() if name not in ours}
    kept = {name: reply[name] for name in _KEPT if reply.get(name)}
    return _There(
        etag=str(reply["ETag"]),
        mark=Mark(int(metadata.get(FENCE, 0)), int(metadata.get(STEP, 0))),
        write=metadata.get(WRITE, ""),
        empty=EMPTY in metadata,
        sealed=sealed,
        kept={**kept, "Metadata": foreign},
    )


def _missed(there: _There | None, version: str | None, *, create: bool) -> Outcome | None:
    absent = there is None or there.empty
    if absent and (version is not None or not create):
        return Missing()
    if there is not None and version is not None and version != there.etag:
        return Conflict(other_version(there.etag, version))
    return None


def _said(failure: Exception) -> tuple[int | None, str | None]:
    """The status and the code of botocore's error, without importing it."""
    response = getattr(failure, "response", None)
    if not isinstance(response, Mapping):
        return None, None
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status, response.get("Error", {}).get("Code")


def _too_busy(bucket: str, key: str) -> Unavailable:
    return Unavailable(f"{bucket}/{key} changes faster than it can be written")
