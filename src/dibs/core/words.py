"""Words on their way out of this process: secrets are masked, control characters spelled out.

A note, an error or a line of a log comes from a handler, a library or a stranger, and goes to where
others read it: a comment, the journal, a terminal. `masked` knows secrets by their shape: tokens of
known kinds, private keys, credentials in addresses and headers. A `Masker` knows the secrets of a
process as well. Refuses to know where a process has its secrets: see `adapters.system`.

Loaded only for a text that needs it: the common commands start without this module.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from unicodedata import category

from dibs.core.environment import looks_secret

MASK = "***"

# Each shape: one of these words is in the text, in small letters; the pattern; what stays of it.
# Each pattern takes time in proportion to the text: what is repeated without a limit either ends
# the pattern, or begins where no other match could have begun.
_ALONE = r"(?<![A-Za-z0-9])"
_DIGIT = r"(?=[A-Za-z_-]{0,60}[0-9])"
_NAME = (
    r"(?i:password|passwd|passphrase|secret|token|credentials?|signature"
    r"|(?:api|access|private|secret|signing|account)[_-]?key)"
)
_HINTS = ("passw", "passp", "secret", "token", "credential", "signature", "key")
_SHAPES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    # A private key, also without its end, and with its lines joined
    (
        ("private key",),
        (
            r"(?s)-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
            r".*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)"
        ),
        MASK,
    ),
    # scheme://user:password@, where an unquoted password may contain / ? # or another @
    (
        ("://",),
        r"(?<=://)[^\s@/:]{0,100}:(?![0-9]{1,5}(?:[/?#]|$))[^\s\"'<>]{1,200}@",
        f"{MASK}@",
    ),
    (("://",), r"(?<=://)[^\s/?#\"'<>]*@", f"{MASK}@"),
    # Addresses whose path is the secret
    (("hooks.slack",), r"(hooks\.slack\.com/[a-z]{1,20}/)[A-Za-z0-9_/-]{6,}", rf"\1{MASK}"),
    # Authorization: Bearer ..., in a header, a dictionary or a command
    (
        ("authorization",),
        (
            r"(?i)((?<![a-z])authorization[\"']?\s{0,8}[:=]\s{0,8}[\"']?"
            r"(?:bearer|basic|token|digest)\s{1,8})[^\s\"',]{6,}"
        ),
        rf"\1{MASK}",
    ),
    (
        ("bearer",),
        rf"(?i)((?<![a-z])bearer\s{{1,8}}){_DIGIT}[a-z0-9._~+/=-]{{16,}}",
        rf"\1{MASK}",
    ),
    # token=..., and "password": "..."
    (_HINTS, rf"({_NAME}[\"']?=[\"']?)[^\s&;,\"'<>()]{{6,}}", rf"\1{MASK}"),
    (
        _HINTS,
        rf"({_NAME}[\"']\s{{0,8}}:\s{{0,8}}[\"'])[^\s\"']{{6,}}(?=[\"'])",
        rf"\1{MASK}",
    ),
    # Tokens of GitHub, GitLab, Slack, AWS, Google, npm, PyPI and the makers of models
    (
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
        rf"{_ALONE}gh[pousr]_[A-Za-z0-9_]{{10,}}",
        MASK,
    ),
    (("github_pat_",), rf"{_ALONE}github_pat_[A-Za-z0-9_]{{10,}}", MASK),
    (("gl",), rf"{_ALONE}gl(?:pat|ptt|cbt|rt|dt|soat)-[A-Za-z0-9_-]{{10,}}", MASK),
    (("xox", "xapp-"), rf"{_ALONE}x(?:ox[a-z]|app)-[A-Za-z0-9-]{{10,}}", MASK),
    (("akia", "asia"), rf"{_ALONE}(?:AKIA|ASIA)[A-Z0-9]{{12,}}(?![A-Za-z0-9])", MASK),
    (("aiza",), rf"{_ALONE}AIza[A-Za-z0-9_-]{{30,}}", MASK),
    (("npm_", "hf_"), rf"{_ALONE}(?:npm|hf)_[A-Za-z0-9]{{30,}}", MASK),
    (("pypi-",), rf"{_ALONE}pypi-[A-Za-z0-9_-]{{50,}}", MASK),
    (("sk-", "sk_", "rk_"), rf"{_ALONE}[rs]k[-_]{_DIGIT}[A-Za-z0-9_-]{{20,}}", MASK),
    # A signed token (JWT)
    (
        ("eyj",),
        r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?",
        MASK,
    ),
)
_ADDRESSES = r"(?i)^(?!.*WEBHOOK).*(?:^|_)(?:URL|URI|DSN|PROXY|LEASES)$"
# Variables that are kept from handlers, and whose value is a place or a setting, not the secret
_ONLY_LEADS_THERE = (
    r"(?i)_(?:FILE|PATH|DIR|FOLDER|SOCK|ID|NAME|ENABLED)$|^GIT_CONFIG|^DIBS_FAILPOINT$"
)
_SHORTEST = 6
_SHORTEST_WORD = 16
_SHORTEST_LINE = 16
_SHORTEST_ENCODED = 10


def masked(text: str) -> str:
    """The text without what has the shape of a secret. Applied twice, it changes nothing more."""
    small = text.lower()
    for words, pattern, instead in _SHAPES:
        if any(word in small for word in words):
            text = re.sub(pattern, instead, text)
    return text


class Masker:
    """Masks the given secrets in any spelling that a log may have of them, and all shapes."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form for secret in secrets for form in spellings(secret)}
        longest_first = sorted(forms, key=len, reverse=True)  # a secret may contain another
        self._exact = "|".join(map(re.escape, longest_first))

    def __call__(self, text: str) -> str:
        return masked(re.sub(self._exact, MASK, text) if self._exact else text)


masker_of = lru_cache(maxsize=4)(Masker)
"""The masker of a frozenset of secrets: a process masks many texts and has few secrets."""


def secrets_in(environment: Mapping[str, str]) -> Iterator[str]:
    """The values of variables with a secret's name, and the parts of such values.

    Of an address in any variable, only the password.

    A short value and a plain word are left out: to mask `postgres` everywhere would hide too much.
    """
    for name, value in environment.items():
        if re.search(_ADDRESSES, name):
            from urllib.parse import unquote

            found = re.search(r"://[^:@/\s]*:(.+)@", value)
            parts = [found[1], unquote(found[1])] if found else []
        elif not looks_secret(name) or re.search(_ONLY_LEADS_THERE, name):
            continue
        elif value.startswith(("/", "./", "~/")) and "SECRET" not in name.upper():
            parts = []  # the path of a file with the secret
        else:
            # Several keys, each with its name; a private key, of which a log may show some lines
            keys = value.split(",")
            parts = [value, *keys, *(key.partition(":")[2] for key in keys)]
            parts += [line for line in value.splitlines() if len(line) >= _SHORTEST_LINE]
        yield from (part for part in map(str.strip, parts) if is_secret(part))


def is_secret(value: str) -> bool:
    """Whether a value is long enough to be masked, and if it is short, not only a word."""
    kinds = (str.islower, str.isupper, str.isdigit)
    mixed = not value.isalnum() or sum(any(map(kind, value)) for kind in kinds) > 1
    long = len(value) >= (_SHORTEST if mixed else _SHORTEST_WORD)
    return long and value.strip("*") != ""


def spellings(secret: str) -> Iterator[str]:
    """The secret as it is, in each half, percent-encoded, quoted, and inside any Base64 text.

    In each half, because a library may have cut the text that holds it.
    """
    from base64 import b64encode
    from urllib.parse import quote, quote_plus

    half = len(secret) // 2
    yield from (secret, *filter(is_secret, (secret[:half], secret[half:]) if half > 11 else ()))
    yield from (quote(secret, safe=safe, errors="replace") for safe in ("", "/"))
    yield quote_plus(secret, errors="replace")
    doubled = secret.replace("\\", "\\\\")
    yield from (doubled, doubled.replace('"', '\\"').replace("\n", "\\n"))
    data = secret.encode(errors="replace")
    yield data.hex()
    for before in range(3):  # Base64 takes three bytes at a time: the text depends on the place
        whole = (len(data) + before) // 3 * 4
        first = -(-before * 8 // 6)
        encoded = b64encode(b"\0" * before + data).decode()[first:whole]
        if len(encoded) >= _SHORTEST_ENCODED:
            yield encoded
            yield encoded.replace("+", "-").replace("/", "_")


# Control characters

_STEERING = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""The categories of characters that steer a terminal or hide in a text: controls, marks of the
direction of writing, characters without width, half surrogate pairs, ends of lines."""
_JOINERS = "\u200c\u200d"


def visible(text: str) -> str:
    r"""A line with its control characters spelled out, as `\x1b` or `\n`; a tab stays.

    A joiner stays between two characters outside of ASCII: emoji and some scripts are written with
    it. Applied twice, it changes nothing more.
    """
    if text.isprintable():
        return text
    return "".join(
        char
        if char.isprintable() or _harmless(text, place)
        else char.encode("unicode_escape").decode()
        for place, char in enumerate(text)
    )


def _harmless(text: str, place: int) -> bool:
    """Whether a character that is not printable may stay: a space, a tab, a joiner in its place."""
    char, beside = text[place], text[max(0, place - 1) : place + 2]
    if char in _JOINERS:
        around = beside[0] + beside[-1]
        return len(beside) == 3 and around.isprintable() and not any(map(str.isascii, around))
    return char == "\t" or category(char) not in _STEERING
