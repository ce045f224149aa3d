"""The words of `border-eval`: a run, settings as key=value, and flags."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    values: dict[str, Any] = {}
    runs: list[Path] = []
    for word in argv:
        if word.startswith("-"):
            values[_flag(word)] = True
        elif _is_setting(word):
            key, _, text = word.partition("=")
            values[key] = _read(key, text)
        else:
            runs.append(Path(word))
    if len(runs) > 1:
        raise UsageError(f"{runs[0]} and {runs[1]} are two models\nallowed: one at a time")
    code = Typed(
        values.pop("env.imports", ()), values.pop("env.entry_point", None), values.pop("plugins", ())
    )
    return EvalArguments(run=runs[0] if runs else None, code=code, **values)


def _flag(word: str) -> str:
    if word in _FLAGS:
        return _FLAGS[word]
    match = nearest_line(nearest(word, _FLAGS))
    raise UsageError(f"there is no flag {word}\nallowed: {', '.join(_FLAGS)}{match}")


def _is_setting(word: str) -> bool:
    """Whether a word is key=value. The path of a run may hold a = as well: that of a sweep's job does."""
    key, equals, _ = word.partition("=")
    return bool(equals) and (key in _READERS or not ("/" in key or Path(word).exists()))


def _read(key: str, text: str) -> Any:
    if key not in _READERS:
        match = nearest(key, _READERS)
        raise UsageError(
            f"{key}: there is no such key\nallowed: {', '.join(_READERS)}{nearest_line(match and f'{match}=')}"
        )
    return _READERS[key](key, text)


def _count(least: int) -> Callable[[str, str], int]:
    def read(key: str, text: str) -> int:
        if not (text.isascii() and text.isdigit()) or int(text) < least:
            raise UsageError(f"{key}={text}: not taken\nallowed: a whole number >= {least}")
        return int(text)

    return read


def _bool(key: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise UsageError(f"{key}={text}: not taken\nallowed: true or false")
    return text.lower() == "true"


def _names(key: str, text: str) -> tuple[str, ...]:
    names = tuple(
        name.strip() for name in text.removeprefix("[").removesuffix("]").split(",") if name.strip()
    )
    if text.startswith("[") != text.endswith("]") or not names:
        raise UsageError(f"{key}={text}: not a list of names\nallowed: '{key}=[one,two]'")
    return names


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


_READERS: dict[str, Callable[[str, str], Any]] = {
    "episodes": _count(1),
    "checkpoint": lambda _, text: parse_checkpoint(text),
    "seed": _count(0),
    "max_episode_steps": _count(1),
    "render": _render,
    "plugins": _names,
    "env.imports": _names,
    "env.entry_point": _entry_point,
    "debug": _bool,
}
