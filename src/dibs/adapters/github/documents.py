"""Every GraphQL document that dibs sends to GitHub, and the functions that build the long ones.

Each reading includes the control issue's log, so that the granter and the pauses need no request
of their own. Labels are variables, spelt as the repository spells them: GraphQL's filters may heed
the case, and REST's do not. A trip is one mutation document: GitHub runs its fields in order, each
by itself, and the last field's payload is the whole issue as it is then.
"""

from collections.abc import Sequence
from typing import assert_never

from dibs.core.labels import AddLabels, CloseIssue, EditComment, Effect, PostComment, RemoveLabels

MOST_AT_ONCE = 100
"""The most issues in one reading. With 30 comments, 20 labels and pull requests, 100 events and
50 edits each, they have about 23,000 nodes. GitHub allows 500,000, and gives up far smaller
documents if they take too long."""
MOST_WHOLE_AT_ONCE = 25
"""The most issues in a reading with a hundred comments and labels of each."""

_SAID = """
fragment Said on IssueComment {
  id fullDatabaseId body createdAt updatedAt authorAssociation
  author { __typename login }
}
"""

_WHOLE = """
fragment Whole on Issue {
  id number title state body url createdAt updatedAt
  repository { nameWithOwner }
  authorAssociation author { __typename login }
  lastEditedAt editor { __typename login }
  userContentEdits(first: 50) {
    pageInfo { hasNextPage }
    nodes { editedAt editor { __typename login } }
  }
  timelineItems(last: 100, itemTypes: [LABELED_EVENT, RENAMED_TITLE_EVENT]) {
    pageInfo { hasPreviousPage }
    nodes {
      __typename
      ... on LabeledEvent { createdAt actor { __typename login } label { name } }
      ... on RenamedTitleEvent { createdAt actor { __typename login } }
    }
  }
  labels(first: #labels) { pageInfo { hasNextPage } nodes { id name } }
  assignees: assignedActors(first: 10) { nodes { __typename ... on Actor { login } } }
  closedByPullRequestsReferences(first: #pulls, includeClosedPrs: false) {
    pageInfo { hasNextPage }
    nodes {
      number state authorAssociation repository { nameWithOwner } author { __typename login }
    }
  }
  comments(first: #comments) { totalCount pageInfo { hasNextPage endCursor } nodes { ...Said } }
}
"""


def without_actors(document: str) -> str:
    """The document for an older server, which lists only people among the assignees."""
    return document.replace("assignees: assignedActors(", "assignees(")


def _whole(comments: int, labels: int, pulls: int) -> str:
    """The fragment of an issue, with pages of these sizes."""
    sizes = {"#comments": comments, "#labels": labels, "#pulls": pulls}
    fragment = _WHOLE
    for place, size in sizes.items():
        fragment = fragment.replace(place, str(size))
    return fragment + _SAID


_FULL = _whole(comments=100, labels=100, pulls=100)
_ONE_OF_MANY = _whole(comments=30, labels=20, pulls=20)

_LOG = """
fragment Log on Issue {
  number
  comments(last: 100) { totalCount pageInfo { hasPreviousPage } nodes { ...Said } }
}
"""

# Each reading asks again which control issue counts: it may lose its label, and an issue with a
# lower number may get the label. As a rule there is one control issue. Only the logs of the first
# three are included; a log behind them is read by a request of its own.
_CONTROL = """
  controls: issues(
    first: 100, labels: $control, orderBy: {field: CREATED_AT, direction: ASC}
  ) {
    pageInfo { hasNextPage }
    nodes { number authorAssociation author { __typename login } }
  }
  logs: issues(
    first: 3, labels: $control, orderBy: {field: CREATED_AT, direction: ASC}
  ) { nodes { ...Log } }
"""

# Of several repositories the first is home: its control issue has the fleet's pauses and the
# granter.
_HOME = f"""
  home: repository(owner: $homeOwner, name: $homeName) @include(if: $away) {{
{_CONTROL.replace("$control", "$homeControl")}
  }}
"""

_WHERE = """$owner: String!, $name: String!, $labels: Boolean!, $control: [String!]!,
  $away: Boolean!, $homeOwner: String!, $homeName: String!, $homeControl: [String!]!
"""

_LABELS = "labels(first: 100) @include(if: $labels) { pageInfo { hasNextPage } nodes { id name } }"


def _reading(operation: str, variables: str, fields: str, whole: str = _FULL) -> str:
    return f"""query {operation}({_WHERE}{variables}) {{
  viewer {{ login }}
  repository(owner: $owner, name: $name) {{
    viewerPermission isPrivate
{fields}
{_LABELS}
{_CONTROL}
  }}
{_HOME}
}}
{whole}{_LOG}"""


READER = """query Reader($owner: String!, $name: String!) {
  viewer { login }
  repository(owner: $owner, name: $name) { viewerPermission isPrivate }
}"""
READ = _reading("Read", "  $number: Int!", "    issue(number: $number) { ...Whole }")


def _query(operation: str, variables: str, fields: str, fragments: str = "") -> str:
    """A query about the repository alone."""
    return f"""query {operation}($owner: String!, $name: String!, $labels: Boolean!{variables}) {{
  repository(owner: $owner, name: $name) {{
{fields}
{_LABELS}
  }}
}}{fragments}"""


CONTROL = _query("Control", ", $control: [String!]!", _CONTROL, f"\n{_LOG}{_SAID}")


def _each(count: int, template: str, joint: str = "\n") -> str:
    """The template for each place from 0 on, with the place instead of `#`."""
    return joint.join(template.replace("#", str(place)) for place in range(count))


def snapshots(count: int, *, full: bool = False) -> str:
    """Read `count` issues by number: `$n0`, `$n1`; each is `i0`, `i1` in the answer.

    `full`: with pages of a hundred, for issues that have more than the smaller pages show.
    """
    fields = _each(count, "    i#: issue(number: $n#) { ...Whole }")
    variables = "  " + _each(count, "$n#: Int!", ", ")
    return _reading("Threads", variables, fields, _FULL if full else _ONE_OF_MANY)


_PULL = """
fragment Linked on PullRequest {
  number state authorAssociation createdAt closedAt mergedAt headRefName isCrossRepository
  repository { nameWithOwner }
  author { __typename login }
  labels(first: 20) @include(if: $pullLabels) { nodes { id name } }
}
"""
_CLOSING_PULLS = f"""
fragment Closing on PullRequestConnection {{
  pageInfo {{ hasNextPage endCursor }}
  nodes {{ ...Linked }}
}}
{_PULL}"""


def pulls(count: int) -> str:
    """Read the pull requests that close `count` issues: `$n0`, `$n1`; `i0`, `i1` in the answer.

    Of each issue the first `$first` behind the cursor `$a0`, open pull requests first; only open
    pull requests without `$closed`. The labels cost a hundredth of a point each: `$pullLabels`.
    """
    fields = _each(
        count,
        "    i#: issue(number: $n#) { repository { nameWithOwner }"
        " closedByPullRequestsReferences("
        "first: $first, after: $a#, includeClosedPrs: $closed, orderByState: true"
        ") { ...Closing } }",
    )
    variables = ", $first: Int!, $closed: Boolean!, $pullLabels: Boolean!"
    variables += _each(count, ", $n#: Int!, $a#: String", "")
    return _query("Pulls", variables, fields, f"\n{_CLOSING_PULLS}")


def pulls_named(count: int) -> str:
    """Read `count` pull requests by number: `$n0`, `$n1`; `p0`, `p1` in the answer."""
    fields = _each(count, "    p#: pullRequest(number: $n#) { ...Linked }")
    variables = ", $pullLabels: Boolean!" + _each(count, ", $n#: Int!", "")
    return _query("PullsNamed", variables, fields, f"\n{_PULL}")


def finding(count: int) -> str:
    """Read one page of `count` lists of issues, oldest first: `q0`, `q1` in the answer.

    List 0 has the labels `$l0`, the states `$s0`, `$f0` issues at most, from the cursor `$a0` on.
    """
    variables = "$l#: [String!], $s#: [IssueState!], $f#: Int!, $a#: String"
    fields = (
        "    q#: issues(labels: $l#, states: $s#, first: $f#,"
        " after: $a#, orderBy: {field: CREATED_AT, direction: ASC})"
        " { pageInfo { hasNextPage endCursor } nodes { ...Whole } }"
    )
    return _reading(
        "Find", "  " + _each(count, variables, ", "), _each(count, fields), _ONE_OF_MANY
    )


def tally(count: int) -> str:
    """Count the issues with each of `count` labels: `$l0`, `$l1`; `t0`, `t1` in the answer."""
    variables = ", $states: [IssueState!]" + _each(count, ", $l#: [String!]", "")
    fields = _each(count, "    t#: issues(labels: $l#, states: $states) { totalCount }")
    return _query("Tally", variables, fields)


# Trips


def trip(effects: Sequence[Effect]) -> str:
    """Apply the effects in order: field `e0` is the first effect, and so on.

    Its variables are `$e0`, `$b0` or both; `$issue` is declared if any effect names the issue.
    """
    names_issue = any(not isinstance(effect, EditComment) for effect in effects)
    variables = ["$issue: ID!"] if names_issue else []
    fields = []
    for place, effect in enumerate(effects):
        declared, mutation, payload = _mutation(effect, place, last=place == len(effects) - 1)
        variables += declared
        fields.append(f"  e{place}: {mutation} {{ {payload} }}")
    joined = "\n".join(fields)
    return f"mutation Trip({', '.join(variables)}) {{\n{joined}\n}}\n{_FULL}"


def _mutation(effect: Effect, place: int, *, last: bool) -> tuple[list[str], str, str]:
    """The variables to declare, the mutation, and the fields of its payload to ask for.

    The last mutation asks for the whole issue.
    """
    issue = "...Whole" if last else "id"
    body = f"$b{place}: String!"
    match effect:
        case AddLabels() | RemoveLabels():
            adds = isinstance(effect, AddLabels)
            mutation = "addLabelsToLabelable" if adds else "removeLabelsFromLabelable"
            return (
                [f"$e{place}: [ID!]!"],
                f"{mutation}(input: {{labelableId: $issue, labelIds: $e{place}}})",
                f"labelable {{ ... on Issue {{ {issue} }} }}",
            )
        case PostComment():
            return (
                [body],
                f"addComment(input: {{subjectId: $issue, body: $b{place}}})",
                f"commentEdge {{ node {{ ...Said }} }} subject {{ ... on Issue {{ {issue} }} }}",
            )
        case EditComment():
            return (
                [f"$e{place}: ID!", body],
                f"updateIssueComment(input: {{id: $e{place}, body: $b{place}}})",
                f"issueComment {{ ...Said issue {{ {issue} }} }}",
            )
        case CloseIssue():
            return [], "closeIssue(input: {issueId: $issue})", f"issue {{ {issue} }}"
        case _:
            assert_never(effect)


# Probes

PROBE_ACCOUNT = """query ProbeAccount {
  viewer { login }
  issue: __type(name: "Issue") { fields { name } }
}"""

PROBE_COMMENTS = """query ProbeComments($owner: String!, $name: String!, $number: Int!) {
  repository(owner: $owner, name: $name) {
    issue(number: $number) { comments(last: 100) { nodes { fullDatabaseId body } } }
  }
}"""

PROBE_LABELS = """query ProbeLabels(
  $owner: String!, $name: String!, $same: String!, $other: String!, $sames: [String!],
  $others: [String!]
) {
  repository(owner: $owner, name: $name) {
    same: label(name: $same) { id }
    other: label(name: $other) { id }
    sames: issues(labels: $sames) { totalCount }
    others: issues(labels: $others) { totalCount }
  }
}"""

PROBE_TRIP = """mutation ProbeTrip($issue: ID!, $labels: [ID!]!, $comment: ID!, $body: String!) {
  e0: addLabelsToLabelable(input: {labelableId: $issue, labelIds: $labels}) {
    labelable { ... on Issue { id } }
  }
  e1: updateIssueComment(input: {id: $comment, body: $body}) { issueComment { body } }
}"""


def priced(document: str) -> str:
    """The query, which tells its cost as well."""
    return document.replace(") {", ") {\n  rateLimit { cost nodeCount }", 1)
