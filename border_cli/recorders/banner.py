"""Before the start: what runs, with which values, and what it takes of this machine."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

import border_cli
from border_cli.config import presets
from border_cli.config.resuming import is_reproducible
from border_cli.config.schema import TrainConfig
from border_cli.recorders import figures

WIDTH = 100
_INDENT = 9
_NOT_SHOWN = (
    "preset.",
    "agent.type",
    "buffer.type",
    "trainer.type",
    "env.id",
    "env.entry_point",
    "checkpoint.replay",
)
"""Keys that the first lines already tell."""


def banner(
    config: TrainConfig,
    typed: Mapping[str, str],
    replay_bytes: int,
    processes: int,
    threads: int,
    preset_note: str,
    run_dir: Path | None,
    width: int = WIDTH,
    resumed: str = "",
) -> list[str]:
    """Lines for a person, none wider than `width` unless a single word is.

    typed: plain key → value as typed, groups included. replay_bytes: what the replay will take.
    processes: all of them, the learner included. threads: compute threads of all of them.
    preset_note: see `preset_note`. run_dir: None where there is none. resumed: what the run goes on from, empty for a new
    one.
    """
    by_hand, by_file = _differences(config, typed)
    rows = (
        ("", f"border-cli {border_cli.__version__}: {_what(config)}"),
        ("preset", preset_note),
        ("resumed", resumed),
        ("budget", _budget(config)),
        ("typed", "  ".join(by_hand)),
        ("changed", "  ".join(by_file)),
        ("replay", _replay(config, replay_bytes)),
        (
            "machine",
            f"{_plural(processes, 'process', 'processes')}, {figures.counted(threads, 'compute thread')}",
        ),
        ("run", "" if run_dir is None else str(run_dir)),
    )
    return [line for label, text in rows if text for line in _lines(label, text, width)]


def line_width(console: Console) -> int:
    """Columns for the banner on this console: no more than a terminal has."""
    return min(WIDTH, console.width) if console.is_terminal else WIDTH


def _replay(config: TrainConfig, nbytes: int) -> str:
    kept = "not part of checkpoints" if config.checkpoint.replay == "none" else "part of each checkpoint"
    return f"{figures.size(nbytes)} for {figures.counted(config.buffer.capacity, 'row')}, {kept}"


def title(config: TrainConfig) -> str:
    """`<agent> on <environment>`."""
    return f"{config.agent.type} on {config.env.name}"


def preset_note(config: TrainConfig) -> str:
    """The preset in use, that there would be one for this environment id, or that there is none."""
    preset = config.preset
    if preset.name and preset.name != presets.NONE:
        expected = f": {preset.expect}" if preset.expect else ""
        return f"{preset.name}{expected}"
    available = presets.preset_for(config.agent.type, config.env.name)
    if available:
        return f"none in use; preset={available} was tuned for {config.env.id}"
    return f"none for {title(config)}: the defaults stand"


def _what(config: TrainConfig) -> str:
    envs = config.actor_manager.envs_per_actor
    if config.trainer.type == "sync":
        acting = f"sync with {figures.counted(envs, 'environment')}"
    else:
        each = f" of {figures.counted(envs, 'environment')}" if envs > 1 else ""
        acting = f"{config.trainer.type} with {figures.counted(config.n_actors, 'actor')}{each}"
    device, seed = config.device, config.seed
    bits = "" if is_reproducible(config) else ", not reproducible"
    return f"{title(config)}, {acting}, device {device}, seed {seed}{bits}"


def _budget(config: TrainConfig) -> str:
    t = config.trainer
    limits = (
        "" if t.max_env_steps is None else figures.counted(t.max_env_steps, "env step"),
        "" if t.max_opts is None else figures.counted(t.max_opts, "opt step"),
        "" if t.max_time is None else figures.duration(t.max_time),
        "" if t.stop_return is None else f"a mean return of {figures.number(t.stop_return)}",
    )
    ratio = (
        "free-running"
        if t.opt_interval is None
        else f"{t.opt_interval:g} env step{'' if t.opt_interval == 1 else 's'} per opt step"
    )
    until = " or ".join(limit for limit in limits if limit)
    return f"{until}; {ratio} after {figures.counted(t.warmup_period, 'env step')} of warm-up"


def _differences(config: TrainConfig, typed: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """`key=value` words: what was typed, whatever it is, and what else differs from the schema's defaults."""
    defaults = dict(_leaves(_defaults_of(config)))
    by_hand, by_file = [], []
    for key, value in _leaves(config):
        if _was_typed(key, typed):
            by_hand.append(f"{key}={_shown(value)}")
        elif value != defaults[key] and not key.startswith(_NOT_SHOWN):
            by_file.append(f"{key}={_shown(value)}")
    return by_hand, by_file


def _defaults_of(config: TrainConfig) -> TrainConfig:
    """Defaults with the same kind of agent and buffer: theirs depend on it."""
    return TrainConfig(agent=type(config.agent)(), buffer=type(config.buffer)())


def _leaves(section: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything that can be set."""
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if dataclasses.is_dataclass(value):
            yield from _leaves(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", value


def _was_typed(key: str, typed: Mapping[str, str]) -> bool:
    """Whether the key itself was typed, or one inside its map (`env.kwargs.render_mode`)."""
    return key in typed or any(name.startswith(f"{key}.") for name in typed)


def _shown(value: Any) -> str:
    """A value as it is typed."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(_shown(item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{_shown(item)}" for name, item in value.items()) + "}"
    return str(value)


def _lines(label: str, text: str, width: int) -> list[str]:
    lead = label.ljust(_INDENT) if label else ""
    return textwrap.wrap(
        text,
        width,
        initial_indent=lead,
        subsequent_indent=" " * _INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _plural(n: int, one: str, many: str) -> str:
    return f"{figures.count(n)} {one if n == 1 else many}"
