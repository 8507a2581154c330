"""`dibs simulate`: what it answers, what it refuses, and the page it writes."""

import json
import os
import re
import shlex
import subprocess
import sys
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import pytest

import dibs
from dibs.frontends.cli.main import run
from dibs_lab import plots
from dibs_lab.plots import Axis, Curve, Mark

from .test_past import run as told_run

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "size-a-fleet.md"
SMALL = ("--workers", "5", "--issues", "30")


@pytest.fixture
def simulate(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DIBS_JSON", raising=False)
    monkeypatch.delenv("DIBS_CONFIG", raising=False)

    def call(*arguments, code=0):
        assert run(["simulate", *arguments]) == code
        return capsys.readouterr()

    return call


def answer(said):
    told = json.loads(said.out)
    assert told["ok"] is (told["exit"] == 0)
    return told["data"]


# The answer


def test_the_table_says_what_came_of_it(simulate):
    said = simulate(*SMALL)
    lines = said.out.splitlines()
    assert lines[0].startswith("5 workers, 30 issues, work 10m, ttl 10m, settle 0s")
    for what in ("throughput", "duplicate starts", "taken over", "sweeping", "requests an hour"):
        assert any(line.startswith(what) for line in lines), what
    assert "30 done, 0 parked, 0 unfinished, 0 lost" in said.out
    assert said.err == ""


def test_as_json_it_says_the_same_and_more(simulate):
    data = answer(simulate(*SMALL, "--json", "--crash", "2/h"))
    (result,) = data["results"]
    assert data["compared"] is None
    assert result["done"] + result["parked"] == 30
    assert result["fleet"]["workers"] == 5
    assert result["fleet"]["ttl_s"] == 600
    assert result["fleet"]["crash_per_hour"] == 2
    assert result["requests"]["total"] == sum(result["timeline"]["requests"])
    assert result["takeover"]["count"] == result["repeated_starts"]
    assert result["github_tokens"] >= 1


def test_the_same_command_gives_the_same_answer_to_the_letter(simulate):
    told = (*SMALL, "--crash", "2/h", "--lag", "2s", "--work", "~5m", "--html", "page.html")
    first, page = simulate(*told, "--json").out, Path("page.html").read_text()
    assert simulate(*told, "--json").out == first
    assert Path("page.html").read_text() == page
    assert simulate(*told, "--json", "--seed", "2").out != first


def test_the_answer_does_not_hang_on_how_the_interpreter_orders_sets(tmp_path):
    told = ("simulate", *SMALL, "--crash", "2/h", "--lag", "2s", "--json")
    answers = {
        subprocess.run(
            [sys.executable, "-m", "dibs", *told],
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            timeout=60,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1


def test_a_comparison_has_a_row_for_each_value(simulate):
    said = simulate(*SMALL, "--crash", "2/h", "--compare", "ttl=2m,10m")
    rows = [line.split()[0] for line in said.out.splitlines() if line.strip()]
    assert rows[1:4] == ["ttl", "2m", "10m"]
    assert "ttl 10m" not in said.out.splitlines()[0], "what is varied is not in the heading"
    data = answer(simulate(*SMALL, "--compare", "ttl=2m,10m", "--json"))
    assert data["compared"] == "ttl"
    assert [result["value"] for result in data["results"]] == ["2m", "10m"]
    assert [result["fleet"]["ttl_s"] for result in data["results"]] == [120, 600]


@pytest.mark.parametrize(
    "compared",
    [
        *("workers=2,4", "work=5m,~5m,1m..9m", "arrival=all,60/h", "leases=comments,store"),
        *("api-limit=none,github", "settle=0s,5s", "crash=0,1/h", "seed=1,2", "poll=5s,1m"),
    ],
)
def test_every_option_can_be_compared(simulate, compared):
    data = answer(simulate("--workers", "3", "--issues", "9", "--compare", compared, "--json"))
    assert len(data["results"]) == compared.count(",") + 1
    assert all(result["done"] == 9 for result in data["results"])


def test_what_must_not_be_overlooked_is_said(simulate):
    crowd = ("--workers", "16", "--issues", "60", "--arrival", "120/h", "--work", "2m")
    said = simulate(*crowd, "--lag", "5s", "--compare", "settle=0s,6s")
    assert re.search(r"- settle 0s: \d+ starts? while another run was at work", said.out)
    assert "- settle 6s: " not in said.out
    said = simulate(*SMALL, "--api-limit", "1000/h")
    assert "on GitHub this needs" not in said.out, "a limit hides what was wanted"
    assert re.search(r"- the API refused [\d,]+ requests?; calls waited \S+", said.out)
    assert re.search(r"- on GitHub this needs \d+ tokens", simulate("--issues", "60").out) is None
    assert "- on GitHub this needs" in simulate("--workers", "40", "--issues", "50").out


# Where settings come from


def test_settings_come_from_the_file_and_options_before_it(simulate):
    Path("dibs.toml").write_text(
        'ttl = "4m"\nsettle = "3s"\nleases = "sqlite:leases.db"\n'
        '[worker]\njobs = 2\npoll = "9s"\nsweep = "50s"\n'
        '[[stage]]\nname = "ready"\nrun = "true"\nttl = "7m"\nattempts = 5\n'
    )
    (result,) = answer(simulate(*SMALL, "--json"))["results"]
    fleet = result["fleet"]
    assert (fleet["ttl_s"], fleet["settle_s"], fleet["jobs"]) == (420, 3, 2)
    assert (fleet["poll_s"], fleet["sweep_s"], fleet["attempts"]) == (9, 50, 5)
    assert fleet["leases"] == "store"
    (result,) = answer(simulate(*SMALL, "--json", "--ttl", "8m", "--leases", "comments"))["results"]
    assert (result["fleet"]["ttl_s"], result["fleet"]["leases"]) == (480, "comments")
    assert result["fleet"]["sweep_s"] == 50, "the file's own word, not a third of the ttl"


def test_a_sweep_that_nobody_set_follows_the_ttl(simulate):
    data = answer(simulate(*SMALL, "--json", "--compare", "ttl=3m,30m"))
    assert [result["fleet"]["sweep_s"] for result in data["results"]] == [60, 600]


def test_nothing_is_made_or_touched(simulate, tmp_path):
    simulate(*SMALL)
    assert list(tmp_path.iterdir()) == []


def journal():
    lines = []
    for number in range(12):
        about = {"issue": str(number), "holder": f"w{number % 3}"}
        lines += told_run(number * 2, 3, f"r{number}", **about)
    lines += told_run(5, 0, "gone", issue="77", holder="w9")[:2]
    return lines


def test_a_journal_stands_in_for_options(simulate):
    Path("events.jsonl").write_text("\n".join([*journal(), "not an event"]))
    said = simulate("--from-journal", "events.jsonl", "--json")
    (result,) = answer(said)["results"]
    fleet = result["fleet"]
    assert (fleet["workers"], fleet["issues"]) == (4, 13)
    assert fleet["work"] == "12 recorded lengths, 3m on average"
    assert fleet["crash_per_hour"] == pytest.approx(1 / 0.6)
    assert fleet["arrival"].startswith("as recorded")
    assert "1 lines of the journal are no events and were left out" in said.err
    told = ("--from-journal", "events.jsonl", "--workers", "2", "--work", "1m", "--crash", "0")
    (result,) = answer(simulate(*told, "--json"))["results"]
    assert (result["fleet"]["workers"], result["fleet"]["work"]) == (2, "1m")
    assert result["crashes"] == 0


# What is refused


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--workers", "0"), "workers 0 is not between 1 and 10000"),
        (("--workers", "many"), "--workers: 'many' is not a whole number"),
        (("--issues", "9999999"), "issues 9999999 is not between"),
        (("--work", "10"), "--work: '10' is not a duration"),
        (("--work", "20m..5m"), "ends before it begins"),
        (("--arrival", "sometimes"), "--arrival: 'sometimes' is not a duration"),
        (("--arrival", "5/w"), "--arrival: '5/w' is not a rate; write it like 30/h, 1/d or 0"),
        (("--crash", "often"), "--crash: 'often' is not a rate"),
        (("--ttl", "1"), "--ttl: '1' is not a duration"),
        (("--ttl", "100ms"), "ttl 100ms is too short"),
        (("--settle", "10m"), "is over before it can be proved"),
        (("--leases", "paper"), "--leases: 'paper' is not one of comments, store"),
        (("--api-limit", "x"), "--api-limit: 'x' is not a limit; write none, github"),
        (("--compare", "colour=red"), "--compare: 'colour=red' names no option"),
        (("--compare", "ttl"), "names no option and its values"),
        (("--compare", "ttl=2m,soon"), "--compare: 'soon' is not a duration"),
        (("--compare", "seed=" + ",".join("1" * 21)), "21 values are more than 20"),
        (("--poll", "0s"), "poll must be longer than nothing"),
    ],
)
def test_a_wrong_option_is_named(simulate, arguments, words):
    said = simulate(*arguments, code=2)
    assert words in said.err
    assert said.out == ""
    told = json.loads(simulate(*arguments, "--json", code=2).out)
    assert told["error"]["code"] == "USAGE"
    assert words in told["error"]["message"]


def test_files_that_cannot_be_used_are_named_before_anything_is_simulated(simulate, tmp_path):
    assert "there is no folder nowhere" in simulate("--html", "nowhere/x.html", code=1).err
    assert f"{tmp_path} is a folder" in simulate("--html", str(tmp_path), code=1).err
    assert "the journal cannot be read" in simulate("--from-journal", "none", code=1).err
    Path("empty.jsonl").write_text("")
    said = simulate("--from-journal", "empty.jsonl", code=2)
    assert "no handler came to an end in empty.jsonl" in said.err


def test_without_the_laboratory_it_says_what_to_install(simulate, monkeypatch):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    said = simulate(*SMALL, code=1)
    assert "dibs simulate needs the distribution dibs-lab, which is not installed" in said.err
    told = json.loads(simulate(*SMALL, "--json", code=1).out)
    assert told["error"]["hint"] == f"install it with: pip install dibs-lab=={dibs.__version__}"
    assert "dibs-lab, which is not installed" in " ".join(simulate("--help").out.split())


# While it lasts


def test_workers_warnings_are_kept_to_themselves(simulate):
    assert simulate(*SMALL, "--api-limit", "1000/h").err == ""


def test_a_terminal_is_shown_a_bar(simulate, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    said = simulate("--workers", "20", "--issues", "400")
    assert "simulated" in said.err
    assert said.out.startswith("20 workers")


def test_elsewhere_a_line_comes_now_and_then(simulate, monkeypatch):
    monkeypatch.setattr("dibs_lab.sim.sizing._TELL_EVERY", 50)
    lines = simulate("--workers", "10", "--issues", "200").err.splitlines()
    assert 2 <= len(lines) <= 10
    assert all(
        re.match(r"simulating: \d+ of 200 issues at rest, .* simulated", line) for line in lines
    )


# The page


class Page(HTMLParser):
    """Whether every tag is closed, and what is in it."""

    VOID = ("meta",)

    def __init__(self, text):
        super().__init__()
        self.open, self.titles, self.tags, self.words = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)
        if self.open and self.open[-1] == "figcaption":
            self.titles.append(data)

    def count(self, tag):
        return sum(name == tag for name, _ in self.tags)


def written(simulate, *arguments):
    simulate(*SMALL, *arguments, "--html", "page.html")
    text = Path("page.html").read_text("utf-8")
    return text, Page(text)


def test_the_page_is_whole_and_needs_nothing_beside_it(simulate):
    text, page = written(simulate, "--crash", "2/h")
    assert text.startswith("<!doctype html>")
    assert page.count("script") == page.count("link") == page.count("img") == 0
    assert not re.search(r"https?:|url\(|@import|src=|href=", text)
    assert "prefers-color-scheme: dark" in text
    assert len(text) < 500_000
    assert page.count("svg") == 2 * page.count("figure") == 12


def test_the_page_allows_its_own_style_sheet_and_nothing_else(simulate):
    text, page = written(simulate)
    (policy,) = (attributes["content"] for _, attributes in page.tags if "http-equiv" in attributes)
    style = text.partition("<style>")[2].partition("</style>")[0]
    digest = b64encode(sha256(style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'"
    assert text.index("Content-Security-Policy") < text.index("<style>")
    names = {name for _, attributes in page.tags for name in attributes}
    assert not any(name == "style" or name.startswith("on") for name in names)


def test_titles_state_what_was_found(simulate):
    _, page = written(simulate, "--crash", "2/h")
    assert re.match(r"\d+ issues done in .+, [\d.]+ an hour", page.titles[0])
    assert any(
        title.startswith("Half of the dead workers' issues were free") for title in page.titles
    )
    assert any(re.search(r"requests in the busiest hour: [\d.]+ tokens", t) for t in page.titles)


def test_where_nobody_died_no_takeover_is_plotted(simulate):
    _, page = written(simulate)
    assert page.count("figure") == 4
    assert not any("dead" in title for title in page.titles)


def test_a_comparison_is_plotted_against_its_values(simulate):
    _, page = written(simulate, "--crash", "2/h", "--compare", "ttl=2m,5m,10m")
    assert page.count("details") == 3
    assert any("ttl" in title and "a dead worker blocks" in title for title in page.titles)
    assert {"ttl 2m", "ttl 5m", "ttl 10m"} <= set(page.words)


def test_a_difference_that_is_none_is_not_made_one(simulate):
    _, page = written(simulate, "--compare", "workers=2,5")
    assert any(re.match(r"workers 5 gets the most done", title) for title in page.titles)
    _, page = written(simulate, "--compare", "poll=4s,5s")
    assert any(title.startswith("As much gets done with any of them") for title in page.titles)


# Plots


def test_whatever_is_plotted_is_escaped():
    name = '<script>"&'
    drawn = plots.curves(
        [Curve(name, [(0, 0), (1, 1)])],
        x=Axis(name),
        y=Axis(name),
        about=name,
        limits=[Mark(name, 1)],
    )
    drawn += plots.histogram(
        [1], 1.0, x=Axis(name), y=Axis(name), about=name, marks=[Mark(name, 1)]
    )
    drawn += plots.steps(
        [name], [Curve(name, [(0, 1)])], x=Axis(name), y=Axis(name), about=name, size=plots.WIDE
    )
    assert "<script" not in drawn
    assert Page(drawn).count("svg") == 3


@pytest.mark.parametrize("most", [0, 0.3, 1, 7, 40, 99, 100, 5001, 123_456, 9e6])
def test_ticks_are_round_and_reach_the_top(most):
    found = plots.ticks(most, seconds=False, count=4)
    assert found[0] == 0
    assert found[-1] >= most
    assert 2 <= len(found) <= 7


@pytest.mark.parametrize("most", [0.5, 30, 90, 3600, 7000, 86_400, 1e6, 1e9])
def test_ticks_of_time_are_those_of_clocks(most):
    found = plots.ticks(most, seconds=True, count=5)
    assert found[-1] >= most
    assert all(plots.clock(at) for at in found)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        *((0, "0s"), (1.5, "1.5s"), (59, "59s"), (60, "1m"), (90, "1m 30s"), (3600, "1h")),
        *((3660, "1h 1m"), (86_400, "1d"), (90_000, "1d 1h"), (86_460, "1d")),
    ],
)
def test_lengths_of_time_are_short(seconds, words):
    assert plots.clock(seconds) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        *(
            (0, "0"),
            (0.25, "0.25"),
            (3.14159, "3.1"),
            (42.42, "42.4"),
            (42, "42"),
            (999.6, "1,000"),
        ),
        *((12_345, "12,345"), (123_456, "123,456"), (1_234_567, "1.23M"), (12_345_678, "12M")),
    ],
)
def test_numbers_are_short(value, words):
    assert plots.amount(value) == words


def test_a_limit_far_above_everything_does_not_flatten_the_plot():
    def height(limit):
        drawn = plots.curves(
            [Curve("", [(0, 0), (1, 10)])],
            x=Axis(""),
            y=Axis(""),
            about="",
            limits=[Mark("l", limit)],
        )
        return "limit" in drawn, drawn

    assert height(20)[0]
    assert not height(1000)[0]


def test_thinning_keeps_both_ends():
    points = [(float(at), float(at)) for at in range(1001)]
    kept = plots.thinned(points, 100)
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert len(kept) <= 102
    assert plots.thinned(points[:50], 100) == points[:50]


# The guide


def _shown():
    text = GUIDE.read_text("utf-8")
    found = re.findall(r"```sh\n(dibs simulate [^\n]*)\n```\n\n```text\n(.*?)```", text, re.DOTALL)
    return [pytest.param(*one, id=one[0]) for one in found]


def _names(text):
    """What each line is about: without figures, which change with every version."""
    rows = [re.split(r"  +", line)[0] for line in text.splitlines() if not line.startswith("- ")]
    return [row for row in rows if row]


@pytest.mark.parametrize(("command", "shown"), _shown())
def test_what_the_guide_shows_is_what_is_printed(simulate, command, shown):
    """With few issues, for time's sake: the names of the lines are compared, not the figures."""
    arguments = shlex.split(command)[2:]
    place = arguments.index("--issues") + 1
    said = simulate(*arguments[:place], "12", *arguments[place + 1 :])
    assert _names(said.out)[1:] == _names(shown)[1:]


def test_the_guide_shows_several():
    assert len(_shown()) >= 4
