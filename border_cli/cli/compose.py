"""From overrides to a checked configuration: Hydra merges the YAML files, and our schema checks the result."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from hydra import version
from hydra._internal.callbacks import Callbacks
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobStatus, run_job
from hydra.errors import HydraException
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from border_cli.cli.overrides import (
    check_single,
    for_hydra,
    override_values,
    parse_overrides,
    quoted,
    typed_names,
)
from border_cli.config import presets, registry, validate
from border_cli.config.convert import default_values, describe, dotted, read_section, to_config, to_plain
from border_cli.config.presets import conf_dir
from border_cli.config.registry import TABLES
from border_cli.config.resolve import with_trained_agent, with_typed_budget
from border_cli.config.schema import GROUPS, TrainConfig
from border_cli.core.errors import UsageError, add_note, first_line
from border_cli.run.directory import names_in, run_name

T = TypeVar("T")
PRIMARY = "train"
_SEARCH = "hydra.searchpath"
_VARIABLE = re.compile(r"\$\{\s*oc\.env\b")
_HYDRAS_ERRORS = (HydraException, OmegaConfBaseException)

OmegaConf.register_new_resolver(  # for the files under conf/; at import, so that a launcher's process has it too
    "border.run_name",
    lambda name, agent, env, section: run_name(
        name, agent, env, section.get("id") or section.get("entry_point") or ""
    ),
    replace=True,
)


@dataclass(frozen=True)
class Composed:
    """A checked configuration with the Hydra config that it came from."""

    config: TrainConfig
    hydra_config: DictConfig
    context: HydraContext | None  # None where Hydra calls the job already
    run_dir: Path | None  # the typed `hydra.run.dir`, or the directory of a job of a sweep

    @property
    def choices(self) -> Mapping[str, str]:
        """The chosen option of each group, those of Hydra included."""
        return cast(Mapping[str, str], self.hydra_config.hydra.runtime.choices)

    @property
    def overrides(self) -> tuple[str, ...]:
        """The overrides that this was composed from, without those of Hydra's own section."""
        return tuple(self.hydra_config.hydra.overrides.task)

    @property
    def run_name(self) -> str:
        """Name of the run directory, without its date and time."""
        return run_name(self.config.name, self.choices["agent"], self.choices["env"], self.config.env.name)

    def place_in_sweep(self, folder: Path, number: int) -> Path:
        """Make this a job of a sweep. Returns its directory."""
        hydra = self.hydra_config.hydra
        with read_write(hydra), open_dict(hydra):
            hydra.mode, hydra.sweep.dir = RunMode.MULTIRUN, str(folder)
            hydra.job.num, hydra.job.id = number, str(number)
        return folder / _folder(self.hydra_config, self.config, "hydra.sweep.subdir")

    def run_as_job(self, run_dir: Path, job: Callable[[], T]) -> T:
        """Call `job` as Hydra calls one: `.hydra/` is written to run_dir, callbacks and `hydra.job.chdir` apply."""
        if self.context is None:
            return job()
        with read_write(self.hydra_config.hydra):
            self.hydra_config.hydra.run.dir = str(run_dir)
        done = run_job(lambda _: job(), self.hydra_config, "hydra.run.dir", None, self.context)
        result: Any = done._return_value  # the property `return_value` would print an error, too
        if done.status is JobStatus.FAILED:
            raise result
        return cast(T, result)


class Composer:
    """Hydra over conf/ and the user's folders, with the rules of Hydra 1.3 (`version_base`).

    It imports the plugins that were typed. All methods raise UsageError for a mistake of the user. config_dir: the folder
    of --config-dir. `search` is the override with the user's folders, where there are any.
    """

    def __init__(self, overrides: Sequence[Override], config_dir: str | None = None) -> None:
        typed = typed_names(overrides)
        registry.import_plugins(typed.get("plugins", ()))
        self._folders = [folder for folder in (config_dir, *typed.get(_SEARCH, [])) if folder]
        for folder in self._folders:
            if "://" not in folder and not Path(folder).is_dir():
                name = "--config-dir" if folder == config_dir else _SEARCH
                raise UsageError(f"{name}: no folder {folder}", allowed="a folder with group files")
        urls = (f if "://" in f else f"file://{Path(f).resolve()}" for f in self._folders)
        self.search = [f"{_SEARCH}=[{','.join(map(quoted, urls))}]"] if self._folders else []
        self._overrides = [override for override in overrides if override.key_or_group != _SEARCH]
        version.setbase("1.3")
        loader = ConfigLoaderImpl(create_config_search_path(str(conf_dir())))
        self.hydra = Hydra("border-train", loader)
        self._find_files()
        for group, table in TABLES.items():
            for name in set(table) - set(self.choices(group)):  # of plugins without a file
                ConfigStore.instance().store(group=group, name=name, node={"type": name})
                self._find_files()

    def _find_files(self) -> None:
        loader: Any = self.hydra.config_loader
        with translated():
            _, self._files = loader._parse_overrides_and_create_caching_repo(None, self.search)

    def words_for_folders(self, more: Path) -> list[str]:
        """The words that add a folder with group files to those of the user."""
        main, *others = [*self._folders, str(more)]
        return ["--config-dir", main, *([f"{_SEARCH}=[{','.join(others)}]"] if others else [])]

    def choices(self, group: str) -> list[str]:
        """The options of a config group, with those of the user's folders; empty for a name that is no group."""
        return sorted(self._files.get_group_options(group, ObjectType.CONFIG))

    def argv(self) -> list[str]:
        """The overrides as Hydra takes them, with the search path."""
        return [*self.search, *map(self._for_hydra, self._overrides)]

    def _for_hydra(self, override: Override) -> str:
        agent = override_values(self._overrides).get("agent", "dqn")
        return for_hydra(override, self.choices, agent)

    def merge(self, overrides: Sequence[Override] | None = None) -> DictConfig:
        """What Hydra composes for one job's overrides, its own section included; nothing is checked.

        overrides: by default those of the command line that have a single value. Typed overrides of Hydra's section are
        added, because sweepers pass on only those of the job.
        """
        typed = [override for override in self._overrides if not override.is_sweep_override()]
        overrides = typed if overrides is None else overrides
        check_single(overrides)
        job = [self._for_hydra(o) for o in overrides if o.key_or_group != _SEARCH]
        of_hydra = (self._for_hydra(o) for o in typed if o.is_hydra_override())
        words = [*self.search, *(word for word in of_hydra if word not in job), *job]
        with translated():
            return cast(DictConfig, self.hydra.compose_config(PRIMARY, words, RunMode.RUN, from_shell=False))

    def compose(self, argv: Sequence[str] | None = None) -> Composed:
        """Compose and check one job's overrides, by default those of the command line."""
        overrides = self._overrides if argv is None else parse_overrides(argv)
        chosen = typed = override_values(overrides)
        try:
            merged = self.merge(overrides)
            chosen = merged.hydra.runtime.choices
            config = check_composed(merged, chosen, typed, self.choices("preset"))
        except UsageError as e:
            key = re.split(r"[^\w.]", str(e), maxsplit=1)[0]
            folders = [folder.removeprefix("file://") for folder in self._folders]
            files = [Path(f, group, f"{name}.yaml") for f in folders for group, name in chosen.items()]
            files = [file for file in files if file.is_file() and str(file) not in str(e)]
            of_group = [file for file in files if key.partition(".")[0] == file.parent.name]
            if key in typed:  # the mistake was typed, or it is in the file of a typed group
                files = of_group if key in GROUPS else []
            if files:
                add_note(e, f"in {' or '.join(map(str, of_group or files))}")
            raise
        run_dir = Path(_folder(merged, config, "hydra.run.dir")) if "hydra.run.dir" in typed else None
        return Composed(config, merged, HydraContext(self.hydra.config_loader, Callbacks(merged)), run_dir)


def _folder(merged: DictConfig, config: TrainConfig, key: str) -> str:
    """A folder of Hydra's section, whose interpolations may name any key of the configuration."""
    current = HydraConfig.instance()
    before = current.cfg
    current.set_config(merged)  # for interpolations such as ${hydra:job.num}
    try:
        with translated():
            values = OmegaConf.merge(to_plain(config), merged)  # those too that no file names
            folder = OmegaConf.select(values, key, throw_on_missing=True)
    finally:
        current.cfg = before  # a program that uses us may have its own
    if not folder:
        raise UsageError(f"{key}=: the value is missing", allowed=f"{key}=<folder>")
    return str(folder)


def hydra_section(cls: type[T], merged: DictConfig, name: str) -> T:
    """The settings of the launcher or the sweeper, as an instance of their dataclass. Raises UsageError."""
    section: Any = OmegaConf.to_container(merged.hydra[name])
    return read_section(cls, {key: section[key] for key in section if key != "_target_"}, f"hydra.{name}")


def check_composed(
    composed: DictConfig, choices: Mapping[str, Any], typed: Mapping[str, str], preset_options: Sequence[str]
) -> TrainConfig:
    """`typed_config` with the budget that was typed, after every check. typed: the overrides, by key."""
    config = typed_config(composed, choices, preset_options)
    config = with_trained_agent(with_typed_budget(config, typed), typed)
    validate.validate(config)
    validate.check_effect(config, typed)
    return config


def typed_config(
    composed: DictConfig, choices: Mapping[str, Any], preset_options: Sequence[str]
) -> TrainConfig:
    """The typed configuration of what Hydra composed, with or without Hydra's own section.

    choices: the chosen option of each group · preset_options: the presets that exist.
    """
    data = plain_data(composed)
    registry.import_plugins(names_in(data.get("plugins")))
    section, choice = data.setdefault("preset", {}), choices.get("preset")
    if choice in preset_options and choice != presets.NONE and isinstance(section, dict):
        section["name"] = choice
    agent = data.get("agent")
    presets.check_agent(str(choice), str(agent.get("type")) if isinstance(agent, dict) else "")
    return to_config(data)


def plain_data(composed: DictConfig) -> dict[str, Any]:
    """What Hydra composed, without its own section, as plain data with every interpolation resolved.

    Raises UsageError for a value from an environment variable: people keep secrets there, and a run writes its values down.
    """
    unresolved: Any = OmegaConf.to_container(composed, resolve=False)
    unresolved.pop("hydra", None)
    for key, value in dotted(unresolved).items():
        if _VARIABLE.search(str(value)):
            raise UsageError(
                f"{key}={value}: the variable's value would be written to the files of the run",
                allowed="a plain value, or an environment that reads the variable itself",
            )
    with translated():
        of_run: Any = OmegaConf.masked_copy(composed, list(unresolved))
        if "${" in str(unresolved):  # which may name any key
            of_run = OmegaConf.merge(default_values(unresolved), of_run)
        return cast(dict[str, Any], OmegaConf.to_container(of_run, resolve=True, throw_on_missing=True))


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise UsageError for what goes wrong while Hydra composes."""
    try:
        yield
    except YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        where = mark.name if mark else "a configuration file"
        raise UsageError(f"{where}: not valid YAML\n{describe(e)}") from e
    except (*_HYDRAS_ERRORS, OSError, RecursionError, ValueError) as e:
        # The cause names the mistake, where Hydra has wrapped it.
        cause = e.__cause__ if isinstance(e.__cause__, _HYDRAS_ERRORS) else e
        key = getattr(cause, "full_key", None) or getattr(e, "full_key", None)
        what = first_line(cause)
        raise UsageError(
            "the configuration cannot be composed\n" + (f"{key}: {what}" if key and key not in what else what)
        ) from e
