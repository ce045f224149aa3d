"""`border-train`: parse the command line, compose, check, then show, plan, train, resume or sweep.

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

from border_cli.cli.bench import show_plan
from border_cli.cli.compose import Composed, Composer
from border_cli.cli.entry import command, read_page, show
from border_cli.cli.help import help_page
from border_cli.cli.overrides import Parser, override_values, parse_overrides
from border_cli.cli.start import continue_run, resume_run, start_run, stored_config
from border_cli.cli.sweep import run_sweep
from border_cli.cli.sweep_run import SweepSettings
from border_cli.cli.translate import check_words
from border_cli.config import registry
from border_cli.config.convert import dump, to_plain, with_auto
from border_cli.config.schema import option
from border_cli.core.errors import ExitCode, UsageError
from border_cli.display.output import write_line
from border_cli.run.directory import RUNS, Launch
from border_cli.run.find import run_directory

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
    topics = [arg for arg in rest if "=" not in arg] if flags.help else []
    overrides = parse_overrides([arg for arg in rest if arg not in topics])
    launch = Launch(list(argv), override_values(overrides))
    if flags.resume not in (None, _AUTO) and not flags.help:
        choice = "a run, or resume=auto for the unfinished run with these arguments"
        run_dir = run_directory(Path(flags.resume), choice)
        stored, config = stored_config(run_dir, overrides, flags.trust)
        return int(resume_run(run_dir, stored, config, launch).code)
    composer = Composer(overrides, flags.config_dir)
    if flags.help:
        show(help_page(composer, topics))
        return ExitCode.DONE
    if flags.cfg:
        show(dump(with_auto(to_plain(composer.compose().config))))
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
        write_line(sys.stderr, f"no unfinished run with these arguments below {RUNS}/: a new one starts")
        return int(start_run(composed, launch).code)
    return int(continue_run(run_dir, composed.config, launch).code)
