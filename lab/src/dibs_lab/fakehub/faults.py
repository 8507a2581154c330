"""Faults on demand and by a seed: lag, stale and short lists, lost replies, other bots.

A fault says what happens, to which requests, how often and how many times. `kind` is matched with
the names of `counting`, so one expression fits REST and GraphQL. The same seed and the same order
of requests give the same faults.
"""

import re
import threading
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from enum import StrEnum
from random import Random
from typing import Any

from .records import Happening, Issue, Label
from .view import View


class Wrong(StrEnum):
    """The kinds of faults."""

    LAG = "lag"
    """Reads see a write only after `seconds`; the reply to the write itself does not lag."""
    STALE = "stale"
    """A read shows the world as it was `seconds` ago."""
    SHORT = "short"
    """Lists lack their last `count` entries, but counts include them."""
    ERROR_BEFORE = "error_before"
    """A 5xx; nothing was done."""
    ERROR_AFTER = "error_after"
    """A 502; everything was done."""
    DROP_BEFORE = "drop_before"
    """The connection ends without a reply; nothing was done."""
    DROP_AFTER = "drop_after"
    """The connection ends without a reply; everything was done."""
    UNAUTHORIZED_ONCE = "unauthorized_once"
    """A 401 for a good token; nothing was done."""
    FORBIDDEN_ONCE = "forbidden_once"
    """A 403 that is no limit; nothing was done."""
    NOT_FOUND_ONCE = "not_found_once"
    """A 404 for what is there, on any route, /graphql too; nothing was done."""
    NODE_NOT_FOUND_ONCE = "node_not_found_once"
    """A replica does not know the node yet: NOT_FOUND for a field of GraphQL, 422 for a comment."""
    TOO_QUICKLY = "too_quickly"
    """A 422 for new content: "was submitted too quickly"; nothing was done."""
    NEW_TOKEN_LAG = "new_token_lag"  # noqa: S105 - the name of a fault
    """An installation's token is refused with 401 until it is `seconds` old, at most."""
    SLOW = "slow"
    """The reply takes `seconds` longer; the request is carried out before that."""
    UNLABEL = "unlabel"
    """Another bot removes a label that was just added."""
    RESOURCE_LIMITS = "resource_limits"
    """GraphQL gives up a costly document, with a part of its data: see `Cut`."""
    RATE_LIMIT = "rate_limit"
    """GraphQL's newer refusal, which the headers about the budget need not confirm."""
    FORBIDDEN_NODE = "forbidden_node"
    """GraphQL shows an issue to nobody with this token: null, and an error beside the others."""
    HIDDEN_COMMENT = "hidden_comment"
    """Comments of `author`, whose account is flagged, are in counts, and in others' lists not."""
    LABEL_CASE = "label_case"
    """GraphQL finds labels, and issues by labels, only by the exact spelling."""
    UNKNOWN_FIELD = "unknown_field"
    """An older server: a GraphQL document with the field `containing` is not run."""


class Cut(StrEnum):
    """What is left of a document that GraphQL gave up, and where its errors point."""

    DEEP = "deep"
    """The entries of every list are null; an error for each, at its path."""
    BUBBLED = "bubbled"
    """The first level is null; the error's path is deep."""
    PREFIX = "prefix"
    """The lists that may be null are null; one error, at the first level."""
    PATHLESS = "pathless"
    """The same, and the error has no path."""


@dataclass(frozen=True, slots=True)
class Fault:
    wrong: Wrong
    chance: float = 1.0
    kind: str = ""
    """A regular expression that is searched in the request's kind; empty fits all."""
    containing: str = ""
    """A text that the request's body contains."""
    login: str = ""
    """Only the requests of this account."""
    seconds: tuple[float, float] = (1.0, 1.0)
    """The least and the most."""
    count: int = 1
    status: int = 502
    label: str = ""
    """With `unlabel`: a regular expression that is searched in the label's name."""
    cut: Cut = Cut.DEEP
    """With `resource_limits`."""
    nodes: int = 0
    """With `resource_limits`: only documents that ask for so many entries at least."""
    number: int | None = None
    """With `forbidden_node`: only the issue with this number."""
    author: str = ""
    """With `hidden_comment`: whose comments."""
    times: int | None = None
    """At most this many times; None: no limit, and once if the fault's name ends with `ONCE`."""
    after: int = 0
    """So many of these requests pass before the first is struck."""

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> "Fault":
        seconds = given.get("seconds", (1.0, 1.0))
        both = (seconds, seconds) if isinstance(seconds, int | float) else tuple(seconds)
        cut = Cut(given.get("cut", Cut.DEEP))
        return cls(**{**given, "wrong": Wrong(given["wrong"]), "seconds": both, "cut": cut})


@dataclass(frozen=True, slots=True)
class Asked:
    """The request that this thread works on."""

    kind: str
    body: bytes
    login: str


STRAY = {
    Wrong.UNAUTHORIZED_ONCE: (401, "Bad credentials"),
    Wrong.FORBIDDEN_ONCE: (403, "Resource not accessible by integration"),
    Wrong.NOT_FOUND_ONCE: (404, "Not Found"),
}
"""The faults that refuse any request without a reason: status and message."""
_ONCE = (*STRAY, Wrong.NODE_NOT_FOUND_ONCE)
_OF_READINGS = (Wrong.STALE, Wrong.SHORT, Wrong.HIDDEN_COMMENT)
_asked: ContextVar[Asked | None] = ContextVar("asked", default=None)
OTHER_BOT = "tidy-labels[bot]"


class Faults:
    def __init__(self, seed: int = 0) -> None:
        self._lock = threading.Lock()
        self._dice = Random(seed)
        self._faults: list[Fault] = []
        self._fresh: list[tuple[Issue, Label]] = []

    def add(self, *faults: Fault) -> None:
        with self._lock:
            self._faults += faults

    def set(self, faults: Iterable[Fault], *, seed: int | None = None) -> None:
        with self._lock:
            self._faults = list(faults)
            if seed is not None:
                self._dice = Random(seed)

    def clear(self) -> None:
        self.set(())

    def told(self) -> list[dict[str, Any]]:
        with self._lock:
            return [asdict(fault) for fault in self._faults]

    @property
    def of_readings(self) -> bool:
        """Whether two reads of the same world may differ."""
        with self._lock:
            return any(one.wrong in _OF_READINGS for one in self._faults)

    # per request

    def begin(self, asked: Asked | None) -> None:
        """From here on this thread works on that request; None: on no client's request."""
        _asked.set(asked)

    def strikes(
        self,
        wrong: Wrong,
        label: str | None = None,
        *,
        nodes: int | None = None,
        number: int | None = None,
    ) -> Fault | None:
        """The fault that strikes the current request, if any; it then counts as happened.

        `label`, `nodes`, `number`: of what the request is about to touch.
        """
        asked = _asked.get()
        if asked is None or not self._faults:
            return None
        with self._lock:
            for place, fault in enumerate(self._faults):
                meant = (
                    (label is None or re.search(fault.label, label) is not None)
                    and (nodes is None or nodes >= fault.nodes)
                    and (number is None or fault.number in (None, number))
                )
                if fault.wrong is wrong and meant and _fits(fault, asked) and self._rolls(fault):
                    self._spend(place, fault)
                    return fault
        return None

    def seconds(self, fault: Fault) -> float:
        with self._lock:
            return self._dice.uniform(*fault.seconds)

    # hooks of the state

    def lag(self) -> timedelta:
        fault = self.strikes(Wrong.LAG)
        return timedelta() if fault is None else timedelta(seconds=self.seconds(fault))

    def reading(self, view: View) -> View:
        stale, short = self.strikes(Wrong.STALE), self.strikes(Wrong.SHORT)
        if stale and view.at is not None:
            view = replace(view, at=view.at - timedelta(seconds=self.seconds(stale)))
        if (hidden := self.strikes(Wrong.HIDDEN_COMMENT)) is not None:
            asked = _asked.get()
            if asked is None or asked.login.lower() != hidden.author.lower():
                view = replace(view, hidden=hidden.author.lower())
        if self.strikes(Wrong.LABEL_CASE) is not None:
            view = replace(view, exact_labels=True)
        return view if short is None else replace(view, short_by=short.count)

    def stray(self) -> tuple[int, str] | None:
        """The status and message by which the current request is refused for no reason."""
        return next((told for wrong, told in STRAY.items() if self.strikes(wrong)), None)

    def meets(self, wrong: Wrong) -> bool:
        return self.strikes(wrong) is not None

    def new_token_lag_s(self) -> float:
        """Up to which age an installation's token may be refused."""
        with self._lock:
            lags = [one.seconds[1] for one in self._faults if one.wrong is Wrong.NEW_TOKEN_LAG]
        return max(lags, default=0.0)

    def forbids(self, number: int) -> bool:
        return self.strikes(Wrong.FORBIDDEN_NODE, number=number) is not None

    def hear(self, happening: Happening) -> None:
        """Remember labels that the other bot removes after the reply."""
        issue, label = happening.issue, happening.label
        if happening.action != "labeled" or issue is None or label is None:
            return
        if happening.sender == OTHER_BOT:
            return
        if self.strikes(Wrong.UNLABEL, label.name):
            with self._lock:
                self._fresh.append((issue, label))

    def labels_to_drop(self) -> list[tuple[Issue, Label]]:
        with self._lock:
            fresh, self._fresh = self._fresh, []
        return fresh

    def _rolls(self, fault: Fault) -> bool:
        if fault.after:
            self._faults[self._faults.index(fault)] = replace(fault, after=fault.after - 1)
            return False
        return fault.chance >= 1 or self._dice.random() < fault.chance

    def _spend(self, place: int, fault: Fault) -> None:
        times = 1 if fault.times is None and fault.wrong in _ONCE else fault.times
        if times is None:
            return
        if times <= 1:
            del self._faults[place]
        else:
            self._faults[place] = replace(fault, times=times - 1)


def _fits(fault: Fault, asked: Asked) -> bool:
    return (
        re.search(fault.kind, asked.kind) is not None
        and fault.containing.encode() in asked.body
        and (not fault.login or fault.login.lower() == asked.login.lower())
    )
