"""A fake GitHub on virtual time, and clients of it that keep to nobody's limits.

What a fleet has: a repository, accounts that may write and one that may not. The server's clock
moves when it is told to, so no test waits.
"""

from contextlib import ExitStack, contextmanager
from datetime import timedelta

from dibs.adapters.github.auth import Token, api_at
from dibs.adapters.github.client import Transport
from dibs.adapters.github.limits import Limits as Paces
from dibs.adapters.github.tracker import GithubTracker
from dibs.adapters.system import SystemClock
from dibs.core.ids import LocalTime
from dibs.testing.clock import FakeClock
from dibs_lab.fakehub import FakeHub, Limits, Permission

from .tiny import memory_ledger

REPOSITORY = "acme/shop"
UNPACED = Paces.none()


def transport_to(url, token, clock=None, *, kind=Transport):
    clock = clock or SystemClock()
    ledger = memory_ledger(clock, UNPACED)
    return kind(api_at(url), Token(token, "the test"), ledger, clock)


class PushedClock:
    """A local clock whose sleeps move the server's time too, so that what lags arrives."""

    def __init__(self, hub):
        self._hub = hub
        self._local_s = 1000.0

    def now(self):
        return LocalTime(self._local_s)

    def sleep(self, seconds):
        self._local_s += seconds
        self._hub.clock.advance(seconds)


class Hub:
    """A fake GitHub with a repository, two accounts that may write and one that may not."""

    def __init__(self, opened: ExitStack, *, graphql: bool = True) -> None:
        self.clock = FakeClock(grain=timedelta(seconds=1))
        self.hub = opened.enter_context(
            FakeHub(limits=Limits.off(), clock=self.clock.server_now, graphql=graphql)
        )
        self._opened = opened
        self._graphql = graphql
        for login in ("fleet", "colleague", "mallory"):
            self.hub.user(login)
        self.repository(REPOSITORY)

    @property
    def state(self):
        return self.hub.state

    def repository(self, name, *, private=False):
        """One more, that the fleet may write to."""
        made = self.hub.repository(name, private=private)
        for login in ("fleet", "colleague"):
            self.state.grant(name, login, Permission.WRITE)
        return made

    def transport(self, login="fleet", *, token="", clock=None):
        made = transport_to(self.hub.url, token or f"{login}-token", clock or self.clock)
        self._opened.callback(made.close)
        return made

    def client(self, login="fleet", *, repository=REPOSITORY, token="", clock=None, **options):
        options = {"graphql": self._graphql, **options}
        transport = self.transport(login, token=token, clock=clock)
        return GithubTracker(transport, repository, **options)

    def acting(self, login="colleague"):
        """What somebody does in a browser: it is in no count."""
        return self.state.acting(self.state.viewer(f"{login}-token"))

    def issue(self, number, repository=REPOSITORY):
        return self.state.view().primary.issue(self.state.named(repository).id, number)

    @contextmanager
    def counted(self):
        """What was asked of the server meanwhile, by kind, once it is over."""
        self.hub.counts.reset()
        counted: dict[str, int] = {}
        yield counted
        counted.update(self.hub.counts.told()["by_kind"])

    @property
    def points(self):
        """What was spent of the hour's budgets since the last `counted` began."""
        return sum(self.hub.counts.told()["points"].values())
