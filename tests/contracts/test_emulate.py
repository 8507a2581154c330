"""The emulator that we did not write: it starts, and is what its tests may count on."""

import signal
from pathlib import Path

import pytest
from tests.servers.emulate import OWNER, Emulate, single
from tests.servers.process import answers

pytestmark = pytest.mark.long


def test_it_serves_issues_labels_and_comments():
    server = single()
    where = f"/repos/{server.repository()}"
    made = server.ask("POST", f"{where}/issues", {"title": "It broke", "labels": ["bug"]})
    server.ask("POST", f"{where}/issues/{made['number']}/comments", {"body": "Looking"})
    found = server.ask("GET", f"{where}/issues?labels=bug&state=open")
    assert [(issue["number"], issue["comments"]) for issue in found] == [(made["number"], 1)]
    assert found[0]["user"]["login"] == OWNER
    assert found[0]["url"].startswith(server.url)


def test_killing_it_ends_it():
    """The real node, not the wrapper that would leave it running."""
    server = Emulate()
    process = server.process.pid
    server.kill(signal.SIGKILL)
    assert not answers(server.port)
    assert not Path(f"/proc/{process}").exists()
    server.close()
