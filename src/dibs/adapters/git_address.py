"""The address of a git remote: what may be seen of it, and what is handed to git unseen.

Whoever is on the machine reads the words of a command, and errors and logs repeat an address. So
no secret may be in the one that git is given: the account of an HTTP address reaches git through
its environment, as the answer of a credential helper for that server alone. An address that hides
a secret anywhere else, or may do so, is a wrong setting; the error does not repeat it.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from msgspec import Struct

from dibs.core.errors import BadConfiguration
from dibs.core.places import without_secrets

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)(.*)", re.DOTALL)
_SSH = re.compile(r"[^/:]*:(.*)", re.DOTALL)  # host:path, with no slash before the colon
_OF_A_PROGRAM = re.compile(r"[A-Za-z0-9][A-Za-z0-9+.-]*::")
_UNFIT = re.compile(r"[\x00-\x1f\x7f]")
_USER, _PASSWORD = "LEASES_GIT_USER", "LEASES_GIT_PASSWORD"
_ALIAS = "dibs-leases:"
_ANSWER = (
    '!answer() { if test "$1" = get; then'
    f' printf "username=%s\\npassword=%s\\n" "${_USER}" "${_PASSWORD}"; fi; }}; answer'
)


class Account(Struct, frozen=True):
    server: str
    """Scheme, host and port: nobody else is told."""
    user: str
    password: str | None
    """None: git's own credentials know it."""


class Address(Struct, frozen=True):
    bare: str
    """Without an account, if it is reached by HTTP."""
    account: Account | None = None

    @property
    def shown(self) -> str:
        return without_secrets(self.bare)

    def identity(self, root: Path) -> str:
        """The same for nobody else's repository, wherever on this machine it is asked from."""
        near = not _URL.match(self.bare) and not _SSH.match(self.bare)
        whole = str((root / self.bare).absolute()) if near else self.bare
        return whole.encode("utf-8", "backslashreplace").decode()  # any bytes make a file's name

    @property
    def given(self) -> str:
        """What stands for it among a command's words.

        Where the account is ours to hand over, no rule of the user's (`insteadOf`) may put it back
        into the address: there is none for a name of our own, and git applies one rule only.
        """
        return self.bare if self.account is None else _ALIAS

    @property
    def settings(self) -> tuple[tuple[str, str], ...]:
        """What git must be told, none of it secret."""
        if self.account is None:
            return ()
        alias = (f"url.{self.bare}.insteadOf", _ALIAS)
        ours = f"credential.{self.account.server}"
        if self.account.password is None:
            return alias, (f"{ours}.username", self.account.user)
        # An empty helper makes git forget those before it.
        return alias, (f"{ours}.helper", ""), (f"{ours}.helper", _ANSWER)

    @property
    def secrets(self) -> Mapping[str, str]:
        """For git's environment."""
        if self.account is None or self.account.password is None:
            return {}
        return {_USER: self.account.user, _PASSWORD: self.account.password}


def parse_address(text: str) -> Address:
    """Raises BadConfiguration if a secret is, or may be, where it could be seen."""
    if _OF_A_PROGRAM.match(text):
        raise BadConfiguration(
            f"git:{text.partition(':')[0]}::... is the address of a remote helper, which may hide "
            "a secret; write one that git reaches by itself"
        )
    url = _URL.fullmatch(text)
    if url is None:
        ssh = _SSH.match(text)
        if ssh is not None and "@" in ssh[1]:
            raise _exposed(text, "an '@' after the first colon")
        return Address(text)
    scheme, authority, rest = url.groups()
    if scheme.lower() == "file":
        return Address(text)
    if "@" in rest:
        raise _exposed(text, "an '@' after the host (%40 in a path, %2F for a / in a password)")
    if "?" in rest or "#" in rest:
        raise _exposed(text, "a query")
    return _of_server(scheme, authority, rest)


def _of_server(scheme: str, authority: str, rest: str) -> Address:
    account, at, server = authority.rpartition("@")
    user, colon, password = account.partition(":")
    bare = f"{scheme}://{server}{rest}"
    if scheme.lower() not in ("http", "https"):
        if colon:
            raise _exposed(bare, "a password")
        return Address(f"{scheme}://{authority}{rest}")
    known = Account(f"{scheme}://{server}", unquote(user), unquote(password) if colon else None)
    if _UNFIT.search(known.user + (known.password or "")):
        raise _exposed(bare, "an account that git cannot be told")
    return Address(bare, known if at and account else None)


def _exposed(text: str, what: str) -> BadConfiguration:
    return BadConfiguration(
        f"git:{_harmless(text)} has {what}, which others could see; "
        "keep the secret in a credential helper, an ssh key, or as user:password of an https "
        "address"
    )


def _harmless(text: str) -> str:
    """Only what comes after the last sign that may belong to an account."""
    shown = without_secrets(text)
    return shown if "://" in shown else shown.rpartition("@")[2]
