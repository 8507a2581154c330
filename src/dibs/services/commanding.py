"""A command run under a lease that is no issue's: it is ended before the lease can be another's."""

import threading
from collections.abc import Mapping
from datetime import timedelta

from dibs.core.lease import Lost
from dibs.core.pipeline import Command
from dibs.ports.runner import Assignment, Exited, Runner, Stopped
from dibs.services.keeping import Keeper

_SLICE_S = 0.2


def run_kept(
    runner: Runner,
    keeper: Keeper,
    command: Command,
    environment: Mapping[str, str],
    *,
    stop: threading.Event,
    in_sight: bool = False,
    as_typed: bool = False,
) -> Exited | Stopped:
    """To its end: by itself, because the lease is lost, or because `stop` was set."""
    if not as_typed:  # then the shell says what is wrong, where it was typed
        runner.check(command)
    running = runner.start(
        Assignment(
            run=keeper.run,
            handler=command,
            stdin=b"",
            environment={
                "DIBS_RUN": keeper.run,
                "DIBS_FENCE": str(keeper.fence),
                **environment,
            },
            stop_within=min(timedelta(seconds=5), keeper.terms.margin * 0.8),
            in_sight=in_sight,
            as_typed=as_typed,
        ),
        keeper.trusted_until,
    )
    keeper.on_lost(running.stop)
    told = keeper.trusted_until
    slice_s = min(_SLICE_S, keeper.terms.ttl.total_seconds() / 10)
    while (end := running.poll(slice_s)) is None:
        if stop.is_set():
            running.stop("told to stop")
        if isinstance(keeper.condition, Lost):
            running.stop(keeper.condition.why)
        if keeper.trusted_until != told:
            told = keeper.trusted_until
            running.trust_until(told)
    return end
