"""How an AI agent works in this backlog: prime, and the section that init puts in AGENTS.md."""

import os
from pathlib import Path

from dibs.core.durations import describe_span
from dibs.core.errors import BadConfiguration
from dibs.core.pipeline import ApprovalGate, NoHandler, Pipeline, Stage
from dibs.frontends.cli.context import Context, command
from dibs.frontends.cli.output import Answer

BEGIN = "<!-- dibs: begin; `dibs init --agents-md` writes these lines -->"
END = "<!-- dibs: end -->"

_TEXT = """\
## How to work in this backlog

Several agents and people share these issues; dibs gives each issue one holder at a time.
Work only on an issue that you have claimed. Replace the words in capitals.
If DIBS_RUN is set, you hold the issue DIBS_ISSUE already, and dibs renews the lease: begin at 2.

1. Claim the next issue. The answer has its number, title, body, run and the next stages.
   `dibs claim --next --wait 10m --json`
   A certain issue: `dibs claim ISSUE --json`
2. Read the issue with its history: `dibs show ISSUE`
3. Renew the lease{every}, or it goes to another agent.
   `dibs heartbeat RUN`
   While a long command runs, dibs renews it: `dibs keep RUN -- COMMAND`
4. Put further work that you find into issues of its own: `dibs add "TITLE" --body "TEXT"`
5. End the lease in one of these ways.
   Done, moves on: `dibs release RUN --outcome advanced`
   Done, to another of its next stages: `dibs release RUN --outcome advanced --to STAGE`
   Not done, somebody else may try: `dibs release RUN --outcome returned --note "WHY"`
   Tried and failed: `dibs release RUN --outcome failed --note "WHY"`
   A person must decide or answer: `dibs release RUN --outcome parked --note "QUESTION"`

Exit codes: 3 nothing is ready; 4 another holds the issue; 6 a person or a rule keeps it back.
For 4 and 6, `dibs why ISSUE` shows the reason. Do not work around it.
Exit 5: the lease is lost. Stop, push and write nothing more, and claim again.
Exit 9: the command is not for agents, or not permitted. Leave it to a person.

Change files in a git worktree of your own; dibs finds this backlog from every worktree.
Do not edit stage labels, files in .dibs, or leases of other runs.

Stages:
{stages}
"""


@command("prime")
def prime_command(context: Context) -> Answer:
    """Print how an AI agent works in this backlog, with the exact commands.

    `dibs init --agents-md` puts the same text into AGENTS.md.
    """
    pipeline = context.settings.pipeline
    text = primer(pipeline)
    names = [stage.name for stage in pipeline.stages]
    return Answer({"text": text, "stages": names}, text.splitlines())


def primer(pipeline: Pipeline) -> str:
    """The text for an agent, with the stages and times of this pipeline."""
    worked = [stage for stage in pipeline.stages if not stage.final]
    spans = sorted({stage.terms.renew_every for stage in worked})
    every = f" at least every {describe_span(spans[0])}" if spans else ""
    return _TEXT.format(every=every, stages="\n".join(map(_about, pipeline.stages)))


def _about(stage: Stage) -> str:
    """A line on a stage: what happens to an issue there, and where it may move."""
    if stage.final:
        return f"- {stage.name}: the end"
    if isinstance(stage.gate, ApprovalGate):
        what = "waits until a person approves it"
    elif isinstance(stage.handler, NoHandler):
        what = "worked by hand"
    else:
        what = "worked by agents and by dibs work"
    return f"- {stage.name}: {what}; next: {' or '.join(stage.next)}"


def agents_file(folder: Path) -> Path:
    """AGENTS.md of the folder; CLAUDE.md if the folder has only that."""
    agents, claude = folder / "AGENTS.md", folder / "CLAUDE.md"
    return claude if claude.exists() and not agents.exists() else agents


def put_section(path: Path, text: str, *, dry_run: bool) -> str:
    """Put the text between the markers of the file, and keep all other lines.

    Returns the change: `write` for a new file, `add` for a new section, `update` or `keep`. Raises
    BadConfiguration, before any write, if the file or its markers cannot be read.
    """
    try:
        old = path.read_bytes().decode("utf-8") if path.exists() else None
    except ValueError as flaw:
        raise BadConfiguration(f"{path} is not UTF-8 text", hint=_LOOK) from flaw
    newline = "\r\n" if old is not None and "\r\n" in old else "\n"
    section = newline.join([BEGIN, *text.splitlines(), END])
    if old is None:
        new, change = section + newline, "write"
    elif BEGIN not in old and END not in old:
        before = old if not old or old.endswith("\n") else old + newline
        new, change = before + (newline if before else "") + section + newline, "add"
    else:
        before, _, rest = old.partition(BEGIN)
        _, found, after = rest.partition(END)
        if not found or BEGIN in rest or END in before + after:
            why = f"{path} must have {BEGIN!r} and {END!r} once each, in this order"
            raise BadConfiguration(why, hint=_LOOK)
        new = before + section + after
        change = "keep" if new == old else "update"
    if new != old and not dry_run:
        file = path.resolve()  # a link stays a link
        fresh = file.with_name(f".{file.name}.{os.getpid()}")
        try:
            fresh.write_bytes(new.encode())
            if file.exists():
                fresh.chmod(file.stat().st_mode)
            fresh.replace(file)
        finally:
            fresh.unlink(missing_ok=True)
    return change


_LOOK = "look at the file; it was not changed"
