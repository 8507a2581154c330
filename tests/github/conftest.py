"""Hypothesis without a deadline, and nothing of this machine's own tokens, proxies and state."""

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "github", deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("github")


@pytest.fixture(autouse=True)
def _nothing_of_this_machine(monkeypatch):
    for name in os.environ:
        ours = name.startswith(("GITHUB_", "GH_", "DIBS_")) and name != "DIBS_STATE"
        if ours or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
