"""The flags of `border-train`. Everything that is no flag is an override for Hydra."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from border_cli.config.suggest import nearest, nearest_line
from border_cli.core.errors import UsageError


@dataclass(frozen=True)
class Arguments:
    """The command line, taken apart.

    words: what is no flag, in order · cfg: "job", "hydra" or "all" · package: the part to show ·
    info: what of Hydra's internals to show · the rest are flags that were given or not.
    """

    words: tuple[str, ...]
    config_dir: str | None
    multirun: bool
    cfg: str | None
    package: str | None
    info: str | None
    help: bool
    hydra_help: bool
    version: bool
    shell_completion: bool


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises instead of leaving."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}\nallowed: see border-train --help")


def _make_parser() -> _Parser:
    parser = _Parser(prog="border-train", add_help=False, allow_abbrev=False)
    parser.add_argument("--help", "-h", action="store_true")
    parser.add_argument("--version", action="store_true")
    parser.add_argument("--multirun", "-m", action="store_true")
    parser.add_argument("--run", "-r", action="store_true")
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("--package", "-p")
    parser.add_argument("--info", "-i", nargs="?", const="all")
    parser.add_argument("--hydra-help", action="store_true")
    parser.add_argument("--shell-completion", "-sc", action="store_true")
    return parser


_ELSEWHERE = {
    "--config-path": "--config-dir adds a folder of your own",
    "-cp": "--config-dir adds a folder of your own",
    "--config-name": "--config-dir with a group file of your own",
    "-cn": "--config-dir with a group file of your own",
    "--experimental-rerun": "overrides on the command line; nothing pickled is read",
}
"""Hydra's flags that are not taken, and what to use instead."""


def parse_arguments(argv: Sequence[str]) -> Arguments:
    """Take the command line apart. Raises UsageError for a flag that is not known, with the nearest."""
    parser = _make_parser()
    known, rest = parser.parse_known_args(list(argv))
    for word in rest:
        if word.startswith("-"):
            raise _unknown_flag(parser, word.partition("=")[0])
    if known.multirun and known.run:
        raise UsageError("--run and --multirun exclude each other\nallowed: one of them")
    if known.multirun and known.cfg:
        raise UsageError("--cfg shows one configuration, and --multirun has many\nallowed: one of them")
    if known.cfg is None and (known.package or known.resolve):
        flag = "--package" if known.package else "--resolve"
        raise UsageError(
            f"{flag} says how --cfg shows a configuration\nallowed: --cfg job {flag} …, --cfg hydra {flag} …"
        )
    return Arguments(
        words=tuple(rest),
        config_dir=known.config_dir,
        multirun=known.multirun,
        cfg=known.cfg,
        package=known.package,
        info=known.info,
        help=known.help,
        hydra_help=known.hydra_help,
        version=known.version,
        shell_completion=known.shell_completion,
    )


def _unknown_flag(parser: argparse.ArgumentParser, flag: str) -> UsageError:
    if flag in _ELSEWHERE:
        return UsageError(f"{flag} is not taken here\nallowed: {_ELSEWHERE[flag]}")
    flags = [name for action in parser._actions for name in action.option_strings if name.startswith("--")]
    return UsageError(
        f"there is no flag {flag}\nallowed: {', '.join(flags)}{nearest_line(nearest(flag, flags))}"
    )
