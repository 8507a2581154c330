"""The guarded block: the check and the writes commit together, or not at all."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy
from tests.servers.process import wait_until

from dibs.core.errors import LeaseLost, Misuse
from dibs.fencing import AlreadyApplied, Applied, Conflict, NotApplied, Stale, StaleFence, sql

from .connecting import BLOCKS, Counter, execute, make_counter
from .processes import children

TELLING = ["sqlite", "sqlite-sqlalchemy", "postgres", "postgres-sqlalchemy"]
"""Connections that say whether they are in a transaction."""
CROWDED = [
    "sqlite",
    "sqlite-autocommit",
    "sqlite-sqlalchemy",
    "postgres",
    "postgres-repeatable-read",
    "postgres-serializable",
    "postgres-sqlalchemy-serializable",
]


@pytest.fixture(params=BLOCKS)
def counter(request, tmp_path) -> Counter:
    return make_counter(request.param, tmp_path)


@pytest.fixture
def connection(counter: Counter) -> Iterator[Any]:
    with counter.connected() as made:
        yield made


def add(counter: Counter, connection: Any, fence: int, *, step: int | None = None) -> None:
    with sql.guarded(connection, "the counter", fence, step=step, table=counter.fences) as writes:
        execute(writes, f"UPDATE {counter.table} SET n = n + 1")


def do(counter: Counter, connection: Any, fence: int, body: Callable[[Any], None]) -> None:
    with sql.guarded(connection, "the counter", fence, table=counter.fences) as writes:
        execute(writes, f"UPDATE {counter.table} SET n = 100")
        body(writes)


def test_what_is_written_in_a_block_commits_with_it(counter, connection):
    for fence in (7, 7, 8):
        add(counter, connection, fence)
    assert (counter.n(), counter.fence()) == (3, 8)


def test_a_stale_block_does_not_run(counter, connection):
    add(counter, connection, 8)
    with (
        pytest.raises(StaleFence) as refused,
        sql.guarded(connection, "the counter", 7, table=counter.fences),
    ):
        pytest.fail("the body ran")
    assert (refused.value.seen, refused.value.fence) == (8, 7)
    assert isinstance(refused.value, LeaseLost)
    assert "the counter" in str(refused.value)
    add(counter, connection, 8)  # the connection is as good as before
    assert counter.n() == 2


def test_an_exception_in_the_block_takes_everything_back_but_no_later_one(counter, connection):
    add(counter, connection, 7)
    with pytest.raises(ZeroDivisionError):
        do(counter, connection, 9, lambda _: 1 // 0)
    assert (counter.n(), counter.fence()) == (1, 7)
    add(counter, connection, 8)
    assert (counter.n(), counter.fence()) == (2, 8)


def test_a_statement_that_fails_takes_everything_back(counter, connection):
    with pytest.raises(Exception, match="no_such_table"):
        do(counter, connection, 7, lambda writes: execute(writes, "UPDATE no_such_table SET n = 1"))
    assert (counter.n(), counter.fence()) == (0, None)


def test_the_same_step_again_is_not_run(counter, connection):
    add(counter, connection, 7, step=1)
    add(counter, connection, 7, step=2)
    with pytest.raises(AlreadyApplied):
        add(counter, connection, 7, step=2)
    with pytest.raises(NotApplied) as late:
        add(counter, connection, 7, step=1)
    assert isinstance(late.value.outcome, Conflict)
    with contextlib.suppress(AlreadyApplied):  # as a retry is written
        add(counter, connection, 7, step=2)
    add(counter, connection, 7)
    add(counter, connection, 8, step=1)
    assert counter.n() == 4


def test_a_step_whose_block_failed_may_be_tried_again(counter, connection):
    with (
        pytest.raises(ZeroDivisionError),
        sql.guarded(connection, "the counter", 7, step=1, table=counter.fences),
    ):
        raise ZeroDivisionError
    add(counter, connection, 7, step=1)
    assert counter.n() == 1


def test_a_stamp_refuses_the_holder_before(counter, connection):
    assert sql.stamp_resource(connection, "the counter", 8, table=counter.fences) == Applied()
    assert sql.stamp_resource(connection, "the counter", 7, table=counter.fences) == Stale(8)
    with pytest.raises(StaleFence):
        add(counter, connection, 7)
    assert sql.stamp_resource(connection, "another", 1, table=counter.fences) == Applied()
    assert counter.n() == 0


@pytest.mark.parametrize("kind", TELLING)
def test_a_connection_that_is_in_a_transaction_is_refused(kind, tmp_path):
    counter = make_counter(kind, tmp_path)
    with counter.connected() as connection:
        execute(connection, f"UPDATE {counter.table} SET n = 5")
        with (
            pytest.raises(Misuse, match="in a transaction already"),
            sql.guarded(connection, "the counter", 7, table=counter.fences),
        ):
            pytest.fail("the body ran")
        connection.rollback()
        add(counter, connection, 7)
    assert counter.n() == 1


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_block_that_commits_by_itself_is_told_so(kind, tmp_path):
    counter = make_counter(kind, tmp_path)
    with (
        counter.connected() as connection,
        pytest.raises(Misuse, match="ended its transaction"),
        sql.guarded(connection, "the counter", 7, table=counter.fences) as writes,
    ):
        writes.commit()


def test_a_block_that_commits_and_goes_on_writes_nothing_under_a_fence_that_is_over(
    counter, connection
):
    """After its commit it holds the row no more, and the next holder comes in between."""
    by_itself = "autocommit" in counter.kind

    def goes_on(writes: Any) -> None:
        if by_itself:
            execute(writes, "COMMIT")  # some of them take their own commit() for nothing to do
        else:
            writes.commit()
        with counter.connected() as other:
            sql.stamp_resource(other, "the counter", 8, table=counter.fences)
        execute(writes, f"UPDATE {counter.table} SET n = 666")

    with pytest.raises((StaleFence, Misuse)):
        do(counter, connection, 7, goes_on)
    connection.commit()  # as a careless caller does, who takes the connection for a clean one
    # What a connection that commits by itself was told outside of a transaction is beyond recall.
    assert counter.n() == (666 if by_itself else 100)
    assert counter.fence() == 8
    add(counter, connection, 8)  # the connection is as good as before


@pytest.mark.parametrize("kind", ["postgres-repeatable-read", "postgres-serializable"])
def test_a_snapshot_from_before_the_next_holder_does_not_hide_it(kind, tmp_path):
    counter = make_counter(kind, tmp_path)

    def goes_on(writes: Any) -> None:
        writes.commit()
        execute(writes, f"UPDATE {counter.table} SET n = 666")
        with counter.connected() as other:
            sql.stamp_resource(other, "the counter", 8, table=counter.fences)

    with counter.connected() as connection, pytest.raises(psycopg.errors.SerializationFailure):
        do(counter, connection, 7, goes_on)
    assert (counter.n(), counter.fence()) == (100, 8)


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "postgres-serializable", "postgres-pg8000"])
def test_a_block_that_takes_its_step_back_and_goes_on_is_told_so(kind, tmp_path):
    """Else a retry of the step would run the body a second time."""
    counter = make_counter(kind, tmp_path)

    def take_back(connection: Any, step: int) -> None:
        with sql.guarded(connection, "the counter", 7, step=step, table=counter.fences) as writes:
            writes.rollback()
            execute(writes, f"UPDATE {counter.table} SET n = 666")

    with counter.connected() as connection:
        add(counter, connection, 7, step=1)
        with pytest.raises(Misuse, match="ended its transaction"):
            take_back(connection, 2)
        connection.commit()
    assert counter.n() == 1


@pytest.mark.parametrize("kind", ["postgres", "postgres-sqlalchemy"])
def test_a_block_that_swallows_a_failed_statement_does_not_pass_for_applied(kind, tmp_path):
    """PostgreSQL answers COMMIT with a rollback then, and drivers do not mention it."""
    counter = make_counter(kind, tmp_path)

    def careless(writes: Any) -> None:
        with contextlib.suppress(psycopg.Error, sqlalchemy.exc.DBAPIError):
            execute(writes, "SELECT 1 / 0")

    with counter.connected() as connection:
        with pytest.raises(Misuse, match="nothing of it is applied"):
            do(counter, connection, 7, careless)
        add(counter, connection, 7)
    assert counter.n() == 1


def test_a_connection_of_sqlalchemys_that_commits_each_statement_is_refused(tmp_path):
    counter = make_counter("postgres-sqlalchemy", tmp_path)
    engine = sqlalchemy.create_engine(
        counter.place.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT"
    )
    with engine.connect() as connection, pytest.raises(Misuse, match="AUTOCOMMIT"):
        add(counter, connection, 7)
    engine.dispose()
    assert (counter.n(), counter.fence()) == (0, None)


# Several processes


@pytest.mark.long
@pytest.mark.parametrize("kind", CROWDED)
def test_eight_processes_count_without_losing_one(kind, tmp_path):
    counter = make_counter(kind, tmp_path)
    with children("counter", kind, counter.place, counter.name, count=8) as counters:
        for one in counters:
            one.tell({"fence": 7, "times": 25})
        assert [one.hear() for one in counters] == [{"applied": 25, "refused": 0}] * 8
        assert counter.n() == 200
        for place, one in enumerate(counters):  # each under fences of its own, which rise
            one.tell({"fence": 8 + place, "times": 25, "rise": 1 + place % 3})
        told = [one.hear() for one in counters]
    assert counter.n() == 200 + sum(one["applied"] for one in told)
    assert sum(one["refused"] for one in told) > 0
    assert counter.fence() == max(8 + place + 24 // (1 + place % 3) for place in range(8))


@pytest.mark.parametrize("kind", ["postgres", "postgres-serializable"])
def test_a_holder_frozen_inside_its_block_comes_first_or_not_at_all(kind, tmp_path):
    """The one after it waits for the row; nothing is in between."""
    counter = make_counter(kind, tmp_path)
    arguments = (counter.kind, counter.place, counter.name)
    with children("counter", *arguments, count=2) as [old, new]:
        old.tell({"fence": 7, "freeze": True})
        old.wait_until_frozen()
        new.tell({"fence": 8})
        with psycopg.connect(counter.place, autocommit=True) as look:
            wait_until(lambda: _waiters(look) == 1, "the newer holder waits for the row")
            old.wake()
            assert [old.hear(), new.hear()] == [{"applied": 1, "refused": 0}] * 2
            assert old.ask({"fence": 7}) == {"applied": 0, "refused": 1}
    assert (counter.n(), counter.fence()) == (2, 8)


def _waiters(connection: psycopg.Connection) -> int:
    asked = "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    return connection.execute(asked).fetchone()[0]


@pytest.mark.parametrize("kind", ["postgres", "postgres-serializable"])
def test_a_holder_that_the_server_gave_up_while_it_was_frozen_has_written_nothing(kind, tmp_path):
    """As idle_in_transaction_session_timeout does, so that nobody waits for the frozen for ever."""
    counter = make_counter(kind, tmp_path)
    arguments = (counter.kind, counter.place, counter.name)
    with children("counter", *arguments, count=2) as [old, new]:
        old.tell({"fence": 7, "freeze": True})
        old.wait_until_frozen()
        with psycopg.connect(counter.place, autocommit=True) as look:
            look.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE state = 'idle in transaction'"
            )
        assert new.ask({"fence": 8}) == {"applied": 1, "refused": 0}
        old.wake()
        assert old.process.wait(30) != 0  # the driver's error, and not a word of success
    assert (counter.n(), counter.fence()) == (1, 8)
