"""Every seed that ever failed, and what it taught.

Seeds are replayed for ever, but a change to the protocol changes what a seed plays. So each lesson
also has a test that sets the scene by hand, in tests/services/test_late_wakers.py.
"""

from typing import NamedTuple


class Regression(NamedTuple):
    scenario: str
    seed: int
    taught: str


REGRESSIONS = (
    Regression(
        "no lag",
        62,
        "`claimed` is no sign that an ending is painted: a sweep that slept took it off, and the "
        "finished stage was run again (ADR 0012)",
    ),
    Regression("no lag", 80, "the same, with two sweepers that slept"),
    Regression("operator revokes", 16, "the same, after a revoke"),
    Regression("operator revokes", 18, "the same, after a revoke"),
    Regression("network trouble", 45, "the same, after a lost reply"),
    Regression(
        "network trouble (atomic store)",
        2,
        "an unpainted ending on an issue without any comment was refused to every bidder for ever: "
        "whoever is refused over one paints it",
    ),
    Regression("network trouble (atomic store)", 10, "the same"),
    Regression(
        "no lag",
        184,
        "a painter that slept left the working label on an issue without `claimed`, where no sweep "
        "looked: sweeps look at working labels too",
    ),
    Regression(
        "a bot writes labels back",
        5,
        "a bot that wrote back a whole set in the middle of the painting left no stage: painting "
        "looks again before it lets go",
    ),
    Regression("a bot writes labels back", 27, "the same, with both stages left"),
    Regression(
        "cards edited and deleted (atomic store)",
        64,
        "a card that was deleted during the painting ended the worker with NoSuchComment",
    ),
    Regression(
        "reads lag 5 s in order, settle 0",
        5050,
        "a reading that lagged behind the holder's own decision was taken as painted, and a bidder "
        "that had just painted an ending took the issue on the next reading",
    ),
    Regression(
        "a bot writes labels back",
        100_437,
        "a painter that slept took off the stage that somebody had put back, and it had none",
    ),
    Regression(
        "network trouble and lag (atomic store)",
        5058,
        "the simulator took a half-painted issue for one at rest: its own mistake",
    ),
    Regression(
        "three stages",
        42,
        "a painter that slept put an old stage label on an issue that had moved on, and that "
        "counted as a person's word: the finished stage ran again",
    ),
    Regression(
        "four stages, 4 workers, slow replies and lag",
        181,
        "a painter that finds it was late must put right what it wrote itself, seen or not",
    ),
    Regression(
        "four stages, 4 workers, slow replies and lag (atomic store)",
        9040,
        "a holder whose own card was hidden by a lagging reading never ended it",
    ),
    Regression(
        "network trouble",
        20_047,
        "a bid whose reply was lost may stand twice: only the lease's own card tells if it ended",
    ),
    Regression(
        "4 issues, 5 workers, everything",
        500_351,
        "a person whose reply was lost has put the issue back all the same: the checker's mistake",
    ),
    Regression("cards edited and deleted", 37, "the stray working label again"),
    Regression(
        "network trouble (one trip)",
        1059,
        "an ending that was given up on landed in time; sent again, it landed late, and the late "
        "one undid the first: whatever is under way is waited for before it is sent again",
    ),
    Regression(
        "three stages (one trip) (atomic store)",
        1348,
        "a painter that slept wrote the card that another painter had written, and could not tell: "
        "the store is asked once more after a trip",
    ),
    Regression("three stages (one trip) (atomic store)", 1447, "the same"),
    Regression(
        "writes that were given up on come later",
        233,
        "a renewal that was given up on landed after the ending, and erased it",
    ),
    Regression(
        "4 issues, 5 workers, everything (one trip) (no bound) (atomic store)",
        1017,
        "a painter's reply shows what it wrote, other readings do so up to settle later: the store "
        "granted meanwhile, and a finished stage was run again",
    ),
    Regression(
        "4 issues, 5 workers, everything (one trip) (atomic store)", 1248, "the same, of a sweeper"
    ),
    Regression(
        "four stages, 4 workers, slow replies and lag (one trip) (no bound) (atomic store)",
        1087,
        "the same",
    ),
    Regression(
        "four stages, 4 workers, slow replies and lag (one trip) (atomic store)", 1438, "the same"
    ),
    Regression("network trouble and lag (one trip) (no bound) (atomic store)", 1075, "the same"),
    Regression(
        "pages are missing (one trip) (no bound) (atomic store)",
        1295,
        "the page with the card was missing, so the ending was painted without it; the card still "
        "said held, and a second painter put the stage back that was finished",
    ),
    Regression(
        "pages are missing (one trip) (no bound) (atomic store)",
        1137,
        "a painter without any card to go by took off the only stage",
    ),
    Regression("pages are missing (one trip) (atomic store)", 1455, "the same"),
    Regression("network trouble (one trip) (atomic store)", 50_075, "the same"),
    Regression(
        "people at the labels (one trip)",
        50_017,
        "an issue that a bid had found paused was left alone for five minutes, resumed or not",
    ),
)
