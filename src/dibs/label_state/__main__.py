"""The program `label-state`."""

import sys

from dibs.label_state.program import run


def main() -> None:
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
