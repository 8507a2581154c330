"""Lists in pages over REST: walked to their end, and as they were at one moment.

GitHub counts pages from the front. What is deleted on one moves all behind it forward, so that a
walk may miss an entry that was there all the time, while the list's count agrees with what was
seen. So a walk of several pages counts only if all but the last are the same when they are asked
for again, which is free. That is a proof: an entry that was deleted never comes back and a new one
goes to the end, so a page that is the same twice was the same all the time between; all pages but
the last stood still while the last was read, and together they are the list of that moment. It is a
proof too if every page is still the one that was kept before the walk began. What is deleted or
added otherwise, also both, costs another round or the verdict, and never an entry.

A reply that says "unchanged" says nothing of further pages. A page that was full and the last one
is therefore asked for anew.
"""

from collections.abc import Callable, Mapping

import msgspec
from msgspec import Struct

from dibs.adapters.github.replies import Reply
from dibs.adapters.github.transport import Transport
from dibs.core.errors import Unavailable
from dibs.core.ids import LocalTime, ServerTime

PAGE = 100
_ROUNDS = 4
_MOST_PAGES = 1000

Ask = Callable[[str, Mapping[str, str] | None, bool], Reply]
"""A path or GitHub's own address, its parameters, and whether it must be sent anew."""


class _Page(Struct, frozen=True):
    path: str
    params: Mapping[str, str] | None
    reply: Reply


class Listed(Struct, frozen=True):
    bodies: tuple[bytes, ...]
    now: ServerTime
    """The server's time at which the list was this."""
    whole: bool
    """False if it had no end, or never stood still."""


class Pages:
    """Safe for many threads."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def listed(self, ask: Ask, path: str, params: Mapping[str, str]) -> Listed:
        for _ in range(_ROUNDS - 1):
            listed = self._once(ask, path, params)
            if listed.whole:
                return listed
        return self._once(ask, path, params)

    def _once(self, ask: Ask, path: str, params: Mapping[str, str]) -> Listed:
        started = self._transport.clock.now()
        pages, ended = self._walked(ask, path, params)
        first, last = pages[0].reply, pages[-1].reply
        bodies = tuple(page.reply.body for page in pages)
        if ended and all(_kept_before(started, page.reply) for page in pages):
            return Listed(bodies, first.now, whole=True)
        whole = ended and all(_same(ask, page) for page in pages[:-1])
        return Listed(bodies, last.now, whole=whole)

    def every(self, ask: Ask, path: str, params: Mapping[str, str]) -> tuple[bytes, ...]:
        """All pages, where nothing is decided by what a walk misses."""
        pages, _ = self._walked(ask, path, params)
        return tuple(page.reply.body for page in pages)

    def _walked(
        self, ask: Ask, path: str, params: Mapping[str, str] | None
    ) -> tuple[list[_Page], bool]:
        pages: list[_Page] = []
        while len(pages) < _MOST_PAGES:
            pages.append(_Page(path, params, whole_page(ask, path, params)))
            following = self._transport.follow(pages[-1].reply)
            if following is None:
                return pages, True
            path, params = following, None
        return pages, False


def whole_page(ask: Ask, path: str, params: Mapping[str, str] | None) -> Reply:
    """The page, and where the next one is if there is one by now."""
    reply = ask(path, params, False)
    outgrown = reply.unchanged and reply.next_page is None and _is_full(reply.body)
    return ask(path, params, True) if outgrown else reply


def _is_full(body: bytes) -> bool:
    try:
        return len(msgspec.json.decode(body, type=list[msgspec.Raw])) >= PAGE
    except msgspec.MsgspecError as flaw:
        raise Unavailable(f"GitHub answered something that it never does: {flaw}") from flaw


def _kept_before(started: LocalTime, reply: Reply) -> bool:
    return reply.kept_at is not None and reply.kept_at < started


def _same(ask: Ask, page: _Page) -> bool:
    return ask(page.path, page.params, False).body == page.reply.body
