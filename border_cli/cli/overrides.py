"""The command line: flags and settings by argparse, overrides (`key=value`) by Hydra's grammar.

Hydra refuses a new key without `+` and an existing key with it, and it checks neither names nor types. Every override is
therefore given to Hydra as `++key=value`, and the schema in `border_cli.config` checks the composed result.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, Quote, QuotedString
from hydra.errors import OverrideParseException

from border_cli.cli.entry import read_page, show
from border_cli.config.convert import (
    all_keys,
    known_fields,
    known_keys,
    nearest_key,
    read_section,
)
from border_cli.config.registry import module_path
from border_cli.config.schema import GROUPS
from border_cli.core.errors import UsageError, nearest
from border_cli.run.directory import names_in


class Parser(argparse.ArgumentParser):
    """argparse for flags. Settings of the form `key=value` are read like values of the configuration.

    settings: a dataclass of options, None for a command without settings · overrides: beginnings of the arguments that
    `read_paths` takes for overrides · composes: whether the command composes a configuration, with --config-dir.
    """

    def __init__(
        self, prog: str, settings: type | None = None, overrides: tuple[str, ...] = (), composes: bool = False
    ) -> None:
        super().__init__(prog=prog, add_help=False, allow_abbrev=False)
        self._class, self._settings = settings, {} if settings is None else known_keys({}, settings)
        self._overrides = overrides
        self.add_argument("--help", "-h", action="store_true")
        self.add_argument("--version", action="store_true")
        if composes:
            self.add_argument("--config-dir", "-cd")

    def answers(self, flags: argparse.Namespace) -> bool:
        """Show the help page or the version, if one of them is asked for; whether one was."""
        if flags.help:
            show(read_page(self.prog.removeprefix("border-")))
        elif flags.version:
            show(f"border-cli {version('border-cli')}")
        return bool(flags.help or flags.version)

    def read(self, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """The flags and settings, and the remaining arguments in order. Raises UsageError for an unknown flag."""
        typed: dict[str, Any] = {}
        others = []
        sections = {key.rpartition(".")[0] for key in self._settings} - {""}
        for arg in argv:
            key, equals, value = arg.lstrip("+").partition("=")
            section, _, name = key.rpartition(".")
            if not equals or not (key in self._settings or section in sections):
                others.append(arg)
            elif not value:
                about = self._settings[key].help if key in self._settings else "a value"
                raise UsageError(f"{key}=: the value is missing", allowed=about)
            else:
                values = typed.setdefault(section, {}) if section else typed
                values[name] = None if value == "null" else unquoted(value)
        flags, rest = self.parse_known_args(others)
        if unknown := [arg.partition("=")[0] for arg in rest if arg.startswith("-")]:
            known = [name for name in self._option_string_actions if name.startswith("--")]
            key = unknown[0].lstrip("-").replace("-", "_")
            match = f"{key}=<value>" if key in self._settings else nearest(unknown[0], known)
            raise UsageError(f"there is no flag {unknown[0]}", nearest=match, allowed=known)
        if self._class is not None:
            vars(flags).update(vars(read_section(self._class, typed, "")))
        return flags, rest

    def read_paths(self, argv: Sequence[str]) -> tuple[argparse.Namespace, list[Path], list[Override]]:
        """The flags and settings, the paths, and the overrides. Raises UsageError for an unknown setting too."""
        flags, rest = self.read([arg for arg in argv if not arg.startswith(self._overrides)])
        for arg in rest:
            key, equals, _ = arg.partition("=")  # the name of a sweep's job contains "=" as well
            if equals and "/" not in key and not Path(arg).exists():
                match = nearest(key, self._settings)
                others = [f"{start}<key>".replace("=<key>", "") for start in self._overrides]
                allowed = [*self._settings, *others]
                raise UsageError(
                    f"{key}: there is no such key", nearest=match and f"{match}=", allowed=allowed
                )
        overrides = parse_overrides([arg for arg in argv if arg.startswith(self._overrides)])
        return flags, list(map(Path, rest)), overrides

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, allowed=f"see {self.prog} --help")


def unquoted(text: str) -> str:
    """The text without the quotes of Hydra's grammar, in which a value may stand."""
    quote = text[:1]
    if quote in ("'", '"') and len(text) > 1 and text.endswith(quote):
        return text[1:-1].replace(f"\\{quote}", quote)
    return text


def parse_overrides(argv: Sequence[str]) -> list[Override]:
    """Read overrides. Raises UsageError for one that is not `key=value`, cannot be read, or is set by files alone."""
    if not __debug__:  # Hydra reads arguments with assert statements
        raise UsageError(
            "Python's -O removes what reads the arguments", allowed="no PYTHONOPTIMIZE and no -O"
        )
    overrides = []
    for arg in argv:
        key, equals, value = arg.partition("=")
        if (not arg.startswith("~") and not (key and equals)) or "@" in key:
            match = nearest_key(arg, [*GROUPS, *all_keys(), "resume"])
            raise UsageError(
                f"{arg!r} is not a setting", nearest=match and f"{match}=<value>", allowed="key=value"
            )
        group, _, name = key.lstrip("+").partition(".")
        if (name == "type" and group in ("agent", "buffer", "env")) or (group == "preset" and name):
            raise UsageError(f"{key} cannot be typed: the option's file sets it", allowed=f"{group}=<name>")
        try:
            overrides += OverridesParser.create().parse_overrides([arg])
        except OverrideParseException as e:
            uneven = any(value.count(left) != value.count(right) for left, right in ("[]", "{}"))
            split = uneven or sum(other.startswith(f"{key}=") for other in argv) > 1
            hint = f"\na shell splits words at spaces and braces; quote it: '{key}=…'" if split else ""
            raise UsageError(
                f"{arg!r} cannot be read as key=value",
                allowed=f"n_actors=8, hidden=[64,64], \"key='any text'\"{hint}",
            ) from e
    return overrides


def override_values(overrides: Sequence[Override]) -> dict[str, str]:
    """Plain key (no `+`) → value as text, groups included. The last override of a key counts."""
    return {o.key_or_group: _text(o) for o in overrides if not o.is_delete()}


def typed_names(overrides: Sequence[Override]) -> dict[str, list[str]]:
    """The names in the values that were typed, by key: see `border_cli.run.directory`."""
    return {o.key_or_group: names_in(o.value()) for o in overrides if not o.is_delete()}


def check_interval(override: Override) -> None:
    """Raise UsageError for an interval, if no sweeper draws values from it."""
    if override.is_interval_sweep():
        key = override.key_or_group
        raise UsageError(
            f"{key}={_text(override)} is a search space",
            allowed=f"-m hydra/sweeper=border_optuna, for tuning, or -m with values: {key}=<value>,<value>",
        )


def check_single(overrides: Sequence[Override]) -> None:
    """Raise UsageError for several values of one key, where there is one job."""
    for override in overrides:
        if not override.is_sweep_override():
            continue
        check_interval(override)
        key, text = override.key_or_group, _text(override)
        field = known_fields({"agent": {"type": "dqn"}}).get(key)
        kind = "" if field is None else str(field.type)
        as_list = f", or one run with a list: {key}=[{text}]" if "list" in kind else ""
        number = None
        if "int" in kind and not as_list and re.fullmatch(r"[1-9]\d{0,2}(,000)+", text):
            number = text.replace(",", "")
        elif "float" in kind and not as_list and re.fullmatch(r"0,\d+", text):
            number = text.replace(",", ".")
        raise UsageError(
            f"{key}={text} has several values",
            nearest=number and f"{key}={number}",
            allowed=f"-m, for one run with each of them{as_list}",
        )


def for_hydra(override: Override, choices: Callable[[str], list[str]], agent: str = "") -> str:
    """An override as Hydra takes it. Raises UsageError for an impossible choice or deletion.

    choices: the options of a config group; empty for a name that is no group · agent: the one that was chosen.
    """
    key, text = override.key_or_group, str(override.input_line)
    if key == "hydra.mode":
        raise UsageError("hydra.mode is set by -m alone", allowed="-m sweeps over values separated by commas")
    if override.is_hydra_override():
        if options := choices(key):  # hydra/launcher, hydra/sweeper
            _check_choice(override, options)
        return text
    if override.is_delete():
        if not any(info.open_map and key.startswith(f"{name}.") for name, info in all_keys().items()):
            raise UsageError(
                f"~{key}: this cannot be removed", allowed="~env.kwargs.<key>, and <key>=<value>"
            )
        return text
    options = choices(key)
    if key in GROUPS:
        _check_choice(override, options, agent)
        return f"{key}={_text(override)}"
    prefix = "+" if options else "++"  # "+" for the user's own group, which no defaults list names
    return f"{prefix}{key}={_text(override)}"


_HYDRA_PLUGINS = {
    "hydra/launcher": ("joblib", "ray", "rq", "submitit"),
    "hydra/sweeper": ("ax", "nevergrad", "optuna"),
}
"""Of Hydra's project, each in a package of its own, such as hydra-joblib-launcher."""


def _check_choice(override: Override, options: Sequence[str], agent: str = "") -> None:
    group, values = override.key_or_group, [override.value()]
    if override.is_sweep_override():  # a glob matches existing options only
        values = list(override.sweep_string_iterator()) if isinstance(values[0], ChoiceSweep) else []
    for value in values:
        name = "null" if value is None else str(value)
        if name not in options:
            of_agent = f"{agent}_{name}"  # a preset without its agent
            match = of_agent if of_agent in options else nearest(name, options)
            others = ["env=gym env.id=<id> env.imports=[<package>]"] if group == "env" else []
            if group == "env" and ":" in name:
                match = f"gym env.entry_point={module_path(name)}"
            if (plugin := name.partition("_")[0]) in _HYDRA_PLUGINS.get(group, ()):
                package = f"hydra-{plugin}-{group.removeprefix('hydra/')}"
                others = [f"{group}={name} after pip install {package}"]
            raise UsageError(
                f"{group}: there is no {name!r}",
                nearest=match and f"{group}={match}",
                allowed=[*others, *options],
            )


def quoted(text: str) -> str:
    """A string as a quoted value in Hydra's grammar."""
    return str(QuotedString(text, Quote.single).with_quotes())


def with_values(data: dict[str, Any], overrides: Sequence[Override], *, command: str) -> dict[str, Any]:
    """Nested plain data with the overrides, without Hydra. Raises UsageError for a form that needs Hydra."""
    check_single(overrides)
    for override in overrides:
        if override.is_hydra_override() or override.is_delete():
            raise UsageError(f"{command}: {override.input_line} is not possible with it", allowed="key=value")
        *path, name = override.key_or_group.split(".")
        section = data
        for step in path:
            # an open map that is null, or a value, which the schema then refuses
            if not isinstance(section.get(step), dict):
                section[step] = {}
            section = section[step]
        section[name] = override.value()
    return data


def _text(override: Override) -> str:
    return str(override.input_line).partition("=")[2]
