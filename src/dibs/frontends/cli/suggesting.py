"""Which command a word that is no command may mean. Agents run what they are offered.

A word with a meaning of its own is answered by that meaning, or not at all: `delete` is not a
misspelled `release`. A command that changes something is offered only for a slip of one letter.
"""

from collections.abc import Collection

MEANT = {
    **dict.fromkeys(("create", "new", "insert", "issue"), "add"),
    **dict.fromkeys(("ls", "issues", "search", "find", "all"), "list"),
    **dict.fromkeys(("next", "todo", "available"), "ready"),
    **dict.fromkeys(("view", "cat", "get", "info", "describe", "details"), "show"),
    **dict.fromkeys(("log", "logs", "output", "history"), "runs"),
    **dict.fromkeys(("board", "stat", "stats", "ps", "top", "overview", "watch"), "status"),
    **dict.fromkeys(("explain", "reasons", "reason"), "why"),
    **dict.fromkeys(("check", "diagnose", "verify", "lint", "test"), "doctor"),
    **dict.fromkeys(("validate", "settings", "configure", "schema"), "config"),
    **dict.fromkeys(("limits", "quota", "ratelimit"), "budget"),
    **dict.fromkeys(("worker", "run", "start", "agent"), "work"),
    **dict.fromkeys(("renew", "beat", "ping", "keepalive"), "heartbeat"),
    **dict.fromkeys(("completions", "complete"), "completion"),
    **dict.fromkeys(("setup", "install"), "init"),
    **dict.fromkeys(("unpause", "continue", "requeue"), "resume"),
    **dict.fromkeys(("man", "usage", "commands"), "help"),
    **dict.fromkeys(("give", "return", "giveback", "untake"), "give-back"),
}
"""Words that other programs have for what a command of dibs does."""
READING = {
    *("list", "ready", "show", "why", "status", "runs", "budget", "doctor", "stores", "leases"),
    *("config", "completion", "help"),
}
"""Commands that change nothing, so that a poor guess does no harm."""


def suggestion(word: str, commands: Collection[str]) -> str | None:
    """The command that the word may mean; None rather than a risky guess."""
    from difflib import get_close_matches

    word = word.lower().replace("_", "-")
    if word in commands:
        return word
    if word in MEANT:
        return MEANT[word] if MEANT[word] in commands else None
    slips = [name for name in commands if name[:1] == word[:1] and _one_slip(word, name)]
    if slips:
        return slips[0]
    return next(iter(get_close_matches(word, READING & set(commands), n=1, cutoff=0.7)), None)


def _one_slip(word: str, name: str) -> bool:
    """Whether a letter is missing, added or wrong, or two neighbours are swapped."""
    if abs(len(word) - len(name)) > 1 or min(len(word), len(name)) < 3:
        return False
    start = next((i for i, (a, b) in enumerate(zip(word, name, strict=False)) if a != b), None)
    if start is None:
        return True
    a, b = word[start:], name[start:]
    swapped = a[:2] == b[1::-1] and a[2:] == b[2:]
    return swapped or a[1:] == b[1:] or a[1:] == b or a == b[1:]
