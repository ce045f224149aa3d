"""One run, from its first file to its summary: `train` is the run."""

from __future__ import annotations

import errno
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from border_cli.checkpoints.contents import BEST
from border_cli.config.resolve import is_reproducible, threads
from border_cli.config.resource_checks import cores_for_actors
from border_cli.config.schema import TrainConfig
from border_cli.config.validate import first_opt_step_at
from border_cli.core.errors import (
    IncompatibleStateError,
    Interrupted,
    ResourceError,
    UsageError,
    first_line,
)
from border_cli.core.progress import RunResult, View
from border_cli.core.spaces import EnvSpec
from border_cli.display.output import output
from border_cli.display.text import banner, named_line, print_end_tables, print_lines, title
from border_cli.display.views import PlainView, ScreenView
from border_cli.run import build, factories
from border_cli.run.directory import Launch, log_to, shown, typed
from border_cli.run.resume import describe, unfit
from border_cli.run.summary import Resumed, RunFiles
from border_cli.runtime import seeding
from border_cli.runtime.child import OUTPUT_FILE, output_to
from border_cli.runtime.stopping import StopFlag, run_all
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

    Raises BorderError if the run failed, Interrupted if it was asked to stop; summary.json has both.
    """
    _prepare_process(config)
    with output() as out, _resource_errors():
        console, on_console = Console(), view is None and config.recorder.console != "none"
        if view is None and config.recorder.console == "screen":
            view = ScreenView(out, console, title(config), cores_for_actors(config))
        view = view or (PlainView(sys.stdout) if on_console else View())
        files = RunFiles(config, run_dir, launch, resumed)
        if resumed is None:
            files.start()
        with log_to(run_dir / "train.log", view.note), output_to(run_dir / OUTPUT_FILE):
            setup = build.RunSetup(
                config, spec, files, stop, view, resumed or Resumed(), user or factories.UserParts()
            )
            _announce(setup, launch, resumed, console if on_console else None, decided)
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
            following = ""  # what a person may want to type now
            if setup.user == factories.UserParts():
                if result.ended_by in ("sigint", "sigterm"):
                    following = f"border-train resume={typed(run_dir, config)}"
                elif (run_dir / BEST).exists():
                    following = f"border-eval {typed(run_dir, config, ('agent', 'env', 'plugins'))}"
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


def _announce(
    setup: build.RunSetup, launch: Launch, resumed: Resumed | None, console: Console | None, decided: str
) -> None:
    """Write the banner to the log and to a console, and to the log what is unusual about this machine."""
    config, spec, run_dir = setup.config, setup.spec, setup.files.run_dir
    source = "" if resumed is None else describe(config, resumed)
    replay_bytes = factories.buffer_bytes(config, spec)
    lines = banner(config, launch.typed, replay_bytes, shown(run_dir), source, decided)
    _log.info("%s", "\n".join([*map(named_line, lines), *factories.described_inputs(config, spec)]))
    if spec.left_out:
        _log.warning(
            "left out of the observations, because no agent takes it: %s; if the task needs it, a wrapper can turn it into "
            "a Box (env.wrappers=[module:name])",
            ", ".join(spec.left_out),
        )
    if console is not None:
        print_lines(console, *lines)


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
