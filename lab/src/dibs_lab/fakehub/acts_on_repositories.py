"""Creating repositories, and their webhooks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal
from urllib.parse import urlsplit

from . import access
from .changing import Changing, alone
from .records import Hook, Permission, Repository
from .refusal import Kind, Refusal, invalid, not_found


class RepositoryActs(Changing):
    @alone
    def create_repository(
        self, name: str, *, private: bool = False, description: str | None = None
    ) -> Repository:
        """Create a repository of the viewer's own."""
        token = self.viewer.token
        if token is None:
            raise Refusal(Kind.UNAUTHENTICATED, "Requires authentication")
        if token.scopes is not None and not token.scopes & {"repo", "public_repo"}:
            raise Refusal(Kind.INSUFFICIENT_SCOPES, "Not Found")
        if not name:
            raise invalid("Repository", "name", "missing_field")
        full_name = f"{self.viewer.login}/{name}"
        with self.state.lock:
            known = self.state.names.get(full_name.lower())
            if known and self.state.repositories[known].full_name.lower() == full_name.lower():
                raise invalid("Repository", "name", "custom", "name already exists on this account")
            return self.state.add_repository(full_name, private=private, description=description)

    @alone
    def create_hook(
        self,
        repository: Repository,
        url: str,
        *,
        events: Sequence[str] = ("push",),
        secret: str | None = None,
        content_type: Literal["json", "form"] = "form",
        active: bool = True,
        insecure_ssl: str = "0",
    ) -> Hook:
        self._needs(repository, Permission.ADMIN, access.HOOKS)
        if urlsplit(url).scheme not in ("http", "https"):
            raise invalid("Hook", "url", "invalid")
        with self.state.lock:
            if any(hook.url == url for hook in self.state.primary().hooks(repository.id)):
                message = "Hook already exists on this repository"
                raise Refusal(
                    Kind.UNPROCESSABLE,
                    "Validation Failed",
                    errors=({"resource": "Hook", "code": "custom", "message": message},),
                )
            now = self.state.stamp()
            hook = Hook(
                id=self.state.next_id("big"),
                repository_id=repository.id,
                url=url,
                secret=secret,
                content_type=content_type,
                events=tuple(events),
                active=active,
                insecure_ssl=insecure_ssl,
                created_at=now,
                updated_at=now,
            )
            self.state.hooks[hook.id] = hook
            self.state.changes += 1
        return hook

    @alone
    def edit_hook(self, hook: Hook, **changes: object) -> Hook:
        """Change `url`, `events`, `secret`, `content_type`, `active` or `insecure_ssl`."""
        self._needs(self.state.repositories[hook.repository_id], Permission.ADMIN, access.HOOKS)
        with self.state.lock:
            if hook.id not in self.state.hooks:
                raise not_found()
            changed = replace(
                self.state.hooks[hook.id],
                updated_at=self.state.stamp(),
                **changes,  # type: ignore[arg-type] # the callers name fields of a hook
            )
            self.state.hooks[hook.id] = changed
            self.state.changes += 1
        return changed

    @alone
    def delete_hook(self, hook: Hook) -> None:
        self._needs(self.state.repositories[hook.repository_id], Permission.ADMIN, access.HOOKS)
        with self.state.lock:
            if self.state.hooks.pop(hook.id, None) is None:
                raise not_found()
            self.state.changes += 1
