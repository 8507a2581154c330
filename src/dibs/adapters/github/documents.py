"""Every GraphQL document that is sent to GitHub, and how the ones with many parts are put together.

Each reading brings the control issue's log along, so that who grants and what is paused needs no
request of its own. A trip is one mutation document: its fields are done one after the other, each
by itself, and the last one's payload is the whole issue as it is then.
"""

from collections.abc import Sequence
from typing import assert_never

from dibs.core.granter import CONTROL_LABEL
from dibs.core.labels import AddLabels, CloseIssue, EditComment, Effect, PostComment, RemoveLabels

MOST_AT_ONCE = 100
"""Issues in one reading. With 100 comments and 100 labels each that is about 22,000 nodes, of the
500,000 that GitHub allows."""

_SAID = """
fragment Said on IssueComment {
  id fullDatabaseId body createdAt updatedAt authorAssociation viewerDidAuthor
  author { __typename login }
}
"""

_WHOLE = (
    """
fragment Whole on Issue {
  id number title state body url createdAt updatedAt
  repository { nameWithOwner }
  author { __typename login }
  labels(first: 100) { nodes { id name } }
  assignees(first: 10) { nodes { __typename login } }
  closedByPullRequestsReferences(first: 100, includeClosedPrs: false) {
    nodes { number state repository { nameWithOwner } author { __typename login } }
  }
  comments(first: 100) { totalCount pageInfo { hasNextPage endCursor } nodes { ...Said } }
}
"""
    + _SAID
)

_LOG = """
fragment Log on Issue {
  number
  comments(last: 100) { totalCount pageInfo { hasPreviousPage } nodes { ...Said } }
}
"""

# Which of them counts is asked anew each time: it may lose its label, and one with a lower number
# may get it. As a rule there is one; of more than a few the logs are read by themselves.
_CONTROL = f"""
  controls: issues(
    first: 100, labels: ["{CONTROL_LABEL}"], orderBy: {{field: CREATED_AT, direction: ASC}}
  ) {{
    pageInfo {{ hasNextPage }}
    nodes {{ number authorAssociation viewerDidAuthor author {{ __typename login }} }}
  }}
  logs: issues(
    first: 3, labels: ["{CONTROL_LABEL}"], orderBy: {{field: CREATED_AT, direction: ASC}}
  ) {{ nodes {{ ...Log }} }}
"""

# Of several repositories the first is home: there the fleet's pauses and the granter are written.
_HOME = f"""
  home: repository(owner: $homeOwner, name: $homeName) @include(if: $away) {{
{_CONTROL}
  }}
"""

_WHERE = """$owner: String!, $name: String!, $labels: Boolean!,
  $away: Boolean!, $homeOwner: String!, $homeName: String!
"""

_LABELS = "labels(first: 100) @include(if: $labels) { nodes { id name } }"


def _reading(operation: str, variables: str, fields: str) -> str:
    return f"""query {operation}({_WHERE}{variables}) {{
  repository(owner: $owner, name: $name) {{
    viewerPermission
{fields}
{_LABELS}
{_CONTROL}
  }}
{_HOME}
}}
{_WHOLE}{_LOG}"""


READ = _reading("Read", "  $number: Int!", "    issue(number: $number) { ...Whole }")


CONTROL = f"""query Control($owner: String!, $name: String!) {{
  repository(owner: $owner, name: $name) {{
{_CONTROL}
  }}
}}
{_LOG}{_SAID}"""


def threads(count: int) -> str:
    """So many issues by their numbers: `$n0`, `$n1`; each is `i0`, `i1` in the answer."""
    variables = ", ".join(f"$n{place}: Int!" for place in range(count))
    fields = "\n".join(
        f"    i{place}: issue(number: $n{place}) {{ ...Whole }}" for place in range(count)
    )
    return _reading("Threads", f"  {variables}", fields)


_CLOSING_PULLS = """
fragment Closing on Issue {
  closedByPullRequestsReferences(first: 20, includeClosedPrs: true, orderByState: true) {
    nodes {
      number state createdAt closedAt mergedAt headRefName isCrossRepository
      repository { nameWithOwner }
      author { __typename login }
      labels(first: 20) { nodes { id name } }
    }
  }
}
"""


def pulls(count: int) -> str:
    """What became of the pull requests that close so many issues: `i0`, `i1` in the answer."""
    variables = ", ".join(f"$n{place}: Int!" for place in range(count))
    fields = "\n".join(
        f"    i{place}: issue(number: $n{place}) {{ ...Closing }}" for place in range(count)
    )
    return f"""query Pulls($owner: String!, $name: String!, {variables}) {{
  repository(owner: $owner, name: $name) {{
{fields}
  }}
}}
{_CLOSING_PULLS}"""


def finding(count: int) -> str:
    """So many lists of issues by label, oldest first, each a page: `q0`, `q1` in the answer."""
    variables = ", ".join(
        f"$l{place}: [String!], $s{place}: [IssueState!], $f{place}: Int!, $a{place}: String"
        for place in range(count)
    )
    fields = "\n".join(
        f"    q{place}: issues(labels: $l{place}, states: $s{place}, first: $f{place},"
        f" after: $a{place}, orderBy: {{field: CREATED_AT, direction: ASC}})"
        " { pageInfo { hasNextPage endCursor } nodes { ...Whole } }"
        for place in range(count)
    )
    return _reading("Find", f"  {variables}", fields)


def tally(count: int) -> str:
    """How many issues carry each of so many labels: `t0`, `t1` in the answer."""
    variables = ", ".join(f"$l{place}: [String!]" for place in range(count))
    fields = "\n".join(
        f"    t{place}: issues(labels: $l{place}, states: $states) {{ totalCount }}"
        for place in range(count)
    )
    return f"""query Tally($owner: String!, $name: String!, $states: [IssueState!], {variables}) {{
  repository(owner: $owner, name: $name) {{
{fields}
  }}
}}"""


def label_ids(count: int) -> str:
    """The ids of so many labels by their names: `l0`, `l1` in the answer."""
    variables = ", ".join(f"$l{place}: String!" for place in range(count))
    fields = "\n".join(
        f"    l{place}: label(name: $l{place}) {{ id name }}" for place in range(count)
    )
    return f"""query Labels($owner: String!, $name: String!, {variables}) {{
  repository(owner: $owner, name: $name) {{
{fields}
  }}
}}"""


# Trips


def trip(effects: Sequence[Effect]) -> str:
    """Field `e0` is the first effect's, and so on; its variables are `$e0`, or `$e0` and `$b0`."""
    issue = "$issue: ID!" if any(_names_issue(effect) for effect in effects) else ""
    parts = (issue, *(_variables(effect, place) for place, effect in enumerate(effects)))
    variables = ", ".join(part for part in parts if part)
    fields = "\n".join(
        _field(effect, place, last=place == len(effects) - 1)
        for place, effect in enumerate(effects)
    )
    return f"mutation Trip({variables}) {{\n{fields}\n}}\n{_WHOLE}"


def _names_issue(effect: Effect) -> bool:
    return not isinstance(effect, EditComment)


def _variables(effect: Effect, place: int) -> str:
    match effect:
        case AddLabels() | RemoveLabels():
            return f"$e{place}: [ID!]!"
        case PostComment():
            return f"$b{place}: String!"
        case EditComment():
            return f"$e{place}: ID!, $b{place}: String!"
        case CloseIssue():
            return ""


def _field(effect: Effect, place: int, *, last: bool) -> str:
    whole = "...Whole" if last else "id"
    match effect:
        case AddLabels():
            done = f"addLabelsToLabelable(input: {{labelableId: $issue, labelIds: $e{place}}})"
            told = f"labelable {{ ... on Issue {{ {whole} }} }}"
        case RemoveLabels():
            done = f"removeLabelsFromLabelable(input: {{labelableId: $issue, labelIds: $e{place}}})"
            told = f"labelable {{ ... on Issue {{ {whole} }} }}"
        case PostComment():
            done = f"addComment(input: {{subjectId: $issue, body: $b{place}}})"
            told = f"commentEdge {{ node {{ ...Said }} }} subject {{ ... on Issue {{ {whole} }} }}"
        case EditComment():
            done = f"updateIssueComment(input: {{id: $e{place}, body: $b{place}}})"
            told = f"issueComment {{ ...Said issue {{ {whole} }} }}"
        case CloseIssue():
            done, told = "closeIssue(input: {issueId: $issue})", f"issue {{ {whole} }}"
        case _:
            assert_never(effect)
    return f"  e{place}: {done} {{ {told} }}"


def every_document() -> dict[str, str]:
    """One of each, for whoever holds them against GitHub's schema. Trips end in every effect."""
    kinds: tuple[Effect, ...] = (
        AddLabels(("a",)),
        RemoveLabels(("a", "b")),
        PostComment("said"),
        EditComment(1, "said"),
        CloseIssue(),
    )
    alone = {f"trip of {type(kind).__name__}": trip((kind,)) for kind in kinds}
    ending = {f"trip to {type(kind).__name__}": trip((*kinds, kind)) for kind in kinds}
    return {
        "read": READ,
        "control": CONTROL,
        **{f"threads of {count}": threads(count) for count in (1, 2, MOST_AT_ONCE)},
        **{f"pulls of {count}": pulls(count) for count in (1, 2, MOST_AT_ONCE)},
        **{f"finding {count}": finding(count) for count in (1, 2, 8)},
        **{f"tally of {count}": tally(count) for count in (1, 12)},
        **{f"label ids of {count}": label_ids(count) for count in (1, 12)},
        **alone,
        **ending,
    }
