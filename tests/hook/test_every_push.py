"""Every kind of push in one table: who pushes what, and whether it goes out.

Each row is one push, as git tells the hook of it: real commits, and the hook's own program in this
process. Pushes in which git itself matters are in `test_pushing` and `test_installing`.
"""

import shutil

import pytest

import dibs
from dibs_lab.fakehub import FakeHub, Fault, Limits, Wrong

from .repositories import Clone
from .test_pushing import AGENTS, TRAILERS, Backlog
from .test_pushing_to_github import Hub

NOTHING = "0" * 40
OUT = ""
KEYWORDS = ("close", "closes", "closed", "fix", "fixes", "fixed", "resolve", "resolves", "resolved")


class Pushing:
    """A clone of which one push after the other is judged; nothing of it reaches the remote."""

    def __init__(self, clone, address=""):
        self.clone, self.address = clone, address or str(clone.remote)

    def commit(self, message, *parents):
        text = self.clone.home / "message"
        text.write_bytes(message if isinstance(message, bytes) else message.encode())
        given = [word for parent in parents or ("main",) for word in ("-p", parent)]
        return self.clone.git("commit-tree", "main^{tree}", *given, "-F", text)

    def judged(self, *updates, **environment):
        """What is said of a push of these commits, or (commit, ref, what the ref has) each."""
        lines = []
        for update in updates:
            whole = update if isinstance(update, tuple) else (update, "refs/heads/x", NOTHING)
            lines.append(f"refs/heads/x {whole[0]} {whole[1]} {whole[2]}\n")
        words = ("hook", "run", "origin", environment.pop("address", self.address))
        done = self.clone.dibs(*words, given="".join(lines).encode(), **environment)
        assert "Traceback" not in done.err, done.err
        assert done.err, "never without a word"
        return done


def expect(done, outcome):
    """`OUT`, a part of what is said on the way out, or the code of what is in the way."""
    code = outcome.partition(" ")[0]
    if code.isupper() and code:
        assert done.code == 1, (outcome, done.err)
        assert f" {code}: " in done.err, (outcome, done.err)
    else:
        assert done.code == 0, done.err
        assert outcome in done.err, (outcome, done.err)
        assert outcome or "not checked" not in done.err, done.err


# On the embedded backlog

HELD, FREE, MINE, LATE, ENDED, THEIRS, LABEL, PULL, PAUSED, SECOND, NOTED = map(str, range(1, 12))

CLOSING = f"Closes #{HELD}"


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A backlog with an issue in every state that matters."""
    made = Pushing(Clone.made(tmp_path_factory.mktemp("shop")))
    clone = made.clone
    backlog = Backlog(clone, AGENTS)
    for _ in range(10):
        backlog.add()
    late, _ = backlog.claim(LATE)
    backlog.expire()
    backlog.claim(HELD)
    mine, fence = backlog.claim(MINE)
    second, _ = backlog.claim(SECOND)
    ended, _ = backlog.claim(ENDED)
    assert clone.dibs("release", ENDED, "--run", ended, "--outcome", "returned").code == 0
    author, _ = backlog.claim(PULL)
    assert clone.dibs("release", PULL, "--run", author, "--outcome", "advanced").code == 0
    assert clone.dibs("take", NOTED).code == 0
    with dibs.open(clone.folder) as opened:
        tracker = opened._services.tracker
        for key in (THEIRS, LABEL):
            tracker.edit_labels(opened.reference(key), add=["agent:in-flight"])
        claim = "<!-- agent-claim:codename=lucius firing_id=f-1 ts=x -->"
        tracker.comment(opened.reference(THEIRS), claim)
        tracker.edit_labels(
            opened.reference(PAUSED), add=["paused", "do-not-pickup", "needs:human-scope"]
        )
    made.runs = {"mine": mine, "second": second, "late": late, "ended": ended, "author": author}
    made.fence = fence
    made.there = made.commit(f"There\n\n{CLOSING}")
    clone.git("update-ref", "refs/remotes/origin/there", made.there)
    made.elsewhere = Pushing(clone.worktree("elsewhere", "-b", "elsewhere"))
    return made


MESSAGES = {
    **{f"the keyword {word}": (f"{word} #{HELD}", "HELD") for word in KEYWORDS},
    "in capitals": (f"CLOSES #{HELD}", "HELD"),
    "with a colon": (f"Closes: #{HELD}", "HELD"),
    "GH-N": (f"Fixes GH-{HELD}", "HELD"),
    "in the middle of a line": (f"Prices (fixes #{HELD}) are right", "HELD"),
    "in a list": (f"Prices\n\n- fixes #{HELD}", "HELD"),
    "a number that is only mentioned": (f"Closes #{FREE} (see #{HELD})", OUT),
    "part of it": (f"Part of #{HELD}", OUT),
    "of another repository": (f"Closes acme/tools#{HELD}", OUT),
    "what is not there": ("Closes #999", OUT),
    "what nobody holds": (f"Closes #{FREE}", OUT),
    "a squash of several": (f"All\n\n* one\n\n* two\n\nCloses #{HELD}\n\n* three", "HELD"),
    "with carriage returns": (f"Prices\r\n\r\nCloses #{HELD}\r\n", "HELD"),
    "in Chinese": (f"修复价格\n\n关闭 closes #{HELD}。", "HELD"),
    "in latin-1": (f"clôt, closes #{HELD}".encode("latin-1"), "HELD"),
    "no text at all": (b"\xff\xfe closes #1 \x80", "HELD"),
    "another's lease that ran out": (f"Closes #{LATE}", OUT),
    "paused and parked": (f"Closes #{PAUSED}", OUT),
    "an old runner's claim": (f"Closes #{THEIRS}", "FOREIGN_CLAIM"),
    "an old runner's own": (f"Closes #{THEIRS}\n\n{TRAILERS.format('f-1')}", OUT),
    "another firing of it": (f"Closes #{THEIRS}\n\n{TRAILERS.format('f-2')}", "FOREIGN_CLAIM"),
    "a label that nobody explains": (f"Closes #{LABEL}", "CLAIM_LABEL_ONLY"),
    "a pull request's label": (f"Closes #{PULL}", "PULL_OPEN"),
}


@pytest.mark.parametrize("row", MESSAGES)
def test_messages(shop, row):
    message, outcome = MESSAGES[row]
    expect(shop.judged(shop.commit(message)), outcome)


def env(shop, run, **more):
    return {"DIBS_RUN": shop.runs[run], **more}


PUSHERS = {
    "the holder": (MINE, lambda shop: env(shop, "mine", DIBS_FENCE=str(shop.fence)), OUT),
    "a holder with another fence": (
        *(MINE, lambda shop: env(shop, "mine", DIBS_FENCE="99")),
        "LEASE_LOST",
    ),
    "the holder of another issue": (MINE, lambda shop: env(shop, "second"), "HELD"),
    "a bundle": (
        f"{MINE}, closes #{SECOND}",
        lambda shop: env(shop, "mine", DIBS_RUNS=f"{shop.runs['mine']} {shop.runs['second']}"),
        OUT,
    ),
    "a holder whose own lease ran out": (LATE, lambda shop: env(shop, "late"), "LEASE_LOST"),
    "a holder that ended it": (ENDED, lambda shop: env(shop, "ended"), OUT),
    "the author of the pull request": (PULL, lambda shop: env(shop, "author"), OUT),
    "the working tree that took it": (NOTED, lambda _: {}, OUT),
    "without the check": (
        *(HELD, lambda _: {"LABEL_STATE_SKIP_DEDUP_CHECK": "1"}),
        "nothing was checked",
    ),
}


@pytest.mark.parametrize("row", PUSHERS)
def test_pushers(shop, row):
    key, environment, outcome = PUSHERS[row]
    expect(shop.judged(shop.commit(f"Closes #{key}"), **environment(shop)), outcome)


def test_another_working_tree_of_the_same_repository(shop):
    expect(shop.elsewhere.judged(shop.commit(f"Closes #{NOTED}")), "HELD")


def chain(shop, count, message):
    """So many commits in a row, of which the first has the message."""
    stream = [b"reset refs/heads/many\n"]
    for number in range(count):
        text = message.encode() if number == 0 else b"nothing of note"
        head = b"commit refs/heads/many\ncommitter A <a@b> %d +0000\n" % (1_700_000_000 + number)
        stream.append(head + b"data %d\n%s\n" % (len(text), text))
    done = shop.clone.run("git", "fast-import", "--quiet", "--force", given=b"".join(stream))
    assert done.code == 0, done.err
    return shop.clone.git("rev-parse", "refs/heads/many")


def tag(shop, commit):
    shop.clone.git("tag", "--force", "-m", "a release", "v1", commit)
    return (shop.clone.git("rev-parse", "v1"), "refs/tags/v1", NOTHING)


REFS = {
    "a merge of what the remote has": (
        lambda shop: [shop.commit("Merge there", "main", shop.there)],
        OUT,
    ),
    "a merge that closes": (
        lambda shop: [shop.commit(CLOSING, "main", shop.there)],
        "HELD",
    ),
    "a branch of what the remote has": (lambda shop: [shop.there], OUT),
    "more on a branch that the remote has": (
        lambda shop: [(shop.commit("More", shop.there), "refs/heads/there", shop.there)],
        OUT,
    ),
    "by force": (
        lambda shop: [(shop.commit(f"Again\n\n{CLOSING}"), "refs/heads/there", shop.there)],
        "HELD",
    ),
    "by force over what was never fetched": (
        lambda shop: [(shop.commit(f"Never {CLOSING}"), "refs/heads/x", "1" * 40)],
        "HELD",
    ),
    "a deletion": (lambda _: [(NOTHING, "refs/heads/x", "1" * 40)], OUT),
    "a light tag": (
        lambda shop: [(shop.commit(f"Light {CLOSING}"), "refs/tags/v0", NOTHING)],
        "HELD",
    ),
    "an annotated tag": (lambda shop: [tag(shop, shop.commit(f"Tag {CLOSING}"))], "HELD"),
    "a tag of what is there": (lambda shop: [tag(shop, shop.there)], OUT),
    "several branches": (
        lambda shop: [shop.commit("One"), (shop.commit(f"B {CLOSING}"), "refs/heads/y", NOTHING)],
        "HELD",
    ),
    "a mirror": (
        lambda shop: [
            (NOTHING, "refs/heads/gone", "1" * 40),
            (shop.commit(f"M {CLOSING}"), "refs/heads/y", NOTHING),
            tag(shop, shop.there),
        ],
        "HELD",
    ),
    "a thousand commits that close nothing": (lambda shop: [chain(shop, 1000, "x")], OUT),
    "a thousand commits, the oldest closes": (lambda shop: [chain(shop, 1000, CLOSING)], "HELD"),
}


@pytest.mark.parametrize("row", REFS)
def test_refs(shop, row):
    updates, outcome = REFS[row]
    expect(shop.judged(*updates(shop)), outcome)


@pytest.mark.parametrize("kind", ["shallow", "sha256", "submodule"])
def test_repositories_of_other_kinds(shop, tmp_path, kind):
    """Of the same backlog, which is named as a worker names it."""
    settings = {"DIBS_CONFIG": str(shop.clone.folder / "dibs.toml")}
    folder = tmp_path / "other"
    match kind:
        case "shallow":
            shop.clone.git("clone", "--quiet", "--depth=1", f"file://{shop.clone.remote}", folder)
        case "sha256":
            shop.clone.git("init", "--quiet", "--object-format=sha256", "-b", "main", folder)
            shop.clone.beside(folder).commit("Begin")
        case "submodule":
            outer = shop.clone.beside(tmp_path / "outer")
            shop.clone.git("init", "--quiet", outer.folder)
            allowed = ("-c", "protocol.file.allow=always")
            outer.git(*allowed, "submodule", "--quiet", "add", shop.clone.remote, "inner")
            folder = outer.folder / "inner"
    other = Pushing(shop.clone.beside(folder, **settings), str(shop.clone.remote))
    length = 64 if kind == "sha256" else 40
    update = (other.commit(CLOSING), "refs/heads/x", "0" * length)
    expect(other.judged(update), "HELD")
    expect(other.judged((other.commit("Nothing"), "refs/heads/x", "0" * length)), OUT)


def test_settings_that_are_broken_or_missing(shop, tmp_path):
    clone = Clone.made(tmp_path)
    other = Pushing(clone)
    expect(other.judged(other.commit(CLOSING)), "nothing was checked: there is no backlog")
    clone.write("dibs.toml", "ttl = 7\n")
    expect(other.judged(other.commit(CLOSING)), "nothing was checked")


# On GitHub

SHOP, TOOLS = "https://github.com/acme/shop.git", "https://github.com/acme/tools.git"


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """Two repositories on the fake GitHub, with an issue in every state that matters."""
    with FakeHub(limits=Limits.off()) as server, pytest.MonkeyPatch.context() as patch:
        for name in ("GITHUB_API_URL", "GH_TOKEN", "DIBS_LEASES", "GH_ORG"):
            patch.delenv(name, raising=False)
        made = Hub(server, Clone.made(tmp_path_factory.mktemp("hub")), patch)
        made.configure("acme/shop,acme/tools")
        assert made.clone.dibs("init").code == 0
        made.pushing = Pushing(made.clone, SHOP)
        keys = ("held", "pulled", "forked", "unlinked", "over", "free", "theirs")
        made.keys = {key: made.add() for key in keys}
        tools = made.acting().create_issue(
            server.state.named("acme/tools"), "Sharpen", labels=["agent:implement"]
        )
        made.keys["tools"] = str(tools.number)
        for key in ("unlinked", "over"):
            made.acting().add_labels(made.issue(made.keys[key]), ["agent:pr-open"])
        made.pull(made.keys["pulled"], "theirs")
        made.pull(made.keys["forked"], "mallory:patch-1")
        made.pull(made.keys["unlinked"], "batman/7", "fleet", body="For acme/shop#{}: in euros")
        made.pull(made.keys["held"], "text", "fleet", body="Fixes #{}")
        over = made.pull(made.keys["over"], "over")
        made.acting().edit_pull(over, state="closed")
        issue = made.issue(made.keys["theirs"])
        made.acting().add_labels(issue, ["agent:in-flight"])
        made.acting().create_comment(
            issue, "<!-- agent-claim:codename=lucius firing_id=f-1 ts=x -->"
        )
        with (
            made.held(f"acme/shop#{made.keys['held']}"),
            made.held(f"acme/tools#{made.keys['tools']}"),
        ):
            yield made


TOLD = {
    "a repository and number": ("Closes acme/shop#{held}", {}, "HELD"),
    "in other capitals": ("Closes ACME/Shop#{held}", {}, "HELD"),
    "an address": ("Closes https://github.com/acme/shop/issues/{held}", {}, "HELD"),
    "pushed over ssh": ("Closes #{held}", {"address": "git@github.com:acme/shop"}, "HELD"),
    "pushed to a fork": ("Closes #{held}", {"address": "https://github.com/me/shop"}, "HELD"),
    "a number in the second repository": ("Closes #{tools}", {"address": TOOLS}, "HELD"),
    "the second repository by its name": ("Closes acme/tools#{tools}", {}, "HELD"),
    "a number in a repository of others": ("Closes #{held}", {"address": "https://h/a/b"}, OUT),
    "what nobody has": ("Closes #{free}", {}, OUT),
    "a pull request of another's": ("Closes #{pulled}", {}, "PULL_OPEN"),
    "to its branch": ("Closes #{pulled}", {"branch": "theirs"}, OUT),
    "to a branch of its name in a fork": ("Closes #{forked}", {"branch": "patch-1"}, "PULL_OPEN"),
    "a pull request that is not linked": ("Closes #{unlinked}", {}, "PULL_OPEN"),
    "to the branch of that": ("Closes #{unlinked}", {"branch": "batman/7"}, OUT),
    "the label of one that is over": ("Closes #{over}", {}, OUT),
    "only the pull request's text closes it": ("Nothing", {"branch": "text"}, "HELD"),
    "an old runner's own": (f"Closes #{{theirs}}\n\n{TRAILERS.format('f-1')}", {}, OUT),
    "an old runner's, by another": ("Closes #{theirs}", {}, "FOREIGN_CLAIM"),
    "a token that is wrong": ("Closes #{held}", {"GITHUB_TOKEN": "wrong"}, "was not checked"),
    "no token": ("Closes #{held}", {"GITHUB_TOKEN": ""}, "was not checked: no token"),
}


def told(hub, row):
    message, given, outcome = TOLD[row]
    given = dict(given)
    update = (
        hub.pushing.commit(message.format(**hub.keys)),
        f"refs/heads/{given.pop('branch', 'mine')}",
        NOTHING,
    )
    return hub.pushing.judged(update, **given), outcome


@pytest.mark.parametrize("row", TOLD)
def test_on_github(hub, row):
    expect(*told(hub, row))


def test_more_branches_than_are_looked_at_make_a_label_uncertain(hub):
    """The author's branch may be among those that were not looked at."""
    commit = hub.pushing.commit("Closes #{unlinked}".format(**hub.keys))
    others = [f"agent/{number}" for number in range(6)]
    updates = [(commit, f"refs/heads/{branch}", NOTHING) for branch in (*others, "batman/7")]
    expect(hub.pushing.judged(*updates), "not checked: only 5 of its 7 branches were looked at")
    expect(hub.pushing.judged(*updates[2:]), OUT)
    expect(hub.pushing.judged(*updates[:5]), "PULL_OPEN")


def test_issues_that_cannot_be_read_are_not_said_to_be_checked(hub):
    held, free = (f"acme/shop#{hub.keys[key]}" for key in ("held", "free"))
    both = hub.pushing.commit(f"Closes {held}, closes {free}")
    hub.hub.faults.add(Fault(Wrong.FORBIDDEN_NODE, number=int(hub.keys["held"])))
    try:
        lenient = hub.pushing.judged(both)
        hub.configure("acme/shop,acme/tools", strict="true")
        strict = hub.pushing.judged(both)
    finally:
        hub.hub.faults.clear()
        hub.configure("acme/shop,acme/tools")
    expect(lenient, f"not checked: {held} cannot be read")
    assert f"checked {free}: nobody else is at work" in lenient.err
    assert f"checked {held}" not in lenient.err
    assert strict.code == 1
    assert f"could not be checked: {held} cannot be read" in strict.err


def test_a_number_that_is_no_issue_is_not_said_to_be_checked(shop, hub):
    done = shop.judged(shop.commit("Closes #999"))
    expect(done, "dibs: the tracker has no issue #999")
    assert "nobody else is at work" not in done.err
    done = hub.pushing.judged(hub.pushing.commit("Closes #998"))
    expect(done, "not checked: acme/shop#998 cannot be read: ")
    assert "404 Not Found: it is not there, or this token may not see it" in done.err
    assert "nobody else is at work" not in done.err


def test_a_github_without_settings(hub):
    """Before the faults: dibs remembers for a while that a server did not answer."""
    settings = hub.clone.folder / "dibs.toml"
    text = settings.read_text()
    settings.unlink()
    shutil.rmtree(hub.clone.folder / ".dibs")  # else the folder is one with a backlog
    address = "http://127.0.0.1/acme/shop.git"
    try:
        commit = hub.pushing.commit("Closes #{unlinked}".format(**hub.keys))
        expect(hub.pushing.judged(commit, GH_ORG="acme", address=address), "PULL_OPEN")
        expect(hub.pushing.judged(commit, address=address), "nothing was checked")
    finally:
        settings.write_text(text)


@pytest.mark.parametrize("strict", [False, True], ids=["lenient", "strict"])
@pytest.mark.parametrize(
    "wrong", [Fault(Wrong.DROP_BEFORE), Fault(Wrong.SLOW, seconds=(8.0, 8.0), kind="query|GET")]
)
def test_a_github_that_is_away_or_silent(hub, wrong, strict):
    hub.configure("acme/shop,acme/tools", timeout="500ms", strict=str(strict).lower())
    hub.hub.faults.add(wrong)
    try:
        done, _ = told(hub, "a repository and number")
    finally:
        hub.hub.faults.clear()
        hub.configure("acme/shop,acme/tools")
    if strict:
        assert done.code == 1
        assert "could not be checked" in done.err
    else:
        expect(done, "was not checked")
