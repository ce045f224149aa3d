"""One launch of a sweep: its jobs run in slots, on a Ray cluster or by a launcher of Hydra's plugins; tables, presets."""

from __future__ import annotations

import contextlib
import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hydra.core.plugins import Plugins
from rich.console import Console

from border_cli.cli import start
from border_cli.cli.compose import Composed, Composer, hydra_section
from border_cli.cli.overrides import quoted
from border_cli.config.convert import dotted, dump, to_plain
from border_cli.config.schema import option
from border_cli.core.errors import ExitCode, Interrupted, ResourceError, UsageError, first_line
from border_cli.core.format import counted, number
from border_cli.core.metrics import SCORE
from border_cli.display.output import Output, write_line
from border_cli.display.text import print_lines
from border_cli.report.runs import grouped, read_run
from border_cli.report.stats import Line, line
from border_cli.run.directory import Launch, env_slug, shown
from border_cli.runtime.child import Child, ChildError, call
from border_cli.runtime.machine import cpus
from border_cli.runtime.stopping import StopFlag
from border_cli.sweeps.job_table import make_sweep_view, print_sweep_tables
from border_cli.sweeps.jobs import DONE, FAILED, Job, Sweep
from border_cli.sweeps.local_jobs import JobEnd, LocalExecutor, Task, divide, measure_need
from border_cli.sweeps.ray_jobs import RayExecutor, RaySettings
from border_cli.sweeps.scheduler import Executor, JobQueue, Scheduler

_IN_PRESETS = ("agent", "env", "buffer", "actor_manager", "trainer", "evaluator", "n_actors")
_BESIDE_PRESETS = (
    *("agent.type", "env.type", "env.id", "env.entry_point"),
    *("trainer.type", "trainer.lockstep", "trainer.lockstep_steps"),
)
"""What is typed beside a preset: the groups, and how reproducible a run is."""
_ALSO_TYPED = ("plugins", "env.imports", "env.kwargs")
"""What is typed beside a preset, and may be in it too: without it there is no such environment."""


@dataclass(frozen=True)
class Result:
    """The finished runs of one configuration, without the seed. line: what reports say of them."""

    env: str
    jobs: Sequence[Job]
    line: Line

    @property
    def best(self) -> float:
        return -math.inf if self.line.best is None else self.line.best.value

    @property
    def expect(self) -> str:
        """What a run of this configuration should reach, for its preset."""
        return f"mean return of {number(self.best)} with the best models of {counted(len(self.jobs), 'run')}"


def results(sweep: Sweep) -> list[Result]:
    """A result for each configuration that has a run with scores, the best first within each environment."""
    done = [job for job in sweep.jobs if job.state == DONE and None not in (job.best, job.last)]
    by_path = {job.run_dir.resolve(): job for job in done}
    runs = []
    for path in by_path:
        with contextlib.suppress(UsageError):  # a file that cannot be read; the table of jobs has the run
            runs.append(read_run(path))
    groups = grouped([run for run in runs if SCORE in run.curves])
    every = [Result(group.env, [by_path[run.path] for run in group.runs], line(group)) for group in groups]
    envs = list(dict.fromkeys(result.env for result in every))
    return sorted(every, key=lambda result: (envs.index(result.env), -result.best))


def _beside_preset(composed: Composed) -> list[str]:
    """What is typed beside a preset with the values of this configuration."""
    env, words = composed.config.env, list[str]()
    for word in (override.lstrip("+") for override in composed.overrides):
        key = word.partition("=")[0]
        is_known = key in _BESIDE_PRESETS or f"{key}.type" in _BESIDE_PRESETS or key in _ALSO_TYPED
        if is_known or key.startswith("env.kwargs."):
            words.append(word)
    keys = {word.partition("=")[0] for word in words}
    # A group of the user's own, such as experiment=…, may have chosen agent and environment.
    chosen = [f"{group}={composed.choices[group]}" for group in ("agent", "env") if group not in keys]
    if composed.choices["env"] == "gym" and not keys & {"env.id", "env.entry_point"}:
        chosen.append(f"env.entry_point={env.entry_point}" if env.entry_point else f"env.id={env.id}")
    return chosen + words


@dataclass(frozen=True)
class SweepSettings:
    """The settings `sweep.…` of the command."""

    slots: int | None = option(
        None, "jobs at a time; auto: as many as the machine takes", unit="jobs", ge=1, auto=True
    )
    retry: bool = option(False, "run failed jobs again")
    new: bool = option(False, "start a new sweep even if there is one of this command")


OWN_LAUNCHERS = ("border", "border_ray")
"""Of Hydra's launchers, those whose jobs run in slots."""
_MEASURED_S = 600.0
"""How long it may take to measure what a job needs [s]."""


def ray_settings(composed: Composed) -> RaySettings:
    """What `hydra.launcher` says for this job. Raises UsageError, also for a GPU that it does not reserve."""
    settings, device = hydra_section(RaySettings, composed.hydra_config, "launcher"), composed.config.device
    if device.startswith("cuda") and "GPU" not in settings.need:
        raise UsageError(
            f"device={device} with hydra.launcher.gpus_per_job=0: Ray would hide the GPUs from the jobs",
            allowed="hydra.launcher.gpus_per_job=1, or a fraction of one, or device=cpu",
        )
    if device.startswith("cuda:"):
        raise UsageError(f"device={device}: Ray chooses the GPU of each job", allowed="device=cuda")
    return settings


@dataclass(eq=False)
class SweepRun:
    """One launch of a sweep.

    launcher: Hydra's option · configs: by number of the job · started: the jobs of this launch.
    """

    sweep: Sweep
    composer: Composer
    command: Launch
    settings: SweepSettings
    launcher: str
    stop: StopFlag
    out: Output
    configs: dict[int, Composed] = field(default_factory=dict)
    started: list[Job] = field(default_factory=list)
    launcher_has_failed: bool = False
    executor: Executor | None = None

    @property
    def screen(self) -> str:
        """`recorder.console` of the command."""
        typed = self.command.typed
        return typed.get("recorder.console", "none" if typed.get("recorder") == "none" else "auto")

    @property
    def console(self) -> Console:
        return Console(quiet=self.screen == "none")

    @property
    def continue_command(self) -> str:
        """The command that continues the sweep: the same again."""
        return shlex.join(["border-train", *(word for word in self.command.argv if word != "sweep.new=true")])

    def say(self, line: str) -> None:
        print_lines(self.console, ("", line))

    def announce(self, continued: bool) -> None:
        """Say where the sweep is, and write its journal with what the runs have reached."""
        for job in self.sweep.jobs:
            job.refresh()
        self.sweep.save()
        self.say(f"{'continuing' if continued else 'sweep in'} {shown(self.sweep.folder)}")

    def add(self, composed: Composed) -> Job:
        """The job of this configuration, with the state that earlier launches have left."""
        job = self.sweep.add(composed.overrides, lambda n: composed.place_in_sweep(self.sweep.folder, n))
        self.configs[job.number] = composed
        return job

    def run(self, configs: Sequence[Composed], n_jobs: int | None = None) -> list[Job]:
        """Run the jobs of these configurations, without those that are finished. Returns when they have ended.

        n_jobs: upper limit of the slots; by default the number of jobs that are left.
        """
        added = [self.add(composed) for composed in configs]
        self.sweep.save()
        ended = (DONE,) if self.settings.retry else (DONE, FAILED)
        kept = [job for job in added if job.state in ended]
        # by number: a sweeper may draw the same values twice
        left = list({job.number: job for job in added if job.state not in ended}.values())
        if kept:
            failed = sum(job.state == FAILED for job in kept)
            again = f", {failed} of them failed (sweep.retry=true runs those again)" if failed else ""
            self.say(f"{counted(len(kept), 'job')} of {len(added)} ended in an earlier launch{again}")
        if left and not self.stop():
            self.started += left
            if self.launcher in OWN_LAUNCHERS:
                self.drive(JobQueue(left), self.configs[left[0].number], n_jobs or len(left))
            else:
                self._run_elsewhere(left)
        return added

    def drive(self, source: JobQueue, sample: Composed, n_jobs: int) -> None:
        """Run the jobs of a source. The need of one of them decides how many run at a time, at most `n_jobs`."""
        if self.executor is None:
            self.executor = self._make_executor(sample, n_jobs)
            if not self.stop():  # while it measured
                self.say(self.executor.description)
        presets = self.composer.choices("preset")

        def task_of(job: Job) -> Task:
            return partial(start.train_job, self.command.argv, presets, self.configs[job.number].hydra_config)

        view = make_sweep_view(self.out, self.sweep, self.screen)
        try:
            Scheduler(self.sweep, self.executor, task_of, view, self.stop).run(source)
        finally:
            view.close()

    def _make_executor(self, composed: Composed, n_jobs: int) -> Executor:
        """Decide where jobs run and how many at a time, by the need of a job of this configuration."""
        if self.launcher == "border_ray":
            limit = None if self.settings.slots is None else min(self.settings.slots, n_jobs)
            return RayExecutor(ray_settings(composed), limit, self.sweep.folder, self.sweep.sweep_id)
        config = composed.config
        if self.settings.slots is not None or n_jobs == 1:
            return LocalExecutor(min(self.settings.slots or 1, n_jobs), config.device)
        args = (config, self.sweep.folder, set(self.command.typed), max(1, cpus() // n_jobs))
        try:
            child = Child("job", call, (measure_need, args), trains=True)
            need = child.answer(_MEASURED_S, self.stop.check)
        except (Interrupted, ChildError, ResourceError, TimeoutError) as e:
            failure = f"what a job needs could not be measured: {first_line(e)}"
            return LocalExecutor(1, reason="" if isinstance(e, Interrupted) else failure)
        return divide(need, config.device, n_jobs)

    def _run_elsewhere(self, jobs: Sequence[Job]) -> None:
        """Let the launcher of a plugin run these jobs, each in the directory that it has in the sweep."""
        sample = self.configs[jobs[0].number]
        task = partial(start.train_job, self.command.argv, self.composer.choices("preset"))
        of_sweep = f"hydra.sweep.dir={quoted(str(self.sweep.folder))}", "hydra.mode=MULTIRUN"
        overrides = [
            [*self.configs[job.number].overrides, *of_sweep, f"hydra.sweep.subdir={quoted(str(job.run_dir))}"]
            for job in jobs
        ]
        ends: list[JobEnd] = []
        start.stopped_by = None  # perhaps an earlier sweep of this process was stopped
        try:
            plugin = Plugins.instance().instantiate_launcher(sample.context, task, sample.hydra_config)
            ends = [returned.return_value for returned in plugin.launch(overrides, 0)]
        except Exception as e:  # noqa: BLE001 - such as that of submitit for a job whose time was over
            self.launcher_has_failed = True
            error = f"error: hydra/launcher={self.launcher}: {type(e).__name__}: {first_line(e)}"
            write_line(sys.stderr, error)
        for job in jobs:
            job.refresh()
        for job, end in zip(jobs, ends, strict=False):
            job.end(end.code, end.cause)
            if job.state == FAILED:
                write_line(sys.stderr, f"{self.sweep.title(job)}: {end.error}")
            if end.code in (ExitCode.SIGINT, ExitCode.SIGTERM):
                self.stop.request(ExitCode(end.code))
        self.sweep.save()

    def launch(self, batch: Sequence[Sequence[str]]) -> list[tuple[Job, float]]:
        """Run the jobs that a sweeper of a plugin asks for. Returns each with its best score, or NaN."""
        composed = [self.composer.compose(overrides) for overrides in batch]
        jobs = self.run(composed, len(composed))  # later batches may have more left
        if self.stop.code is not None:  # the sweeper would go on
            raise Interrupted(self.stop.code)
        return [(job, math.nan if job.best is None else job.best) for job in jobs]

    def finish(self) -> int:
        """Print the tables, write the presets. Returns the first exit code of this launch that is not 0, or 0."""
        every = results(self.sweep)
        best = dict[str, Result]()
        for result in every:
            best.setdefault(result.env, result)
        # The sweeper of a plugin may have forgotten jobs of earlier launches.
        known = [result for result in best.values() if result.jobs[0].number in self.configs]
        presets = [self.write_preset(result.jobs[0], result.expect, result.line.name) for result in known]
        self.sweep.save()
        folder = shlex.quote(str(shown(self.sweep.folder)))
        unfinished = any(job.state not in (DONE, FAILED) for job in self.sweep.jobs)
        lines = [("best so far" if unfinished else "best", preset) for preset in presets]
        lines.append(("next", self.continue_command if unfinished else f"border-report {folder}"))
        if any(job.state == FAILED for job in self.sweep.jobs):
            lines.append(("", "sweep.retry=true with the same command runs failed jobs again"))
        if not self.started and not unfinished:
            lines.append(("", "all jobs of this sweep have ended; sweep.new=true starts a new one"))
        print_sweep_tables(self.console, self.sweep, [result.line for result in every])
        print_lines(self.console, *lines)
        otherwise = ExitCode.DEFECT if self.launcher_has_failed else ExitCode.DONE
        return next((job.exit_code for job in self.started if job.exit_code), int(otherwise))

    def write_preset(self, job: Job, expect: str, name: str) -> str:
        """Write the configuration of a job as the best preset of its environment. Returns its command. Raises OSError.

        expect: what a run with the preset should reach · name: what distinguishes the configuration.
        """
        composed, folder = self.configs[job.number], shown(self.sweep.folder)
        config, words = composed.config, _beside_preset(composed)
        has_id = any(word.startswith(("env.id=", "env.entry_point=")) for word in words)
        slug = env_slug("gym" if has_id else composed.choices["env"], config.env.name)
        path = self.sweep.folder / "preset" / f"best_{slug}.yaml"
        folders = self.composer.words_for_folders(folder)
        command = shlex.join(["border-train", *folders, *words, f"preset={path.stem}"])
        usual = dotted(to_plain(self.composer.compose([*words, "preset=none"]).config))
        source = f"{folder}, {name}"
        preset: dict[str, Any] = {"preset": {"env_id": config.env.name, "expect": expect, "source": source}}
        for key, value in dotted(to_plain(config)).items():
            *sections, key_name = key.split(".")
            is_usual = key in usual and usual[key] == value
            if key.partition(".")[0] in _IN_PRESETS and key not in _BESIDE_PRESETS and not is_usual:
                place = preset
                for section in sections:
                    place = place.setdefault(section, {})
                place[key_name] = value
        head = "\n# ".join(["# @package _global_", *command.splitlines()])
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{head}\n{dump(preset)}", encoding="utf-8")
        return command

    def close(self) -> None:
        """Release the place where the jobs ran, such as a Ray cluster."""
        if self.executor is not None:
            self.executor.close()
