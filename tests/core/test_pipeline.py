"""Stages, legal moves, and pipelines that cannot be built."""

from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dibs.core.errors import IllegalMove, NoSuchStage
from dibs.core.ids import StageName
from dibs.core.pipeline import (
    ApprovalGate,
    Backoff,
    Command,
    InProcess,
    LabelNames,
    NoGate,
    NoHandler,
    Pipeline,
    PythonCallable,
    Stage,
)

from .builders import s


def stage(name, *onward, label=None, **rest):
    label = f"l:{name}" if label is None else label
    return Stage(StageName(name), label, tuple(map(StageName, onward)), **rest)


END = stage("end")
LINE = Pipeline((stage("one", "two", "end", working_label="busy"), stage("two", "end"), END))


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ((), ["no stage"]),
        ((stage("a", "a"), END), ["'a'", "itself"]),
        ((stage("a", "b"), END), ["'a'", "'b'", "not a stage"]),
        ((stage("a", "b"), stage("b", "a")), ["final"]),
        ((stage("a", "end", label=""), END), ["empty"]),
        ((stage("a", "end", label=" x"), END), ["' x'"]),
        ((stage("a", "end", label="x "), END), ["'x '"]),
        ((stage("a", "end", label="x,y"), END), ["comma", "'x,y'"]),
        ((stage("a", "end", label="l:end"), END), ["same label", "'l:end'"]),
        ((stage("a", "end", label="L:END"), END), ["same label"]),
        ((stage("a", "end", label="claimed"), END), ["claimed label", "'a'"]),
        ((stage("a", "end", label="Paused"), END), ["paused label"]),
        ((stage("a", "end", label="parked"), END), ["parked label"]),
        ((stage("a", "end", working_label="l:a"), END), ["working label", "'a'"]),
        ((stage("a", "end", working_label="claimed"), END), ["working label", "claimed"]),
        (
            (stage("a", "b", working_label="w"), stage("b", "end", working_label="W"), END),
            ["working label", "'b'"],
        ),
        ((stage("a", "end"), stage("a", "end", label="m"), END), ["'a'", "twice"]),
        ((stage("a", handler=Command("x")),), ["'a'", "handler", "next"]),
        ((stage("a", "end", closes=True), END), ["'a'", "closes"]),
        ((stage("a", "end", attempts=0), END), ["'a'", "attempts"]),
        ((stage("a", "end", wip=0), END), ["'a'", "wip"]),
    ],
)
def test_a_pipeline_that_makes_no_sense_cannot_be_built_and_says_why(stages, words):
    with pytest.raises(ValueError) as refusal:
        Pipeline(stages)
    for word in words:
        assert word in str(refusal.value)


@pytest.mark.parametrize(
    ("labels", "blockers", "words"),
    [
        (LabelNames(claimed="x", paused="X"), (), ["paused", "claimed"]),
        (LabelNames(claimed=""), (), ["claimed"]),
        (LabelNames(parked="a,b"), (), ["parked"]),
        (LabelNames(parked="l:one"), (), ["'one'", "parked"]),
        (LabelNames(), ("claimed",), ["claimed"]),
        (LabelNames(), ("L:One",), ["L:One", "'one'"]),
        (LabelNames(), ("busy",), ["busy", "working"]),
    ],
)
def test_no_label_may_play_two_roles(labels, blockers, words):
    with pytest.raises(ValueError) as refusal:
        Pipeline(LINE.stages, labels=labels, blockers=frozenset(blockers))
    for word in words:
        assert word in str(refusal.value)


@pytest.mark.parametrize(
    "label", ["l:a", "l:end", "L:END", "busy", "claimed", "paused", "parked", "wait", ""]
)
def test_a_gates_label_may_play_no_other_role(label):
    """The move takes the gate's label off: as a stage's label, the issue would lose its stage."""
    with pytest.raises(ValueError):
        Pipeline(
            (stage("a", "end", gate=ApprovalGate(label), working_label="busy"), END),
            blockers=frozenset({"wait"}),
        )


def test_two_stages_may_wait_for_the_same_approval():
    gate = ApprovalGate("approved")
    assert Pipeline((stage("a", "b", gate=gate), stage("b", "end", gate=gate), END)).stages


def test_a_stage_is_found_by_its_name_and_a_missing_one_is_named_with_the_known_ones():
    assert LINE.stage("two") is LINE.stages[1]
    with pytest.raises(NoSuchStage) as refusal:
        LINE.stage("tow")
    assert refusal.value.known == ("one", "two", "end")


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ((), []),
        (("bug", "claimed"), []),
        (("l:two",), ["two"]),
        (("l:end", "l:one", "bug"), ["one", "end"]),
        (("busy",), []),
    ],
)
def test_the_stages_of_an_issue_are_read_from_its_labels_in_pipeline_order(labels, names):
    assert [found.name for found in LINE.stages_of(frozenset(labels))] == names


@pytest.mark.parametrize(
    ("origin", "wanted", "target"),
    [
        ("one", None, "two"),
        ("one", "two", "two"),
        ("one", "end", "end"),
        ("two", None, "end"),
    ],
)
def test_a_legal_move_has_a_target(origin, wanted, target):
    assert LINE.target(StageName(origin), wanted).name == target


@pytest.mark.parametrize(
    ("origin", "wanted", "legal"),
    [
        ("one", "one", ("two", "end")),
        ("one", "", ("two", "end")),
        ("one", "nowhere", ("two", "end")),
        ("two", "one", ("end",)),
        ("end", None, ()),
        ("end", "one", ()),
    ],
)
def test_an_illegal_move_is_refused_with_the_legal_ones(origin, wanted, legal):
    with pytest.raises(IllegalMove) as refusal:
        LINE.target(StageName(origin), wanted)
    assert refusal.value.legal == legal
    assert refusal.value.origin == origin


def test_a_move_from_nowhere_is_no_such_stage():
    with pytest.raises(NoSuchStage):
        LINE.target(StageName("gone"), None)


@pytest.mark.parametrize(
    ("made", "final", "by_itself", "served"),
    [
        (stage("a", "b", handler=Command("./x")), False, False, True),
        (stage("a", "b", handler=PythonCallable("m:f")), False, False, True),
        (stage("a", "b", handler=InProcess()), False, False, True),
        (stage("a", "b"), False, False, False),
        (stage("a", "b", gate=ApprovalGate("ok")), False, True, True),
        (stage("a", "b", gate=ApprovalGate("ok"), handler=Command("x")), False, False, True),
        (stage("a", gate=ApprovalGate("ok")), True, True, False),
        (stage("a"), True, False, False),
    ],
)
def test_a_stage_knows_whether_a_worker_has_anything_to_do_in_it(made, final, by_itself, served):
    assert (made.final, made.passes_by_itself, made.served) == (final, by_itself, served)


def test_a_stage_has_modest_defaults():
    made = stage("a", "b")
    assert (made.handler, made.gate, made.attempts) == (NoHandler(), NoGate(), 3)
    assert (made.wip, made.timeout, made.closes, made.working_label) == (None, None, False, None)
    assert made.terms.ttl == timedelta(minutes=10)
    assert (Command("x").line, PythonCallable("m:f").target) == ("x", "m:f")


def test_vetoes_are_the_blockers_and_what_people_pause_and_park_with():
    pipeline = Pipeline(
        LINE.stages, LabelNames(paused="stop", parked="human"), frozenset({"wontfix"})
    )
    assert pipeline.vetoes == {"stop", "human", "wontfix"}


def test_working_labels_are_listed_for_the_stages_that_have_one():
    stages = (
        stage("draft", "check", working_label="l:drafting"),
        stage("check", "out"),
        stage("out"),
    )
    assert Pipeline(stages).working_labels == ("l:drafting",)
    assert Pipeline(stages[1:]).working_labels == ()


def test_every_label_is_listed_once_in_the_order_a_person_would():
    gate = ApprovalGate("ok")
    pipeline = Pipeline(
        (
            stage("a", "b", working_label="busy", gate=gate),
            stage("b", "end", gate=gate),
            END,
        ),
        blockers=frozenset({"z", "y"}),
    )
    assert pipeline.every_label == (
        *("l:a", "busy", "ok", "l:b", "l:end"),
        *("claimed", "paused", "parked", "y", "z"),
    )


@pytest.mark.parametrize(
    ("failures", "seconds"),
    [(-1, 0), (0, 0), (1, 30), (2, 60), (3, 120), (5, 480), (6, 900), (7, 900), (10**9, 900)],
)
def test_the_backoff_doubles_and_is_capped(failures, seconds):
    assert Backoff().after(failures) == s(seconds)


@given(
    st.timedeltas(timedelta(milliseconds=1), timedelta(days=3650)),
    st.timedeltas(timedelta(0), timedelta(days=3650)),
    st.integers(1, 200),
)
@example(timedelta(days=1), timedelta(days=7), 40)
@example(timedelta(milliseconds=1), timedelta(days=3650), 100)
def test_no_backoff_overflows_shrinks_or_exceeds_its_cap(first, most, failures):
    backoff = Backoff(first, most)
    now, after = backoff.after(failures), backoff.after(failures + 1)
    assert timedelta(0) <= now <= after <= most
    if failures == 1:
        assert now == min(first, most)
    assert after in (now * 2, most) or after == now == most
