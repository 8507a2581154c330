"""GitHub as a tracker: on the fake with its own clock, over REST alone, and on `emulate`.

On the fake, time is virtual: `advance` moves the server's clock. Nobody's limits are kept to, so
that the suite need not wait for them; that they are kept is tested elsewhere.
"""

import threading
from contextlib import ExitStack, contextmanager
from math import ceil

from tests.github.hubs import Hub, transport_to
from tests.servers import emulate

from dibs.adapters.github.client import Purpose, Transport
from dibs.adapters.github.tracker import GithubTracker
from dibs.adapters.system import SystemClock
from dibs.core.durations import REFUSED
from dibs.core.ids import LocalTime
from dibs.testing.clock import FakeClock
from dibs.testing.conformance import NotApplicable, TrackerHarness

from .harnesses import CommentsHarness


class Stranger:
    """Reads as the tracker does, and comments without a tracker: that one refuses to be nobody."""

    def __init__(self, hub: Hub) -> None:
        self.read = hub.client("mallory").read
        self._transport = hub.transport("mallory")

    def comment(self, issue, body):
        path = f"/repos/{issue.repo}/issues/{issue.key}/comments"
        self._transport.rest("POST", path, purpose=Purpose.CLAIM, wanted={"body": body})


class HubHarness(TrackerHarness):
    def __init__(self, hub: Hub) -> None:
        super().__init__(hub.client())
        self._hub = hub
        self._second = hub.client("colleague")

    def another(self):
        return self._second

    def advance(self, seconds: float) -> None:
        self._hub.clock.advance(seconds)

    def outlast_doubt(self) -> None:
        self.advance(REFUSED.pause_s)

    def stranger(self):
        return Stranger(self._hub)

    def cut_off(self):
        self._hub.hub.close()
        return self.tracker


@contextmanager
def github_tracker():
    with ExitStack() as opened:
        yield HubHarness(Hub(opened))


@contextmanager
def github_tracker_over_rest():
    with ExitStack() as opened:
        yield HubHarness(Hub(opened, graphql=False))


# On a server that we did not write


class TakesTurns(Transport):
    """One request at a time: emulate loses labels and counts of comments when two overlap."""

    turn = threading.Lock()

    def rest(self, *args, **options):
        with self.turn:
            return super().rest(*args, **options)


class Ahead(SystemClock):
    """The machine's clock, set forward by hand."""

    ahead_s = 0.0

    def now(self):
        return LocalTime(super().now() + self.ahead_s)


class EmulateHarness(TrackerHarness):
    """It has no permissions, and milliseconds in its times, which the suite does not mind."""

    def __init__(self, opened: ExitStack) -> None:
        self._server = emulate.single()
        self._repository = self._server.repository()
        self._opened, self._clock = opened, Ahead()
        super().__init__(self._client())
        self._second = self._client()

    def _client(self):
        transport = transport_to(self._server.url, emulate.TOKEN, self._clock, kind=TakesTurns)
        self._opened.callback(transport.close)
        return GithubTracker(transport, self._repository, graphql=False)

    def another(self):
        return self._second

    def advance(self, seconds: float) -> None:
        """Its clock is the machine's."""
        clock = SystemClock()
        until = clock.now() + seconds
        while (left_s := until - clock.now()) > 0:
            clock.wait(threading.Event(), left_s)

    def outlast_doubt(self) -> None:
        self._clock.ahead_s += REFUSED.pause_s

    def tick(self) -> None:
        """A second and a little, since it does not wait for whole ones."""
        self.advance(1.01)

    def settle(self) -> None:
        """It has no replicas."""

    def stranger(self):
        raise NotApplicable("emulate asks nobody for permission")

    def cut_off(self):
        raise NotApplicable("emulate is shared with the other checks, and stays up")


@contextmanager
def github_tracker_on_emulate():
    with ExitStack() as opened:
        yield EmulateHarness(opened)


# Leases in comments


class CommentsOnGithub(CommentsHarness):
    sequences = 3

    def __init__(self, opened: ExitStack) -> None:
        self._hub = Hub(opened)
        trackers = (self._hub.client(), self._hub.client("colleague"))
        super().__init__(trackers, self._advance_whole, FakeClock)

    def _advance_whole(self, seconds):
        """Leases run on whole seconds there."""
        self._hub.clock.advance(ceil(seconds))

    def restart(self):
        self._trackers = (self._hub.client(), self._hub.client("colleague"))
        return super().restart()

    def cut_off(self):
        self._hub.hub.close()
        return self.store


@contextmanager
def comments_on_github():
    with ExitStack() as opened:
        yield CommentsOnGithub(opened)
