"""The board as lines that fit a terminal of any size: a function from a survey to text.

What waits for a person comes first, then what runs, what is next in line, and the stages. A line is
cut with an ellipsis and never wraps; where rows are few, each list gives some up. Titles, notes and
output are strangers' text: control characters in them are shown and not sent to the terminal.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from itertools import islice

from msgspec import Struct
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from dibs.core.durations import describe_span
from dibs.core.ids import IssueRef, RunId
from dibs.frontends.cli.operating import APART, ASKED, safe, stage_table
from dibs.frontends.cli.output import ago
from dibs.services.board import FOR_PEOPLE, Row, RowState, StageSummary, Survey

_ROOMY = 20
"""From so many rows on, the stages are a table and the lists have blank lines between them."""
_KEYS = "q quit   / filter   a number opens an issue   j k scroll   r read now"


class View(Struct, frozen=True):
    """What the person at the keyboard has chosen."""

    needle: str = ""
    """Show only rows that contain this text."""
    first: int = 0
    """So many rows of each kind for a person are scrolled away."""
    typed: str = ""
    """What is being typed: `/` and a filter, or the number of an issue."""
    message: str = ""


class Sight(Struct, frozen=True):
    """A survey with what this machine knows besides."""

    survey: Survey
    title: str
    age: timedelta
    """How long ago the survey was read."""
    every_s: float
    outputs: Mapping[RunId, str] = {}
    """The last line that each handler on this machine wrote."""
    done_before: int = 0
    """How many issues were in a final stage when the watch began."""
    watched: timedelta = timedelta()
    trouble: str = ""
    """Why the last reading failed."""


def fit(text: str, width: int) -> str:
    """The text in exactly so many cells: padded, or cut with an ellipsis."""
    if cell_len(text) <= width:
        return text + " " * (width - cell_len(text))
    return set_cell_size(text, width - 1) + "…" if width > 1 else "…" * width


def picture(sight: Sight, view: View, width: int, height: int) -> list[Text]:
    """The board in at most `height` lines of at most `width` cells."""
    overview, roomy = sight.survey.overview, height >= _ROOMY
    name = _namer(sight.survey)
    head = [_title(sight, width)]
    head += [
        Text(safe(f"{pause} (since {ago(pause.since, overview.now)})"), "yellow")
        for pause in overview.pauses
    ]
    if sight.trouble:
        head.append(Text(safe(f"could not read it again: {sight.trouble}"), "red"))
    people, running, coming = (
        [row for row in rows if _matches(row, view.needle, sight)]
        for rows in (sight.survey.people, sight.survey.running, sight.survey.coming)
    )
    foot = [_foot(view)]
    stages = _stages(overview.stages, roomy=roomy)
    body = height - len(head) - len(stages) - len(foot) - 3 - (4 if roomy else 0)
    rows = _shares((len(people), len(running), len(coming)), body)
    gap = [Text("")] if roomy else []
    lists = [
        *gap,
        _heading("for a person", _sums(people), rows[0], len(people)),
        *_people(_of_each_kind(people, rows[0], view.first), width, name),
        *gap,
        _heading("running", f"{len(running)}", rows[1], len(running)),
        *_running(running[: rows[1]], width, name, sight),
        *gap,
        _heading("next in line", "" if coming else "none", rows[2], len(coming)),
        *_coming(coming[: rows[2]], width, name),
        *gap,
    ]
    lines = [*head, *lists, *stages][: height - len(foot)]
    lines += [Text("")] * (height - len(foot) - len(lines))
    for line in (lines := [*lines, *foot]):
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return lines


def _namer(survey: Survey) -> Callable[[IssueRef], str]:
    """How issues are written: without their repository, if all are in the same."""
    rows = (*survey.people, *survey.running, *survey.coming)
    if len({row.issue.ref.repo for row in rows}) > 1:
        return str
    return lambda ref: str(IssueRef("", ref.key))


def _title(sight: Sight, width: int) -> Text:
    done = sum(entry.issues for entry in sight.survey.overview.stages if entry.stage.final)
    came = max(0, done - sight.done_before)
    facts = [f"{done} done"]
    if came and sight.watched >= timedelta(minutes=1):
        rate = came / sight.watched.total_seconds() * 3600
        facts.append(f"{came} in {describe_span(sight.watched)}, {rate:.0f} an hour")
    old_s = int(sight.age.total_seconds())
    facts.append(f"read {old_s}s ago, every {sight.every_s:g}s" if old_s >= 2 else "live")
    right = "  ".join(facts)
    left = fit(safe(f"dibs  {sight.title}"), max(0, width - cell_len(right) - 2))
    return Text(f"{left}  {right}", "bold")


def _matches(row: Row, needle: str, sight: Sight) -> bool:
    lease = row.record.lease if row.record else None
    output = sight.outputs.get(lease.run, "") if lease else ""
    holder = lease.holder if lease else ""
    stage = row.stage.name if row.stage else ""
    words = (str(row.issue.ref), row.issue.title, row.note, row.state, stage, holder, output)
    return needle.casefold() in " ".join(words).casefold()


def _sums(people: Sequence[Row]) -> str:
    """How many rows there are of each kind, in words."""
    words = {RowState.GATED: "to approve", RowState.PARKED: "parked", RowState.PAUSED: "paused"}
    sums = [(sum(row.state is state for row in people), words[state]) for state in FOR_PEOPLE]
    return ", ".join(f"{count} {word}" for count, word in sums if count) or "nothing"


def _heading(name: str, sums: str, shown: int, count: int) -> Text:
    text = Text(f"{name}  ", "bold").append(sums, "not bold")
    return text.append(f"  ({shown} of {count} shown)", "dim") if shown < count else text


def _shares(wanted: Sequence[int], rows: int) -> list[int]:
    """Deal the rows out, one to each list in turn, the first list first, as far as each wants."""
    dealt = [0] * len(wanted)
    while rows > 0 and dealt != list(wanted):
        for place, most in enumerate(wanted):
            if dealt[place] < most and rows > 0:
                dealt[place] += 1
                rows -= 1
    return dealt


def _of_each_kind(people: Sequence[Row], rows: int, first: int) -> list[Row]:
    """So many rows, some of each kind; `first` are scrolled away, as far as a kind has more."""
    kinds = [[row for row in people if row.state is state] for state in FOR_PEOPLE]
    shown: list[Row] = []
    for kind, share in zip(kinds, _shares([len(kind) for kind in kinds], rows), strict=True):
        start = min(first, len(kind) - share)
        shown += kind[start : start + share]
    return shown


def _people(rows: Sequence[Row], width: int, name: Callable[[IssueRef], str]) -> list[Text]:
    cells = [
        (name(row.issue.ref), ASKED[row.state], _stage(row), row.issue.title, row.note)
        for row in rows
    ]
    return _columns(cells, width, style="yellow")


def _running(
    rows: Sequence[Row], width: int, name: Callable[[IssueRef], str], sight: Sight
) -> list[Text]:
    cells = []
    for row in rows:
        if row.record is None:
            continue
        lease = row.record.lease
        ran = describe_span(row.record.as_of - lease.granted_at + sight.age)
        attempts = f"{row.attempt}/{row.stage.attempts}" if row.stage and row.attempt else ""
        output = sight.outputs.get(lease.run, "")
        cells.append(
            (name(row.issue.ref), lease.stage, lease.holder, ran, attempts, row.issue.title, output)
        )
    return _columns(cells, width, style="green")


def _coming(rows: Sequence[Row], width: int, name: Callable[[IssueRef], str]) -> list[Text]:
    return _columns(
        [(name(row.issue.ref), _stage(row), row.issue.title, "") for row in rows], width
    )


def _stage(row: Row) -> str:
    return row.stage.name if row.stage else ""


def _columns(rows: Sequence[tuple[str, ...]], width: int, style: str = "") -> list[Text]:
    """Rows in columns: short ones, then a title and a remark, which share the rest of the width."""
    if not rows:
        return []
    cells = [[safe(cell) for cell in row] for row in rows]
    *short, titles, remarks = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    most = max(10, width // 6)
    short = [min(column, most) for column in short]
    left = max(0, width - 2 - sum(short) - 2 * len(short))
    title = min(titles, left if not remarks else max(left - 2 - remarks, left * 11 // 20))
    lines = []
    for first, *others, named, remark in cells:
        line = Text("  ").append(fit(first, short[0]), style)
        for cell, column in zip(others, short[1:], strict=True):
            line.append(f"  {fit(cell, column)}")
        if remark:
            line.append(f"  {fit(named, title)}", "bold")
            line.append(f"  {fit(remark, max(0, left - title - 2)).rstrip()}", "dim")
        else:
            line.append(f"  {fit(named, min(left, cell_len(named)))}", "bold")
        lines.append(line)
    return lines


def _stages(stages: Sequence[StageSummary], *, roomy: bool) -> list[Text]:
    """The stages as a table, or on one line."""
    if roomy:
        headings, rows = stage_table(stages)
        cells = [[safe(cell) for cell in row] for row in (headings, *rows)]
        widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
        return [
            Text(
                "  ".join(
                    [fit(row[0], widths[0])]
                    + [cell.rjust(wide) for cell, wide in zip(row[1:], widths[1:], strict=True)]
                ),
                "" if place else "bold",
            )
            for place, row in enumerate(cells)
        ]
    told = []
    for entry in stages:
        counts = {"waiting": entry.waiting, "in flight": entry.in_flight}
        counts |= {word: entry.apart.get(state, 0) for word, state in APART.items()}
        if entry.stage.final:
            counts = {"": entry.issues}
        words = [f"{count} {word}".rstrip() for word, count in counts.items() if count]
        told.append(f"{entry.stage.name} {', '.join(words) or 0}")
    return [Text(safe("; ".join(told)))]


def _foot(view: View) -> Text:
    if view.typed.startswith("/"):
        return Text(f"filter: {safe(view.typed[1:])}_   (Enter keeps it, Esc drops it)", "reverse")
    if view.typed:
        return Text(f"open issue: {view.typed}_   (Enter opens it, Esc goes back)", "reverse")
    if view.message:
        return Text(safe(view.message), "red")
    if view.needle:
        return Text(f"only {safe(view.needle)!r}, Esc shows all   {_KEYS}", "dim")
    return Text(_KEYS, "dim")


def page(lines: Sequence[str], first: int, width: int, height: int) -> list[Text]:
    """The details of an issue from line `first` on, folded to the width."""
    folded = [part for line in lines for part in _folded(safe(line), width)]
    first = min(first, max(0, len(folded) - height + 1))
    shown = [Text(line) for line in islice(folded, first, first + height - 1)]
    shown += [Text("")] * (height - 1 - len(shown))
    return [*shown, Text("q back   j k scroll", "dim")]


def _folded(line: str, width: int) -> list[str]:
    from rich.cells import chop_cells

    return chop_cells(line, width) or [""]
