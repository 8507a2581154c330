"""The reference pages list what the code has, neither more nor less."""

import ast
import re
import typing
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from dibs.adapters.system import SECRETS_IN_FILES
from dibs.core.card import Card, CardState, render_card, render_revoke, render_shown
from dibs.core.durations import format_duration
from dibs.core.eligibility import Reason, ReasonCode
from dibs.core.environment import LISTED_NAMES, SECRET_NAMES
from dibs.core.errors import DibsError
from dibs.core.events import EventKind, Step
from dibs.core.ids import HolderId, IssueRef, RunId, ServerTime, StageName
from dibs.core.issue import Issue, Snapshot
from dibs.core.labels import FlawCode
from dibs.core.lease import Ending, Outcome, Revocation
from dibs.core.pipeline import ApprovalGate, LabelNames, Stage
from dibs.core.presets import PRESETS
from dibs.frontends.cli.output import Exit, for_error, for_reasons
from dibs.ports.leases import Guarantee
from dibs.services.running import issue_document
from dibs.settings import load as config
from dibs.testing.clock import EPOCH
from dibs.wiring.stores import STORES as KINDS

from .pages import DOCS, REFERENCE, ROOT, SRC, blocks, codes, name_of, section, table, text
from .sources import RUNTIME, name_in_source, nodes

PAGES = {"postgresql": "postgres"}
PROCESS_RUNNER = SRC / "adapters" / "runners" / "process.py"
CONFIGURATION = REFERENCE / "configuration.md"
TABLES = {
    "Top level": config.ConfigFile,
    "[labels]": config.LabelsFile,
    "[worker]": config.WorkerFile,
    "[people]": config.PeopleFile,
    "[approval]": config.ApprovalFile,
    "[github]": config.GithubFile,
    "[hook]": config.HookFile,
    "[[stage]]": config.StageFile,
    "[[hold]]": config.HoldFile,
    "[[loop]]": config.LoopFile,
    "[trust]": config.Trust,
}


# Configuration


def test_every_table_of_the_file_has_a_section():
    assert set(_reachable(config.ConfigFile)) | {config.Trust} == set(TABLES.values())


def _reachable(shape: type[msgspec.Struct]) -> list[type[msgspec.Struct]]:
    found = [shape]
    for field in msgspec.structs.fields(shape):
        for part in (field.type, *typing.get_args(field.type)):
            if isinstance(part, type) and issubclass(part, msgspec.Struct):
                found += _reachable(part)
    return found


def test_every_key_is_documented_and_nothing_else():
    wrong = []
    for heading, shape in TABLES.items():
        documented = table(CONFIGURATION, heading).names()
        known = {field.encode_name for field in msgspec.structs.fields(shape)}
        place = f"{name_of(CONFIGURATION)}: {heading}"
        wrong += [f"{place}: {key} is not documented" for key in sorted(known - documented)]
        wrong += [f"{place}: {key} does not exist" for key in sorted(documented - known)]
    assert not wrong, "\n".join(wrong)


def test_defaults_are_the_documented_ones():
    wrong = []
    for heading, shape in TABLES.items():
        documented = table(CONFIGURATION, heading).by_name()
        for field in msgspec.structs.fields(shape):
            if isinstance(field.default, str | int) and field.default is not msgspec.NODEFAULT:
                default = msgspec.json.encode(field.default).decode().strip('"')  # true, not True
                _, said, *_ = documented.get(field.encode_name, ("", ""))
                if codes(said)[:1] != [default]:
                    wrong.append(f"{name_of(CONFIGURATION)}: {heading}: {field.name} is {default}")
    assert not wrong, "\n".join(wrong)


def test_defaults_that_the_core_knows_are_the_documented_ones():
    stage, marks = Stage(StageName("any"), label="any"), LabelNames()
    labels = table(CONFIGURATION, "[labels]").by_name()
    for name in ("claimed", "paused", "parked"):
        assert codes(labels[name][1])[0] == getattr(marks, name)
    keys = table(CONFIGURATION, "[[stage]]").by_name()
    known = {
        "attempts": str(stage.attempts),
        "backoff": format_duration(stage.backoff.first),
        "backoff_max": format_duration(stage.backoff.most),
        "max_hold": format_duration(stage.terms.max_hold),
    }
    assert {key: codes(keys[key][1])[0] for key in known} == known


# Errors, events, reasons, exits


def _tree(root: type[DibsError]) -> list[type[DibsError]]:
    return [root, *(found for child in root.__subclasses__() for found in _tree(child))]


def test_every_error_is_documented_with_its_code_and_exit_code():
    documented = {
        row[0].strip("`"): (row[1].strip("`"), int(row[2]))
        for row in table(REFERENCE / "errors.md", "Errors").rows
    }
    ours = [kind for kind in _tree(DibsError) if kind.__module__ == "dibs.core.errors"]
    # Made without its arguments: which exit code it is depends on the class alone.
    assert documented == {
        kind.__name__: (kind.code, int(for_error(kind.__new__(kind)))) for kind in ours
    }


def test_every_event_is_documented():
    documented = table(REFERENCE / "events.md", "Kinds").names()
    assert documented == {kind.value for kind in EventKind}


def test_every_reason_is_documented_with_its_exit_code():
    rows = table(REFERENCE / "reasons.md", "Reasons").by_name()
    assert {code: int(row[3]) for code, row in rows.items()} == {
        code.value: int(for_reasons((Reason(code, "", ""),))) for code in ReasonCode
    }


def test_every_flaw_is_documented():
    documented = table(REFERENCE / "reasons.md", "Flaws").names()
    assert documented == {code.value for code in FlawCode}


def test_every_exit_code_is_documented():
    rows = table(REFERENCE / "exit-codes.md", "Exit codes").rows
    assert {int(row[0]): row[1].strip("`") for row in rows} == {
        int(code): code.name for code in Exit
    }


# Environment and files

_OURS = re.compile(r"_?DIBS_[A-Z*][A-Z_*]*")


def test_every_variable_of_ours_is_documented_and_no_other():
    page = text(REFERENCE / "environment.md")
    used = {name for module in RUNTIME for name in _OURS.findall(text(module))}
    assert set(_OURS.findall(page)) == used


def test_every_other_variable_that_is_read_is_documented():
    documented = table(REFERENCE / "environment.md", "Read by dibs").names()
    read = {name for module in RUNTIME for name in _read_names(module)}
    given = table(REFERENCE / "environment.md", "Given to handlers").names()
    assert read - given <= documented


def _read_names(module: Path) -> set[str]:
    """Names looked up in an environment: environ["X"], environ.get("X"), envvar="X"."""
    found = set()
    for node in nodes(module):
        match node:
            case (
                ast.Call(
                    func=ast.Attribute(value=ast.Attribute(attr="environ"), attr="get"),
                    args=[ast.Constant(value=str(name)), *_],
                )
                | ast.Subscript(
                    value=ast.Attribute(attr="environ"), slice=ast.Constant(value=str(name))
                )
                | ast.keyword(arg="envvar", value=ast.Constant(value=str(name)))
            ):
                found.add(name)
    return found


def test_the_variables_of_a_handler_are_those_it_is_given():
    given = set()
    for module in (SRC / "services" / "running.py", PROCESS_RUNNER, SRC / "settings" / "load.py"):
        given |= {
            key.value
            for node in nodes(module)
            if isinstance(node, ast.Dict)
            for key in node.keys
            if isinstance(key, ast.Constant) and str(key.value).startswith("DIBS_")
        }
    assert table(REFERENCE / "environment.md", "Given to handlers").names() == given
    assert table(DOCS / "concepts" / "handlers.md", "What it is given").names() == given


def test_the_secrets_that_handlers_do_not_see_are_listed():
    listed = section(REFERENCE / "environment.md", "Taken away from handlers")
    names = [name for name in codes(listed) if name.isupper()]
    assert names == list(SECRET_NAMES)


def test_the_variables_that_handlers_get_are_listed():
    listed = codes(section(REFERENCE / "environment.md", "Passed on to handlers"))
    assert listed[: len(LISTED_NAMES)] == list(LISTED_NAMES)


def test_the_secrets_that_may_be_in_files_are_listed():
    listed = codes(section(REFERENCE / "environment.md", "Secrets in files"))
    assert listed[: len(SECRETS_IN_FILES)] == list(SECRETS_IN_FILES)


def test_every_failpoint_is_documented_in_order():
    rows = table(REFERENCE / "environment.md", "Failpoints").rows
    assert [codes(row[0])[0] for row in rows] == [step.value for step in Step]


def test_the_files_of_the_default_are_documented():
    page = text(REFERENCE / "files.md")
    default = config.ConfigFile()
    backlog = default.tracker.partition(":")[2]
    for path in (config.FILE_NAME, backlog, default.journal, default.runs):
        assert path in page
    for name in set(re.findall(r'/ "([a-z]+\.[a-z]+)"', text(PROCESS_RUNNER))):
        assert f"{default.runs}/RUN/{name}" in page


def test_every_table_of_the_database_is_documented():
    made = re.compile(r"CREATE TABLE (?:IF NOT EXISTS )?(\w+)")
    embedded = [text(module) for module in RUNTIME if "sqlite.database" in text(module)]
    used = {name for source in embedded for name in made.findall(source)} | {"clock"}
    assert table(REFERENCE / "files.md", "The database").names() == used


# Concepts


@pytest.mark.parametrize("name", PRESETS)
def test_the_presets_are_drawn_as_they_are(name):
    rows = table(DOCS / "concepts" / "stages-and-gates.md", f"The preset `{name}`").rows
    drawn = [tuple(codes(cell) for cell in row) for row in rows]
    assert drawn == [
        (
            [stage.name],
            [stage.label],
            _while_held(PRESETS[name], stage),
            [stage.gate.label] if isinstance(stage.gate, ApprovalGate) else [],
            list(stage.next),
        )
        for stage in PRESETS[name].stages
    ]
    assert [row[1].endswith("closes") for row in rows] == [
        stage.closes for stage in PRESETS[name].stages
    ]


def _while_held(pipeline, stage):
    if stage.working_label:
        return [stage.working_label]
    return [pipeline.labels.claimed] if stage.gives_way else []


def test_every_guarantee_is_explained_and_every_store_declares_what_the_page_says():
    page = DOCS / "concepts" / "guarantees.md"
    every = [member.name.lower() for member in Guarantee if member.name and member.value]
    explained = table(page, "What stores declare", "guarantee")
    assert [codes(row[0])[0] for row in explained.rows] == every
    declared = table(page, "What stores declare", "store")
    assert [codes(column)[0] for column in declared.columns[1:]] == every
    said = {
        re.sub(r"\[([\w+]+)\].*", r"\1", row[0]): {
            name for name, cell in zip(every, row[1:], strict=True) if cell == "yes"
        }
        for row in declared.rows
    }
    assert said == {PAGES.get(kind.scheme, kind.scheme): set(kind.promises.names) for kind in KINDS}


def test_a_stores_own_page_names_its_guarantees_first():
    wrong = []
    for kind in (kind for kind in KINDS if kind.scheme != "git+github"):
        page = DOCS / "stores" / f"{PAGES.get(kind.scheme, kind.scheme)}.md"
        named = set(codes(section(page, "Guarantees").strip().splitlines()[0]))
        if named != set(kind.promises.names):
            wrong.append(f"{name_of(page)}: names {sorted(named)}, not {kind.promises.names}")
    assert not wrong, "\n".join(wrong)


def test_every_field_of_a_card_is_explained():
    card = Card(
        run=RunId("r1"),
        ttl=timedelta(minutes=10),
        state=CardState.RELEASED,
        holder=HolderId("h"),
        stage=StageName("s"),
        prev=ServerTime(EPOCH),
        beats=1,
        ending=Ending(Outcome.ADVANCED, StageName("t"), "n"),
        shown=True,
        floor=1,
        fence=1,
    )
    written = set(re.findall(r" ([a-z]+)=", render_card(card).splitlines()[0]))
    explained = table(DOCS / "concepts" / "protocol.md", "2 The card").names()
    assert written == explained
    states = codes(table(DOCS / "concepts" / "protocol.md", "2 The card").by_name()["state"][1])
    assert set(states) == {state.value for state in CardState}


def test_the_cards_in_the_protocol_are_real():
    texts = [b.text for b in blocks(DOCS / "concepts" / "protocol.md") if b.language == "text"]
    card = Card(
        run=RunId("4be07a91c35d"),
        ttl=timedelta(minutes=15),
        state=CardState.HELD,
        holder=HolderId("builder-2"),
        stage=StageName("review"),
        prev=ServerTime(EPOCH.replace(hour=12, minute=41, second=7)),
        beats=2,
    )
    assert render_card(card) + "\n" in texts
    ended = replace(
        card,
        state=CardState.RELEASED,
        prev=ServerTime(EPOCH.replace(hour=12, minute=44, second=2)),
        ending=Ending(Outcome.ADVANCED, StageName("done")),
        shown=True,
    )
    assert render_card(ended) + "\n" in texts
    assert render_shown(card.run) + "\n" in texts
    revocation = Revocation(RunId("4be07a91c35d"), "ann", "wrong branch")
    assert render_revoke(revocation) + "\n" in texts


def test_the_issue_in_the_handlers_page_has_the_keys_a_handler_gets():
    shown = next(b for b in blocks(DOCS / "concepts" / "handlers.md") if b.language == "json")
    issue = Issue(
        ref=IssueRef("", "1"),
        title="t",
        open=True,
        labels=frozenset(),
        comment_count=0,
        created_at=ServerTime(EPOCH),
        updated_at=ServerTime(EPOCH),
    )
    given = issue_document(Snapshot(issue, (), ServerTime(EPOCH)), "ready", 1)
    assert list(msgspec.json.decode(shown.text)) == list(given)


def test_sections_of_the_protocol_that_the_code_cites_exist():
    page = text(DOCS / "concepts" / "protocol.md")
    numbers = set(re.findall(r"^## (\d+) ", page, re.MULTILINE))
    assert numbers == {str(number) for number in range(1, 11)}
    cited = {
        number
        for module in RUNTIME
        for listed in re.findall(r"sections? (\d+(?:(?:, | and |\nand )\d+)*)", text(module))
        for number in re.findall(r"\d+", listed)
    }
    assert cited
    assert cited <= numbers


def test_every_module_is_introduced():
    page, wrong = DOCS / "internals" / "architecture.md", []
    for heading, folder in (("Core", "core"), ("Services", "services")):
        there = {path.stem for path in (SRC / folder).glob("*.py")} - {"__init__"}
        introduced = table(page, heading).names()
        wrong += [f"{name_of(page)}: {heading}: lacks {name}" for name in there - introduced]
        wrong += [f"{name_of(page)}: {heading}: {name} is gone" for name in introduced - there]
    assert not wrong, "\n".join(sorted(wrong))


def test_paths_of_pages_that_the_code_cites_exist():
    lost = [
        f"{name_in_source(module)}: {cited}"
        for module in RUNTIME
        for cited in re.findall(r"\bdocs/[\w/.-]+\.md", text(module))
        if not (ROOT / cited).is_file()
    ]
    assert not lost, "\n".join(lost)
