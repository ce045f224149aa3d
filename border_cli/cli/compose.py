"""From what was typed to a checked configuration: Hydra puts files together, our schema judges the result."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from border_cli.cli import overrides
from border_cli.cli.translate import strict_search_path, translated
from border_cli.config import checks, plugins, presets
from border_cli.config.convert import ConfigError, to_config
from border_cli.config.paths import conf_dir
from border_cli.config.registry import AGENTS, BUFFERS
from border_cli.config.schema import GROUPS, TrainConfig
from border_cli.core.errors import UsageError
from border_cli.runs.directory import run_name

HYDRA_VERSION_BASE = "1.3"
PRIMARY = "train"
_SEARCH = "hydra.searchpath"
_VARIABLE = re.compile(r"\$\{\s*oc\.env\b")


@dataclass(frozen=True)
class Composed:
    """A checked configuration and what Hydra knows beside it.

    choices: option of each config group · run_dir: what was typed for hydra.run.dir, resolved, or None.
    """

    config: TrainConfig
    choices: dict[str, str]
    run_dir: Path | None


class Composer:
    """Hydra over our files and the folders that the user named. A context manager: Hydra's state is global.

    typed: the words of the command line, read. config_dir: the folder of --config-dir.
    Raises UsageError, like all its methods, for what the user can mend.
    """

    def __init__(self, typed: Sequence[Override], config_dir: str | None) -> None:
        self._typed = list(typed)
        self._search = _search_word(_folders(config_dir) + overrides.typed_list(typed, _SEARCH))
        self._options: dict[str, list[str]] = {}
        self.typed = overrides.typed_values(typed)

    def __enter__(self) -> Composer:
        register_resolvers()
        with contextlib.ExitStack() as stack:
            stack.enter_context(initialize_config_dir(str(conf_dir()), version_base=HYDRA_VERSION_BASE))
            _offer_registered(self.choices)
            self._options.clear()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def choices(self, group: str) -> list[str]:
        """Options of a config group, those of the user's folders included; empty for what is no group."""
        if group not in self._options:
            with translated(), strict_search_path():
                loader = GlobalHydra.instance().config_loader()
                # With the primary config's name its file would be read each time, for a search path it does not have.
                options = loader.get_group_options(group, overrides=self._search)
            self._options[group] = sorted(options)
        return self._options[group]

    def words(self) -> list[str]:
        """The typed words as Hydra shall see them, the search path included."""
        typed = [o for o in self._typed if o.key_or_group != _SEARCH]
        return [*self._search, *overrides.for_hydra(typed, self.choices)]

    def compose(self, words: Sequence[str]) -> Composed:
        """Compose and check one job's words (as `words` or `overrides.expand` gives them)."""
        parsed = overrides.parse_words(words)
        overrides.check_single(parsed)
        with translated(), strict_search_path():
            whole = compose(PRIMARY, list(words), return_hydra_config=True)
            choices = {str(k): str(v) for k, v in whole.hydra.runtime.choices.items() if v is not None}
            run_dir = Path(whole.hydra.run.dir) if "hydra.run.dir" in self.typed else None
            data = plain_job(whole)
        typed = overrides.typed_values(parsed)
        return Composed(checked(data, choices, typed, self.choices("preset")), choices, run_dir)


def plain_job(composed: DictConfig) -> dict[str, Any]:
    """What Hydra composed, less its own section, as plain data with every interpolation resolved.

    Raises UsageError where a value comes from an environment variable: that is where people keep what no file may hold,
    and a run keeps its values in config.yaml, in its log and beside each model.
    """
    _refuse_variables(OmegaConf.to_container(composed, resolve=False))
    return {str(name): _plain(composed[name]) for name in composed if name != "hydra"}


def _refuse_variables(node: Any, key: str = "") -> None:
    """node: composed data, interpolations unresolved. key: its own, empty for the whole."""
    if isinstance(node, dict):
        for name, value in node.items():
            if key or name != "hydra":
                _refuse_variables(value, f"{key}.{name}" if key else str(name))
    elif isinstance(node, list):
        for value in node:
            _refuse_variables(value, key)
    elif isinstance(node, str) and _VARIABLE.search(node):
        raise UsageError(
            f"{key}={node}: the variable's value would be written to the files of the run\n"
            "allowed: a plain value, or an environment that reads the variable itself"
        )


def _plain(value: Any) -> Any:
    if OmegaConf.is_config(value):
        return OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
    return value


def checked(
    data: dict[str, Any], choices: Mapping[str, Any], typed: Mapping[str, str], preset_options: Sequence[str]
) -> TrainConfig:
    """The typed configuration of composed data, after every check.

    choices: option of each group · typed: keys that were typed · preset_options: presets that exist.
    """
    checks.check_typed(typed)
    listed = data.get("plugins")
    if isinstance(listed, list):
        plugins.load(name for name in listed if isinstance(name, str))
    _name_preset(data, choices.get("preset"), preset_options)
    try:
        config = to_config(data)
    except ConfigError as e:
        raise _with_origin(e, data, choices, typed) from e
    checks.apply_typed_budget(config, typed)
    checks.check(config)
    checks.check_effect(config, typed)
    return config


def register_resolvers() -> None:
    """Make `${border.run_name:agent,env,…}` known to the files under conf/."""
    OmegaConf.register_new_resolver("border.run_name", _resolve_run_name, replace=True)


def _resolve_run_name(agent: str, env: str, section: DictConfig) -> str:
    return run_name(agent, env, str(section.get("id") or section.get("entry_point") or ""))


def _folders(config_dir: str | None) -> list[str]:
    if config_dir is None:
        return []
    path = Path(config_dir).resolve()
    if not path.is_dir():
        raise UsageError(f"--config-dir: no folder {config_dir}\nallowed: a folder with group files")
    return [f"file://{path}"]


def _search_word(folders: Sequence[str]) -> list[str]:
    return [f"{_SEARCH}=[{','.join(overrides.quoted(folder) for folder in folders)}]"] if folders else []


def _offer_registered(choices: overrides.Choices) -> None:
    """Make agents and buffers of plugins options, with their schema's defaults, where no file offers them."""
    for group, table in (("agent", AGENTS), ("buffer", BUFFERS)):
        for name in set(table) - set(choices(group)):
            ConfigStore.instance().store(group=group, name=name, node={"type": name}, provider="border_cli")


def _name_preset(data: dict[str, Any], choice: Any, options: Sequence[str]) -> None:
    """A preset of the user's need not repeat its own name."""
    section = data.setdefault("preset", {})
    if choice in options and choice != presets.NONE and isinstance(section, dict):
        section.setdefault("name", choice)


def _with_origin(
    error: ConfigError, data: Mapping[str, Any], choices: Mapping[str, Any], typed: Mapping[str, str]
) -> UsageError:
    """The error with the file its key may stand in, unless it was typed."""
    if any(_within(error.key, key) or _within(key, error.key) for key in typed if key not in GROUPS):
        return error
    group = error.key.partition(".")[0]
    files = [f"{group}/{choices[group]}.yaml"] if group in GROUPS and choices.get(group) else []
    section = data.get("preset")
    if isinstance(section, dict) and section.get("name", presets.NONE) != presets.NONE and group != "preset":
        files.append(f"preset/{section['name']}.yaml")
    if not files:
        return error
    first, _, rest = str(error).partition("\n")
    return UsageError(f"{first} (in {' or '.join(files)})\n{rest}")


def _within(key: str, outer: str) -> bool:
    return key == outer or key.startswith(f"{outer}.")
