"""Run directories: their names, making them so that no two runs share one, and the configuration in them."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from border_cli.config.convert import to_config, to_plain
from border_cli.config.schema import TrainConfig
from border_cli.config.yaml_text import dump, load
from border_cli.core.errors import BorderError, ResourceError, UsageError
from border_cli.runs.lock import locked
from border_cli.runtime.files import replace_file

RUNS = Path("runs")
"""Relative to where the command was typed."""
SWEEPS = "sweeps"
LATEST = "latest"
CONFIG_FILE = "config.yaml"
_WRITTEN_TO = ("checkpoints", "eval", "nonfinite", "tensorboard")
_OWN_FILES = (CONFIG_FILE, "metrics.jsonl", "summary.json", "checkpoints")
"""Any of these says that a folder already holds a run."""


@dataclass(frozen=True)
class Launch:
    """How a run was started: for provenance and the banner.

    argv: the words after the command's name · typed: plain key → value as typed, groups included ·
    command: what was called.
    """

    argv: list[str]
    typed: dict[str, str] = field(default_factory=dict)
    command: str = "border-train"


def env_slug(option: str, env_id: str) -> str:
    """The environment's part of a directory name: the option, under env=gym the id.

    Everything but letters, digits, `.` and `-` becomes `-`; in an option's name `_` stays too.
    """
    return re.sub(r"[^A-Za-z0-9.-]", "-", env_id) if option == "gym" else _plain_name(option)


def run_name(agent: str, env_option: str, env_id: str) -> str:
    """`<agent>_<env slug>`."""
    return f"{_plain_name(agent)}_{env_slug(env_option, env_id)}"


def create_run(name: str, root: Path = RUNS, now: datetime | None = None) -> Path:
    """Make `<root>/<date>/<time>_<name>` for this run alone and let `<root>/latest` point to it.

    Raises UsageError when it cannot be made, ResourceError when the disk is full; then nothing is left.
    """
    date, time = _stamp(now)
    path = _make_exclusively(root / date / f"{time}_{name}")
    _point_latest(root, path)
    return path


def create_sweep(root: Path = RUNS, now: datetime | None = None) -> Path:
    """Make `<root>/sweeps/<date>/<time>` for this sweep alone. Raises as `create_run` does."""
    date, time = _stamp(now)
    return _make_exclusively(root / SWEEPS / date / time)


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[Path]:
    """Make this folder if there is none, and hold it for a new run as long as this lasts.

    Raises UsageError when it holds a run, another process begins one in it, or it cannot be written to.
    """
    _refuse_a_run(path)
    _make_folder(path)
    if not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(f"{path} cannot be written to\nallowed: a folder you may write to")
    with locked(path):
        _refuse_a_run(path)  # of a process that was faster
        yield path


def _refuse_a_run(path: Path) -> None:
    held = [name for name in _OWN_FILES if (path / name).exists()]
    if held:
        raise UsageError(f"{path} already holds a run ({held[0]})\nallowed: a folder without one")


def write_config(run_dir: Path, config: TrainConfig) -> None:
    """Write the configuration that really runs. Raises as `create_run` does."""
    path = run_dir / CONFIG_FILE
    try:
        replace_file(path, dump(to_plain(config)).encode("utf-8"))
    except OSError as e:
        raise folder_error(e, path) from e


def read_config(run_dir: Path) -> TrainConfig:
    """The configuration of a run, as data checked against the schema; nothing that it names is imported.

    Raises UsageError when there is none, or when it does not fit the schema.
    """
    path = run_dir / CONFIG_FILE
    if not path.is_file():
        raise UsageError(f"{run_dir} is no run: it has no {CONFIG_FILE}\nallowed: a run, such as runs/latest")
    data = load(path)
    if not isinstance(data, dict):
        raise UsageError(f"{path} holds no configuration\nallowed: the {CONFIG_FILE} of a run")
    return to_config(data)


def check_plain(run_dir: Path) -> None:
    """Raise UsageError where writing to a run of somebody else's making could change what lies elsewhere.

    A link leads elsewhere, so does a file that has a second name, and who opens a pipe waits for ever.
    """
    for folder in (run_dir, *(run_dir / name for name in _WRITTEN_TO)):
        for entry in _entries(folder):
            if not _is_plain(entry):
                raise UsageError(
                    f"{entry.path} is no plain file or folder, and this run is not one of yours\n"
                    "allowed: a copy of the run without links, such as cp -rL makes"
                )


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return list(entries)


def _is_plain(entry: os.DirEntry[str]) -> bool:
    if entry.is_dir(follow_symlinks=False):
        return True
    return entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_nlink == 1


def _plain_name(option: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "-", option)


def _stamp(now: datetime | None) -> tuple[str, str]:
    moment = now or datetime.now()
    return f"{moment:%Y-%m-%d}", f"{moment:%H-%M-%S}.{moment.microsecond // 1000:03d}"


def _make_exclusively(path: Path) -> Path:
    """Make `path`, or where that is taken path-2, path-3 and so on."""
    _make_folder(path.parent)
    n, candidate = 1, path
    while True:
        try:
            candidate.mkdir()
            return candidate
        except FileExistsError:
            n += 1
            candidate = path.with_name(f"{path.name}-{n}")
        except OSError as e:
            raise folder_error(e, candidate) from e


def _make_folder(path: Path) -> None:
    """Make a folder and those above it; take back what was made when one of them fails."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    made: list[Path] = []
    try:
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            made.append(folder)
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "is not a folder")
    except OSError as e:
        for folder in reversed(made):
            with contextlib.suppress(OSError):  # somebody else uses it by now
                folder.rmdir()
        raise folder_error(e, path) from e


def folder_error(error: OSError, path: Path) -> BorderError:
    """What to tell a person when a run directory cannot be made, or written to."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ResourceError(f"{path}: the disk is full\nallowed: free some space, or run in another folder")
    reason = error.strerror or type(error).__name__
    return UsageError(
        f"{path} cannot be made: {reason}\n"
        "allowed: another folder, by hydra.run.dir=<folder>, or hydra.sweep.dir=<folder> for -m"
    )


def _point_latest(root: Path, path: Path) -> None:
    """Replace the link in one step. A file system without links, or a folder there, is no reason to stop."""
    temporary = root / f".{LATEST}.{os.getpid()}"
    try:
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(path.relative_to(root), target_is_directory=True)
        temporary.replace(root / LATEST)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def shown(path: Path) -> Path:
    """As a person would type it from here."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
