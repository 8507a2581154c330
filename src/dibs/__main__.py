"""The program `dibs`. Answers `--version` before anything is imported: it is asked in prompts."""

import sys


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        from dibs._version import __version__

        print(f"dibs {__version__}")
        return
    import gc

    gc.set_threshold(50_000, 20, 20)  # of what a start makes, nothing is garbage
    from dibs.frontends.cli.main import run

    leave(run(sys.argv[1:]))


def leave(code: int) -> None:
    """End the process with this exit code, without taking the interpreter apart first.

    Taking it apart frees what the kernel frees anyway, and costs as much as a bare start. Where
    another thread is left, or output cannot be written, the interpreter's own way out is taken.
    """
    import atexit
    import os
    import threading

    if threading.active_count() == 1:
        atexit._run_exitfuncs()  # noqa: SLF001 - as the interpreter does at its end
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError):
            sys.exit(code)
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
