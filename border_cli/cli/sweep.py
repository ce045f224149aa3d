"""`border-train -m`: compose the jobs, start or continue the sweep, run its jobs in slots, and sum up.

With another launcher of Hydra (`hydra/launcher=submitit_slurm`) the plugin runs the jobs that are left. Another sweeper
(`hydra/sweeper=optuna`) chooses the jobs, batch by batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser

from border_cli.cli.compose import PRIMARY, Composed, Composer, translated
from border_cli.cli.overrides import check_interval, quoted
from border_cli.cli.sweep_run import OWN_LAUNCHERS, SweepRun, SweepSettings, ray_settings
from border_cli.cli.tune import read_tuning, tune
from border_cli.core.errors import Interrupted, UsageError
from border_cli.display.output import output
from border_cli.run.directory import (
    SWEEP_FILE,
    Launch,
    create_sweep,
    locked,
    make_folder,
    writing,
)
from border_cli.runtime.stopping import StopFlag
from border_cli.sweeps.jobs import Sweep, job_argv, newest_sweep


def run_sweep(composer: Composer, launch: Launch, settings: SweepSettings) -> int:
    """Run the jobs of a sweep, or continue it. Returns the first exit code that is not 0, or 0."""
    argv, sweeper = composer.argv(), launch.typed.get("hydra/sweeper", "basic")
    _check_words(launch, settings, sweeper)
    composed, tuning = list[Composed](), None
    if sweeper == "basic":
        with translated():
            parsed = OverridesParser.create(composer.hydra.config_loader).parse_overrides(list(argv))
            for override in parsed:
                check_interval(override)
            (jobs,) = BasicSweeper.split_arguments(parsed, None)
        if not jobs:
            empty = "the sweep has no jobs: one of its ranges is empty"
            raise UsageError(empty, allowed="range(<start>,<stop>)")
        composed = [composer.compose(job) for job in jobs]
    elif sweeper == "border_optuna":
        tuning = read_tuning(composer, argv)
    samples = composed if tuning is None else [tuning.largest]
    launcher = (samples[0].choices if samples else composer.merge().hydra.runtime.choices)["hydra/launcher"]
    _check_launcher(launcher, sweeper, samples)
    wanted = job_argv(launch.argv)
    folder = _folder(composer, launch, settings, wanted).absolute()
    continued = (folder / SWEEP_FILE).exists()
    with locked(folder), StopFlag() as stop, output() as out:
        sweep = Sweep.read(folder) if continued else Sweep(folder, wanted)
        run = SweepRun(sweep, composer, launch, settings, launcher, stop, out)
        with contextlib.closing(run), writing(folder):
            run.announce(continued)
            if tuning is not None:
                code = tune(run, tuning)
            else:
                if sweeper == "basic":
                    run.run(composed)
                else:  # the sweeper of a plugin, whose batches Hydra's launcher `border` hands to `run`
                    ours = ("hydra/launcher=", "hydra.launcher.", "hydra.sweep.dir=")
                    words = [word for word in argv if not word.startswith(ours)]
                    words += [f"hydra.sweep.dir={quoted(str(folder))}", "hydra.mode=MULTIRUN"]
                    with translated(), contextlib.suppress(Interrupted):
                        composer.hydra.multirun(PRIMARY, run, words)
                code = run.finish()
    return code if stop.code is None else int(stop.code)


def _check_words(launch: Launch, settings: SweepSettings, sweeper: str) -> None:
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
    if settings.retry and sweeper == "border_optuna":
        raise UsageError(
            "sweep.retry has no effect in a tuning, where a failed trial does not count",
            allowed="sweep.new=true, a new tuning",
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
            ray_settings(sample)


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
