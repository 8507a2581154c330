"""The program `dibs`. Answers `--version` before anything is imported: it is asked in prompts."""

import sys


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        from dibs._version import __version__

        print(f"dibs {__version__}")
        return
    from dibs.frontends.cli.main import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
