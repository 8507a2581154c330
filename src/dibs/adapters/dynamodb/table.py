"""One DynamoDB table: its place, its shape, single conditional writes, errors.

Decides how an adapter talks to the table: every read is consistent, every write is a conditional
update that tells what stood there if it was refused, every request has a bound in time, and each
failure of the service's is one of our errors. Knows nothing of leases: items are plain values.

The vendor's library repeats a request whose reply was lost. A repeated write may therefore be
refused because its first sending was done. Whoever writes puts something of its own in the item
and looks for it in what it is told.
"""

import hashlib
import json
import logging
import os
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import boto3  # type: ignore[import-untyped]
from botocore import exceptions as vendor  # type: ignore[import-untyped]
from botocore.config import Config  # type: ignore[import-untyped]
from botocore.parsers import ResponseParserError  # type: ignore[import-untyped]
from msgspec import Struct, field

from dibs.core.errors import (
    BadConfiguration,
    Damaged,
    NotPermitted,
    Outage,
    RateLimited,
    Unavailable,
)
from dibs.ports.system import Clock

_log = logging.getLogger("dibs.dynamodb")

Value = str | int | bool
Item = dict[str, Value]

SCHEME = "dynamodb"
INDEX = "in_flight"
_WRITTEN_AS = (
    f"a DynamoDB store is written as {SCHEME}://TABLE?region=REGION, without a user: "
    "credentials are found as every AWS tool finds them"
)
_OPTIONS = {"region", "endpoint", "timeout", "namespace", "create"}
_TABLE_NAME = re.compile(r"[A-Za-z0-9_.-]{3,255}")
_ATTEMPTS = 2  # one connection that died while it was idle is not an outage
_CONNECTIONS = 32
_TURNS = 10
_TURN_S = (0.005, 0.05)
_CREATION_S = 60.0
_PAGE = 100  # as many as one BatchGetItem takes
_RETRY_AFTER_S = 1.0

_REFUSED = "ConditionalCheckFailedException"
_CANCELED = "TransactionCanceledException"
_NO_TABLE = "ResourceNotFoundException"
# A plain write meets an item that somebody's transaction is just about to write.
_CONFLICT = "TransactionConflictException"
_LOST_RACES = {"None", "ConditionalCheckFailed", "TransactionConflict"}
_THROTTLED = {
    "ProvisionedThroughputExceededException",
    "ProvisionedThroughputExceeded",
    "ThrottlingException",
    "ThrottlingError",
    "Throttling",
    "RequestLimitExceeded",
}
_FORBIDDEN = {
    "AccessDeniedException",
    "AccessDenied",
    "UnrecognizedClientException",
    "MissingAuthenticationTokenException",
    "MissingAuthenticationToken",
    "IncompleteSignatureException",
    "IncompleteSignature",
    "InvalidSignatureException",
    "InvalidClientTokenId",
    "ExpiredTokenException",
    "ExpiredToken",
    "OptInRequired",
    "NotAuthorized",
}
# Not every version of the library has all of them.
_WITHOUT_CREDENTIALS = tuple(
    getattr(vendor, name)
    for name in (
        "NoCredentialsError",
        "PartialCredentialsError",
        "CredentialRetrievalError",
        "TokenRetrievalError",
        "NoAuthTokenError",
        "SSOError",
        "LoginError",
        "RefreshWithMFAUnsupportedError",
    )
    if hasattr(vendor, name)
)


class Place(Struct, frozen=True):
    """Which table, where, and which part of it is ours."""

    table: str
    region: str | None = None
    endpoint: str | None = None
    timeout_s: float = 5.0
    namespace: str = "dibs"
    create: bool = False


def parse_place(url: str) -> Place:
    """Read `dynamodb://TABLE?region=..&endpoint=..&timeout=5&namespace=..&create=true`."""
    try:
        parts = urlsplit(url)
        url.encode()  # half letters cannot be sent
    except ValueError:
        raise BadConfiguration(_WRITTEN_AS) from None
    elsewhere = parts.path not in ("", "/") or parts.fragment
    # Not quoted: a secret that was meant to stand before an @ may be in it.
    if parts.scheme != SCHEME or elsewhere or "@" in parts.netloc or _cut_off(parts.query):
        raise BadConfiguration(_WRITTEN_AS)
    if not _TABLE_NAME.fullmatch(parts.netloc):
        raise BadConfiguration(f"{parts.netloc!r} cannot be the name of a DynamoDB table")
    said = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(said.keys() - _OPTIONS):
        raise BadConfiguration(
            f"{SCHEME}://{parts.netloc} has no option {', '.join(unknown)}; "
            f"it may have {', '.join(sorted(_OPTIONS))}"
        )
    return Place(
        table=parts.netloc,
        region=said.get("region") or None,
        endpoint=_endpoint(said.get("endpoint") or None),
        timeout_s=_seconds(said.get("timeout", "5")),
        namespace=said.get("namespace") or "dibs",
        create=_yes(said.get("create", "false")),
    )


def _cut_off(query: str) -> bool:
    """Whether an @ shows that this is the rest of a user and a secret; an endpoint may have one."""
    return any("@" in name for name in query.split("&") if not name.startswith("endpoint="))


def _endpoint(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        parts = urlsplit(text)
        scheme, host, _ = parts.scheme, parts.hostname, parts.port
    except ValueError:
        scheme, host = "", None
    if scheme not in ("http", "https") or not host:
        raise BadConfiguration("endpoint must begin with http:// or https://, and name a host")
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 600:
        raise BadConfiguration(f"timeout {text!r} is not a number of seconds from 0 to 600")
    return seconds


def _yes(text: str) -> bool:
    if text not in ("true", "false"):
        raise BadConfiguration(f"create may be true or false, not {text!r}")
    return text == "true"


class Change(Struct, frozen=True):
    """What one conditional update does to an item. `#name` is an attribute, `:name` a value."""

    only_if: str
    put: Mapping[str, Value]
    compute: Mapping[str, str] = field(default_factory=dict)
    """Attributes whose new value is an expression over the item."""
    drop: Sequence[str] = ()
    given: Mapping[str, Value] = field(default_factory=dict)
    """Values that the expressions name, beside those that are put."""

    def rendered(self) -> dict[str, Any]:
        sets = [f"#{name} = :{name}" for name in self.put]
        sets += [f"#{name} = {value}" for name, value in self.compute.items()]
        update = "SET " + ", ".join(sets)
        if self.drop:
            update += " REMOVE " + ", ".join(f"#{name}" for name in self.drop)
        return {
            "UpdateExpression": update,
            "ConditionExpression": self.only_if,
            **expressed(f"{update} {self.only_if}", {**self.given, **self.put}),
        }


def expressed(text: str, values: Mapping[str, Value]) -> dict[str, Any]:
    """The names and values that an expression speaks of. The service refuses any that are idle,
    and some plain names, so every attribute is named by a sign.
    """
    return {
        "ExpressionAttributeNames": {f"#{name}": name for name in re.findall(r"#(\w+)", text)},
        "ExpressionAttributeValues": {
            f":{name}": _wire(values[name]) for name in re.findall(r":(\w+)", text)
        },
    }


class Answer(Struct, frozen=True):
    """What came of a conditional update."""

    done: bool
    item: Item | None
    """As it is now if it was done; as it stands if it was refused."""


class _Refusal(Exception):
    """The service did not do it, and said what was in the way."""

    def __init__(self, response: Mapping[str, Any]) -> None:
        super().__init__()
        self.response = response


class Table:
    """The items of one namespace, by the name of their record. Safe for many threads."""

    def __init__(self, place: Place, clock: Clock) -> None:
        self._place, self._clock = place, clock
        self.namespace = place.namespace
        self.name = f"{SCHEME}://{place.table}"
        self._connected = _connected(place)
        self._pid = os.getpid()
        self._left: list[Any] = []
        """Clients of the processes that we were forked from."""

    @property
    def identity(self) -> str:
        """The same for the same leases and for no others: tables of one name are in many places.

        A digest, since an endpoint may have a password in it.
        """
        meta, place = self._client.meta, self._place
        whole = json.dumps((meta.endpoint_url, meta.region_name, place.table, place.namespace))
        return f"{self.name}/{hashlib.sha256(whole.encode()).hexdigest()[:32]}"

    def close(self) -> None:
        if self._pid == os.getpid():  # what a parent has open is the parent's to close
            self._connected.close()

    @property
    def _client(self) -> Any:
        """Of one process: on one connection, a parent and the child of a fork would each read
        replies to the other.
        """
        if self._pid != os.getpid():
            # Kept: if it were dropped, it would close what it has, and for that take its locks,
            # which a thread of the parent may have held at the fork.
            self._left.append(self._connected)
            self._connected = _connected(self._place)
            self._pid = os.getpid()  # last: another thread may go on once it is there
        return self._connected

    def get(self, record: str) -> Item | None:
        reply = self._call(
            "get_item", TableName=self._place.table, Key=self._key(record), ConsistentRead=True
        )
        return _plain(reply["Item"]) if "Item" in reply else None

    def get_many(self, records: Sequence[str]) -> dict[str, Item]:
        """Those that exist, each as it is now."""
        found: dict[str, Item] = {}
        table = self._place.table
        for start in range(0, len(records), _PAGE):
            keys = [self._key(record) for record in records[start : start + _PAGE]]
            for _ in range(_TURNS):
                asked = {table: {"Keys": keys, "ConsistentRead": True}}
                reply = self._call("batch_get_item", RequestItems=asked)
                for item in map(_plain, reply.get("Responses", {}).get(table, ())):
                    found[str(item["record"])] = item
                keys = reply.get("UnprocessedKeys", {}).get(table, {}).get("Keys", [])
                if not keys:
                    break
                self.take_turns()
            else:
                raise self._throttled("it did not hand out all of a batch")
        return found

    def update(self, record: str, change: Change) -> Answer:
        try:
            reply = self._call(
                "update_item",
                TableName=self._place.table,
                Key=self._key(record),
                ReturnValues="ALL_NEW",
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
                **change.rendered(),
            )
        except _Refusal as refusal:
            stands = refusal.response.get("Item")
            return Answer(False, _plain(stands) if stands else self.get(record))
        return Answer(True, _plain(reply["Attributes"]))

    def update_together(self, changes: Mapping[str, Change]) -> bool:
        """All of them or none; False if one was refused or met somebody else's writing."""
        updates = [
            {
                "Update": {
                    "TableName": self._place.table,
                    "Key": self._key(record),
                    **change.rendered(),
                }
            }
            for record, change in changes.items()
        ]
        try:
            self._call("transact_write_items", TransactItems=updates)
        except _Refusal as refusal:
            self._insist_on_a_lost_race(refusal.response)
            return False
        return True

    def in_flight(self, only_if: str, values: Mapping[str, Value]) -> Iterator[list[str]]:
        """Pages of the records that the index has, in its order."""
        within = "#namespace = :namespace"
        query = {
            "IndexName": INDEX,
            "Limit": _PAGE,
            "KeyConditionExpression": within,
            **expressed(f"{within} {only_if}", {"namespace": self.namespace, **values}),
        }
        if only_if:
            query["FilterExpression"] = only_if
        for page in self._pages(query):
            yield [str(item["record"]) for item in page]

    def all(self, prefix: str, attributes: Sequence[str]) -> Iterator[Item]:
        """So much of every item whose record begins like that."""
        within = "#namespace = :namespace AND begins_with(#record, :prefix)"
        wanted = ", ".join(f"#{name}" for name in attributes)
        query = {
            "KeyConditionExpression": within,
            "ProjectionExpression": wanted,
            **expressed(f"{within} {wanted}", {"namespace": self.namespace, "prefix": prefix}),
        }
        for page in self._pages(query):
            yield from page

    def _pages(self, query: Mapping[str, Any]) -> Iterator[list[Item]]:
        # A local index can be read consistently, too: what was granted is in it.
        asked = {**query, "TableName": self._place.table, "ConsistentRead": True}
        while True:
            reply = self._call("query", **asked)
            yield [_plain(item) for item in reply["Items"]]
            if "LastEvaluatedKey" not in reply:
                return
            asked["ExclusiveStartKey"] = reply["LastEvaluatedKey"]

    def take_turns(self) -> None:
        """Step back for a moment, each for another one, so that one of those who race gets on."""
        self._clock.sleep(random.uniform(*_TURN_S))

    # How requests are made

    def _key(self, record: str) -> dict[str, Any]:
        return {"namespace": {"S": self.namespace}, "record": {"S": record}}

    def _call(self, operation: str, **parameters: Any) -> Any:
        for _ in range(_TURNS):
            try:
                return self._genuine(getattr(self._client, operation)(**parameters))
            except vendor.ClientError as failure:
                code = _code(failure.response)
                if code in (_REFUSED, _CANCELED):
                    raise _Refusal(failure.response) from failure
                if code == _CONFLICT:
                    self.take_turns()
                elif code == _NO_TABLE and self._place.create:
                    self._create()
                else:
                    raise self._told(failure) from failure
            except (vendor.BotoCoreError, ResponseParserError) as failure:
                raise self._failed(failure) from None
        raise Unavailable(f"{self.name}: others kept writing what was to be written")

    def _genuine(self, reply: Any) -> Any:
        """The library takes any page that comes with a 200 for an empty answer, and an empty answer
        says that there is no record, or that everything was written.
        """
        if not reply.get("ResponseMetadata", {}).get("RequestId"):
            raise Unavailable(f"{self.name}: something else than the service answered")
        return reply

    def _create(self) -> None:
        """Make the table; several may at once, and one does."""
        try:
            self._client.create_table(**definition(self._place.table))
            _log.info("%s: created", self.name)
        except vendor.ClientError as failure:
            if _code(failure.response) != "ResourceInUseException":
                raise self._told(failure) from failure
        except vendor.BotoCoreError as failure:
            raise self._failed(failure) from None
        until = self._clock.now() + _CREATION_S
        while self._status() != "ACTIVE":
            if self._clock.now() > until:
                raise Unavailable(f"{self.name}: the table is being created and not yet there")
            self._clock.sleep(0.2)

    def _status(self) -> str:
        try:
            reply = self._client.describe_table(TableName=self._place.table)
        except vendor.ClientError as failure:
            if _code(failure.response) == _NO_TABLE:
                return "UNKNOWN"
            raise self._told(failure) from failure
        except vendor.BotoCoreError as failure:
            raise self._failed(failure) from None
        return str(reply["Table"]["TableStatus"])

    # Which of our errors it is

    def _insist_on_a_lost_race(self, response: Mapping[str, Any]) -> None:
        """Raises unless a condition or another transaction is why this one was canceled."""
        for reason in response.get("CancellationReasons", ()):
            code, text = reason.get("Code", ""), reason.get("Message", "")
            if code not in _LOST_RACES:
                raise self._by_code(code, text, status=400)

    def _told(self, failure: vendor.ClientError) -> Outage:
        said = failure.response.get("Error", {})
        status = failure.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return self._by_code(said.get("Code", ""), said.get("Message", ""), status=status)

    def _by_code(self, code: str, text: str, *, status: int) -> Outage:
        """Who must act, and would trying again help."""
        if code in _THROTTLED:
            return self._throttled(text)
        if code in _FORBIDDEN or status in (401, 403):
            return NotPermitted(f"{self.name}: access was refused ({code}: {text})")
        if code == _NO_TABLE:
            return Damaged(
                f"{self.name}: there is no such table in {self._where()}; "
                "its definition is on the store's page, and ?create=true makes it on first use"
            )
        if code == "ItemCollectionSizeLimitExceededException":
            return Damaged(f"{self.name}: namespace {self.namespace!r} is full ({text})")
        if status >= 500 or code in ("InternalServerError", "TransactionInProgressException"):
            return Unavailable(f"{self.name}: the service failed ({code}: {text})")
        return Damaged(f"{self.name}: the table is not as it should be ({code}: {text})")

    def _throttled(self, text: str) -> RateLimited:
        return RateLimited(
            f"{self.name}: the service asks to slow down ({text})", retry_after_s=_RETRY_AFTER_S
        )

    def _failed(self, failure: Exception) -> Outage:
        # The library's texts name the endpoint as it was configured, so only their kind is told.
        kind = type(failure).__name__
        if isinstance(failure, _WITHOUT_CREDENTIALS):
            return NotPermitted(f"{self.name}: no usable AWS credentials were found ({kind})")
        return Unavailable(f"{self.name}: no answer from {self._where()} ({kind})")

    def _where(self) -> str:
        region = self._client.meta.region_name
        return f"region {region}" + (" at another endpoint" if self._place.endpoint else "")


def definition(table: str) -> dict[str, Any]:
    """The table as it has to be. The index is local, so that it can be read consistently, and
    sparse: an item is in it only while it has `since`.
    """
    hashed = {"AttributeName": "namespace", "KeyType": "HASH"}
    return {
        "TableName": table,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [
            {"AttributeName": name, "AttributeType": "S"}
            for name in ("namespace", "record", "since")
        ],
        "KeySchema": [hashed, {"AttributeName": "record", "KeyType": "RANGE"}],
        "LocalSecondaryIndexes": [
            {
                "IndexName": INDEX,
                "KeySchema": [hashed, {"AttributeName": "since", "KeyType": "RANGE"}],
                # Nothing that a renewal changes, so that a renewal does not write the index.
                "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["stage"]},
            }
        ],
    }


def _connected(place: Place) -> Any:
    config = Config(
        connect_timeout=place.timeout_s,
        read_timeout=place.timeout_s,
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        max_pool_connections=_CONNECTIONS,
    )
    try:
        return boto3.session.Session().client(
            "dynamodb", region_name=place.region, endpoint_url=place.endpoint, config=config
        )
    except vendor.NoRegionError:
        raise BadConfiguration(
            f"{SCHEME}://{place.table} names no region, and AWS's own settings have none; "
            "add ?region=REGION"
        ) from None
    except (vendor.BotoCoreError, ValueError) as failure:
        raise BadConfiguration(
            f"{SCHEME}://{place.table}: AWS's own settings cannot be used "
            f"({type(failure).__name__})"
        ) from None


def _code(response: Mapping[str, Any]) -> str:
    return str(response.get("Error", {}).get("Code", ""))


def _wire(value: Value) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"BOOL": value}
    return {"N": str(value)} if isinstance(value, int) else {"S": value}


def _plain(wired: Mapping[str, Any]) -> Item:
    """What people added to an item, in kinds that we never write, is not ours to read."""
    item: Item = {}
    for name, value in wired.items():
        match value:
            case {"S": str(text)}:
                item[name] = text
            case {"BOOL": bool(flag)}:
                item[name] = flag
            case {"N": str(number)} if number.lstrip("-").isdigit():
                item[name] = int(number)
            case _:
                pass
    return item
