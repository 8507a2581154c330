"""A runner of the published state machine, as described: labels, then a comment, then a look.

Its rules and nothing else: no lease, no fence, strictly earlier timestamps win, the last fifty
comments, a loser takes the label off. What a fleet that is being switched still has running.
"""

import re
from dataclasses import dataclass
from datetime import timedelta

_LINE = re.compile(r"\s*<!-- agent-(claim|release):(.*)", re.DOTALL)
IN_FLIGHT, IMPLEMENT = "agent:in-flight", "agent:implement"
BLOCKERS = {IN_FLIGHT, "agent:pr-open", "agent:done", "do-not-pickup", "needs:human-scope"}


def words(body):
    """What such a runner reads in a comment: kind and fields, or nothing."""
    match = _LINE.match(body)
    if match is None:
        return None
    parts = match[2].strip().removesuffix("-->").split()
    return match[1], dict(part.split("=", 1) for part in parts if "=" in part)


def unreleased(comments):
    said = [(one, words(one.body)) for one in comments[-50:]]
    over = {
        (told["codename"], told["firing_id"])
        for _, (kind, told) in _lines(said)
        if kind == "release"
    }
    return [
        ((told["codename"], told["firing_id"]), one.created_at)
        for one, (kind, told) in _lines(said)
        if kind == "claim" and (told["codename"], told["firing_id"]) not in over
    ]


def _lines(said):
    return [(one, told) for one, told in said if told is not None]


@dataclass
class OldRunner:
    place: object
    codename: str
    firing_id: str
    window: timedelta = timedelta(hours=4)

    @property
    def key(self):
        return self.codename, self.firing_id

    def line(self, kind, **more):
        said = {"codename": self.codename, "firing_id": self.firing_id, **more}
        return f"<!-- agent-{kind}:" + " ".join(f"{key}={said[key]}" for key in said) + " -->"

    # One claim, step by step, so that tests can stop between two

    def sees_it_free(self, number):
        issue = self.place.read(number).issue
        return issue.open and not issue.labels & BLOCKERS

    def labels_it(self, number):
        self.place.edit(number, add=(IN_FLIGHT,), remove=(IMPLEMENT,))

    def comments(self, number):
        self.place.say(number, self.line("claim", ts="2026-05-01T19:42:33Z"))

    def has_won(self, number):
        snapshot = self.place.read(number)
        claims = unreleased(snapshot.comments)
        mine = next((at for key, at in claims if key == self.key), None)
        if mine is None:
            return True
        rivals = [
            at for key, at in claims if key != self.key and at < mine and _fresh(self, at, snapshot)
        ]
        return not rivals

    def yields(self, number):
        self.place.edit(number, add=(IMPLEMENT,), remove=(IN_FLIGHT,))
        self.place.say(number, self.line("release", outcome="race-yielded"))

    def claim(self, number):
        if not self.sees_it_free(number):
            return False
        self.labels_it(number)
        self.comments(number)
        if self.has_won(number):
            return True
        self.yields(number)
        return False

    def release(self, number, to=IMPLEMENT):
        self.place.edit(number, add=(to,), remove=(IN_FLIGHT,))
        self.place.say(number, self.line("release", outcome="success"))

    # Its sweep

    def stale(self, number):
        """The keys it would release, as it judges them."""
        snapshot = self.place.read(number)
        claims = unreleased(snapshot.comments)
        if IN_FLIGHT in snapshot.issue.labels and not claims:
            return [("?", "?")]
        return [key for key, at in claims if not _fresh(self, at, snapshot)]

    def sweep(self, number):
        for codename, firing_id in self.stale(number):
            body = (
                f"<!-- agent-release:codename={codename} firing_id={firing_id}"
                " outcome=stale-swept swept_by=20260502-030000-cleanup -->"
            )
            if codename != "?":
                self.place.say(number, body)
            self.place.edit(number, add=(IMPLEMENT,), remove=(IN_FLIGHT,))


def _fresh(runner, at, snapshot):
    return at + runner.window >= snapshot.now
