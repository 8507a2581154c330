"""A public repository on the fake GitHub, with a fleet, a maintainer and a stranger.

The program runs as a user runs it, from a folder with a dibs.toml; the stranger acts in a browser.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from tests.in_process import run_in_process

from dibs.frontends.cli.main import run
from dibs_lab.fakehub import FakeHub, Limits, Permission

from .conftest import Victim

REPOSITORY = "acme/shop"
FLEET, MAINTAINER, STRANGER = "fleet", "ann", "mallory"
_SETTINGS = """
tracker = "github:acme/shop"
preset = "none"
ttl = "20s"
settle = "0s"
{top}

[github]
pace = false

[people]
{people}

[worker]
poll = "300ms"

[[stage]]
name = "ready"
next = ["review", "done"]
attempts = 2
backoff = "100ms"
run = '''{handler}'''

[[stage]]
name = "review"
follows = "pull-request"
next = ["done", "ready"]
back = "ready"

[[stage]]
name = "done"
closes = true
"""
KEEP_INPUT = 'cat > "input-${DIBS_ISSUE##*#}.json"'


class PublicProject:
    """One folder whose backlog is a public repository."""

    permission = Permission

    def __init__(self, victim: Victim, hub: FakeHub) -> None:
        self.victim, self.hub = victim, hub
        victim.env |= {"GITHUB_API_URL": hub.url, "GITHUB_TOKEN": f"{FLEET}-token"}

    def configure(self, *, people: str = "", top: str = "", handler: str = KEEP_INPUT) -> None:
        self.victim.configure(_SETTINGS.format(people=people, top=top, handler=handler))
        self.say("init")

    def say(self, *words: str) -> str:
        """The output of a command; in this process, unless another program is to be tested."""
        victim = self.victim
        if os.environ.get("DIBS_UNDER_TEST"):
            ran: Any = victim.dibs(*words)
        else:
            ran = run_in_process(run, words, cwd=victim.folder, env=victim.env)
        assert ran.stdout, ran.stderr
        output: str = ran.stdout
        return output

    def acting(self, login: str) -> Any:
        """What somebody does in a browser."""
        return self.hub.state.acting(self.hub.state.viewer(f"{login}-token"))

    @property
    def repository(self) -> Any:
        return self.hub.state.named(REPOSITORY)

    def issue(self, number: int) -> Any:
        return self.hub.state.primary().issue(self.repository.id, number)

    def labels(self, number: int) -> set[str]:
        view = self.hub.state.primary()
        return {label.name for label in view.labels_on(self.issue(number))}

    def open_issue(self, by: str, title: str, body: str = "", *labels: str) -> int:
        """An issue of the account, with the labels that the maintainer puts on."""
        made = self.acting(by).create_issue(self.repository, title, body=body)
        if labels:
            self.acting(MAINTAINER).add_labels(made, labels)
        number: int = made.number
        return number

    def dibs(self, *words: str) -> Any:
        """The data of a command's JSON."""
        return json.loads(self.say("--json", *words))["data"]

    def codes(self, number: int) -> list[str]:
        """Why no worker picks the issue."""
        return [reason["code"] for reason in self.dibs("why", str(number))["reasons"]]

    def work(self) -> str:
        """A worker that leaves when nothing is left to do; its words."""
        ran = self.victim.dibs("work", "--drain", "--name", "w1")
        assert ran.returncode in (0, 3), ran.stderr
        return ran.stdout + ran.stderr

    def input_of(self, number: int) -> Any | None:
        """The handler's input, if the issue was worked."""
        file = self.victim.folder / f"input-{number}.json"
        return json.loads(file.read_text("utf-8")) if file.exists() else None

    def pass_time(self, seconds: float) -> None:
        """On the server's clock: the times of what happens there are whole seconds."""
        self.hub.state.clock_offset += timedelta(seconds=seconds)


@contextmanager
def public_project(victim: Victim) -> Iterator[PublicProject]:
    with FakeHub(limits=Limits.off()) as hub:
        hub.repository(REPOSITORY)
        hub.user(FLEET, {REPOSITORY: Permission.WRITE})
        hub.user(MAINTAINER, {REPOSITORY: Permission.ADMIN})
        hub.user(STRANGER)
        yield PublicProject(victim, hub)
