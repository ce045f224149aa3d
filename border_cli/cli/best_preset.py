"""The best configuration of a sweep as a preset, and the command that uses it."""

from __future__ import annotations

import shlex
from pathlib import Path

from border_cli.cli.compose import Composed, Composer
from border_cli.run.directory import env_slug, folder_error, shown
from border_cli.sweeps.results import BESIDE_PRESETS, write_preset

_ALSO_TYPED = ("plugins", "env.imports", "env.kwargs")
"""What is typed beside a preset, and may be in it too: without it there is no such environment."""


def write_best(composer: Composer, composed: Composed, folder: Path, expect: str, name: str) -> str:
    """Write a configuration as the best preset of its environment. The command that uses it.

    Args:
        folder: of the sweep.
        expect: what a run with the preset should reach.
        name: what distinguishes the configuration.
    """
    words = _beside_preset(composed)
    has_id = any(word.startswith(("env.id=", "env.entry_point=")) for word in words)
    slug = env_slug("gym" if has_id else composed.choices["env"], composed.config.env.name)
    path = folder / "preset" / f"best_{slug}.yaml"
    folders = composer.words_for_folders(shown(folder))
    command = shlex.join(["border-train", *folders, *words, f"preset={path.stem}"])
    base = composer.compose([*words, "preset=none"]).config
    try:
        path.parent.mkdir(exist_ok=True)
        write_preset(path, composed.config, base, expect, f"{shown(folder)}, {name}", command)
    except OSError as e:
        raise folder_error(e, path) from e
    return command


def _beside_preset(composed: Composed) -> list[str]:
    """What is typed beside a preset with the values of this configuration."""
    env, words = composed.config.env, list[str]()
    for word in (override.lstrip("+") for override in composed.overrides):
        key = word.partition("=")[0]
        is_known = key in BESIDE_PRESETS or f"{key}.type" in BESIDE_PRESETS or key in _ALSO_TYPED
        if is_known or key.startswith("env.kwargs."):
            words.append(word)
    keys = {word.partition("=")[0] for word in words}
    # A group of the user's own, such as experiment=…, may have chosen agent and environment.
    chosen = [f"{group}={composed.choices[group]}" for group in ("agent", "env") if group not in keys]
    if composed.choices["env"] == "gym" and not keys & {"env.id", "env.entry_point"}:
        chosen.append(f"env.entry_point={env.entry_point}" if env.entry_point else f"env.id={env.id}")
    return chosen + words
