"""python -m tests.fuzz.engine TARGET [FLAG ...]: the process that the fuzzer takes over.

Instruments what it imports, hands one target to libFuzzer with libFuzzer's own flags, and never
returns. `python -m tests.fuzz` starts it, reads what it prints and says what came of it.
"""

import sys

import atheris

# The grammar is watched too: the program's own reader of references has no branches to see.
WATCHED = ("dibs", "tomllib", "tests")
NOT_WATCHED = ("tests.fuzz.targets", "tests.fuzz.properties")


def main() -> None:
    name, *flags = sys.argv[1:]
    with atheris.instrument_imports(include=WATCHED, exclude=NOT_WATCHED):
        from tests.fuzz.targets import TARGETS
    atheris.Setup([sys.argv[0], *flags], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
