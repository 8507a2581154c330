"""The program `label-state`, also installed as `alfred-label-state`."""

import sys
from pathlib import Path

from dibs.label_state.program import NAMES, run


def main() -> None:
    called = Path(sys.argv[0]).stem
    sys.exit(run(sys.argv[1:], name=called if called in NAMES else NAMES[0]))


if __name__ == "__main__":
    main()
