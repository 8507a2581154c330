"""Which holders trusted one name at the same time, judged from what each of them wrote down.

A holder writes a record when it is granted a lease, when a renewal has extended its trust, when a
check has passed, and before it gives the lease back. All times are of the one monotonic clock of
the machine. The trusted interval of a run

- begins when the holder has the reply to its bid,
- ends when the holder gives the lease back or notices its loss, at the latest when the trust that
  its last renewal gave it runs out, even if the holder is frozen or dead by then,
- and lasts at least as long as its checks have passed, whatever else the holder believed.

A run whose reply came after the end of its trust has no interval.

As long as no two intervals of a name overlap, fences must rise in the order of the intervals. If a
store's clock was set forward a reply may come so late that its holder is the second to trust, with
the lower fence. Then fences must rise `by_grants`: from one grant to each that was asked for after
the first one's reply.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Struct


class Granted(Struct, frozen=True, tag="granted"):
    """The reply is there, and the holder trusts the lease `until`, unless it is renewed."""

    run: str
    name: str
    fence: int
    asked: float
    """When the bid was sent: it was granted between then and `at`."""
    at: float
    until: float


class Renewed(Struct, frozen=True, tag="renewed"):
    run: str
    until: float


class Passed(Struct, frozen=True, tag="passed"):
    """A check that began `at` this time told the holder to go on."""

    run: str
    at: float


class Ended(Struct, frozen=True, tag="ended"):
    """The holder gives the lease back from now on, or has noticed that it is lost."""

    run: str
    at: float
    why: str


Record = Granted | Renewed | Passed | Ended
_records = msgspec.json.Decoder(Record)


class Interval(Struct, frozen=True):
    """The holder of a run trusted its lease on the name from `start` to `end`."""

    name: str
    run: str
    fence: int
    asked: float
    start: float
    end: float

    def __str__(self) -> str:
        return f"{self.run} with fence {self.fence} from {self.start:.3f} to {self.end:.3f}"


class Overlap(Struct, frozen=True):
    first: Interval
    second: Interval

    def __str__(self) -> str:
        both_s = min(self.first.end, self.second.end) - self.second.start
        return f"{self.first.name}: for {both_s:.3f} s both {self.first} and {self.second}"


class FenceFall(Struct, frozen=True):
    """The later of two intervals has a fence that is not higher."""

    earlier: Interval
    later: Interval

    def __str__(self) -> str:
        return f"{self.earlier.name}: the fence does not rise from {self.earlier} to {self.later}"


class Verdict(Struct, frozen=True):
    grants: int
    renewals: int
    checks: int
    overlaps: tuple[Overlap, ...]
    falls: tuple[FenceFall, ...]


def read_log(text: bytes) -> Iterator[Record]:
    """All records but the last, if its writer was killed before the end of the line."""
    return map(_records.decode, text.rpartition(b"\n")[0].splitlines())


def trusted_intervals(records: Iterable[Record]) -> list[Interval]:
    """The interval of each run that trusted its lease, ordered by start. Records of a run are in
    the order in which its holder wrote them."""
    runs: defaultdict[str, list[Record]] = defaultdict(list)
    for record in records:
        runs[record.run].append(record)
    found = (_interval(told) for told in runs.values())
    trusted = (interval for interval in found if interval.start < interval.end)
    return sorted(trusted, key=lambda interval: (interval.start, interval.fence))


def _interval(told: list[Record]) -> Interval:
    granted = told[0]
    if not isinstance(granted, Granted) or any(isinstance(one, Granted) for one in told[1:]):
        raise ValueError(f"run {granted.run} does not have one grant, at its beginning")
    promised = max(one.until for one in told if isinstance(one, Granted | Renewed))
    stopped = min((one.at for one in told if isinstance(one, Ended)), default=promised)
    passed = max((one.at for one in told if isinstance(one, Passed)), default=granted.at)
    end = max(min(promised, stopped), passed)
    return Interval(granted.name, granted.run, granted.fence, granted.asked, granted.at, end)


def judge(records: Iterable[Record], *, by_grants: bool = False) -> Verdict:
    records = list(records)
    names: defaultdict[str, list[Interval]] = defaultdict(list)
    for interval in trusted_intervals(records):
        names[interval.name].append(interval)
    return Verdict(
        grants=sum(isinstance(record, Granted) for record in records),
        renewals=sum(isinstance(record, Renewed) for record in records),
        checks=sum(isinstance(record, Passed) for record in records),
        overlaps=tuple(found for held in names.values() for found in _overlaps(held)),
        falls=tuple(found for held in names.values() for found in _falls(held, by_grants)),
    )


def _overlaps(held: list[Interval]) -> Iterator[Overlap]:
    """Every pair on one name; an interval may begin in the moment in which another ends."""
    going: list[Interval] = []
    for interval in held:
        going = [earlier for earlier in going if earlier.end > interval.start]
        yield from (Overlap(earlier, interval) for earlier in going)
        going.append(interval)


def _falls(held: list[Interval], by_grants: bool) -> Iterator[FenceFall]:
    """Each interval on one name whose fence is not above all fences before it."""
    for place, later in enumerate(held):
        before = [one for one in held[:place] if not by_grants or one.start <= later.asked]
        highest = max(before, key=lambda one: one.fence, default=later)
        if highest is not later and later.fence <= highest.fence:
            yield FenceFall(highest, later)
