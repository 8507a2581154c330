"""Which issues are worked together, and the one order in which everybody claims them."""

import random

from dibs.core.ids import IssueRef
from dibs.label_state.labels import BUNDLE_LABEL_PREFIX, bundle_label
from dibs.services.bundling import PREFIX, bundle_of, in_order


def test_a_bundle_is_a_label():
    assert bundle_of({"bug", bundle_label("euro")}) == "agent:bundle:euro"
    assert bundle_of({"Agent:Bundle:Euro"}) == "Agent:Bundle:Euro"
    assert bundle_of({"agent:bundle:b", "agent:bundle:a"}) == "agent:bundle:a"
    assert bundle_of({"bug", "agent:bundle:", "agent:bundled"}) is None


def test_it_is_the_published_one():
    assert PREFIX == BUNDLE_LABEL_PREFIX


def test_the_order_is_one_for_everybody():
    wanted = [
        IssueRef("acme/api", "2"),
        IssueRef("Acme/API", "9"),
        IssueRef("acme/api", "10"),
        IssueRef("acme/web", "1"),
        IssueRef("acme/web", "ABC-7"),
    ]
    for seed in range(20):
        shuffled = [*wanted, wanted[0]]
        random.Random(seed).shuffle(shuffled)
        assert in_order(shuffled) == tuple(wanted)
