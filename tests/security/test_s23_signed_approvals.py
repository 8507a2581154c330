"""S23: a writer without the key opens a gate of a fleet that signs its marks.

Actor: a person or a program with write access to the repository, or who has stolen a token of the
fleet; not the signing key. Attack: after the text of an approved issue was changed, it posts an
approval of its own, so that the worker's handler gets the new text; or it puts the gate's label on,
copies approvals from elsewhere, or moves the issue by its labels. Wall: approvals are signed marks,
so a strict fleet believes no unsigned one; and `gate = "signed"` opens by a signed approval of this
text on this issue alone (`core/eligibility.py`).
"""

import json
import sqlite3
from collections.abc import Iterator

import httpx
import pytest

from dibs_lab.fakehub import FakeHub, Limits, Permission

from .conftest import SECRETS, Victim

REPOSITORY = "acme/shop"
GATES = ("approval", "signed")


def config(gate: str, tracker: str = f"github:{REPOSITORY}") -> str:
    """The stage with the gate is the one whose handler does what must not happen unapproved."""
    handler = "cat > worked.$DIBS_ATTEMPT"
    return (
        f'tracker = "{tracker}"\npreset = "none"\nsettle = "50ms"\n[github]\npace = false\n'
        f'[[stage]]\nname = "deploy"\ngate = "{gate}"\nrun = "{handler}"\n'
        'next = ["done", "again"]\n'
        '[[stage]]\nname = "again"\nnext = "deploy"\n[[stage]]\nname = "done"\n'
    )


class Repository:
    """A repository with an issue behind the gate, a fleet with the key, and a writer without."""

    def __init__(self, victim: Victim, hub: FakeHub) -> None:
        self.victim = victim
        self._address = f"{hub.url}/repos/{REPOSITORY}"
        victim.env |= {"GITHUB_API_URL": hub.url, "GITHUB_TOKEN": "fleet-token"}
        self.number = 0

    def begin(self, gate: str) -> None:
        self.victim.configure(config(gate))
        done = self.victim.dibs("init")
        assert done.returncode == 0, done.stderr
        self.number = self.add("pay ann")

    def add(self, title: str) -> int:
        made = self.victim.dibs("add", title, "--stage", "deploy", "--json")
        return int(json.loads(made.stdout)["data"][0]["issue"].rpartition("#")[2])

    def approve(self, number: int | None = None) -> None:
        approved = self.victim.dibs("approve", str(number or self.number))
        assert approved.returncode == 0, approved.stderr

    def writes(self, verb: str, path: str, **what: object) -> httpx.Response:
        """The writer's request to the tracker, without dibs."""
        proof = {"Authorization": "Bearer writer-token"}
        address = f"{self._address}/issues{path}"
        reply = httpx.request(verb, address, json=what or None, headers=proof, timeout=30)
        assert reply.is_success, reply.text
        return reply

    def approves_unsigned(self) -> None:
        """The writer's `dibs approve`, which has no key."""
        own = {"GITHUB_TOKEN": "writer-token", "DIBS_SIGNING_KEY": "", "DIBS_SIGNING": ""}
        self.victim.configure(config("approval"))
        approved = self.victim.dibs("approve", str(self.number), **own)
        assert approved.returncode == 0, approved.stderr

    def labels(self, *names: str) -> None:
        self.writes("PUT", f"/{self.number}/labels", labels=list(names))

    def comments(self, number: int) -> list[str]:
        return [one["body"] for one in self.writes("GET", f"/{number}/comments").json()]

    def opened(self, gate: str) -> bool:
        """Whether a worker of the fleet starts the handler; and `why` agrees with it."""
        self.victim.configure(config(gate))
        before = len(list(self.victim.folder.glob("worked.*")))
        why = self.victim.dibs("why", str(self.number)).stdout
        # GitHub's lists lag behind, and for its settle an issue may just have left the stage.
        for _ in range(1 if "GATE_SHUT" in why else 120):
            self.victim.dibs("work", "--once", "--stage", "deploy")
            if len(list(self.victim.folder.glob("worked.*"))) > before:
                assert "GATE_SHUT" not in why
                return True
        assert "GATE_SHUT" in why, why
        return False


@pytest.fixture
def repository(victim: Victim) -> Iterator[Repository]:
    with FakeHub(limits=Limits.off()) as hub:
        hub.repository(REPOSITORY)
        hub.user("fleet", {REPOSITORY: Permission.WRITE})
        hub.user("writer", {REPOSITORY: Permission.WRITE})
        yield Repository(victim, hub)


def test_an_unsigned_approval_opens_no_gate_again(repository: Repository) -> None:
    repository.begin("approval")
    repository.approve()
    repository.writes("PATCH", f"/{repository.number}", body="and mallory")
    repository.approves_unsigned()
    assert not repository.opened("approval")


def test_control_a_signed_approval_opens_it_again(repository: Repository) -> None:
    repository.begin("approval")
    repository.approve()
    repository.writes("PATCH", f"/{repository.number}", body="and mallory")
    repository.approve()
    assert repository.opened("approval")


def test_control_a_lenient_fleet_believes_the_unsigned_approval(repository: Repository) -> None:
    repository.victim.env["DIBS_SIGNING"] = "lenient"
    repository.begin("approval")
    repository.approve()
    repository.writes("PATCH", f"/{repository.number}", body="and mallory")
    repository.approves_unsigned()
    assert repository.opened("approval")


def forged(repository: Repository) -> None:
    """All that a stolen token allows: the label, an approval, copies of signed ones."""
    other = repository.add("harmless")
    repository.approve(other)
    signed = [body for body in repository.comments(other) if body.startswith("<!-- approved")]
    for body in signed:
        repository.writes("POST", f"/{repository.number}/comments", body=body)
    repository.approves_unsigned()
    repository.writes("DELETE", f"/{other}/labels/stage:deploy")  # the worker's next is ours
    repository.labels("stage:deploy", "approved")


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("signing", ["strict", "lenient"])
def test_a_signed_gate_opens_by_no_token_and_the_other_does(
    repository: Repository, gate: str, signing: str
) -> None:
    """The control is the same attack on a gate that asks for no signature."""
    repository.victim.env["DIBS_SIGNING"] = signing
    repository.begin(gate)
    forged(repository)
    assert repository.opened(gate) == (gate == "approval")


@pytest.mark.parametrize("gate", GATES)
def test_a_signed_approval_is_good_for_one_pass(repository: Repository, gate: str) -> None:
    """The writer sends the issue through again, with a copy of the approval that was used."""
    repository.begin(gate)
    repository.approve()
    assert repository.opened(gate)
    signed = [b for b in repository.comments(repository.number) if b.startswith("<!-- approved")]
    (repository.victim.folder / "worked.1").unlink()
    repository.writes("POST", f"/{repository.number}/comments", body=signed[0])
    repository.labels("stage:deploy", "approved")
    assert repository.opened(gate) == (gate == "approval")


def test_the_person_with_the_key_opens_it_and_an_edit_shuts_it(repository: Repository) -> None:
    repository.begin("signed")
    repository.approve()
    repository.writes("PATCH", f"/{repository.number}", title="pay mallory")
    assert not repository.opened("signed")
    repository.approve()
    assert repository.opened("signed")
    assert json.loads((repository.victim.folder / "worked.1").read_text())["title"] == "pay mallory"


# On the embedded tracker


def test_code_of_a_handler_opens_no_signed_gate_of_the_embedded_tracker(victim: Victim) -> None:
    """It may write the database, and clear its environment; it has no key."""
    attack = (
        "env -u DIBS_RUN dibs approve 1; env -u DIBS_RUN dibs label 1 --add approved; "
        "DIBS_SIGNING_KEY=fleet:forged0000000000000 env -u DIBS_RUN dibs approve 1"
    )
    embedded = config("signed", "sqlite:.dibs/backlog.db")
    stage = f"[[stage]]\nname = 'first'\nnext = 'done'\nrun = '{attack}'\n"
    victim.configure(embedded + stage)
    assert victim.dibs("init").returncode == 0
    victim.dibs("add", "pay ann", "--stage", "deploy")
    victim.dibs("add", "attack", "--stage", "first")
    victim.dibs("work", "--once", "--stage", "first")
    with sqlite3.connect(victim.folder / ".dibs" / "backlog.db") as database:
        posted = [body for (body,) in database.execute("SELECT body FROM comments")]
    assert [body for body in posted if body.startswith("<!-- approved")], "the attack did its part"
    shown = json.loads(victim.dibs("show", "1", "--json").stdout)["data"]
    assert "approved" in shown["labels"]
    victim.dibs("work", "--once", "--stage", "deploy")
    assert "GATE_SHUT" in victim.dibs("why", "1").stdout
    assert not list(victim.folder.glob("worked.*"))
    assert victim.dibs("approve", "1").returncode == 0  # control: with the key
    victim.dibs("work", "--once", "--stage", "deploy")
    assert list(victim.folder.glob("worked.*"))


def test_without_a_key_a_signed_gate_is_an_error_of_the_settings(victim: Victim) -> None:
    victim.configure(config("signed", "sqlite:.dibs/backlog.db"))
    victim.dibs("init")
    victim.dibs("add", "pay ann", "--stage", "deploy")
    for words in (("approve", "1"), ("work", "--once", "--stage", "deploy")):
        refused = victim.dibs(*words, "--json", DIBS_SIGNING_KEY="")
        assert json.loads(refused.stdout)["error"]["code"] == "BAD_CONFIGURATION"
        assert "DIBS_SIGNING_KEY" in refused.stdout
        assert SECRETS["DIBS_SIGNING_KEY"] not in refused.stdout
    doctor = victim.dibs("doctor", "--json", DIBS_SIGNING_KEY="")
    findings = json.loads(doctor.stdout)["data"]["findings"]
    assert [one["level"] for one in findings if one["check"] == "gates"] == ["fail"]
    listed = victim.dibs("show", "1", DIBS_SIGNING_KEY="")
    assert listed.returncode == 0, "who only reads needs no key: handlers have none"
