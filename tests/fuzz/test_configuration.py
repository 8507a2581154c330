"""Configuration: settings that hold together, or the one declared refusal, whatever it says."""

import copy
import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dibs.core.errors import BadConfiguration
from dibs.settings import load as config

from .properties import check_document, check_file
from .strategies import BROKEN, DOCUMENTS, VALUES, WORDS, damaged, fuzzed

ROOT = Path("project")
SEEDS = sorted((Path(__file__).parent / "corpus" / "configuration").glob("*.toml"))
TEXTS = [seed.read_text("utf-8") for seed in SEEDS]
FULL = tomllib.loads((SEEDS[0].parent / "full.toml").read_text("utf-8"))

# A folder for each test is enough: every example writes the file anew.
in_a_folder = settings(
    fuzzed,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)


def places(value, path=()):
    """Every place in a document, the whole of it first."""
    yield path
    inside = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in inside:
        yield from places(inner, (*path, key))


PLACES = [path for path in places(FULL) if path]
FREE = ("repos",)
"""Tables whose keys are the user's."""


def put(document, path, value):
    changed = copy.deepcopy(document)
    spot = changed
    for key in path[:-1]:
        spot = spot[key]
    spot[path[-1]] = value
    return changed


def drop(document, path):
    changed = copy.deepcopy(document)
    spot = changed
    for key in path[:-1]:
        spot = spot[key]
    del spot[path[-1]]
    return changed


def test_the_full_example_is_right_and_leaves_no_key_out():
    assert check_document(FULL, ROOT)
    ours = [path[:1] if path[0] in FREE else path for path in PLACES]
    keys = {key for path in ours for key in path if isinstance(key, str)}
    known = {word for word in WORDS if word in str(config.schema())}
    assert {
        field.encode_name
        for shape in (
            *(config.ConfigFile, config.LabelsFile, config.WorkerFile, config.StageFile),
            *(config.HoldFile, config.LoopFile, config.PeopleFile, config.GithubFile),
            *(config.HookFile, config.ApprovalFile),
        )
        for field in config.msgspec.structs.fields(shape)
    } == keys
    assert keys <= known


TABLES = ("labels", "worker", "people", "hook", "github")
KEYED = [path for path in PLACES if isinstance(path[-1], str) and path[:-1] != FREE]


# Documents


@fuzzed
@given(DOCUMENTS)
def test_any_document_is_settings_or_refused(document):
    check_document(document, ROOT)


@fuzzed
@given(st.sampled_from(PLACES), VALUES)
def test_a_right_document_with_one_value_replaced_is_settings_or_refused(path, value):
    check_document(put(FULL, path, value), ROOT)


@fuzzed
@given(st.lists(st.tuples(st.sampled_from(PLACES), VALUES), min_size=2, max_size=4))
def test_a_right_document_with_several_values_replaced_is_settings_or_refused(changes):
    document = FULL
    for path, value in changes:
        try:
            document = put(document, path, value)
        except (KeyError, IndexError, TypeError):
            continue  # the place went away with an earlier change
    check_document(document, ROOT)


@pytest.mark.parametrize("path", PLACES, ids=lambda path: ".".join(map(str, path)))
def test_a_right_document_with_one_thing_left_out_is_settings_or_refused(path):
    check_document(drop(FULL, path), ROOT)


@fuzzed
@given(st.sampled_from(KEYED), BROKEN, VALUES)
def test_a_key_that_nobody_knows_is_refused_wherever_it_stands(path, key, value):
    document = put(FULL, (*path[:-1], f"{key}?"), value)
    with pytest.raises(BadConfiguration, match="unknown key"):
        config.from_mapping(document, source="dibs.toml", root=ROOT)
    check_document(document, ROOT)


@pytest.mark.parametrize(
    "value",
    [None, True, False, 0, 1, -1, 10**30, 1.5, float("nan"), "", "a\0b", [], [[]], {}, {"a": 1}],
    ids=ascii,
)
@pytest.mark.parametrize("path", PLACES, ids=lambda path: ".".join(map(str, path)))
def test_every_key_takes_every_kind_of_value_or_refuses_it(path, value):
    check_document(put(FULL, path, value), ROOT)


@pytest.mark.parametrize("value", [False, 0, 0.0, "", [], True, 1, "x", ["x"]], ids=ascii)
def test_a_document_that_is_no_table_is_refused_even_if_it_is_empty(value, tmp_path):
    with pytest.raises(BadConfiguration):
        config.from_mapping(value, source="dibs.toml", root=ROOT)
    spelled = str(value).lower() if isinstance(value, bool) else repr(value)
    path = tmp_path / "pyproject.toml"
    path.write_text(f"[tool]\ndibs = {spelled}\n", "utf-8")
    with pytest.raises(BadConfiguration):
        config.load(path)


@pytest.mark.parametrize("key", ["jobs", "wip", "attempts"])
@pytest.mark.parametrize("count", [2**31 + 1, 2**63, 10**30])
def test_a_count_that_no_store_can_hold_is_refused(key, count):
    path = ("worker", key) if key == "jobs" else ("stage", 0, key)
    with pytest.raises(BadConfiguration, match=key):
        config.from_mapping(put(FULL, path, count), source="dibs.toml", root=ROOT)


@pytest.mark.parametrize(
    "path",
    [path for path in PLACES if len(path) != 1 or path[0] not in TABLES],
)
def test_a_null_character_is_refused_in_every_text(path):
    """No path, command or variable can hold one: using it would fail in some other way."""
    with pytest.raises(BadConfiguration):
        config.from_mapping(put(FULL, path, "a\0b"), source="dibs.toml", root=ROOT)


@pytest.mark.parametrize("end", ["\n", "\r", "\u2028", "\0", " "], ids=ascii)
def test_a_stages_name_is_one_word(end):
    document = put(FULL, ("stage", 2, "name"), f"done{end}")
    with pytest.raises(BadConfiguration):
        config.from_mapping(
            put(document, ("stage", 2, "label"), "end"), source="dibs.toml", root=ROOT
        )


def test_a_refusal_that_quotes_a_duration_stays_on_one_line():
    assert check_document({"max_ttl": "  1h\n", "person_ttl": "\n2h\n"}, ROOT) is None


# Files


@in_a_folder
@given(text=damaged(st.sampled_from(TEXTS)))
def test_a_damaged_file_is_settings_or_refused(tmp_path, text):
    check_file(tmp_path / "dibs.toml", text.encode("utf-8", "surrogatepass"))


@in_a_folder
@given(text=damaged(st.sampled_from(TEXTS)))
def test_a_damaged_pyproject_is_settings_or_refused(tmp_path, text):
    content = f"[project]\nname = 'x'\n[tool.dibs]\n{text}"
    check_file(tmp_path / "pyproject.toml", content.encode("utf-8", "surrogatepass"))


@in_a_folder
@given(content=st.binary(max_size=200))
def test_bytes_are_settings_or_refused(tmp_path, content):
    check_file(tmp_path / "dibs.toml", content)


DEEP = 5000
HARD = {
    "lists": "x = " + "[" * DEEP,
    "closed lists": "stage = " + "[" * DEEP + "]" * DEEP,
    "tables": "x = " + "{a=" * DEEP,
    "closed tables": "labels = " + "{a=" * DEEP + "1" + "}" * DEEP,
    "lists of tables": "stage = " + "[{next=" * DEEP,
    "dots": "labels." + "a." * 500 + "a = 1",
    "headers": "[labels." + "a." * 500 + "a]",
    "digits": "jobs = " + "1" * DEEP,
    "digits in the worker": "[worker]\njobs = " + "1" * DEEP,
    "negative digits": "x = -" + "9" * DEEP,
    "a long hexadecimal number": "[worker]\njobs = 0x" + "f" * DEEP,
    "a long fraction": "x = 0." + "1" * DEEP,
    "a large exponent": "x = 1e" + "9" * 400,
    "no such day": "x = 2026-02-30",
    "no such time": "x = 24:00:00",
    "no such zone": "x = 2026-01-01T00:00:00+24:00",
    "year nought": "x = 0000-01-01",
    "half a character": 'tracker = "\\ud800"',
    "a null character": 'tracker = "sqlite:\\u0000"',
    "a bare null character": "tracker = '\x00'",
    "a byte order mark": "\ufefftracker = 'sqlite:x'",
    "an override": "override = 1",
    "a key twice": "ttl = '1h'\nttl = '1h'",
    "a table twice": "[worker]\n[worker]",
    "a table and a list": "[stage]\n[[stage]]",
    "a long key": "k" * 20_000 + " = 1",
    "a long preset": f"preset = '{'p' * 20_000}'",
    "a long next": f"[[stage]]\nname = 'ready'\nnext = '{'n' * 20_000}'",
    "a long gate": f"[[stage]]\nname = 'ready'\ngate = '{'g' * 20_000}'",
    "a long callable": f"[[stage]]\nname = 'ready'\npython = '{'g' * 20_000}'",
    "a long working label": f"[[stage]]\nname = 'ready'\nworking_label = '{'g' * 20_000},'",
    "a hostile key": '"\\u001b[31m\\u202e" = 1',
    "a hostile preset": 'preset = "\\u001b[31m\\n"',
    "a hostile gate": '[[stage]]\nname = "ready"\ngate = "\\u001b[31m\\n"',
}


@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("file", ["dibs.toml", "pyproject.toml"])
def test_a_file_that_is_hard_to_read_is_refused_in_one_short_line(tmp_path, file, name):
    text = HARD[name] if file == "dibs.toml" else f"[tool.dibs]\n{HARD[name]}"
    content = text.encode("utf-8")
    if file == "pyproject.toml" and name in NOT_OURS:
        check_file(tmp_path / file, content)
        return
    assert check_file(tmp_path / file, content) is None


# A header of its own leaves our table: what it says is somebody else's then.
NOT_OURS = {"headers", "a table twice", "a table and a list"} | {
    name for name, text in HARD.items() if text.startswith("[")
}


def test_a_path_that_no_file_can_have_is_refused():
    with pytest.raises(BadConfiguration):
        config.load(Path("a\0b"))
