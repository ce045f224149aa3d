"""Tuning in the slots of a sweep: what `hydra/sweeper=border_optuna` means."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from border_cli.cli.compose import Composed, Composer, hydra_section
from border_cli.cli.search_space import Space, default_space, read_space
from border_cli.core.errors import ExitCode, UsageError
from border_cli.core.format import counted
from border_cli.display.text import print_lines
from border_cli.run.directory import folder_error, shown
from border_cli.sweeps.jobs import FAILED, RETRY, Job
from border_cli.sweeps.screen import print_tuning_tables
from border_cli.sweeps.study import STUDY_FILE, TuningSettings
from border_cli.sweeps.tuning import Tuner, prunes_from

if TYPE_CHECKING:
    from border_cli.cli.sweep import SweepRun


@dataclass(frozen=True)
class Tuning:
    """What is tuned and how.

    largest: a trial with the last or highest value of each key · prunes_from: the opt step from which on it may be pruned.
    """

    settings: TuningSettings
    space: Space
    largest: Composed
    prunes_from: int


def read_tuning(composer: Composer, argv: Sequence[str]) -> Tuning:
    """Read a tuning. Raises UsageError for one that cannot begin, before there is a folder for it."""
    merged = composer.merge()
    settings = hydra_section(TuningSettings, merged, "sweeper")
    name = settings.space or str(merged.hydra.runtime.choices["agent"])
    arguments = [word for word in argv if not word.startswith("hydra")]
    space = read_space(arguments, lambda: default_space(name))
    shares = 0.0, 1.0, 0.37  # the ends, and a number that is not whole
    _, largest, _ = (composer.compose(space.overrides(space.values(share), 0)) for share in shares)
    first = prunes_from(largest.config, settings)
    if not largest.config.recorder.jsonl:
        raise UsageError("tuning reads the evaluations of its runs", allowed="recorder.jsonl=true")
    return Tuning(settings, space, largest, first)


def tune(run: SweepRun, tuning: Tuning) -> int:
    """Run the trials, or those that are left. Prints the results and returns the exit code."""
    s, space = tuning.settings, tuning.space

    def make_job(params: Mapping[str, str], more_seed: int, label: str) -> Job:
        composed = run.composer.compose(space.overrides(params, more_seed))
        # Number 0 unless job 0 has other overrides: then that of the job with these, or the next free one.
        (job,) = run.add([composed])
        values = " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in params.items())
        job.label = f"{label}: {values}" + (f" seed={space.seed + more_seed}" if more_seed else "")
        return job

    how = make_job, run.say, tuning.prunes_from, run.settings.retry
    try:
        tuner = Tuner(run.sweep.folder, s, space.distributions, *how)
    except OSError as e:
        raise folder_error(e, run.sweep.folder) from e
    if not tuner.has_ended:
        run.say(_announcement(s, tuning.prunes_from))
        run.drive(tuner, tuning.largest, max(s.n_trials * s.seeds, s.top * s.top_seeds))
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
    if winner is not None:
        values = " ".join(f"{key}={value}" for key, value in winner.params.items())
        preset = run.write_preset(winner.jobs[0], tuner.expect(winner), f"trial {winner.number}: {values}")
        lines += [("best", preset), ("study", f"optuna-dashboard {folder}/{STUDY_FILE}")]
    elif not tuner.has_ended:
        lines.append(("next", run.continue_command))
    if any(job.state == FAILED for job in tuner.unfinished_jobs):
        lines.append(("", RETRY))
    print_tuning_tables(run.console, tuner)
    print_lines(run.console, *lines)
    if winner is not None:
        return int(ExitCode.DONE)
    # A trial that was pruned was stopped, too, but that is no failure. A trial with values that are not allowed has no job.
    otherwise = ExitCode.USAGE if tuner.has_ended else ExitCode.DONE
    return next((job.exit_code for job in tuner.unfinished_jobs if job.exit_code), int(otherwise))
