"""For all tests: whatever they exchange with a fake GitHub is held against GitHub's contract."""

import pytest

from dibs_lab.fakehub import FakeHub


@pytest.fixture(autouse=True)
def _what_a_machine_shares_is_shared_by_nobody_here(monkeypatch, tmp_path_factory, request):
    """A port and a token of an earlier test may come again, and its pace is none of ours."""
    place = tmp_path_factory.getbasetemp() / "state" / f"{abs(hash(request.node.nodeid))}"
    monkeypatch.setenv("DIBS_STATE", str(place))


@pytest.fixture(autouse=True)
def _the_fake_and_we_keep_to_github_s_contract():
    """A test that passes by talking to a GitHub that does not exist has passed nothing."""
    seen = []

    def note(request, sent):
        seen.append((request, sent))

    FakeHub.observers.append(note)
    yield
    FakeHub.observers.remove(note)
    if seen:
        from tests.contracts.watching import flaws

        assert flaws(seen) == []
