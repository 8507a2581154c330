"""What a benchmark hands back, and how it is shown: tables, notes, and checks that can fail."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

Cell = str | int | float | None
Say = Callable[[str], None]
"""Where progress goes: standard error."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    form: str = ""
    """A format specification for numbers; text is shown as it is."""


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Check:
    """Something that must hold. One that does not makes the run exit with 1."""

    text: str
    passed: bool


@dataclass(slots=True)
class Result:
    question: str
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


def render(result: Result) -> str:
    parts = [f"{result.question}\n"]
    parts += [_table(table) for table in result.tables]
    parts += [f"  {line}" for note in result.notes for line in note.splitlines()]
    parts.append("")
    parts += [f"  {'ok  ' if check.passed else 'FAIL'} {check.text}" for check in result.checks]
    return "\n".join(parts) + "\n"


def _table(table: Table) -> str:
    cells = [[_shown(cell, column) for cell, column in _pairs(row, table)] for row in table.rows]
    heads = [column.name for column in table.columns]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    to_left = [
        any(isinstance(row[place], str) for row in table.rows) for place in range(len(heads))
    ]

    def line(texts: Sequence[str]) -> str:
        padded = (
            text.ljust(width) if left else text.rjust(width)
            for text, width, left in zip(texts, widths, to_left, strict=True)
        )
        return f"  {'  '.join(padded)}".rstrip()

    rule = line(["-" * width for width in widths])
    return "\n".join([f"  {table.title}", line(heads), rule, *map(line, cells), ""])


def _pairs(row: tuple[Cell, ...], table: Table) -> list[tuple[Cell, Column]]:
    return list(zip(row, table.columns, strict=True))


def _shown(cell: Cell, column: Column) -> str:
    if cell is None:
        return "-"
    return cell if isinstance(cell, str) else format(cell, column.form)


def as_data(result: Result) -> dict[str, object]:
    """For --json: rows as objects, numbers as they were measured."""
    tables = [
        {
            "title": table.title,
            "rows": [
                {column.name: cell for cell, column in _pairs(row, table)} for row in table.rows
            ],
        }
        for table in result.tables
    ]
    return {
        "question": result.question,
        "tables": tables,
        "notes": result.notes,
        "checks": [asdict(check) for check in result.checks],
        "passed": result.passed,
    }


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the ratios of each round, so that a slow minute hits both sides."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
