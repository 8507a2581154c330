"""The doctor takes and gives back a lease: what keeps a real store from granting is a finding.

Every finding is under `leases`, and the report is on standard output, whatever was found.
"""

from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from tests.servers.git_repository import bare_repository
from tests.servers.postgres import Postgres
from tests.servers.relay import TlsRelay
from tests.servers.valkey import Valkey

from acceptance.harness import CLOCK, Project, pipeline

from .places import KINDS, Place


def about_leases(project: Project, url: str) -> tuple[int, list[tuple[str, str, str]]]:
    """The exit code, and level, text and look of the findings about the store."""
    reply = project.dibs("doctor", "--json", env={"DIBS_LEASES": url})
    found = [one for one in reply.data["findings"] if one["check"] == "leases"]
    checks = {one["check"] for one in reply.data["findings"]}
    assert {"tracker", "labels", "account", "storage"} <= checks, "no other check is left out"
    assert not [
        one for one in reply.data["findings"] if one["level"] == "fail" and one not in found
    ]
    return reply.code, [(one["level"], one["text"], one["look"] or "") for one in found]


@pytest.fixture
def begun(project: Project) -> Project:
    project.begin(pipeline(one="true"), 1)
    return project


@pytest.mark.long
@pytest.mark.parametrize("place", KINDS, indirect=True)
def test_a_store_in_order_grants_a_probe_and_nobody_owns_anything(
    place: Place, begun: Project
) -> None:
    for _ in range(2):
        code, [(level, text, _), *worries] = about_leases(begun, place.url())
        assert (code, level) == (0, "ok")
        assert "a probe lease was granted and given back" in text
        assert not worries or place.kind == "postgres", "the tests' PostgreSQL has fsync off"
    assert place.open().live() == ()
    other = Project(begun.root / "other")
    other.begin(pipeline(one="true"), 1)
    env = {"DIBS_LEASES": place.url()}
    assert other.dibs("claim", "1", env=env).code == 0, "a doctor makes nobody an owner"
    code, [(level, text, _)] = about_leases(begun, place.url())
    assert (code, level) == (1, "fail")
    assert str(other.file) in text


def test_a_redis_that_forgets_is_a_warning_and_stores_says_what_was_found(begun: Project) -> None:
    with closing(Valkey(persistent=False)) as server:
        code, [(level, text, _), (worry, why, look)] = about_leases(begun, server.url())
        assert (code, level, worry) == (0, "ok", "warn")
        assert "durable" not in text
        assert "append-only" in why
        assert look == "see docs/stores/redis.md"
        reply = begun.dibs("stores", "--json", env={"DIBS_LEASES": server.url()})
        [row] = [row for row in reply.data if row["configured"]]
        assert "durable" in row["guarantees"]
        assert "durable" not in row["found"]
        assert "append-only" in reply.document["warnings"][0]
    reply = begun.dibs("stores", "--json", env={"DIBS_LEASES": server.url()})
    assert [row["found"] for row in reply.data if row["configured"]] == [None]
    assert "cannot be asked" in reply.document["warnings"][0]


def test_tls_and_plain_text_on_the_wrong_port(begun: Project) -> None:
    with closing(Valkey()) as server, TlsRelay(server.port) as relay:
        told = about_leases(begun, server.url("timeout=1", scheme="rediss"))
        assert told[0] == 1
        assert "redis://" in told[1][0][2]
        told = about_leases(begun, f"redis://127.0.0.1:{relay.port}")
        assert told[0] == 1
        assert "rediss://" in told[1][0][2]


def test_a_replica_a_full_and_a_frozen_redis(begun: Project) -> None:
    with closing(Valkey()) as server:
        with closing(Valkey(replicaof=f"127.0.0.1 {server.port}")) as replica:
            code, [(level, text, _)] = about_leases(begun, replica.url())
            assert (code, level, "is a replica" in text) == (1, "fail", True)
        with server.client() as client:
            client.config_set("maxmemory", 1)
        code, [(level, text, _)] = about_leases(begun, server.url())
        assert (code, level, "used memory" in text) == (1, "fail", True)
        with server.client() as client:
            client.config_set("maxmemory-policy", "allkeys-lru")
        code, [(level, text, look)] = about_leases(begun, server.url())
        assert (code, level, look) == (1, "fail", "see docs/stores/redis.md")
        server.freeze()
        code, [(level, text, _)] = about_leases(begun, server.url("timeout=1"))
        assert (code, level, "imeout" in text) == (1, "fail", True)
        server.thaw()


def test_a_store_that_cannot_be_opened_is_no_fault_of_the_tracker(begun: Project) -> None:
    (begun.root / "file").touch()
    for place in ("redis://127.0.0.1:1?colour=red", f"sqlite:{begun.root}/file/leases.db"):
        code, [(level, _, _)] = about_leases(begun, place)
        assert (code, level) == (1, "fail")
    reply = begun.dibs("doctor", env={"DIBS_LEASES": place})
    assert "fail  leases" in reply.out
    assert reply.out.splitlines()[-1].endswith("1 fail")
    assert not reply.err


@pytest.mark.long
def test_a_postgres_that_only_reads(begun: Project) -> None:
    with closing(Postgres()) as server:
        assert about_leases(begun, server.url())[0] == 0, "the table is there"
        with closing(Postgres(follows=server)) as standby:
            code, [(level, text, look)] = about_leases(begun, standby.url())
        assert (code, level, look) == (1, "fail", "see docs/stores/postgres.md")
        assert "standby" in text or "recovery" in text
        with closing(psycopg.connect(server.url(), autocommit=True)) as admin:
            admin.execute("ALTER ROLE postgres SET default_transaction_read_only = on")
        code, [(level, text, _)] = about_leases(begun, server.url())
        assert (code, level, "read-only" in text) == (1, "fail", True)


def test_a_git_store_with_a_lock_file_in_the_way(begun: Project, tmp_path: Path) -> None:
    remote = bare_repository(tmp_path / "leases.git")
    assert about_leases(begun, f"git:{remote}")[0] == 0
    lock = remote / "packed-refs.lock"
    lock.touch()
    for _ in range(2):  # the second finds the probe that the first could not give back
        began = CLOCK.now()
        code, [(level, text, _)] = about_leases(begun, f"git:{remote}")
        assert (code, level) == (1, "fail")
        assert f"the lock file {lock} has been in the way for" in text
        assert CLOCK.now() - began < 60
    lock.unlink()
    assert about_leases(begun, f"git:{remote}")[0] == 0
