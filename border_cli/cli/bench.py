"""`border-bench`: measure each part of a run on this machine, predict the run's speed, and recommend settings.

It takes the overrides of border-train, composes and checks them alike, and makes no run directory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from border_cli.cli.command import command, tracebacks
from border_cli.cli.compose import Composer
from border_cli.cli.overrides import Parser, override_values, parse_overrides, typed_names
from border_cli.cli.translate import check_words
from border_cli.config import registry
from border_cli.config.schema import TrainConfig
from border_cli.core.errors import UsageError
from border_cli.runtime.signals import StopFlag


@command
def main(argv: Sequence[str]) -> None:
    """The command."""
    registry.import_installed_plugins()
    check_words(argv, "border-bench")
    parser = Parser("border-bench")
    parser.add_argument("--config-dir", "-cd")
    flags, rest = parser.read(argv)
    if parser.answers(flags, rest):
        return
    overrides = parse_overrides(rest)
    typed = override_values(overrides)
    for key in ("plan", "init_from", "resume"):
        if key in typed:
            raise UsageError(
                f"{key} has no effect in border-bench, which trains nothing", allowed=f"border-train {key}=…"
            )
    registry.import_plugins(typed_names(overrides).get("plugins", ()))
    with Composer(overrides, flags.config_dir) as composer:
        config = composer.compose().config
    with tracebacks(config.debug):
        _bench(config, typed)


def _bench(config: TrainConfig, typed: Mapping[str, str]) -> None:
    """Measure, and show the tables. Raises Interrupted when asked to stop."""
    from rich.console import Console

    from border_cli.display.output import output
    from border_cli.display.tables import print_bench
    from border_cli.run.preflight import preflight  # not earlier: they import torch
    from border_cli.run.probes import bench

    # The status is drawn on a terminal alone.
    doing = Console(stderr=True).status(
        "measuring each part, and compiling the opt step if no run has: about a minute"
    )
    with output():
        with StopFlag() as stop, doing:
            resolved, spec, _ = preflight(config, stop, overrides=typed, resuming=True)
            speeds = bench(resolved, spec, stop)
        print_bench(Console(), speeds)
