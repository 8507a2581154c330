"""Which inputs are kept for each target: the corpus to start from, and all that ever failed."""

from pathlib import Path

HERE = Path(__file__).parent
NAMES = ("card", "reference", "configuration")
CORPUS, REGRESSIONS = "corpus", "regressions"


def inputs(target: str, *kinds: str) -> list[Path]:
    """The files of a target, in an order that is the same everywhere."""
    return [path for kind in kinds for path in sorted((HERE / kind / target).glob("*"))]
