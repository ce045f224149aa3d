"""Hydra's sweeper `border_optuna`: tuning in the slots of a sweep."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from border_cli.cli.space import Space, default_space, read_space
from border_cli.core.errors import ExitCode, UsageError
from border_cli.display.format import counted
from border_cli.display.tables import print_lines
from border_cli.runs.directory import folder_error, shown
from border_cli.sweeps.jobs import FAILED, RETRY, Job
from border_cli.sweeps.study import STUDY_FILE
from border_cli.sweeps.trials import TuningSettings, prunes_from
from border_cli.sweeps.tuning import Tuner
from border_cli.sweeps.views import print_tuning_tables

if TYPE_CHECKING:
    from border_cli.cli.compose import Composed, Composer
    from border_cli.cli.sweep import SweepRun


def check_tuning(composer: Composer, argv: Sequence[str]) -> Composed:
    """Raise UsageError for a tuning that cannot begin, before there is a folder for it. Returns one of its trials."""
    arguments = [word for word in argv if not word.startswith("hydra")]
    section = composer.merge().hydra
    settings = _settings({key: value for key, value in section.sweeper.items() if key != "_target_"})
    space = _space(composer, arguments, settings)
    for share in (0.0, 1.0, 0.37):  # the ends, and a number that is not whole
        trial = composer.compose(space.overrides(space.values(share), 0))
    prunes_from(trial.config, settings)
    if not trial.config.recorder.jsonl:
        raise UsageError("tuning reads the evaluations of its runs\nallowed: recorder.jsonl=true")
    return trial


def tune(run: SweepRun, arguments: Sequence[str], settings: Mapping[str, Any]) -> int:
    """Run the trials, or those that are left. Prints the results and returns the exit code."""
    checked = _settings(settings)
    space = _space(run.composer, arguments, checked)

    def make_job(params: Mapping[str, str], more_seed: int, label: str) -> Job:
        composed = run.composer.compose(space.overrides(params, more_seed))
        # Number 0 unless job 0 has other overrides: then that of the job with these, or the next free one.
        (job,) = run.add([(0, composed)])
        values = " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in params.items())
        job.label = f"{label}: {values}" + (f" seed={space.seed + more_seed}" if more_seed else "")
        return job

    largest = run.composer.compose(space.overrides(space.values(1.0), 0))
    first = prunes_from(largest.config, checked)
    try:
        tuner = Tuner(
            run.sweep.folder, checked, space.distributions, make_job, run.say, first, run.retries_failed
        )
    except OSError as e:
        raise folder_error(e, run.sweep.folder) from e
    if not tuner.has_ended:
        run.say(_announcement(checked, first))
        run.make_executor(largest, max(checked.n_trials * checked.seeds, checked.top * checked.top_seeds))
        run.drive(tuner)
    return _finish(run, tuner)


def _announcement(settings: TuningSettings, first: int) -> str:
    """What a tuning is going to do, one line. first: the opt step from which on trials may be pruned."""
    runs = f" of {counted(settings.seeds, 'run')} each" if settings.seeds > 1 else ""
    parts = [f"{counted(settings.n_trials, 'trial')}{runs}"]
    if settings.pruner != "none":
        parts.append(f"the worse ones are stopped from opt step {first:,} on (pruner={settings.pruner})")
    if settings.top:
        parts.append(
            f"the best {settings.top} confirmed by {counted(settings.top_seeds, 'run')} each on fresh seeds"
        )
    return "; ".join(parts)


def _finish(run: SweepRun, tuner: Tuner) -> int:
    winner, lines = tuner.winner, list[tuple[str, str]]()
    folder = shlex.quote(str(shown(run.sweep.folder)))
    if winner is not None and tuner.has_ended:
        job = next(job for job in run.sweep.jobs if job.number == winner.jobs[0])
        values = " ".join(f"{key}={value}" for key, value in winner.params.items())
        lines.append(
            ("best", run.write_preset(job, tuner.expect(winner), f"trial {winner.number}: {values}"))
        )
        lines.append(("study", f"optuna-dashboard {folder}/{STUDY_FILE}"))
    elif not tuner.has_ended:
        lines.append(("next", run.sweep.continue_command))
    if any(job.state == FAILED for job in tuner.unfinished_jobs):
        lines.append(("", RETRY))
    if run.console != "none":
        print_tuning_tables(Console(), tuner)
        print_lines(Console(), *lines)
    if winner is not None and tuner.has_ended:
        return int(ExitCode.DONE)
    # A trial that was pruned was stopped, too, but that is no failure. A trial with values that are not allowed has no job.
    otherwise = ExitCode.USAGE if tuner.has_ended else ExitCode.DONE
    return next((job.exit_code for job in tuner.unfinished_jobs if job.exit_code), int(otherwise))


def _settings(settings: Mapping[str, Any]) -> TuningSettings:
    try:
        return TuningSettings(**settings)
    except TypeError as e:
        raise UsageError(f"hydra.sweeper: {e}\nallowed: {', '.join(TuningSettings.__annotations__)}") from e


def _space(composer: Composer, arguments: Sequence[str], settings: TuningSettings) -> Space:
    name = settings.space or str(composer.merge().hydra.runtime.choices["agent"])
    return read_space(arguments, lambda: default_space(name))
