"""What a configuration that was found by searching may not set, and how the operator allows it.

A repository can bring a `dibs.toml` along, and with it the name of a server, a path or a variable.
Such a file must not decide which server gets the operator's credentials, which files outside of its
folder dibs writes to, and which credentials a handler sees. The operator decides this: by a
variable, by `--config`, or by `[trust]` in the user's own file. Loaded only if a found file sets
something of the kind, or if the user's own file exists.
"""

import os
import re
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
from msgspec import Struct

from dibs.adapters.system import small_file
from dibs.core.errors import BadConfiguration, Untrusted
from dibs.settings.load import Settings, Trust, UserFile, refuse_unknown

_GITHUB = "https://api.github.com"
_LONGEST = 300
_LONGEST_PATH = 4096
_GIT_S = 10.0
_SIDE_FILES = ("-wal", "-shm", "-journal")
"""What SQLite appends to the name of a database for the files beside it."""
# Options of libpq that neither name a file nor hand on a credential.
_POSTGRES_OPTIONS = {
    *("namespace", "timeout", "host", "hostaddr", "port", "dbname", "user", "password"),
    *("sslmode", "sslrootcert", "sslnegotiation", "channel_binding", "require_auth"),
    *("ssl_min_protocol_version", "ssl_max_protocol_version", "application_name", "options"),
    *("connect_timeout", "target_session_attrs", "load_balance_hosts", "client_encoding"),
    *("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count"),
    "tcp_user_timeout",
}
# Options that decide who can read a password on its way, or take it as the server.
_POSTGRES_PROTECTION = {
    *("sslmode", "sslrootcert", "channel_binding", "require_auth"),
    *("ssl_min_protocol_version", "ssl_max_protocol_version"),
}


# The user's own file


def read(file: Path, owners: set[int]) -> Trust:
    """Read `[trust]` of the user's own file, if there is a file. Raises BadConfiguration."""
    try:
        text, status = small_file(file)
        if status.st_uid not in owners or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise BadConfiguration(
                f"{file} is not used: it must belong to you, and nobody else may write to it",
                hint=f"look at the owner and the permissions of {file}",
            )
        document = tomllib.loads(text)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return Trust()  # a handler of another user may not see the file, and is not trusted by it
    except (OSError, ValueError, RecursionError) as flaw:
        raise BadConfiguration(f"{file} cannot be read: {flaw}") from flaw
    try:
        refuse_unknown(document, UserFile, "")
        trust = msgspec.convert(document, UserFile).trust
        for host in trust.hosts:
            if not re.fullmatch(r"[A-Za-z0-9._-]+(:[0-9]+)?|\[[0-9A-Fa-f:.]+\](:[0-9]+)?", host):
                raise ValueError(f"trust.hosts: {host!r} is not HOST or HOST:PORT")  # noqa: TRY301
        for place in (*trust.folders, *trust.paths):
            if not place.startswith(("/", "~/")):
                raise ValueError(f"trust: {place!r} does not begin with / or ~/")  # noqa: TRY301
    except (msgspec.ValidationError, ValueError) as flaw:
        from dibs.settings.flaws import in_plain_words

        raise BadConfiguration(f"{file}: {in_plain_words(str(flaw), document)}") from flaw
    return trust


def covers(trusted: Iterable[str], place: Path) -> bool:
    """Whether the place, with all links followed, is at or below a trusted place."""
    real = Path(os.path.realpath(place))
    return any(real.is_relative_to(os.path.realpath(os.path.expanduser(one))) for one in trusted)  # noqa: PTH111


# What is refused


def refuse_foreign(place: Path | None, settings: Settings, users: Path) -> None:
    """Raise Untrusted for a place of another user by which the settings were found."""
    if place is None or covers(settings.trust.folders, place):
        return
    folder = settings.root if place.name in (".dibs", ".git") else place.parent
    folder = place if place == settings.root else folder
    raise Untrusted(
        f"{place} belongs to another user, who could give your dibs any settings",
        hint=f"if you trust that user: add {str(folder)!r} to folders of [trust] in {users}"
        + (", or name the file with --config" if settings.file else ""),
    )


def refuse_overreach(settings: Settings, users: Path) -> None:
    """Raise Untrusted for the first setting of a found file which is the operator's to set."""
    for reach in (
        *reached_servers(settings, os.environ),
        *reached_files(settings),
        *reached_repository(settings),
    ):
        ways = ["name the file with --config"] if settings.file else []
        if reach.key == "github.api":
            ways.insert(0, "set GITHUB_API_URL to the address")
        if reach.table:
            value = reach.value[:_LONGEST]
            ways.insert(0, f"add {value!r} to {reach.table} of [trust] in {users}")
        raise Untrusted(
            f"{settings.source}: {reach.key} {reach.does[:_LONGEST]}; a file that was found by "
            "searching may not do this",
            hint=f"if you want this: {', or '.join(ways)}",
        )


class Reach(Struct, frozen=True):
    """A setting of a found file which is the operator's to set."""

    key: str
    does: str
    table: str = ""
    """The key of `[trust]` that allows the value; empty: none does."""
    value: str = ""


def reached_servers(settings: Settings, environment: Mapping[str, str]) -> Iterator[Reach]:
    """The servers in the settings to which credentials of the machine would go."""
    trusted = {host.lower() for host in settings.trust.hosts}
    api = settings.github.api.strip().rstrip("/")
    if api not in ("", _GITHUB, environment.get("GITHUB_API_URL", "").strip().rstrip("/")):
        host = _host_in(api)
        if host not in trusted:
            yield Reach("github.api", f"sends your token for GitHub to {host!r}", "hosts", host)
    scheme, query = settings.leases.partition(":")[0], settings.leases.partition("?")[2]
    options = parse_qsl(query, keep_blank_values=True)
    if scheme == "dynamodb":
        agreed = {environment.get(f"AWS_ENDPOINT_URL{of}") for of in ("", "_DYNAMODB")}
        for endpoint in (text for name, text in options if name == "endpoint"):
            host = _host_in(endpoint)
            if host not in trusted and endpoint not in agreed:
                does = f"sends what identifies you at AWS to {host!r}"
                yield Reach("leases", does, "hosts", host)
    if scheme in ("postgresql", "postgres"):
        yield from reached_postgres(settings.leases, options, trusted, environment)


def reached_postgres(
    address: str, options: list[tuple[str, str]], trusted: set[str], environment: Mapping[str, str]
) -> Iterator[Reach]:
    """What the address of a PostgreSQL server does to credentials of the machine."""
    for name in sorted({name for name, _ in options} - _POSTGRES_OPTIONS):
        yield Reach("leases", f"sets the option {name!r}, which may hand on a credential")
    usual, port = environment.get("PGHOST", "").lower(), environment.get("PGPORT", "5432")
    for host in postgres_hosts(address, options, environment):
        if host not in (*trusted, usual, f"{usual}:{port}"):
            does = f"sends your password for PostgreSQL to {host!r}"
            yield Reach("leases", does, "hosts", host)
    if sends_password(address, options, environment):
        for name, text in options:
            agreed = environment.get(f"PG{name.replace('_', '').upper()}")  # libpq's own name
            strict = (name, text) == ("sslmode", "verify-full")
            if name in _POSTGRES_PROTECTION and text != agreed and not strict:
                does = f"sets the option {name!r}, which protects your password for PostgreSQL"
                yield Reach("leases", does)


def sends_password(
    address: str, options: list[tuple[str, str]], environment: Mapping[str, str]
) -> bool:
    """Whether libpq would send a password from outside of the address, from any of its places."""
    authority = re.split(r"[/?#]", address.partition("://")[2], maxsplit=1)[0]
    own = authority.rpartition("@")[0].partition(":")[2]
    if own and not any(name == "password" for name, _ in options):
        return False
    named = ("PGPASSWORD", "PGPASSFILE", "PGSERVICE", "PGSERVICEFILE")
    kept = os.path.isfile(os.path.expanduser("~/.pgpass"))  # noqa: PTH111, PTH113
    return kept or any(environment.get(name) for name in named)


def postgres_hosts(
    address: str, options: list[tuple[str, str]], environment: Mapping[str, str]
) -> Iterator[str]:
    """The servers to which libpq would send a password from outside of the address.

    `PGPASSWORD` goes to every host. A password of `~/.pgpass` is for a host by its name, and goes
    to the option `hostaddr`.
    """
    if sends_password(address, options, environment):
        authority = re.split(r"[/?#]", address.partition("://")[2], maxsplit=1)[0]
        options = [("hostaddr" if name == "host" else name, text) for name, text in options]
        options.append(("hostaddr", authority.rpartition("@")[2]))
    for text in (text for name, text in options if name == "hostaddr"):
        yield from filter(None, text.lower().split(","))


def _host_in(address: str) -> str:
    """HOST or HOST:PORT of an address; empty if the address has none."""
    try:
        return urlsplit(address).netloc.rpartition("@")[2].lower()
    except ValueError:
        return ""


def reached_files(settings: Settings) -> Iterator[Reach]:
    """The files outside of the folder which the settings let dibs write to.

    Also links inside of the folder to files outside, and git's own files.
    """
    root, folders = Path(os.path.realpath(settings.root)), {settings.root / ".dibs"}
    places = [("runs", settings.runs), ("runs", settings.runs / ".open")]
    places += [("journal", settings.journal)] if settings.journal else []
    for key, address in (("tracker", settings.tracker), ("leases", settings.leases)):
        if (local := local_path(address)) is None:
            continue
        file = settings.root / local
        places.append((key, file))
        if address.startswith("sqlite:") and file.name:
            places += [(key, file.with_name(file.name + more)) for more in _SIDE_FILES]
            folders.add(file.parent if file.parent.name == ".dibs" else file.parent / ".dibs")
    for folder in folders:
        places.append((".dibs", folder))
        with suppress(OSError):
            inside = (*folder.iterdir(), *folder.glob("git/*"))
            places += [(".dibs", entry) for entry in inside if entry.is_symlink()]
    for key, place in places:
        if len(str(place)) > _LONGEST_PATH:  # to follow its links would take minutes
            yield Reach(key, "names a path that is longer than any file's")
            continue
        real = Path(os.path.realpath(place))
        ours = real.is_relative_to(root) and ".git" not in real.relative_to(root).parts
        if not ours and not covers(settings.trust.paths, place):
            folder = real.parent if key in ("tracker", "leases") else real  # for the files beside
            yield Reach(key, f"lets dibs write to {str(real)!r}", "paths", str(folder))


def reached_repository(settings: Settings) -> Iterator[Reach]:
    """The repository on this machine to which leases in git lead, inside of the folder or not.

    A push runs the repository's hooks, and a repository in the folder may have come with the file.
    Git's settings with the addresses of remotes may have come with the file as well.
    Raises BadConfiguration for a name which is neither a remote's nor a repository's.
    """
    scheme, _, remote = settings.leases.partition(":")
    if scheme != "git":
        return
    if len(remote) > _LONGEST_PATH:
        yield Reach("leases", "names a remote that is longer than any address")
        return
    from dibs.adapters.git.program import GitCommands

    local = None
    with suppress(BadConfiguration):  # no such address, or no git: then no such leases either
        commands = GitCommands(settings.root, settings.root, timeout_s=_GIT_S)
        local = commands.resolve(remote).local
    if local is not None and not covers(settings.trust.paths, settings.root / local):
        place = os.path.realpath(settings.root / local)
        there = map(os.path.lexists, (place, f"{place}.git"))  # git tries both
        if local == remote and "/" not in remote and not any(there):
            raise BadConfiguration(
                f"{settings.source}: leases: there is no remote {remote[:_LONGEST]!r} here, and no "
                f"repository at {place[:_LONGEST]!r}",
                hint=f"look at what git remote -v lists in {settings.root}",
            )
        yield Reach("leases", f"lets dibs push to {place!r}, whose hooks run", "paths", place)


def local_path(address: str) -> str | None:
    """The path in the address of a tracker or store on the machine; None for a server's."""
    scheme, _, place = address.partition(":")
    match scheme:
        case "sqlite":
            return place or None
        case "unix" | "redis+unix":
            path = re.split(r"[?#]", place, maxsplit=1)[0].removeprefix("//").rpartition("@")[2]
            return "/" + unquote(path).lstrip("/")
        case _:
            return None
