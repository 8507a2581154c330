"""The board as lines that fit a terminal of any size: a function from a survey to text.

What waits for a person comes first, then what runs, what is next in line, and the stages. A line is
cut with an ellipsis and never wraps; where rows are few, each list gives some up. Titles, notes and
output are strangers' text: control characters in them are shown and not sent to the terminal.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial

from msgspec import Struct
from rich.cells import cell_len, chop_cells, set_cell_size
from rich.text import Text

from dibs.core.durations import describe_span
from dibs.core.ids import IssueRef, RunId
from dibs.frontends.cli.operating import (
    APART,
    ASKED,
    safe,
    shares,
    some_of_each,
    stage_table,
)
from dibs.frontends.cli.output import ago
from dibs.services.board import Row, RowState, StageSummary, Survey

_ROOMY = 20
"""From so many rows on, the stages are a table and the lists have blank lines between them."""
_KEYS = "q quit   / filter   a number opens an issue   j k scroll   r read now"
_SUMS = {RowState.GATED: "to approve", RowState.PARKED: "parked", RowState.PAUSED: "paused"}


class View(Struct, frozen=True):
    """What the person at the keyboard has chosen."""

    needle: str = ""
    """Show only rows that contain this text."""
    first: int = 0
    """So many rows of each kind for a person are scrolled away."""
    typed: str = ""
    """What is being typed: `/` and a filter, or the number of an issue."""
    message: str = ""

    @property
    def foot(self) -> Text:
        """The last line of the board: what is typed, or the keys."""
        if self.typed.startswith("/"):
            text = f"filter: {safe(self.typed[1:])}_   (Enter keeps it, Esc drops it)"
            return Text(text, "reverse")
        if self.typed:
            return Text(f"open issue: {self.typed}_   (Enter opens it, Esc goes back)", "reverse")
        if self.message:
            return Text(safe(self.message), "red")
        chosen = f"only {safe(self.needle)!r}, Esc shows all   " if self.needle else ""
        return Text(chosen + _KEYS, "dim")


class Sight(Struct, frozen=True):
    """A survey, and the facts that only this machine has: output and files of runs."""

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

    def head(self, width: int) -> list[Text]:
        """The backlog, how much of it is done, how old the reading is; then pauses and trouble."""
        overview = self.survey.overview
        done = sum(entry.issues for entry in overview.stages if entry.stage.final)
        facts = [f"{done} done"]
        if done > self.done_before and self.watched >= timedelta(minutes=1):
            came = done - self.done_before
            rate = came / self.watched.total_seconds() * 3600
            facts.append(f"{came} in {describe_span(self.watched)}, {rate:.0f} an hour")
        old_s = int(self.age.total_seconds())
        facts.append(f"read {old_s}s ago, every {self.every_s:g}s" if old_s >= 2 else "live")
        right = "  ".join(facts)
        left = fit(safe(f"dibs  {self.title}"), max(0, width - cell_len(right) - 2))
        lines = [Text(f"{left}  {right}", "bold")]
        for pause in overview.pauses:
            since = ago(pause.since, overview.now)
            lines.append(Text(safe(f"{pause} (since {since})"), "yellow"))
        if self.trouble:
            lines.append(Text(safe(f"could not read it again: {self.trouble}"), "red"))
        return lines

    def cells(self, row: Row, *, several: bool) -> tuple[str, ...]:
        """A row of the board: short facts, then the title and a remark.

        `several`: issues are of several repositories, so that a number does not name one.
        """
        name = str(row.issue.ref if several else IssueRef("", row.issue.ref.key))
        stage, title = row.stage.name if row.stage else "", row.issue.title
        if row.state in ASKED:
            return name, ASKED[row.state], stage, title, row.note
        if row.record is None:
            return name, stage, title, ""
        lease = row.record.lease
        ran = describe_span(row.record.as_of - lease.granted_at + self.age)
        attempts = f"{row.attempt}/{row.stage.attempts}" if row.stage and row.attempt else ""
        output = self.outputs.get(lease.run, "")
        return name, lease.stage, lease.holder, ran, attempts, title, output


def fit(text: str, width: int) -> str:
    """The text in exactly so many cells: padded, or cut with an ellipsis."""
    if cell_len(text) <= width:
        return text + " " * (width - cell_len(text))
    return set_cell_size(text, width - 1) + "…" if width > 1 else "…" * width


def picture(sight: Sight, view: View, width: int, height: int) -> list[Text]:
    """The board in at most `height` lines of at most `width` cells."""
    survey, roomy, needle = sight.survey, height >= _ROOMY, view.needle.casefold()
    rows_of_all = (survey.people, survey.running, survey.coming)
    several = len({row.issue.ref.repo for rows in rows_of_all for row in rows}) > 1
    cells = partial(sight.cells, several=several)
    people, running, coming = (
        [row for row in rows if needle in " ".join(cells(row)).casefold()] for rows in rows_of_all
    )
    head, stages = sight.head(width), stage_lines(survey.overview.stages, roomy=roomy)
    body = height - len(head) - len(stages) - 4 - (4 if roomy else 0)
    dealt = shares((len(people), len(running), len(coming)), body)
    sums = [(sum(row.state is state for row in people), word) for state, word in _SUMS.items()]
    asked = ", ".join(f"{count} {word}" for count, word in sums if count) or "nothing"
    gap = [Text("")] if roomy else []
    lists: list[Text] = []
    for name, total, rows, share, style in (
        ("for a person", asked, people, dealt[0], "yellow"),
        ("running", str(len(running)), running, dealt[1], "green"),
        ("next in line", "" if coming else "none", coming, dealt[2], ""),
    ):
        heading = Text(name, "bold").append(f"  {total}" if total else "", "not bold")
        if share < len(rows):
            heading.append(f"  ({share} of {len(rows)} shown)", "dim")
        shown = some_of_each(rows, share, view.first) if rows is people else rows[:share]
        lists += [*gap, heading, *_columns([cells(row) for row in shown], width, style)]
    lines = [*head, *lists, *gap, *stages][: height - 1]
    lines += [Text("") for _ in range(height - 1 - len(lines))]
    for line in (lines := [*lines, view.foot]):
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return lines


def _columns(rows: Sequence[tuple[str, ...]], width: int, style: str) -> list[Text]:
    """Rows in columns: short ones, then a title and a remark, which share the rest of the width."""
    if not rows:
        return []
    cells = [[safe(cell) for cell in row] for row in rows]
    *short, titles, remarks = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    short = [min(column, max(10, width // 6)) for column in short]
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


def stage_lines(stages: Sequence[StageSummary], *, roomy: bool) -> list[Text]:
    """The stages as a table, or on one line."""
    if roomy:
        headings, rows = stage_table(stages)
        widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
            for row in (headings, *rows)
        ]
        return [Text(line, "" if place else "bold") for place, line in enumerate(lines)]
    told = []
    for entry in stages:
        counts = {"waiting": entry.waiting, "in flight": entry.in_flight}
        counts |= {word: entry.apart.get(state, 0) for word, state in APART.items()}
        if entry.stage.final:
            counts = {"": entry.issues}
        words = [f"{count} {word}".rstrip() for word, count in counts.items() if count]
        told.append(f"{entry.stage.name} {', '.join(words) or 0}")
    return [Text("; ".join(told))]


def page(lines: Sequence[str], first: int, width: int, height: int) -> list[Text]:
    """The details of an issue from line `first` on, folded to the width."""
    folded = [part for line in lines for part in chop_cells(safe(line), width) or [""]]
    first = min(first, max(0, len(folded) - height + 1))
    shown = [Text(line) for line in folded[first : first + height - 1]]
    shown += [Text("") for _ in range(height - 1 - len(shown))]
    return [*shown, Text("q back   j k scroll", "dim")]
