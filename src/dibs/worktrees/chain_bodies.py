"""The text of a pull request in a chain: ours between two marks, everything else people's.

What stands between the marks is replaced and nothing else is touched, however often it is done.
Pure: text in, text out.
"""

import re
from collections.abc import Mapping

from dibs.worktrees.chain_plan import Plan, RepoTarget
from dibs.worktrees.naming import file_name

# GitHub takes 65,536 characters; the rest is room for the marked part, which grows.
_LONGEST = 50_000
_CUT = "\n\n(The rest is too long for a pull request.)"


def first_body(plan: Plan, target: RepoTarget, urls: Mapping[str, str]) -> str:
    """What a pull request says when it is opened."""
    wanted = target.acceptance_criteria.strip()
    if len(wanted) > _LONGEST:
        wanted = wanted[:_LONGEST] + _CUT
    said = [
        f"For {plan.parent}: {_line(plan.feature_title)}",
        f"### Accepted when\n\n{wanted}" if wanted else "",
        f"Approved by {_line(plan.approved_by)}.",
        section(plan, target, urls),
    ]
    return "\n\n".join(part for part in said if part) + "\n"


def section(plan: Plan, target: RepoTarget, urls: Mapping[str, str]) -> str:
    """The marked part: every pull request of the chain, as far as it is open."""
    begin, end = _marks(plan.feature_id)
    lines = [f"{place}. {_entry(one, target, urls)}" for place, one in enumerate(plan.targets, 1)]
    heading = f"### Part {plan.part(target.repo_name)} of {plan.total()} for {plan.parent}"
    return "\n".join([begin, heading, "", *lines, end])


def refreshed(body: str, plan: Plan, target: RepoTarget, urls: Mapping[str, str]) -> str:
    """The same text with the marked part as it is now; at the end, if there was none."""
    wanted = section(plan, target, urls)
    pattern = _pattern(plan.feature_id)
    if not pattern.search(body):
        return f"{body.rstrip()}\n\n{wanted}\n" if body.strip() else f"{wanted}\n"
    # Text that went through a browser has other line ends; they are no difference.
    return pattern.sub(
        lambda found: found[0] if _lines(found[0]) == _lines(wanted) else wanted, body
    )


def is_of_chain(body: str, feature_id: str) -> bool:
    return _pattern(feature_id).search(body) is not None


def _entry(one: RepoTarget, here: RepoTarget, urls: Mapping[str, str]) -> str:
    name = _line(one.repo_name)
    if one.repo_name == here.repo_name:
        return f"{name}: this one"
    return f"{name}: {urls.get(one.repo_name, 'not open yet')}"


def _marks(feature_id: str) -> tuple[str, str]:
    # Two dashes would end the comment, and `>` too.
    name = file_name(feature_id).replace("--", "-%2D")
    return f"<!-- dibs:chain {name} -->", f"<!-- dibs:end-of-chain {name} -->"


def _pattern(feature_id: str) -> re.Pattern[str]:
    """From a beginning to the end that follows, with no other beginning in between.

    A mark that somebody deleted must not make what people wrote a part of ours.
    """
    begin, end = map(re.escape, _marks(feature_id))
    return re.compile(f"{begin}(?:(?!{begin}).)*?{end}", re.DOTALL)


def _line(text: str) -> str:
    """In one line, and unable to pass for a mark."""
    return " ".join(text.split()).replace("<!--", "&lt;!--")


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]
