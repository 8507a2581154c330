"""Fenced writes of objects in S3, or in a compatible store with conditional writes.

The fence is metadata of the object. A write reads it together with the object's ETag, refuses lower
fences, and puts the new object on the condition that the ETag is still the same (`If-Match`, or
`If-None-Match: *` for a new object). The store checks this condition in the same step as the
write. So either the fence that was read is still the highest when the write is applied, or the
write is not applied and starts again from the reading.

This holds only if no two writes have the same ETag. S3's ETag is a digest of the bytes and ignores
the metadata: a stamp would not change it, and writing an earlier body again would bring its ETag
back. So objects are written as gzip whose header names the write, with `Content-Encoding: gzip`:
any HTTP client and any gzip program reads them, and no two have the same bytes.

Takes any client with `put_object`, `head_object` and `get_object` as in boto3. Errors of the client
are passed on to the caller unchanged.
"""

import gzip
import io
import secrets
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Protocol

from msgspec import Struct, field

from dibs.core.durations import LOST_RACE
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
"""Metadata of a fenced object. `EMPTY` marks an object that was stamped before the first write."""

_KEPT_HEADERS = ("ContentType", "CacheControl", "ContentDisposition", "ContentLanguage")
_LOST_RACE = {
    "PreconditionFailed",
    "ConditionalRequestConflict",  # another conditional write is in progress
    "NoSuchKey",  # the object has been deleted since the reading
}


class Client(Protocol):
    """The methods used of boto3's S3 client."""

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
    """Put the object, unless a higher fence was seen.

    With `version`, an ETag, only if the object still has this ETag; with `create=False`, only if
    the object exists.
    """
    check(fence, step)
    place = _ObjectKey(client, bucket, key)
    for _ in range(LOST_RACE.most):
        stored = place.head()
        if stored.write == place.write:
            return Applied(stored.etag)  # the client sent the put twice: the first reply was lost
        refusal: Outcome | None = stored.mark.refusal(fence, step)
        if refusal is not None:
            return refusal
        if stored.empty and (version is not None or not create):
            return Missing()
        if version is not None and version != stored.etag:
            return Conflict(other_version(stored.etag, version))
        mark, headers = stored.mark.after(fence, step), {"ContentType": content_type}
        if (etag := place.put(stored, body, mark, headers)) is not None:
            return Applied(etag)
    raise _too_busy(bucket, key)


def stamp(client: Client, bucket: str, key: str, fence: int) -> Outcome:
    """Raise the object's fence without changing the content; call right after getting a lease.

    If there is no object yet, puts an empty object, for which `read` returns None.
    """
    check(fence)
    place = _ObjectKey(client, bucket, key)
    for _ in range(LOST_RACE.most):
        stored, body = place.get()
        if (refusal := stored.mark.refusal(fence)) is not None:
            return refusal
        if stored.mark.fence == fence:
            return Applied(stored.etag)
        mark = stored.mark.after(fence)
        if (etag := place.put(stored, body, mark, stored.headers, empty=stored.empty)) is not None:
            return Applied(etag)
    raise _too_busy(bucket, key)


def read(client: Client, bucket: str, key: str) -> Reading[bytes] | None:
    """The object's content, fence and version; None if the object does not exist."""
    stored, body = _ObjectKey(client, bucket, key).get()
    return None if stored.empty else Reading(body, Fence(stored.mark.fence), stored.etag)


class _StoredObject(Struct, frozen=True):
    """The headers and metadata of an object; of no object, by default."""

    etag: str = ""
    """Empty if there is no object."""
    mark: Mark = Mark()
    write: str = ""
    empty: bool = True
    sealed: bool = False
    """Whether this module wrote the object as gzip; otherwise its bytes are stored as they are."""
    headers: Mapping[str, Any] = {}
    """Arguments for the next put: headers to keep, and the foreign metadata."""


class _ObjectKey(Struct, frozen=True):
    """A key in a bucket, with or without an object."""

    client: Client
    bucket: str
    key: str
    write: str = field(default_factory=lambda: secrets.token_hex(8))
    """The name of our write."""

    def head(self) -> _StoredObject:
        reply = self._found(self.client.head_object)
        return _StoredObject() if reply is None else _stored(reply)

    def get(self) -> tuple[_StoredObject, bytes]:
        reply = self._found(self.client.get_object)
        if reply is None:
            return _StoredObject(), b""
        stored, data = _stored(reply), reply["Body"].read()
        return stored, gzip.decompress(data) if stored.sealed else data

    def _found(self, ask: Callable[..., Any]) -> Any:
        """The reply of `head_object` or `get_object`; None if there is no object."""
        try:
            return ask(Bucket=self.bucket, Key=self.key)
        except Exception as failure:
            if _status_and_code(failure)[0] == HTTPStatus.NOT_FOUND:
                return None
            raise

    def put(
        self,
        over: _StoredObject,
        body: bytes,
        mark: Mark,
        headers: Mapping[str, Any],
        *,
        empty: bool = False,
    ) -> str | None:
        """Put an object over `over`; the new ETag, or None if `over` is not current any more."""
        ours = {FENCE: str(mark.fence), STEP: str(mark.step), WRITE: self.write}
        marks = {EMPTY: "1"} if empty else {}
        metadata = {**headers.get("Metadata", {}), **ours, **marks}
        condition = {"IfMatch": over.etag} if over.etag else {"IfNoneMatch": "*"}
        sealed = io.BytesIO()
        name = f"fence-{mark.fence}-{self.write}"
        with gzip.GzipFile(filename=name, mode="wb", fileobj=sealed, mtime=0) as packed:
            packed.write(body)
        try:
            reply = self.client.put_object(
                Bucket=self.bucket,
                Key=self.key,
                Body=sealed.getvalue(),
                ContentEncoding="gzip",
                **{**headers, "Metadata": metadata},
                **condition,
            )
        except Exception as failure:
            status, code = _status_and_code(failure)
            if status == HTTPStatus.PRECONDITION_FAILED or code in _LOST_RACE:
                return None
            raise
        return str(reply["ETag"])


def _stored(reply: Mapping[str, Any]) -> _StoredObject:
    """Parse a reply of `head_object` or `get_object`."""
    metadata = {name.lower(): value for name, value in reply.get("Metadata", {}).items()}
    encoding = reply.get("ContentEncoding", "")
    sealed = WRITE in metadata
    if not sealed and encoding not in ("", "aws-chunked", "identity"):
        raise Misuse(f"an object that is stored as {encoding} already cannot be fenced")
    ours = (FENCE, STEP, WRITE, EMPTY)
    foreign = {name: value for name, value in metadata.items() if name not in ours}
    headers = {name: reply[name] for name in _KEPT_HEADERS if reply.get(name)}
    return _StoredObject(
        etag=str(reply["ETag"]),
        mark=Mark(int(metadata.get(FENCE, 0)), int(metadata.get(STEP, 0))),
        write=metadata.get(WRITE, ""),
        empty=EMPTY in metadata,
        sealed=sealed,
        headers={**headers, "Metadata": foreign},
    )


def _status_and_code(failure: Exception) -> tuple[int | None, str | None]:
    """The HTTP status and error code of a botocore error, without importing botocore."""
    response = getattr(failure, "response", None)
    if not isinstance(response, Mapping):
        return None, None
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status, response.get("Error", {}).get("Code")


def _too_busy(bucket: str, key: str) -> Unavailable:
    return Unavailable(f"{bucket}/{key} changes faster than it can be written")
