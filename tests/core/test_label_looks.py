"""How the labels of a pipeline look on a tracker that paints them."""

import re

import pytest
from msgspec.structs import replace

from dibs.core.granter import CONTROL_LABEL
from dibs.core.labels import label_looks
from dibs.core.pipeline import Dialect
from dibs.core.presets import AGENT, EVERY, PRESETS


@pytest.mark.parametrize("name", PRESETS)
def test_every_label_of_a_preset_has_a_look_that_github_takes(name):
    pipeline = PRESETS[name]
    looks = label_looks(pipeline)
    others = {one.name for one in EVERY} if name == "agent" else set()
    assert set(looks) == {*pipeline.every_label, CONTROL_LABEL, *others}
    for look in looks.values():
        assert re.fullmatch("[0-9a-f]{6}", look.colour)
        assert 0 < len(look.description) <= 100


def test_the_label_of_the_fleets_own_pull_requests_has_a_look_in_any_dialect():
    looks = label_looks(replace(AGENT, dialect=Dialect.NATIVE))
    assert "pull request" in looks["agent:authored"].description
