"""`border-train -m`: Hydra's sweeper makes the jobs, its launcher runs them, and each is one training."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from pathlib import Path

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

from border_cli.cli.compose import PRIMARY, Composer, check_composed, translated
from border_cli.cli.errors import report
from border_cli.cli.overrides import override_values, parse_overrides, quoted
from border_cli.config.schema import TrainConfig
from border_cli.core.errors import ExitCode, UsageError
from border_cli.core.progress import SweepJob
from border_cli.runs.directory import Launch, create_sweep, exclusive, shown, write_config
from border_cli.runtime.signals import StopFlag

MAX_CHECKED_JOBS = 200
"""Jobs of the basic sweeper that are checked before the first one starts."""


def run_sweep(composer: Composer, launch: Launch) -> int:
    """Check the jobs of the basic sweeper, run all jobs, report each failure at once. The first exit code but 0, or 0."""
    from rich.console import Console

    from border_cli.display.stdout import nonblocking_stdout
    from border_cli.display.tables import print_sweep_table

    argv = composer.argv()
    if launch.typed.get("hydra/sweeper", "basic") == "basic":
        with translated():
            parsed = OverridesParser.create(composer.hydra.config_loader).parse_overrides(argv)
            (jobs,) = BasicSweeper.split_arguments(parsed, None)
        for job in itertools.islice(jobs, MAX_CHECKED_JOBS):
            _refuse_plan(composer.compose(job).config)
    if "hydra.sweep.dir" not in launch.typed:
        argv.append(f"hydra.sweep.dir={quoted(str(create_sweep()))}")
    task = SweepTask(launch.argv, composer.choices("preset"))
    with translated():  # errors of Hydra itself: no job raises one
        returned = composer.hydra.multirun(PRIMARY, task, [*argv, "hydra.mode=MULTIRUN"])
    scores = task.scores
    if not scores and isinstance(returned, list):  # the launcher ran the jobs in other processes
        scores = [job.return_value for batch in returned for job in batch]
    if any(score.is_shown for score in scores):
        with nonblocking_stdout():
            print_sweep_table(Console(), [score.job for score in scores])
    return next((score.job.exit_code for score in scores if score.job.exit_code), int(ExitCode.DONE))


def _refuse_plan(config: TrainConfig) -> None:
    if config.plan:
        raise UsageError("plan=true shows one run, and --multirun starts several\nallowed: one of them")


class JobScore(float):
    """The best score of a job as a number for the sweeper, NaN where the job failed, with its row of the table."""

    job: SweepJob
    is_shown: bool


@dataclass
class SweepTask:
    """What a launcher calls with each composed job, in this process or, pickled, in another one.

    argv: the command line of the sweep · presets: those that exist · scores: of the jobs that ran in this process.
    """

    argv: list[str]
    presets: list[str]
    scores: list[JobScore] = field(default_factory=list)

    def __call__(self, composed: DictConfig) -> float:
        """Train. Raises no Exception, so that the sweep continues."""
        state = HydraConfig.get()
        argv = list(state.overrides.task)
        settings = " ".join(arg.lstrip("+") for arg in argv)
        run_dir = Path(state.runtime.output_dir)
        debug, is_shown = False, False
        try:
            typed = override_values(parse_overrides(argv))
            config = check_composed(composed, state.runtime.choices, typed, self.presets)
            _refuse_plan(config)
            debug = config.debug
            is_shown = config.recorder.console != "none"
            code, value = _train(config, run_dir, Launch(self.argv, typed))
        except (Exception, SystemExit) as e:  # noqa: BLE001 - a failed job must not end the sweep
            code, value = report(e, debug, f"job {state.job.num} ({settings}): "), math.nan
        score = JobScore(value)
        score.job = SweepJob(state.job.num, settings, value, int(code), str(shown(run_dir)))
        score.is_shown = is_shown
        self.scores.append(score)
        return score


def _train(config: TrainConfig, run_dir: Path, launch: Launch) -> tuple[int, float]:
    from border_cli.preflight import preflight
    from border_cli.run import train

    with StopFlag() as stop:
        config, spec, decided = preflight(config, stop, run_dir, launch.typed)
        with exclusive(run_dir) as held:
            write_config(held, config)
            result = train(config, spec, held, launch, stop, decided=decided)
    return int(result.code), math.nan if result.best is None else result.best.mean
