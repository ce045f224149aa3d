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
from border_cli.runs.directory import CONFIG_FILE, LATEST, RUNS, SWEEP_FILE
from border_cli.runs.summary import PROVENANCE_FILE, read_summary

LAST = "last"
_MAX_LISTED = 6
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
    if checkpoint in (None, BEST):
        return _best(run_dir)
    return _last(run_dir) if checkpoint == LAST else _step(run_dir, int(str(checkpoint)))


def weights_directory(named: Path, whole_agent: bool) -> Path:
    """Where a new run reads its first weights: the model to load (see `model_directory`).

    whole_agent: prefer a checkpoint of the same opt step to best/, which has only a model.
    """
    path = model_directory(named).path
    if whole_agent and path.name == BEST:
        step = path.parent / CHECKPOINTS / store.step_name(store.verify(path).opt_steps)
        if store.verifies(step, _UNREAD):
            return step
    return path


def run_directory(named: Path, allowed: str = "a run") -> Path:
    """The run that the user named, with links resolved. Raises UsageError, with what is allowed, for anything else."""
    if not named.is_dir():
        raise _no_such_path(named, allowed)
    if (named / CONFIG_FILE).is_file():
        return named.resolve()
    if (named / SWEEP_FILE).is_file():
        raise UsageError(f"{named} is a sweep\nallowed: border-train -m resume={named}, or one of its runs")
    runs = _runs_in(named)
    unfinished = [run for run in runs if read_summary(run).get("status") != "done"]
    if unfinished:
        raise UsageError(
            f"{named} is a folder with {_number(runs)} in it, {len(unfinished)} of them unfinished\n"
            f"allowed: border-train resume={unfinished[-1]}"
        )
    raise _no_run(named)


def _single_model(path: Path, checkpoint: str | int | None) -> Located:
    """The user named a model directory itself."""
    if checkpoint is not None:
        raise UsageError(f"{path} is a checkpoint, and checkpoint={checkpoint} chooses among those of a run")
    store.verify(path, _UNREAD)
    folder = path.resolve().parent
    run_dir = folder.parent if folder.name == CHECKPOINTS else folder
    is_run = any((run_dir / mark).exists() for mark in (CONFIG_FILE, PROVENANCE_FILE))
    return Located(path, run_dir if is_run else None)


def _best(run_dir: Path) -> Located:
    path = run_dir / BEST
    if not store.exists(path):
        last = _last(run_dir)
        note = f"no evaluation has found a best model yet: this is the last checkpoint, {last.path.name}"
        return Located(last.path, run_dir, f"{note}; {last.note}" if last.note else note)
    try:
        store.verify(path, _UNREAD)
    except store.InvalidCheckpointError as e:
        if any(store.verifies(step, _UNREAD) for step in store.list_steps(run_dir / CHECKPOINTS)):
            raise UsageError(f"{e}\nallowed: checkpoint=last") from e
        raise
    return Located(path, run_dir)


def _last(run_dir: Path) -> Located:
    steps = store.list_steps(run_dir / CHECKPOINTS)
    newest = store.newest_valid(run_dir / CHECKPOINTS, _UNREAD)
    if newest is None:
        allowed = "\nallowed: checkpoint=best" if store.exists(run_dir / BEST) else ""
        raise UsageError(f"{run_dir} has no checkpoint{_why_none(run_dir)}{allowed}")
    skipped = "" if newest == steps[0] else f"{steps[0].name} does not verify: this is {newest.name}"
    return Located(newest, run_dir, skipped)


def _why_none(run_dir: Path) -> str:
    """Why a run has no checkpoint."""
    summary = read_summary(run_dir)
    if summary.get("status") not in ("done", "stopped", "failed"):
        return " yet: the first one comes after trainer.save_interval opt steps"
    if summary.get("saved"):
        return ": those that it saved are gone"
    counters = summary.get("counters")
    learned = isinstance(counters, dict) and counters.get("opt_steps")
    return f": the run ended before its first {'checkpoint' if learned else 'opt step'}"


def _step(run_dir: Path, opt_steps: int) -> Located:
    path = run_dir / CHECKPOINTS / store.step_name(opt_steps)
    steps = {step: str(int(step.name.partition("-")[2])) for step in store.list_steps(path.parent)}
    choices = {run_dir / BEST: BEST} if store.exists(run_dir / BEST) else {}
    if path not in steps:
        raise _no_such_step(run_dir, opt_steps, list(choices.values()), list(steps.values()))
    try:
        store.verify(path, _UNREAD)
    except store.InvalidCheckpointError as e:
        choices |= steps
        valid = [name for other, name in choices.items() if other != path and store.verifies(other, _UNREAD)]
        if valid:
            raise UsageError(f"{e}\nallowed: {_listed(valid)}") from e
        raise NoValidCheckpointError(f"{e}\nand nothing else in {run_dir} does") from e
    return Located(path, run_dir)


def _no_such_step(run_dir: Path, opt_steps: int, best: list[str], steps: list[str]) -> UsageError:
    if not steps:
        return UsageError(
            f"checkpoint={opt_steps}: {run_dir} has no checkpoints\nallowed: {_listed(best) or 'another run'}"
        )
    near = min(steps, key=lambda step: abs(int(step) - opt_steps))
    shown = _listed([*best, LAST, *steps])
    return UsageError(
        f"checkpoint={opt_steps}: {run_dir} has none", nearest=f"checkpoint={near}", allowed=shown
    )


def _latest_run() -> Path:
    """What runs/latest points to; where there are no links, the newest by name."""
    latest = RUNS / LATEST
    if latest.is_dir():
        return RUNS / latest.readlink() if latest.is_symlink() else latest
    found = sorted(path.parent for path in RUNS.glob(f"[0-9]*/*/{CONFIG_FILE}"))
    if not found:
        raise UsageError(
            f"there is no run below {RUNS}/\nallowed: the path of a run, or a border-train first"
        )
    return found[-1]


def _no_such_path(path: Path, allowed: str = "a run, a checkpoint directory or best/") -> UsageError:
    if path.exists():
        return UsageError(f"{path} is a file\nallowed: {allowed}")
    siblings = [e.name for e in os.scandir(path.parent) if e.is_dir()] if path.parent.is_dir() else []
    match = nearest(path.name, siblings)
    return UsageError(
        f"{path} is not there", nearest=str(path.parent / match) if match else None, allowed=allowed
    )


def _no_run(path: Path) -> UsageError:
    runs = _runs_in(path)
    if runs:
        return UsageError(
            f"{path} is a folder with {_number(runs)} in it\nallowed: a run, such as {runs[-1]}"
        )
    return UsageError(
        f"{path} is not a run: it has neither {CONFIG_FILE} nor checkpoints\nallowed: a run, such as runs/latest"
    )


def _runs_in(folder: Path) -> list[Path]:
    """Runs in a folder or in its folders, the oldest first."""
    found = (config for pattern in ("*", "*/*") for config in folder.glob(f"{pattern}/{CONFIG_FILE}"))
    # .hydra has a config.yaml too, and a link such as runs/latest leads to a run that is found already.
    configs = [file for file in found if file.parent.name[0] != "." and not file.parent.is_symlink()]
    return [file.parent for file in sorted(configs, key=lambda file: (file.stat().st_mtime_ns, file))]


def _number(runs: Sequence[Path]) -> str:
    return f"{len(runs)} run{'s' * (len(runs) != 1)}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more
