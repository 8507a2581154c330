"""One DynamoDB table: its URL, its definition, reads, conditional writes, and errors.

This module decides how an adapter talks to the table. Every read is consistent. Every write is a
conditional update, and a refused update returns the item that was in the way. Every request is
bounded in time. Each failure of the service becomes one of our errors. The module knows nothing of
leases: items are plain values.

The vendor's library repeats a request whose reply was lost. So a repeated write may be refused
because its first sending was done. A caller that writes must put a value of its own into the item,
and look for that value in the returned item.
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

from dibs.core.durations import LOST_RACE
from dibs.core.errors import (
    BadConfiguration,
    Damaged,
    NotPermitted,
    Outage,
    RateLimited,
    Unavailable,
)
from dibs.core.references import seconds_in
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
_TURN_S = (0.005, 0.05)
_CREATION_S = 60.0
_PAGE = 100  # as many as one BatchGetItem takes
_RETRY_AFTER_S = 1.0

_REFUSED = "ConditionalCheckFailedException"
_CANCELED = "TransactionCanceledException"
_NO_TABLE = "ResourceNotFoundException"
# A plain write met an item that another client's transaction is about to write.
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


class DynamoPlace(Struct, frozen=True):
    """Which table, where the table is, and which part (namespace) of the table is ours."""

    table: str
    region: str | None = None
    endpoint: str | None = None
    timeout_s: float = 5.0
    namespace: str = "dibs"
    create: bool = False


def parse_place(url: str) -> DynamoPlace:
    """Read `dynamodb://TABLE?region=..&endpoint=..&timeout=5&namespace=..&create=true`."""
    try:
        parts = urlsplit(url)
        url.encode()  # lone surrogates cannot be sent
    except ValueError:
        raise BadConfiguration(_WRITTEN_AS) from None
    elsewhere = parts.path not in ("", "/") or parts.fragment
    # An @ in an option shows that the URL was cut within a user and a secret. Only an endpoint may
    # contain one.
    in_options = any(
        "@" in option for option in parts.query.split("&") if not option.startswith("endpoint=")
    )
    if parts.scheme != SCHEME or elsewhere or "@" in parts.netloc or in_options:
        # The URL is not quoted: it may contain a secret that should have stood before an @.
        raise BadConfiguration(_WRITTEN_AS)
    if not _TABLE_NAME.fullmatch(parts.netloc):
        raise BadConfiguration(f"{parts.netloc!r} cannot be the name of a DynamoDB table")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(options.keys() - _OPTIONS):
        raise BadConfiguration(
            f"{SCHEME}://{parts.netloc} has no option {', '.join(unknown)}; "
            f"it may have {', '.join(sorted(_OPTIONS))}"
        )
    endpoint = _checked_endpoint(options.get("endpoint") or None)
    timeout, create = options.get("timeout", "5"), options.get("create", "false")
    wrong = f"timeout {timeout!r} is not a number of seconds from 0 to 600"
    timeout_s = seconds_in(timeout, 600, wrong)
    if create not in ("true", "false"):
        raise BadConfiguration(f"create may be true or false, not {create!r}")
    return DynamoPlace(
        table=parts.netloc,
        region=options.get("region") or None,
        endpoint=endpoint,
        timeout_s=timeout_s,
        namespace=options.get("namespace") or "dibs",
        create=create == "true",
    )


def _checked_endpoint(text: str | None) -> str | None:
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


class Change(Struct, frozen=True):
    """A conditional update of one item. In expressions, `#name` is an attribute, `:name` a value.

    The value of an attribute in `put` has the attribute's name.
    """

    only_if: str
    put: Mapping[str, Value]
    compute: Mapping[str, str] = field(default_factory=dict)
    """Attributes whose new value is an expression over the item."""
    drop: Sequence[str] = ()
    given: Mapping[str, Value] = field(default_factory=dict)
    """Values that the expressions name, in addition to those in `put`."""

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
    """The attribute names and values that the expression in `text` uses, and no more.

    The service refuses unused names and values. The service also reserves some words, so
    expressions write every attribute as `#name`.
    """
    wire: dict[str, Any] = {}
    for name in re.findall(r":(\w+)", text):
        value = values[name]
        if isinstance(value, bool):
            wire[f":{name}"] = {"BOOL": value}
        else:
            wire[f":{name}"] = {"N": str(value)} if isinstance(value, int) else {"S": value}
    names = {f"#{name}": name for name in re.findall(r"#(\w+)", text)}
    return {"ExpressionAttributeNames": names, "ExpressionAttributeValues": wire}


class UpdateResult(Struct, frozen=True):
    """The result of a conditional update."""

    done: bool
    item: Item | None
    """The new item if the update was done; the unchanged item if it was refused."""


class _WriteRefused(Exception):
    """The service refused a write. The response names the condition or the rival transaction."""

    def __init__(self, response: Mapping[str, Any]) -> None:
        super().__init__()
        self.response = response


class DynamoTable:
    """The items of one namespace, by the name of their record. Safe for many threads."""

    def __init__(self, place: DynamoPlace, clock: Clock) -> None:
        self._place, self._clock = place, clock
        self.namespace = place.namespace
        self.name = f"{SCHEME}://{place.table}"
        self._connected = _new_client(place)
        self._pid = os.getpid()
        self._clients_of_parents: list[Any] = []
        """Clients of the processes that this process was forked from."""

    @property
    def identity(self) -> str:
        """A name for the set of leases: equal for equal sets, different for different sets.

        The name of the table is not enough, because tables in many places may have the same name.
        The identity is a digest, because an endpoint may contain a password.
        """
        meta, place = self._client.meta, self._place
        whole = json.dumps((meta.endpoint_url, meta.region_name, place.table, place.namespace))
        return f"{self.name}/{hashlib.sha256(whole.encode()).hexdigest()[:32]}"

    def close(self) -> None:
        if self._pid == os.getpid():  # a child of a fork leaves the parent's connections open
            self._connected.close()

    @property
    def _client(self) -> Any:
        """The vendor's client of this process.

        If a parent and the child of a fork shared a connection, they would read each other's
        replies.
        """
        if self._pid != os.getpid():
            # The parent's client is kept: a dropped client closes its connections, and takes its
            # locks for that, which a thread of the parent may have held at the fork.
            self._clients_of_parents.append(self._connected)
            self._connected = _new_client(self._place)
            self._pid = os.getpid()  # last: another thread may go on once it is set
        return self._connected

    def get(self, record: str) -> Item | None:
        reply = self._call(
            "get_item", TableName=self._place.table, Key=self._key(record), ConsistentRead=True
        )
        return _plain(reply["Item"]) if "Item" in reply else None

    def get_many(self, records: Sequence[str]) -> dict[str, Item]:
        """The items that exist among the records, at most a page, each as of now, by record."""
        found: dict[str, Item] = {}
        table, keys = self._place.table, [self._key(record) for record in records]
        if not keys:
            return found
        for _ in range(LOST_RACE.most):
            asked = {table: {"Keys": keys, "ConsistentRead": True}}
            reply = self._call("batch_get_item", RequestItems=asked)
            for item in map(_plain, reply.get("Responses", {}).get(table, ())):
                found[str(item["record"])] = item
            keys = reply.get("UnprocessedKeys", {}).get(table, {}).get("Keys", [])
            if not keys:
                return found
            self.step_back()
        raise self._throttled("it did not hand out all of a batch")

    def update(self, record: str, change: Change) -> UpdateResult:
        try:
            reply = self._call(
                "update_item",
                TableName=self._place.table,
                Key=self._key(record),
                ReturnValues="ALL_NEW",
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
                **change.rendered(),
            )
        except _WriteRefused as refusal:
            item = refusal.response.get("Item")
            return UpdateResult(False, _plain(item) if item else self.get(record))
        return UpdateResult(True, _plain(reply["Attributes"]))

    def update_together(self, changes: Mapping[str, Change]) -> bool:
        """Do all changes or none. False if a condition failed or another client was writing."""
        table = self._place.table
        updates = [
            {"Update": {"TableName": table, "Key": self._key(record), **change.rendered()}}
            for record, change in changes.items()
        ]
        try:
            self._call("transact_write_items", TransactItems=updates)
        except _WriteRefused as refusal:
            for reason in refusal.response.get("CancellationReasons", ()):
                code, text = reason.get("Code", ""), reason.get("Message", "")
                if code not in _LOST_RACES:
                    raise self._error_by_code(code, text, status=400) from refusal
            return False
        return True

    def in_flight(self, only_if: str, values: Mapping[str, Value]) -> Iterator[list[str]]:
        """Pages of the names of the records in the index, in the index's order.

        `only_if` filters the items; empty: no filter.
        """
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
        """The given attributes of every item whose record begins with the prefix."""
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
        # A local index can be read consistently, too: every grant is in it.
        asked = {**query, "TableName": self._place.table, "ConsistentRead": True}
        while True:
            reply = self._call("query", **asked)
            yield [_plain(item) for item in reply["Items"]]
            if "LastEvaluatedKey" not in reply:
                return
            asked["ExclusiveStartKey"] = reply["LastEvaluatedKey"]

    def step_back(self) -> None:
        """Sleep for a short random time, to let one of several racing clients get through."""
        self._clock.sleep(random.uniform(*_TURN_S))

    # Requests

    def _key(self, record: str) -> dict[str, Any]:
        return {"namespace": {"S": self.namespace}, "record": {"S": record}}

    def _call(self, operation: str, **parameters: Any) -> Any:
        """Send a request; wait for rival transactions, and create the table if the URL asks to.

        Raises `_WriteRefused` if a condition failed or a transaction was canceled.
        """
        for _ in range(LOST_RACE.most):
            try:
                reply = getattr(self._client, operation)(**parameters)
            except vendor.ClientError as failure:
                code = _code(failure.response)
                if code in (_REFUSED, _CANCELED):
                    raise _WriteRefused(failure.response) from failure
                if code == _CONFLICT:
                    self.step_back()
                elif code == _NO_TABLE and self._place.create:
                    self._create()
                else:
                    raise self._error_of(failure) from failure
                continue
            except (vendor.BotoCoreError, ResponseParserError) as failure:
                raise self._error_without_answer(failure) from None
            # The library takes any page that comes with a 200 for an empty answer. An empty answer
            # would mean that there is no record, or that everything was written.
            if not reply.get("ResponseMetadata", {}).get("RequestId"):
                raise Unavailable(f"{self.name}: something else than the service answered")
            return reply
        raise Unavailable(f"{self.name}: others kept writing what was to be written")

    def _create(self) -> None:
        """Create the table and wait until it is active. Several clients may try; one succeeds."""
        table = self._place.table
        if self._tried("create_table", "ResourceInUseException", **definition(table)) is not None:
            _log.info("%s: created", self.name)
        until = self._clock.now() + _CREATION_S
        while True:
            reply = self._tried("describe_table", _NO_TABLE, TableName=table)
            if reply is not None and reply["Table"]["TableStatus"] == "ACTIVE":
                return
            if self._clock.now() > until:
                raise Unavailable(f"{self.name}: the table is being created and not yet there")
            self._clock.sleep(0.2)

    def _tried(self, operation: str, expected: str, **parameters: Any) -> Any:
        """Send a request. None if the service refuses the request with the code `expected`."""
        try:
            return getattr(self._client, operation)(**parameters)
        except vendor.ClientError as failure:
            if _code(failure.response) != expected:
                raise self._error_of(failure) from failure
            return None
        except vendor.BotoCoreError as failure:
            raise self._error_without_answer(failure) from None

    # Errors

    def _error_of(self, failure: vendor.ClientError) -> Outage:
        error = failure.response.get("Error", {})
        status = failure.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return self._error_by_code(error.get("Code", ""), error.get("Message", ""), status=status)

    def _error_by_code(self, code: str, text: str, *, status: int) -> Outage:
        """Choose the error by who must act, and by whether trying again would help."""
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

    def _error_without_answer(self, failure: Exception) -> Outage:
        # The library's texts name the endpoint as it was configured, maybe with a password. So we
        # name only the kind of the failure.
        kind = type(failure).__name__
        if isinstance(failure, _WITHOUT_CREDENTIALS):
            return NotPermitted(f"{self.name}: no usable AWS credentials were found ({kind})")
        return Unavailable(f"{self.name}: no answer from {self._where()} ({kind})")

    def _where(self) -> str:
        region = self._client.meta.region_name
        return f"region {region}" + (" at another endpoint" if self._place.endpoint else "")


def definition(table: str) -> dict[str, Any]:
    """The definition of the table, as `create_table` takes it.

    The index is local, because only a local index can be read consistently, and sparse: an item is
    in the index only while the item has the attribute `since`.
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
                # No attribute that a renewal changes, so that a renewal does not write the index.
                "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["stage"]},
            }
        ],
    }


def _new_client(place: DynamoPlace) -> Any:
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


def _plain(wired: Mapping[str, Any]) -> Item:
    """Decode an item. Attributes of types that we never write were added by people: skip them."""
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
