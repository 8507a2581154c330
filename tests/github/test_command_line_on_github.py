"""The program on the fake GitHub: `init`, settings, several repositories, another lease store."""

import pytest

from dibs.core.granter import CONTROL_LABEL
from dibs.core.labels import label_looks
from dibs.core.presets import STAGES
from dibs.frontends.cli.output import Exit
from dibs_lab.fakehub import Permission

from .projects import FLEET, QUICK, REPOSITORY, project_on_a_hub


@pytest.fixture
def project(tmp_path):
    with project_on_a_hub(tmp_path) as made:
        yield made


def test_init_makes_labels_with_colours_and_the_control_issue_and_says_so(project):
    told = project.dibs("init", "--tracker", f"github:{REPOSITORY}", "--json").data
    labels = [f"label {label}" for label in STAGES.every_label]
    assert told["made"] == [*labels, f"control issue {REPOSITORY}#1"]
    state = project.hub.state
    repository = state.named(REPOSITORY)
    for name, look in label_looks(STAGES).items():
        made = state.primary().label_named(repository.id, name)
        assert (made.color, made.description) == (look.colour, look.description), name
    assert project.label_names(1) == {CONTROL_LABEL}
    assert f'tracker = "github:{REPOSITORY}"' in (project.root / "dibs.toml").read_text()
    again = project.dibs("init", "--json").data
    assert (again["wrote"], again["made"]) == (False, [])
    assert project.dibs("list", "--all", "--json").data == []
    assert project.dibs("fsck").code == 0


def test_looking_before_init_makes_nothing(project):
    project.configure(f'tracker = "github:{REPOSITORY}"\n')
    for words in (("list", "--all"), ("status",), ("leases", "show"), ("init", "--dry-run")):
        project.dibs(*words)
    assert project._issues() == []


def test_the_embedded_default_is_what_it_was(project):
    assert project.dibs("init").code == 0
    assert 'tracker = "sqlite:.dibs/backlog.db"' in (project.root / "dibs.toml").read_text()
    assert project.dibs("init", "--json").data["made"] == []


@pytest.mark.long
def test_several_repositories_are_one_backlog(project):
    project.hub.repository("acme/store")
    project.hub.state.grant("acme/store", FLEET, Permission.WRITE)
    project.repository = f"{REPOSITORY},acme/store"
    project.begin_with(QUICK)
    project.repository = "acme/store"
    project.backlog(2)
    project.repository = REPOSITORY
    project.backlog(1)
    bare = project.dibs("show", "2", "--json")
    assert (bare.code, bare.error["code"]) == (2, "BAD_REFERENCE")
    assert "acme/shop and acme/store" in bare.error["message"]
    assert project.dibs("why", "ACME/Store#2", "--json").data["issue"] == "acme/store#2"
    assert project.work().code == 0
    worked = sorted(line.split()[0] for line in project.lines("ledger"))
    assert worked == ["acme/shop#2", "acme/store#2", "acme/store#3"]
    listed = project.dibs("list", "--all", "--json").data
    assert {(one["issue"], one["stage"]) for one in listed} == {
        (issue, "review") for issue in worked
    }


@pytest.mark.long
def test_draining_several_repositories_does_not_wait_for_one_that_is_paused(project):
    """The others' issues are worked; then it goes home and says whose are left, and why."""
    project.hub.repository("acme/store")
    project.hub.state.grant("acme/store", FLEET, Permission.WRITE)
    project.repository = "acme/store"
    project.begin_with(QUICK).backlog(2)
    assert project.dibs("pause", "--repository", "--reason", "release").code == 0
    project.repository = f"{REPOSITORY},acme/store"
    project.begin_with(QUICK)
    project.repository = REPOSITORY
    project.backlog(1)
    worked = project.work()
    assert worked.code == 0
    assert [line.split()[0] for line in project.lines("ledger")] == ["acme/shop#2"]
    assert "acme/store is paused by" in worked.out + worked.err
    nothing = project.work()
    assert nothing.code == Exit.SHUT
    assert "acme/store is paused by" in nothing.out + nothing.err


@pytest.mark.long
def test_leases_may_be_kept_elsewhere_and_moved_there(project):
    project.begin_with(QUICK)
    numbers = project.backlog(1)
    assert project.work().code == 0
    told = project.dibs("leases", "show", "--json").data
    assert told["granter"] == "comments"
    moved = project.dibs("leases", "migrate", "--to", "sqlite:leases.db")
    assert moved.code == 0, moved.err
    project.also["DIBS_LEASES"] = "sqlite:leases.db"
    numbers += project.backlog(1)
    assert project.work().code == 0
    for number in numbers:
        assert project.label_names(number) == {"stage:review"}
    project.also["DIBS_LEASES"] = "comments"
    (left,) = project.backlog(1)
    assert "GRANTED_ELSEWHERE: leases are granted by sqlite:" in project.dibs("why", str(left)).out


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ('tracker = "github:shop"', "github:OWNER/REPO"),
        ('tracker = "github:a/b,A/B"', "twice"),
        ('tracker = "github:acme/shop"\n[github]\ntrusted = [""]', "trusted"),
        ('tracker = "github:acme/shop"\n[github]\ntimeout = "0s"', "github.timeout"),
        ('tracker = "github:acme/shop"\n[github]\napi = "ftp://x"', "is not the address of an API"),
        ('tracker = "github:acme/shop"\n[github]\nunknown = 1', "github.unknown"),
        ('tracker = "github:acme/shop"\nleases = "memory:"', "do not go with"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(project, settings, word):
    project.configure(settings)
    reply = project.dibs("--config", "dibs.toml", "list", "--json")
    assert (reply.code, reply.error["code"]) == (1, "BAD_CONFIGURATION")
    assert word in reply.error["message"]


def test_the_address_in_the_settings_stands_above_the_variable(project):
    project.also["GITHUB_API_URL"] = "http://127.0.0.1:9"
    project.configure(
        f'tracker = "github:{REPOSITORY}"\n[github]\napi = "{project.hub.url}/api/v3"\n'
    )
    assert project.dibs("--config", "dibs.toml", "init").code == 0


def test_without_a_token_it_says_where_it_looked(project):
    project.configure(f'tracker = "github:{REPOSITORY}"\n')
    project.also |= {"GITHUB_TOKEN": "", "GH_CONFIG_DIR": str(project.root)}
    reply = project.dibs("list", "--json")
    assert (reply.code, reply.error["code"]) == (9, "NOT_PERMITTED")
    assert "GITHUB_TOKEN" in reply.error["message"]


def test_a_worker_whose_cards_would_not_count_leaves_and_says_how_to_mend_it(project):
    project.begin_with(QUICK)
    (number,) = project.backlog(1)
    project.hub.state.grant(REPOSITORY, FLEET, Permission.TRIAGE)
    project.hub.user("bot-owner", {REPOSITORY: Permission.WRITE}, token="other")
    text = (project.root / "dibs.toml").read_text()
    project.configure(text.replace("[github]", '[github]\ntrusted = ["bot-owner"]'))
    reply = project.dibs("work", "--drain", "--json")
    assert (reply.code, reply.error["code"]) == (9, "NOT_PERMITTED")
    assert "[github] trusted" in reply.error["message"]
    assert project.label_names(number) == {"stage:ready"}
    assert project.lines("ledger") == []
