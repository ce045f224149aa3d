"""One run, from its first file to its summary: `train` is the run."""

from __future__ import annotations

import errno
import logging
import shlex
import shutil
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from border_cli.checkpoints.contents import BEST
from border_cli.checkpoints.store import InvalidCheckpointError
from border_cli.config import resources
from border_cli.config.convert import to_plain
from border_cli.config.resolve import is_reproducible, threads
from border_cli.config.schema import TrainConfig
from border_cli.config.validate import first_opt_step_at
from border_cli.core.errors import (
    ActorLostError,
    BorderError,
    ExitCode,
    IncompatibleStateError,
    Interrupted,
    ResourceError,
    UsageError,
    add_note,
    first_line,
)
from border_cli.core.format import number
from border_cli.core.progress import RunResult, View
from border_cli.core.spaces import EnvSpec
from border_cli.display import banner
from border_cli.display.advice import advice
from border_cli.display.output import output
from border_cli.display.tables import print_end_tables, print_lines
from border_cli.run import build, directory, factories, summary
from border_cli.run.directory import REPORTED, Launch, log_to
from border_cli.run.resume import Resumed, describe, unfit
from border_cli.run.summary import SUMMARY_FILE, Summary, write_crash
from border_cli.run.trust import code_names
from border_cli.runtime import machine, seeding
from border_cli.runtime.child import OUTPUT_FILE, output_to
from border_cli.runtime.files import run_all
from border_cli.runtime.signals import StopFlag
from border_cli.runtime.worker import keep_freed_memory
from border_cli.training.loop import TrainingLoop

_LACKS = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_log = logging.getLogger("border_cli")


def train(
    config: TrainConfig,
    spec: EnvSpec,
    run_dir: Path,
    launch: Launch,
    stop: StopFlag,
    resumed: Resumed | None = None,
    user: factories.UserParts | None = None,
    decided: str = "",
    view: View | None = None,
) -> RunResult:
    """Train one run in its directory.

    Args:
        spec: the environment's spaces, as `preflight` returns them.
        run_dir: a directory that this process holds exclusively and that has the configuration in it.
        launch: the command line, for provenance.json and the banner.
        decided: why numbers that were `auto` became what they are, for the banner.
        view: shows the run, in the place of the console. None: banner, view and tables as `recorder.console` has them.

    Raises:
        BorderError: the run failed. Interrupted: it was asked to stop. Both are in summary.json.
    """
    _prepare_process(config)
    with output() as out, _resource_errors():
        console, on_console = Console(), view is None and config.recorder.console != "none"
        view = view or build.make_view(config, out, console, banner.title(config))
        files = RunFiles(config, run_dir, launch, resumed)
        if resumed is None:
            files.start()
        with log_to(run_dir / "train.log", view.note), output_to(run_dir / OUTPUT_FILE):
            _announce(config, spec, run_dir, launch, resumed, console if on_console else None, decided)
            setup = build.RunSetup(
                config, spec, files, stop, view, resumed or Resumed(), user or factories.UserParts()
            )
            try:
                loop = _run_loop(setup)
            except BaseException as error:
                view.close()
                files.failed(error)
                raise
            view.close()
            result = files.finished(stop)
        if on_console and not result.opt_steps:
            print_lines(console, ("", "stopped before the first opt step: nothing was learned or saved"))
        elif on_console:
            is_from_python = setup.user != factories.UserParts()
            following = "" if is_from_python else _next_command(result, run_dir, config)
            print_end_tables(console, loop.parts.telemetry.progress, result, following)
    if result.code:
        raise Interrupted(result.code)
    return result


def _prepare_process(config: TrainConfig) -> None:
    """Set what is global in this process: threads, determinism on a GPU, and the seeds of global generators."""
    import torch

    from border_cli.runtime.tensors import repeat_bits_on_gpu  # imports torch

    torch.set_num_threads(threads(config))
    if config.device.startswith("cuda"):
        repeat_bits_on_gpu(is_reproducible(config))
    keep_freed_memory()
    # Environments in this process may draw from the global generators.
    seeding.seed_global_generators(config.seed, seeding.GLOBAL, 0)


def _run_loop(setup: build.RunSetup) -> TrainingLoop:
    """Make the loop and train until the run ends. Returns the loop, whose parts are closed."""
    files, resumed = setup.files, setup.resumed
    with _resource_errors():
        try:
            loop = files.loop = build.make_loop(setup)
            with loop:
                try:
                    loop.start(resumed.state, resumed.best)
                except IncompatibleStateError as e:
                    raise unfit(resumed.path or files.run_dir, e) from e
                files.start()
                loop.run()
        finally:  # unlike ExitStack, run_all keeps earlier errors as context of later ones
            run_all(setup.closing[::-1])
    limiter = loop.parts.limiter
    if limiter.opt_steps == 0 and loop.ended_by != "signal":
        raise UsageError(
            f"the run was ended by trainer.{loop.ended_by} before its first opt step: nothing was learned\n"
            f"the first opt step needs {first_opt_step_at(setup.config):,} env steps, "
            f"and {limiter.env_steps:,} were taken",
            allowed=f"a larger trainer.{loop.ended_by}, or a smaller trainer.warmup_period or agent.batch_size",
        )
    return loop


class RunFiles:
    """The files in which a run says what it is and how it ends: provenance.json, summary.json and crash.json.

    On resume, only the log is modified until the saved state has been loaded.
    """

    def __init__(self, config: TrainConfig, run_dir: Path, launch: Launch, resumed: Resumed | None) -> None:
        self.run_dir = run_dir
        self._config = config
        self._launch = launch
        self._resumed = resumed
        self._summary: Summary | None = None
        self.loop: TrainingLoop | None = None  # where totals and scores come from, once it is made

    def start(self) -> None:
        """Record this launch and write the summary with status "running", once."""
        if self._summary is not None:
            return
        config, launch, before = self._config, self._launch, self._resumed or Resumed()
        if self._resumed is not None:
            directory.write_config(self.run_dir, config)
            if before.path is None and (self.run_dir / BEST).exists():  # of a launch that saved no checkpoint
                shutil.rmtree(self.run_dir / BEST)
        run_id = summary.record_launch(self.run_dir, launch.argv, config.seed, launch.command)
        saved = None if before.path is None else (before.opt_steps, before.seconds)
        exact = before.exact if is_reproducible(config) else None
        self._summary = Summary(self.run_dir, run_id, saved, exact, to_plain(config))

    def saved(self, opt_steps: int) -> None:
        """A checkpoint was written. A summary that cannot be written is logged: the checkpoint counts."""
        if self.loop is None or self._summary is None:
            return
        try:
            self._summary.saved(opt_steps, self.loop.parts.telemetry.seconds, self._exact(self.loop))
        except OSError as e:
            _log.warning("%s cannot be written: %s", self.run_dir / SUMMARY_FILE, e.strerror)

    def crashed(self, error: Exception) -> None:
        """Write crash.json as far as the disk allows: an error here must not end a run that continues."""
        try:
            write_crash(self.run_dir, error)
        except OSError as e:
            _log.error("%s: %s", e.filename or self.run_dir, e.strerror)

    def finished(self, stop: StopFlag) -> RunResult:
        if self.loop is None or self._summary is None:
            raise AssertionError("a run that ended has a loop and a summary")
        interrupted = self.loop.ended_by == "signal" and stop.code is not None
        code = stop.code if interrupted and stop.code is not None else ExitCode.DONE
        result = self._result(code.name.lower() if interrupted else self.loop.ended_by, code, None)
        self._summary.finish(result)
        for line in filter(None, (result.bound, result.expected)):
            _log.info("%s", line)
        _log.info(
            "ended by %s: %d opt steps, %d env steps", result.ended_by, result.opt_steps, result.env_steps
        )
        return result

    def failed(self, error: BaseException) -> None:
        """Write how the run failed: summary.json, the log, and crash.json for a defect."""
        interrupted = isinstance(error, Interrupted)
        code = error.code if isinstance(error, BorderError | Interrupted) else ExitCode.DEFECT
        try:
            if self._knows_the_run() and not isinstance(error, InvalidCheckpointError):
                self.start()
            if self._summary is not None:
                ending = (code.name.lower(), code, None) if interrupted else ("error", code, str(error))
                self._summary.finish(self._result(*ending))
        except OSError as e:  # such as the full disk that ended the run; the first error counts
            _log.error("%s: %s", e.filename or self.run_dir, e.strerror)
        if interrupted:
            before = self._resumed
            kept = f"opt step {before.opt_steps} is kept" if before and before.path else "nothing is saved"
            _log.warning("stopped by %s before the first opt step: %s", code.name, kept)
            return
        reported = not isinstance(error, ActorLostError) or not error.details or error.logged
        if isinstance(error, Exception) and (code == ExitCode.DEFECT or not reported):
            self.crashed(error)
        # As text: a log handler must not keep the error, whose frames hold the memory of the run.
        trace = traceback.format_exception(error) if code == ExitCode.DEFECT or self._config.debug else []
        _log.error("the run failed: %s", "".join([f"{error}\n", *trace]).rstrip(), extra=REPORTED)
        if isinstance(error, ActorLostError) and not reported:
            _log.error("the actor's own traceback:\n%s", error.details, extra=REPORTED)
        if self.loop is not None and self.loop.parts.checkpoints.saved_at:
            kept = f"the state of opt step {self.loop.parts.checkpoints.saved_at} is saved"
            add_note(error, f"{kept}: border-train resume={_typed(self.run_dir, self._config)}")

    def _result(self, ended_by: str, code: ExitCode, error: str | None) -> RunResult:
        loop = self.loop
        if loop is None:
            return RunResult(ended_by, code, error)
        parts, best = loop.parts, loop.eval_manager.best
        limiter, telemetry = parts.limiter, parts.telemetry
        seconds, (actors_blocked, learner_blocked) = telemetry.seconds, telemetry.blocked
        whole = replace(
            telemetry.progress,
            phase="training",
            actors_blocked=actors_blocked,
            learner_blocked=learner_blocked,
        )
        return RunResult(
            ended_by,
            code,
            error,
            best=best,
            last=loop.eval_manager.last,
            best_confirmed=loop.eval_manager.confirmed,
            start=dict(telemetry.progress.evaluations).get(0),
            opt_steps=limiter.opt_steps,
            env_steps=limiter.env_steps,
            episodes=telemetry.episodes,
            seconds=seconds,
            samples_per_opt_step=limiter.ratio,
            actors=tuple(loop.actors),
            actors_blocked=actors_blocked,
            learner_blocked=learner_blocked,
            bound=advice(whole, resources.cores_for_actors(self._config)),
            expected=_expected(self._config, None if best is None else best.mean, limiter.env_steps),
            exact=self._exact(loop),
            dropped={
                recorder.name: recorder.dropped for recorder in parts.lossy_recorders if recorder.dropped
            },
        )

    def _knows_the_run(self) -> bool:
        """Whether a summary would be of the run: on resume, not before the saved state has been loaded."""
        saved = None if self._resumed is None else self._resumed.path
        return saved is None or (self.loop is not None and self.loop.parts.checkpoints.saved_at > 0)

    def _exact(self, loop: TrainingLoop) -> bool | None:
        """Whether this is what an uninterrupted run would have given; None where no run can be repeated."""
        if not loop.reproducible:
            return None
        before = self._resumed is None or self._resumed.exact
        return before and all(actor.exact for actor in loop.actors or loop.parts.source.stats())


def _expected(config: TrainConfig, best: float | None, env_steps: int) -> str:
    """What the preset promises, and whether the best model of the run reached it; empty for a run too short to tell."""
    promise = config.preset.expect_return
    if promise is None or best is None or config.evaluator.type not in ("inline", "process"):
        return ""
    if best < promise and env_steps < (config.preset.expect_env_steps or 0):
        return ""
    expect, verdict = config.preset.expect, "reached" if best >= promise else "not reached"
    if " about " in expect:  # figures of other projects; those of our own runs are lower limits
        verdict = verdict if best >= promise else "not reproduced"
        return f"published elsewhere: {expect}; {verdict} here, with {number(best)}"
    return f"{expect} by the preset {config.preset.name}: {verdict}, with {number(best)}"


def _announce(
    config: TrainConfig,
    spec: EnvSpec,
    run_dir: Path,
    launch: Launch,
    resumed: Resumed | None,
    console: Console | None,
    decided: str,
) -> None:
    """Write the banner to the log and to a console, and to the log what is unusual about this machine."""

    def text(width: int) -> str:
        lines = banner.banner(
            config,
            launch.typed,
            factories.buffer_bytes(config, spec),
            directory.shown(run_dir),
            width,
            resumed="" if resumed is None else describe(config, resumed),
            decided=decided,
        )
        return "\n".join(lines)

    _log.info("%s", "\n".join([text(banner.WIDTH), *factories.described_inputs(config, spec)]))
    if spec.left_out:
        _log.warning(
            "left out of the observations, because no agent takes it: %s; if the task needs it, a wrapper can turn it into "
            "a Box (env.wrappers=[module:name])",
            ", ".join(spec.left_out),
        )
    if (n_threads := threads(config)) > (cpus := machine.cpus()):
        _log.warning(
            "threads=%d, and the learner may use %d CPUs: more threads than CPUs make an opt step slower",
            n_threads,
            cpus,
        )
    if console is not None:
        shown = text(banner.line_width(console))
        console.print(shown, markup=False, emoji=False, highlight=False, soft_wrap=True)


def _next_command(result: RunResult, run_dir: Path, config: TrainConfig) -> str:
    """What a person may want to type after a run that ended so."""
    words = _typed(run_dir, config)
    if result.ended_by in ("sigint", "sigterm"):
        return f"border-train resume={words}"
    return f"border-eval {words}" if (run_dir / BEST).exists() else ""


def _typed(run_dir: Path, config: TrainConfig) -> str:
    """A run as it is typed, with what its use needs."""
    path = shlex.quote(str(directory.shown(run_dir)))
    return f"{path} trust=true" if code_names(to_plain(config)) else path


@contextmanager
def _resource_errors() -> Iterator[None]:
    """Turn an error that says what the machine or its GPU lacks into a ResourceError."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as e:
        raise ResourceError(
            first_line(e), allowed="buffer.device=cpu, a smaller batch or network, or device=cpu"
        ) from e
    except OSError as e:
        if e.errno not in _LACKS:
            raise
        raise ResourceError(f"{e.filename or 'a file of the run'}: {e.strerror}") from e
