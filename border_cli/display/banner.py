"""Before the start: what runs, with which values, and what it takes of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

import border_cli
from border_cli.config import presets, resources
from border_cli.config.convert import as_typed, dotted, to_plain
from border_cli.config.resolve import envs_per_actor, is_reproducible, n_actors, reopen
from border_cli.config.schema import GROUPS, BufferConfig, TrainConfig
from border_cli.core import format
from border_cli.display.output import wrapped

WIDTH = 100
_INDENT = 9
_NOT_SHOWN = (
    *("preset.", "agent.type", "env.type", "trainer.type", "env.id", "env.entry_point"),
    *("checkpoint.replay", "buffer.beta_opt_steps", "buffer.device", "agent.lr_opt_steps"),
    *("trainer.lockstep_steps", "env.action_mask", "env.categories"),
)
"""Keys that the first lines show, or that follow from the environment and from other keys."""


def banner(
    config: TrainConfig,
    typed: Mapping[str, str],
    replay_bytes: int,
    run_dir: Path | None,
    width: int = WIDTH,
    resumed: str = "",
    decided: str = "",
) -> list[str]:
    """Lines for a person, none wider than `width` unless a single word is.

    Args:
        typed: overrides by key, groups included, which are shown as they are.
        replay_bytes: what the replay takes once it is full.
        run_dir: None for a plan.
        resumed: what the run resumes from; empty for a new run.
        decided: what `auto` became, and why; empty where nothing was measured or left open.
    """
    differences, tuned = _differences(config, typed), presets.keys_of(config.preset.name)
    others = [value for key, value in differences.items() if key not in tuned]
    preset = preset_note(config)
    if len(differences) > len(others):
        n = format.counted(len(differences) - len(others), "other value")
        preset = f"{preset}; {n}, which --cfg job shows"
    kept = "not part of checkpoints" if config.checkpoint.replay == "none" else "part of each checkpoint"
    rows_of = format.counted(config.buffer.capacity, "row")
    processes, threads = resources.processes(config), resources.compute_threads(config)
    rows = (
        ("", f"border-cli {border_cli.__version__}: {_what(config)}"),
        ("preset", preset),
        ("resumed", resumed),
        ("budget", _budget(config)),
        ("typed", "  ".join(f"{key}={value}" for key, value in typed.items())),
        ("changed", "  ".join(others)),
        ("replay", f"{format.size(replay_bytes)} for {rows_of}, {kept}"),
        ("auto", decided),
        ("machine", f"processes: {processes}, compute threads: {threads}"),
        ("run", "" if run_dir is None else str(run_dir)),
    )
    named = (f"{label:<{_INDENT}}{text}" if label else text for label, text in rows if text)
    return [line for row in named for line in wrapped(row, width, " " * _INDENT).split("\n")]


def line_width(console: Console) -> int:
    """Columns for the banner on this console: no more than a terminal has."""
    return min(WIDTH, console.width) if console.is_terminal else WIDTH


def title(config: TrainConfig) -> str:
    """`<agent> on <environment>`."""
    return f"{config.agent.type} on {config.env.name}"


def preset_note(config: TrainConfig) -> str:
    """The preset in use, that there would be one for this environment id, or that there is none."""
    preset = config.preset
    if preset.name and preset.name != presets.NONE:
        return f"{preset.name}: {preset.expect}" if preset.expect else preset.name
    available = presets.preset_for(config.agent.type, config.env.name)
    if available and config.env.id.startswith("ALE/") and config.env.preprocess == "none":
        return f"none in use; env={available.partition('_')[2]} has a preset and Atari's preprocessing"
    if available:
        return f"none in use; preset={available} was tuned for {config.env.id}"
    return f"none for {title(config)}: the defaults stand"


def _what(config: TrainConfig) -> str:
    envs = envs_per_actor(config)
    if config.trainer.type == "sync":
        acting = f"sync with {format.counted(envs, 'environment')}"
    else:
        each = f" of {format.counted(envs, 'environment')}" if envs > 1 else ""
        acting = f"{config.trainer.type} with {format.counted(n_actors(config), 'actor')}{each}"
    bits = "" if is_reproducible(config) else ", not reproducible"
    return f"{title(config)}, {acting}, device {config.device}, seed {config.seed}{bits}"


def _budget(config: TrainConfig) -> str:
    t = config.trainer
    limits = (
        "" if t.max_env_steps is None else format.counted(t.max_env_steps, "env step"),
        "" if t.max_opts is None else format.counted(t.max_opts, "opt step"),
        "" if t.max_time is None else f"{format.duration(t.max_time)} after the start",
        "" if t.stop_return is None else f"a mean return of {format.number(t.stop_return)}",
    )
    ratio = "ratio not enforced"
    if t.opt_interval is not None:
        ratio = f"{t.opt_interval:g} env step{'' if t.opt_interval == 1 else 's'} per opt step"
    until = " or ".join(limit for limit in limits if limit)
    return f"{until}; {ratio} after {format.counted(t.warmup_period, 'env step')} of warm-up"


def _differences(config: TrainConfig, typed: Mapping[str, str]) -> dict[str, str]:
    """`key=value` of what differs from the schema's defaults, was not typed, and does not follow from other values."""
    sections: dict[str, Any] = {name: type(getattr(config, name))() for name in GROUPS}
    defaults = dotted(to_plain(TrainConfig(**sections))) | {"buffer.type": BufferConfig().type}
    differences = {}
    for key, value in dotted(to_plain(reopen(config))).items():
        name = key.removesuffix(".type")  # buffer.type is typed as buffer
        # env.kwargs.gravity is typed so, or as a part of env.kwargs
        is_typed = any(name == word or ("." in word and name.startswith(f"{word}.")) for word in typed)
        if value != defaults.get(key) and not is_typed and not key.startswith(_NOT_SHOWN):
            differences[key] = f"{name}={as_typed(value)}"
    return differences
