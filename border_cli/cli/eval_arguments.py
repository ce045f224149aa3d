"""The words of `border-eval`: a run, settings as key=value, and flags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from border_cli.cli.words import Reader, names, take_apart, true_or_false, whole_number
from border_cli.config.suggest import nearest, nearest_line
from border_cli.core.errors import UsageError
from border_cli.runs.locate import parse_checkpoint
from border_cli.runs.trust import Typed

RENDER = ("human", "rgb_array")


@dataclass(frozen=True)
class EvalArguments:
    """The command line, taken apart.

    run: as typed, None for the latest · episodes, seed, max_episode_steps [env steps]: see the help page ·
    checkpoint: "best", "last", an opt step, or None when it was not typed · render: one of RENDER or None ·
    code: the names of code that were typed.
    """

    run: Path | None = None
    episodes: int = 100
    checkpoint: str | int | None = None
    seed: int = 0
    max_episode_steps: int = 30_000
    render: str | None = None
    code: Typed = field(default_factory=Typed)
    debug: bool = False
    help: bool = False
    version: bool = False


HELP = f"""\
border-eval judges a trained model on new episodes and prints mean ± std with a 95% interval.

  border-eval [RUN] [key=value …]

RUN is a run directory, one of its checkpoints, or best/; without it, the latest run below ./runs.
The figures are written as JSON into the run's eval/ folder too.

Settings
  episodes=100              episodes that are judged
  checkpoint=best           best, last, or an opt step of the run
  seed=0                    root of the episodes' seeds: the same for every model, never those of the training
  max_episode_steps=30000   [env steps] an episode is cut here and counts with its return so far
  render=human              human: show it in a window; rgb_array: write a film (GIF) of one environment
  plugins=[package]         modules to import first, where the agent is not one of ours
  env.imports=[package]     the same for packages that register environments
  env.entry_point=mod:name  the stored class of the environment, typed again
  debug=true                show tracebacks

Of a run that is not your own nothing is imported unless you type its name here too.

Flags
  -h, --help  --version

Examples
  border-eval
  border-eval runs/latest episodes=20 checkpoint=last
  border-eval {Path("somebody") / "best"} env.imports=[their_package]
"""

_FLAGS = {"--help": "help", "-h": "help", "--version": "version"}


def parse_arguments(argv: Sequence[str]) -> EvalArguments:
    """Take the command line apart. Raises UsageError for what is not known, with the nearest that is."""
    runs, values = take_apart(argv, _FLAGS, _READERS)
    if len(runs) > 1:
        raise UsageError(f"{runs[0]} and {runs[1]} are two models\nallowed: one at a time")
    code = Typed(
        values.pop("env.imports", ()), values.pop("env.entry_point", None), values.pop("plugins", ())
    )
    return EvalArguments(run=runs[0] if runs else None, code=code, **values)


def _render(key: str, text: str) -> str:
    if text not in RENDER:
        match = nearest_line(nearest(text, RENDER))
        raise UsageError(f"{key}={text}: there is no such mode\nallowed: {', '.join(RENDER)}{match}")
    return text


def _entry_point(key: str, text: str) -> str:
    module, _, name = text.partition(":")
    if not module or not name:
        raise UsageError(f"{key}={text}: not taken\nallowed: module:name")
    return text


_READERS: dict[str, Reader] = {
    "episodes": whole_number(1),
    "checkpoint": lambda _, text: parse_checkpoint(text),
    "seed": whole_number(0),
    "max_episode_steps": whole_number(1),
    "render": _render,
    "plugins": names,
    "env.imports": names,
    "env.entry_point": _entry_point,
    "debug": true_or_false,
}
