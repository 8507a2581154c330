"""Pure: the steps of a plan, and the texts of pull requests."""

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.core.ids import IssueRef
from dibs.hook.rules import closed_by_pull, named_by_pull
from dibs.worktrees import BadChain, Open, Plan, Push, Refresh, RepoTarget
from dibs.worktrees.chains import first_body, is_of_chain, refreshed, section

BACK = RepoTarget("backend", "acme/backend", "batman/42", "Serve it", "It answers.\n")
FRONT = RepoTarget("frontend", "acme/frontend", "batman/42", "Show it", extra_labels=("ui",))
URLS = {"backend": "https://host/acme/backend/pull/1", "frontend": "https://host/f/2"}


def plan(*targets: RepoTarget, feature_id: str = "42") -> Plan:
    return Plan(feature_id, "A thing", "backend", 7, "acme", targets, Path("x.json"))


def test_each_one_is_pushed_and_opened_and_then_all_open_ones_learn_of_it():
    three = plan(BACK, FRONT, dataclasses.replace(BACK, repo_name="mobile"))
    assert three.steps == (
        Push("backend"),
        Open("backend"),
        Refresh("backend", "backend"),
        Push("frontend"),
        Open("frontend"),
        Refresh("backend", "frontend"),
        Refresh("frontend", "frontend"),
        Push("mobile"),
        Open("mobile"),
        Refresh("backend", "mobile"),
        Refresh("frontend", "mobile"),
        Refresh("mobile", "mobile"),
    )
    assert three.total() == 3


def test_each_text_names_the_parent_and_closes_nothing():
    """The first merged part must not close it; the pre-push hook knows the pull request by it."""
    for target in (BACK, FRONT):
        body = first_body(plan(BACK, FRONT), target, URLS)
        assert IssueRef("acme/backend", "7") in named_by_pull(body)
        assert IssueRef("acme/backend", "7") in named_by_pull(section(plan(BACK), BACK, {}))
        assert closed_by_pull(body) == ()


def test_labels_are_the_published_ones_and_the_targets_own():
    assert plan(FRONT).labels(FRONT) == ("agent:pr-open", "agent:authored", "ui")


def test_the_parent_is_a_link_on_any_host():
    assert plan(BACK).parent == "acme/backend#7"
    assert dataclasses.replace(plan(BACK), parent_repo="other/thing").parent == "other/thing#7"


@pytest.mark.parametrize(
    ("targets", "feature_id"),
    [
        ((), "42"),
        ((BACK, BACK), "42"),
        ((BACK,), " "),
        ((dataclasses.replace(BACK, branch="--mirror"),), "42"),
        ((dataclasses.replace(BACK, branch=""),), "42"),
    ],
)
def test_what_is_no_chain_is_refused_as_the_published_one_does(targets, feature_id):
    with pytest.raises(BadChain):
        plan(*targets, feature_id=feature_id)
    with pytest.raises(ValueError):
        plan(*targets, feature_id=feature_id)


def test_the_first_text_says_what_the_published_one_says():
    body = first_body(plan(BACK, FRONT), BACK, {})
    for fact in ("acme/backend#7", "A thing", "It answers.", "operator", "Part 1 of 2"):
        assert fact in body
    assert "1. backend: this one" in body
    assert "2. frontend: not open yet" in body


def test_a_refreshed_text_shows_the_others_and_keeps_what_people_wrote():
    chain = plan(BACK, FRONT)
    body = first_body(chain, BACK, {})
    edited = f"Please look at the cache.\n\n{body}\n- [x] I tested it\n"
    now = refreshed(edited, chain, BACK, URLS)
    assert "2. frontend: https://host/f/2" in now
    assert now.startswith("Please look at the cache.\n\n")
    assert now.endswith("\n- [x] I tested it\n")
    assert refreshed(now, chain, BACK, URLS) == now


def test_a_text_without_our_part_gets_it_at_the_end():
    chain = plan(BACK, FRONT)
    now = refreshed("By hand.\n", chain, BACK, URLS)
    assert now == f"By hand.\n\n{section(chain, BACK, URLS)}\n"
    assert refreshed(now, chain, BACK, URLS) == now
    assert refreshed("", chain, BACK, URLS) == f"{section(chain, BACK, URLS)}\n"


def test_other_line_ends_are_no_difference():
    chain = plan(BACK, FRONT)
    through_a_browser = first_body(chain, BACK, URLS).replace("\n", "\r\n")
    assert refreshed(through_a_browser, chain, BACK, URLS) == through_a_browser
    changed = refreshed(through_a_browser, chain, BACK, {**URLS, "frontend": "https://new"})
    assert "https://new" in changed
    assert changed.count("dibs:chain") == 1


def test_a_mark_that_lost_its_end_does_not_swallow_what_people_wrote():
    chain = plan(BACK, FRONT)
    torn = first_body(chain, BACK, {}).replace("<!-- dibs:end-of-chain 42 -->", "")
    once = refreshed(f"{torn}\nImportant.\n", chain, BACK, URLS)
    twice = refreshed(once, chain, BACK, {**URLS, "frontend": "https://new"})
    assert "Important." in twice
    assert "https://new" in twice
    assert "https://host/f/2" not in twice


def test_chains_do_not_touch_each_others_parts():
    one, other = plan(BACK, FRONT), plan(BACK, FRONT, feature_id="4")
    both = refreshed(refreshed("", one, BACK, {}), other, BACK, {})
    now = refreshed(both, other, BACK, URLS)
    assert section(one, BACK, {}) in now
    assert section(other, BACK, URLS) in now
    assert is_of_chain(now, "42")
    assert not is_of_chain(now, "2")


def test_a_text_that_is_too_long_is_cut_and_says_so():
    body = first_body(plan(BACK), dataclasses.replace(BACK, acceptance_criteria="é" * 90_000), {})
    assert len(body) < 65_536
    assert "too long" in body
    assert is_of_chain(body, "42")


_WRITTEN = st.text(st.sampled_from("ab \n\r<>!-") | st.characters(exclude_categories=["Cs"]))


@given(_WRITTEN, _WRITTEN, st.text(min_size=1), st.sets(st.sampled_from(["backend", "frontend"])))
def test_whatever_stands_around_it_only_our_part_changes(before, after, feature_id, opened):
    if not feature_id.strip():
        return
    chain = plan(BACK, FRONT, feature_id=feature_id)
    urls = {name: URLS[name] for name in opened}
    body = f"{before}{section(chain, BACK, {})}{after}"
    now = refreshed(body, chain, BACK, urls)
    assert now == f"{before}{section(chain, BACK, urls)}{after}"
    assert refreshed(now, chain, BACK, urls) == now


@given(st.text())
def test_nothing_that_is_handed_in_can_pass_for_a_mark(text):
    target = dataclasses.replace(BACK, repo_name=f"b {text}")
    chain = dataclasses.replace(plan(target), feature_title=text, approved_by=text)
    body = first_body(chain, dataclasses.replace(target, acceptance_criteria=""), {})
    assert len(re.findall("<!--", body)) == 2
