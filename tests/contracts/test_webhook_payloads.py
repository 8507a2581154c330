"""The webhooks that the fake sends, against GitHub's schemas for them."""

from dibs_lab.fakehub import FakeHub, Limits, Permission

from . import webhooks

REPOSITORY = "acme/shop"
SENT = {
    "issues": "opened edited closed reopened labeled unlabeled assigned unassigned locked unlocked "
    "transferred deleted",
    "issue_comment": "created edited deleted",
    "label": "created edited deleted",
}


def test_every_payload_is_as_github_describes_it():
    with FakeHub(limits=Limits.off()) as hub:
        hub.user("alice", {REPOSITORY: Permission.ADMIN, "acme/attic": Permission.ADMIN})
        alice = hub.state.acting(hub.state.viewer("alice-token"))
        shop = hub.state.named(REPOSITORY)
        hook = alice.create_hook(shop, "http://127.0.0.1:9/nobody", events=["*"])
        _happen(alice, shop, hub.state.named("acme/attic"))
        hub.world.deliveries.ping(hook, "alice")
        hub.world.deliveries.settle()
        sent = hub.world.deliveries.done
    found = [flaw for one in sent for flaw in webhooks.flaws(one.event, one.payload)]
    assert found == []
    told = {f"{one.event} {one.action}" for one in sent}
    wanted = {f"{event} {action}" for event, actions in SENT.items() for action in actions.split()}
    assert sorted(wanted - told) == []
    assert "ping None" in told


def _happen(alice, shop, attic):
    issue = alice.create_issue(shop, "It broke", labels=["bug"])
    alice.edit_issue(issue, title="It broke again", body="Really")
    alice.assign(issue, ["alice"])
    alice.unassign(issue, ["alice"])
    said = alice.create_comment(issue, "Looking")
    alice.edit_comment(said, "Looked")
    alice.delete_comment(said)
    alice.lock_issue(issue)
    alice.unlock_issue(issue)
    alice.remove_label(issue, "bug")
    alice.close_issue(issue)
    alice.reopen_issue(issue)
    label = alice.create_label(shop, "stage:ready")
    alice.delete_label(alice.edit_label(label, name="stage:done"))
    alice.transfer_issue(issue, attic)
    alice.delete_issue(alice.create_issue(shop, "By mistake"))
