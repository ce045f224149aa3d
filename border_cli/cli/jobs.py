"""Running jobs through Hydra: one, or those of a sweep. Hydra makes `.hydra/`; what a job is stands here."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from border_cli.cli import overrides
from border_cli.cli.compose import (
    HYDRA_VERSION_BASE,
    PRIMARY,
    Composed,
    checked,
    plain_job,
    register_resolvers,
)
from border_cli.cli.output import report, show
from border_cli.cli.translate import translated
from border_cli.config.paths import conf_dir
from border_cli.config.schema import TrainConfig
from border_cli.core.errors import ExitCode, UsageError
from border_cli.core.progress import SweptJob
from border_cli.core.spaces import EnvSpec
from border_cli.runs import directory
from border_cli.runtime.signals import StopFlag


def run_single(composed: Composed, words: Sequence[str], argv: Sequence[str], typed: dict[str, str]) -> int:
    """Judge the environment and the machine, make the run directory, train. The exit code.

    Raises BorderError for whatever is refused before training; then there is no run directory.
    """
    with StopFlag() as stop:
        return _run_single(composed, words, argv, typed, stop)


def _run_single(
    composed: Composed, words: Sequence[str], argv: Sequence[str], typed: dict[str, str], stop: StopFlag
) -> int:
    from border_cli.preflight import preflight  # not before the configuration is accepted: it imports much

    config, choices = composed.config, composed.choices
    spec = preflight(config, stop, composed.run_dir or directory.RUNS)
    name = directory.run_name(choices["agent"], choices["env"], config.env.name)
    launch = directory.Launch(list(argv), typed)
    run_dir = composed.run_dir or directory.create_run(name)
    code, failure = ExitCode.DONE, list[Exception]()

    def job(_: DictConfig) -> float:
        nonlocal code
        try:
            code, score = _train(config, spec, held, launch, stop)
        except (Exception, SystemExit) as e:  # noqa: BLE001 - Hydra would write a line of its own; it is raised below
            failure.append(_as_exception(e))
            return math.nan
        return score

    own = [word for word in words if not word.lstrip("+").startswith("hydra.run.dir=")]
    with directory.claimed(run_dir.absolute()) as held:  # hydra.job.chdir may leave this folder
        _call_hydra([*own, f"hydra.run.dir={overrides.quoted(str(held))}"], job)
    if failure:
        raise failure[0]
    return int(code)


def run_plan(composed: Composed, typed: dict[str, str]) -> int:
    """Judge the environment and the machine as a run does, measure, and show the plan. The exit code.

    Raises as `run_single` does; there is no run directory in any case.
    """
    from rich.console import Console

    from border_cli.preflight import preflight
    from border_cli.probe import make_plan
    from border_cli.recorders.banner import banner, line_width, preset_note
    from border_cli.recorders.plan_table import print_plan

    config, folder = composed.config, composed.run_dir or directory.RUNS
    with StopFlag() as stop:
        plan = make_plan(config, preflight(config, stop, folder), folder, stop)
    replay, note, console = plan.memory["replay"], preset_note(config), Console()
    width = line_width(console)
    show("\n".join(banner(config, typed, replay, plan.processes, plan.threads, note, None, width)))
    print_plan(console, plan)
    return int(ExitCode.DONE)


def run_sweep(words: Sequence[str], argv: Sequence[str], presets: Sequence[str]) -> int:
    """Run every job of a sweep in a folder of its own. The first exit code that is not 0, or 0.

    presets: those that exist. A job that fails is reported at once and the sweep goes on.
    """
    sweep = _Sweep(argv, presets)
    if not any(word.lstrip("+").startswith("hydra.sweep.dir=") for word in words):
        words = [*words, f"hydra.sweep.dir={overrides.quoted(str(directory.create_sweep()))}"]
    with translated():  # of Hydra itself: no job lets an error out
        _call_hydra(["--multirun", *words], sweep.job)
    _show(sweep.jobs if sweep.seen else [])
    return next((job.exit_code for job in sweep.jobs if job.exit_code), int(ExitCode.DONE))


def _show(jobs: Sequence[SweptJob]) -> None:
    """One table for all of them; none where another process ran them, as under some launchers."""
    from rich.console import Console

    from border_cli.recorders.queued import queued_stdout
    from border_cli.recorders.tables import print_sweep_table

    if jobs:
        with queued_stdout():
            print_sweep_table(Console(), jobs)


def refuse_plan(config: TrainConfig) -> None:
    """Raise UsageError for a job of a sweep that is to be planned instead of run."""
    if config.plan:
        raise UsageError("plan=true shows one run, and --multirun has many\nallowed: one of them")


def pass_to_hydra(argv: Sequence[str]) -> int:
    """Let Hydra answer what is its own: completion, its help, its view of things. The exit code."""
    register_resolvers()
    with translated():
        return _call_hydra(argv, _nothing_to_run)


class _Sweep:
    """What the jobs of one sweep share: how they were started, and how each of them ended."""

    def __init__(self, argv: Sequence[str], presets: Sequence[str]) -> None:
        self._argv = argv
        self._presets = presets
        self.jobs: list[SweptJob] = []
        self.seen = False  # whether any job shows anything at all

    def job(self, composed: DictConfig) -> float:
        """One job: its score for Hydra, NaN when it failed. Raises no Exception, so the sweep goes on."""
        state = HydraConfig.get()
        words = list(state.overrides.task)
        settings = " ".join(word.lstrip("+") for word in words)
        label = f"job {state.job.num} ({settings}): "
        debug = False
        try:
            typed = overrides.typed_values(overrides.parse_words(words))
            debug = typed.get("debug", "").lower() == "true"
            config = checked(plain_job(composed), state.runtime.choices, typed, self._presets)
            refuse_plan(config)
            self.seen |= config.recorder.console != "none"
            code, score = self._start(config, typed)
        except (Exception, SystemExit) as e:  # noqa: BLE001 - a failed job must not end the sweep; it is reported here
            code, score = report(_as_exception(e), debug, label), math.nan
        run_dir = directory.shown(Path(state.runtime.output_dir))
        self.jobs.append(SweptJob(state.job.num, settings, score, int(code), str(run_dir)))
        return score

    def _start(self, config: TrainConfig, typed: dict[str, str]) -> tuple[int, float]:
        from border_cli.preflight import preflight

        state = HydraConfig.get()
        launch = directory.Launch(list(self._argv), typed)
        run_dir = Path(state.runtime.output_dir)
        with StopFlag() as stop:
            spec = preflight(config, stop, run_dir)
            with directory.claimed(run_dir) as held:
                return _train(config, spec, held, launch, stop)


def _as_exception(error: Exception | SystemExit) -> Exception:
    """Code that calls `sys.exit` in the middle of a run is a defect, whatever number it gives."""
    if isinstance(error, Exception):
        return error
    defect = RuntimeError(f"SystemExit({error.code!r}) in the middle of the run")
    defect.__cause__ = error
    return defect


def _train(
    config: TrainConfig, spec: EnvSpec, run_dir: Path, launch: directory.Launch, stop: StopFlag
) -> tuple[ExitCode, float]:
    from border_cli.run import train

    directory.write_config(run_dir, config)
    result = train(config, spec, run_dir, launch, stop)
    return result.code, math.nan if result.score is None else result.score


def _call_hydra(argv: Sequence[str], job: Callable[[DictConfig], Any]) -> int:
    """Hydra's own entry point with these arguments; its way to leave becomes an exit code."""
    with _hydra_surroundings(argv):
        try:
            hydra.main(version_base=HYDRA_VERSION_BASE, config_path=str(conf_dir()), config_name=PRIMARY)(
                job
            )()
        except SystemExit as e:
            return e.code if isinstance(e.code, int) else int(e.code is not None)
    return int(ExitCode.DONE)


@contextmanager
def _hydra_surroundings(argv: Sequence[str]) -> Iterator[None]:
    """Hydra reads sys.argv, and lets exceptions through only when the environment asks for it."""
    before_argv, before_full = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [sys.argv[0], *argv]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = before_argv
        if before_full is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = before_full


def _nothing_to_run(_: DictConfig) -> None:
    """Hydra wants a task even where it only answers a question."""
