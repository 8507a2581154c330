"""The server's clock from the Date of its replies: narrowed by each, and never guessed at."""

import random
from datetime import UTC, datetime, timedelta

import pytest

from dibs.adapters.etcd.gateway import ServerSeconds, http_date
from dibs.core.ids import LocalTime, ServerTime

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


def stamp(moment):
    """As a reply says it: the second, and no more."""
    return ServerTime(moment.replace(microsecond=0))


class Server:
    """A clock that began at noon when ours began at 100."""

    def __init__(self):
        self.seconds = ServerSeconds()
        self.ahead = timedelta()

    def at(self, local):
        return NOON + timedelta(seconds=local - 100) + self.ahead

    def ask(self, local, took=0.01):
        written = local + took / 2
        self.seconds.observe(LocalTime(local), stamp(self.at(written)), LocalTime(local + took))


def test_nothing_is_known_before_the_first_reply():
    assert ServerSeconds().certain(LocalTime(1)) is None
    assert ServerSeconds().earliest(LocalTime(1)) is None


def test_one_reply_leaves_doubt_about_the_second_and_bounds_it():
    server = Server()
    server.ask(100.5)
    assert server.seconds.certain(LocalTime(100.6)) is None
    assert stamp(server.at(99.6)) <= server.seconds.earliest(LocalTime(100.6))
    assert server.seconds.earliest(LocalTime(100.6)) <= stamp(server.at(100.6))


def test_what_is_certain_is_right_whatever_replies_came():
    dice = random.Random("seconds")
    server, local, certain = Server(), 100.0, 0
    for _ in range(2000):
        local += dice.random()
        server.ask(local, took=dice.choice((0.001, 0.01, 0.3)))
        local += 0.3
        told = server.seconds.certain(LocalTime(local))
        assert told in (None, stamp(server.at(local)))
        certain += told is not None
        earliest = server.seconds.earliest(LocalTime(local))
        assert stamp(server.at(local)) - timedelta(seconds=2) < earliest <= stamp(server.at(local))
    assert certain > 1500


def test_doubt_grows_while_nothing_is_heard():
    server = Server()
    for step in range(200):
        server.ask(100 + step * 0.0501)
    assert server.seconds.certain(LocalTime(110.5)) is not None
    assert server.seconds.certain(LocalTime(110.5 + 1000)) is None


@pytest.mark.parametrize("by", [timedelta(hours=1), -timedelta(hours=1)])
def test_a_server_whose_clock_is_set_is_believed(by):
    server = Server()
    for step in range(200):
        server.ask(100 + step * 0.0501)
    server.ahead = by
    server.ask(110.5)
    assert abs(server.seconds.earliest(LocalTime(110.6)) - server.at(110.6)) < timedelta(seconds=2)


def test_a_date_of_http_is_read():
    assert http_date("Sun, 15 Nov 2026 12:00:00 GMT") == NOON
    for text in ("", "yesterday"):
        with pytest.raises(ValueError):
            http_date(text)
