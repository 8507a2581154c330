"""A project whose backlog is on a fake GitHub, and the program run there as users run it.

The workers are real processes. What they did is read off the fake itself, off what its counts say,
and off the files that handlers write.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from tests.acceptance.harness import Child, Project, Reply, until

from dibs.core.card import Card, parse_mark
from dibs_lab.fakehub import FakeHub, Limits, Permission
from dibs_lab.fakehub.seeding import seed

REPOSITORY = "acme/shop"
FLEET, COLLEAGUE, STRANGER = "fleet", "ann", "mallory"
TTL_S = 15
# Whoever finds the file locked is on the issue at the same time as somebody else.
ALONE = 'exec 9>"held-${DIBS_ISSUE##*#}"; flock -n 9 || echo "$DIBS_ISSUE $DIBS_RUN" >> double; '
QUICK = ALONE + 'echo "$DIBS_ISSUE $DIBS_RUN" >> ledger'
GATED = (
    ALONE + 'echo "$DIBS_ISSUE $DIBS_RUN" >> began; '
    'while [ ! -e "go-${DIBS_ISSUE##*#}" ] && [ ! -e go ]; do sleep 0.05; done; '
    'echo "$DIBS_ISSUE $DIBS_RUN" >> ledger'
)
_CONFIGURATION = """
tracker = "github:{repository}"
preset = "none"
ttl = "{ttl_s}s"
settle = "50ms"

[github]
pace = false

[worker]
poll = "500ms"
stop_grace = "2s"

[[stage]]
name = "ready"
next = "review"
attempts = 9
backoff = "100ms"
run = '''{handler}'''

[[stage]]
name = "review"
"""


class HubProject(Project):
    """One folder, one token, one repository."""

    def __init__(self, root: Path, hub: FakeHub, repository: str = REPOSITORY) -> None:
        super().__init__(root)
        self.hub = hub
        self.repository = repository
        self.also: dict[str, str] = {}
        """More of the environment, for every process from here on."""

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        ours = {
            "GITHUB_API_URL": self.hub.url,
            "GITHUB_TOKEN": f"{FLEET}-token",
            "DIBS_STATE": str(self.root / "state"),
        }
        return super().environment({**ours, **self.also, **(extra or {})})

    def begin_with(self, handler: str = QUICK, *, ttl_s: int = TTL_S) -> "HubProject":
        """The settings, and whatever `dibs init` makes."""
        self.configure(
            _CONFIGURATION.format(repository=self.repository, ttl_s=ttl_s, handler=handler)
        )
        reply = self.dibs("init")
        assert reply.code == 0, reply.err
        return self

    def backlog(self, count: int) -> list[int]:
        """So many issues more, as if people had opened them; their numbers."""
        before = set(self.numbers())
        issues = [{"title": f"issue {at}", "labels": ["stage:ready"]} for at in range(count)]
        seed(self.hub.state, {"repositories": [{"full_name": self.repository, "issues": issues}]})
        return sorted(set(self.numbers()) - before)

    def work(self, *words: str, within_s: float = 80) -> Reply:
        """A worker that leaves when nothing is left to do or to wait for."""
        return self.start("work", "work", "--drain", *words).wait(within_s).quiet()

    def holding(self, number: int, *words: str, name: str = "holder") -> Child:
        """A worker in the middle of its handler on that issue."""
        child = self.start(name, "work", "--name", name, *words)
        until(lambda: self.runs_on(number, "began"), f"work on #{number}", within_s=60)
        return child

    def let_go(self, number: int | None = None) -> None:
        (self.root / ("go" if number is None else f"go-{number}")).touch()

    def pass_time(self, seconds: float) -> None:
        """On the server, whose clock alone counts for leases."""
        self.hub.state.clock_offset += timedelta(seconds=seconds)

    # What is there

    def _issues(self):
        state = self.hub.state
        return state.primary().issues(state.named(self.repository).id)

    def numbers(self) -> list[int]:
        return sorted(one.number for one in self._issues())

    def issue(self, number: int):
        state = self.hub.state
        return state.primary().issue(state.named(self.repository).id, number)

    def label_names(self, number: int) -> set[str]:
        view = self.hub.state.primary()
        return {label.name for label in view.labels_on(self.issue(number))}

    def comments(self, number: int):
        return self.hub.state.primary().comments(self.issue(number).id)

    def our_cards(self, number: int) -> list[Card]:
        marks = (parse_mark(one.body) for one in self.comments(number) if one.author == FLEET)
        return [mark for mark in marks if isinstance(mark, Card)]

    def runs_on(self, number: int, name: str = "ledger") -> list[str]:
        """Of the handlers that wrote a line about the issue into that file."""
        told = [line.split() for line in self.lines(name)]
        return [run for issue, run in told if issue.endswith(f"#{number}")]

    def acting(self, login: str = COLLEAGUE):
        """What somebody does in a browser."""
        state = self.hub.state
        return state.acting(state.viewer(f"{login}-token"))

    def control(self) -> int:
        return next(
            one.number for one in self._issues() if "dibs:control" in self.label_names(one.number)
        )

    def assert_worked_once(self, *numbers: int) -> None:
        """To their end, by one handler each and one ending each, and never by two at one time."""
        assert self.lines("double") == []
        for number in numbers:
            assert self.label_names(number) == {"stage:review"}, number
            assert len(self.runs_on(number)) == 1, (number, self.lines())
            endings = [one.ending for one in self.our_cards(number) if one.ending]
            advanced = [one for one in endings if one.outcome == "advanced"]
            assert len(advanced) == 1, (number, endings)

    @contextmanager
    def counted(self) -> Iterator[dict[str, int]]:
        """What the server was asked meanwhile, by kind, once it is over."""
        self.hub.counts.reset()
        counted: dict[str, int] = {}
        yield counted
        counted.update(self.hub.counts.told()["by_kind"])


@contextmanager
def project_on_a_hub(root: Path, **options: object) -> Iterator[HubProject]:
    with FakeHub(limits=Limits.off(), **options) as hub:
        hub.repository(REPOSITORY)
        hub.user(FLEET, {REPOSITORY: Permission.WRITE})
        hub.user(COLLEAGUE, {REPOSITORY: Permission.ADMIN})
        hub.user(STRANGER)
        made = HubProject(root / "project", hub)
        try:
            yield made
        finally:
            made.end()
