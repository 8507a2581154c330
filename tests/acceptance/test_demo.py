"""`dibs demo`: a fleet with one worker killed and one frozen, judged by what it left behind."""

import pytest

from .harness import Project

pytestmark = pytest.mark.timeout(180)


def _env(project: Project) -> dict[str, str]:
    return {"TMPDIR": str(project.root)}


def test_as_json_nothing_is_lost_and_nothing_advanced_twice(project: Project) -> None:
    reply = project.start("demo", "demo", "--json", env=_env(project)).wait(150).quiet()
    assert reply.code == 0, (reply.out, reply.err)
    told = reply.data
    assert (told["issues"], told["done"]) == (12, 12)
    assert (told["lost"], told["advanced_twice"]) == ([], [])
    assert told["killed"]
    assert told["frozen"]
    assert told["killed"] != told["frozen"]
    for runs in told["runs"].values():
        assert runs.count("advanced") == 2
    # The killed worker held something, and somebody took it over with a higher fence.
    assert told["killed"] in {entry["from"] for entry in told["takeovers"]}
    for entry in told["takeovers"]:
        assert entry["fence"] > entry["old_fence"]
        assert entry["from"] != entry["by"]
    _assert_clean(project)


@pytest.mark.long
def test_as_text_it_says_so(project: Project) -> None:
    child = project.start("demo", "demo", "--workers", "3", "--issues", "8", env=_env(project))
    reply = child.wait(150).quiet()
    assert reply.code == 0, (reply.out, reply.err)
    last = reply.out.splitlines()[-1]
    assert last.startswith("8 issues, 8 done, 0 lost, 0 advanced twice")
    assert "SIGKILL" in reply.err
    assert "SIGSTOP" in reply.err
    _assert_clean(project)


def _assert_clean(project: Project) -> None:
    """No process and no folder is left."""
    project.nobody_left()
    assert [path.name for path in project.root.iterdir() if path.is_dir()] == []
