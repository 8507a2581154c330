"""`dibs follow` as a person runs it, against the fake GitHub."""

import json
import os

import pytest
from tests.in_process import run_in_process

from dibs.frontends.cli.main import run
from dibs_lab.fakehub import FakeHub, Limits, Permission

SETTINGS = """
tracker = "github:acme/shop"
preset = "agent"
settle = "0s"
[github]
pace = false
"""


class Folder:
    def __init__(self, hub, path):
        self.hub, self.path = hub, path
        for login in ("fleet", "colleague"):
            hub.user(login)
        hub.repository("acme/shop")
        for login in ("fleet", "colleague"):
            hub.state.grant("acme/shop", login, Permission.WRITE)
        (path / "dibs.toml").write_text(SETTINGS)
        assert self.dibs("init")["ok"]

    def dibs(self, *words):
        env = {**os.environ, "GITHUB_TOKEN": "fleet-token", "DIBS_ACTOR": "ann"}
        env["GITHUB_API_URL"] = self.hub.url
        ran = run_in_process(run, ["--json", *words], cwd=self.path, env=env)
        assert ran.stdout, ran.stderr
        return json.loads(ran.stdout)

    @property
    def colleague(self):
        return self.hub.state.acting(self.hub.state.viewer("colleague-token"))


@pytest.fixture
def folder(tmp_path):
    with FakeHub(limits=Limits.off()) as hub:
        yield Folder(hub, tmp_path)


def test_it_tells_first_and_moves_then_and_has_nothing_left_to_do(folder):
    key = folder.dibs("add", "Prices are wrong")["data"][0]["issue"].rpartition("#")[2]
    folder.dibs("label", key, "--add", "agent:pr-open", "--remove", "agent:implement")
    idle = folder.dibs("follow")
    assert (idle["exit"], idle["data"]["looked_at"], idle["data"]["followed"]) == (3, 1, [])
    pull = folder.colleague.create_pull(
        folder.hub.state.named("acme/shop"), "Mend", "fix", "main", body=f"Fixes #{key}"
    )
    folder.colleague.merge_pull(pull)
    (would,) = folder.dibs("follow", "--dry-run")["data"]["followed"]
    assert would["action"] == "moved_on"
    assert f"acme/shop#{pull.number} was merged" in would["text"]
    assert folder.dibs("follow")["data"]["followed"][0]["action"] == "moved_on"
    shown = folder.dibs("show", key)["data"]
    assert shown["labels"] == ["agent:done"]
    assert folder.dibs("follow")["exit"] == 3


def test_where_nothing_follows_it_says_so(tmp_path):
    environment = dict(os.environ)
    assert run_in_process(run, ["init"], cwd=tmp_path, env=environment).returncode == 0
    ran = run_in_process(run, ["follow"], cwd=tmp_path, env=environment)
    assert ran.returncode == 3
    assert "no stage follows pull requests" in ran.stderr
