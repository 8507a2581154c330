"""The fake's GraphQL on its own state, without HTTP: what it answers, refuses and costs."""

from datetime import UTC, datetime, timedelta

import pytest

from dibs_lab.fakehub.graphql_door import Budget, execute, priced
from dibs_lab.fakehub.records import Permission, Standing
from dibs_lab.fakehub.state import State

NOON = datetime(2026, 11, 15, 12, 0, 0, 250_000, tzinfo=UTC)


class Hub:
    """A repository with people, and a clock that stands still until it is moved."""

    def __init__(self):
        self.now = NOON
        self.state = State(clock=lambda: self.now)
        self.shop = self.state.add_repository("acme/shop")
        for login, held in (("alice", Permission.WRITE), ("bob", Permission.READ)):
            self.state.grant("acme/shop", login, held)
            self.state.add_token(login, login)
        self.state.add_token("stranger", "stranger")
        self.alice = self.state.acting(self.state.viewer("alice"))

    def ask(self, document, as_="alice", **variables):
        return execute(self.state, self.state.viewer(as_), document, variables)

    def data(self, document, as_="alice", **variables):
        body = self.ask(document, as_, **variables)
        assert "errors" not in body, body
        return body["data"]

    def refusal(self, document, as_="alice", **variables):
        body = self.ask(document, as_, **variables)
        (error,) = body["errors"]
        return error

    def issue(self, title="Broken", labels=()):
        return self.alice.create_issue(self.shop, title, body="It is", labels=labels)


@pytest.fixture
def hub():
    return Hub()


READ = """query($number: Int!, $first: Int!, $after: String) {
  repository(owner: "acme", name: "shop") { issue(number: $number) {
    id number fullDatabaseId databaseId title body state locked createdAt updatedAt url
    author { login __typename }
    labels(first: 100) { totalCount nodes { id name color } }
    assignees(first: 10) { nodes { login } }
    comments(first: $first, after: $after) { totalCount pageInfo { hasNextPage endCursor }
      nodes { id fullDatabaseId body createdAt updatedAt authorAssociation
        author { login __typename } } }
    closedByPullRequestsReferences(first: 10) { nodes { number author { login } } }
  } } rateLimit { cost remaining limit used resetAt nodeCount } }"""


def test_an_issue_with_all_that_is_on_it(hub):
    issue = hub.issue(labels=["bug", "Stage:Ready"])
    hub.alice.assign(issue, ["bob"])
    comment = hub.alice.create_comment(issue, "Looking")
    pull = hub.alice.create_pull(hub.shop, "Mend", "fix", "main", body=f"Fixes #{issue.number}")
    read = hub.data(READ, number=issue.number, first=100)["repository"]["issue"]
    assert (read["number"], read["title"], read["state"]) == (issue.number, "Broken", "OPEN")
    assert read["createdAt"] == "2026-11-15T12:00:00Z"
    assert read["url"] == f"https://github.com/acme/shop/issues/{issue.number}"
    assert [label["name"] for label in read["labels"]["nodes"]] == ["bug", "Stage:Ready"]
    assert read["assignees"]["nodes"] == [{"login": "bob"}]
    (said,) = read["comments"]["nodes"]
    assert said["fullDatabaseId"] == str(comment.id)
    assert said["author"] == {"login": "alice", "__typename": "User"}
    assert said["authorAssociation"] == "COLLABORATOR"
    assert read["closedByPullRequestsReferences"]["nodes"] == [
        {"number": pull.number, "author": {"login": "alice"}}
    ]


def test_ids_beyond_32_bits_are_a_string_or_nothing(hub):
    issue = hub.issue()
    read = hub.data(READ, number=issue.number, first=1)["repository"]["issue"]
    assert (read["fullDatabaseId"], read["databaseId"]) == (str(issue.id), None)
    assert issue.id > 2**32


def test_a_bot_s_login_has_no_suffix(hub):
    hub.state.add_user("dibs[bot]", kind="Bot")
    hub.state.grant("acme/shop", "dibs[bot]", Permission.WRITE)
    hub.state.add_token("app", "dibs[bot]", scopes=None)
    issue = hub.issue()
    hub.state.acting(hub.state.viewer("app")).create_comment(issue, "By a program")
    read = hub.data(READ, number=issue.number, first=1)["repository"]["issue"]
    assert read["comments"]["nodes"][0]["author"] == {"login": "dibs", "__typename": "Bot"}
    assert hub.data("{ viewer { login } }", as_="app") == {"viewer": {"login": "dibs[bot]"}}


def test_pages_follow_each_other_and_end(hub):
    issue = hub.issue()
    made = [hub.alice.create_comment(issue, f"{n}").id for n in range(5)]
    seen, after, pages = [], None, 0
    while pages < 3:
        read = hub.data(READ, number=issue.number, first=2, after=after)
        page = read["repository"]["issue"]["comments"]
        seen += [int(node["fullDatabaseId"]) for node in page["nodes"]]
        after, pages = page["pageInfo"]["endCursor"], pages + 1
        assert page["totalCount"] == 5
        assert page["pageInfo"]["hasNextPage"] == (pages < 3)
    assert seen == made


def test_a_page_goes_on_behind_a_comment_that_is_gone_since(hub):
    issue = hub.issue()
    made = [hub.alice.create_comment(issue, f"{n}") for n in range(4)]
    read = hub.data(READ, number=issue.number, first=2)["repository"]["issue"]["comments"]
    hub.alice.delete_comment(made[1])
    after = read["pageInfo"]["endCursor"]
    rest = hub.data(READ, number=issue.number, first=2, after=after)["repository"]["issue"]
    assert [node["body"] for node in rest["comments"]["nodes"]] == ["2", "3"]


def test_the_last_are_told_in_order(hub):
    issue = hub.issue()
    for n in range(4):
        hub.alice.create_comment(issue, f"{n}")
    document = """{ repository(owner: "acme", name: "shop") { issue(number: 1) {
      comments(last: 2) { nodes { body } pageInfo { hasPreviousPage hasNextPage } } } } }"""
    page = hub.data(document)["repository"]["issue"]["comments"]
    assert [node["body"] for node in page["nodes"]] == ["2", "3"]
    assert page["pageInfo"] == {"hasPreviousPage": True, "hasNextPage": False}


def test_queries_lag_and_payloads_of_mutations_do_not(hub):
    issue = hub.issue()
    hub.state.lag = lambda: timedelta(seconds=5)
    document = """mutation($id: ID!) { addComment(input: {subjectId: $id, body: "now"}) {
      commentEdge { node { body } }
      subject { ... on Issue { comments(first: 10) { totalCount nodes { body } } } } } }"""
    payload = hub.data(document, id=issue.node_id)["addComment"]
    assert payload["subject"]["comments"] == {"totalCount": 1, "nodes": [{"body": "now"}]}
    late = hub.data(READ, number=issue.number, first=10)["repository"]["issue"]["comments"]
    assert late["totalCount"] == 0
    hub.now += timedelta(seconds=6)
    read = hub.data(READ, number=issue.number, first=10)["repository"]["issue"]["comments"]
    assert read["totalCount"] == 1


def test_a_list_that_is_cut_short_is_shorter_than_its_count(hub):
    from dataclasses import replace

    issue = hub.issue()
    for n in range(3):
        hub.alice.create_comment(issue, f"{n}")
    hub.state.reading = lambda view: replace(view, short_by=1)
    page = hub.data(READ, number=issue.number, first=10)["repository"]["issue"]["comments"]
    assert (page["totalCount"], len(page["nodes"])) == (3, 2)


TRIP = """mutation($comment: ID!, $issue: ID!, $add: [ID!]!, $remove: [ID!]!) {
  edit: updateIssueComment(input: {id: $comment, body: "card"}) { clientMutationId }
  add: addLabelsToLabelable(input: {labelableId: $issue, labelIds: $add}) { clientMutationId }
  remove: removeLabelsFromLabelable(input: {labelableId: $issue, labelIds: $remove}) {
    labelable { ... on Issue { number labels(first: 100) { nodes { name } }
      comments(first: 100) { nodes { body } } } } } }"""


def test_several_mutations_run_in_their_order_and_the_last_tells_all(hub):
    issue = hub.issue(labels=["ready"])
    claimed = hub.alice.create_label(hub.shop, "claimed", color="00ff00")
    ready = hub.state.view().label_named(hub.shop.id, "READY")
    bid = hub.alice.create_comment(issue, "bid")
    told = hub.data(
        TRIP,
        comment=bid.node_id,
        issue=issue.node_id,
        add=[claimed.node_id],
        remove=[ready.node_id],
    )["remove"]["labelable"]
    assert told["labels"]["nodes"] == [{"name": "claimed"}]
    assert told["comments"]["nodes"] == [{"body": "card"}]


def test_a_mutation_that_fails_does_not_stop_the_next(hub):
    issue = hub.issue(labels=["ready"])
    ready = hub.state.view().label_named(hub.shop.id, "ready")
    body = hub.ask(
        TRIP, comment="IC_gone", issue=issue.node_id, add=[ready.node_id], remove=[ready.node_id]
    )
    assert body["data"]["edit"] is None
    assert body["data"]["remove"]["labelable"]["labels"]["nodes"] == []
    (error,) = body["errors"]
    assert (error["type"], error["path"]) == ("NOT_FOUND", ["edit"])
    assert error["locations"] == [{"line": 2, "column": 3}]


COMMENT = """mutation($id: ID!) { addComment(input: {subjectId: $id, body: "Mine"}) {
  commentEdge { node { id } } } }"""
LABEL = """mutation($id: ID!, $label: ID!) {
  addLabelsToLabelable(input: {labelableId: $id, labelIds: [$label]}) { clientMutationId } }"""


def test_who_may_not_label_is_told_so(hub):
    issue = hub.issue(labels=["ready"])
    label = hub.state.view().label_named(hub.shop.id, "ready").node_id
    error = hub.refusal(LABEL, as_="bob", id=issue.node_id, label=label)
    assert (error["type"], error["path"]) == ("FORBIDDEN", ["addLabelsToLabelable"])
    assert "bob does not have the correct permissions" in error["message"]


def test_a_fine_grained_token_is_told_it_lacks_access(hub):
    hub.state.add_token("fine", "alice", scopes=None, lacks=frozenset({"issues:write"}))
    error = hub.refusal(COMMENT, as_="fine", id=hub.issue().node_id)
    assert error["type"] == "FORBIDDEN"
    assert "personal access token" in error["message"]


def test_a_token_without_the_scope_is_told_which(hub):
    hub.state.add_token("narrow", "alice", scopes=frozenset({"read:org"}))
    error = hub.refusal(COMMENT, as_="narrow", id=hub.issue().node_id)
    assert error["type"] == "INSUFFICIENT_SCOPES"


def test_an_archived_repository_takes_no_writes(hub):
    issue = hub.issue()
    hub.state.archive("acme/shop")
    error = hub.refusal(COMMENT, id=issue.node_id)
    assert (error["type"], error["message"]) == (
        "UNPROCESSABLE",
        "Repository was archived so is read-only",
    )


def test_a_locked_issue_takes_comments_of_writers_only(hub):
    issue = hub.issue()
    document = (
        "mutation($id: ID!) { lockLockable(input: {lockableId: $id}) { lockedRecord { locked } } }"
    )
    assert hub.data(document, id=issue.node_id)["lockLockable"]["lockedRecord"]["locked"]
    assert hub.refusal(COMMENT, as_="bob", id=issue.node_id)["type"] == "FORBIDDEN"
    assert hub.data(COMMENT, as_="alice", id=issue.node_id)


@pytest.mark.parametrize("fate", ["delete", "transfer", "convert"])
def test_an_issue_that_is_gone_is_not_found(hub, fate):
    issue = hub.issue()
    hub.state.grant("acme/shop", "alice", Permission.ADMIN)
    match fate:
        case "delete":
            hub.alice.delete_issue(issue)
        case "transfer":
            other = hub.state.add_repository("acme/attic")
            hub.state.grant("acme/attic", "alice", Permission.WRITE)
            hub.alice.transfer_issue(issue, other)
        case "convert":
            hub.alice.convert_issue(issue)
    error = hub.refusal(READ, number=issue.number, first=1)
    assert (error["type"], error["path"]) == ("NOT_FOUND", ["repository", "issue"])
    assert hub.refusal(COMMENT, id=issue.node_id)["type"] == "NOT_FOUND"


def test_what_one_may_not_see_is_not_there(hub):
    hub.state.change_repository("acme/shop", private=True)
    issue = hub.issue()
    error = hub.refusal(READ, as_="stranger", number=issue.number, first=1)
    assert (error["type"], error["path"]) == ("NOT_FOUND", ["repository"])
    body = hub.ask(
        "query($ids: [ID!]!) { nodes(ids: $ids) { id } }", as_="stranger", ids=[issue.node_id]
    )
    assert body["data"] == {"nodes": [None]}


def test_nodes_that_are_not_there_leave_gaps(hub):
    issue = hub.issue()
    document = "query($ids: [ID!]!) { nodes(ids: $ids) { ... on Issue { number } } }"
    body = hub.ask(document, ids=["I_none", issue.node_id])
    assert body["data"]["nodes"] == [None, {"number": issue.number}]
    assert body["errors"][0]["path"] == ["nodes", 0]


def test_a_renamed_repository_is_followed_unless_told_not_to(hub):
    hub.state.rename("acme/shop", "acme/store")
    document = """query($follow: Boolean!) {
      repository(owner: "acme", name: "shop", followRenames: $follow) { nameWithOwner } }"""
    assert hub.data(document, follow=True)["repository"]["nameWithOwner"] == "acme/store"
    assert hub.refusal(document, follow=False)["type"] == "NOT_FOUND"


LIST = """query($labels: [String!], $since: DateTime, $states: [IssueState!]) {
  repository(owner: "acme", name: "shop") {
    issues(first: 100, labels: $labels, states: $states, filterBy: {since: $since},
           orderBy: {field: CREATED_AT, direction: ASC}) { totalCount nodes { number } } } }"""


def numbers(data):
    return [node["number"] for node in data["repository"]["issues"]["nodes"]]


def test_labels_of_a_list_are_any_of_them_whatever_their_case(hub):
    hub.issue(labels=["a"])
    hub.issue(labels=["b"])
    hub.issue(labels=["c"])
    hub.alice.create_pull(hub.shop, "No issue", "x", "main")
    assert numbers(hub.data(LIST, labels=["A", "b"])) == [1, 2]
    assert numbers(hub.data(LIST)) == [1, 2, 3]


def test_a_list_by_state_and_by_last_change(hub):
    first, _second = hub.issue(), hub.issue()
    hub.alice.close_issue(first)
    hub.now += timedelta(minutes=1)
    hub.issue()
    assert numbers(hub.data(LIST, states=["OPEN"])) == [2, 3]
    assert numbers(hub.data(LIST, since="2026-11-15T12:00:30Z")) == [3]


def test_a_label_counts_its_open_issues(hub):
    hub.issue(labels=["a"])
    hub.alice.close_issue(hub.issue(labels=["a"]))
    document = """{ repository(owner: "acme", name: "shop") { label(name: "A") {
      name issues(states: OPEN) { totalCount } } } }"""
    label = hub.data(document)["repository"]["label"]
    assert label == {"name": "a", "issues": {"totalCount": 1}}


def test_a_connection_wants_bounds_if_its_nodes_are_wanted(hub):
    hub.issue()
    document = '{ repository(owner: "acme", name: "shop") { issues { nodes { number } } } }'
    assert hub.refusal(document)["type"] == "MISSING_PAGINATION_BOUNDARIES"
    counted = '{ repository(owner: "acme", name: "shop") { issues { totalCount } } }'
    assert hub.data(counted)["repository"]["issues"]["totalCount"] == 1
    many = '{ repository(owner: "acme", name: "shop") { issues(first: 101) { nodes { number } } } }'
    assert hub.refusal(many)["type"] == "EXCESSIVE_PAGINATION"


def test_a_document_that_is_wrong_has_errors_and_no_data(hub):
    assert "data" not in hub.ask("{ repository(owner: 1) { nonsense } }")
    assert "data" not in hub.ask("{ repository(")


def test_the_published_examples_of_the_cost_rule():
    """The shapes of GitHub's own examples, on what the fake has."""
    document = """query($n: Int = 100) { repository(owner: "a", name: "b") {
      issues(first: $n) { nodes { comments(first: 50) { nodes {
        reactions(first: 60) { nodes { content } } } } } } } }"""
    cost = priced(document)
    assert cost.points == round((1 + 100 + 100 * 50) / 100)
    assert cost.nodes == 100 + 100 * 50 + 100 * 50 * 60
    assert priced(document, {"n": 1}).points == 1
    assert priced("{ viewer { login } }").points == 1


def test_more_than_half_a_million_nodes_are_refused(hub):
    document = """{ repository(owner: "acme", name: "shop") {
      issues(first: 100) { nodes { comments(first: 100) { nodes {
        reactions(first: 100) { nodes { content } } } } } } } }"""
    assert hub.refusal(document)["type"] == "MAX_NODE_LIMIT_EXCEEDED"


def test_many_issues_in_one_document_cost_by_their_lists(hub):
    document = """query($ids: [ID!]!) { nodes(ids: $ids) { ... on Issue {
      comments(first: 100) { nodes { body } } labels(first: 100) { nodes { name } } } } }"""
    assert priced(document, {"ids": ["x"] * 100}).points == 2


def test_what_is_left_out_costs_nothing():
    document = """query($no: Boolean!) { repository(owner: "a", name: "b") {
      issues(first: 100) @include(if: $no) { nodes { id } }
      issue(number: 1) @skip(if: $no) { comments(first: 10) { nodes { id } } } } }"""
    assert priced(document, {"no": False}).nodes == 10
    assert priced(document, {"no": True}).nodes == 100


def test_mutations_are_counted_as_writes():
    assert priced(TRIP).writes == 3
    assert priced(READ, {"number": 1, "first": 1}).writes == 0


def test_the_budget_is_told(hub):
    hub.issue()
    left = Budget(5_000, 4_321, NOON + timedelta(hours=1))
    body = execute(
        hub.state, hub.state.viewer("alice"), READ, {"number": 1, "first": 1}, budget=left
    )
    assert body["data"]["rateLimit"] == {
        "cost": 1,
        "remaining": 4_321,
        "limit": 5_000,
        "used": 679,
        "resetAt": "2026-11-15T13:00:00Z",
        "nodeCount": 121,
    }


def test_what_happened_is_told_in_order(hub):
    issue = hub.issue(labels=["a"])
    hub.alice.create_comment(issue, "said")
    hub.alice.close_issue(issue)
    document = """{ repository(owner: "acme", name: "shop") { issue(number: 1) {
      timelineItems(first: 10) { nodes {
        __typename ... on LabeledEvent { label { name } actor { login } } } }
      last: timelineItems(last: 2) { pageInfo { hasPreviousPage } }
      all: timelineItems(last: 3) { pageInfo { hasPreviousPage } }
      closed: timelineItems(first: 10, itemTypes: [CLOSED_EVENT]) { totalCount } } } }"""
    told = hub.data(document)["repository"]["issue"]
    assert [node["__typename"] for node in told["timelineItems"]["nodes"]] == [
        "LabeledEvent",
        "IssueComment",
        "ClosedEvent",
    ]
    assert told["closed"]["totalCount"] == 1
    assert told["last"]["pageInfo"]["hasPreviousPage"] is True
    assert told["all"]["pageInfo"]["hasPreviousPage"] is False


def test_search_knows_labels_states_and_repositories(hub):
    hub.issue("First", labels=["a"])
    hub.issue("Second", labels=["a", "b"])
    document = """query($query: String!) { search(query: $query, type: ISSUE, first: 10) {
      issueCount nodes { ... on Issue { number } } } }"""
    wanted = hub.data(document, query="repo:acme/shop is:issue is:open label:a -label:b first")
    assert wanted["search"] == {"issueCount": 1, "nodes": [{"number": 1}]}
    assert hub.data(document, query="milestone:x")["search"]["issueCount"] == 0


def test_reactions_come_and_go(hub):
    issue = hub.issue()
    document = """mutation($id: ID!) { addReaction(input: {subjectId: $id, content: EYES}) {
      reaction { content user { login } } } }"""
    assert hub.data(document, id=issue.node_id)["addReaction"]["reaction"] == {
        "content": "EYES",
        "user": {"login": "alice"},
    }
    document = """mutation($id: ID!) { removeReaction(input: {subjectId: $id, content: EYES}) {
      subject { reactions(first: 1) { totalCount } } } }"""
    gone = hub.data(document, id=issue.node_id)["removeReaction"]["subject"]
    assert gone["reactions"]["totalCount"] == 0


def test_an_issue_is_made_edited_closed_and_reopened(hub):
    label = hub.alice.create_label(hub.shop, "a").node_id
    made = hub.data(
        """mutation($repo: ID!, $label: ID!) { createIssue(input:
          {repositoryId: $repo, title: "New", labelIds: [$label]}) {
            issue { id number labels(first: 1) { nodes { name } } } } }""",
        repo=hub.shop.node_id,
        label=label,
    )["createIssue"]["issue"]
    assert made["labels"]["nodes"] == [{"name": "a"}]
    document = """mutation($id: ID!) {
      updateIssue(input: {id: $id, title: "Newer"}) { issue { title } }
      closeIssue(input: {issueId: $id, stateReason: NOT_PLANNED}) { issue { state stateReason } }
      reopenIssue(input: {issueId: $id}) { issue { state stateReason } } }"""
    assert hub.data(document, id=made["id"]) == {
        "updateIssue": {"issue": {"title": "Newer"}},
        "closeIssue": {"issue": {"state": "CLOSED", "stateReason": "NOT_PLANNED"}},
        "reopenIssue": {"issue": {"state": "OPEN", "stateReason": "REOPENED"}},
    }


def test_a_label_that_exists_cannot_be_made_again(hub):
    hub.alice.create_label(hub.shop, "a")
    document = """mutation($repo: ID!) { createLabel(input:
      {repositoryId: $repo, name: "A", color: "00ff00"}) { label { id } } }"""
    error = hub.refusal(document, repo=hub.shop.node_id)
    assert (error["type"], error["message"]) == ("UNPROCESSABLE", "Name has already been taken")


def test_an_empty_comment_is_refused(hub):
    document = """mutation($id: ID!) { addComment(input: {subjectId: $id, body: " "}) {
      clientMutationId } }"""
    error = hub.refusal(document, id=hub.issue().node_id)
    assert (error["type"], error["message"]) == ("UNPROCESSABLE", "Body can't be blank")


def test_gh_s_probes_are_answered(hub):
    probe = """query { SearchType: __type(name: "SearchType") {
      enumValues(includeDeprecated: true) { name } } }"""
    names = [value["name"] for value in hub.data(probe)["SearchType"]["enumValues"]]
    assert "ISSUE_ADVANCED" in names


def test_a_revoked_token_is_nobody(hub):
    from dibs_lab.fakehub.refusal import Refusal

    hub.state.set_standing("alice", Standing.REVOKED)
    with pytest.raises(Refusal):
        hub.ask("{ viewer { login } }")


EDITS = """query($number: Int!) { repository(owner: "acme", name: "shop") { issue(number: $number) {
  includesCreatedEdit lastEditedAt editor { login }
  userContentEdits(first: 2) {
    totalCount pageInfo { hasNextPage } nodes { editedAt editor { login } }
  }
  closedByPullRequestsReferences(first: 9) { nodes { number repository { nameWithOwner } } }
} } }"""


def test_the_revisions_of_a_body_newest_first_with_the_text_as_it_was_opened(hub):
    made = hub.issue()
    at = {"number": made.number}
    bare = hub.data(EDITS, **at)["repository"]["issue"]
    assert (bare["includesCreatedEdit"], bare["userContentEdits"]["totalCount"]) == (False, 0)
    for minute in (1, 2):
        hub.now = NOON + timedelta(minutes=minute)
        hub.alice.edit_issue(hub.state.primary().issue(hub.shop.id, made.number), body=f"{minute}")
    hub.alice.edit_issue(hub.state.primary().issue(hub.shop.id, made.number), title="no edit")
    told = hub.data(EDITS, **at)["repository"]["issue"]
    assert told["includesCreatedEdit"] is True
    assert told["lastEditedAt"] == "2026-11-15T12:02:00Z"
    edits = told["userContentEdits"]
    assert (edits["totalCount"], edits["pageInfo"]["hasNextPage"]) == (3, True)
    assert [one["editedAt"][11:16] for one in edits["nodes"]] == ["12:02", "12:01"]
    assert {one["editor"]["login"] for one in edits["nodes"]} == {"alice"}


def test_a_pull_request_of_another_repository_is_linked_and_its_merge_closes_by_rights(hub):
    issue = hub.issue()
    theirs = hub.state.add_repository("stranger/own")
    hub.state.grant("stranger/own", "stranger", Permission.ADMIN)
    hub.state.grant("stranger/own", "alice", Permission.WRITE)
    stranger = hub.state.acting(hub.state.viewer("stranger"))
    body = f"Fixes acme/shop#{issue.number}, mentions #7"
    for login, closed in (("stranger", False), ("alice", True)):
        pull = stranger.create_pull(theirs, "x", login, "main", body=body)
        told = hub.data(EDITS, number=issue.number)["repository"]["issue"]
        (linked,) = told["closedByPullRequestsReferences"]["nodes"]
        assert linked == {"number": pull.number, "repository": {"nameWithOwner": "stranger/own"}}
        hub.state.acting(hub.state.viewer(login)).merge_pull(pull)
        now = hub.state.primary().issue(hub.shop.id, issue.number)
        assert (now.state == "closed") is closed
    assert pull.pull.closes == ()
