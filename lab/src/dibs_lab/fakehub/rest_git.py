"""REST: git commits, trees, blobs and refs."""

from base64 import b64decode, b64encode

from . import access
from .bodies import Body, time_text
from .exchange import Answer, Call
from .git import Commit, Entry, Objects, Signature, signature
from .node_ids import node_id
from .records import Permission
from .refusal import invalid, unprocessable


def list_commits(call: Call) -> Answer:
    branch = call.asked("sha") or call.repository.default_branch
    return call.page(_objects(call).log(branch), lambda commit: _listed(call, commit))


def get_commit(call: Call) -> Answer:
    return Answer(200, _commit(call, _objects(call).commit(call.at["sha"])))


def create_commit(call: Call) -> Answer:
    _writes(call)
    parents = call.given.get("parents", [])
    if not isinstance(parents, list):
        raise invalid("Commit", "parents", "invalid")
    author = signature(call.given.get("author"), call.viewer.login, call.state.stamp())
    committer = call.given.get("committer")
    made = _objects(call).make_commit(
        call.text("Commit", "tree"),
        [str(parent) for parent in parents],
        call.text("Commit", "message"),
        author,
        signature(committer, author.name, author.at) if committer else author,
    )
    return Answer(201, _commit(call, made))


def get_tree(call: Call) -> Answer:
    sha, entries = _objects(call).tree(call.at["sha"])
    return Answer(200, _tree(call, sha, entries))


def create_tree(call: Call) -> Answer:
    _writes(call)
    objects, wanted = _objects(call), call.given.get("tree")
    if not isinstance(wanted, list):
        raise invalid("Tree", "tree", "missing_field")
    base = call.given.get("base_tree")
    kept = {} if base is None else {entry.path: entry for entry in objects.tree(str(base))[1]}
    for one in wanted:
        entry = _entry(objects, one)
        kept[entry.path] = entry
    sha = objects.make_tree(kept.values())
    return Answer(201, _tree(call, sha, objects.tree(sha)[1]))


def _entry(objects: Objects, one: object) -> Entry:
    if not isinstance(one, dict) or "path" not in one:
        raise invalid("Tree", "path", "missing_field")
    sha = one.get("sha")
    if sha is None:
        sha = objects.make_blob(str(one.get("content", "")).encode())
    return Entry(str(one.get("mode", "100644")), str(one["path"]), str(sha))


def create_blob(call: Call) -> Answer:
    _writes(call)
    content = call.text("Blob", "content")
    raw = b64decode(content) if call.given.get("encoding") == "base64" else content.encode()
    sha = _objects(call).make_blob(raw)
    return Answer(201, {"sha": sha, "url": f"{_git(call)}/blobs/{sha}"})


def get_blob(call: Call) -> Answer:
    sha = call.at["sha"]
    raw = _objects(call).blob(sha)
    return Answer(
        200,
        {
            "sha": sha,
            "node_id": node_id("event", call.repository.id, int(sha[:8], 16)),
            "size": len(raw),
            "url": f"{_git(call)}/blobs/{sha}",
            "content": b64encode(raw).decode(),
            "encoding": "base64",
        },
    )


def matching_refs(call: Call) -> Answer:
    found = _objects(call).refs(f"refs/{call.at.get('ref', '')}")
    return call.page(found, lambda pair: _ref(call, *pair))


def get_ref(call: Call) -> Answer:
    name = f"refs/{call.at['ref']}"
    return Answer(200, _ref(call, name, _objects(call).ref(name)))


def create_ref(call: Call) -> Answer:
    _writes(call)
    name, sha = call.text("Reference", "ref"), call.text("Reference", "sha")
    _objects(call).make_ref(name, sha)
    told = _ref(call, name, sha)
    return Answer(201, told, {"Location": told["url"]})


def move_ref(call: Call) -> Answer:
    _writes(call)
    name, sha = f"refs/{call.at['ref']}", call.text("Reference", "sha")
    _objects(call).move_ref(name, sha, force=call.flag("force", default=False))
    return Answer(200, _ref(call, name, sha))


def drop_ref(call: Call) -> Answer:
    _writes(call)
    _objects(call).drop_ref(f"refs/{call.at['ref']}")
    return Answer(204)


def _objects(call: Call) -> Objects:
    return call.world.git.of(call.repository)


def _writes(call: Call) -> None:
    access.needs(call.state, call.viewer, call.repository, Permission.WRITE, access.CONTENTS)
    if not isinstance(call.request.given_value, dict):
        raise unprocessable("Problems parsing JSON")


def _git(call: Call) -> str:
    return f"{call.bodies.repository_url(call.repository)}/git"


def _ref(call: Call, name: str, sha: str) -> Body:
    return {
        "ref": name,
        "node_id": node_id("event", call.repository.id, int(sha[:8], 16)),
        "url": f"{_git(call)}/{name}",
        "object": {"type": "commit", "sha": sha, "url": f"{_git(call)}/commits/{sha}"},
    }


def _signed(by: Signature) -> Body:
    return {"name": by.name, "email": by.email, "date": time_text(by.at)}


_UNSIGNED = {
    "verified": False,
    "reason": "unsigned",
    "signature": None,
    "payload": None,
    "verified_at": None,
}


def _commit(call: Call, commit: Commit) -> Body:
    page = f"{call.bodies.web}/{call.repository.full_name}/commit"
    return {
        "sha": commit.sha,
        "node_id": node_id("event", call.repository.id, int(commit.sha[:8], 16)),
        "url": f"{_git(call)}/commits/{commit.sha}",
        "html_url": f"{page}/{commit.sha}",
        "author": _signed(commit.author),
        "committer": _signed(commit.committer),
        "tree": {"sha": commit.tree, "url": f"{_git(call)}/trees/{commit.tree}"},
        "message": commit.message,
        "parents": [
            {
                "sha": parent,
                "url": f"{_git(call)}/commits/{parent}",
                "html_url": f"{page}/{parent}",
            }
            for parent in commit.parents
        ],
        "verification": _UNSIGNED,
    }


def _listed(call: Call, commit: Commit) -> Body:
    told = _commit(call, commit)
    url = f"{call.bodies.repository_url(call.repository)}/commits/{commit.sha}"
    inner = {name: told[name] for name in ("author", "committer", "message", "tree")}
    return {
        "sha": commit.sha,
        "node_id": told["node_id"],
        "url": url,
        "html_url": told["html_url"],
        "comments_url": f"{url}/comments",
        "commit": {**inner, "url": told["url"], "comment_count": 0, "verification": _UNSIGNED},
        "author": None,
        "committer": None,
        "parents": told["parents"],
    }


def _tree(call: Call, sha: str, entries: tuple[Entry, ...]) -> Body:
    return {
        "sha": sha,
        "url": f"{_git(call)}/trees/{sha}",
        "tree": [
            {
                "path": entry.path,
                "mode": entry.mode,
                "type": entry.kind,
                "sha": entry.sha,
                "url": f"{_git(call)}/{entry.kind}s/{entry.sha}",
            }
            for entry in entries
        ],
        "truncated": False,
    }
