"""The guide from an empty repository to a running fleet, followed to the letter on the fake.

Its shell blocks run in order, in one shell and one empty folder; what the page shows is what came.
Two things are replaced, as the page itself says: the token, and where GitHub is. The fake takes a
free port instead of the page's.
"""

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from tests.acceptance.harness import Project
from tests.architecture.pages import DOCS, Block, blocks, table

from .projects import QUICK, project_on_a_hub

pytestmark = pytest.mark.long

GUIDE = DOCS / "guides" / "run-on-github.md"
PAGES_ADDRESS = "http://127.0.0.1:8017"
MARK = "=== block at line"
ANYTHING = "..."
VARYING = (
    (re.compile(r"\b[0-9a-f]{12}\b"), "RUN"),
    (re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"), "TIME"),
    (re.compile(r"\b43\d{8}\b"), "FENCE"),
    (re.compile(r"under 1s behind|\d+s behind|under 1s ahead|\d+s ahead"), "near"),
)


def plain(text: str) -> list[str]:
    """Without what differs from day to day."""
    for pattern, name in VARYING:
        text = pattern.sub(name, text)
    return [line.rstrip() for line in text.strip().splitlines()]


def fits(shown: list[str], told: list[str]) -> bool:
    """Whether it is what the page shows; `...` is any number of lines, or the rest of one."""
    if not shown:
        return not told
    first, rest = shown[0], shown[1:]
    if first == ANYTHING:
        return any(fits(rest, told[at:]) for at in range(len(told) + 1))
    if not told:
        return False
    begins, dots, _ = first.partition(ANYTHING)
    same = told[0].startswith(begins.rstrip()) if dots else told[0] == first
    return same and fits(rest, told[1:])


def server_of(block: Block) -> list[str]:
    """The command that starts the fake, on a port that is free."""
    words = block.text.split()
    assert words[:3] == ["python", "-m", "dibs_lab.fakehub"]
    place = words.index("--port") + 1
    assert PAGES_ADDRESS.endswith(words[place])
    return [sys.executable, *words[1:place], "0", *words[place + 1 :]]


@pytest.fixture
def page():
    return blocks(GUIDE)


@pytest.fixture
def address(page):
    """The fake as the page starts it."""
    (block,) = [one for one in page if "dibs_lab.fakehub" in one.text and one.language == "sh"]
    with subprocess.Popen(server_of(block), stdout=subprocess.PIPE, text=True) as process:
        told = process.stdout.readline().strip()
        yield told.removeprefix("GITHUB_API_URL=")
        process.terminate()


def is_replaced(block: Block) -> bool:
    """A token for GitHub itself, and the fake's own terminal."""
    return "fleet-token)" in block.text or "dibs_lab.fakehub" in block.text


def followed(page, address, folder: Path) -> dict[int, str]:
    """What each block printed, by its line."""
    script = []
    for block in page:
        if block.language == "sh" and not is_replaced(block):
            script += [f"echo '{MARK} {block.line}'", block.text.replace(PAGES_ADDRESS, address)]
    project = Project(folder)
    around = project.environment({"DIBS_STATE": str(folder.parent / "state")})
    around["PATH"] = f"{Path(sys.executable).parent}:{around['PATH']}"
    done = subprocess.run(
        ["bash", "-e"],
        input="\n".join(script),
        cwd=folder,
        env=around,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )
    project.nobody_left()
    assert done.returncode == 0, done.stdout
    parts = re.split(rf"^{MARK} (\d+)\n", done.stdout, flags=re.MULTILINE)
    return dict(zip(map(int, parts[1::2]), parts[2::2], strict=True))


def comments_of(address: str) -> list[str]:
    told = httpx.get(f"{address}/_fakehub/state", params={"repository": "acme/shop"}).json()
    return [comment["body"] for issue in told["issues"] for comment in issue["comments"]]


@pytest.mark.timeout(300)
def test_the_page_is_followed_to_the_letter(page, address, tmp_path):
    folder = tmp_path / "shop"
    told = followed(page, address, folder)
    here, there = address.removeprefix("http://"), PAGES_ADDRESS.removeprefix("http://")
    compared = 0
    for block, after in pairwise(page):
        if block.line in told and after.language == "text":
            happened = plain(told[block.line].replace(here, there).replace(str(folder), "FOLDER"))
            assert fits(plain(after.text), happened), "\n".join(happened)
            compared += 1
    assert compared >= 8
    (card,) = [plain(block.text) for block in page if block.language == "markdown"]
    seen = [plain(body) for body in comments_of(address)]
    assert card in [[line.replace("one", "two") for line in lines] for lines in seen]


def test_what_the_page_shows_is_really_compared():
    told = ["first", "second", "third and more"]
    for shown in (
        told,
        ["..."],
        ["first", "...", "third ..."],
        ["...", "second", "third and more"],
    ):
        assert fits(shown, told)
    for shown in (
        [],
        ["first"],
        ["first", "second", "third"],
        ["...", "second"],
        ["second", "..."],
    ):
        assert not fits(shown, told)


# What it costs


def test_the_costs_on_the_page_are_what_the_server_counts(tmp_path):
    rows = {row[0]: row[1:] for row in table(GUIDE, "What it costs").rows}
    with project_on_a_hub(tmp_path) as project:
        project.begin_with(QUICK)
        project.backlog(1)
        project.work()  # labels, and who grants: once for all
        project.backlog(10)
        with project.counted() as counted:
            assert project.work().code == 0
        told = project.hub.counts.told()
        of_graphql = counted["graphql mutation Trip"] + counted["graphql query Read"]
        of_rest = sum(n for kind, n in counted.items() if kind.startswith(("POST", "PATCH")))
        an_issue = (str(of_rest // 10), str(of_graphql // 10), str(told["content"] // 10))
        assert rows["an issue, from ready to the next stage"] == an_issue
        assert of_rest % 10 == of_graphql % 10 == told["content"] % 10 == 0
        with project.counted():
            assert project.dibs("sweep").code == 3
        sweep = project.hub.counts.told()["points"]
        assert sweep["core"] <= 1, "whose cards they are, once in ten minutes"
        # Every third of ten minutes, varied down to half of that: 24 an hour.
        assert 120 <= 24 * sweep["graphql"] <= 180
        assert rows["a worker's sweeps, ttl 10 m"] == ("", "about 150", "")
