"""Where the published calls are made: a fake GitHub, an emulator that we did not write, and the
embedded tracker. Each is a folder with a dibs.toml, so nothing is called but what is published.
"""

from dataclasses import dataclass

from dibs.core.ids import IssueRef
from dibs.core.issue import Draft
from dibs.label_state.backlogs import backlog_of
from dibs.label_state.firings import held

SLUG, OWNER = "shop", "acme"


@dataclass
class Place:
    slug: str = SLUG

    @property
    def backlog(self):
        return backlog_of(self.slug)

    @property
    def services(self):
        return self.backlog.services

    @property
    def tracker(self):
        return self.services.tracker

    def ref(self, number):
        return self.backlog.ref(number)

    def issue(self, *labels, title="Prices are wrong"):
        """A person's, made in the tracker itself."""
        made = self.tracker.create(Draft(title, labels=frozenset(labels)))
        return int(made.ref.key)

    def read(self, number):
        return self.tracker.read(self.ref(number))

    def labels(self, number):
        return set(self.read(number).issue.labels)

    def bodies(self, number):
        """First lines: what machines read."""
        return [one.body.partition("\n")[0] for one in self.read(number).comments]

    def say(self, number, body):
        """Somebody with write access."""
        return self.tracker.comment(self.ref(number), body)

    def edit(self, number, *, add=(), remove=()):
        self.tracker.edit_labels(self.ref(number), add=add, remove=remove)

    def close(self, number):
        self.tracker.close(self.ref(number))


@dataclass
class HubPlace(Place):
    """A fake GitHub whose clock moves when it is told to."""

    hub: object = None
    repository: str = f"{OWNER}/{SLUG}"

    def pass_time(self, *, hours=0.0, seconds=0.0):
        self.hub.clock.advance(hours * 3600 + seconds)

    def counted(self):
        return self.hub.counted()

    def issue(self, *labels, title="Prices are wrong"):
        acting, repository = self.hub.acting(), self.hub.state.named(self.repository)
        return acting.create_issue(repository, title, labels=labels).number

    def _client(self, login):
        return self.hub.client(login, repository=self.repository)

    def read(self, number):
        return self._client("colleague").read(IssueRef(self.repository, str(number)))

    def say(self, number, body, *, login="colleague"):
        ref = IssueRef(self.repository, str(number))
        if login == "mallory":
            acting = self.hub.acting(login)
            return acting.create_comment(self.hub.issue(number, self.repository), body)
        return self._client(login).comment(ref, body)

    def edit(self, number, *, add=(), remove=()):
        self._client("colleague").edit_labels(
            IssueRef(self.repository, str(number)), add=add, remove=remove
        )


def let_all_go():
    """What the death of this process does to its claims: nobody renews them any more."""
    firings = list(held.values())
    held.clear()
    for firing in firings:
        if firing._supervision is not None:
            firing._supervision.stop()
