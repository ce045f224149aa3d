"""The speed of a run before it is trained: `border-bench`, and `border-train plan=true`.

Both take the overrides of border-train, compose and check them alike, and make no run directory.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from border_cli.cli.compose import Composed, Composer
from border_cli.cli.entry import command
from border_cli.cli.overrides import Parser, override_values, parse_overrides
from border_cli.cli.start import end_imports
from border_cli.cli.translate import check_words
from border_cli.config import registry, throughput
from border_cli.config.resolve import envs_per_actor
from border_cli.core.errors import UsageError
from border_cli.core.format import number
from border_cli.run.directory import RUNS, Launch
from border_cli.runtime import machine
from border_cli.runtime.stopping import StopFlag


@command
def main(argv: Sequence[str]) -> None:
    """The command `border-bench`: measure each part on this machine, predict the speed, and recommend settings."""
    registry.import_installed_plugins()
    check_words(argv, "border-bench")
    parser = Parser("border-bench", composes=True)
    flags, rest = parser.read(argv)
    if parser.answers(flags):
        return
    overrides = parse_overrides(rest)
    typed = override_values(overrides)
    if odd := [key for key in ("plan", "init_from", "resume") if key in typed]:
        problem = f"{odd[0]} has no effect in border-bench, which trains nothing"
        raise UsageError(problem, allowed=f"border-train {odd[0]}=…")
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
        rate = number(throughput.predict(fastest, measured, machine.cpus()).opt_steps)
        words = f"n_actors={fastest.n_actors} actor_manager.envs_per_actor={envs_per_actor(fastest)}"
        words = f"{words} trainer.opt_interval={fastest.trainer.opt_interval:g}"
        print_lines(Console(), ("predicts", f"{rate} opt steps/s with what follows"), ("try", words))


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
