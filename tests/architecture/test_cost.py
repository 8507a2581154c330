"""What one claim on the embedded backlog costs, counted in transactions."""

from collections import Counter
from contextlib import contextmanager

import dibs
from dibs.adapters.sqlite.database import Database
from dibs.core.ids import HolderId
from dibs.services.claiming import Claimed, ClaimOptions
from dibs.settings.load import load
from dibs.wiring.services import connect


@contextmanager
def counted(monkeypatch):
    """How many transactions of each kind are begun inside; what joins another one is none."""
    begun = Counter()
    for kind in ("reading", "writing"):
        method = getattr(Database, kind)

        @contextmanager
        def counting(self, kind=kind, method=method):
            if self._open_step() is None:
                begun[kind] += 1
            with method(self) as transaction:
                yield transaction

        monkeypatch.setattr(Database, kind, counting)
    yield begun


def test_a_claim_to_its_end_is_five_readings_and_three_writings_at_most(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with dibs.open(tmp_path) as backlog:
        issue = backlog.add("one").ref
    services = connect(load(None), author="me")
    with counted(monkeypatch) as begun:
        claimed = services.claiming.claim(issue, None, ClaimOptions(holder=HolderId("me")))
        assert isinstance(claimed, Claimed)
        services.advancing.advance(services.keep(claimed))
    services.close()
    assert begun["reading"] <= 5
    assert begun["writing"] <= 3
