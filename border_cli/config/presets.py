"""The shipped config files: where they are, and which preset is for which agent and environment.

A preset is named `<agent>_<env>`, by the options of these groups; a variant, which is only used when it is typed,
`<agent>_<env>_<variant>`. The preset of a family of environments, such as dqn_atari, has a pattern in place of the
environment's id. The other presets of the family name it in their defaults list, and contain only what differs.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from border_cli.config.schema import GROUPS
from border_cli.core.errors import UsageError

_PACKAGE = Path(__file__).resolve().parents[1]
_SAFE_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the first is ten times as fast
NONE = "none"
INSTEAD = "leave preset out to use the tuned one, or preset=none"


def conf_dir() -> Path:
    """The folder of the config groups: inside the package when installed, beside it in a checkout."""
    installed = _PACKAGE / "conf"
    return installed if installed.is_dir() else _PACKAGE.parent / "conf"


def preset_for(agent: str, env_id: str) -> str | None:
    """Name of the shipped preset for this agent on this environment id, or None.

    For the hint under `env=gym env.id=…`, where no preset is picked because none has that option's name.
    """
    of_agent = ((name, values) for name, values in shipped().items() if name.startswith(f"{agent}_"))
    return next((name for name, values in of_agent if values["preset"]["env_id"] == env_id), None)


def check_agent(preset: str, agent: str) -> None:
    """Raise UsageError for a shipped preset of another agent."""
    if preset != NONE and not preset.startswith(f"{agent}_") and _file(preset).exists():
        raise UsageError(f"preset={preset} was tuned for another agent than agent={agent}", allowed=INSTEAD)


def tuned_for() -> dict[str, list[str]]:
    """The agents with a preset by the option of their environment, for the help; not those of whole families."""
    agents: dict[str, list[str]] = {}
    for name, values in shipped().items():
        agent, env, *variant = name.split("_")
        if "*" not in values["preset"]["env_id"] and not variant:
            agents.setdefault(env, []).append(agent)
    return dict(sorted(agents.items()))


def keys_of(preset: str) -> set[str]:
    """The dotted keys that a shipped preset has values for."""
    values = shipped().get(preset, {})
    return {f"{group}.{key}" for group in GROUPS for key in values.get(group, {})}


@cache
def env_ids() -> dict[str, str]:
    """The shipped options of `env`, each with its gymnasium id, empty where it has none."""
    files = sorted((conf_dir() / "env").glob("*.yaml"))
    ids = {file.stem: re.search(r"^id: (\S+)$", file.read_text("utf-8"), re.MULTILINE) for file in files}
    return {option: match[1] if match else "" for option, match in ids.items()}


@cache
def shipped() -> dict[str, dict[str, Any]]:
    """The values of every shipped preset by its name, with those of its family."""
    return {file.stem: _values(file.stem) for file in sorted((conf_dir() / "preset").glob("*_*.yaml"))}


@cache
def _values(preset: str) -> dict[str, Any]:
    read = _SAFE_LOADER(_file(preset).read_text(encoding="utf-8")).get_single_data()
    parent, *_ = read.pop("defaults", [None])
    values = {} if parent is None else dict(_values(parent))
    return values | {group: values.get(group, {}) | section for group, section in read.items()}


def _file(preset: str) -> Path:
    return conf_dir() / "preset" / f"{preset}.yaml"
