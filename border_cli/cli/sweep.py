"""`border-train -m`: compose the jobs, start or continue the sweep, run its jobs in slots, and sum up.

With another launcher or sweeper of Hydra (`hydra/launcher=submitit_slurm`, `hydra/sweeper=optuna`) the plugin runs the
jobs. Whoever runs a job, it resumes the run that its directory holds.
"""

from __future__ import annotations

import contextlib
import io
import math
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from hydra._internal.callbacks import Callbacks
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import HydraContext
from omegaconf import DictConfig
from rich.console import Console

from border_cli.cli.compose import PRIMARY, Composed, Composer, check_composed, translated
from border_cli.cli.errors import report
from border_cli.cli.overrides import override_values, parse_overrides, quoted
from border_cli.cli.start import resume_run, start_run
from border_cli.config import registry
from border_cli.config.resolve import inherit, reopen
from border_cli.config.resources import cpus
from border_cli.config.schema import TrainConfig
from border_cli.config.validate import validate
from border_cli.core.errors import ExitCode, Interrupted, UsageError
from border_cli.core.progress import View
from border_cli.display.format import counted
from border_cli.display.stdout import nonblocking_stdout
from border_cli.display.tables import print_lines
from border_cli.runs import trust
from border_cli.runs.directory import (
    CONFIG_FILE,
    SWEEP_FILE,
    Launch,
    create_sweep,
    folder_error,
    locked,
    make_folder,
    read_config,
    shown,
)
from border_cli.runs.resume import DONE
from border_cli.runs.summary import read_summary
from border_cli.runtime.signals import StopFlag
from border_cli.sweeps import slots
from border_cli.sweeps.jobs import FAILED, Job, Sweep, newest_sweep, words_of
from border_cli.sweeps.process import JobProcess, JobView
from border_cli.sweeps.results import Result, results, to_json, winners, write_preset
from border_cli.sweeps.scheduler import Scheduler, SweepView
from border_cli.sweeps.slots import Slots
from border_cli.sweeps.views import make_sweep_view, print_sweep_tables

_CHOICES = ("agent", "env", "env.id", "env.entry_point", "env.imports", "env.kwargs", "plugins")
"""What a person types beside the preset of a sweep's best configuration."""


@dataclass(frozen=True)
class SweepSettings:
    """The settings `sweep.…` of the command.

    slots: jobs at once; None: as many as the machine takes · retry: run failed jobs again · new: start a new sweep even if
    there is one of this command · folder: the sweep of `resume=<sweep>`.
    """

    slots: int | None = None
    retry: bool = False
    new: bool = False
    folder: Path | None = None

    @classmethod
    def read(cls, typed: Mapping[str, Any], folder: Path | None) -> SweepSettings:
        """From the settings that were typed, by name."""
        retry, new = (typed.get(name) == "true" for name in ("retry", "new"))
        return cls(typed.get("slots"), retry, new, folder)


SWEEP_SETTINGS = ("slots", "retry", "new")


def run_sweep(composer: Composer, launch: Launch, settings: SweepSettings) -> int:
    """Run the jobs of a sweep, or those that are left of it. The first exit code but 0, or 0."""
    argv = composer.argv()
    own_sweeper = launch.typed.get("hydra/sweeper", "basic") == "basic"
    composed = [composer.compose(job) for job in _split(composer, argv)] if own_sweeper else []
    for one in composed:
        _refuse_plan(one.config)
    words = words_of(launch.argv)
    folder, continued = _folder(launch, settings, words)
    with locked(folder), StopFlag() as stop, nonblocking_stdout():
        sweep = Sweep.read(folder) if continued else Sweep(folder, words)
        run = SweepRun(sweep, composer, launch, settings, stop)
        run.announce(continued)
        launcher = (
            composed[0].choices["hydra/launcher"]
            if composed
            else launch.typed.get("hydra/launcher", "border")
        )
        try:
            if own_sweeper and launcher == "border":
                run.run(list(enumerate(composed)))
            else:
                _multirun(composer, run, argv, composed, launcher)
        except Interrupted as e:
            stop.request(e.code)
        code = run.finish()
    return code if stop.code is None else int(stop.code)


def _split(composer: Composer, argv: Sequence[str]) -> list[list[str]]:
    """The overrides of each job, as Hydra's own sweeper makes them."""
    with translated():
        parsed = OverridesParser.create(composer.hydra.config_loader).parse_overrides(list(argv))
        (jobs,) = BasicSweeper.split_arguments(parsed, None)
    return list(jobs)


def _folder(launch: Launch, settings: SweepSettings, words: Sequence[str]) -> tuple[Path, bool]:
    """The folder of the sweep, and whether it is there already: that of the newest sweep of these words, or a new one."""
    if settings.folder is not None:
        return settings.folder, True
    typed = launch.typed.get("hydra.sweep.dir")
    if typed is not None:
        folder = Path(typed.strip("'\""))
        if (folder / SWEEP_FILE).exists():
            if settings.new or Sweep.read(folder).words != list(words):
                raise UsageError(f"{folder} holds another sweep\nallowed: a folder without one")
            return folder, True
        make_folder(folder)
        return folder, False
    newest = None if settings.new else newest_sweep(words)
    return (create_sweep(), False) if newest is None else (newest, True)


@dataclass(frozen=True)
class SlotTask:
    """What the process of a job does. config: checked · hydra_config: what it came from · label: for messages."""

    config: TrainConfig
    hydra_config: DictConfig
    run_dir: Path
    launch: Launch
    label: str

    def __call__(self, view: JobView) -> int:
        registry.import_installed_plugins()
        context = HydraContext(None, Callbacks(self.hydra_config))
        composed = Composed(self.config, self.hydra_config, context, self.run_dir)
        with _errors_to(view.fail, self.label) as ended:
            ended.debug = self.config.debug
            _train_or_resume(composed, self.launch, view)
        return ended.code


@dataclass(frozen=True)
class NeedTask:
    """Finds out what one job needs. overrides: the keys that were typed."""

    config: TrainConfig
    folder: Path
    overrides: Collection[str]

    def __call__(self, view: JobView) -> int:
        registry.import_installed_plugins()
        with _errors_to(view.fail, "") as ended:
            view.send(slots.measure_need(self.config, self.folder, self.overrides))
        return ended.code


class JobScore(float):
    """The best score of a job as a number for a sweeper, NaN where there is none, with what became of the job."""

    number: int
    overrides: tuple[str, ...]
    run_dir: Path
    exit_code: int
    error: str


@dataclass
class SweepTask:
    """What another launcher calls with each composed job, in this process or, pickled, in another one.

    argv: the command line of the sweep · presets: those that exist · scores: of the jobs that ran in this process.
    """

    argv: list[str]
    presets: list[str]
    scores: list[JobScore] = field(default_factory=list)

    def __call__(self, composed: DictConfig) -> float:
        """Train, or resume the run in the job's directory. Raises no Exception, so that the sweep continues."""
        registry.import_installed_plugins()
        state = HydraConfig.get()
        overrides = tuple(state.overrides.task)
        run_dir = Path(state.runtime.output_dir)
        label = f"job {state.job.num} ({' '.join(word.lstrip('+') for word in overrides)}): "
        with _errors_to(lambda _: None, label) as ended:
            typed = override_values(parse_overrides(overrides))
            config = check_composed(composed, state.runtime.choices, typed, self.presets)
            _refuse_plan(config)
            ended.debug = config.debug
            _train_or_resume(Composed(config, composed, None, run_dir), Launch(self.argv, typed))
        if ended.code in (ExitCode.SIGINT, ExitCode.SIGTERM):
            raise Interrupted(ExitCode(ended.code))
        mean = (read_summary(run_dir).get("best_score") or {}).get("mean")
        score = JobScore(math.nan if mean is None else mean)
        score.number, score.overrides, score.run_dir = state.job.num, overrides, run_dir
        score.exit_code, score.error = ended.code, ended.text.partition("\n")[0]
        self.scores.append(score)
        return score


def _train_or_resume(composed: Composed, launch: Launch, view: View | None = None) -> None:
    """Do what is left of the run in the directory of a job. Raises BorderError or Interrupted."""
    run_dir = composed.run_dir
    if run_dir is None or not (run_dir / CONFIG_FILE).exists():
        start_run(composed, launch, view)
    elif read_summary(run_dir).get("status") != DONE:
        stored = reopen(read_config(run_dir))
        config = inherit(composed.config, stored)
        validate(config)
        resume_run(run_dir, stored, config, launch, view)


@dataclass
class _End:
    """How a job ended: its exit code, and what an error had printed. debug: whether that has a traceback."""

    code: int = int(ExitCode.DONE)
    text: str = ""
    debug: bool = False


@contextmanager
def _errors_to(tell: Callable[[str], None], label: str) -> Iterator[_End]:
    """Turn what a job raises into an exit code; print errors on stderr, and tell them too."""
    end, text = _End(), io.StringIO()
    try:
        yield end
    except Interrupted as e:
        end.code = int(e.code)
    except KeyboardInterrupt:
        end.code = int(ExitCode.SIGINT)
    except (Exception, SystemExit) as e:  # noqa: BLE001 - a failed job must not end the sweep
        with redirect_stderr(text):
            end.code = report(e, end.debug, label)
        end.text = text.getvalue().rstrip()
        sys.stderr.write(f"{end.text}\n")
        sys.stderr.flush()
        tell(end.text)


def _refuse_plan(config: TrainConfig) -> None:
    if config.plan:
        raise UsageError("plan=true shows one run, and --multirun starts several\nallowed: one of them")


def _multirun(
    composer: Composer, run: SweepRun, argv: list[str], composed: Sequence[Composed], launcher: str
) -> None:
    """Let Hydra run the sweep with a sweeper or a launcher of a plugin."""
    run.add(list(enumerate(composed)))
    task: SweepRun | SweepTask = run
    if launcher != "border":
        task = SweepTask(run.argv, composer.choices("preset"))
    folder = f"hydra.sweep.dir={quoted(str(run.sweep.folder))}"
    argv = [
        *(word for word in argv if not word.startswith("hydra.sweep.dir=")),
        folder,
        "hydra.mode=MULTIRUN",
    ]
    returned: Any = None
    try:
        with translated():  # errors of Hydra itself: no job raises one
            returned = composer.hydra.multirun(PRIMARY, task, argv)
    finally:
        if isinstance(task, SweepTask):
            batches = returned if isinstance(returned, list) else []
            run.ran_elsewhere(task.scores or [job.return_value for batch in batches for job in batch])


class SweepRun:
    """One launch of a sweep, and what Hydra's launcher `border` runs the jobs with."""

    def __init__(
        self, sweep: Sweep, composer: Composer, launch: Launch, settings: SweepSettings, stop: StopFlag
    ) -> None:
        self.sweep = sweep
        self._composer = composer
        self.argv = launch.argv
        self._typed = launch.typed
        self._settings = settings
        self._stop = stop
        self._configs: dict[int, Composed] = {}
        self._begun: list[Job] = []  # in this launch
        self._slots: Slots | None = None
        self._view: SweepView | None = None
        quiet = launch.typed.get("recorder") == "none"
        self._console = launch.typed.get("recorder.console", "none" if quiet else "auto")

    def announce(self, continued: bool) -> None:
        """Say where the sweep is, and write sweep.json."""
        self._save()
        trust.remember(self.sweep.sweep_id, self.sweep.code)
        self._say(f"{'continuing' if continued else 'sweep in'} {shown(self.sweep.folder)}")

    def add(self, jobs: Sequence[tuple[int, Composed]]) -> list[Job]:
        """The jobs of these numbers and configurations, with what earlier launches have made of them."""
        added = []
        for number, composed in jobs:
            run_dir = composed.place_in_sweep(self.sweep.folder, number)
            self._configs[number] = composed
            added.append(self.sweep.add(number, composed.overrides, run_dir))
        self._save()
        return added

    def run(self, jobs: Sequence[tuple[int, Composed]]) -> list[Job]:
        """Run these jobs in slots, without those that are finished. Returns when they have ended."""
        added = self.add(jobs)
        left = [job for job in added if job.state != DONE and (job.state != FAILED or self._settings.retry)]
        kept = len(added) - len(left)
        if kept:
            failed = sum(job.state == FAILED for job in added) if not self._settings.retry else 0
            again = f", {failed} of them failed (sweep.retry=true runs those again)" if failed else ""
            self._say(f"{counted(kept, 'job')} of {len(added)} ended in an earlier launch{again}")
        if left and not self._stop():
            if self._slots is None:
                self._slots = self._find_slots(left)
                why = f": {self._slots.reason}" if self._slots.reason else ""
                self._say(
                    f"{counted(self._slots.count, 'job')} at a time, with {counted(self._slots.cpus, 'CPU')} each{why}"
                )
            self._begun += left
            view = make_sweep_view(self.sweep, f"sweep {shown(self.sweep.folder)}", self._console)
            try:
                Scheduler(self.sweep, self._slots, self._task_of, view, self._stop).run(left)
            finally:
                view.close()
        return added

    def launch(self, batch: Sequence[Sequence[str]], first: int) -> list[tuple[Job, float]]:
        """Run the jobs that a sweeper of a plugin asks for, numbered from `first`. Each with its best score, or NaN."""
        composed = [self._composer.compose(overrides) for overrides in batch]
        jobs = self.run(list(enumerate(composed, first)))
        return [(job, math.nan if job.best is None else job.best) for job in jobs]

    def __call__(self, composed: DictConfig) -> float:
        """What Hydra calls a task; its launcher `border` calls `launch` instead."""
        raise NotImplementedError

    def ran_elsewhere(self, scores: Sequence[JobScore]) -> None:
        """Note the jobs that another launcher has run."""
        for score in scores:
            job = self.sweep.add(score.number, score.overrides, score.run_dir)
            job.exit_code, job.error = score.exit_code, score.error
            job.state = FAILED if score.exit_code else job.state
            self._begun.append(job)
        for job in self.sweep.jobs:
            job.refresh()
        self._save()

    def finish(self) -> int:
        """Print the tables, write the presets. The first exit code but 0 of this launch, or 0."""
        found = results(self.sweep)
        self.sweep.configurations = to_json(found)
        presets = [self._write_preset(winner) for winner in winners(found)]
        self._save()
        if self._console != "none":
            folder = shlex.quote(str(shown(self.sweep.folder)))
            unfinished = any(job.state not in (DONE, FAILED) for job in self.sweep.jobs)
            lines = [("best", preset) for preset in presets if preset]
            lines.append(
                ("next", f"border-train -m resume={folder}" if unfinished else f"border-report {folder}")
            )
            if not self._begun and not unfinished:
                lines.append(
                    (
                        "",
                        "all jobs of this sweep have ended; sweep.new=true starts a new one of the same words",
                    )
                )
            print_sweep_tables(Console(), self.sweep, found)
            print_lines(Console(), *lines)
        return next((job.exit_code for job in self._begun if job.exit_code), int(ExitCode.DONE))

    def _find_slots(self, jobs: Sequence[Job]) -> Slots:
        config = self._configs[jobs[0].number].config
        on_gpu = config.device.startswith("cuda")
        if self._settings.slots is not None or len(jobs) == 1:
            return slots.given(self._settings.slots or 1, len(jobs), on_gpu)
        task = NeedTask(config, self.sweep.folder, set(self._typed))
        process = JobProcess(task, None, max(1, cpus() // len(jobs)))
        with contextlib.closing(process):
            while process.exit_code is None and not self._stop():
                wait([process.sentinel], 0.1)
            process.receive()
        if process.result is None:
            why = process.error.cause or "its process was stopped"
            return Slots(1, cpus(), (), f"what a job needs could not be measured: {why}")
        return slots.divide(process.result, len(jobs))

    def _task_of(self, job: Job) -> SlotTask:
        composed = self._configs[job.number]
        label = f"job {job.number} ({self.sweep.settings(job)}): "
        launch = Launch(self.argv, override_values(parse_overrides(job.overrides)))
        return SlotTask(composed.config, composed.hydra_config, job.run_dir, launch, label)

    def _write_preset(self, winner: Result) -> str:
        """Write the best configuration of an environment as a preset. How to use it, empty where it cannot be written."""
        composed = self._configs.get(winner.jobs[0].number)
        if composed is None:  # the plugin has composed it
            return ""
        words = [
            word
            for word in composed.overrides
            if word.lstrip("+").partition("=")[0] in _CHOICES or "env.kwargs." in word
        ]
        path = self.sweep.folder / f"best_{composed.run_name.partition('_')[2]}.yaml"
        base = self._composer.compose([*words, "preset=none"]).config
        source = f"{shown(self.sweep.folder)}, {winner.name}"
        try:
            write_preset(path, composed.config, base, winner, source)
        except OSError as e:
            raise folder_error(e, path) from e
        return " ".join(
            [
                "border-train",
                *(shlex.quote(word.lstrip("+")) for word in words),
                f"preset={shlex.quote(str(shown(path)))}",
            ]
        )

    def _save(self) -> None:
        try:
            self.sweep.save()
        except OSError as e:
            raise folder_error(e, self.sweep.folder / SWEEP_FILE) from e

    def _say(self, line: str) -> None:
        if self._console != "none":
            print_lines(Console(), ("", line))
