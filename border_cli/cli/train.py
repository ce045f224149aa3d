"""`border-train`: parse the command line, compose, check, then show, plan, train, resume or sweep.

Nothing imports torch or gymnasium before the configuration is accepted, so that a mistake is answered at once.
`resume=RUN` uses the configuration stored in the run's directory, as data, with the overrides beside it; Hydra composes
nothing.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from hydra.core.override_parser.types import Override

from border_cli.cli.command import command, read_page, show, tracebacks
from border_cli.cli.compose import Composed, Composer
from border_cli.cli.help import help_page
from border_cli.cli.overrides import (
    Parser,
    check_single,
    override_values,
    parse_overrides,
    set_value,
    typed_names,
)
from border_cli.cli.start import continue_run, end_imports, resume_run, start_run
from border_cli.cli.sweep import SweepSettings, run_sweep
from border_cli.cli.translate import check_words
from border_cli.config import registry
from border_cli.config.convert import RESUME, dump, to_config, to_plain
from border_cli.config.resolve import reopen, reopen_for_device, with_typed_budget
from border_cli.config.schema import GROUPS, TrainConfig, option
from border_cli.config.validate import check_effect, validate
from border_cli.core.errors import ExitCode, UsageError
from border_cli.run.directory import RUNS, Launch, read_config_data
from border_cli.run.find import run_directory
from border_cli.run.trust import check_code, check_plain
from border_cli.runtime.signals import StopFlag

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
    parser = _parser()
    flags, rest = parser.read(argv)
    if not flags.help and parser.answers(flags, rest):
        return ExitCode.DONE
    resumed, shows = flags.resume, flags.help or flags.cfg
    _check_flags(flags)
    keys = (arg.lstrip("+").partition("=")[0] for arg in argv)
    if not (shows or flags.multirun) and (of_sweeps := [key for key in keys if key.startswith(_OF_SWEEPS)]):
        raise UsageError(f"{of_sweeps[0]} has no effect without -m", allowed="-m, which starts a sweep")
    groups = [arg for arg in rest if arg in GROUPS] if flags.help else []
    overrides = parse_overrides([arg for arg in rest if arg not in groups])
    registry.import_plugins(typed_names(overrides).get("plugins", ()))
    launch = Launch(list(argv), override_values(overrides))
    if resumed not in (None, _AUTO) and not flags.help:
        choice = "a run, or resume=auto for the unfinished run with these arguments"
        run_dir = run_directory(Path(resumed), choice)
        stored, config = stored_config(run_dir, overrides, flags.trust)
        return int(resume_run(run_dir, stored, config, launch).code)
    with Composer(overrides, flags.config_dir) as composer:
        if shows:
            show(help_page(composer, groups) if flags.help else dump(to_plain(composer.compose().config)))
            return ExitCode.DONE
        if flags.multirun:
            return run_sweep(composer, launch, flags.sweep)
        composed = composer.compose()
    with tracebacks(composed.config.debug):
        if composed.config.plan:
            return _plan(composed, launch)
        if resumed:
            return _resume_unfinished(composed, launch, flags.trust)
        return int(start_run(composed, launch).code)


def _parser() -> Parser:
    parser = Parser("border-train", _Settings)
    parser.add_argument("--config-dir", "-cd")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--multirun", "-m", action="store_true")
    modes.add_argument("--cfg", "-c", choices=["job"])
    return parser


def _check_flags(flags: Namespace) -> None:
    """Refuse flags that do not go together, or not with `resume`."""
    resumed = flags.resume
    if flags.trust and resumed is None:
        raise UsageError("trust has no effect without resume", allowed="resume=<run> trust=true")
    if resumed and flags.multirun:
        raise UsageError(
            "resume continues one run, and -m starts several",
            allowed="the command of a sweep again, which continues it",
        )
    flag = "--cfg" if flags.cfg else "--config-dir" if flags.config_dir else ""
    if flag and resumed not in (None, _AUTO):
        raise UsageError(
            f"{flag} is about composing, and resume={resumed} uses the configuration stored with the run",
            allowed=f"{flag} without resume; the run's config.yaml shows its values",
        )


def _plan(composed: Composed, launch: Launch) -> int:
    """Check environment and machine as a run does, measure, and show the plan. There is no run directory."""
    from rich.console import Console

    from border_cli.config.resolve import envs_per_actor
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
    return ExitCode.DONE


def stored_config(
    run_dir: Path, overrides: Sequence[Override], trusted: bool
) -> tuple[TrainConfig, TrainConfig]:
    """The configuration of a run, and the same with the overrides, checked.

    Modules that the run names are imported only if they are typed too, or trusted; see `border_cli.run.trust`.
    """
    check_plain(run_dir, trusted)
    data, names = read_config_data(run_dir), typed_names(overrides)
    plugins = data.get("plugins")
    modules = [name for name in plugins if isinstance(name, str)] if isinstance(plugins, list) else []
    check_code({"plugins": modules}, names, trusted)  # before the rest is checked: they may define its keys
    registry.import_plugins(modules)
    stored = reopen(to_config(data))
    config = _with_overrides(stored, overrides)
    check_code(to_plain(config), names, trusted)
    return stored, config


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


def _with_overrides(stored: TrainConfig, overrides: Sequence[Override]) -> TrainConfig:
    check_single(overrides)
    changed, typed = to_plain(stored), override_values(overrides)
    for override in overrides:
        key = override.key_or_group
        if key in GROUPS:
            raise UsageError(
                f"resume: {key}={override.value()} chooses a group, and a stored run keeps its own",
                allowed=f"single values, such as {key}.<key>=<value>, or a new run with init_from=<run>",
            )
        set_value(changed, override, command=RESUME)
    for group, section in changed.items():
        if f"{group}.type" in typed and (entry := registry.find(group, section["type"])) is not None:
            known = [
                option.name for option in fields(entry.config)
            ]  # the other type may lack keys of the stored one
            changed[group] = {k: v for k, v in section.items() if k in known or f"{group}.{k}" in typed}
    config, t = to_config(changed), stored.trainer
    if None in (t.max_opts, t.max_env_steps):  # if it has both, both were chosen
        config = with_typed_budget(config, typed)
    config = reopen_for_device(config, stored, typed)
    validate(config)
    check_effect(config, typed)
    return config
