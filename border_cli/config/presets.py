"""The shipped config files: where they are, and which preset is for which agent and environment.

A preset is named `<agent>_<env>`, by the options of these groups; a variant, which is only used when it is typed,
`<agent>_<env>_<variant>`. One file may hold those of a family of environments: the values that they share, and under
`preset.environments` what is special to each.
"""

from __future__ import annotations

import copy
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
FAMILIES = ("atari", "mujoco")
"""Last parts of the names of files that hold presets of several environments."""
INSTEAD = "leave preset out to use the tuned one, or preset=none"


def conf_dir() -> Path:
    """The folder of the config groups: inside the package when installed, beside it in a checkout."""
    installed = _PACKAGE / "conf"
    return installed if installed.is_dir() else _PACKAGE.parent / "conf"


def preset_for(agent: str, env_id: str) -> str | None:
    """Name of the shipped preset for this agent on this environment id, or None.

    For the hint under `env=gym env.id=…`, where no preset is picked because none has that option's name.
    """
    presets = shipped().items()
    fits = (
        n for n, values in presets if n.startswith(f"{agent}_") and values["preset"].get("env_id") == env_id
    )
    return next(fits, None)


def check_choice(preset: str, agent: str, env: str) -> None:
    """Raise UsageError for a shipped preset of another agent, or of a family without the shipped environment `env`."""
    file = file_of(preset)
    family = [name.split("_")[1] for name in in_families() if file_of(name) == file]
    if (conf_dir() / file).exists() and preset != NONE and not preset.startswith(f"{agent}_"):
        other = f"another agent than agent={agent}"
    elif family and env_ids().get(env) and env not in family:
        other = f"other environments than env={env}"
    else:
        return
    raise UsageError(f"preset={preset} was tuned for {other}", allowed=INSTEAD)


def tuned_for() -> dict[str, list[str]]:
    """The agents with a preset by the option of their environment, for the help; not those of whole families."""
    agents: dict[str, list[str]] = {}
    for name, values in shipped().items():
        agent, env, *variant = name.split("_")
        if values["preset"].get("env_id") and not variant:
            agents.setdefault(env, []).append(agent)
    return dict(sorted(agents.items()))


def variants() -> list[str]:
    """Names of the shipped presets that are used only when they are typed."""
    return sorted(name for name in shipped() if name.count("_") == 2)


def file_of(preset: str) -> str:
    """The file that has the values of a preset, below the folder of configurations or the user's."""
    return f"preset/{in_families()[preset][0] if preset in in_families() else preset}.yaml"


def keys_of(preset: str) -> set[str]:
    """The dotted keys that a shipped preset has values for."""
    values = shipped().get(preset) or {}
    return {f"{group}.{key}" for group in GROUPS for key in values.get(group) or {}}


@cache
def in_families() -> dict[str, tuple[str, dict[str, Any]]]:
    """Presets that share a file with others, by their name: the name of that file, and their values."""
    members = {}
    files = (file for family in FAMILIES for file in sorted((conf_dir() / "preset").glob(f"*_{family}.yaml")))
    for file in files:
        shared = _parsed(file)
        environments = shared["preset"].pop("environments")
        agent = file.stem.partition("_")[0]
        for env, special in environments.items():
            values = copy.deepcopy(shared)
            values["preset"]["name"] = f"{agent}_{env}"
            for key, value in special.items():
                if key in GROUPS:
                    values.setdefault(key, {}).update(value)
                else:
                    values["preset"][key] = value
            members[f"{agent}_{env}"] = (file.stem, values)
    return members


@cache
def env_ids() -> dict[str, str]:
    """The shipped options of `env`, each with its gymnasium id, empty where it has none."""
    files = sorted((conf_dir() / "env").glob("*.yaml"))
    ids = {file.stem: re.search(r"^id: (\S+)$", file.read_text("utf-8"), re.MULTILINE) for file in files}
    return {option: match[1].strip('"') if match else "" for option, match in ids.items()}


@cache
def shipped() -> dict[str, dict[str, Any]]:
    """The values of every shipped preset by its name."""
    files = sorted((conf_dir() / "preset").glob("*_*.yaml"))
    loaded = {file.stem: _parsed(file) for file in files}
    return loaded | {name: values for name, (_, values) in in_families().items()}


def _parsed(file: Path) -> Any:
    return _SAFE_LOADER(file.read_text(encoding="utf-8")).get_single_data()
