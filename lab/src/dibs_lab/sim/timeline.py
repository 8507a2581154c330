"""A run as text: one line for each thing that happened, in order, with the faults marked."""

from collections.abc import Collection, Iterator

from dibs.core.card import Card, ExcuseMark, RevokeMark, ShownMark, UnknownMark, parse_mark
from dibs.core.events import Event, Step
from dibs.core.issue import Comment, Snapshot
from dibs.ports.tracker import Found
from dibs_lab.sim.history import (
    Acts,
    Advances,
    Called,
    Effect,
    Fault,
    Holds,
    LetsGo,
    Meddled,
    What,
)
from dibs_lab.sim.runs import Run

_TEXT = 110


def timeline(run: Run, violations: Collection[object] = (), *, steps: bool = False) -> str:
    """The whole run. `steps` adds scans, and the named steps that the services passed."""
    scenario = run.scenario
    head = [
        f"scenario {scenario.name}, seed {run.seed}, dibs {run.version}",
        f"{scenario.workers} workers, {scenario.issues} issues, leases in {scenario.leases}",
        f"ttl {scenario.ttl_s:g} s, settle {scenario.settle_s:g} s",
        "",
    ]
    tail = ["", *(f"VIOLATED  {violation}" for violation in violations)]
    return "\n".join([*head, *_lines(run, steps=steps), *tail])


def _lines(run: Run, *, steps: bool) -> Iterator[str]:
    width = max((len(note.process) for note in run.notes), default=0)
    for note in run.notes:
        if not steps and _is_a_step(note.what):
            continue
        mark = "!" if isinstance(note.what, Fault | Meddled) else " "
        yield f"{note.at_us / 1e6:10.3f} {mark} {note.process:{width}}  {describe(note.what)}"


def _is_a_step(what: What) -> bool:
    return isinstance(what, Step | Acts) or (isinstance(what, Called) and what.op == "find")


def describe(what: What) -> str:
    match what:
        case Event():
            return _event(what)
        case Called():
            return _call(what)
        case Fault(kind, text):
            return f"{kind} {text}"[:_TEXT]
        case Meddled(issue, added, removed):
            return f"labels of {issue}: {_signed(added, removed)}"
        case Step():
            return f". {what.value}"
        case Acts() | Holds() | LetsGo() | Advances() | Effect():
            return _deed(what)


def _event(event: Event) -> str:
    detail = " ".join(f"{key}={value}" for key, value in event.detail.items())
    fence = f" fence {event.fence}" if event.fence is not None else ""
    text = f"= {event.kind.value} {event.issue or ''} {event.run or ''}{fence} {detail}"
    return text.rstrip()[:_TEXT]


def _deed(what: Acts | Holds | LetsGo | Advances | Effect) -> str:
    match what:
        case Acts(run):
            return f". acts ({run})"
        case Holds(issue, run, fence):
            return f"= acts as the holder of {issue} ({run}, fence {fence})"
        case LetsGo(run):
            return f"= stops acting as a holder ({run})"
        case Advances(issue, run):
            return f"= moves {issue} on ({run})"
        case Effect(issue, run, fence, accepted):
            said = "effect" if accepted else "REFUSED effect"
            return f"{said} on {issue} ({run}, fence {fence})"


def _call(call: Called) -> str:
    match call.op, call.arguments, call.answer:
        case "comment" | "edit_comment", (*_, str(body)), Comment() as comment:
            verb = "posts" if call.op == "comment" else "edits"
            stamp = comment.updated_at.strftime("%M:%S")
            return f"{verb} {comment.id} on {call.issue}: {_mark(body)} [{stamp}]"
        case "edit_labels", (add, remove), _:
            return f"labels {call.issue}: {_signed(_names(add), _names(remove))}"
        case "read", _, Snapshot() as snapshot:
            return f"reads {call.issue}: {_picture(snapshot)}"
        case "find", _, Found() as found:
            return f"finds {', '.join(str(issue.ref) for issue in found.issues) or 'nothing'}"
        case op, arguments, answer:
            said = " ".join(str(argument) for argument in arguments)
            answered = type(answer).__name__ if answer is not None else ""
            return f"{op} {call.issue or ''} {said} {answered}".rstrip()[:_TEXT]


def _mark(body: str) -> str:
    mark = parse_mark(body)
    match mark:
        case Card():
            ending = mark.ending
            came_of_it = f" {ending.outcome.value} {ending.next or ''}" if ending else ""
            before = f" prev {mark.prev:%M:%S}" if mark.prev is not None else ""
            shown = " shown" if mark.shown else ""
            return f"{mark.run} {mark.state.value}{came_of_it}{before}{shown}"
        case RevokeMark(revocation):
            force = " by force" if revocation.force else ""
            return f"revokes {revocation.run}{force}"
        case ShownMark(run):
            return f"shown {run}"
        case ExcuseMark(run):
            return f"excuses {run}"
        case UnknownMark() | None:
            return repr(body[:60])


def _picture(snapshot: Snapshot) -> str:
    cards = [_state(comment) for comment in snapshot.comments]
    labels = ", ".join(sorted(snapshot.issue.labels))
    short = "" if snapshot.complete else f" ({snapshot.issue.comment_count} counted)"
    return f"{labels}{'' if snapshot.issue.open else ', closed'} | {' '.join(cards)}{short}"


def _state(comment: Comment) -> str:
    mark = parse_mark(comment.body)
    whose = "" if comment.by_writer else "?"
    match mark:
        case Card():
            shown = "+" if mark.shown else ""
            return f"{comment.id}:{mark.run}={mark.state.value}{shown}{whose}"
        case RevokeMark(revocation):
            return f"{comment.id}:revoke {revocation.run}{whose}"
        case ShownMark(run):
            return f"{comment.id}:shown {run}{whose}"
        case ExcuseMark(run):
            return f"{comment.id}:excused {run}{whose}"
        case UnknownMark() | None:
            return f"{comment.id}:text{whose}"


def _names(labels: object) -> frozenset[str]:
    return frozenset(labels) if isinstance(labels, tuple) else frozenset()


def _signed(added: Collection[str], removed: Collection[str]) -> str:
    return " ".join(
        [*(f"+{one}" for one in sorted(added)), *(f"-{one}" for one in sorted(removed))]
    )
