import pytest

from dibs_lab.fakehub import FakeHub, Limits, Permission

from .clients import Shop, TurnedClock


@pytest.fixture
def clock():
    return TurnedClock()


@pytest.fixture
def shop(clock):
    with FakeHub(clock=clock, limits=Limits.off(), seed=7) as hub:
        hub.repository("acme/shop")
        yield Shop(hub, clock)


@pytest.fixture
def writer(shop):
    with shop.as_("alice", Permission.WRITE) as client:
        yield client


@pytest.fixture
def admin(shop):
    with shop.as_("olga", Permission.ADMIN) as client:
        yield client


@pytest.fixture
def stranger(shop):
    with shop.as_("mallory") as client:
        yield client
