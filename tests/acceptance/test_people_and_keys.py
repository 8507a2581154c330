"""Through the real program on SQLite: other tools' markers, signed marks, and the doctor."""

from pathlib import Path

import pytest

from dibs.adapters.sqlite.database import Database
from dibs.adapters.sqlite.tracker import SqliteTracker
from dibs.core.ids import IssueRef
from dibs.core.signing import Signed, parse_keyring, verify

from .harness import LEASES, Project, pipeline

MARKER = "<!-- agent-claim:codename=lucius firing_id=f1 ts=2026-05-01T19:42:33Z -->"
RELEASE = "<!-- agent-release:codename=lucius firing_id=f1 outcome=success ts=x -->"
OLD, NEW = "old:sesame, no comma here".replace(",", ""), "new:a secret of this very day"
KEY = {"DIBS_SIGNING_KEY": OLD}


def say(project: Project, body: str, issue: str = "1") -> None:
    """A comment by somebody who may write, without dibs and without a key."""
    database = Database(project.file)
    try:
        SqliteTracker(database, author="other").comment(IssueRef("", issue), body)
    finally:
        database.close()


def bodies(project: Project) -> list[tuple[str, str]]:
    rows = project.sql("SELECT number, body FROM comments ORDER BY id")
    return [(str(number), body) for number, body in rows]


# People first


def test_another_tools_marker_keeps_workers_off_and_is_explained(project: Project) -> None:
    project.begin(pipeline(), 1)
    say(project, MARKER)
    why = project.dibs("why", "1", "--json").data
    [reason] = why["reasons"]
    assert reason["code"] == "FOREIGN_CLAIM"
    assert "lucius" in reason["text"]
    assert "comment 1" in reason["remedy"]
    assert reason["until"]
    assert project.dibs("claim", "1").code == 4
    assert project.dibs("work", "--drain").code in (0, 3)
    assert project.events("claimed") == []

    assert project.dibs("take", "1").code == 0, "a person may"
    assert project.dibs("give-back", "1").code == 0
    say(project, RELEASE)
    project.drain()
    project.assert_drained(1)


def test_what_counts_as_somebodys_is_a_setting(project: Project) -> None:
    project.begin(pipeline(top="[people]\nmarkers = false\nfleet = ['Bot']"), 1)
    say(project, MARKER)
    assert project.dibs("config", "show", "--json").data["people"] == {
        "assignees": True,
        "delegates": True,
        "pulls": "writers",
        "text": "released",
        "markers": False,
        "fleet": ["bot"],
        "marker_ttl": "4h",
    }
    project.drain()
    project.assert_drained(1)


# Signed marks


@pytest.mark.parametrize("leases", LEASES)
def test_a_fleet_with_a_key_does_its_work_and_signs_all_of_it(
    project: Project, leases: str
) -> None:
    project.begin(pipeline(leases), 3)
    workers = [project.worker(name, "--drain", env=KEY) for name in ("w1", "w2")]
    for worker in workers:
        assert worker.wait(80).quiet().code in (0, 3), "one may find nothing left"
    project.assert_drained(3)
    ring = parse_keyring(OLD)
    marks = [verify(body, IssueRef("", number), ring) for number, body in bodies(project)]
    assert set(marks) - {Signed.NO_MARK} == {Signed.VALID}
    # Whoever has no key reads what is signed like anything else.
    assert len(project.dibs("runs", "1", "--json").data) >= 2


def test_a_claim_that_nobody_signed_keeps_a_fleet_with_a_key_from_nothing(
    project: Project,
) -> None:
    project.begin(pipeline("comments", ttl="1h"), 1)
    assert project.dibs("claim", "1").code == 0
    assert project.dibs("why", "1", "--json").data["reasons"][0]["code"] == "HELD"
    why = project.dibs("why", "1", "--json", env=KEY).data
    assert [reason["code"] for reason in why["reasons"]] == ["CLAIM_LABEL_ONLY"]
    lenient = {**KEY, "DIBS_SIGNING": "lenient"}
    held = project.dibs("why", "1", "--json", env=lenient).data["reasons"]
    assert [reason["code"] for reason in held] == ["HELD"]


def test_the_store_decides_whatever_the_cards_say(project: Project) -> None:
    project.begin(pipeline("auto"), 1)
    assert project.dibs("claim", "1", "--ttl", "1h").code == 0
    why = project.dibs("why", "1", "--json", env=KEY).data
    assert [reason["code"] for reason in why["reasons"]] == ["HELD"]


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"DIBS_SIGNING_KEY": "tiny"}, ("DIBS_SIGNING_KEY", "16")),
        ({"DIBS_SIGNING_KEY": f"{OLD},{OLD}"}, ("DIBS_SIGNING_KEY", "same id")),
        ({"DIBS_SIGNING": "strict"}, ("DIBS_SIGNING", "no key")),
        ({**KEY, "DIBS_SIGNING": "perhaps"}, ("perhaps", "strict or lenient")),
    ],
)
def test_a_key_that_is_none_stops_the_program_and_is_not_shown(
    project: Project, env: dict[str, str], words: tuple[str, ...]
) -> None:
    project.begin(pipeline(), 1)
    reply = project.dibs("list", env=env)
    reply.told(1, *words)
    assert "tiny" not in reply.err
    assert "sesame" not in reply.err


def test_a_key_is_written_nowhere(project: Project) -> None:
    project.begin(pipeline("comments", one="env > env.txt"), 1)
    project.drain(env=KEY)
    told = project.dibs("doctor", "--json", env=KEY)
    assert told.code == 0
    assert "old" in told.out
    written = [path for path in project.root.rglob("*") if path.is_file()]
    assert Path(project.root / "env.txt") in written
    for path in written:
        assert b"sesame" not in path.read_bytes(), path
    assert "sesame" not in told.out + told.err


def test_keys_are_changed_under_a_fleet_step_by_step(project: Project) -> None:
    project.begin(pipeline("comments"), 1)
    assert project.dibs("claim", "1", "--ttl", "1h", env=KEY).code == 0
    both = {"DIBS_SIGNING_KEY": f"{OLD},{NEW}"}
    turned = {"DIBS_SIGNING_KEY": f"{NEW},{OLD}"}
    run = project.cards()[0].run
    assert project.dibs("heartbeat", "1", "--run", run, env=both).code == 0
    assert project.dibs("heartbeat", "1", "--run", run, env=turned).code == 0
    assert " sig=new:" in bodies(project)[0][1]
    assert project.dibs("heartbeat", "1", "--run", run, env={"DIBS_SIGNING_KEY": NEW}).code == 0
    assert project.dibs("heartbeat", "1", "--run", run, env=KEY).code == 5, "the old key is gone"


# The doctor


def test_the_doctor_looks_at_a_fresh_folder_and_makes_nothing(project: Project) -> None:
    before = sorted(project.root.rglob("*"))
    reply = project.dibs("doctor")
    assert reply.code == 0
    assert "no backlog yet" in reply.out
    assert sorted(project.root.rglob("*")) == before


def test_the_doctor_finds_a_working_backlog_in_order_and_changes_nothing(
    project: Project,
) -> None:
    project.begin(pipeline(), 2)
    assert project.dibs("doctor").code == 0
    before = project.dump()
    data = project.dibs("doctor", "--json").data
    assert (data["warn"], data["fail"]) == (0, 0)
    assert data["ok"] == len(data["findings"])
    checks = {finding["check"] for finding in data["findings"]}
    assert {"configuration", "tracker", "leases", "granter", "signing", "handlers"} <= checks
    after = project.dump()
    assert [row[:2] for row in after.pop("leases")] == [("~doctor", "probe")]
    assert after == {name: rows for name, rows in before.items() if name != "leases"}
    text = project.dibs("doctor")
    assert text.code == 0
    assert text.out.splitlines()[-1] == f"{data['ok']} ok, 0 warn, 0 fail"


def test_the_doctor_says_which_key_is_on(project: Project) -> None:
    project.begin(pipeline(), 1)
    env = {"DIBS_SIGNING_KEY": f"{NEW},{OLD}"}
    [finding] = _of(project.dibs("doctor", "--json", env=env).data, "signing")
    assert finding["level"] == "ok"
    assert "strict: we sign with new; also verified: old" in finding["text"]
    lenient = {**env, "DIBS_SIGNING": "lenient"}
    levels = {
        one["level"] for one in _of(project.dibs("doctor", "--json", env=lenient).data, "signing")
    }
    assert "warn" in levels


def _of(data: dict[str, list[dict[str, str]]], check: str) -> list[dict[str, str]]:
    return [finding for finding in data["findings"] if finding["check"] == check]


@pytest.mark.parametrize("offline", [False, True])
def test_the_doctor_names_a_handler_that_is_not_there(project: Project, offline: bool) -> None:
    project.begin(pipeline(one="./not-there.sh"), 1)
    reply = project.dibs("doctor", *(["--offline"] if offline else []))
    assert reply.code == 1
    assert "not-there.sh" in reply.quiet().out
    assert "fail  handlers" in reply.out


def test_the_doctor_survives_what_it_is_called_for(project: Project) -> None:
    project.configure("ttl = 'soon'")
    broken = project.dibs("doctor", "--json")
    assert broken.code == 1
    assert _of(broken.data, "configuration")[0]["level"] == "fail"

    project.begin(pipeline(), 1)
    project.file.write_bytes(b"this is not a database" * 500)
    damaged = project.dibs("doctor", "--json")
    assert damaged.quiet().code == 1
    assert _of(damaged.data, "tracker")[0]["level"] == "fail"
    assert project.dibs("doctor", "--offline").code == 0


def test_the_doctor_asks_nobody_when_it_is_told_to_stay_offline(project: Project) -> None:
    project.configure("leases = 'redis://user:hush@127.0.0.1:1/0'")
    reply = project.dibs("doctor", "--offline", "--json")
    assert reply.code == 0
    assert "hush" not in reply.out
    assert project.dibs("doctor").code in (0, 1)
    assert not project.file.exists()


def test_the_doctor_names_a_store_that_does_not_answer_without_its_password(
    project: Project,
) -> None:
    project.begin(pipeline(), 1)
    env = {"DIBS_LEASES": "redis://user:hush@127.0.0.1:1/0"}
    reply = project.dibs("doctor", "--json", env=env)
    assert reply.quiet().code == 1
    assert "hush" not in reply.out + reply.err
    failing = [finding["check"] for finding in reply.data["findings"] if finding["level"] == "fail"]
    assert failing == ["leases"]
