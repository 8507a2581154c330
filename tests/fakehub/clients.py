"""Clients of a fake: one for each account, and the few requests every test makes."""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import httpx

from dibs_lab.fakehub import FakeHub, Permission

SHOP = "/repos/acme/shop"
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # httpx reads all certificates for each client


class TurnedClock:
    """Time that moves when it is told to: whole seconds pass only here."""

    def __init__(self) -> None:
        self.at = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.at

    def turn(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


@dataclass(frozen=True)
class Shop:
    """A fake with one public repository: an owner of all, a writer, a triager and a stranger."""

    hub: FakeHub
    clock: TurnedClock

    def client(self, token: str | None, **headers: str) -> httpx.Client:
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        return httpx.Client(base_url=self.hub.url, headers=headers, timeout=30, verify=_NO_TLS)

    def as_(self, login: str, permission: Permission | None = None) -> httpx.Client:
        may = {} if permission is None else {"acme/shop": permission}
        return self.client(self.hub.user(login, may))


def opened(client: httpx.Client, title: str = "An issue", **fields: object) -> dict:
    reply = client.post(f"{SHOP}/issues", json={"title": title, **fields})
    assert reply.status_code == 201, reply.text
    return reply.json()


def said(client: httpx.Client, number: int, body: str) -> dict:
    reply = client.post(f"{SHOP}/issues/{number}/comments", json={"body": body})
    assert reply.status_code == 201, reply.text
    return reply.json()


def label_names(told: list[dict]) -> list[str]:
    return [label["name"] for label in told]
