"""`python -m dibs_lab.fakehub`: a fake GitHub on loopback that runs until it is interrupted."""

import argparse
import json
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .faults import Fault, Wrong
from .limits import Limits
from .records import Permission
from .seeding import seed
from .server import FakeHub


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dibs_lab.fakehub",
        description="A GitHub of your own: REST and GraphQL on loopback, in memory.",
    )
    several: dict[str, Any] = {"action": "append", "default": []}
    parser.add_argument("--repo", metavar="OWNER/NAME", **several, help="a repository; repeatable")
    parser.add_argument(
        "--private", action="store_true", help="make the repositories of --repo private"
    )
    parser.add_argument(
        "--user",
        metavar="LOGIN:PERMISSION",
        **several,
        help="an account and what it may in every --repo: none, read, triage, write, admin",
    )
    parser.add_argument(
        "--token", metavar="TEXT=LOGIN", **several, help="a token; else LOGIN-token for each --user"
    )
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--unix-socket", type=Path, metavar="PATH", help="listen there as well")
    parser.add_argument("--limits", choices=("github", "off"), default="github")
    parser.add_argument(
        "--lag",
        type=_seconds,
        default=0.0,
        metavar="2s",
        help="reads learn of writes up to this late",
    )
    parser.add_argument(
        "--seed", type=Path, metavar="FILE", help="JSON with users, tokens, repositories, issues"
    )
    return parser


def _seconds(text: str) -> float:
    return float(text.removesuffix("s"))


def main(words: Sequence[str] | None = None) -> int:
    parser = _parser()
    asked = parser.parse_args(words)
    hub = FakeHub(
        limits=Limits.off() if asked.limits == "off" else Limits(),
        port=asked.port,
        unix_socket=asked.unix_socket,
    )
    try:
        tokens = _set_up(hub, asked)
    except (KeyError, ValueError, OSError) as wrong:
        hub.close()
        parser.error(f"{type(wrong).__name__}: {wrong}")
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with hub:
        _tell(hub, tokens)
        ended.wait()
    return 0


def _set_up(hub: FakeHub, asked: argparse.Namespace) -> dict[str, str]:
    """Create what the arguments name. Returns tokens by login."""
    for name in asked.repo:
        hub.repository(name, private=asked.private)
    logins: list[str] = []
    for text in asked.user:
        login, _, word = text.partition(":")
        hub.user(login, {name: Permission[(word or "write").upper()] for name in asked.repo})
        logins.append(login)
    given = dict(_pair(text) for text in asked.token)
    for token, login in given.items():
        hub.user(login, token=token)
    if asked.seed:
        seed(hub.state, json.loads(asked.seed.read_text()))
    if asked.lag:
        hub.faults.add(Fault(Wrong.LAG, seconds=(0.0, asked.lag)))
    shown = {login: token for token, login in reversed(given.items())}
    return {**{login: f"{login}-token" for login in logins}, **shown}


def _pair(text: str) -> tuple[str, str]:
    token, equals, login = text.partition("=")
    if not (token and equals and login):
        raise ValueError("--token takes TEXT=LOGIN")
    return token, login


def _tell(hub: FakeHub, tokens: dict[str, str]) -> None:
    lines = [f"GITHUB_API_URL={hub.url}"]
    lines += [f"GITHUB_TOKEN={token}  # {login}" for login, token in tokens.items()]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
