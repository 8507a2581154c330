"""Every use case runs on both kinds of leases unless it says otherwise."""

import pytest

from .world import KINDS, World


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def world(kind):
    return World(kind)
