"""REST: repositories, accounts, webhooks, pull requests, and the state of the server."""

from typing import Literal

from . import access
from .changing import KEEP
from .exchange import Answer, Call, as_text, as_texts, needs_token
from .records import Hook, Issue, Permission
from .refusal import invalid, not_found

VERSION = "dibs_lab.fakehub"


def get_repository(call: Call) -> Answer:
    return Answer(200, call.repository_bodies.repository(call.repository))


def create_repository(call: Call) -> Answer:
    needs_token(call.viewer)
    description = call.given.get("description")
    made = call.acts.create_repository(
        call.text("Repository", "name"),
        private=call.flag("private", default=False),
        description=None if description is None else str(description),
    )
    told = call.repository_bodies.repository(made)
    return Answer(201, told, {"Location": told["url"]})


def collaborator_permission(call: Call) -> Answer:
    access.needs_reading_of_rights(call.state, call.viewer, call.repository)
    return Answer(200, call.repository_bodies.permission_of(call.repository, call.at["login"]))


def list_collaborators(call: Call) -> Answer:
    """Invited accounts, accounts with access by a team, and the owner if that is a person."""
    state, repository = call.state, call.repository
    access.needs_listing_of_rights(state, call.viewer, repository)
    owner = state.users[repository.owner.lower()]
    logins = {owner.login.lower()} if owner.kind == "User" else set()
    for granted in (state.grants, state.teams):
        logins |= {who for who, may in granted.get(repository.id, {}).items() if may}
    people = sorted(who for who in logins if state.users[who].kind == "User")
    told = call.repository_bodies.permission_of
    return call.page(people, lambda login: told(repository, login)["user"])


def is_collaborator(call: Call) -> Answer:
    access.needs_reading_of_rights(call.state, call.viewer, call.repository)
    login = call.at["login"].lower()
    granted = call.state.grants.get(call.repository.id, {}).get(login, Permission.NONE)
    if login != call.repository.owner.lower() and granted is Permission.NONE:
        raise not_found()
    return Answer(204)


def get_self(call: Call) -> Answer:
    needs_token(call.viewer)
    if call.viewer.user and call.viewer.user.kind == "Bot":
        raise access.not_for_apps()
    scopes = call.viewer.token.scopes if call.viewer.token else None
    private = bool({"user", "read:user"} & (scopes or frozenset()))
    return Answer(200, call.bodies.full_user(call.viewer.login, private=private))


def get_user(call: Call) -> Answer:
    user = call.view.user(call.at["login"])
    if user is None:
        raise not_found()
    return Answer(200, call.bodies.full_user(user.login, private=False))


def meta(_: Call) -> Answer:
    return Answer(200, {"verifiable_password_authentication": False, "installed_version": VERSION})


def rate_limit(call: Call) -> Answer:
    return Answer(200, call.world.meter.overview(call.viewer))


def list_hooks(call: Call) -> Answer:
    _needs_admin(call)
    return call.page(call.view.hooks(call.repository.id), call.repository_bodies.hook)


def get_hook(call: Call) -> Answer:
    _needs_admin(call)
    return Answer(200, call.repository_bodies.hook(_hook(call)))


def create_hook(call: Call) -> Answer:
    config = call.given.get("config")
    if not isinstance(config, dict) or "url" not in config:
        raise invalid("Hook", "url", "missing_field")
    secret = config.get("secret")
    made = call.acts.create_hook(
        call.repository,
        as_text("Hook", "url", config["url"]),
        events=as_texts("Hook", "events", call.given.get("events", ["push"])),
        secret=None if secret is None else str(secret),
        content_type=_content_type(config.get("content_type", "form")),
        active=call.flag("active", default=True),
        insecure_ssl=str(config.get("insecure_ssl", "0")),
    )
    call.world.deliveries.ping(made, call.viewer.login)
    told = call.repository_bodies.hook(made)
    return Answer(201, told, {"Location": told["url"]})


def edit_hook(call: Call) -> Answer:
    hook, given = _hook(call), call.given
    config = given.get("config", {})
    changes: dict[str, object] = {}
    if "events" in given:
        changes["events"] = tuple(as_texts("Hook", "events", given["events"]))
    if "active" in given:
        changes["active"] = call.flag("active", default=True)
    for name in ("url", "secret"):
        if name in config:
            changes[name] = as_text("Hook", name, config[name])
    if "content_type" in config:
        changes["content_type"] = _content_type(config["content_type"])
    return Answer(200, call.repository_bodies.hook(call.acts.edit_hook(hook, **changes)))


def delete_hook(call: Call) -> Answer:
    call.acts.delete_hook(_hook(call))
    return Answer(204)


def ping_hook(call: Call) -> Answer:
    _needs_admin(call)
    call.world.deliveries.ping(_hook(call), call.viewer.login)
    return Answer(204)


def _content_type(given: object) -> Literal["json", "form"]:
    if given == "json":
        return "json"
    if given == "form":
        return "form"
    raise invalid("Hook", "content_type", "invalid")


def _hook(call: Call) -> Hook:
    wanted = call.number("hook_id")
    found = [hook for hook in call.view.hooks(call.repository.id) if hook.id == wanted]
    if not found:
        raise not_found()
    return found[0]


def _needs_admin(call: Call) -> None:
    """Refuse with 404 unless the viewer is an admin: others do not see hooks at all."""
    if not access.may(call.state, call.viewer, call.repository, Permission.ADMIN):
        raise not_found()


def list_pulls(call: Call) -> Answer:
    wanted, head, base = call.asked("state", "open"), call.asked("head"), call.asked("base")
    found = [
        one
        for one in call.view.issues(call.repository.id)
        if one.pull
        and wanted in ("all", one.state)
        and (not base or one.pull.base == base)
        and (not head or one.pull.head == head.rpartition(":")[2])
    ]
    if call.asked("direction", "desc") != "asc":
        found.reverse()
    return call.page(found, lambda pull: call.repository_bodies.pull(pull, whole=False))


def get_pull(call: Call) -> Answer:
    return Answer(200, call.repository_bodies.pull(_pull(call), whole=True))


def create_pull(call: Call) -> Answer:
    body = call.given.get("body")
    made = call.acts.create_pull(
        call.repository,
        call.text("PullRequest", "title"),
        call.text("PullRequest", "head"),
        call.text("PullRequest", "base"),
        body=None if body is None else as_text("PullRequest", "body", body),
        draft=call.flag("draft", default=False),
    )
    told = call.repository_bodies.pull(made, whole=True)
    return Answer(201, told, {"Location": told["url"]})


def edit_pull(call: Call) -> Answer:
    given = call.given
    body = given.get("body", KEEP)
    changed = call.acts.edit_pull(
        _pull(call),
        title=as_text("PullRequest", "title", given["title"]) if "title" in given else KEEP,
        body=body if body is KEEP or body is None else as_text("PullRequest", "body", body),
        state=as_text("PullRequest", "state", given["state"]) if "state" in given else KEEP,
    )
    return Answer(200, call.repository_bodies.pull(changed, whole=True))


def merge_pull(call: Call) -> Answer:
    merged = call.acts.merge_pull(_pull(call))
    sha = merged.pull.merge_sha if merged.pull else None
    return Answer(200, {"sha": sha, "merged": True, "message": "Pull Request successfully merged"})


def _pull(call: Call) -> Issue:
    if call.issue.pull is None:
        raise not_found()
    return call.issue
