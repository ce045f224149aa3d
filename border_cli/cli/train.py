"""`border-train` composes and checks a configuration, then shows, plans, trains, resumes or sweeps; `border-bench`.

Nothing imports torch or gymnasium before the configuration is accepted, so that a mistake is answered at once.
`resume=RUN` uses the configuration stored in the run's directory, as data, with the overrides beside it; Hydra composes
nothing.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from border_cli.cli.compose import Composed, Composer
from border_cli.cli.entry import command, read_page, show
from border_cli.cli.help import help_page
from border_cli.cli.overrides import Parser, override_values, parse_overrides
from border_cli.cli.start import continue_run, end_imports, resume_run, start_run, stored_config
from border_cli.cli.sweep import run_sweep
from border_cli.cli.sweep_run import SweepSettings
from border_cli.cli.translate import check_words
from border_cli.config import registry, throughput
from border_cli.config.convert import dump, to_plain
from border_cli.config.resolve import envs_per_actor
from border_cli.config.schema import GROUPS, option
from border_cli.core.errors import ExitCode, UsageError
from border_cli.core.format import number
from border_cli.run.directory import RUNS, Launch
from border_cli.run.find import run_directory
from border_cli.runtime import machine
from border_cli.runtime.stopping import StopFlag

_AUTO = "auto"
_OF_SWEEPS = ("sweep.", "hydra/launcher", "hydra/sweeper", "hydra.launcher.", "hydra.sweeper.")


@dataclass
class _Settings:
    """The settings of border-train that are no keys of the configuration."""

    sweep: SweepSettings = field(default_factory=SweepSettings)
    trust: bool = option(False, "import the code that the run to resume names")
    resume: str | None = option(
        None, f"a run to continue; {_AUTO}: the unfinished run of this command, or a new one"
    )


@command
def main(argv: Sequence[str]) -> int:
    """The command."""
    if not argv:
        show(read_page("train-short"))
        return ExitCode.DONE
    registry.import_installed_plugins()
    check_words(argv, "border-train")
    parser = Parser("border-train", _Settings, composes=True)
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--multirun", "-m", action="store_true")
    modes.add_argument("--cfg", "-c", choices=["job"])
    flags, rest = parser.read(argv)
    if not flags.help and parser.answers(flags):
        return ExitCode.DONE
    _check_flags(flags, argv)
    groups = [arg for arg in rest if arg in GROUPS] if flags.help else []
    overrides = parse_overrides([arg for arg in rest if arg not in groups])
    launch = Launch(list(argv), override_values(overrides))
    if flags.resume not in (None, _AUTO) and not flags.help:
        choice = "a run, or resume=auto for the unfinished run with these arguments"
        run_dir = run_directory(Path(flags.resume), choice)
        stored, config = stored_config(run_dir, overrides, flags.trust)
        return int(resume_run(run_dir, stored, config, launch).code)
    composer = Composer(overrides, flags.config_dir)
    if flags.help or flags.cfg:
        show(help_page(composer, groups) if flags.help else dump(to_plain(composer.compose().config)))
        return ExitCode.DONE
    if flags.multirun:
        return run_sweep(composer, launch, flags.sweep)
    composed = composer.compose()
    if composed.config.plan:
        show_plan(composed, launch)
        return ExitCode.DONE
    if flags.resume:
        return _resume_unfinished(composed, launch, flags.trust)
    return int(start_run(composed, launch).code)


def _check_flags(flags: Namespace, argv: Sequence[str]) -> None:
    """Refuse flags and settings that do not go together."""
    if flags.trust and flags.resume is None:
        raise UsageError("trust has no effect without resume", allowed="resume=<run> trust=true")
    if flags.resume and flags.multirun:
        again = "the command of a sweep again, which continues it"
        raise UsageError("resume continues one run, and -m starts several", allowed=again)
    flag = "--cfg" if flags.cfg else "--config-dir" if flags.config_dir else ""
    if flag and flags.resume not in (None, _AUTO):
        raise UsageError(
            f"{flag} is about composing, and resume={flags.resume} uses the configuration stored with the run",
            allowed=f"{flag} without resume; the run's config.yaml shows its values",
        )
    keys = (arg.lstrip("+").partition("=")[0] for arg in argv)
    of_sweeps = [key for key in keys if key.startswith(_OF_SWEEPS)]
    if of_sweeps and not (flags.multirun or flags.help or flags.cfg):
        raise UsageError(f"{of_sweeps[0]} has no effect without -m", allowed="-m, which starts a sweep")


def _resume_unfinished(composed: Composed, launch: Launch, trusted: bool) -> int:
    """`resume=auto`: continue the unfinished run of this configuration, or start one. The exit code."""
    from border_cli.run.resume import newest_unfinished

    if composed.run_dir is not None:
        raise UsageError(
            f"resume=auto looks for a run below {RUNS}/, so hydra.run.dir has no effect with it",
            allowed=f"resume=auto alone, or resume={composed.run_dir} for a run in that directory",
        )
    run_dir = newest_unfinished(RUNS, composed.config, trusted)
    if run_dir is None:
        return int(start_run(composed, launch).code)
    return int(continue_run(run_dir, composed.config, launch).code)


# -- the speed of a run before it is trained ---------------------------------------


@command
def bench(argv: Sequence[str]) -> None:
    """`border-bench`: measure each part on this machine, predict the speed, and recommend settings."""
    registry.import_installed_plugins()
    check_words(argv, "border-bench")
    parser = Parser("border-bench", composes=True)
    flags, rest = parser.read(argv)
    if parser.answers(flags):
        return
    overrides = parse_overrides(rest)
    typed = override_values(overrides)
    for key in ("plan", "init_from", "resume"):
        if key in typed:
            raise UsageError(
                f"{key} has no effect in border-bench, which trains nothing", allowed=f"border-train {key}=…"
            )
    config = Composer(overrides, flags.config_dir).compose().config
    from rich.console import Console

    from border_cli.display.output import output
    from border_cli.display.text import print_lines, print_speeds
    from border_cli.run import probes  # not earlier: it imports torch
    from border_cli.run.preflight import preflight

    # The status is drawn on a terminal alone.
    doing = Console(stderr=True).status(
        "measuring each part, and compiling the opt step if no run has: about a minute"
    )
    with output():
        with StopFlag() as stop, doing:
            resolved, spec, _ = preflight(config, stop, overrides=typed, resuming=True)
            envs = {throughput.ENVS[0], envs_per_actor(resolved), throughput.ENVS[-1]}
            measured = probes.measure(resolved, spec, envs, probes.PLAN_S, stop, compile=True)
        print_speeds(Console(), resolved, measured)
        fastest = throughput.recommended(resolved, measured, machine.cpus())
        words = (
            f"n_actors={fastest.n_actors}",
            f"actor_manager.envs_per_actor={envs_per_actor(fastest)}",
            f"trainer.opt_interval={fastest.trainer.opt_interval:g}",
        )
        rate = number(throughput.predict(fastest, measured, machine.cpus()).opt_steps)
        print_lines(
            Console(), ("predicts", f"{rate} opt steps/s with what follows"), ("try", " ".join(words))
        )


def show_plan(composed: Composed, launch: Launch) -> None:
    """Check environment and machine as a run does, measure, and show what the run would do and need."""
    from rich.console import Console

    from border_cli.display.output import output, write_line
    from border_cli.display.text import banner, print_lines, print_plan
    from border_cli.run import factories, probes
    from border_cli.run.preflight import preflight

    folder = composed.run_dir or RUNS
    with StopFlag() as stop, output():
        write_line(sys.stderr, "making the environment and the agent")
        config, spec, decided = preflight(composed.config, stop, folder, launch.typed)
        end_imports()
        write_line(sys.stderr, "measuring the actors and the opt steps, each alone for half a second")
        sizes = factories.sizes(config, spec)
        measured = probes.measure(config, spec, [envs_per_actor(config)], probes.PLAN_S, stop)
        console = Console()
        print_lines(console, *banner(config, launch.typed, sizes.replay, None, decided=decided))
        print_lines(console, *(("", line) for line in factories.described_inputs(config, spec)))
        print_plan(console, config, sizes, measured, folder)
