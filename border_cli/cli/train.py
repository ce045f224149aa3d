"""`border-train`: read the words, compose, check, run, and say in the exit code how it ended.

Nothing imports torch or gymnasium before the configuration is accepted, so a mistake is answered at once.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Sequence
from typing import Any

import border_cli
from border_cli.cli import overrides, resume
from border_cli.cli.arguments import Arguments, parse_arguments
from border_cli.cli.compose import Composer
from border_cli.cli.help import help_page
from border_cli.cli.jobs import pass_to_hydra, refuse_plan, run_plan, run_single, run_sweep
from border_cli.cli.output import exit_code, open_missing_streams, show
from border_cli.config import plugins
from border_cli.config.convert import to_plain
from border_cli.config.schema import GROUPS
from border_cli.config.suggest import nearest, nearest_line
from border_cli.config.yaml_text import dump
from border_cli.core.errors import ExitCode, UsageError
from border_cli.runs.directory import CONFIG_FILE


def main(argv: list[str] | None = None) -> int:
    """The command. argv: the words after its name, by default those of the process. Returns the exit code."""
    words = sys.argv[1:] if argv is None else argv
    if argv is None:
        open_missing_streams()
        atexit.register(gc.freeze)  # looking for garbage among what torch has imported takes half a second
    debug = any(word.lstrip("+").lower() == "debug=true" for word in words)
    return exit_code(lambda: _dispatch(words), debug)


def _dispatch(argv: Sequence[str]) -> int:
    arguments = parse_arguments(argv)
    if arguments.version:
        show(f"border-cli {border_cli.__version__}")
        return ExitCode.DONE
    if arguments.shell_completion:
        return pass_to_hydra(argv)
    resumed, words = resume.split(arguments.words)
    typed = overrides.parse_words(words)
    plugins.load_installed()
    plugins.load(overrides.typed_list(typed, "plugins"))
    composer = Composer(typed, arguments.config_dir)
    if arguments.help:
        with composer:
            show(help_page({group: composer.choices(group) for group in GROUPS}))
        return ExitCode.DONE
    if arguments.multirun:
        _refuse_resume(resumed)
        return _sweep(composer, argv)
    if resumed is not None and resumed != resume.AUTO:
        _refuse_flags(resumed, arguments)
        return resume.run_named(resumed, typed, argv)
    return _single(composer, arguments, argv, find=resumed == resume.AUTO)


def _refuse_resume(resumed: str | None) -> None:
    if resumed is not None:
        raise UsageError(f"resume={resumed} resumes one run, and -m starts many\nallowed: one at a time")


def _refuse_flags(resumed: str, arguments: Arguments) -> None:
    """Nothing is composed there that they could show or add to."""
    flags = {
        "--cfg": arguments.cfg,
        "--info": arguments.info,
        "--hydra-help": arguments.hydra_help,
        "--config-dir": arguments.config_dir,
    }
    given = [flag for flag, value in flags.items() if value]
    if given:
        raise UsageError(
            f"{given[0]} is about what is composed, and resume={resumed} goes on with the run's own {CONFIG_FILE}\n"
            f"allowed: {given[0]} without resume; that file says what the run has"
        )


def _single(composer: Composer, arguments: Arguments, argv: Sequence[str], find: bool) -> int:
    """Run one configuration, or show what was asked of it. The exit code.

    find: go on with an unfinished run of it, if there is one.
    """
    with composer:
        words = composer.words()
        composed = composer.compose(words)
    if arguments.cfg == "job":
        show(_shown_part(to_plain(composed.config), arguments.package))
        return ExitCode.DONE
    if arguments.hydra_help or arguments.info or arguments.cfg:
        return pass_to_hydra([*_hydra_flags(arguments), *words])
    if composed.config.plan:
        return run_plan(composed, composer.typed)
    found = resume.find(composed.config, composer.typed) if find else None
    if found is not None:
        return resume.run_found(found, composed, composer.typed, argv)
    return run_single(composed, words, argv, composer.typed)


def _sweep(composer: Composer, argv: Sequence[str]) -> int:
    """Check every job before the first one starts, as far as the basic sweeper makes them; run them all."""
    with composer:
        words = composer.words()
        if composer.typed.get("hydra/sweeper", "basic") == "basic":
            for job in overrides.expand(words, composer.choices):
                refuse_plan(composer.compose(job).config)
        presets = composer.choices("preset")
    return run_sweep(words, argv, presets)


def _shown_part(plain: dict[str, Any], package: str | None) -> str:
    """The configuration as YAML, or one part of it."""
    if package is None or package == "_global_":
        return dump(plain)
    part: Any = plain
    for name in package.split("."):
        if not isinstance(part, dict) or name not in part:
            match = nearest_line(nearest(package, plain))
            raise UsageError(f"--package: there is no part {package!r}\nallowed: {', '.join(plain)}{match}")
        part = part[name]
    return f"# @package {package}\n{dump(part)}" if isinstance(part, dict | list) else str(part)


def _hydra_flags(arguments: Arguments) -> list[str]:
    if arguments.hydra_help:
        return ["--hydra-help"]
    if arguments.info:
        return ["--info", arguments.info]
    return ["--cfg", str(arguments.cfg), *(["--package", arguments.package] if arguments.package else [])]


if __name__ == "__main__":
    sys.exit(main())
