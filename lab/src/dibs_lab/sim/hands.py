"""Everybody who changes issues and is not a worker: operators, people, vandals, strangers, bots.

Each acts once, at a random moment of the storm, over a wire like a worker's.
"""

from collections.abc import Callable, Collection

from msgspec.structs import replace

from dibs.core.card import Card, CardState, parse_mark, render_card, render_revoke, render_shown
from dibs.core.errors import DibsError
from dibs.core.ids import HolderId, IssueRef, RunId, StageName
from dibs.core.issue import Comment, Snapshot
from dibs.core.lease import Ending, Outcome, Revocation
from dibs_lab.sim.fibres import Process
from dibs_lab.sim.history import Fault, Meddled
from dibs_lab.sim.wires import Wire, WiredTracker
from dibs_lab.sim.world import World

STRANGER = "mallory"
Act = Callable[[World, Process, Wire, WiredTracker, IssueRef], None]


def set_out(world: World) -> None:
    """Start everybody whom the scenario asks for."""
    faults = world.scenario.faults
    for number, act in (
        (faults.operator, revoke_gracefully),
        (faults.force, revoke_by_force),
        (faults.person, change_labels),
        (faults.vandal, spoil_a_card),
        (faults.stranger, forge),
        (faults.bot, write_labels_back),
    ):
        for _ in range(number):
            _send(world, act)


def _send(world: World, act: Act) -> None:
    process = world.process(act.__name__)
    wire = world.wire(process)
    tracker = world.tracker(wire)
    at_s = world.dice.uniform(0.0, world.scenario.storm_s * 0.6)
    issue = world.dice.choice(world.issues)

    def main() -> None:
        process.sleep(at_s)
        try:
            act(world, process, wire, tracker, issue)
        except DibsError as failure:  # a person who is refused gives up
            wire.note(Fault("gave up", str(failure)))

    process.start(main, "main")


# Operators


def revoke_gracefully(
    world: World, process: Process, _: Wire, tracker: WiredTracker, issue: IssueRef
) -> None:
    _revoke(world, process, tracker, issue, force=False)


def revoke_by_force(
    world: World, process: Process, _: Wire, tracker: WiredTracker, issue: IssueRef
) -> None:
    _revoke(world, process, tracker, issue, force=True)


def _revoke(
    world: World, process: Process, tracker: WiredTracker, issue: IssueRef, *, force: bool
) -> None:
    """Wait until a run holds the issue, then revoke: a revoke without a lease shows nothing."""
    services = world.services(process)
    while world.weather.storms(process):
        record = services.leases.standing(tracker.read(issue)).record
        if record is not None and record.live:
            run = record.lease.run
            services.steering.revoke(issue, run, by="ada", reason="a test", force=force)
            return
        process.sleep(world.scenario.ttl_s / 4)


# People


def change_labels(
    world: World, process: Process, wire: Wire, tracker: WiredTracker, issue: IssueRef
) -> None:
    """Pause and resume; remove `claimed`; move the issue back to its first stage."""
    marks, first = world.pipeline.labels, world.pipeline.stages[0]
    match world.dice.randrange(3):
        case 0:
            _edit(world, wire, issue, add={marks.paused})
            process.sleep(world.dice.uniform(0.0, 2 * world.scenario.ttl_s))
            _edit(world, wire, issue, remove={marks.paused})
        case 1:
            _edit(world, wire, issue, remove={marks.claimed, first.working_label or ""})
        case _:
            others = {stage.label for stage in world.pipeline.stages[1:]}
            known = tracker.read(issue).issue
            if known.open and known.labels & others:
                _edit(world, wire, issue, add={first.label}, remove=known.labels & others)


def _edit(
    world: World,
    wire: Wire,
    issue: IssueRef,
    *,
    add: Collection[str] = (),
    remove: Collection[str] = (),
) -> None:
    added, removed = frozenset(add), frozenset(remove)

    def change() -> None:
        """Recorded when it takes effect: the person may never get the reply."""
        world.server.edit_labels(issue, add=sorted(added), remove=sorted(removed))
        wire.note(Meddled(issue, added, removed))

    arguments = tuple(sorted(added)), tuple(sorted(removed))
    wire.call("edit_labels", issue, change, *arguments, writes=True)


def spoil_a_card(
    world: World, _: Process, wire: Wire, tracker: WiredTracker, issue: IssueRef
) -> None:
    """With write access: delete a card, or overwrite it with something else."""
    snapshot = tracker.read(issue)
    cards = [one for one in snapshot.comments if isinstance(parse_mark(one.body), Card)]
    if not cards:
        return
    spoilt = world.dice.choice(cards)
    if world.dice.random() < 0.5:
        wire.note(Fault("deleted", f"card {spoilt.id}"))
        wire.call("delete_comment", issue, lambda: world.server.delete_comment(issue, spoilt.id))
        return
    body = world.dice.choice(("Sorry, wrong window.", _shortened_card(spoilt)))
    wire.note(Fault("overwritten", f"card {spoilt.id}"))
    tracker.edit_comment(issue, spoilt.id, body)


def _shortened_card(comment: Comment) -> str:
    card = parse_mark(comment.body)
    assert isinstance(card, Card), "chosen among the cards"
    return render_card(replace(card, state=CardState.CONCEDED))


# Strangers


def forge(world: World, _: Process, wire: Wire, tracker: WiredTracker, issue: IssueRef) -> None:
    """Without write access: comment with a card of one's own, or with another run's id."""
    snapshot = tracker.read(issue)
    body = world.dice.choice(_forgeries(world, snapshot))
    wire.note(Fault("forged", body.partition("\n")[0]))

    def post() -> Comment:
        return world.server.comment(issue, body, author=STRANGER, by_writer=False)

    wire.call("comment", issue, post, body, writes=True)


def _forgeries(world: World, snapshot: Snapshot) -> list[str]:
    ttl, stage = world.scenario.terms.ttl, world.pipeline.stages[0].name
    mine = Card(
        run=RunId("forged"), ttl=ttl, holder=HolderId(STRANGER), stage=stage, state=CardState.BID
    )
    done = Ending(Outcome.ADVANCED, StageName(world.pipeline.stages[-1].name))
    made = [
        render_card(mine),
        render_card(replace(mine, state=CardState.HELD, prev=snapshot.now)),
        render_card(replace(mine, state=CardState.RELEASED, prev=snapshot.now, ending=done)),
    ]
    for comment in snapshot.comments:
        card = parse_mark(comment.body)
        if isinstance(card, Card):
            made.append(render_card(replace(card, state=CardState.RELEASED, ending=done)))
            made.append(render_card(replace(card, state=CardState.CONCEDED)))
            revocation = Revocation(card.run, STRANGER, "forged", force=True)
            made.append(render_revoke(revocation))
            made.append(render_shown(card.run))
    return made


# Bots


def write_labels_back(
    world: World, process: Process, wire: Wire, tracker: WiredTracker, issue: IssueRef
) -> None:
    """Read the labels, wait, and set the whole list to what was read plus its own label."""
    read = tracker.read(issue).issue.labels
    process.sleep(world.dice.uniform(0.0, 5.0))

    def put() -> None:
        now = world.server.truth.read(issue).issue.labels
        wanted = read | {"triaged"}
        world.server.edit_labels(issue, add=sorted(wanted - now), remove=sorted(now - wanted))
        wire.note(Meddled(issue, wanted - now, now - wanted))

    wire.call("put_labels", issue, put, writes=True)
