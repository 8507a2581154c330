"""The program `dibs`. Prints `--version` before any import, because shell prompts ask for it."""

import sys

# Commands that run for long, or run programs, which must not read the secrets of this process.
SHUT = {
    *("work", "listen", "keep", "hold", "loop", "follow", "sweep", "migrate", "demo", "simulate"),
    *("--exec", "--watch", "--wait", "doctor"),
}


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        from dibs._version import __version__

        print(f"dibs {__version__}")
        return
    words = (word.partition("=")[0] for word in sys.argv)
    if not SHUT.isdisjoint(words):  # first: until then every process of this user can read it
        from dibs.adapters.runners.warden import shut_process

        shut_process()
    import gc
    import os

    sys.excepthook = show_bug
    gc.disable()  # imports make no garbage; Context.connect and long commands enable it again
    try:
        from dibs.frontends.cli.main import run

        leave(run(sys.argv[1:]))
    except KeyboardInterrupt:  # during the imports: nothing was done that needs cleaning up
        os._exit(130)


def show_bug(_kind: object, error: BaseException, _trace: object) -> None:
    """Print the traceback of a bug, without secrets and control characters of a stranger's text."""
    import traceback

    from dibs.frontends.cli.output import tell, text_lines

    for line in text_lines("".join(traceback.format_exception(error))):
        tell(line)


def leave(code: int) -> None:
    """End the process with the exit code, without the interpreter's own teardown.

    The teardown frees memory that the kernel frees anyway, and takes as long as a bare start. If
    another thread is running, or buffered output cannot be written, the interpreter ends as usual.
    """
    import atexit
    import os
    import threading

    if threading.active_count() == 1:
        atexit._run_exitfuncs()  # noqa: SLF001 - as the interpreter does at its end
        try:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:  # None if the caller closed the descriptor
                    stream.flush()
        except (OSError, ValueError):
            sys.exit(code)
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
