"""The results of simulated fleets as one HTML page: no script, no network, no other files.

This module decides what is plotted, and gives each plot a title that states the finding, not the
axis. `plots` draws; `report` names the figures.
"""

from base64 import b64encode
from collections.abc import Callable, Sequence
from hashlib import sha256
from html import escape

from dibs._version import __version__
from dibs.core.durations import format_duration
from dibs_lab.plots import (
    NARROW,
    WIDE,
    Axis,
    Curve,
    Mark,
    Size,
    amount,
    clock,
    curves,
    histogram,
    running_sum,
    stairs,
    steps,
    thinned,
)
from dibs_lab.sim.metering import GITHUB_CREATING_AN_HOUR, GITHUB_REQUESTS_AN_HOUR
from dibs_lab.sim.sizing import Distribution, Sizing, Timeline
from dibs_lab.simulate import report

_MOST_POINTS = 220
_MOST_TONES = 6
_AS_GOOD_AS = 0.95
_TIME = Axis("simulated time", seconds=True)
Draw = Callable[[Size], str]


def document(key: str | None, values: Sequence[str], found: Sequence[Sizing]) -> str:
    """The whole document."""
    title = f"A fleet simulated: {report.headline(found[0].fleet, key)}"
    body = _compared(key, values, found) if key else _one(found[0])
    digest = b64encode(sha256(_STYLE.encode()).digest()).decode()
    return _DOCUMENT.format(
        title=escape(title),
        heading=escape("Comparing " + key if key else "A fleet, simulated"),
        summary=escape(report.headline(found[0].fleet, key)),
        style=_STYLE,
        # The page's own style sheet, and nothing else: no script, no image, no address.
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'",
        body=body,
        made_by=escape(f"dibs {__version__} simulate, seed {found[0].fleet.seed}"),
    )


# One fleet


def _one(sizing: Sizing) -> str:
    return "".join(
        [
            _tiles(sizing),
            _said(report.findings(sizing)),
            _plots(sizing),
            _tables(sizing),
        ]
    )


def _tables(sizing: Sizing) -> str:
    left = [
        _table("What came of it", ("what", "came of it"), report.outcome_rows(sizing)),
        _table(
            "Requests by what they were for",
            ("for", "an issue", "an hour", "share"),
            report.request_rows(sizing),
            numbers=True,
        ),
    ]
    right = [
        _table("What was simulated", ("option", "value"), report.fleet_rows(sizing.fleet)),
        _table(
            "Against GitHub",
            ("limit", "busiest", "one token", "tokens"),
            report.limit_rows(sizing),
            numbers=True,
        ),
    ]
    return (
        f'<section class="tables"><div class="stack">{"".join(left)}</div>'
        f'<div class="stack">{"".join(right)}</div></section>'
    )


def _tiles(sizing: Sizing) -> str:
    taken, tokens = sizing.takeover, report.tokens(sizing)
    shown = (
        (amount(sizing.an_hour), "issues done an hour", False),
        (f"{sizing.utilisation:.0%}", "of the workers' time is work", False),
        (str(sizing.duplicate_starts), "duplicate starts", sizing.duplicate_starts > 0),
        (str(sizing.lost), "issues lost", sizing.lost > 0),
        (clock(taken.p50_s) if taken.count else "-", "until half were taken over", False),
        (f"{sizing.requests.an_issue:.0f}", "API requests an issue", False),
        (str(tokens or "-"), "tokens on GitHub", (tokens or 1) > 1),
    )
    return '<section class="tiles">{}</section>'.format(
        "".join(
            f'<div class="tile{" alarming" * alarming}"><b>{escape(figure)}</b>'
            f"<span>{escape(words)}</span></div>"
            for figure, words, alarming in shown
        )
    )


def _said(findings: Sequence[str]) -> str:
    if not findings:
        return ""
    return f'<ul class="said">{"".join(f"<li>{escape(line)}</li>" for line in findings)}</ul>'


def _plots(sizing: Sizing) -> str:
    made = [_progress(sizing), _in_flight(sizing)]
    if sizing.takeover.count:
        made += [_blocked(sizing), _takeovers(sizing)]
    made += [_requests(sizing), _creating(sizing)]
    return f'<section class="plots">{"".join(made)}</section>'


def _progress(sizing: Sizing) -> str:
    line = sizing.timeline
    drawn = [
        Curve("arrived", _over_time(line, running_sum(line.arrived)), tone=2),
        Curve("at rest", _over_time(line, running_sum(line.rested)), tone=1, filled=True),
    ]
    title = (
        f"{amount(sizing.done)} issues done in {clock(sizing.passed_s)}, "
        f"{amount(sizing.an_hour)} an hour"
    )
    return _figure(
        title, drawn, lambda size: curves(drawn, x=_TIME, y=Axis("issues"), about=title, size=size)
    )


def _in_flight(sizing: Sizing) -> str:
    line = sizing.timeline
    started, stopped = running_sum(line.started), running_sum(line.stopped)
    working = [begun - ended for begun, ended in zip(started, stopped, strict=True)]
    waiting = [
        max(0, arrived - rested - busy)
        for arrived, rested, busy in zip(
            running_sum(line.arrived), running_sum(line.rested), working, strict=True
        )
    ]
    drawn = [
        Curve("waiting", _over_time(line, waiting), tone=2, filled=True),
        Curve("at work", _over_time(line, working), tone=1),
    ]
    title = f"At most {amount(max(working))} at work at once, and {amount(max(waiting))} waiting"
    return _figure(
        title, drawn, lambda size: curves(drawn, x=_TIME, y=Axis("issues"), about=title, size=size)
    )


def _blocked(sizing: Sizing) -> str:
    found, ttl = sizing.blocked, sizing.fleet.ttl
    title = f"Half of the dead workers' issues were free within {clock(found.p50_s)}"
    marks = [Mark(f"ttl {format_duration(ttl)}", ttl.total_seconds())]
    return _spans(title, found, "from the death to free again", marks)


def _takeovers(sizing: Sizing) -> str:
    found = sizing.takeover
    title = (
        f"Half were taken over within {clock(found.p50_s)}, nine of ten within {clock(found.p90_s)}"
    )
    marks = [Mark("half", found.p50_s), Mark("nine of ten", found.p90_s)]
    return _spans(title, found, "from the death to the next start", marks)


def _spans(title: str, found: Distribution, along: str, marks: list[Mark]) -> str:
    """A distribution of durations, lease by lease."""
    return _figure(
        title,
        (),
        lambda size: histogram(
            found.bins,
            found.most_s,
            x=Axis(along, seconds=True),
            y=Axis("leases"),
            about=title,
            marks=marks,
            size=size,
        ),
    )


def _requests(sizing: Sizing) -> str:
    most = sizing.requests.busiest_hour
    share = most / GITHUB_REQUESTS_AN_HOUR
    title = f"{amount(most)} requests in the busiest hour: {amount(share)} tokens on GitHub"
    return _rate(sizing, sizing.timeline.requests, title, GITHUB_REQUESTS_AN_HOUR, "requests")


def _creating(sizing: Sizing) -> str:
    most = sizing.requests.creating_busiest_hour
    share = most / GITHUB_CREATING_AN_HOUR
    title = f"{amount(most)} new comments in the busiest hour: {amount(share)} tokens on GitHub"
    return _rate(sizing, sizing.timeline.creating, title, GITHUB_CREATING_AN_HOUR, "new comments")


def _rate(sizing: Sizing, counts: Sequence[int], title: str, limit: int, what: str) -> str:
    drawn = [Curve(what, _rates(sizing, counts), tone=1, filled=True)]
    limits = [Mark(f"one token on GitHub: {amount(limit)} an hour", limit)]
    return _figure(
        title,
        (),
        lambda size: curves(
            drawn, x=_TIME, y=Axis(f"{what} an hour"), about=title, limits=limits, size=size
        ),
    )


# Several fleets


def _compared(key: str, values: Sequence[str], found: Sequence[Sizing]) -> str:
    rows = report.compared_rows(values, found)
    sheet = _table("", (key, *report.COMPARED), rows, numbers=True)
    said = [
        f"{key} {value}: {line}"
        for value, sizing in zip(values, found, strict=True)
        for line in report.alarms(sizing)
    ]
    return "".join(
        [
            _said(said),
            f'<section class="tables wide">{sheet}</section>',
            f'<section class="plots">{_comparisons(key, values, found)}</section>',
            *(
                f"<details><summary>{escape(f'{key} {value}')}</summary>{_one(sizing)}</details>"
                for value, sizing in zip(values, found, strict=True)
            ),
        ]
    )


def _comparisons(key: str, values: Sequence[str], found: Sequence[Sizing]) -> str:
    cheap = min(range(len(found)), key=lambda place: found[place].requests.an_hour)
    worst = max(sizing.duplicate_starts + sizing.repeated_starts for sizing in found)
    made = [
        _throughput(key, values, found),
        _against(
            f"{key} {values[cheap]} asks the least of the API: "
            f"{amount(round(found[cheap].requests.an_hour))} requests an hour",
            key,
            values,
            Axis("requests an hour"),
            [("requests an hour", [sizing.requests.an_hour for sizing in found])],
        ),
        _against(
            f"At most {worst} starts were not the first" if worst else "No issue was started twice",
            key,
            values,
            Axis("starts"),
            [
                ("repeated, after a crash or a lost lease", [s.repeated_starts for s in found]),
                ("duplicate, while another was at work", [s.duplicate_starts for s in found]),
            ],
        ),
    ]
    if any(sizing.takeover.count for sizing in found):
        made.append(_takeover_times(key, values, found))
    made += [_purposes(key, values, found), _together(key, values, found)]
    return "".join(made)


def _throughput(key: str, values: Sequence[str], found: Sequence[Sizing]) -> str:
    """Throughput by value. A difference that another seed would reverse counts as none."""
    done = [sizing.an_hour for sizing in found]
    best = done.index(max(done))
    if min(done) > _AS_GOOD_AS * max(done):
        title = f"As much gets done with any of them: {amount(max(done))} an hour"
    else:
        title = f"{key} {values[best]} gets the most done: {amount(max(done))} an hour"
    return _against(title, key, values, Axis("issues done an hour"), [("done an hour", done)])


def _purposes(key: str, values: Sequence[str], found: Sequence[Sizing]) -> str:
    an_issue = {
        name: [
            sizing.requests.by_purpose[name] / max(1, sizing.done + sizing.parked)
            for sizing in found
        ]
        for name in found[0].requests.by_purpose
    }
    most = max(an_issue, key=lambda name: sum(an_issue[name]))
    least, worst = min(an_issue[most]), max(an_issue[most])
    return _against(
        f"Most requests are for {most}: {amount(round(least))} to {amount(round(worst))} an issue",
        key,
        values,
        Axis("requests an issue"),
        list(an_issue.items()),
    )


def _takeover_times(key: str, values: Sequence[str], found: Sequence[Sizing]) -> str:
    least = min(range(len(found)), key=lambda place: found[place].blocked.p50_s)
    return _against(
        f"With {key} {values[least]} a dead worker blocks an issue "
        f"for {clock(found[least].blocked.p50_s)}",
        key,
        values,
        Axis("from the death on", seconds=True),
        [
            ("free again, half of them", [sizing.blocked.p50_s for sizing in found]),
            ("free again, nine of ten", [sizing.blocked.p90_s for sizing in found]),
            ("taken over, half of them", [sizing.takeover.p50_s for sizing in found]),
        ],
    )


def _against(
    title: str,
    key: str,
    values: Sequence[str],
    y: Axis,
    series: Sequence[tuple[str, Sequence[float]]],
) -> str:
    drawn = [
        Curve(name, list(enumerate(heights)), tone=tone)
        for tone, (name, heights) in enumerate(series, 1)
    ]
    return _figure(
        title,
        drawn if len(drawn) > 1 else (),
        lambda size: steps(values, drawn, x=Axis(key), y=y, about=title, size=size),
    )


def _together(key: str, values: Sequence[str], found: Sequence[Sizing]) -> str:
    drawn = [
        Curve(
            f"{key} {value}",
            _over_time(sizing.timeline, running_sum(sizing.timeline.rested)),
            tone=tone,
        )
        for tone, (value, sizing) in enumerate(
            zip(values[:_MOST_TONES], found[:_MOST_TONES], strict=True), 1
        )
    ]
    first = min(range(len(found)), key=lambda place: found[place].passed_s)
    title = f"With {key} {values[first]} all came to rest after {clock(found[first].passed_s)}"
    return _figure(
        title,
        drawn,
        lambda size: curves(drawn, x=_TIME, y=Axis("issues at rest"), about=title, size=size),
    )


# Pieces


def _over_time(line: Timeline, levels: Sequence[float]) -> list[tuple[float, float]]:
    """The points of a curve: each level at the end of its stretch."""
    points = [(0.0, 0.0), *(((at + 1) * line.width_s, level) for at, level in enumerate(levels))]
    return thinned(points, _MOST_POINTS)


def _rates(sizing: Sizing, counts: Sequence[int]) -> list[tuple[float, float]]:
    """Counts as rates per hour, over stretches that are long enough to be meaningful."""
    width_s = sizing.timeline.width_s
    merged = max(1, round(len(counts) / (_MOST_POINTS / 2)))
    stretches = []
    for place in range(0, len(counts), merged):
        began_s = place * width_s
        ended_s = min((place + merged) * width_s, sizing.passed_s)
        length_s = max(ended_s - began_s, width_s / 2)
        stretches.append((began_s, sum(counts[place : place + merged]) / length_s * 3600))
    return stairs([*stretches, (max(sizing.passed_s, width_s), 0.0)])


def _figure(title: str, legend: Sequence[Curve], draw: Draw) -> str:
    """Drawn twice, for wide and for narrow screens: text in a picture does not wrap."""
    names = "".join(
        f'<span class="key"><i class="tone{curve.tone}"></i>{escape(curve.name)}</span>'
        for curve in legend
    )
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        + (f'<div class="legend">{names}</div>' if names else "")
        + f'<div class="on-wide">{draw(WIDE)}</div><div class="on-narrow">{draw(NARROW)}</div>'
        "</figure>"
    )


def _table(
    title: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: bool = False,
) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    caption = f"<h2>{escape(title)}</h2>" if title else ""
    return (
        f'<div class="sheet">{caption}<div class="scroll"><table{" class=numbers" * numbers}>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></div>"
    )


_STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fbfbf9; --sheet: #ffffff; --ink: #1d2129; --faint: #667085; --rule: #e4e6ea;
  --t1: #2563c9; --t2: #c2571a; --t3: #2a8a63; --t4: #8250b8; --t5: #b3324f; --t6: #6b7280;
  --limit: #b3324f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14161a; --sheet: #1b1e24; --ink: #e7e9ee; --faint: #98a1b2; --rule: #2c313a;
    --t1: #7aa9ff; --t2: #f0985e; --t3: #62c79a; --t4: #bf9bf0; --t5: #f2849b; --t6: #9aa3b2;
    --limit: #f2849b;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 1220px; padding: 40px 28px 56px; background: var(--paper);
  color: var(--ink); line-height: 1.5; -webkit-text-size-adjust: 100%;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
h1 { font-size: 27px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -0.015em; }
h2 { font-size: 15px; margin: 0 0 10px; }
header p { margin: 0; color: var(--faint); }
.tiles {
  display: grid; gap: 12px; margin: 28px 0 20px;
  grid-template-columns: repeat(auto-fit, minmax(140px, 1fr));
}
.tile, figure, .sheet {
  background: var(--sheet); border: 1px solid var(--rule); border-radius: 10px;
}
.tile { padding: 14px 16px; }
.tile b { display: block; font-size: 25px; line-height: 1.2; letter-spacing: -0.02em;
  font-variant-numeric: tabular-nums; font-weight: 640; }
.tile span { color: var(--faint); font-size: 13px; line-height: 1.35; display: block; }
.tile.alarming b { color: var(--limit); }
.said { margin: 0 0 24px; padding: 12px 18px 12px 34px; border-left: 3px solid var(--limit);
  background: var(--sheet); border-radius: 0 10px 10px 0; }
.plots { display: grid; gap: 16px; grid-template-columns: repeat(2, minmax(0, 1fr)); }
figure { margin: 0; padding: 18px 18px 12px; display: flex; flex-direction: column; }
figure .on-wide, figure .on-narrow { margin-top: auto; }
figcaption { font-weight: 620; line-height: 1.35; text-wrap: pretty; }
.legend { margin-top: 4px; font-size: 13px; color: var(--faint);
  display: flex; flex-wrap: wrap; gap: 2px 16px; }
figure > div:not(.legend) { margin-top: 12px; }
.key i { display: inline-block; width: 14px; height: 3px; border-radius: 2px;
  margin-right: 6px; vertical-align: middle; background: currentColor; }
.tables { display: grid; gap: 16px; margin-top: 16px;
  grid-template-columns: repeat(2, minmax(0, 1fr)); align-items: start; }
.tables.wide { grid-template-columns: minmax(0, 1fr); margin: 24px 0 16px; }
.stack { display: grid; gap: 16px; min-width: 0; }
.sheet { padding: 18px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px;
  font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 500; color: var(--faint); font-size: 13px; }
th, td { padding: 6px 12px 6px 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
tbody tr:last-child td { border-bottom: 0; }
th:last-child, td:last-child { padding-right: 0; }
td:first-child { white-space: nowrap; }
.numbers th:not(:first-child), .numbers td:not(:first-child) { text-align: right; }
.wide td, .wide th { white-space: nowrap; }
details { margin-top: 16px; border-top: 1px solid var(--rule); padding-top: 14px; }
summary { cursor: pointer; font-weight: 620; }
footer { margin-top: 32px; color: var(--faint); font-size: 13px; max-width: 72ch; }
svg { display: block; width: 100%; height: auto; font-size: 12px; }
svg text { fill: var(--faint); font-variant-numeric: tabular-nums; }
svg text.axis { font-size: 11.5px; }
svg text.limit { fill: var(--limit); paint-order: stroke; stroke: var(--sheet);
  stroke-width: 4px; stroke-linejoin: round; }
.grid { stroke: var(--rule); stroke-width: 1; }
.tick { stroke: var(--faint); stroke-width: 1; }
.line { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; }
.area { fill: currentColor; opacity: 0.13; }
.bar { fill: currentColor; opacity: 0.85; }
.dot { fill: currentColor; }
line.limit { stroke: var(--limit); stroke-width: 1.2; stroke-dasharray: 5 4; }
.tone1 { color: var(--t1); } .tone2 { color: var(--t2); } .tone3 { color: var(--t3); }
.tone4 { color: var(--t4); } .tone5 { color: var(--t5); } .tone6 { color: var(--t6); }
.on-narrow { display: none; }
@media (max-width: 860px) { .plots, .tables { grid-template-columns: minmax(0, 1fr); } }
@media (max-width: 520px) {
  body { padding: 24px 14px 40px; }
  h1 { font-size: 22px; }
  figure, .sheet { padding: 14px 12px 10px; }
  .tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 10px; }
  .on-wide { display: none; }
  .on-narrow { display: block; }
}
@media print { body { max-width: none; padding: 0; } figure, .sheet { break-inside: avoid; } }
"""

_DOCUMENT = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header><h1>{heading}</h1><p>{summary}</p></header>
{body}
<footer>
<p>{made_by}. The workers are those of dibs work; the tracker, the lease store, the handlers and the
time are simulated. Requests are counted as REST without batching.</p>
<p>A duplicate start is one made while another run of the issue was at work and trusted its lease,
or after it was done. A repeated start comes after a run that ended with a crash or a lost lease.
Blocked is the time from a holder's death until its issue is free; taken over, until the next
handler starts.</p>
</footer>
</body>
</html>
"""
