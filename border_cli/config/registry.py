"""Agents, buffers, environments, recorders, evaluators and actor managers by the name of their `type`.

A name leads to the config dataclass of its section and to an import path. Reading this table imports neither torch nor
gymnasium, and no agent. A package adds its own with `register` when it is imported: by `plugins=[…]`, or as an
entry point of the group `border_cli.plugins`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from border_cli.config import schema
from border_cli.core.errors import BorderError, UsageError, nearest


@dataclass(frozen=True)
class Entry:
    """The config dataclass of a section, and the import path `module` or `module:name` of what makes the configured thing.

    The class may also be an import path. `factory` is empty for what `border_cli.run.build` makes itself.
    """

    config_class: type | str
    factory: str = ""

    @property
    def config(self) -> type:
        return import_path(self.config_class) if isinstance(self.config_class, str) else self.config_class

    def load(self) -> Any:
        """Import the module, or the object in it. Raises UsageError where it does not exist."""
        return import_path(self.factory)


def _agent(family: str, config: str) -> Entry:
    package = f"border_cli.agents.{family}"
    return Entry(f"{package}.config:{config}", f"{package}.agent")


AGENTS: dict[str, Entry] = {
    "dqn": _agent("dqn", "DqnConfig"),
    "c51": _agent("dqn", "C51Config"),
    "qrdqn": _agent("dqn", "QrDqnConfig"),
    "iqn": _agent("dqn", "IqnConfig"),
    "rainbow": _agent("dqn", "RainbowConfig"),
    "btr": _agent("dqn", "BtrConfig"),
    "r2d2": _agent("dqn", "R2d2Config"),
    "sac": _agent("sac", "SacConfig"),
    "td3": _agent("sac", "Td3Config"),
    "tqc": _agent("sac", "TqcConfig"),
    "crossq": _agent("sac", "CrossqConfig"),
    "rsac": _agent("sac", "RsacConfig"),
    "flashsac": _agent("flashsac", "FlashsacConfig"),
    "dsac": _agent("dsac", "DsacConfig"),
}
BUFFERS: dict[str, Entry] = {
    "uniform": Entry(schema.BufferConfig, "border_cli.replay.buffer"),
    "prioritized": Entry("border_cli.replay.config:PrioritizedConfig", "border_cli.replay.buffer"),
}
ENVS: dict[str, Entry] = {name: Entry(schema.EnvConfig) for name in ("gym", "simulator")}
ACTOR_MANAGERS: dict[str, Entry] = {
    "process": Entry(schema.ActorManagerConfig, "border_cli.actors.lockstep:make_manager"),
    "ray": Entry(schema.RayConfig, "border_cli.actors.lockstep:make_manager"),
}
TABLES: dict[str, dict[str, Entry]] = {
    "agent": AGENTS,
    "env": ENVS,
    "buffer": BUFFERS,
    "actor_manager": ACTOR_MANAGERS,
    "evaluator": {n: Entry(schema.EvaluatorConfig) for n in ("auto", "inline", "process", "shared")},
    "recorder": {"default": Entry(schema.RecorderConfig)},
}
"""By the section of the configuration whose `type` they hold."""
IMPORTABLE = ("actor_manager", "evaluator", "recorder")
"""Sections whose `type` may also be an import path `module:name`; its dataclass is then the section's own."""


def register(group: str, name: str, config: type, factory: str) -> None:
    """Add a `type` to a group of the configuration, such as `agent.type=<name>`.

    Args:
        group: A key of `TABLES`.
        name: The type, and the option `<group>=<name>` where no file has that name.
        config: The dataclass of the section, derived from that of the group; its fields are the section's keys.
        factory: Import path. agent: a module that offers what `border_cli.agents.agent` lists; buffer: a module with the
            functions of `border_cli.replay.buffer`. Any other: a function `module:name`: `factory(config, **kwargs)`
            returns a gymnasium.Env, with the arguments of `env.kwargs` and `render_mode` where episodes are rendered;
            `factory(config, run_dir)` returns a Recorder that gets every record beside the files; `border_cli.run.build`
            documents the arguments for an evaluator and an actor manager.
    """
    entry = Entry(config, factory)
    if TABLES[group].setdefault(name, entry) != entry:
        raise ValueError(f"{group} {name!r} is registered twice")


def find(group: str, name: str) -> Entry | None:
    """The entry of a section's `type`, which may be an import path in some sections; None where there is none."""
    table = TABLES[group]
    if name not in table and group in IMPORTABLE and ":" in name:
        return Entry(next(iter(table.values())).config, name)
    return table.get(name)


def import_paths(data: Mapping[str, Any]) -> dict[str, str]:
    """The import paths in a plain configuration that replace a part of ours, by their key."""
    sections = {group: data.get(group) for group in IMPORTABLE}
    named = {f"{group}.type": s.get("type") for group, s in sections.items() if isinstance(s, Mapping)}
    paths = {key: path for key, path in named.items() if isinstance(path, str) and ":" in path}
    processor, agent = data.get("step_processor"), data.get("agent")
    paths |= {} if processor is None else {"step_processor": str(processor)}
    encoder = agent.get("encoder") if isinstance(agent, Mapping) else None
    return paths | ({"agent.encoder": encoder} if isinstance(encoder, str) and ":" in encoder else {})


def require_package(package: str, option: str, extra: str) -> None:
    """Raise UsageError where a package is not installed that an option needs. extra: of border-cli, which has it."""
    if importlib.util.find_spec(package) is None:
        allowed = f"pip install 'border-cli[{extra}]'"
        raise UsageError(f"{option}: the package {package} is not installed", allowed=allowed)


ENTRY_POINTS = "border_cli.plugins"


def import_installed_plugins() -> None:
    """Import what installed packages offer in the entry-point group."""
    import_plugins(entry.module for entry in importlib.metadata.entry_points(group=ENTRY_POINTS))


def import_plugins(modules: Iterable[str]) -> None:
    """Import modules by name. Raises UsageError for one that does not exist, BorderError for one that fails."""
    for module in modules:
        import_path(module, "plugins")


def nearest_path(path: str) -> str | None:
    """The import path `module:name` that was probably meant by `module.name`; None without a dot or with a colon."""
    module, dot, name = path.rpartition(".")
    return f"{module}:{name}" if dot and ":" not in path else None


def module_path(path: str) -> str:
    """`package.module:name` for `./package/module.py:name`."""
    file, colon, name = path.replace("\\", "").partition(":")
    return f"{'.'.join(Path(file.removesuffix('.py')).parts)}{colon}{name}"


def _nearest_module(module: str, rest: str) -> str | None:
    """The path of a module in the current folder that was probably meant, such as by `./my_module.py`."""
    name, folder = module_path(module), Path.cwd()
    files = [file for pattern in ("*.py", "*/*.py") for file in folder.glob(pattern)]
    match = nearest(name, (module_path(str(file.relative_to(folder))) for file in files))
    return f"{match}{rest}" if match not in (None, module) else None


def import_path(path: str, key: str = "") -> Any:
    """The module `module`, or the object `module:name` in it. key: where the path comes from, for messages.

    A module that is nowhere else is looked for in the current folder.

    Raises UsageError where the module or the name does not exist, BorderError where the module fails on import.
    """
    module, colon, name = path.partition(":")
    label = f"{key}: " if key else ""
    root, folder = module.partition(".")[0], str(Path.cwd())
    try:
        if "/" in module or not all(module.split(".")):
            raise ModuleNotFoundError(name=module)
        if root not in sys.modules and folder not in sys.path and importlib.util.find_spec(root) is None:
            sys.path.append(folder)  # last: a file there takes no other module's place
        imported = importlib.import_module(module)
    except Exception as e:
        if isinstance(e, BorderError):
            raise
        if isinstance(e, ModuleNotFoundError) and f"{module}.".startswith(f"{e.name}."):
            raise UsageError(
                f"{label}there is no module {module!r}",
                nearest=_nearest_module(module, colon + name),
                allowed="a module in the current folder, on PYTHONPATH, or installed",
            ) from e
        raise BorderError(f"{label}{module} failed on import\n{type(e).__name__}: {e}") from e
    if not colon:
        return imported
    if not hasattr(imported, name):
        match = nearest(name, vars(imported))
        raise UsageError(
            f"{label}the module {module} has no {name!r}",
            nearest=match and f"{module}:{match}",
            allowed="module:name",
        )
    return getattr(imported, name)
