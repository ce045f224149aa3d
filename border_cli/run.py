"""One run, from its first file to its summary: `train` is the run."""

from __future__ import annotations

import errno
import logging
import shlex
import traceback
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from border_cli import build, parts
from border_cli.build import Context
from border_cli.checkpoints.contents import BEST
from border_cli.checkpoints.store import InvalidCheckpointError
from border_cli.config import plan
from border_cli.config.convert import to_plain
from border_cli.config.resuming import is_reproducible
from border_cli.config.schema import TrainConfig
from border_cli.core.errors import (
    ActorLostError,
    BorderError,
    ExitCode,
    Interrupted,
    ResourceError,
    UnfitStateError,
    UsageError,
    add_note,
)
from border_cli.core.protocols import Recorder
from border_cli.core.spaces import EnvSpec
from border_cli.preflight import preflight
from border_cli.recorders.banner import WIDTH, banner, line_width, preset_note, title
from border_cli.recorders.outlet import Outlet
from border_cli.recorders.queued import queued_stdout
from border_cli.recorders.tables import RunEnd, print_end_tables
from border_cli.recorders.tolerant import TolerantRecorder
from border_cli.runs import directory, provenance, trust
from border_cli.runs.directory import Launch
from border_cli.runs.logs import TOLD, log_to
from border_cli.runs.resume import Resumed, describe, unfit
from border_cli.runs.summary import SUMMARY_FILE, End, Summary, write_crash
from border_cli.runtime import resources
from border_cli.runtime.allocator import keep_freed_memory
from border_cli.runtime.signals import StopFlag, own_or
from border_cli.trainers.loop import Ending, TrainingLoop

_LACKS = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_log = logging.getLogger("border_cli")


@dataclass(frozen=True)
class JobResult:
    """How a job ended: the exit code, and the best score if there was an evaluation."""

    code: ExitCode
    score: float | None


def train(
    config: TrainConfig,
    spec: EnvSpec,
    run_dir: Path,
    launch: Launch,
    stop: StopFlag | None = None,
    resumed: Resumed | None = None,
    recorder: Recorder | None = None,
) -> JobResult:
    """The run. Raises BorderError when it failed and Interrupted when it was asked to stop; both are in summary.json.

    run_dir: with the configuration in it, and held by whoever calls this (`claimed`, or `locked` where a run goes on) ·
    resumed: what to go on from · recorder: one more.
    """
    import torch

    torch.set_num_threads(config.threads)
    keep_freed_memory()
    with own_or(stop) as flag, queued_stdout():
        try:
            return _Run(config, spec, run_dir, launch, flag, resumed, recorder).execute()
        except OSError as e:  # of the first files, before there is a run that could say how it ended
            error = _named(e)
            if error is e:
                raise
            raise error from e


def train_async(config: TrainConfig, run_dir: Path | str, recorder: Recorder | None = None) -> JobResult:
    """Train from Python: what `border-train` does with this configuration, in a directory of your own.

    trainer.type="sync" is possible too. config: for instance TrainConfig(agent=DqnConfig(),
    env=EnvConfig(id="CartPole-v1"), n_actors=4). Call it from under `if __name__ == "__main__":`, because actors are
    processes. recorder: gets every record beside the files, such as a `border_cli.BufferedRecorder`. Raises as `train`
    does.
    """
    from border_cli.config.checks import check
    from border_cli.config.convert import to_config, to_plain

    config = to_config(to_plain(config))  # each value against its declared type and range, as for the command
    check(config)
    if config.plan:
        raise UsageError("plan=true shows a plan, and train_async trains\nallowed: border-train … plan=true")
    spec = preflight(config, folder=Path(run_dir))
    launch = Launch([], command="train_async")
    with directory.claimed(Path(run_dir)) as path:
        directory.write_config(path, config)
        return train(config, spec, path, launch, recorder=recorder)


class _Run:
    """One run's lifetime: the files that describe it, its view, and the loop.

    Of a run that goes on nothing is changed, but for its log, before its state has turned out to fit.
    """

    def __init__(
        self,
        config: TrainConfig,
        spec: EnvSpec,
        run_dir: Path,
        launch: Launch,
        stop: StopFlag,
        resumed: Resumed | None,
        recorder: Recorder | None,
    ) -> None:
        self._config = config
        self._spec = spec
        self._dir = run_dir
        self._launch = launch
        self._stop = stop
        self._resumed = resumed or Resumed()
        self._goes_on = resumed is not None
        self._recorder = recorder
        self._summary: Summary | None = None
        if not self._goes_on:
            self._begin()
        self._loop: TrainingLoop | None = None
        self._files: list[TolerantRecorder] = []
        self._console = Console()
        self._view = build.make_view(config, self._console, title(config))

    def _begin(self) -> None:
        """Have the files say that this run is trained now, with this configuration."""
        if self._summary is not None:
            return
        config, launch, before = self._config, self._launch, self._resumed
        if self._goes_on:
            directory.write_config(self._dir, config)
        run_id = provenance.record_launch(self._dir, launch.argv, config.seed, launch.command)
        trust.remember(run_id, trust.code_of(config.plugins, config.env))
        saved = None if before.path is None else (before.opt_steps, before.seconds)
        exact = before.exact if is_reproducible(config) else None
        self._summary = Summary.start(self._dir, run_id, saved, exact, to_plain(config))

    def execute(self) -> JobResult:
        """Train, and say in summary.json how it ended, whatever happens."""
        view = self._view
        with log_to(self._dir / "train.log", view.note):
            try:
                ending = self._train()
            except BaseException as e:
                view.close()
                error = _named(e)
                self._failed(error)
                if error is e:
                    raise
                raise error from e
            view.close()
            _log.info("ended by %s: %s", ending.ended_by, self._counters())
        return self._done(ending)

    def _train(self) -> Ending:
        self._announce()
        context = self._context()
        with ExitStack() as closing:  # one that cannot be closed does not keep the other open
            self._files = build.make_files(context)
            recorder = build.make_recorder(self._files, self._view, self._recorder)
            closing.callback(recorder.close)
            agent, buffer = build.make_agent(context), parts.make_buffer(self._config, self._spec)
            evaluator = build.make_evaluator(context, agent)
            closing.callback(evaluator.close)
            self._loop = build.make_loop(context, agent, buffer, evaluator, recorder)
            self._loop.judging.best = self._resumed.best  # what is in best/ is not replaced by less
            try:
                return self._loop.run(self._resumed.state)
            except UnfitStateError as e:
                raise unfit(self._resumed.path or self._dir, e) from e

    def _context(self) -> Context:
        return Context(
            config=self._config,
            spec=self._spec,
            run_dir=self._dir,
            stop=self._stop,
            resumed=self._resumed,
            progress=build.make_progress(self._config),
            view=self._view,
            saved=self._saved,
            crashed=self._keep_crash,
            tick=self._tick,
            begun=self._begin,
        )

    def _saved(self, opt_steps: int) -> None:
        if self._loop is None or self._summary is None:
            return
        try:
            seconds = self._loop.parts.telemetry.seconds
            self._summary.saved(opt_steps, seconds, self._exact(self._loop))
        except OSError as e:  # the checkpoint is there, and it is what counts
            _log.warning("%s cannot be written: %s", self._dir / SUMMARY_FILE, e.strerror)

    def _announce(self) -> None:
        _log.info("%s", self._banner(WIDTH))
        self._log_limits()
        if self._config.recorder.console == "none":
            return
        outlet, text = Outlet(lambda: self._console.file), self._banner(line_width(self._console))
        outlet.attempt(
            lambda: self._console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)
        )

    def _banner(self, width: int) -> str:
        c = self._config
        lines = banner(
            c,
            self._launch.typed,
            parts.buffer_bytes(c, self._spec),
            plan.processes(c),
            plan.compute_threads(c),
            preset_note(c),
            directory.shown(self._dir),
            width,
            resumed=describe(c, self._resumed) if self._goes_on else "",
        )
        return "\n".join(lines)

    def _log_limits(self) -> None:
        """What is unusual about this machine for this run."""
        raised, cpus = resources.raised_descriptor_limit(), resources.cpus()
        if raised is not None:
            _log.info("the limit of file descriptors was raised from %d to %d", *raised)
        if self._config.threads > cpus:
            _log.warning(
                "threads=%d, and the learner may use %d CPUs: more threads than CPUs make an opt step slower",
                self._config.threads,
                cpus,
            )

    def _tick(self) -> None:
        if self._loop is not None:
            self._loop.tick()

    def _done(self, ending: Ending) -> JobResult:
        code = (
            self._stop.code if ending.ended_by == "signal" and self._stop.code is not None else ExitCode.DONE
        )
        ended_by = code.name.lower() if code else ending.ended_by
        if self._summary is not None:
            self._summary.finish(self._end(ended_by, code, None))
        self._tables(ended_by)
        if code:
            raise Interrupted(code)
        return JobResult(code, None if ending.best is None else ending.best.mean)

    def _failed(self, error: BaseException) -> None:
        code = error.code if isinstance(error, BorderError | Interrupted) else ExitCode.DEFECT
        ended_by = code.name.lower() if isinstance(error, Interrupted) else "error"
        try:
            if not isinstance(error, InvalidCheckpointError):
                self._begin()
            if self._summary is not None:
                self._summary.finish(self._end(ended_by, code, str(error)))
        except OSError as e:  # such as the full disk that ended the run: what ended it is what counts
            _log.error("%s: %s", e.filename or self._dir, e.strerror)
        told = not isinstance(error, ActorLostError) or not error.details or error.logged
        if isinstance(error, Exception) and (code == ExitCode.DEFECT or not told):
            self._keep_crash(error)
        # As text: whoever keeps log records must not keep the error, whose frames hold the run's memory.
        trace = traceback.format_exception(error) if code == ExitCode.DEFECT else []
        _log.error("the run failed: %s", "".join([f"{error}\n", *trace]).rstrip(), extra=TOLD)
        if isinstance(error, ActorLostError) and not told:
            _log.error("the actor's own traceback:\n%s", error.details, extra=TOLD)
        if self._loop is not None and self._loop.saving.saved_at:
            add_note(error, f"the state of opt step {self._loop.saving.saved_at} is kept: {self._resuming()}")

    def _keep_crash(self, error: Exception) -> None:
        """crash.json, as far as the disk lets us: a run that goes on must not end for it."""
        try:
            write_crash(self._dir, error)
        except OSError as e:
            _log.error("%s: %s", e.filename or self._dir, e.strerror)

    def _end(self, ended_by: str, code: ExitCode, error: str | None) -> End:
        loop = self._loop
        if loop is None:
            return End(ended_by, code, error)
        last, best = (
            None if e is None else (e.opt_steps, e.mean) for e in (loop.judging.last, loop.judging.best)
        )
        return End(
            ended_by,
            code,
            error,
            last,
            best,
            loop.parts.telemetry.seconds,
            self._counters(),
            loop.actors,
            exact=self._exact(loop),
            dropped={file.name: file.dropped for file in self._files if file.dropped},
        )

    def _exact(self, loop: TrainingLoop) -> bool | None:
        """Whether this is what an uninterrupted run would have given; None where no run can be repeated."""
        if not loop.reproducible:
            return None
        return self._resumed.exact and all(actor.exact for actor in loop.actors or loop.parts.source.stats())

    def _counters(self) -> dict[str, int]:
        if self._loop is None:
            return {}
        p = self._loop.parts
        return {
            "opt_steps": p.limiter.opt_steps,
            "env_steps": p.limiter.env_steps,
            "episodes": p.telemetry.episodes,
        }

    def _tables(self, ended_by: str) -> None:
        if self._loop is None or self._config.recorder.console == "none":
            return
        telemetry = self._loop.parts.telemetry
        share = telemetry.blocked_share if self._config.trainer.type == "async" else None
        print_end_tables(
            self._console,
            telemetry.progress,
            self._loop.actors,
            RunEnd(ended_by, share, self._next(ended_by)),
        )

    def _next(self, ended_by: str) -> str:
        """What a person may want to type after a run that ended so."""
        if ended_by in ("sigint", "sigterm"):
            return self._resuming()
        return f"border-eval {self._typed_path()}" if (self._dir / BEST).exists() else ""

    def _resuming(self) -> str:
        return f"border-train resume={self._typed_path()}"

    def _typed_path(self) -> str:
        return shlex.quote(str(directory.shown(self._dir)))


def _named(error: BaseException) -> BaseException:
    """An OSError that says what the machine lacks becomes a ResourceError; anything else stays what it is."""
    if isinstance(error, OSError) and error.errno in _LACKS:
        return ResourceError(f"{error.filename or 'a file of the run'}: {error.strerror}")
    return error
