"""A repository's own dibs.toml names the server that gets the operator's credentials.

Actor: whoever can put a dibs.toml into a repository that a person or a worker checks out: its
maker, the author of a pull request, a handler.
Attack: the file names the attacker's server as GitHub's API, as an endpoint of AWS, or as the
PostgreSQL server of the leases; then somebody looks at the backlog, or pushes.
Wall: a file that was found by searching names no server that would get credentials of the machine.
The operator names such a server: by a variable, by `--config`, or in the user's own file.
"""

import json
import socket
import struct
import subprocess
import threading
from pathlib import Path
from urllib.parse import parse_qsl

import pytest

from dibs.settings.trust import postgres_hosts

from .conftest import SECRETS, Ear, Victim

HOSTILE = 'tracker = "github:victim/repo"\n[github]\napi = "{}"\n'
LOOKS = (
    *(["list"], ["status"], ["show", "1"], ["doctor"], ["init"], ["budget"], ["leases", "show"]),
    ["work", "--once"],
)
AWS = {
    "AWS_ACCESS_KEY_ID": "AKIACANARY0000000000",
    "AWS_SESSION_TOKEN": "CANARYsessiontoken",
    "AWS_DEFAULT_REGION": "eu-central-1",
}


def told(victim: Victim, *words: str, **env: str) -> str:
    """The words of a refusal, which names the file and how the operator allows the server."""
    refused = victim.dibs(*words, "--json", **env)
    error = json.loads(refused.stdout)["error"]
    assert (refused.returncode, error["code"]) == (1, "UNTRUSTED"), refused.stdout
    assert str(victim.folder / "dibs.toml") in error["message"]
    assert "--config" in error["hint"]
    return f"{error['message']}\n{error['hint']}"


@pytest.mark.parametrize("words", LOOKS, ids=" ".join)
def test_a_found_file_sends_no_token_to_its_own_server(
    victim: Victim, ear: Ear, words: list[str]
) -> None:
    victim.configure(HOSTILE.format(ear.url))
    victim.dibs(*words)
    assert ear.heard == b""


def test_the_refusal_says_what_the_operator_can_do(victim: Victim, ear: Ear) -> None:
    victim.configure(HOSTILE.format(ear.url))
    said = told(victim, "list")
    assert "github.api" in said
    assert f"127.0.0.1:{ear.port}" in said
    assert "GITHUB_API_URL" in said
    assert str(victim.home / ".config" / "dibs" / "config.toml") in said


@pytest.mark.parametrize(
    ("file", "where"),
    [
        ("pyproject.toml", "here"),
        ("dibs.toml", "above"),
        ("pyproject.toml", "--config FOLDER"),
        ("dibs.toml", "DIBS_CONFIG in a handler"),
    ],
)
def test_no_way_to_find_the_file_makes_it_the_operators(
    victim: Victim, ear: Ear, file: str, where: str
) -> None:
    text = HOSTILE.format(ear.url)
    if file == "pyproject.toml":
        text = text.replace("[github]", "[tool.dibs.github]")
        text = f"[tool.dibs]\n{text}"
    (victim.folder / file).write_text(text)
    below = victim.folder / "below"
    below.mkdir()
    match where:
        case "here":
            done = victim.dibs("list")
        case "above":
            done = victim.dibs("list", folder=below)
        case "--config FOLDER":
            done = victim.dibs("--config", str(victim.folder), "list", folder=below)
        case _:
            found = str(victim.folder / file)
            done = victim.dibs("list", folder=below, DIBS_CONFIG=found, DIBS_RUN="r1")
    assert done.returncode == 1
    assert ear.heard == b""


def test_an_app_key_does_not_go_there_either(victim: Victim, ear: Ear) -> None:
    key = subprocess.run(
        ["openssl", "genrsa", "2048"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    victim.configure(HOSTILE.format(ear.url))
    victim.dibs("list", GITHUB_TOKEN="", GITHUB_APP_ID="7", GITHUB_APP_PRIVATE_KEY=key)
    assert ear.heard == b""


def test_a_push_on_a_hostile_branch_sends_nothing_and_says_so(
    victim: Victim, ear: Ear, tmp_path: Path
) -> None:
    pushed = _push(victim, tmp_path, HOSTILE.format(ear.url))
    assert ear.heard == b""
    assert "nothing was checked" in pushed
    assert "github.api" in pushed


def test_leases_in_a_repository_use_the_same_server(victim: Victim, ear: Ear) -> None:
    victim.configure(f'leases = "git+github:victim/repo"\n[github]\napi = "{ear.url}"\n')
    assert victim.dibs("init").returncode == 1
    assert ear.heard == b""


def test_a_found_file_names_no_endpoint_for_aws(victim: Victim, ear: Ear) -> None:
    pytest.importorskip("boto3")
    assert victim.dibs("add", "one").returncode == 0
    victim.configure(f'leases = "dynamodb://Tab?endpoint={ear.url}"\n')
    victim.dibs("show", "1", **AWS)
    assert ear.heard == b""


# The operator may


def test_control_a_file_that_the_operator_names(victim: Victim, ear: Ear) -> None:
    victim.configure(HOSTILE.format(ear.url))
    victim.dibs("--config", "dibs.toml", "list")
    assert SECRETS["GITHUB_TOKEN"].encode() in ear.heard


def test_control_a_variable_names_the_server(victim: Victim, ear: Ear) -> None:
    victim.configure(HOSTILE.format(ear.url + "/"))
    victim.dibs("list", GITHUB_API_URL=ear.url)
    assert SECRETS["GITHUB_TOKEN"].encode() in ear.heard


@pytest.mark.parametrize("trust", ["hosts = ['127.0.0.1:{port}']", "folders = ['~/project']"])
def test_control_the_users_own_file_trusts_the_server(victim: Victim, ear: Ear, trust: str) -> None:
    victim.configure(HOSTILE.format(ear.url))
    users_file(victim, trust.format(port=ear.port))
    victim.dibs("list")
    assert SECRETS["GITHUB_TOKEN"].encode() in ear.heard


def test_control_an_endpoint_for_aws(victim: Victim, ear: Ear) -> None:
    pytest.importorskip("boto3")
    assert victim.dibs("add", "one").returncode == 0
    victim.configure(f'leases = "dynamodb://Tab?endpoint={ear.url}"\n')
    users_file(victim, f"hosts = ['127.0.0.1:{ear.port}']")
    victim.dibs("show", "1", **AWS)
    assert AWS["AWS_SESSION_TOKEN"].encode() in ear.heard


def test_control_a_push_with_a_named_file(victim: Victim, ear: Ear, tmp_path: Path) -> None:
    users_file(victim, f"folders = ['{tmp_path}']")
    _push(victim, tmp_path, HOSTILE.format(ear.url))
    assert SECRETS["GITHUB_TOKEN"].encode() in ear.heard


# A trusted server is that server and no other


@pytest.mark.parametrize(
    "trust",
    [
        "hosts = ['127.0.0.1']",
        "hosts = ['127.0.0.1:1']",
        "folders = ['~/projec']",
        "folders = ['~/project/below']",
        "paths = ['/']\npass_env = ['GITHUB_TOKEN']",
    ],
)
def test_other_trust_does_not_allow_the_server(victim: Victim, ear: Ear, trust: str) -> None:
    victim.configure(HOSTILE.format(ear.url))
    users_file(victim, trust)
    told(victim, "list")
    assert ear.heard == b""


def test_a_users_file_that_others_may_write_is_not_used(victim: Victim, ear: Ear) -> None:
    victim.configure(HOSTILE.format(ear.url))
    users_file(victim, f"hosts = ['127.0.0.1:{ear.port}']").chmod(0o666)
    refused = victim.dibs("list")
    assert refused.returncode == 1
    assert "nobody else may write to it" in refused.stderr
    assert ear.heard == b""


# PostgreSQL


def test_a_found_file_sends_no_password_of_the_environment_to_its_server(victim: Victim) -> None:
    pytest.importorskip("psycopg")
    with Postgres() as server:
        _ask_postgres(victim, f"postgresql://u@127.0.0.1:{server.port}/d?sslmode=disable")
    assert server.heard == b""


def test_a_found_file_sends_no_password_by_another_address(victim: Victim) -> None:
    """`~/.pgpass` has the password for a host by its name; the file says where that host is."""
    pytest.importorskip("psycopg")
    with Postgres() as server:
        _pgpass(victim, server.port)
        address = f"postgresql://u@db.acme.example:{server.port}/d"
        _ask_postgres(victim, f"{address}?sslmode=disable&hostaddr=127.0.0.1", PGPASSWORD="")
    assert server.heard == b""


@pytest.mark.parametrize("option", ["servicefile=x", "passfile=x", "gssdelegation=1"])
def test_a_found_file_sets_no_option_that_hands_on_credentials(victim: Victim, option: str) -> None:
    victim.configure(f'leases = "postgresql://127.0.0.1:1/d?{option}"\n')
    assert option.partition("=")[0] in told(victim, "list", PGPASSWORD="")


WEAKER = [
    *("sslmode=disable", "sslmode=verify-full&sslmode=prefer", "sslrootcert=theirs.crt"),
    *("channel_binding=disable", "require_auth=password", "ssl_max_protocol_version=TLSv1"),
    *("ssl_min_protocol_version=TLSv1", "gssencmode=disable"),
]


@pytest.mark.parametrize("option", WEAKER)
def test_a_found_file_takes_no_tls_from_a_password(victim: Victim, option: str) -> None:
    """The server is the operator's own; the file lets somebody on the way read the password."""
    strict = {"PGHOST": "db.corp", "PGSSLMODE": "verify-full"}
    for address in ("postgresql://db.corp/x", "postgresql:///x"):
        victim.configure(f'leases = "{address}?{option}"\n')
        assert option.rpartition("&")[2].partition("=")[0] in told(victim, "list", **strict)


@pytest.mark.parametrize("place", ["PGPASSFILE", "PGSERVICE", "PGSERVICEFILE", "~/.pgpass"])
def test_nor_from_a_password_in_a_file(victim: Victim, place: str) -> None:
    if place == "~/.pgpass":
        _pgpass(victim, 5432)
    victim.configure('leases = "postgresql://db.corp/x?sslmode=disable"\n')
    assert "sslmode" in told(victim, "list", PGHOST="db.corp", PGPASSWORD="", **{place: "x"})


@pytest.mark.parametrize(
    ("address", "env"),
    [
        ("postgresql://db.corp/x?sslmode=verify-full", {}),
        ("postgresql://db.corp/x?sslmode=require", {"PGSSLMODE": "require"}),
        ("postgresql://u:own@db.corp/x?sslmode=disable", {}),
    ],
)
def test_a_found_file_may_ask_for_what_takes_nothing_away(
    victim: Victim, address: str, env: dict[str, str]
) -> None:
    victim.configure(f'leases = "{address}"\n')
    assert victim.dibs("config", "show", PGHOST="db.corp", **env).returncode == 0


def test_control_the_operator_takes_tls_away(victim: Victim) -> None:
    pytest.importorskip("psycopg")
    with Postgres() as server:
        address = f"postgresql://u@127.0.0.1:{server.port}/d?sslmode=disable"
        _ask_postgres(victim, address, "--config", "dibs.toml")
    assert SECRETS["PGPASSWORD"].encode() in server.heard


@pytest.mark.parametrize(
    ("address", "hosts"),
    [
        ("postgresql://db/d", {"db"}),
        ("postgres://u@db:5433,evil.example:1/d", {"db:5433", "evil.example:1"}),
        ("postgresql:///d?host=evil.example", {"evil.example"}),
        ("postgresql://good@evil.example?x=@good/", {"evil.example"}),
        ("postgresql://u:p@db/d", set()),
        ("postgresql://u:@db/d", {"db"}),
        ("postgresql://u:p@db/d?password=", {"db"}),
        ("postgresql://u:p@db/d?hostaddr=10.0.0.1,10.0.0.2", {"10.0.0.1", "10.0.0.2"}),
        ("postgresql:///d", set()),
    ],
)
def test_the_hosts_that_a_password_would_go_to(address: str, hosts: set[str]) -> None:
    options = parse_qsl(address.partition("?")[2], keep_blank_values=True)
    assert set(postgres_hosts(address, options, {"PGPASSWORD": "x"})) == hosts


@pytest.mark.parametrize("how", ["hosts", "PGHOST", "DIBS_LEASES", "--config"])
def test_control_the_operator_names_the_postgres_server(victim: Victim, how: str) -> None:
    pytest.importorskip("psycopg")
    with Postgres() as server:
        place = f"127.0.0.1:{server.port}"
        address = f"postgresql://u@{place}/d"
        env = {"PGHOST": "127.0.0.1", "PGPORT": str(server.port)} if how == "PGHOST" else {}
        env |= {"DIBS_LEASES": address} if how == "DIBS_LEASES" else {}
        if how == "hosts":
            users_file(victim, f"hosts = ['{place}']")
        words = ("--config", "dibs.toml") if how == "--config" else ()
        _ask_postgres(victim, address, *words, **env)
    assert SECRETS["PGPASSWORD"].encode() in server.heard


def test_control_another_address_for_a_host_with_a_password(victim: Victim) -> None:
    pytest.importorskip("psycopg")
    with Postgres() as server:
        _pgpass(victim, server.port)
        users_file(victim, f"hosts = ['127.0.0.1', 'db.acme.example:{server.port}']")
        env = {"PGPASSWORD": "", "PGSSLMODE": "disable"}
        address = f"postgresql://u@db.acme.example:{server.port}/d"
        _ask_postgres(victim, f"{address}?sslmode=disable&hostaddr=127.0.0.1", **env)
    assert b"HUNTER2" in server.heard


class Postgres:
    """A server of the attacker's that asks for a password in clear, and keeps what it is sent."""

    def __enter__(self) -> "Postgres":
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.heard = b""
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
                connection.settimeout(5)
                while asked := connection.recv(65536):
                    self.heard += asked
                    wants_tls = len(asked) == 8
                    clear_password = b"R" + struct.pack(">ii", 8, 3)
                    connection.sendall(b"N" if wants_tls else clear_password)
                    if asked.startswith(b"p"):
                        break
                connection.close()
            except OSError:
                return


def _ask_postgres(victim: Victim, address: str, *words: str, **env: str) -> None:
    assert victim.dibs("add", "one").returncode == 0
    victim.configure(f'leases = "{address}"\n')
    victim.dibs(*words, "show", "1", **env)


def _pgpass(victim: Victim, port: int) -> None:
    (victim.home / ".pgpass").write_text(f"db.acme.example:{port}:*:u:HUNTER2\n")
    (victim.home / ".pgpass").chmod(0o600)


def users_file(victim: Victim, trust: str) -> Path:
    """Write the user's own file with this `[trust]`."""
    file = victim.home / ".config" / "dibs" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(f"[trust]\n{trust}\n")
    file.chmod(0o600)
    return file


def _push(victim: Victim, tmp_path: Path, text: str) -> str:
    """Push a branch whose dibs.toml has this text, with the hook; what git printed."""

    def git(*words: str) -> str:
        names = {f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in NAMES}
        done = subprocess.run(
            ["git", *words],
            cwd=victim.folder,
            env={**victim.env, **names, "GIT_CONFIG_NOSYSTEM": "1"},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout + done.stderr

    git("init", "--quiet", "--initial-branch=main")
    git("init", "--quiet", "--bare", str(tmp_path / "remote.git"))
    git("remote", "add", "origin", str(tmp_path / "remote.git"))
    installed = victim.dibs("hook", "install")
    assert installed.returncode == 0, installed.stderr
    victim.configure(text)
    git("add", "--all")
    git("commit", "--quiet", "-m", "closes #1")
    return git("push", "origin", "main")


NAMES = ("NAME", "EMAIL")
