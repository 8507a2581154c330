"""REST: an App's requests with its JWT: its installations, and a token for one."""

from .apps import App, Installation
from .bodies import Body, time_text
from .exchange import Answer, Call
from .refusal import moved, not_found


def get_app(call: Call) -> Answer:
    return Answer(200, _app(call, _proven(call)))


def list_installations(call: Call) -> Answer:
    return call.page(call.world.apps.all_of(_proven(call)), lambda one: _installation(call, one))


def get_installation(call: Call) -> Answer:
    found = call.world.apps.installation(_proven(call), call.number("installation_id"))
    return Answer(200, _installation(call, found))


def repository_installation(call: Call) -> Answer:
    app, owner, name = _proven(call), call.at["owner"], call.at["repo"]
    repository = call.view.repository(owner, name)
    if repository is None:
        raise not_found()
    found = call.world.apps.on(app, repository.id)
    if repository.full_name.lower() != f"{owner}/{name}".lower():
        raise moved(f"/repositories/{repository.id}/installation")
    return Answer(200, _installation(call, found))


def create_token(call: Call) -> Answer:
    apps = call.world.apps
    installation = apps.installation(_proven(call), call.number("installation_id"))
    token = apps.token(installation)
    return Answer(
        201,
        {
            "token": token.text,
            "expires_at": time_text(token.expires_at),
            "permissions": dict(installation.permissions),
            "repository_selection": "selected",
        },
    )


def _proven(call: Call) -> App:
    return call.world.apps.proven(call.request.token)


def _app(call: Call, app: App) -> Body:
    at = time_text(call.state.users[app.login.lower()].created_at)
    return {
        "id": app.id,
        "slug": app.slug,
        "node_id": call.state.users[app.login.lower()].node_id,
        "owner": call.bodies.user(app.login),
        "name": app.slug,
        "description": None,
        "external_url": f"{call.bodies.web}/apps/{app.slug}",
        "html_url": f"{call.bodies.web}/apps/{app.slug}",
        "created_at": at,
        "updated_at": at,
        "permissions": {"issues": "write", "metadata": "read"},
        "events": [],
    }


def _installation(call: Call, found: Installation) -> Body:
    api = call.request.api
    repository = call.state.repositories[min(found.repositories)]
    owner = call.state.users[repository.owner.lower()]
    at = time_text(found.created_at)
    return {
        "id": found.id,
        "account": call.bodies.user(owner.login),
        "repository_selection": "selected",
        "access_tokens_url": f"{api}/app/installations/{found.id}/access_tokens",
        "repositories_url": f"{api}/installation/repositories",
        "html_url": f"{call.bodies.web}/settings/installations/{found.id}",
        "app_id": found.app.id,
        "app_slug": found.app.slug,
        "target_id": owner.id,
        "target_type": owner.kind,
        "permissions": dict(found.permissions),
        "events": [],
        "single_file_name": None,
        "created_at": at,
        "updated_at": at,
        "suspended_by": None,
        "suspended_at": None,
    }
