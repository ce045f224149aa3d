"""`border-train -m`: compose the jobs, start or continue the sweep, run its jobs in slots, and sum up.

With another launcher or sweeper of Hydra (`hydra/launcher=submitit_slurm`, `hydra/sweeper=optuna`) the plugin runs the
jobs. A job resumes the run that its directory holds.
"""

from __future__ import annotations

import contextlib
import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from rich.console import Console

from border_cli.cli.best_preset import write_best
from border_cli.cli.compose import PRIMARY, Composed, Composer, hydra_section, translated
from border_cli.cli.overrides import check_interval, override_values, parse_overrides, quoted
from border_cli.cli.sweep_job import JobScore, SlotTask, SweepTask
from border_cli.config.schema import option
from border_cli.core.errors import BorderError, ExitCode, Interrupted, ResourceError, UsageError, first_line
from border_cli.core.format import counted
from border_cli.display.output import Output, output, write_line
from border_cli.display.text import print_lines
from border_cli.run.directory import (
    SWEEP_FILE,
    Launch,
    create_sweep,
    folder_error,
    locked,
    make_folder,
    shown,
)
from border_cli.runtime.child import Child, ChildError
from border_cli.runtime.machine import cpus
from border_cli.runtime.signals import StopFlag
from border_cli.sweeps import slots
from border_cli.sweeps.job_process import LocalExecutor
from border_cli.sweeps.jobs import DONE, FAILED, RETRY, Job, Sweep, job_argv, newest_sweep
from border_cli.sweeps.results import results, winners
from border_cli.sweeps.scheduler import Executor, JobQueue, Scheduler
from border_cli.sweeps.screen import make_sweep_view, print_sweep_tables

if TYPE_CHECKING:
    from border_cli.sweeps.ray_jobs import RaySettings


@dataclass(frozen=True)
class SweepSettings:
    """The settings `sweep.…` of the command."""

    slots: int | None = option(
        None, "jobs at a time; auto: as many as the machine takes", unit="jobs", ge=1, auto=True
    )
    retry: bool = option(False, "run failed jobs again")
    new: bool = option(False, "start a new sweep even if there is one of this command")


OWN_LAUNCHERS = ("border", "border_ray")
"""Of Hydra's launchers, those that run jobs with a `SweepRun`."""
_MEASURED_S = 600.0
"""How long it may take to measure what a job needs [s]."""


def run_sweep(composer: Composer, launch: Launch, settings: SweepSettings) -> int:
    """Run the jobs of a sweep, or continue it. Returns the first exit code that is not 0, or 0."""
    argv, sweeper = composer.argv(), launch.typed.get("hydra/sweeper", "basic")
    _check_words(launch, sweeper)
    composed, tuning = list[Composed](), None
    if sweeper == "basic":
        composed = [composer.compose(job) for job in _split(composer, argv)]
    elif sweeper == "border_optuna":
        from border_cli.cli.tune import read_tuning, tune

        tuning = read_tuning(composer, argv)
    samples = composed if tuning is None else [tuning.largest]
    choices = samples[0].choices if samples else composer.merge().hydra.runtime.choices
    launcher = choices["hydra/launcher"]
    _check_launcher(launcher, sweeper, samples)
    wanted = job_argv(launch.argv)
    folder = _folder(composer, launch, settings, wanted).absolute()
    continued = (folder / SWEEP_FILE).exists()
    with locked(folder), StopFlag() as stop, output() as out, contextlib.ExitStack() as held:
        sweep = Sweep.read(folder) if continued else Sweep(folder, wanted)
        run = SweepRun(sweep, composer, launch, settings, stop, out)
        held.callback(run.close)
        run.announce(continued)
        try:
            if tuning is not None:
                code = tune(run, tuning)
            elif composed and launcher in OWN_LAUNCHERS:
                run.run(composed)
            else:
                _multirun(composer, run, argv, composed, launcher)
        except Interrupted as e:
            stop.request(e.code)
        if tuning is None:
            code = run.finish()
    return code if stop.code is None else int(stop.code)


def _check_words(launch: Launch, sweeper: str) -> None:
    """Raise UsageError for words that have no meaning in a sweep."""
    if "true" in launch.typed.get("plan", "").lower():
        raise UsageError("plan=true shows one run, and --multirun starts several", allowed="one of them")
    for key in ("hydra/sweeper", "hydra/launcher"):
        if "," in launch.typed.get(key, ""):
            raise UsageError(f"{key}={launch.typed[key]}: a sweep has one", allowed=f"{key}=<one of them>")
    ignored = [key for key in launch.typed if key.startswith("hydra.sweeper.")]
    if ignored and sweeper == "basic":
        raise UsageError(
            f"{ignored[0]} has no effect without another sweeper",
            allowed="hydra/sweeper=border_optuna, for tuning, or the sweeper of a plugin",
        )


def _check_launcher(launcher: str, sweeper: str, samples: Sequence[Composed]) -> None:
    """Raise UsageError for a launcher that cannot run such jobs."""
    if sweeper == "border_optuna" and launcher not in OWN_LAUNCHERS:
        raise UsageError(
            f"hydra/launcher={launcher} does not run the trials of hydra/sweeper=border_optuna",
            allowed=OWN_LAUNCHERS,
        )
    if launcher == "border_ray":
        from border_cli.runtime.ray_cluster import import_ray

        import_ray("hydra/launcher=border_ray")
        for sample in samples:
            _ray_settings(sample)


def _split(composer: Composer, argv: Sequence[str]) -> list[list[str]]:
    """The overrides of each job, as Hydra's own sweeper makes them."""
    with translated():
        parsed = OverridesParser.create(composer.hydra.config_loader).parse_overrides(list(argv))
        for override in parsed:
            check_interval(override)
        (jobs,) = BasicSweeper.split_arguments(parsed, None)
    if not jobs:
        raise UsageError("the sweep has no jobs: one of its ranges is empty", allowed="range(<start>,<stop>)")
    return list(jobs)


def _folder(composer: Composer, launch: Launch, settings: SweepSettings, argv: Sequence[str]) -> Path:
    """The folder of the sweep: that of the newest one with these arguments, or a new one."""
    if "hydra.sweep.dir" not in launch.typed:
        newest = None if settings.new else newest_sweep(argv)
        return newest or create_sweep()
    folder = Path(str(composer.merge().hydra.sweep.dir))  # interpolations are resolved
    if (folder / SWEEP_FILE).exists() and (settings.new or Sweep.read(folder).argv != list(argv)):
        raise UsageError(
            f"{folder} holds a sweep", allowed="a folder without one, or the arguments of that sweep"
        )
    make_folder(folder)
    return folder


def _multirun(
    composer: Composer, run: SweepRun, argv: list[str], composed: Sequence[Composed], launcher: str
) -> None:
    """Let Hydra run the sweep with a sweeper or a launcher of a plugin."""
    run.add(composed)
    is_own = launcher in OWN_LAUNCHERS
    task = run if is_own else SweepTask(run.command.argv, composer.choices("preset"))
    folder = f"hydra.sweep.dir={quoted(str(run.sweep.folder))}"
    argv = [
        *(word for word in argv if not word.startswith("hydra.sweep.dir=")),
        folder,
        "hydra.mode=MULTIRUN",
    ]
    returned: Any = None
    try:
        # With a launcher of ours no job raises an error here, so what is raised is an error of Hydra itself.
        with translated() if is_own else contextlib.nullcontext():
            returned = composer.hydra.multirun(PRIMARY, task, argv)
    except Exception as e:
        if is_own or isinstance(e, BorderError):
            raise
        run.launcher_has_failed = True  # such as by a job whose time was over
        write_line(sys.stderr, f"error: hydra/launcher={launcher}: {type(e).__name__}: {first_line(e)}")
    finally:
        if isinstance(task, SweepTask):
            batches = returned if isinstance(returned, list) else []
            if not task.scores:  # elsewhere
                task.scores = [job.return_value for batch in batches for job in batch]
                for error in filter(None, (score.error for score in task.scores)):
                    write_line(sys.stderr, error)
            run.ran_elsewhere(task.scores)


def _ray_settings(composed: Composed) -> RaySettings:
    """What `hydra.launcher` says for this job. Raises UsageError."""
    from border_cli.sweeps.ray_jobs import RaySettings

    settings = hydra_section(RaySettings, composed.hydra_config, "launcher")
    settings.check_device(composed.config.device)
    return settings


@dataclass(eq=False)
class SweepRun:
    """One launch of a sweep, and what Hydra's launcher `border` runs the jobs with.

    configs: by number of the job · begun: the jobs of this launch.
    """

    sweep: Sweep
    composer: Composer
    command: Launch
    settings: SweepSettings
    stop: StopFlag
    out: Output
    configs: dict[int, Composed] = field(default_factory=dict)
    begun: list[Job] = field(default_factory=list)
    launcher_has_failed: bool = False
    retry_hint: str = RETRY
    executor: Executor | None = None

    @property
    def screen(self) -> str:
        """`recorder.console` of the command."""
        typed = self.command.typed
        return typed.get("recorder.console", "none" if typed.get("recorder") == "none" else "auto")

    @property
    def console(self) -> Console:
        """Where tables and lines go."""
        return Console(quiet=self.screen == "none")

    @property
    def continue_command(self) -> str:
        """The command that continues the sweep: the same again."""
        return shlex.join(["border-train", *(word for word in self.command.argv if word != "sweep.new=true")])

    def announce(self, continued: bool) -> None:
        """Say where the sweep is, and write its journal with what the runs have reached."""
        for job in self.sweep.jobs:
            job.refresh()
        self._save()
        self.say(f"{'continuing' if continued else 'sweep in'} {shown(self.sweep.folder)}")

    def add(self, configs: Sequence[Composed], first: int = 0) -> list[Job]:
        """The jobs of these configurations, numbered from `first`, with what earlier launches have made of them."""
        added = []
        for wanted, composed in enumerate(configs, first):
            number = self.sweep.numbered(wanted, composed.overrides)
            run_dir = composed.place_in_sweep(self.sweep.folder, number)
            self.configs[number] = composed
            added.append(self.sweep.add(number, composed.overrides, run_dir))
        self._save()
        return added

    def run(self, configs: Sequence[Composed], first: int = 0, n_jobs: int | None = None) -> list[Job]:
        """Run these jobs in slots, without those that are finished. Returns when they have ended.

        first: number of the first one · n_jobs: upper limit of the slots; by default the number of jobs that are left.
        """
        added = self.add(configs, first)
        ended = (DONE,) if self.settings.retry else (DONE, FAILED)
        kept = [job for job in added if job.state in ended]
        # by number: in another launch a sweeper may draw the same values twice
        left = list({job.number: job for job in added if job.state not in ended}.values())
        if kept:
            failed = sum(job.state == FAILED for job in kept)
            again = f", {failed} of them failed (sweep.retry=true runs those again)" if failed else ""
            self.say(f"{counted(len(kept), 'job')} of {len(added)} ended in an earlier launch{again}")
        if left and not self.stop():
            self.begun += left
            self.drive(JobQueue(left), self.configs[left[0].number], n_jobs or len(left))
        return added

    def drive(self, source: JobQueue, sample: Composed, n_jobs: int) -> None:
        """Run the jobs of a source. What one of them needs decides how many run at a time, `n_jobs` at most."""
        if self.executor is None:
            self.executor = self._make_executor(sample, n_jobs)
            if not self.stop():  # while it measured
                self.say(self.executor.description)
        view = make_sweep_view(self.out, self.sweep, f"sweep {shown(self.sweep.folder)}", self.screen)

        def task_of(job: Job) -> SlotTask:
            composed = self.configs[job.number]
            label = f"job {job.number} ({self.sweep.settings(job)}): "
            launch = Launch(self.command.argv, override_values(parse_overrides(job.overrides)))
            return SlotTask(composed.config, composed.hydra_config, launch, label)

        try:
            Scheduler(self.sweep, self.executor, task_of, view, self.stop).run(source)
        finally:
            view.close()

    def launch(self, batch: Sequence[Sequence[str]], first: int) -> list[tuple[Job, float]]:
        """Run the jobs that a sweeper of a plugin asks for, numbered from `first`. Each with its best score, or NaN."""
        composed = [self.composer.compose(overrides) for overrides in batch]
        jobs = self.run(composed, first, len(composed))  # later batches may have more left
        if self.stop.code is not None:  # the sweeper would go on
            raise Interrupted(self.stop.code)
        return [(job, math.nan if job.best is None else job.best) for job in jobs]

    def ran_elsewhere(self, scores: Sequence[JobScore]) -> None:
        """Note the jobs that another launcher has run."""
        self.retry_hint = "the same command runs failed jobs again"
        for job in self.sweep.jobs:
            job.refresh()
        for score in scores:
            number = self.sweep.numbered(score.number, score.overrides)
            job = self.sweep.add(number, score.overrides, score.run_dir)
            job.exit_code, job.error = score.exit_code, score.error.partition("\n")[0]
            if score.exit_code not in (ExitCode.DONE, ExitCode.SIGINT, ExitCode.SIGTERM):
                job.state = FAILED
            self.begun.append(job)
        self._save()

    def finish(self) -> int:
        """Print the tables, write the presets. The first exit code but 0 of this launch, or 0."""
        finished = results(self.sweep)
        # The sweeper of a plugin may have forgotten jobs of earlier launches.
        known = [result for result in winners(finished) if result.jobs[0].number in self.configs]
        presets = [self.write_preset(winner.jobs[0], winner.expect, winner.line.name) for winner in known]
        self._save()
        folder = shlex.quote(str(shown(self.sweep.folder)))
        unfinished = any(job.state not in (DONE, FAILED) for job in self.sweep.jobs)
        lines = [("best so far" if unfinished else "best", preset) for preset in presets]
        lines.append(("next", self.continue_command if unfinished else f"border-report {folder}"))
        if any(job.state == FAILED for job in self.sweep.jobs):
            lines.append(("", self.retry_hint))
        if not self.begun and not unfinished:
            lines.append(("", "all jobs of this sweep have ended; sweep.new=true starts a new one"))
        print_sweep_tables(self.console, self.sweep, finished)
        print_lines(self.console, *lines)
        otherwise = ExitCode.DEFECT if self.launcher_has_failed else ExitCode.DONE
        return next((job.exit_code for job in self.begun if job.exit_code), int(otherwise))

    def _make_executor(self, composed: Composed, n_jobs: int) -> Executor:
        """Decide where jobs run and how many at a time, by what one of this configuration needs."""
        if composed.choices["hydra/launcher"] == "border_ray":
            from border_cli.sweeps.ray_jobs import RayExecutor

            limit = None if self.settings.slots is None else min(self.settings.slots, n_jobs)
            sweep = self.sweep.folder, self.sweep.sweep_id
            return RayExecutor(_ray_settings(composed), limit, *sweep)
        config = composed.config
        if self.settings.slots is not None or n_jobs == 1:
            return slots.executor(min(self.settings.slots or 1, n_jobs), config.device)
        args = (config, self.sweep.folder, set(self.command.typed), max(1, cpus() // n_jobs))
        try:
            child = Child("job", slots.measure_need, args, trains=True)
            measured = child.answer(_MEASURED_S, self.stop.check)
        except (ChildError, ResourceError, TimeoutError) as e:
            return LocalExecutor(1, cpus(), reason=f"what a job needs could not be measured: {first_line(e)}")
        return slots.divide(measured, n_jobs)

    def close(self) -> None:
        """Leave where the jobs ran."""
        if self.executor is not None:
            self.executor.close()

    def write_preset(self, job: Job, expect: str, name: str) -> str:
        """Write the configuration of a job as a preset: see `write_best`."""
        return write_best(self.composer, self.configs[job.number], self.sweep.folder, expect, name)

    def _save(self) -> None:
        try:
            self.sweep.save()
        except OSError as e:
            raise folder_error(e, self.sweep.folder / SWEEP_FILE) from e

    def say(self, line: str) -> None:
        print_lines(self.console, ("", line))
