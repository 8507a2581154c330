"""No setting is ignored in silence: what is in force can be asked for, and it is what acts."""

from .harness import LEDGER, Project

TEXT = f"""
preset = 'none'
grace = '3s'
ttl = '6m'

[repos]
'acme/shop' = 'shop'

[worker]
jobs = 3
poll = '250ms'

[[stage]]
name = 'one'
run = '''{LEDGER}'''
next = 'done'
attempts = 1
wip = 2
renew = '90s'
worktree = '../shop'

[[stage]]
name = 'done'
"""


def test_what_is_in_force_is_shown_with_what_the_file_leaves_out(project: Project) -> None:
    project.configure(TEXT)
    shown = project.dibs("config", "show", "--json").data
    assert (shown["grace"], shown["worker"]["jobs"], shown["worker"]["poll"]) == ("3s", 3, "250ms")
    one = shown["stage"][0]
    set_by_hand = {"ttl": "6m", "renew": "1m30s", "attempts": 1, "wip": 2}
    assert {key: one[key] for key in set_by_hand} == set_by_hand
    assert one["margin"] == "5s", "a default that follows from the ttl"
    assert one["max_hold"] == "1d"
    assert (one["worktree"], one["worktree_base"]) == ("../shop", "origin/main")
    assert shown["repos"] == {"acme/shop": str(project.root / "shop")}
    assert shown["source"] == str(project.root / "dibs.toml")


def test_a_limit_that_is_shown_is_a_limit_that_holds(project: Project) -> None:
    project.begin(TEXT.replace(LEDGER, "exit 1").replace("worktree = '../shop'", ""), 1)
    assert project.dibs("config", "show", "--json").data["stage"][0]["attempts"] == 1
    assert project.worker("worker", "--drain").wait().quiet().data["outcomes"] == {"parked": 1}
    assert "parked" in project.labels()
