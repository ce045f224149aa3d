"""Start a run of a checked configuration, or resume one from its directory: of a command, or a job of a sweep."""

from __future__ import annotations

import gc
import io
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import fields
from pathlib import Path

from hydra._internal.callbacks import Callbacks
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.types import HydraContext
from omegaconf import DictConfig

from border_cli.cli.compose import Composed, check_composed
from border_cli.cli.entry import report_error
from border_cli.cli.overrides import override_values, parse_overrides, typed_names, with_values
from border_cli.config import registry, resolve
from border_cli.config.convert import to_config, to_plain
from border_cli.config.schema import GROUPS, TrainConfig
from border_cli.config.validate import check_effect, validate
from border_cli.core.errors import ExitCode, Interrupted, UsageError
from border_cli.core.progress import RunResult, View
from border_cli.display.output import output
from border_cli.run import directory
from border_cli.run.directory import RUNS, Launch, names_in
from border_cli.runtime.stopping import StopFlag
from border_cli.sweeps.local_jobs import JobEnd


def start_run(composed: Composed, launch: Launch, view: View | None = None) -> RunResult:
    """Check environment and machine, make the run directory, train.

    What is refused before training raises BorderError and leaves no run directory. view: as in `border_cli.run.run.train`.
    """
    from border_cli.run.preflight import preflight  # not earlier: they import torch
    from border_cli.run.run import train

    with StopFlag() as stop, output():
        config, spec, decided = preflight(composed.config, stop, composed.run_dir or RUNS, launch.typed)
        end_imports()
        run_dir = composed.run_dir or directory.create_run(composed.run_name)
        with directory.exclusive(run_dir) as held:
            directory.write_config(held, config)
            return composed.run_as_job(
                held, lambda: train(config, spec, held, launch, stop, decided=decided, view=view)
            )


def continue_run(run_dir: Path, config: TrainConfig, launch: Launch, view: View | None = None) -> RunResult:
    """Resume a run with the configuration that its command composes now. Raises BorderError."""
    stored = resolve.reopen(directory.read_config(run_dir))
    config = resolve.inherit(config, stored)
    validate(config)
    return resume_run(run_dir, stored, config, launch, view)


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
    wanted = resolve.changes(stored, resolve.reopen(config))
    resolve.check_changes(stored, wanted)
    with StopFlag() as stop, output(), directory.locked(run_dir):
        resuming = bool(list_steps(run_dir / CHECKPOINTS))
        config, spec, decided = preflight(config, stop, run_dir, launch.typed, resuming=resuming)
        end_imports()
        resumed = read_resumed(run_dir, config, wanted)
        check_spec(resumed, spec)
        return train(config, spec, run_dir, launch, stop, resumed, decided=decided, view=view)


def stored_config(
    run_dir: Path, overrides: Sequence[Override], trusted: bool
) -> tuple[TrainConfig, TrainConfig]:
    """The configuration of a run, and the same with the overrides, checked.

    Modules that the run names are imported only if they are typed too, or trusted; see `border_cli.run.directory`.
    """
    directory.check_plain(run_dir, trusted)
    data, names = directory.read_config_data(run_dir), typed_names(overrides)
    modules = names_in(data.get("plugins"))
    # before the rest is checked: they may define its keys
    directory.check_code({"plugins": modules}, names, trusted)
    registry.import_plugins([*modules, *names.get("plugins", ())])
    stored = resolve.reopen(to_config(data))
    typed = override_values(overrides)
    if groups := [key for key in typed if key in GROUPS]:
        raise UsageError(
            f"resume: {groups[0]}={typed[groups[0]]} chooses a group, and a stored run keeps its own",
            allowed=f"single values, such as {groups[0]}.<key>=<value>, or a new run with init_from=<run>",
        )
    changed = with_values(to_plain(stored), overrides, command="resume")
    for group, section in changed.items():
        if f"{group}.type" in typed and (entry := registry.find(group, section["type"])) is not None:
            known = {option.name for option in fields(entry.config)}  # which may lack keys of the stored type
            changed[group] = {k: v for k, v in section.items() if k in known or f"{group}.{k}" in typed}
    config, t = to_config(changed), stored.trainer
    if None in (t.max_opts, t.max_env_steps):  # if it has both, both were chosen
        config = resolve.with_typed_budget(config, typed)
    config = resolve.reopen_for_device(config, stored, typed)
    validate(config)
    check_effect(config, typed)
    directory.check_code(to_plain(config), names, trusted)
    return stored, config


def end_imports() -> None:
    """Look for garbage again, if the command has stopped that for its imports; what they have made is never garbage."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


stopped_by: Interrupted | None = None
"""What stopped a job of another launcher in this process, which then runs no more jobs."""


def train_job(
    argv: list[str],
    presets: Sequence[str],
    composed: DictConfig,
    view: View | None = None,
    run_dir: Path | None = None,
) -> JobEnd:
    """Train the run of a job, or resume it. Raises no Exception, so that the sweep continues.

    Args:
        argv: the command line of the sweep. presets: those that exist.
        composed: what Hydra composed of the job's overrides.
        view, run_dir: of the job in a slot. A launcher gives neither: there Hydra has set up its state for the job.
    """
    global stopped_by
    context, text = None, io.StringIO()
    try:
        if stopped_by is not None:
            raise stopped_by
        registry.import_installed_plugins()
        if run_dir is not None:
            HydraConfig.instance().set_config(composed)
            context = HydraContext(None, Callbacks(composed))
        state = HydraConfig.get()
        typed = override_values(parse_overrides(state.overrides.task))
        config = check_composed(composed, state.runtime.choices, typed, presets)
        launch = Launch(argv, typed)
        run_dir = run_dir or Path(state.runtime.output_dir)
        if (run_dir / directory.CONFIG_FILE).exists():
            continue_run(run_dir, config, launch, view)
        else:
            start_run(Composed(config, composed, context, run_dir), launch, view)
    except (Exception, Interrupted, KeyboardInterrupt, SystemExit) as e:  # noqa: BLE001 - it must not end the sweep
        if isinstance(e, Interrupted):
            stopped_by = e
        with redirect_stderr(text):
            code = report_error(e, argv)
        return JobEnd(code, text.getvalue().rstrip())
    return JobEnd(ExitCode.DONE)
