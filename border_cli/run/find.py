"""Which run, and which model of it, the user means."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from border_cli.checkpoints import store
from border_cli.checkpoints.contents import BEST, CHECKPOINTS, REPLAY
from border_cli.checkpoints.store import MANIFEST_FILE
from border_cli.config.convert import nearest
from border_cli.core.errors import NoValidCheckpointError, UsageError
from border_cli.core.format import counted
from border_cli.run.directory import CONFIG_FILE, LATEST, RUNS, SWEEP_FILE
from border_cli.run.summary import PROVENANCE_FILE, read_summary

LAST = "last"
_UNREAD = (REPLAY,)
"""Acting needs no replay, and it may be large: only the sizes of its files are verified."""


@dataclass(frozen=True)
class Located:
    """A model directory, the run it belongs to, if any, and what the user should know about the choice, if anything."""

    path: Path
    run_dir: Path | None
    note: str = ""


def parse_checkpoint(text: str) -> str | int:
    """The value of `checkpoint`: "best", "last" or an opt step. Raises UsageError for anything else."""
    if text in (BEST, LAST):
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    raise UsageError(
        f"checkpoint={text}: there is no such choice",
        nearest=(match := nearest(text, (BEST, LAST))) and f"checkpoint={match}",
        allowed="best, last, or an opt step",
    )


def model_directory(named: Path | None = None, checkpoint: str | int | None = None) -> Located:
    """The model to load. Nothing in the directory is imported or run.

    Args:
        named: a run, a checkpoint directory, best/, or None for the latest run below ./runs.
        checkpoint: "best", "last" or an opt step; None takes the best, or the last where there is no best yet.

    Raises UsageError for what is not there, NoValidCheckpointError where nothing verifies.
    """
    path = _latest_run() if named is None else named
    if not path.is_dir():
        raise _no_such_path(path)
    if (path / MANIFEST_FILE).exists():
        return _single_model(path, checkpoint)
    run_dir = path.parent if path.name == CHECKPOINTS else path
    if not any((run_dir / mark).exists() for mark in (CONFIG_FILE, PROVENANCE_FILE, CHECKPOINTS, BEST)):
        raise _no_run(path)
    if checkpoint == LAST:
        return _last(run_dir)
    if checkpoint in (None, BEST) and not store.exists(run_dir / BEST):
        last = _last(run_dir)
        note = f"no evaluation has found a best model yet: this is the last checkpoint, {last.path.name}"
        return Located(last.path, run_dir, f"{note}; {last.note}" if last.note else note)
    return _chosen(run_dir, str(BEST if checkpoint is None else checkpoint))


def run_directory(named: Path, allowed: str = "a run") -> Path:
    """The run that the user named, with links resolved. Raises UsageError, with what is allowed, for anything else."""
    if not named.is_dir():
        raise _no_such_path(named, allowed)
    if (named / CONFIG_FILE).is_file():
        return named.resolve()
    if (named / SWEEP_FILE).is_file():
        raise UsageError(f"{named} is a sweep", allowed="one of its runs, or its command again")
    raise _no_run(named, [run for run in _runs_in(named) if read_summary(run).get("status") != "done"])


def _single_model(path: Path, checkpoint: str | int | None) -> Located:
    """The user named a model directory itself."""
    if checkpoint is not None:
        raise UsageError(f"{path} is a checkpoint, and checkpoint={checkpoint} chooses among those of a run")
    store.verify(path, _UNREAD)
    folder = path.resolve().parent
    run_dir = folder.parent if folder.name == CHECKPOINTS else folder
    is_run = any((run_dir / mark).exists() for mark in (CONFIG_FILE, PROVENANCE_FILE))
    return Located(path, run_dir if is_run else None)


def _chosen(run_dir: Path, checkpoint: str) -> Located:
    """best/ or the checkpoint of an opt step. If it is missing or does not verify, the UsageError names the others."""
    steps = {str(int(path.name.partition("-")[2])): path for path in store.list_steps(run_dir / CHECKPOINTS)}
    models = {BEST: run_dir / BEST} if store.exists(run_dir / BEST) else {}
    if (path := (models | steps).get(checkpoint)) is None:
        near = min(steps, key=lambda step: abs(int(step) - int(checkpoint)), default=None)
        raise UsageError(
            f"checkpoint={checkpoint}: {run_dir} has none",
            nearest=near and f"checkpoint={near}",
            allowed=[*models, *([LAST] if steps else []), *steps] or "another run",
        )
    try:
        store.verify(path, _UNREAD)
    except store.InvalidCheckpointError as e:
        others = [name for name, other in (models | steps).items() if store.verifies(other, _UNREAD)]
        if not others:
            raise NoValidCheckpointError(f"{e}\nand nothing else in {run_dir} does") from e
        raise UsageError(str(e), allowed=others) from e
    return Located(path, run_dir)


def _last(run_dir: Path) -> Located:
    steps = store.list_steps(run_dir / CHECKPOINTS)
    newest = store.newest_valid(run_dir / CHECKPOINTS, _UNREAD)
    if newest is None:
        allowed = "\nallowed: checkpoint=best" if store.exists(run_dir / BEST) else ""
        raise UsageError(
            f"{run_dir} has no checkpoint: a run saves them every trainer.save_interval opt steps, and at its end{allowed}"
        )
    skipped = "" if newest == steps[0] else f"{steps[0].name} does not verify: this is {newest.name}"
    return Located(newest, run_dir, skipped)


def _latest_run() -> Path:
    """What runs/latest points to; where there are no links, the newest by name."""
    latest = RUNS / LATEST
    if latest.is_dir():
        return RUNS / latest.readlink() if latest.is_symlink() else latest
    runs = sorted(path.parent for path in RUNS.glob(f"[0-9]*/*/{CONFIG_FILE}"))
    if not runs:
        raise UsageError(
            f"there is no run below {RUNS}/", allowed="the path of a run, or a border-train first"
        )
    return runs[-1]


def _no_such_path(path: Path, allowed: str = "a run, a checkpoint directory or best/") -> UsageError:
    if path.exists():
        return UsageError(f"{path} is a file", allowed=allowed)
    siblings = [e.name for e in os.scandir(path.parent) if e.is_dir()] if path.parent.is_dir() else []
    match = nearest(path.name, siblings)
    return UsageError(
        f"{path} is not there", nearest=str(path.parent / match) if match else None, allowed=allowed
    )


def _no_run(path: Path, unfinished: Sequence[Path] = ()) -> UsageError:
    """The error for a folder that is no run. unfinished: runs in it to name rather than others."""
    if runs := _runs_in(path):
        return UsageError(
            f"{path} is a folder with {counted(len(runs), 'run')} in it",
            allowed=f"a run, such as {(unfinished or runs)[-1]}",
        )
    return UsageError(
        f"{path} is not a run: it has neither {CONFIG_FILE} nor checkpoints",
        allowed="a run, such as runs/latest",
    )


def _runs_in(folder: Path) -> list[Path]:
    """Runs in a folder or in its folders, the oldest first."""
    files = (config for pattern in ("*", "*/*") for config in folder.glob(f"{pattern}/{CONFIG_FILE}"))
    # .hydra has a config.yaml too, and a link such as runs/latest leads to a run that is listed already.
    configs = [file for file in files if file.parent.name[0] != "." and not file.parent.is_symlink()]
    return [file.parent for file in sorted(configs, key=lambda file: (file.stat().st_mtime_ns, file))]
