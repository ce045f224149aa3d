"""What trains a job of a sweep: in its own process, or wherever a launcher of Hydra's plugins calls it.

A job resumes the run that its directory holds.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import redirect_stderr
from pathlib import Path

from hydra._internal.callbacks import Callbacks
from hydra.core.hydra_config import HydraConfig
from hydra.types import HydraContext
from omegaconf import DictConfig

from border_cli.cli.command import report
from border_cli.cli.compose import Composed, check_composed
from border_cli.cli.overrides import override_values, parse_overrides
from border_cli.cli.start import continue_run, start_run
from border_cli.config import registry
from border_cli.core.errors import ExitCode, Interrupted
from border_cli.core.progress import View
from border_cli.run.directory import CONFIG_FILE, Launch
from border_cli.sweeps.local_jobs import JobEnd

stopped_by: Interrupted | None = None
"""What stopped a job of another launcher in this process, which then runs no more jobs."""


def train_job(
    argv: list[str],
    presets: Sequence[str],
    composed: DictConfig,
    view: View | None = None,
    run_dir: Path | None = None,
) -> JobEnd:
    """Train the run of a job, or resume it. Raises no Exception, so that the sweep continues.

    Args:
        argv: the command line of the sweep. presets: those that exist.
        composed: what Hydra composed of the job's overrides.
        view, run_dir: of the job in a slot. A launcher gives neither: there Hydra has set up its state for the job.
    """
    global stopped_by
    context, text = None, io.StringIO()
    try:
        if stopped_by is not None:
            raise stopped_by
        registry.import_installed_plugins()
        if run_dir is not None:
            HydraConfig.instance().set_config(composed)
            context = HydraContext(None, Callbacks(composed))
        state = HydraConfig.get()
        typed = override_values(parse_overrides(state.overrides.task))
        config = check_composed(composed, state.runtime.choices, typed, presets)
        launch = Launch(argv, typed)
        run_dir = run_dir or Path(state.runtime.output_dir)
        if (run_dir / CONFIG_FILE).exists():
            continue_run(run_dir, config, launch, view)
        else:
            start_run(Composed(config, composed, context, run_dir), launch, view)
    except (Exception, Interrupted, KeyboardInterrupt, SystemExit) as e:  # noqa: BLE001 - it must not end the sweep
        if isinstance(e, Interrupted):
            stopped_by = e
        with redirect_stderr(text):
            code = report(e, argv)
        return JobEnd(code, text.getvalue().rstrip())
    return JobEnd(ExitCode.DONE)
