"""Every fault of the fake at every request of a claim, a beat and an ending.

One worker meets the fault, once; another, of another account, tries the issue in the middle of the
first one's handler and works what the first left over. All in one thread and on virtual time.
"""

from datetime import timedelta

from msgspec.structs import replace
from tests.services.world import Process, World

from dibs.adapters.github.auth import AppInstallation, api_at
from dibs.adapters.github.client import Transport
from dibs.adapters.github.control import GithubControl
from dibs.adapters.github.tracker import GithubTracker
from dibs.frontends.cli.output import Exit
from dibs_lab.fakehub import Wrong

from .hubs import REPOSITORY, UNPACED, Hub
from .test_auth import PEM
from .test_stray_refusals import PUBLIC
from .tiny import memory_ledger

BOT = "fleet-bot[bot]"
MOST_REQUESTS = 60
RIDDEN_OUT = frozenset(Wrong) - {Wrong.SLOW}
DOCUMENTED = {Exit.DONE, Exit.ERROR, Exit.NOTHING, Exit.LIMITED, Exit.FORBIDDEN}


class NoThread:
    def join(self):
        pass


class OneThread:
    """Runs a job where it is started. Nobody renews: the handler does, and the test moves time."""

    def start(self, work, name):
        work()
        return NoThread()

    def start_within(self, seconds, work, name, otherwise):
        return NoThread()


class HubWorld(World):
    """A backlog on the fake GitHub, with its control issue; every process has its own transport."""

    def __init__(self, opened, *, by_app):
        super().__init__("comments")
        self.hub = Hub(opened)
        self.clock, self._opened = self.hub.clock, opened
        self.trusted = (BOT, "colleague") if by_app else ()
        self.app = self.hub.hub.install("fleet-bot", PUBLIC, REPOSITORY) if by_app else None
        self.settings = replace(self.settings, settle=timedelta(seconds=2))

    def _transport(self, login):
        if login != BOT:
            return self.hub.transport(login, clock=self.clock)
        app = AppInstallation(str(self.app.app.id), PEM, self.clock, repository=REPOSITORY)
        ledger = memory_ledger(self.clock, UNPACED)
        made = Transport(api_at(self.hub.hub.url), app, ledger, self.clock)
        self._opened.callback(made.close)
        return made

    def process(self, name, **options):
        looks = {stage.label: stage.look for stage in self.pipeline.stages} if False else {}
        self.tracker = GithubTracker(
            self._transport(name), REPOSITORY, looks=looks, trusted=self.trusted, minds_people=True
        )
        control = GithubControl([self.tracker], self.clock)
        self.pauses = self.granters = control
        return Process(self, name, **options)
