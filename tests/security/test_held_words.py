"""Words that others choose become no commands, no options, no paths and no tags.

The actors: whoever names a branch, an issue, a bundle or an event, and whoever can read the list of
processes. The attack: names like `../../x`, `-rf` and `$(...)`, addresses that are options of git
or ssh, tags in a journal, and a look at the words of every running command. The wall: names are
made fit where they enter, addresses that run programs are refused, pages escape, and no credential
is ever a word of a command.
"""

import json
import re
import threading
from pathlib import Path

import pytest
from tests.architecture.pages import REFERENCE, text
from tests.github.projects import project_on_a_hub

from dibs.worktrees.values import Naming, file_name, fit_for_a_branch, part, recovery_ref

from .conftest import SECRETS

_HOSTILE = (
    *("../../x", "..", ".", "-rf", "--upload-pack=x", ".git", "/etc/passwd", "a\nb", "a\0b"),
    *("$(touch x)", "`touch x`", "a;b", "a b", "con", "x.lock", "refs/heads/main", "\u202ex"),
)


@pytest.mark.parametrize("name", _HOSTILE, ids=ascii)
def test_a_name_is_one_harmless_part_of_a_path(name, tmp_path):
    for made in (part(name), file_name(name), Naming("agent", name).folder("repo", 1)):
        assert made != ".git"
        assert made not in {"", ".", ".."}
        assert not set(made) & set("/\0\n"), made
        assert (tmp_path / made).resolve().parent == tmp_path.resolve()
    assert not Naming("agent", name).folder("repo", 1).startswith(("-", "."))
    branch = Naming("agent", name).branch("repo", 1)
    assert fit_for_a_branch(branch)
    assert not branch.startswith("-")
    assert ".." not in recovery_ref(branch, 1, "f" * 40)


_ADDRESSES = (
    "git:ext::sh -c touch% PWNED",
    "git:ext::touch PWNED",
    "git:--upload-pack=touch PWNED;",
    "git:-oProxyCommand=touch${IFS}PWNED:x",
    "git:ssh://-oProxyCommand=touch${IFS}PWNED/x",
    "git:ssh://user@-oProxyCommand=touch${IFS}PWNED/x",
    "git:fd::0",
    "git:file:///--upload-pack=touch PWNED",
    "git:-c",
)


@pytest.mark.parametrize("address", _ADDRESSES)
def test_an_address_of_leases_is_no_command_even_if_the_operator_names_it(victim, address):
    victim.dibs("init")
    victim.dibs("add", "an issue")
    for words in (("list",), ("show", "1"), ("take", "1"), ("doctor",)):
        ran = victim.dibs(*words, DIBS_LEASES=address, GIT_ALLOW_PROTOCOL="")
        assert "Traceback" not in ran.stderr
        if words[0] == "take":
            assert ran.returncode != 0, ran.stdout
            assert ran.stderr.startswith("dibs: "), ran.stderr
        elif words[0] != "doctor":  # who only looks is shown the cards, and the error as a warning
            assert ran.stderr.startswith(("dibs: ", "the lease store cannot be")), ran.stderr
    assert not list(victim.home.rglob("PWNED"))


_TAG = '</script><script>alert(1)</script>"><img src=x onerror=alert(1)>'


def test_a_page_of_a_hostile_journal_holds_no_tag_of_its_making(victim):
    journal = victim.folder / f"{_TAG.replace('/', '')}.jsonl"
    kinds = ("claimed", "handler_started", "handler_exited", "advanced")
    lines = [
        {
            "event": kinds[turn % len(kinds)],
            "at": f"2026-05-01T09:{turn:02}:00.000Z",
            "logged_at": f"2026-05-01T09:{turn:02}:00.000Z",
            "issue": f"{_TAG}{turn // len(kinds)}",
            "stage": _TAG,
            "run": f"{_TAG}{turn // len(kinds)}",
            "holder": f"{_TAG}{turn % 3}",
            "fence": turn,
            "note": _TAG,
            _TAG: _TAG,
        }
        for turn in range(60)
    ]
    journal.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    ran = victim.dibs(
        *("simulate", "--from-journal", journal.name, "--html", "page.html"),
        *("--workers", "2", "--issues", "10"),
    )
    assert ran.returncode == 0, ran.stderr
    page = (victim.folder / "page.html").read_text()
    assert "<svg" in page, "control: it is a page with tags"
    assert not re.search(r"<script|<img|onerror=(?!.*&gt;)", page)


_WORDS = "for one in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $one; echo; done >> words 2>/dev/null"


class Watch:
    """Reads the words of every process over and over, as anybody on the machine can."""

    def __init__(self):
        self.seen = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self):
        while not self._over.wait(0.01):
            for place in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    self.seen.add(place.read_bytes())
                except OSError:
                    continue

    def end(self):
        self._over.set()
        self._thread.join(30)
        return b"\n".join(self.seen)


def test_no_credential_is_among_the_words_of_any_command(tmp_path):
    """Neither of the worker, nor of its warden, its handler or anything else that runs then."""
    with project_on_a_hub(tmp_path) as project:
        project.hub.state.add_token(SECRETS["GITHUB_TOKEN"], "fleet")
        project.also = dict(SECRETS)
        project.begin_with(_WORDS)
        (number,) = project.backlog(1)
        watch = Watch()
        assert project.work().code == 0
        project.dibs("show", str(number))
        seen = watch.end() + (project.root / "words").read_bytes()
    assert b"dibs" in seen
    assert b"warden.main" in seen, "control: it saw the processes of the run"
    found = [name for name, secret in SECRETS.items() if secret.encode() in seen]
    assert found == []


def test_no_option_takes_a_credential():
    """A credential that is an option's value would be in everybody's list of processes.

    tests/architecture/test_cli_reference.py compares the page with the program.
    """
    options = re.findall(r"--[a-z][a-z-]*", text(REFERENCE / "cli.md"))
    assert "--json" in options
    assert not [one for one in options if re.search(r"token|secret|passw|key|credential", one)]
