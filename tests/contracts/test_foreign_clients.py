"""Clients that we did not write drive the fake: the real gh, and githubkit with its models."""

import pytest
from githubkit import GitHub, TokenAuthStrategy
from githubkit.exception import RequestFailed
from tests.servers.gh import Gh

from dibs_lab.fakehub import FakeHub, Limits, Permission

pytestmark = pytest.mark.long

REPOSITORY = "acme/shop"


@pytest.fixture
def hub():
    with FakeHub(limits=Limits.off()) as made:
        made.user("alice", {REPOSITORY: Permission.WRITE})
        made.user("bob", {REPOSITORY: Permission.READ})
        yield made


@pytest.fixture
def alice(hub):
    return hub.state.acting(hub.state.viewer("alice-token"))


@pytest.fixture
def shop(hub):
    return hub.state.named(REPOSITORY)


def numbers(listed):
    return [issue["number"] for issue in listed]


class TestGh:
    @pytest.fixture
    def gh(self, hub, tmp_path):
        return Gh(hub.url, "alice-token", tmp_path, REPOSITORY)

    def test_it_calls_the_api(self, gh, alice, shop):
        alice.create_issue(shop, "It broke", labels=["bug"])
        assert gh.json("api", "user")["login"] == "alice"
        assert gh("api", "repos/acme/shop/issues/1", "--jq", ".labels[0].name") == "bug\n"
        said = gh.json("api", "repos/acme/shop/issues/1/comments", "-f", "body=Looking")
        assert said["body"] == "Looking"
        assert gh.json("api", "graphql", "-f", "query={viewer{login}}") == {
            "data": {"viewer": {"login": "alice"}}
        }

    def test_it_follows_pages_over_rest_and_graphql(self, gh, alice, shop):
        for number in range(7):
            alice.create_issue(shop, f"Issue {number}")
        path = "repos/acme/shop/issues?per_page=2&sort=created&direction=asc"
        assert numbers(gh.json("api", "--paginate", path)) == [1, 2, 3, 4, 5, 6, 7]
        query = """query($endCursor: String) { repository(owner: "acme", name: "shop") {
          issues(first: 3, after: $endCursor) {
            nodes { number } pageInfo { hasNextPage endCursor } } } }"""
        found = gh(
            *("api", "graphql", "--paginate", "-f", f"query={query}"),
            *("--jq", ".data.repository.issues.nodes[].number"),
        )
        assert found.split() == ["1", "2", "3", "4", "5", "6", "7"]

    def test_it_lists_issues_by_state_assignee_label_and_search(self, gh, alice, shop):
        first = alice.create_issue(shop, "Broken pump", labels=["bug", "stage:ready"])
        alice.create_issue(shop, "Broken lamp", labels=["Bug"])
        alice.close_issue(alice.create_issue(shop, "Mended"))
        alice.assign(first, ["bob"])
        fields = ("--json", "number,title,labels,assignees,state")
        assert numbers(gh.json("issue", "list", *fields)) == [2, 1]
        assert numbers(gh.json("issue", "list", "--state", "all", *fields)) == [3, 2, 1]
        assert numbers(gh.json("issue", "list", "--assignee", "bob", *fields)) == [1]
        assert numbers(gh.json("issue", "list", "--label", "bug", *fields)) == [2, 1]
        both = ("--label", "bug", "--label", "stage:ready")
        assert numbers(gh.json("issue", "list", *both, *fields)) == [1]
        assert numbers(gh.json("issue", "list", "--search", "lamp in:title", *fields)) == [2]
        assert "Broken pump" in gh("issue", "list")

    def test_it_shows_an_issue_with_its_comments(self, gh, alice, shop):
        issue = alice.create_issue(shop, "Broken", body="It leaks", labels=["bug"])
        alice.create_comment(issue, "Looking at it")
        assert "It leaks" in gh("issue", "view", "1")
        assert "Looking at it" in gh("issue", "view", "1", "--comments")
        fields = (
            "number,title,body,state,labels,assignees,author,comments,createdAt,updatedAt,url,id"
        )
        told = gh.json("issue", "view", "1", "--json", fields)
        assert (told["number"], told["state"], told["author"]["login"]) == (1, "OPEN", "alice")
        assert told["comments"][0]["body"] == "Looking at it"
        assert told["comments"][0]["authorAssociation"] == "COLLABORATOR"
        assert told["id"] == issue.node_id

    def test_it_shows_the_pull_requests_that_close_an_issue(self, gh, alice, shop):
        alice.create_issue(shop, "Broken")
        alice.create_pull(shop, "Mend", "fix", "main", body="Fixes #1")
        told = gh.json("issue", "view", "1", "--json", "closedByPullRequestsReferences")
        assert numbers(told["closedByPullRequestsReferences"]) == [2]

    def test_more_than_a_hundred_comments_are_all_there(self, gh, alice, shop):
        issue = alice.create_issue(shop, "Long")
        for number in range(130):
            alice.create_comment(issue, f"{number}")
        told = gh.json("issue", "view", "1", "--json", "comments")["comments"]
        assert [comment["body"] for comment in told] == [f"{number}" for number in range(130)]

    def test_it_comments_and_edits_its_comment(self, gh, hub, alice, shop):
        issue = alice.create_issue(shop, "Broken")
        url = gh("issue", "comment", "1", "--body", "Mine")
        (said,) = hub.state.view().comments(issue.id)
        assert url.strip().endswith(f"/acme/shop/issues/1#issuecomment-{said.id}")
        gh("issue", "comment", "1", "--body", "Still mine", "--edit-last")
        assert [one.body for one in hub.state.view().comments(issue.id)] == ["Still mine"]

    def test_it_changes_labels_title_and_assignees(self, gh, hub, alice, shop):
        alice.create_label(shop, "agent:in-flight")
        alice.create_issue(shop, "Broken", labels=["stage:ready", "bug"])
        change = ("--add-label", "agent:in-flight", "--remove-label", "stage:ready")
        gh("issue", "edit", "1", *change)
        gh("issue", "edit", "1", "--title", "Mended", "--add-assignee", "@me")
        issue = hub.state.view().issue(shop.id, 1)
        named = {label.name for label in hub.state.view().labels_on(issue)}
        assert named == {"bug", "agent:in-flight"}
        assert (issue.title, issue.assignees) == ("Mended", ("alice",))

    def test_it_opens_closes_and_reopens(self, gh, hub, alice, shop):
        alice.create_label(shop, "bug")
        url = gh("issue", "create", "--title", "New", "--body", "Text", "--label", "bug")
        assert url.strip().endswith("/acme/shop/issues/1")
        gh("issue", "close", "1", "--comment", "Done", "--reason", "not planned")
        closed = hub.state.view().issue(shop.id, 1)
        assert (closed.state, closed.state_reason) == ("closed", "not_planned")
        gh("issue", "reopen", "1")
        assert hub.state.view().issue(shop.id, 1).state == "open"

    def test_it_locks_and_makes_labels(self, gh, hub, alice, shop):
        alice.create_issue(shop, "Heated")
        gh("issue", "lock", "1", "--reason", "too_heated")
        assert hub.state.view().issue(shop.id, 1).lock_reason == "too heated"
        gh("label", "create", "stage:ready", "--color", "00ff00", "--description", "Go")
        listed = gh.json("label", "list", "--json", "name,color")
        assert listed == [{"name": "stage:ready", "color": "00ff00"}]

    def test_it_is_told_what_is_wrong(self, gh, hub, alice, shop, tmp_path):
        alice.create_issue(shop, "Broken", labels=["bug"])
        assert "Could not resolve" in gh.attempt("issue", "view", "7").stderr
        (tmp_path / "bob").mkdir()
        bob = Gh(hub.url, "bob-token", tmp_path / "bob", REPOSITORY)
        refused = bob.attempt("issue", "edit", "1", "--remove-label", "bug")
        assert refused.returncode != 0
        assert "correct permissions" in refused.stderr
        nobody = Gh(hub.url, "no-token", tmp_path / "bob", REPOSITORY)
        assert "401" in nobody.attempt("issue", "list").stderr


class TestGithubkit:
    """Its models are generated from GitHub's description, and it refuses what does not fit."""

    @pytest.fixture
    def github(self, hub):
        return GitHub(TokenAuthStrategy("alice-token"), base_url=hub.url, auto_retry=False)

    def test_it_works_with_issues_labels_and_comments(self, github):
        at = ("acme", "shop")
        made = github.rest.issues.create(*at, title="Broken", labels=["bug"]).parsed_data
        said = github.rest.issues.create_comment(*at, made.number, body="Looking").parsed_data
        assert said.author_association == "COLLABORATOR"
        github.rest.issues.update_comment(*at, said.id, body="Looked")
        listed = github.rest.issues.list_comments(*at, made.number).parsed_data
        assert [comment.body for comment in listed] == ["Looked"]
        github.rest.issues.add_labels(*at, made.number, labels=["stage:ready"])
        github.rest.issues.remove_label(*at, made.number, "BUG")
        issue = github.rest.issues.get(*at, made.number).parsed_data
        assert [label.name for label in issue.labels] == ["stage:ready"]
        assert issue.comments == 1
        closed = github.rest.issues.update(*at, made.number, state="closed").parsed_data
        assert closed.state_reason == "completed"

    def test_its_models_take_every_list(self, github, alice, shop):
        issue = alice.create_issue(shop, "Broken", labels=["bug"])
        alice.react(alice.create_comment(issue, "Looking"), "eyes")
        alice.create_pull(shop, "Mend", "fix", "main", body="Fixes #1")
        at, issues = ("acme", "shop"), github.rest.issues
        assert len(issues.list_for_repo(*at, state="all").parsed_data) == 2
        assert issues.list_labels_for_repo(*at).parsed_data[0].name == "bug"
        assert issues.list_events(*at, 1).parsed_data
        assert issues.list_events_for_timeline(*at, 1).parsed_data
        assert github.rest.pulls.list(*at).parsed_data[0].number == 2
        assert github.rest.repos.get(*at).parsed_data.full_name == REPOSITORY
        assert github.rest.rate_limit.get().parsed_data.resources.core.limit > 0
        assert github.rest.users.get_authenticated().parsed_data.login == "alice"

    def test_it_follows_pages(self, github, alice, shop):
        for number in range(5):
            alice.create_issue(shop, f"Issue {number}")
        pages = github.rest.paginate(
            github.rest.issues.list_for_repo, owner="acme", repo="shop", per_page=2
        )
        assert sorted(issue.number for issue in pages) == [1, 2, 3, 4, 5]

    def test_it_asks_over_graphql(self, github, alice, shop):
        alice.create_issue(shop, "Broken")
        document = """query($number: Int!) { repository(owner: "acme", name: "shop") {
          issue(number: $number) { title } } }"""
        told = github.graphql(document, {"number": 1})
        assert told["repository"]["issue"]["title"] == "Broken"

    def test_it_is_told_what_is_wrong(self, github):
        with pytest.raises(RequestFailed) as refused:
            github.rest.issues.get("acme", "shop", 7)
        assert refused.value.response.status_code == 404
