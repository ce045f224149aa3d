"""`border-train -m`: compose the jobs, start or continue the sweep, run its jobs in slots, and sum up.

With another launcher of Hydra (`hydra/launcher=submitit_slurm`) the plugin runs the jobs that are left. Another sweeper
(`hydra/sweeper=optuna`) chooses the jobs, batch by batch; `hydra/sweeper=border_optuna` is our own tuning.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser import types
from hydra.core.override_parser.overrides_parser import OverridesParser

from border_cli.cli.compose import PRIMARY, Composed, Composer, hydra_section, translated
from border_cli.cli.overrides import check_interval, parse_overrides, quoted
from border_cli.cli.sweep_run import OWN_LAUNCHERS, SweepRun, SweepSettings, ray_settings
from border_cli.config.convert import load
from border_cli.config.presets import conf_dir
from border_cli.config.registry import require_package
from border_cli.config.resolve import counts
from border_cli.core.errors import ExitCode, Interrupted, UsageError, nearest
from border_cli.core.format import counted
from border_cli.display.output import output
from border_cli.display.text import print_lines
from border_cli.run.directory import SWEEP_FILE, Launch, create_sweep, locked, make_folder, shown, writing
from border_cli.runtime.stopping import StopFlag
from border_cli.sweeps.job_table import print_tuning_tables
from border_cli.sweeps.jobs import Job, Sweep, job_argv, newest_sweep
from border_cli.sweeps.study import STUDY_FILE, TuningSettings, import_optuna, value_text
from border_cli.sweeps.tuning import Tuner


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
        raise UsageError("plan=true shows one run, and -m starts several", allowed="plan=true without -m")
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
        require_package("ray", "hydra/launcher=border_ray", "ray")
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


# -- tuning in the slots of a sweep ------------------------------------------------

_NEVER_PRUNED = 3
"""No trial is pruned in the first third of its budget."""


@dataclass(frozen=True)
class Tuning:
    """What is tuned and how.

    largest: a trial with the last or highest value of each key · prunes_from: the first opt step at which a trial may
    be pruned.
    """

    settings: TuningSettings
    space: Space
    largest: Composed
    prunes_from: int


def read_tuning(composer: Composer, argv: Sequence[str]) -> Tuning:
    """Read the settings of a tuning. Raises UsageError before there is a folder, if the tuning cannot begin."""
    merged = composer.merge()
    settings = hydra_section(TuningSettings, merged, "sweeper")
    name = settings.space or str(merged.hydra.runtime.choices["agent"])
    arguments = [word for word in argv if not word.startswith("hydra")]
    space = read_space(arguments, lambda: default_space(name))
    shares = 0.0, 1.0, 0.37  # the ends, and a number that is not whole
    _, largest, _ = (composer.compose(space.overrides(space.values(share), 0)) for share in shares)
    config = largest.config
    if config.trainer.eval_interval is None:
        raise UsageError("tuning needs evaluations", allowed="trainer.eval_interval=<opt steps>")
    if not config.recorder.jsonl:
        raise UsageError("tuning reads the evaluations of its runs", allowed="recorder.jsonl=true")
    return Tuning(settings, space, largest, (counts(config).opt_steps or 0) // _NEVER_PRUNED)


def tune(run: SweepRun, tuning: Tuning) -> int:
    """Run the trials, or those that are left. Prints the results and returns the exit code. Raises OSError."""
    s, space = tuning.settings, tuning.space

    def make_job(params: Mapping[str, str], more_seed: int) -> Job:
        job = run.add(run.composer.compose(space.overrides(params, more_seed)))
        run.sweep.save(job)
        return job

    tuner = Tuner(run.sweep.folder, s, space.distributions, make_job, run.say, tuning.prunes_from)
    if not tuner.has_ended:
        runs = f" of {counted(s.seeds, 'run')} each" if s.seeds > 1 else ""
        parts = [f"{counted(s.n_trials, 'trial')}{runs}"]
        if s.pruner != "none":
            parts.append(f"the worse ones are stopped from opt step {tuning.prunes_from:,} on")
        if s.top:
            again = counted(s.top_seeds, "run")
            parts.append(f"the best {s.top} confirmed by {again} each on fresh seeds")
        run.say("; ".join(parts))
        run.drive(tuner, tuning.largest, max(s.n_trials * s.seeds, s.top * s.top_seeds))
    run.sweep.save()  # what could not be written meanwhile
    winner, lines = tuner.winner, list[tuple[str, str]]()
    folder = shlex.quote(str(shown(run.sweep.folder)))
    if winner is not None:
        name = f"trial {winner.number}: {winner.settings}"
        preset = run.write_preset(winner.jobs[0], tuner.expect(winner), name)
        lines += [("best", preset), ("study", f"optuna-dashboard {folder}/{STUDY_FILE}")]
    elif not tuner.has_ended:
        lines.append(("next", run.continue_command))
    print_tuning_tables(run.console, tuner)
    print_lines(run.console, *lines)
    if winner is not None:
        return int(ExitCode.DONE)
    # A trial that was pruned was stopped, too, but that is no failure. A trial with values that are not allowed has no job.
    otherwise = ExitCode.USAGE if tuner.has_ended else ExitCode.DONE
    return next((job.exit_code for job in tuner.unfinished_jobs if job.exit_code), int(otherwise))


# -- search spaces: Hydra's syntax, `agent.lr='tag(log,interval(1e-4,3e-3))'`, as distributions of Optuna ----


@dataclass(frozen=True)
class Space:
    """The tuned keys, and the fixed overrides.

    fixed: overrides with one value, as they are typed, without the seed · seed: that of the first run ·
    distributions: by key · elements: by key, how it is typed, such as `++agent.lr`.
    """

    fixed: list[str]
    seed: int
    distributions: dict[str, Any]
    elements: dict[str, str]

    def values(self, share: float) -> dict[str, str]:
        """One value of each key: the lowest or the first for 0, the highest or the last for 1, or one in between."""
        values = {}
        for key, distribution in self.distributions.items():
            if hasattr(distribution, "choices"):
                values[key] = str(distribution.choices[round(share * (len(distribution.choices) - 1))])
            else:
                value = distribution.low + share * (distribution.high - distribution.low)
                value = value if isinstance(distribution.low, float) else round(value)
                values[key] = value_text(value, distribution)
        return values

    def overrides(self, params: Mapping[str, str], more_seed: int) -> list[str]:
        """The overrides of one run, in the order of the search space: jobs are known by their overrides."""
        tuned = [f"{element}={params[key]}" for key, element in self.elements.items() if key in params]
        return [*self.fixed, *tuned, f"++seed={self.seed + more_seed}"]


def read_space(arguments: Sequence[str], defaults: Callable[[], Mapping[str, str]]) -> Space:
    """Read the search space from overrides. Raises UsageError if a key cannot be tuned, or if there is nothing to tune.

    defaults: reads the search space to use if none was typed; keys that were typed are left out of it.
    """
    optuna = import_optuna()
    typed = parse_overrides(arguments)
    names = {override.key_or_group for override in typed}
    added = []
    if not any(override.is_sweep_override() and override.key_or_group != "seed" for override in typed):
        added = [f"++{key}={value}" for key, value in defaults().items() if key not in names]
    fixed, seed = list[str](), 0
    distributions, elements = dict[str, Any](), dict[str, str]()
    for override in [*typed, *parse_overrides(added)]:
        key, element = override.key_or_group, override.get_key_element()
        if key == "seed":
            seed = override.value()
            if type(seed) is not int:
                raise UsageError(
                    f"{str(override.input_line).lstrip('+')}: a tuning has seeds of its own",
                    allowed="hydra.sweeper.seeds=<runs of each trial>, and seed=<first one>",
                )
        elif key in ("env", "env.id", "env.entry_point") and override.is_sweep_override():
            raise UsageError(
                f"{key} has several values, and their scores cannot be compared",
                allowed="a tuning for each environment",
            )
        elif override.is_sweep_override():
            distributions[key] = _distribution(override, optuna.distributions)
            elements[key] = element
        else:
            fixed.append(str(override.input_line))
    if not distributions:
        raise UsageError(
            "there is nothing to tune",
            allowed="agent.lr='tag(log,interval(1e-4,3e-3))', agent.batch_size='choice(64,128)'",
        )
    return Space(fixed, seed, distributions, elements)


def default_space(name: str) -> dict[str, str]:
    """The search space of an agent, or of a file, whose `base` names one that it extends. Raises UsageError."""
    path = Path(name) if name.endswith(".yaml") else conf_dir() / "space" / f"{name}.yaml"
    if not path.is_file():
        options = sorted(file.stem for file in (conf_dir() / "space").glob("*.yaml"))
        raise UsageError(
            f"there is no search space for {name!r}, and none was typed",
            nearest=(match := nearest(name, options)) and f"hydra.sweeper.space={match}",
            allowed=f"agent.lr='interval(1e-4,1e-3)', or hydra.sweeper.space={'|'.join(options)}|<file>.yaml",
        )
    values: dict[str, Any] = load(path)
    base = values.pop("base", None)
    space = {str(key): str(value) for key, value in values.items()}
    return space if base is None else default_space(str(base)) | space


def _distribution(override: types.Override, distributions: Any) -> Any:
    value: Any = override.value()
    is_log = "log" in getattr(value, "tags", ())
    try:
        if isinstance(value, types.IntervalSweep):
            if isinstance(value.start, int) and isinstance(value.end, int):
                return distributions.IntDistribution(value.start, value.end, log=is_log)
            return distributions.FloatDistribution(value.start, value.end, log=is_log)
        if isinstance(value, types.RangeSweep):
            points = value.range()
            if not any(True for _ in points):
                raise ValueError("the range is empty")
            if isinstance(points, types.FloatRange):
                return distributions.FloatDistribution(value.start, max(points), log=is_log, step=value.step)
            return distributions.IntDistribution(points.start, points[-1], log=is_log, step=points.step)
        if isinstance(value, types.Glob):
            raise ValueError("a glob is not a search space")
        return distributions.CategoricalDistribution(list(override.sweep_iterator(types.Transformer.str)))
    except ValueError as e:
        raise UsageError(
            f"{str(override.input_line).lstrip('+')}: {str(e).splitlines()[0]}\nallowed: interval(…), range(…), choice(…)"
        ) from e
