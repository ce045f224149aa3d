"""Run directories: their names, creating them so that no two runs share one, their lock, configuration and log."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from border_cli.config.convert import as_typed, dump, load, to_config, to_plain
from border_cli.config.registry import import_paths
from border_cli.config.schema import TrainConfig
from border_cli.core.errors import ResourceError, UsageError
from border_cli.runtime.files import replace_file

RUNS = Path("runs")
"""Relative to the working directory of the command."""
SWEEPS = "sweeps"
LATEST = "latest"
LOCK_FILE = ".lock"
CONFIG_FILE = "config.yaml"
SWEEP_FILE = "sweep.jsonl"
"""Lists the jobs of a sweep, in the folder that holds them."""
_OWN_FILES = (CONFIG_FILE, "metrics.jsonl", "summary.json", "checkpoints")
"""A folder with any of these already contains a run."""
_WRAPPERS_OF_ANYTHING = ("GymV21Environment", "GymV26Environment")
"""Ids of gymnasium, without version, that import what their arguments name."""
_WRITES_FILES = ("RecordVideo",)
"""Wrappers of gymnasium that write where their arguments say."""
_OURS = ("border_cli.envs.atari:Catch",)
"""Entry points of `conf/env/`."""
_NOWHERE = (None, "local")
"""Values of an address that lead to nothing outside of the run."""
_WRITTEN_TO = (".", "checkpoints", "eval", "tensorboard", "videos", "export", "export/numpy", "export/onnx")


@dataclass(frozen=True)
class Launch:
    """How a run was started: arguments and name of the command, and the overrides by key, groups included."""

    argv: list[str]
    typed: dict[str, str] = field(default_factory=dict)
    command: str = "border-train"


def env_slug(option: str, env_id: str) -> str:
    """The environment's part of a directory name: the option, or under env=gym the id, with `-` for `_`."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", env_id) if option == "gym" else _plain_name(option)


def run_name(name: str, agent: str, env_option: str, env_id: str) -> str:
    """The name that was typed, or `<agent>_<env slug>`."""
    return _plain_name(name) if name else f"{_plain_name(agent)}_{env_slug(env_option, env_id)}"


def create_run(name: str, root: Path = RUNS) -> Path:
    """Create `<root>/<date>/<time>_<name>`, which no other run has, and let `<root>/latest` point to it, if links can.

    Raises UsageError if it cannot be created, ResourceError if the disk is full.
    """
    path = _make_exclusively(root, f"_{name}")
    link = root / f".{LATEST}.{os.getpid()}"
    with contextlib.suppress(OSError):
        link.unlink(missing_ok=True)
        link.symlink_to(path.relative_to(root), target_is_directory=True)
        link.replace(root / LATEST)  # in one step
    with contextlib.suppress(OSError):
        link.unlink(missing_ok=True)
    return path


def create_sweep(root: Path = RUNS) -> Path:
    """Create `<root>/sweeps/<date>/<time>`, which no other sweep has. Raises as `create_run` does."""
    return _make_exclusively(root / SWEEPS)


@contextlib.contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Hold the run's lock, which ends with the process. Raises UsageError at once while another process holds it."""
    with writing(path := run_dir / LOCK_FILE):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()}\n".encode("ascii"), 0)
    except BlockingIOError as e:
        holder = os.pread(descriptor, 100, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise UsageError(
            f"{shown(run_dir)} is being trained by another process{f' ({holder})' if holder else ''}",
            allowed="wait for it, or stop it",
        ) from e
    except OSError:
        pass  # a file system without locks, or a full disk
    _locks.add(descriptor)
    try:
        yield
    finally:
        _locks.remove(descriptor)
        os.close(descriptor)


_locks = set[int]()


def _leave_locks() -> None:
    """Close the locks in a process that user code has forked: it would hold them longer than the run."""
    while _locks:
        os.close(_locks.pop())


os.register_at_fork(after_in_child=_leave_locks)


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[Path]:
    """Create this folder if necessary, and hold it for a new run. Yields its absolute path.

    Raises UsageError if it contains a run, if another process starts one in it, or if it cannot be written to.
    """
    path = path.absolute()  # environments may change the working folder
    _check_no_run(path)
    make_folder(path)
    with locked(path):
        _check_no_run(path)  # again: another process may have been faster
        yield path


def _check_no_run(path: Path) -> None:
    held = [name for name in _OWN_FILES if (path / name).exists()]
    if held:
        again = f"resume={shown(path)}" if (path / CONFIG_FILE).is_file() else None
        allowed = "a folder without a run"
        raise UsageError(f"{shown(path)} already holds a run ({held[0]})", nearest=again, allowed=allowed)


def write_config(run_dir: Path, config: TrainConfig) -> None:
    """Write the configuration that really runs. Raises as `create_run` does."""
    with writing(path := run_dir / CONFIG_FILE):
        replace_file(path, dump(to_plain(config)).encode("utf-8"))


def read_config(run_dir: Path) -> TrainConfig:
    """The configuration of a run, checked against the schema. Raises UsageError where there is none or it does not fit."""
    return to_config(read_config_data(run_dir))


def read_config_data(run_dir: Path) -> dict[str, Any]:
    """The configuration of a run as plain data. Raises UsageError where there is none."""
    path = run_dir / CONFIG_FILE
    if not path.is_file():
        raise UsageError(
            f"{run_dir} is not a run: it has no {CONFIG_FILE}", allowed="a run, such as runs/latest"
        )
    try:
        data = load(path)
    except OSError as e:
        raise UsageError(f"{path} cannot be read: {e.strerror}") from e
    if not isinstance(data, dict):
        raise UsageError(f"{path} holds no configuration", allowed=f"the {CONFIG_FILE} of a run")
    return data


# -- trust --------------------------------------------------------------


def code_names(data: Mapping[str, Any]) -> dict[str, list[str]]:
    """What a configuration names beyond border-cli: modules, import paths and addresses, by key. data: plain data."""
    sections = (data.get(name) for name in ("env", "actor_manager", "recorder"))
    env, manager, recorder = (section if isinstance(section, Mapping) else {} for section in sections)
    names = {"plugins": names_in(data.get("plugins"))}
    names |= {"env.imports": names_in(env.get("imports"))}
    names["env.entry_point"] = [name for name in names_in(env.get("entry_point")) if name not in _OURS]
    wrappers = names_in(env.get("wrappers"))
    names["env.wrappers"] = [name for name in wrappers if ":" in name or name in _WRITES_FILES]
    env_id = str(env.get("id") or "")
    names["env.id"] = [env_id] if ":" in env_id else []
    if any(name in env_id for name in _WRAPPERS_OF_ANYTHING):
        names["env.kwargs"] = [f"whatever {env_id} imports for them"]
    names |= {key: [path] for key, path in import_paths(data).items()}
    addresses = {"recorder.mlflow": recorder.get("mlflow")}
    if manager.get("type") == "ray":
        addresses["actor_manager.address"] = manager.get("address")
    names |= {key: [as_typed(value)] for key, value in addresses.items() if value not in _NOWHERE}
    return {key: listed for key, listed in names.items() if listed}


def check_code(data: Mapping[str, Any], typed: Mapping[str, Sequence[str]], trusted: bool) -> None:
    """Raise UsageError that says what to type, unless all names of a configuration were typed, or are trusted.

    data: as for `code_names` · typed: the names in the values that the user typed, by key.
    """
    missing = {
        key: ", ".join(names)
        for key, names in code_names(data).items()
        if not trusted and not set(names) <= set(typed.get(key, ()))
    }
    if missing:
        listed = "; ".join(f"{key} {names}" for key, names in missing.items())
        raise UsageError(
            f"this run names code or addresses that are not border-cli's: {listed}",
            allowed="trust=true, if you trust the maker of the run",
        )


def check_plain(run_dir: Path, trusted: bool) -> None:
    """Raise UsageError where writing to a run that is not trusted could change files elsewhere, or wait for ever.

    Links and files with a second name lead elsewhere; opening a pipe waits for its other end.
    """
    if trusted:
        return
    for folder in (run_dir / name for name in _WRITTEN_TO):
        for entry in list(os.scandir(folder)) if folder.is_dir() else ():
            is_file = entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_nlink == 1
            if not is_file and not entry.is_dir(follow_symlinks=False):
                raise UsageError(
                    f"{entry.path} is a link or no plain file: writing to it may change files elsewhere",
                    allowed="trust=true, if you trust the maker of the run, or a copy made by cp -rL",
                )


def names_in(value: Any) -> list[str]:
    """The names in a value of the configuration: a text, a list of texts, or a list of wrappers."""
    entries = value if isinstance(value, list) else [] if value is None else [value]
    return [str(entry.get("name")) if isinstance(entry, Mapping) else str(entry) for entry in entries]


# -- names and folders --------------------------------------------------


def _plain_name(option: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "-", option)


def _stamp() -> tuple[str, str]:
    date, _, time = datetime.now().isoformat(timespec="milliseconds").replace(":", "-").partition("T")
    return date, time


def _make_exclusively(root: Path, name: str = "") -> Path:
    """Create `<root>/<date>/<time><name>`, or if it exists the same with -2, -3 and so on."""
    date, time = _stamp()
    make_folder(root / date)
    number = 1
    while True:
        path = root / date / f"{time}{name}{f'-{number}' if number > 1 else ''}"
        with writing(path), contextlib.suppress(FileExistsError):
            path.mkdir()
            return path
        number += 1


def make_folder(path: Path) -> None:
    """Create a folder and its parents, unless it exists. Raises UsageError, or ResourceError for a full disk."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)


_ELSEWHERE = (
    "a folder that you may write to, such as hydra.run.dir=<folder>, or hydra.sweep.dir=<folder> for -m"
)


@contextlib.contextmanager
def writing(path: Path, allowed: str = _ELSEWHERE) -> Iterator[None]:
    """Raise UsageError, or ResourceError for a full disk, that names the path where it cannot be created or written to."""
    try:
        yield
    except OSError as e:
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ResourceError(
                f"{path}: the disk is full", allowed="free some space, or use another folder"
            ) from e
        reason = e.strerror or type(e).__name__
        raise UsageError(f"{path} cannot be made or written to: {reason}", allowed=allowed) from e


def shown(path: Path) -> Path:
    """The path as the user would type it from here."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def typed(run_dir: Path, config: TrainConfig, keys: Collection[str] = ()) -> str:
    """A run as the user types it, with `trust=true` if it names code. keys: the only ones that the command imports."""
    path = shlex.quote(str(shown(run_dir)))
    named = code_names({key: value for key, value in to_plain(config).items() if not keys or key in keys})
    return f"{path} trust=true" if named else path


REPORTED: dict[str, object] = {"reported": True}
"""`extra` of a log record that is shown to the user in another way."""


@contextlib.contextmanager
def log_to(path: Path, note: Callable[[str], None]) -> Iterator[None]:
    """Within this context, log to a file, and warnings to `note` as well."""
    file, notes = _FileHandler(path, encoding="utf-8", errors="backslashreplace"), _NoteHandler(note)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(processName)s %(name)s: %(message)s"))
    root, package = logging.getLogger(), logging.getLogger("border_cli")
    level = package.level
    package.setLevel(logging.INFO)
    for handler in (file, notes):
        root.addHandler(handler)
    try:
        yield
    finally:
        package.setLevel(level)
        for handler in (file, notes):
            root.removeHandler(handler)
            handler.close()


class _NoteHandler(logging.Handler):
    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._note = note

    def emit(self, record: logging.LogRecord) -> None:
        if not getattr(record, "reported", False):
            self._note(f"{record.levelname.lower()}: {record.getMessage()}")


class _FileHandler(logging.FileHandler):
    """train.log. A full disk must neither end the run nor fill stderr."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()
