"""A walk through every REST route of the fake, by a client that asks as GitHub documents it."""

from dataclasses import dataclass, field
from typing import Any

import httpx
import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from dibs_lab.fakehub import FakeHub, Limits, Permission
from dibs_lab.fakehub.rest import routed

SHOP = "/repos/acme/shop"
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


@dataclass
class Walker:
    """Its requests count as ours, so that they are checked like the adapter's."""

    http: httpx.Client
    token: str
    been: set[str] = field(default_factory=set)

    def __call__(self, verb: str, path: str, wanted: Any = None, *, status: int = 200) -> Any:
        headers = {"Authorization": f"Bearer {self.token}", "User-Agent": "dibs on tour"}
        reply = self.http.request(verb, path, json=wanted, headers=headers)
        assert reply.status_code == status, f"{verb} {path}: {reply.status_code} {reply.text}"
        found = routed(verb, reply.request.url.raw_path.decode().partition("?")[0])
        if found and status < 300:
            self.been.add(found[0].kind)
        return reply.json() if reply.content else None


def tour() -> set[str]:
    """The routes that were seen to work. Each stop asserts its own status."""
    with FakeHub(limits=Limits.off()) as hub, httpx.Client(base_url=hub.url, timeout=20) as http:
        token = hub.user("alice", {"acme/shop": Permission.ADMIN})
        hub.state.join("acme", "alice", public=True)  # collaborators are listed to members only
        hub.user("bob", {"acme/shop": Permission.READ})
        walk = Walker(http, token)
        _issues(walk)
        _comments(walk)
        _labels(walk)
        _reactions(walk)
        _repositories(walk)
        _pulls(walk)
        _hooks(walk)
        _git(walk)
        apps = _apps(hub, http)
        return walk.been | apps.been


def _issues(walk: Walker) -> None:
    walk("POST", f"{SHOP}/issues", {"title": "First", "labels": ["bug", "stage:ready"]}, status=201)
    walk(
        "POST",
        f"{SHOP}/issues",
        {"title": "Second", "body": "#1", "assignees": ["bob"]},
        status=201,
    )
    walk("GET", f"{SHOP}/issues?state=all&labels=bug&sort=created&direction=asc&per_page=1&page=1")
    assert len(walk("GET", f"{SHOP}/issues?since=2020-01-01T00:00:00Z&per_page=1")) == 1
    first = walk("GET", f"{SHOP}/issues/1")
    walk("GET", first["url"].partition("/repos/")[1] + first["url"].partition("/repos/")[2])
    walk("PATCH", f"{SHOP}/issues/1", {"title": "Once", "body": None})
    walk("POST", f"{SHOP}/issues/1/assignees", {"assignees": ["bob"]}, status=201)
    walk("DELETE", f"{SHOP}/issues/1/assignees", {"assignees": ["bob"]})
    walk("GET", f"{SHOP}/assignees")
    walk("PUT", f"{SHOP}/issues/1/lock", {"lock_reason": "resolved"}, status=204)
    walk("DELETE", f"{SHOP}/issues/1/lock", status=204)
    walk("PATCH", f"{SHOP}/issues/2", {"state": "closed", "state_reason": "not_planned"})
    walk("PATCH", f"{SHOP}/issues/2", {"state": "open"})
    told = walk("GET", f"{SHOP}/issues/1/events")
    walk("GET", f"{SHOP}/issues/events")
    walk("GET", f"{SHOP}/issues/events/{told[0]['id']}")


def _comments(walk: Walker) -> None:
    made = walk("POST", f"{SHOP}/issues/1/comments", {"body": "Looking at #2"}, status=201)
    walk("GET", f"{SHOP}/issues/1/comments?per_page=100&since=2020-01-01T00:00:00Z")
    walk("GET", f"{SHOP}/issues/comments?sort=updated&direction=desc")
    walk("GET", f"{SHOP}/issues/comments/{made['id']}")
    walk("PATCH", f"{SHOP}/issues/comments/{made['id']}", {"body": "Looked"})
    walk("GET", f"{SHOP}/issues/1/timeline")
    walk("DELETE", f"{SHOP}/issues/comments/{made['id']}", status=204)


def _labels(walk: Walker) -> None:
    wanted = {"name": "agent:busy", "color": "00ff00", "description": "Somebody is on it"}
    walk("POST", f"{SHOP}/labels", wanted, status=201)
    walk("GET", f"{SHOP}/labels?per_page=100")
    walk("GET", f"{SHOP}/labels/agent%3Abusy")
    walk("PATCH", f"{SHOP}/labels/agent%3Abusy", {"new_name": "agent:here", "color": "ff0000"})
    walk("POST", f"{SHOP}/issues/1/labels", {"labels": ["agent:here"]})
    walk("GET", f"{SHOP}/issues/1/labels")
    walk("DELETE", f"{SHOP}/issues/1/labels/Agent%3AHere")
    walk("PUT", f"{SHOP}/issues/1/labels", {"labels": ["bug"]})
    walk("DELETE", f"{SHOP}/issues/1/labels", status=204)
    walk("DELETE", f"{SHOP}/labels/agent%3Ahere", status=204)


def _reactions(walk: Walker) -> None:
    said = walk("POST", f"{SHOP}/issues/1/comments", {"body": "Well"}, status=201)
    for place in (f"{SHOP}/issues/1", f"{SHOP}/issues/comments/{said['id']}"):
        made = walk("POST", f"{place}/reactions", {"content": "eyes"}, status=201)
        walk("POST", f"{place}/reactions", {"content": "eyes"})
        walk("GET", f"{place}/reactions")
        walk("DELETE", f"{place}/reactions/{made['id']}", status=204)


def _repositories(walk: Walker) -> None:
    walk("GET", SHOP)
    walk("GET", f"{SHOP}/collaborators")
    walk("GET", f"{SHOP}/collaborators/bob", status=204)
    walk("GET", f"{SHOP}/collaborators/bob/permission")
    walk("POST", "/user/repos", {"name": "attic", "private": True}, status=201)
    walk("GET", "/repos/alice/attic")
    walk("GET", "/user")
    walk("GET", "/users/bob")
    walk("GET", "/rate_limit")
    walk("GET", "/meta")


def _pulls(walk: Walker) -> None:
    wanted = {"title": "Mend", "head": "fix", "base": "main", "body": "Fixes #2"}
    pull = walk("POST", f"{SHOP}/pulls", wanted, status=201)["number"]
    walk("GET", f"{SHOP}/pulls?state=open")
    walk("GET", f"{SHOP}/pulls/{pull}")
    walk("GET", f"{SHOP}/issues/{pull}")
    walk("PATCH", f"{SHOP}/pulls/{pull}", {"title": "Mend it"})
    walk("PUT", f"{SHOP}/pulls/{pull}/merge")
    walk("GET", f"{SHOP}/issues/2")
    walk("GET", f"{SHOP}/pulls/{pull}")


def _hooks(walk: Walker) -> None:
    config = {"url": "http://127.0.0.1:9/hook", "content_type": "json", "secret": "s"}
    wanted = {"name": "web", "config": config, "events": ["issues"], "active": False}
    made = walk("POST", f"{SHOP}/hooks", wanted, status=201)["id"]
    walk("GET", f"{SHOP}/hooks")
    walk("GET", f"{SHOP}/hooks/{made}")
    walk("PATCH", f"{SHOP}/hooks/{made}", {"events": ["issues", "issue_comment"]})
    walk("POST", f"{SHOP}/hooks/{made}/pings", status=204)
    walk("DELETE", f"{SHOP}/hooks/{made}", status=204)


def _git(walk: Walker) -> None:
    git = f"{SHOP}/git"
    blob = walk("POST", f"{git}/blobs", {"content": "text", "encoding": "utf-8"}, status=201)["sha"]
    walk("GET", f"{git}/blobs/{blob}")
    entry = {"path": "file", "mode": "100644", "type": "blob", "sha": blob}
    tree = walk("POST", f"{git}/trees", {"tree": [entry]}, status=201)["sha"]
    walk("GET", f"{git}/trees/{tree}")
    first = {"message": "First", "tree": tree}
    one = walk("POST", f"{git}/commits", first, status=201)["sha"]
    second = {"message": "Second", "tree": tree, "parents": [one]}
    two = walk("POST", f"{git}/commits", second, status=201)["sha"]
    walk("GET", f"{git}/commits/{two}")
    walk("POST", f"{git}/refs", {"ref": "refs/heads/tour", "sha": one}, status=201)
    walk("PATCH", f"{git}/refs/heads/tour", {"sha": two, "force": False})
    walk("GET", f"{git}/ref/heads/tour")
    walk("GET", f"{git}/matching-refs/heads/to")
    walk("GET", f"{SHOP}/commits?sha=tour&per_page=1")
    walk("DELETE", f"{git}/refs/heads/tour", status=204)


def _apps(hub: FakeHub, http: httpx.Client) -> Walker:
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    installed = hub.install("dibs", public.decode(), "acme/shop")
    now = int(hub.state.now().timestamp())
    claims = {"iss": str(installed.app.id), "iat": now - 30, "exp": now + 300}
    walk = Walker(http, jwt.encode(claims, key, algorithm="RS256"))
    walk("GET", "/app")
    walk("GET", "/app/installations")
    walk("GET", f"/app/installations/{installed.id}")
    walk("GET", f"{SHOP}/installation")
    tokens = f"/app/installations/{installed.id}/access_tokens"
    made = walk("POST", tokens, {"repositories": ["shop"]}, status=201)
    bot = Walker(http, made["token"], walk.been)
    bot("POST", f"{SHOP}/issues/1/comments", {"body": "By a program"}, status=201)
    return walk
