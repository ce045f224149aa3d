"""From what the user typed (a run, a checkpoint, best/, nothing) to one model directory that verifies."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from border_cli.checkpoints import store
from border_cli.checkpoints.contents import BEST, CHECKPOINTS, REPLAY
from border_cli.checkpoints.manifest import MANIFEST_FILE
from border_cli.config.suggest import nearest, nearest_line
from border_cli.core.errors import NoValidCheckpointError, UsageError
from border_cli.runs.directory import CONFIG_FILE, LATEST, RUNS
from border_cli.runs.provenance import PROVENANCE_FILE

LAST = "last"
_DESCRIPTIONS = (CONFIG_FILE, PROVENANCE_FILE)
"""Only a run has one of these."""
_RUN_MARKS = (*_DESCRIPTIONS, CHECKPOINTS, BEST)
"""Any of these says that a folder that the user called a run is one."""
_SHOWN = 6
_UNREAD = (REPLAY,)
"""Acting does not need it, and it may be very large: of its files only the size is looked at."""


@dataclass(frozen=True)
class Located:
    """A model that was found.

    path: its directory · run_dir: the run it belongs to, None outside of one ·
    note: what the user should know about the choice, empty when it is what was asked for.
    """

    path: Path
    run_dir: Path | None
    note: str = ""


def parse_checkpoint(text: str) -> str | int:
    """What was typed for `checkpoint`: "best", "last" or an opt step. Raises UsageError for anything else."""
    if text in (BEST, LAST):
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    match = nearest_line(nearest(text, (BEST, LAST)))
    raise UsageError(
        f"checkpoint={text}: there is no such choice\nallowed: best, last, or an opt step{match}"
    )


def model_directory(typed: Path | None = None, checkpoint: str | int | None = None) -> Located:
    """The model to take. Nothing that stands in the directory is imported or run.

    typed: a run, a checkpoint directory, best/, or None for the latest run below ./runs · checkpoint: "best",
    "last" or an opt step; None takes the best, or the last where there is no best yet.
    Raises UsageError for what is not there, NoValidCheckpointError where nothing verifies.
    """
    path = _latest_run() if typed is None else typed
    if not path.is_dir():
        raise _no_such_path(path)
    if (path / MANIFEST_FILE).exists():
        return _single_model(path, checkpoint)
    run_dir = path.parent if path.name == CHECKPOINTS else path
    if not _is_run(run_dir):
        raise _no_run(path)
    if checkpoint in (None, BEST):
        return _best(run_dir)
    return _last(run_dir) if checkpoint == LAST else _step(run_dir, int(str(checkpoint)))


def run_directory(typed: Path) -> Path:
    """The run that was typed, as its own path whatever link led there. Raises UsageError for what is none."""
    if not typed.is_dir():
        raise _no_such_path(typed, "a run, or resume=auto for the unfinished run of these words")
    if not (typed / CONFIG_FILE).is_file():
        raise _no_run(typed)
    return typed.resolve()


def _single_model(path: Path, checkpoint: str | int | None) -> Located:
    """The user named a model directory itself."""
    if checkpoint is not None:
        raise UsageError(f"{path} is a checkpoint, and checkpoint={checkpoint} chooses among those of a run")
    store.verify(path, _UNREAD)
    folder = path.resolve().parent
    run_dir = folder.parent if folder.name == CHECKPOINTS else folder
    described = any((run_dir / mark).exists() for mark in _DESCRIPTIONS)
    return Located(path, run_dir if described else None)


def _best(run_dir: Path) -> Located:
    path = run_dir / BEST
    if not store.exists(path):
        last = _last(run_dir)
        return Located(last.path, run_dir, "; ".join(filter(None, (_no_best(last.path), last.note))))
    try:
        store.verify(path, _UNREAD)
    except store.InvalidCheckpointError as e:
        if any(_verifies(step) for step in store.list_steps(run_dir / CHECKPOINTS)):
            raise UsageError(f"{e}\nallowed: checkpoint=last") from e
        raise
    return Located(path, run_dir)


def _no_best(path: Path) -> str:
    return f"no evaluation has found a best model yet: this is the last checkpoint, {path.name}"


def _last(run_dir: Path) -> Located:
    steps = store.list_steps(run_dir / CHECKPOINTS)
    newest = store.newest_valid(run_dir / CHECKPOINTS, _UNREAD)
    if newest is None:
        way_out = "\nallowed: checkpoint=best" if store.exists(run_dir / BEST) else ""
        raise UsageError(
            f"{run_dir} has no checkpoint yet: one is written every save_interval opt steps{way_out}"
        )
    passed = "" if newest == steps[0] else f"{steps[0].name} does not verify: this is {newest.name}"
    return Located(newest, run_dir, passed)


def _step(run_dir: Path, opt_steps: int) -> Located:
    path = run_dir / CHECKPOINTS / store.step_name(opt_steps)
    steps = store.list_steps(path.parent)
    if path not in steps:
        raise _no_such_step(run_dir, opt_steps, [_opt_steps(step) for step in steps])
    try:
        store.verify(path, _UNREAD)
    except store.InvalidCheckpointError as e:
        others = [step for step in [run_dir / BEST, *steps] if step != path and _verifies(step)]
        if others:
            raise UsageError(f"{e}\nallowed: {_listed(_choice(other) for other in others)}") from e
        raise NoValidCheckpointError(f"{e}\nand nothing else in {run_dir} does") from e
    return Located(path, run_dir)


def _no_such_step(run_dir: Path, opt_steps: int, there: list[int]) -> UsageError:
    best = ["best"] if store.exists(run_dir / BEST) else []
    if not there:
        return UsageError(
            f"checkpoint={opt_steps}: {run_dir} has no checkpoints\nallowed: {_listed(best) or 'another run'}"
        )
    near = min(there, key=lambda step: abs(step - opt_steps))
    shown = _listed([*best, LAST, *map(str, there)])
    return UsageError(f"checkpoint={opt_steps}: {run_dir} has none\nallowed: {shown}\nnearest: {near}")


def _latest_run() -> Path:
    """What runs/latest points to; where there are no links, the newest by name."""
    latest = RUNS / LATEST
    if latest.is_dir():
        return RUNS / latest.readlink() if latest.is_symlink() else latest
    found = sorted(path.parent for path in RUNS.glob(f"[0-9]*/*/{CONFIG_FILE}"))
    if not found:
        raise UsageError(
            f"there is no run below {RUNS}/\nallowed: border-eval <run>, or a border-train first"
        )
    return found[-1]


def _is_run(path: Path) -> bool:
    return any((path / mark).exists() for mark in _RUN_MARKS)


def _no_such_path(path: Path, allowed: str = "a run, a checkpoint directory or best/") -> UsageError:
    if path.exists():
        return UsageError(f"{path} is a file\nallowed: {allowed}")
    siblings = _names(path.parent) if path.parent.is_dir() else []
    match = nearest(path.name, siblings)
    return UsageError(
        f"{path} is not there\nallowed: {allowed}{nearest_line(str(path.parent / match) if match else None)}"
    )


def _no_run(path: Path) -> UsageError:
    found = (config.parent for pattern in ("*", "*/*") for config in path.glob(f"{pattern}/{CONFIG_FILE}"))
    # Hydra's own folder is none, and a link such as runs/latest is one that is counted already
    runs = sorted(run for run in found if not run.name.startswith(".") and not run.is_symlink())
    if runs:
        return UsageError(f"{path} is no run, it holds {len(runs)}\nallowed: one of them, such as {runs[-1]}")
    return UsageError(f"{path} is no run: it has neither {CONFIG_FILE} nor checkpoints\nallowed: runs/latest")


def _names(folder: Path) -> list[str]:
    return [entry.name for entry in os.scandir(folder) if entry.is_dir()]


def _verifies(path: Path) -> bool:
    try:
        store.verify(path, _UNREAD)
    except store.InvalidCheckpointError:
        return False
    return True


def _opt_steps(step: Path) -> int:
    return int(step.name.partition("-")[2])


def _choice(path: Path) -> str:
    """What to type for `checkpoint` to get this one."""
    return BEST if path.name == BEST else str(_opt_steps(path))


def _listed(choices: Iterable[str]) -> str:
    words = list(choices)
    more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return ", ".join(words[:_SHOWN]) + more
