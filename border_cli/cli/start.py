"""Start a run of a checked configuration, or resume one from its directory."""

from __future__ import annotations

import gc
from pathlib import Path

from border_cli.cli.command import tracebacks
from border_cli.cli.compose import Composed
from border_cli.config.resolve import changes, check_changes, inherit, reopen
from border_cli.config.schema import TrainConfig
from border_cli.config.validate import validate
from border_cli.core.progress import RunResult, View
from border_cli.display.output import output
from border_cli.run.directory import (
    RUNS,
    Launch,
    create_run,
    exclusive,
    locked,
    read_config,
    write_config,
)
from border_cli.runtime.signals import StopFlag


def start_run(composed: Composed, launch: Launch, view: View | None = None) -> RunResult:
    """Check environment and machine, make the run directory, train.

    What is refused before training raises BorderError and leaves no run directory. view: as in `border_cli.run.run.train`.
    """
    from border_cli.run.preflight import preflight  # not earlier: they import torch
    from border_cli.run.run import train

    with StopFlag() as stop, output():
        config, spec, decided = preflight(composed.config, stop, composed.run_dir or RUNS, launch.typed)
        end_imports()
        run_dir = composed.run_dir or create_run(composed.run_name)
        with exclusive(run_dir) as held:
            write_config(held, config)
            return composed.run_as_job(
                held, lambda: train(config, spec, held, launch, stop, decided=decided, view=view)
            )


def resume_run(
    run_dir: Path, stored: TrainConfig, config: TrainConfig, launch: Launch, view: View | None = None
) -> RunResult:
    """Continue a run. stored, config: its configuration, and the same with what changes. Raises BorderError."""
    from border_cli.checkpoints.contents import CHECKPOINTS
    from border_cli.checkpoints.store import list_steps
    from border_cli.run.preflight import preflight
    from border_cli.run.resume import check_spec, read_resumed
    from border_cli.run.run import train

    run_dir = run_dir.absolute()  # environments may change the working folder
    wanted = changes(stored, reopen(config))
    check_changes(stored, wanted)
    with tracebacks(config.debug), StopFlag() as stop, output(), locked(run_dir):
        resuming = bool(list_steps(run_dir / CHECKPOINTS))
        config, spec, decided = preflight(config, stop, run_dir, launch.typed, resuming=resuming)
        end_imports()
        resumed = read_resumed(run_dir, config, wanted)
        check_spec(resumed, spec)
        return train(config, spec, run_dir, launch, stop, resumed, decided=decided, view=view)


def continue_run(run_dir: Path, config: TrainConfig, launch: Launch, view: View | None = None) -> RunResult:
    """Resume a run with the configuration that its command composes now. Raises BorderError."""
    stored = reopen(read_config(run_dir))
    config = inherit(config, stored)
    validate(config)
    return resume_run(run_dir, stored, config, launch, view)


def end_imports() -> None:
    """Look for garbage again, if the command has stopped that for its imports; what they have made is never garbage."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
