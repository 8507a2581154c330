"""One repository's issues over GraphQL: readings, lists with comments, counts, pull requests.

`OverGraphql` reads a whole issue, or many, in one request, and counts issues by label. It trusts no
incomplete reply: an error which names no place, or a place above the issue, spoils every issue in
the reply. A missing issue is looked for over REST, which answers where the issue went. Readings of
many have small pages; issues with more are read again together, with pages of a hundred. An issue
with more comments than that is read over REST, where pages can be proved to belong together and are
mostly free.

`FindingSnapshots` reads several lists of issues with their comments in one request. Each list is
requested by one label only and filtered here, since GitHub does not document whether several labels
mean "all of" or "any of". A search that continues begins at the page where the last search stopped.
Cursors are positions, so an issue that has left the list since then moves no page.

`Pulls` reads the pull requests that close an issue, for a hundred issues per request. Only GraphQL
returns them, and a request costs points. So the list of the pull requests that changed last is
requested first, over REST, where an unchanged list is free: while that list is the same, so is the
answer. Pull requests of different repositories are not in that list, so an answer is kept for ten
minutes only. Strangers may open any number: issues with many are read in pages. If GraphQL is
missing, or the token may not read pull requests, none are returned.

Every GraphQL reading brings the control issue's log along. `ControlReadings` keeps the latest log
with the local time at which it was asked for, so that a caller who needs to know the granter can
tell whether the log is recent enough. Of several control issues the lowest number counts whose
author is trusted; every reading decides anew which one that is.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from dibs.adapters.github import documents
from dibs.adapters.github.client import Purpose
from dibs.adapters.github.replies import (
    Doubted,
    GraphqlReply,
    NoGraphql,
    TooMuch,
    asked_too_much,
)
from dibs.adapters.github.rest import OverRest, Position, asked_for, in_order
from dibs.adapters.github.shapes import (
    ClosingPull,
    ControlIssueNode,
    ControlLog,
    IssueWithPulls,
    Label,
    Page,
    RestPull,
    Translator,
    WholeIssue,
    convert,
    decode,
    folded,
    login_of,
    person_of,
    present,
    whole_second,
)
from dibs.adapters.github.trust import Judging, WriterTrust
from dibs.core.bounded import Bounded
from dibs.core.errors import IssueHidden, IssueMoved, NotPermitted, Outage, Unavailable
from dibs.core.following import LinkedPull, PullFate
from dibs.core.granter import CONTROL_LABEL, Control, fold_control
from dibs.core.ids import IssueRef, LocalTime, ServerTime, later
from dibs.core.issue import Comment, Issue, Pull, Snapshot
from dibs.core.signing import believed
from dibs.ports.tracker import FoundSnapshots, IssueQuery


class ControlReading(Struct, frozen=True):
    asked_at: LocalTime
    control: Control
    comments: tuple[Comment, ...] = ()
    hidden: int = 0
    """So many further comments are counted and shown to nobody."""


class ControlReadings:
    """The latest reading of a repository's control issue. Safe for many threads."""

    def __init__(self, trust: WriterTrust) -> None:
        self._trust, self._translator = trust, trust.door.translator
        self.keyring = trust.keyring
        """Signs and verifies the log; None: the log is not signed."""
        self.repository = trust.door.name
        self._ids = trust.door.ids
        self._lock = threading.Lock()
        self.number: int | None = None
        """The control issue's number by the latest reading."""
        self._latest: ControlReading | None = None

    @property
    def label(self) -> str:
        """The control issue's label, as the repository spells it."""
        return self._ids.spelling(CONTROL_LABEL)

    @property
    def hidden(self) -> int:
        """By the latest reading, so many comments are counted and shown to nobody."""
        return 0 if self._latest is None else self._latest.hidden

    def since(self, moment: LocalTime) -> ControlReading | None:
        """The latest complete reading if asked for at `moment` or later."""
        latest = self._latest
        return latest if latest is not None and latest.asked_at >= moment else None

    def take(
        self,
        number: int | None,
        comments: tuple[Comment, ...],
        asked_at: LocalTime,
        *,
        hidden: int = 0,
    ) -> ControlReading:
        """Take a complete log with judged authors. `number` None: no control issue exists."""
        if number is not None and self.keyring is not None:
            comments = believed(comments, self._translator.ref(number), self.keyring)
        reading = ControlReading(asked_at, fold_control(comments), comments, hidden)
        with self._lock:
            if self._latest is None or asked_at >= self._latest.asked_at:
                self.number, self._latest = number, reading
        return reading

    def add(self, comment: Comment) -> None:
        """Add a comment of our own, which GitHub may show to readers a little later."""
        with self._lock:
            latest = self._latest
            if latest is None:
                return
            comments = (*latest.comments, comment)
            self._latest = replace(latest, control=fold_control(comments), comments=comments)

    def take_along(self, field: str, reply: GraphqlReply, purpose: Purpose) -> None:
        """Take the log that a GraphQL reply carries beside its main result.

        An incomplete or doubtful log is ignored: a caller who needs the log reads it directly.
        """
        data = reply.data.get(field)
        broken = reply.flaws(field, "controls") or reply.flaws(field, "logs")
        if not isinstance(data, Mapping) or "controls" not in data or broken:
            return
        listed = convert(data["controls"], Page[ControlIssueNode])
        logs = {log.number: log for log in present(convert(data["logs"], Page[ControlLog]))}
        if listed.page_info.more:
            return
        judging = Judging(self._trust, purpose)
        authors = [(issue, login_of(issue.author)) for issue in present(listed)]
        with suppress(Outage):
            number = judging.lowest(
                (issue.number, login, self._translator.believed(login, issue.author_association))
                for issue, login in authors
            )
            if number is None:
                self.take(None, (), reply.asked_at)
                return
            log = logs.get(number)
            if log is None or log.comments.page_info.earlier:
                return
            found = [self._translator.comment(node) for node in present(log.comments)]
            if len(found) < log.comments.total_count:
                return
            comments, whole = judging.comments(found, self._translator.ref(number))
            if whole:
                self.take(number, comments, reply.asked_at)


_log = logging.getLogger("dibs.github")
_FEWEST_AT_ONCE = 10
_LABELS_AT_ONCE = 50
_NOT_FOUND = "NOT_FOUND"
_FORBIDDEN = ("FORBIDDEN", "INSUFFICIENT_SCOPES")
_NOT_SEEN = (_NOT_FOUND, *_FORBIDDEN)
_PULLS = "closedByPullRequestsReferences"
_FIRST_PULLS, _ALL_PULLS, _MOST_PULLS = 20, 100, 1000
"""So many pull requests of an issue are asked for; if there are more, pages of so many, up to so
many: strangers may open any number of them, and the fleet's own must be among those read."""
_CROWDED_AT_ONCE, _MOST_CROWDS, _CROWDS_KEPT_S = 10, 1000, 600.0
_MOST_HIDDEN = 1000
Crowds = Mapping[IssueRef, tuple[Pull, ...]]
ReadIssues = Mapping[IssueRef, tuple[WholeIssue, ServerTime]]
"""Issues as GitHub sent them, each with the time of its reading."""
Path = tuple[str | int, ...]
Request = tuple[str, Mapping[str, object]]
"""A document and its variables."""
_UNKNOWN_WORDS = ("undefinedfield", "argumentnotaccepted", "undefinedtype", "selectionmismatch")


class OverGraphql:
    """The issues of a repository over GraphQL. Safe for many threads."""

    def __init__(self, rest: OverRest, *, own: ControlReadings, home: ControlReadings) -> None:
        self.rest, self.door = rest, rest.door
        self._translator, self._ids = rest.door.translator, rest.door.ids
        self._own, self._home = own, home
        self._has_labels = False
        """Whether a reply had the labels of the repository."""
        self._crowds: Bounded[IssueRef, tuple[tuple[Pull, ...], LocalTime]] = Bounded(_MOST_CROWDS)
        """By issue with more open pull requests than a reading has: all, and when we asked."""
        self.at_once = documents.MOST_AT_ONCE
        """How many issues a large reading may have now."""
        self._hidden: Bounded[IssueRef, bool] = Bounded(_MOST_HIDDEN)
        """The issues which the token may not read, as far as they were logged."""
        self._lock = threading.Lock()
        self._knows_actors = True
        """False once the server did not know the field that lists programs among assignees."""
        self.understood = True
        """False once the server did not know a field: it is older than our documents."""

    # Reading one

    def read(self, issue: IssueRef, judging: Judging) -> Snapshot:
        number = self.rest.number(issue)
        if not self._ids.is_long(number):
            shape, now = self._read_issue(issue, number, judging)
            if not shape.comments.page_info.more:
                return self.snapshot(shape, now, judging)
        # A long issue: the comments over REST first, the issue with its newest count last. Both
        # once more if a comment came in between, as a stranger's may: pages that stay are free.
        comments, now, all_pages = self.rest.comments(issue, judging)
        shape, _ = self._read_issue(issue, number, judging)
        if all_pages and len(comments) < shape.comments.total_count:
            comments, now, all_pages = self.rest.comments(issue, judging)
            shape, _ = self._read_issue(issue, number, judging)
        return Snapshot(self._issue(shape, judging), comments, now, all_pages=all_pages)

    def _issue(self, shape: WholeIssue, judging: Judging, crowds: Crowds | None = None) -> Issue:
        """The issue, with the verdicts about who changed its text and opened its pull requests.

        `crowds`: the pull requests of crowded issues; None: not read yet.
        """
        issue = self._translator.issue(shape)
        if _is_crowded(shape) and not judging.holding:
            first = {pull.ref: pull for pull in issue.pulls}
            crowds = self.crowds([issue.ref]) if crowds is None else crowds
            rest = {pull.ref: pull for pull in crowds.get(issue.ref, ())}
            issue = replace(issue, pulls=tuple((rest | first).values()))
        changed = judging.change(self._translator.edits(shape), issue)
        edited_at = self._translator.edited_at(shape)
        pulls = judging.pulls(issue.pulls)
        return replace(issue, pulls=pulls, changed=changed, edited_at=edited_at)

    def _read_issue(
        self, issue: IssueRef, number: int, judging: Judging
    ) -> tuple[WholeIssue, ServerTime]:
        """The issue with the first page of comments; raises NoSuchIssue or IssueMoved."""
        path = ("repository", "issue")

        def ask() -> GraphqlReply:
            reply = self.query(documents.READ, {"number": number}, judging.purpose)
            if not _is_missing(reply, path):
                try:
                    insist_whole(reply, issue, path)
                except IssueHidden as hidden:
                    if judging.holding or judging.purpose is Purpose.HOLD:
                        # our own lease does not end by this
                        raise Unavailable(str(hidden)) from hidden
                    raise Doubted(hidden) from hidden
                except NotPermitted as refusal:
                    raise Doubted(refusal) from refusal
            return reply

        reply = self._insist(f"a GraphQL query for {issue}", ask, judging.purpose)
        if _is_missing(reply, path):
            # raises NoSuchIssue or IssueMoved, by REST's answer
            self.rest.issue(issue, judging.purpose)
            raise Unavailable(f"{issue} is there, but GitHub's GraphQL does not see it yet")
        return self.saw(convert(reply.data["repository"]["issue"], WholeIssue), issue), reply.now

    def saw(self, shape: WholeIssue, issue: IssueRef | None = None) -> WholeIssue:
        """Put the ids of an issue into the cache.

        Raises IssueMoved for an issue of a different number than `issue`, or of another repository.
        """
        asked = issue or self._translator.ref(shape.number)
        where = shape.repository.name_with_owner if shape.repository else self.door.name
        if str(shape.number) != asked.key or not self.door.is_called(where):
            raise IssueMoved(asked, f"{where}#{shape.number}")
        self._ids.saw_issue(shape)
        return shape

    def snapshot(
        self, shape: WholeIssue, now: ServerTime, judging: Judging, crowds: Crowds | None = None
    ) -> Snapshot:
        """The issue with the first page of comments; `all_pages` if no more pages follow.

        Not `all_pages` either if a mark has no verdict.
        """
        nodes = map(self._translator.comment, present(shape.comments))
        found = in_order({comment.id: comment for comment in nodes})
        issue = self._issue(shape, judging, crowds)
        comments, judged = judging.comments(found, issue.ref)
        whole = judged and not shape.comments.page_info.more
        return Snapshot(issue, comments, now, all_pages=whole)

    # Reading many

    def snapshots(self, issues: Sequence[IssueRef]) -> Mapping[IssueRef, Snapshot]:
        """Read many issues, up to a hundred per request; without deleted and moved issues.

        Without issues which the token may not read as well: each is logged once.
        """
        judging = Judging(self.rest.trust, Purpose.DISCOVER)
        read = self._read_many(list(dict.fromkeys(issues)), full=False)
        return {one.issue.ref: one for one in self.each_snapshot(self.completed(read), judging)}

    def _read_many(self, issues: list[IssueRef], *, full: bool) -> ReadIssues:
        """`full`: with large pages, and fewer issues in each request."""
        found: dict[IssueRef, tuple[WholeIssue, ServerTime]] = {}
        limit = documents.MOST_WHOLE_AT_ONCE if full else documents.MOST_AT_ONCE

        def request(left: Sequence[IssueRef], most: int) -> Request:
            part = left[:most]
            numbers = {f"n{place}": self.rest.number(issue) for place, issue in enumerate(part)}
            return documents.snapshots(len(part), full=full), numbers

        left = issues
        while left:
            reply, most = self.query_many(partial(request, left), min(len(left), limit))
            part = left[:most]
            left = left[len(part) :]
            asked: dict[Path, IssueRef] = {
                ("repository", f"i{place}"): issue for place, issue in enumerate(part)
            }
            there = {path: one for path, one in asked.items() if not _is_missing(reply, path)}
            for path in self.readable(reply, there):
                with suppress(IssueMoved):
                    shape = convert(_answer_at(reply, path), WholeIssue)
                    found[there[path]] = self.saw(shape, there[path]), reply.now
        return found

    def completed(self, read: ReadIssues) -> ReadIssues:
        """The same issues; those whose pages were too small are read again with large pages."""
        cut = [issue for issue, (shape, _) in read.items() if shape.is_cut]
        again = self._read_many(cut, full=True) if cut else {}
        return {
            issue: again.get(issue, one)
            for issue, one in read.items()
            if issue in again or issue not in cut
        }

    def readable(self, reply: GraphqlReply, answers: Mapping[Path, IssueRef]) -> list[Path]:
        """The paths with whole answers. Logs issues which the token may not read, once each.

        Raises Unavailable if any further part is missing, and NotPermitted if the token lacks a
        right needed for the reading of every issue.
        """
        found: list[Path] = []
        refused: dict[IssueRef, str] = {}
        lacking: NotPermitted | None = None
        for path, issue in answers.items():
            try:
                insist_whole(reply, issue, path)
                found.append(path)
            except IssueHidden as hidden:
                refused[issue] = hidden.why
            except NotPermitted as refusal:
                refused[issue], lacking = str(refusal), refusal
        if lacking is not None and not found:
            raise lacking
        for issue, why in refused.items():
            with self._lock:
                told, self._hidden[issue] = issue in self._hidden, True
            if not told:
                _log.warning("%s is left alone, since it cannot be read: %s", issue, why)
        return found

    def each_snapshot(self, read: ReadIssues, judging: Judging) -> Iterator[Snapshot]:
        """The snapshot of each; what the crowded ones lack is read for all of them together."""
        crowds = self.crowds([issue for issue, (shape, _) in read.items() if _is_crowded(shape)])
        return (self.snapshot(shape, now, judging, crowds) for shape, now in read.values())

    # Pull requests

    def crowds(self, issues: Sequence[IssueRef]) -> Crowds:
        """The open pull requests of issues that have more of them than fit into a reading.

        Kept for ten minutes: a stranger may open any number, and must not set the price of each
        reading.
        """
        now = self.door.transport.clock.now()
        with self._lock:
            kept = {issue: self._crowds[issue] for issue in issues if issue in self._crowds}
        found = {issue: pulls for issue, (pulls, at) in kept.items() if now < at + _CROWDS_KEPT_S}
        missing = [issue for issue in issues if issue not in found]
        known: dict[Pull, Pull] = {}  # one pull request may name every issue, and is kept once
        for issue, (home, nodes) in self.linked(missing, closed_too=False).items():
            pulls = self._translator.open_pulls(nodes, home)
            found[issue] = tuple(known.setdefault(pull, pull) for pull in pulls)
            with self._lock:
                self._crowds[issue] = found[issue], now
        return found

    def linked(
        self, issues: Sequence[IssueRef], *, closed_too: bool
    ) -> dict[IssueRef, tuple[str, list[ClosingPull]]]:
        """All pull requests of each issue, without labels, and the name of its repository.

        At most a thousand of each issue: if there are more, a warning says so.
        """
        found: dict[IssueRef, tuple[str, list[ClosingPull]]] = {}
        pending: dict[IssueRef, str | None] = dict.fromkeys(issues)
        for _ in range(_MOST_PULLS // _ALL_PULLS):
            cursors, pending = pending, {}
            for place in range(0, len(cursors), _CROWDED_AT_ONCE):
                part = dict(list(cursors.items())[place : place + _CROWDED_AT_ONCE])
                read = self.pull_pages(part, _ALL_PULLS, closed_too=closed_too, labels=False)
                for issue, (home, page) in read.items():
                    found.setdefault(issue, (home, []))[1].extend(present(page))
                    if page.page_info.more:
                        pending[issue] = page.page_info.end
        for issue in pending:
            text = "%s is named by more than %d pull requests; the others are not read"
            _log.warning(text, issue, _MOST_PULLS)
        return found

    def pull_pages(
        self, cursors: Mapping[IssueRef, str | None], first: int, *, closed_too: bool, labels: bool
    ) -> dict[IssueRef, tuple[str, Page[ClosingPull]]]:
        """The first pull requests of each issue behind its cursor, and its repository's name.

        Without issues which do not exist, or whose pull requests the token may not see.
        """
        variables: dict[str, object] = {"first": first, "closed": closed_too, "pullLabels": labels}
        for place, (issue, cursor) in enumerate(cursors.items()):
            variables |= {f"n{place}": int(issue.key), f"a{place}": cursor}
        reply = self.ask(documents.pulls(len(cursors)), variables, Purpose.DISCOVER)
        pages: dict[IssueRef, tuple[str, Page[ClosingPull]]] = {}
        for place, issue in enumerate(cursors):
            if answer := _seen_at(reply, ("repository", f"i{place}"), issue):
                read = convert(answer, IssueWithPulls)
                if (page := read.closed_by_pull_requests_references) is not None:
                    pages[issue] = read.repository.name_with_owner, page
        return pages

    def pulls_named(self, pulls: Sequence[IssueRef]) -> dict[IssueRef, ClosingPull]:
        """The pull requests, without those which do not exist or may not be seen."""
        variables: dict[str, object] = {"pullLabels": True}
        variables |= {f"n{place}": int(pull.key) for place, pull in enumerate(pulls)}
        reply = self.ask(documents.pulls_named(len(pulls)), variables, Purpose.DISCOVER)
        answers = {
            pull: _seen_at(reply, ("repository", f"p{place}"), pull)
            for place, pull in enumerate(pulls)
        }
        return {pull: convert(answer, ClosingPull) for pull, answer in answers.items() if answer}

    def query_many(
        self, request: Callable[[int], Request], wanted: int
    ) -> tuple[GraphqlReply, int]:
        """Send a large reading, made by `request` for a number of issues; return that number, too.

        `wanted`: the most that the reading needs. If GitHub gives up a reading as too much,
        `at_once` becomes half of its number, and the smaller reading is sent at once. After any
        further kind of failure `at_once` is halved too, since the reading may have taken too long,
        but not repeated: to repeat would make an outage worse. `at_once` grows again slowly.
        """
        while True:
            most = min(self.at_once, wanted)
            try:
                reply = self.query(*request(most), Purpose.DISCOVER)
            except TooMuch:
                with self._lock:
                    self.at_once = max(1, most // 2)
                if most == 1:
                    raise
            except Unavailable:
                with self._lock:
                    fewest = min(self.at_once, _FEWEST_AT_ONCE)
                    self.at_once = max(fewest, self.at_once // 2)
                raise
            else:
                with self._lock:
                    grown = self.at_once + max(1, self.at_once // 10)
                    self.at_once = min(documents.MOST_AT_ONCE, grown)
                return reply, most

    def read_reader(self) -> None:
        """Have `WriterTrust` note who asks."""
        self.rest.trust.note_reader(self.ask(documents.READER, {}, Purpose.LOOK).data)

    # The control issue by itself

    def read_control(self) -> None:
        """Read the control issue's log into `ControlReadings`, unless the log is too long."""
        for _ in range(2):
            label = self._own.label
            reply = self.ask(documents.CONTROL, {"control": [label]}, Purpose.LOOK)
            if label == self._own.label:  # else the first reply had another spelling of it
                return self._own.take_along("repository", reply, Purpose.LOOK)
        return None

    # Counting

    def tally(self, labels: Sequence[str], *, closed_too: bool) -> Mapping[str, int]:
        counts: dict[str, int] = {}
        for start in range(0, len(labels), _LABELS_AT_ONCE):
            part = labels[start : start + _LABELS_AT_ONCE]
            spelt = {label: self._ids.spelling(label) for label in part}
            counts |= self._count(spelt, closed_too=closed_too)
            learnt = {label: self._ids.spelling(label) for label in part}
            if misspelt := dict(learnt.items() - spelt.items()):
                counts |= self._count(misspelt, closed_too=closed_too)
        return counts

    def _count(self, spelt: Mapping[str, str], *, closed_too: bool) -> Mapping[str, int]:
        """The number of issues by label; `spelt`: how to spell each label in the request."""
        variables: dict[str, object] = {
            f"l{place}": [label] for place, label in enumerate(spelt.values())
        }
        variables["states"] = states(closed_too=closed_too)
        reply = self.ask(documents.tally(len(spelt)), variables, Purpose.DISCOVER)
        answer = reply.data["repository"]
        if reply.flaws("repository"):
            raise Unavailable(f"{self._translator.repository}: {reply.errors[0].message}")
        try:
            return {
                label: int(answer[f"t{place}"]["totalCount"]) for place, label in enumerate(spelt)
            }
        except (KeyError, TypeError, ValueError) as flaw:
            raise Unavailable(f"{self._translator.repository}: GitHub did not count") from flaw

    # Asking

    def query(
        self, document: str, variables: Mapping[str, object], purpose: Purpose
    ) -> GraphqlReply:
        """Send a reading. The answer includes the control issues' logs, which are kept.

        It also says whether the reading account may write, which is kept as well.
        """
        home_owner, _, home_name = self._home.repository.partition("/")
        own, home = self._own.label, self._home.label
        extras = {
            "control": [own],
            "away": self._home is not self._own,
            "homeOwner": home_owner,
            "homeName": home_name,
            "homeControl": [home],
        }
        reply = self.ask(document, {**extras, **variables}, purpose)
        self.rest.trust.note_reader(reply.data)
        if own == self._own.label:
            self._own.take_along("repository", reply, purpose)
        if self._home is not self._own and home == self._home.label:
            self._home.take_along("home", reply, purpose)
        return reply

    def ask(self, document: str, variables: Mapping[str, object], purpose: Purpose) -> GraphqlReply:
        """Send a query about the repository; raises if the answer has no repository.

        The first answer includes the repository's labels: ids and spelling are kept.
        Raises TooMuch if GitHub gave up the document, also after a partial answer.
        """
        repository = self._translator.repository
        owner, _, name = repository.partition("/")
        variables = {"owner": owner, "name": name, "labels": not self._has_labels, **variables}
        reply = self._insist(
            f"a GraphQL query about {repository}",
            lambda: self._asked(document, variables, purpose),
            purpose,
        )
        if (listed := reply.data["repository"].get("labels")) is not None:
            labels = convert(listed, Page[Label])
            self._ids.saw_labels(present(labels))
            self._has_labels = True
            if labels.page_info.more:
                with suppress(Outage):  # a label that is not known is looked for when needed
                    self.rest.labels(purpose)
        return reply

    def _asked(
        self, document: str, variables: Mapping[str, object], purpose: Purpose
    ) -> GraphqlReply:
        """The answer with the repository; raises Doubted if GitHub refuses the repository."""
        repository = self._translator.repository
        reply = self.send(document, variables, purpose)
        if asked_too_much(reply.errors):
            raise TooMuch(f"{repository}: GitHub gave the request up: {reply.errors[0].message}")
        self.insist_understood(reply)
        if reply.data.get("repository") is not None:
            return reply
        # An error of a field below may leave the whole repository null: only its own tells of it.
        own = [flaw for flaw in reply.errors if flaw.path == ("repository",)]
        for flaw in own:
            if flaw.type == _NOT_FOUND:
                self.door.told(purpose)  # raises NotPermitted if REST does not find it either
                text = f"{repository}: GitHub's REST API finds it, and its GraphQL does not"
                raise Unavailable(text)
            if flaw.type in _FORBIDDEN:
                raise Doubted(NotPermitted(f"{repository}: GitHub refused: {flaw.message}"))
        why = f": {reply.errors[0].message}" if reply.errors else ""
        raise Unavailable(f"{repository}: GitHub did not answer{why}")

    def send(
        self, document: str, variables: Mapping[str, object], purpose: Purpose
    ) -> GraphqlReply:
        """Send a document; to a server that does not know `assignedActors`, without this field."""
        if self._knows_actors:
            reply = self.door.transport.graphql(document, variables, purpose=purpose)
            if reply.data or not any("assignedActors" in one.message for one in reply.errors):
                return reply
            self._knows_actors = False
        document = documents.without_actors(document)
        return self.door.transport.graphql(document, variables, purpose=purpose)

    def change(
        self, document: str, variables: Mapping[str, object], purpose: Purpose
    ) -> GraphqlReply:
        """Send mutations; raises if GitHub ran none of them."""

        def ask() -> GraphqlReply:
            reply = self.send(document, variables, purpose)
            self.insist_understood(reply)
            return reply

        return self._insist(f"a mutation in {self._translator.repository}", ask, purpose)

    def _insist(self, what: str, ask: Callable[[], GraphqlReply], purpose: Purpose) -> GraphqlReply:
        """See `Transport.insist`; the second endpoint is the repository's, over REST."""
        return self.door.transport.insist(what, ask, lambda: self.door.told(purpose), purpose)

    def insist_understood(self, reply: GraphqlReply) -> None:
        """Raises if GitHub did not run the document at all, and made no change."""
        if reply.data:
            return
        messages = "; ".join(error.message for error in reply.errors[:3]) or "it sent no data"
        if any(error.type.lower() in _UNKNOWN_WORDS for error in reply.errors):
            self.understood = False
            raise NoGraphql(f"this server's GraphQL does not know what was asked: {messages}")
        if any(error.type in _FORBIDDEN for error in reply.errors):
            text = f"{self._translator.repository}: GitHub refused: {messages}"
            raise Doubted(NotPermitted(text))
        raise Unavailable(f"{self._translator.repository}: GitHub did not answer: {messages}")


def _is_crowded(shape: WholeIssue) -> bool:
    pulls = shape.closed_by_pull_requests_references
    return pulls is not None and pulls.page_info.more


def states(*, closed_too: bool) -> list[str]:
    return ["OPEN", "CLOSED"] if closed_too else ["OPEN"]


def insist_whole(reply: GraphqlReply, issue: IssueRef, path: Path) -> None:
    """Raises unless the answer about the issue is whole: a missing part would read as empty.

    IssueHidden: the token may not read a part of this issue. NotPermitted: the token lacks a right.
    """
    flaws = reply.flaws(*path)
    if not flaws:
        if _answer_at(reply, path) is None:
            raise Unavailable(f"{issue} could not be read: no answer")
        return
    refused = [flaw for flaw in flaws if flaw.type in _FORBIDDEN and len(flaw.path) >= len(path)]
    flaw = next((flaw for flaw in flaws if flaw not in refused), flaws[0])
    where = ".".join(str(step) for step in flaw.path)
    message = f"GitHub did not tell all of it ({where}): {flaw.message}"
    if flaw not in refused:
        raise Unavailable(message)
    if flaw.path[-1:] == (_PULLS,):
        raise NotPermitted(f"{message}; the token needs Pull requests: read")
    raise IssueHidden(issue, message) if flaw.type == "FORBIDDEN" else NotPermitted(message)


def _is_missing(reply: GraphqlReply, path: Path) -> bool:
    """Whether GitHub reports that the issue does not exist."""
    missing = any(flaw.path == path and flaw.type == _NOT_FOUND for flaw in reply.errors)
    return missing and _answer_at(reply, path) is None


def _seen_at(reply: GraphqlReply, path: Path, ref: IssueRef) -> Any:
    """The answer about pull requests, None if not there or not shown. Raises if it is not whole."""
    unclear = next((flaw for flaw in reply.flaws(*path) if flaw.type not in _NOT_SEEN), None)
    if unclear is not None:
        raise Unavailable(f"{ref}: pull requests cannot be read: {unclear.message}")
    return _answer_at(reply, path)


def _answer_at(reply: GraphqlReply, path: Path) -> Any:
    found: Any = reply.data
    for step in path:
        found = found[step] if isinstance(step, int) else (found or {}).get(step)
    return found


_MOST_CURSORS = 256
_MOST_ROUNDS = 1000
_LISTS_AT_ONCE = 8

_CursorKey = tuple[str, bool, int]
"""A list's label, whether closed issues are in it, and the number of an issue in it."""


class _Search(Struct):
    """A query of `find_snapshots`, with the state between requests."""

    query: IssueQuery
    after: Position | None
    skip: int
    cursor: str | None = None
    """The next page begins behind this cursor; None: at the beginning of the list."""
    now: ServerTime | None = None
    """The server's time of the last page; None before the first."""
    snapshots: list[Snapshot] = field(default_factory=list)
    more: bool = False
    over: bool = False

    @property
    def wanted(self) -> int:
        """How many issues to request next; a full page if few of them are likely to match.

        Few match after a page that was not enough, and at the beginning of a list whose first
        issues are before `after`.
        """
        if self.now is not None or (self.after is not None and self.cursor is None):
            return documents.MOST_AT_ONCE
        left = self.query.limit - len(self.snapshots)
        return max(1, min(documents.MOST_AT_ONCE, left + self.skip))

    @property
    def label(self) -> str:
        # The last label is the rarest: in a query, a stage comes before the further labels that an
        # issue of the stage must carry.
        return self.query.labels[-1] if self.query.labels else ""

    def key(self, number: int) -> _CursorKey:
        return folded(self.label), self.query.closed_too, number

    def result(self) -> FoundSnapshots:
        assert self.now is not None, "every query is asked at least once"
        return FoundSnapshots(tuple(self.snapshots), self.now, self.more)


class FindingSnapshots:
    """Reads lists of a repository's issues, with comments. Safe for many threads."""

    def __init__(self, graphql: OverGraphql) -> None:
        self._graphql = graphql
        self._cursors: Bounded[_CursorKey, str | None] = Bounded(_MOST_CURSORS)
        """By issue that was returned: the cursor behind which the issue's page began."""
        self._lock = threading.Lock()

    def find_snapshots(
        self, queries: Sequence[IssueQuery], positions: Sequence[Position | None]
    ) -> tuple[FoundSnapshots, ...]:
        """`positions`: for each query the position of `query.after`."""
        searches = [
            _Search(query, after, query.skip)
            for query, after in zip(queries, positions, strict=True)
        ]
        with self._lock:
            for search in searches:
                if search.query.after is not None:
                    key = search.key(int(search.query.after.key))
                    search.cursor = self._cursors.get(key)
        for _ in range(_MOST_ROUNDS):
            pending = [search for search in searches if not search.over]
            if not pending:
                break
            self._read_next_pages(pending[:_LISTS_AT_ONCE])
        return tuple(search.result() for search in searches)

    def _read_next_pages(self, searches: Sequence[_Search]) -> None:
        """Read the next page of each search, all in one request."""
        variables: dict[str, object] = {}
        spelling = self._graphql.door.ids.spelling
        spelt = [spelling(search.label) for search in searches]
        for place, search in enumerate(searches):
            variables[f"l{place}"] = [spelt[place]] if search.label else None
            variables[f"s{place}"] = states(closed_too=search.query.closed_too)
            variables[f"a{place}"] = search.cursor

        def request(most: int) -> Request:
            sizes = {f"f{place}": min(one.wanted, most) for place, one in enumerate(searches)}
            return documents.finding(len(searches)), {**variables, **sizes}

        reply, _ = self._graphql.query_many(request, max(one.wanted for one in searches))
        if spelt != [spelling(search.label) for search in searches]:
            return  # the first reply had the repository's spelling: each search is asked again
        judging = Judging(self._graphql.rest.trust, Purpose.DISCOVER)
        for place, search in enumerate(searches):
            search.now = reply.now
            self._take_page(search, reply, f"q{place}", judging)

    def _take_page(
        self, search: _Search, reply: GraphqlReply, field: str, judging: Judging
    ) -> None:
        """Add the matching issues of a page to the search."""
        repository = self._graphql.door.name
        answer, path = reply.data["repository"].get(field), ("repository", field)
        below = len(path) + 1  # an error at an entry, or below it, concerns this entry alone
        flaw = next((one for one in reply.flaws(*path) if len(one.path) <= below), None)
        if flaw is not None or answer is None:
            message = flaw.message if flaw else "no answer"
            raise Unavailable(f"a list of issues could not be read: {message}")
        listed = convert(answer, Page[dict[str, Any]])
        listed_refs: dict[Path, IssueRef] = {
            (*path, "nodes", place): IssueRef(repository, str((node or {}).get("number", "?")))
            for place, node in enumerate(listed.nodes)
            if node is not None or reply.at(*path, "nodes", place)
        }
        read: dict[IssueRef, tuple[WholeIssue, ServerTime]] = {}
        for place in self._graphql.readable(reply, listed_refs):
            shape = convert(_answer_at(reply, place), WholeIssue)
            if shape.lacks_labels or asked_for(shape, search.query, search.after):
                read[listed_refs[place]] = self._graphql.saw(shape), reply.now
        shapes = {
            ref: (shape, now)
            for ref, (shape, now) in self._graphql.completed(read).items()
            if asked_for(shape, search.query, search.after)
        }
        skipped, left = min(search.skip, len(shapes)), search.query.limit - len(search.snapshots)
        search.skip -= skipped
        wanted = dict(list(shapes.items())[skipped : skipped + left])
        search.snapshots += self._graphql.each_snapshot(wanted, judging)
        with self._lock:
            for shape, _ in wanted.values():
                self._cursors[search.key(shape.number)] = search.cursor
        if len(shapes) > skipped + left:
            search.more = search.over = True
            return
        search.cursor = listed.page_info.end
        # `more` if there are further pages, although no issue there may match: to find out would
        # cost a request, and a caller that continues the search finds out anyway.
        search.more = listed.page_info.more and len(search.snapshots) == search.query.limit
        search.over = search.more or not listed.page_info.more


_KEPT_FOR = timedelta(minutes=10)
_LATEST = {"state": "all", "sort": "updated", "direction": "desc", "per_page": "10"}
_FATES = {"OPEN": PullFate.OPEN, "MERGED": PullFate.MERGED, "CLOSED": PullFate.UNMERGED}

PullsByIssue = Mapping[IssueRef, tuple[LinkedPull, ...]]


class Pulls:
    """The pull requests which close a repository's issues. Safe for many threads."""

    def __init__(self, graphql: OverGraphql) -> None:
        self._graphql, self._door, self._trust = graphql, graphql.door, graphql.rest.trust
        self._lock = threading.Lock()
        self._etag = ""
        """The ETag of the list of the latest pull requests for which `_cached` is valid."""
        self._cached_until: ServerTime | None = None
        self._cached: dict[IssueRef, tuple[LinkedPull, ...]] = {}
        self._asked_before = False
        self._forbidden = False

    def of(self, issues: Sequence[IssueRef]) -> PullsByIssue:
        """The pull requests of each issue; without issues that are gone or may not be read.

        If the token may not read pull requests, logs a warning once and returns none.
        """
        return self._cached_or_read(issues, self._request)

    def named(self, pulls: Sequence[IssueRef]) -> Mapping[IssueRef, LinkedPull]:
        """The numbered pull requests of the repository, without unreadable pull requests."""
        read = self._cached_or_read(pulls, self._request_named)
        return {ref: found[0] for ref, found in read.items() if found}

    def _cached_or_read(
        self, refs: Sequence[IssueRef], read: Callable[[Sequence[IssueRef]], PullsByIssue]
    ) -> PullsByIssue:
        """A number is an issue's or a pull request's, never both: they share the cache."""
        wanted = list(dict.fromkeys(refs))
        if not wanted or self._forbidden:
            return {}
        try:
            etag, found = "", dict[IssueRef, tuple[LinkedPull, ...]]()
            if self._asked_before:  # a process that asks only once has no use for the cache
                etag, found = self._valid_cache()
            self._asked_before = True
            missing = [issue for issue in wanted if issue not in found]
            for place in range(0, len(missing), documents.MOST_AT_ONCE):
                page = read(missing[place : place + documents.MOST_AT_ONCE])
                found |= page
                with self._lock:
                    if etag and self._etag == etag:
                        self._cached |= page
        except NotPermitted as refusal:
            _log.warning("pull requests of %s are not followed: %s", self._door.name, refusal)
            self._forbidden = True
            return {}
        return {issue: found[issue] for issue in wanted if issue in found}

    def _valid_cache(self) -> tuple[str, dict[IssueRef, tuple[LinkedPull, ...]]]:
        """The ETag of the list of the latest pull requests, and the cached answers still valid.

        The cache is emptied if the list changed, or after ten minutes.
        """
        latest = self._door.look("/pulls", purpose=Purpose.DISCOVER, params=_LATEST)
        etag = latest.headers.get("etag", "")
        with self._lock:
            fresh = self._cached_until is not None and latest.now < self._cached_until
            if not (etag and etag == self._etag and fresh):
                self._etag, self._cached_until = etag, later(latest.now, _KEPT_FOR)
                self._cached = {}
            return etag, dict(self._cached)

    def _request_named(self, pulls: Sequence[IssueRef]) -> PullsByIssue:
        translator, judging = self._door.translator, Judging(self._trust, Purpose.DISCOVER)
        home = translator.repository
        return {
            ref: judging.pulls([_linked_pull(node, translator, home)])
            for ref, node in self._graphql.pulls_named(pulls).items()
        }

    def _request(self, issues: Sequence[IssueRef]) -> PullsByIssue:
        """Read the issues' pull requests.

        Without issues which do not exist, or whose pull requests the token may not see.
        """
        translator, judging = self._door.translator, Judging(self._trust, Purpose.DISCOVER)
        found: dict[IssueRef, tuple[LinkedPull, ...]] = {}
        cursors: dict[IssueRef, str | None] = dict.fromkeys(issues)
        first = self._graphql.pull_pages(cursors, _FIRST_PULLS, closed_too=True, labels=True)
        read = {issue: (home, present(page)) for issue, (home, page) in first.items()}
        crowded = [issue for issue, (_, page) in first.items() if page.page_info.more]
        for issue, (home, nodes) in self._graphql.linked(crowded, closed_too=True).items():
            read[issue] = (
                home,
                list({node.ref: node for node in (*nodes, *read[issue][1])}.values()),
            )
        for issue, (home, nodes) in read.items():
            found[issue] = judging.pulls([_linked_pull(node, translator, home) for node in nodes])
        return found

    def texts(self, repo: str, branch: str) -> tuple[str, ...]:
        """Titles and bodies of the open pull requests from `branch` of `repo`'s owner."""
        head = f"{repo.partition('/')[0]}:{branch}"
        listed = self._door.look("/pulls", purpose=Purpose.LOOK, params={"head": head})
        pulls = decode(listed.body, list[RestPull])
        return tuple(f"{pull.title}\n\n{pull.body or ''}" for pull in pulls)


def _linked_pull(node: ClosingPull, translator: Translator, home: str) -> LinkedPull:
    ended_at = node.merged_at or node.closed_at
    fate = _FATES.get(node.state, PullFate.OPEN)
    return LinkedPull(
        ref=node.ref,
        author=person_of(node.author),
        fate=fate,
        opened_at=whole_second(node.created_at),
        ended_at=whole_second(ended_at) if ended_at and fate is not PullFate.OPEN else None,
        head=node.head_ref_name,
        foreign=node.is_cross_repository,
        elsewhere=node.is_elsewhere(home),
        labels=translator.labels(label.name for label in present(node.labels)),
        by_writer=translator.associated(node, home),
    )
