"""Presets: tuned values for one agent on one environment, as YAML files that Hydra picks by name."""

from __future__ import annotations

from functools import cache
from typing import Any

from border_cli.config.paths import conf_dir
from border_cli.config.yaml_text import load

NONE = "none"


def preset_for(agent: str, env_id: str) -> str | None:
    """Name of the shipped preset for this agent on this environment id, or None.

    For the hint under `env=gym env.id=…`, where no preset is picked because none goes by the option's name.
    """
    for name, preset in _shipped().items():
        if name.startswith(f"{agent}_") and preset.get("env_id") == env_id:
            return name
    return None


def is_for_another(preset: str, agent: str) -> bool:
    """Whether a shipped preset is one of another agent."""
    # That it is there is enough: every command asks, and reading it would take longer.
    file = conf_dir() / "preset" / f"{preset}.yaml"
    return preset != NONE and file.exists() and not preset.startswith(f"{agent}_")


@cache
def _shipped() -> dict[str, dict[str, Any]]:
    """The `preset` section of each shipped file, by file name."""
    files = sorted((conf_dir() / "preset").glob("*.yaml"))
    loaded = {file.stem: load(file) for file in files}
    return {name: data["preset"] for name, data in loaded.items() if name != NONE}
