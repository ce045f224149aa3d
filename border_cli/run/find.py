"""Which run, and which model of it, the user means."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from border_cli.checkpoints import store
from border_cli.checkpoints.contents import BEST, CHECKPOINTS, REPLAY
from border_cli.checkpoints.store import MANIFEST_FILE
from border_cli.core.errors import UsageError
from border_cli.run.directory import CONFIG_FILE, LATEST, RUNS
from border_cli.run.summary import PROVENANCE_FILE

LAST = "last"
_ALLOWED = "a run, such as runs/latest, a checkpoint directory or best/"
_UNREAD = (REPLAY,)
"""Acting needs no replay, and it may be large: only the sizes of its files are verified."""


@dataclass(frozen=True)
class Located:
    """A model directory, the run it belongs to, if any, and what the user should know about the choice, if anything."""

    path: Path
    run_dir: Path | None
    note: str = ""


def model_directory(named: Path | None = None, checkpoint: str | int | None = None) -> Located:
    """The model to load. Nothing in the directory is imported or run.

    Args:
        named: a run, a checkpoint directory, best/, or None for the latest run below ./runs.
        checkpoint: "best", "last" or an opt step; None takes the best, or the last where there is no best yet.

    Raises UsageError for what is not there, NoValidCheckpointError where nothing verifies.
    """
    chosen = BEST if checkpoint is None else str(checkpoint)
    if chosen not in (BEST, LAST) and not (chosen.isascii() and chosen.isdigit()):
        allowed = "best, last, or an opt step"
        raise UsageError(f"checkpoint={chosen}: there is no such choice", allowed=allowed)
    path = named or _latest_run()
    if (path / MANIFEST_FILE).exists():  # a model directory itself
        if checkpoint is not None:
            raise UsageError(f"{path} is a checkpoint, and checkpoint={chosen} chooses among those of a run")
        folder = path.resolve().parent
        run_dir = folder.parent if folder.name == CHECKPOINTS else folder
        is_run = any((run_dir / mark).exists() for mark in (CONFIG_FILE, PROVENANCE_FILE))
        return Located(path, run_dir if is_run else None)
    run_dir = path.parent if path.name == CHECKPOINTS else path
    if not any((run_dir / mark).exists() for mark in (CONFIG_FILE, PROVENANCE_FILE, CHECKPOINTS, BEST)):
        raise _no_run(path)
    if chosen == LAST:
        return _last(run_dir)
    if chosen == BEST and not store.exists(run_dir / BEST):
        last = _last(run_dir)
        note = f"no evaluation has found a best model yet: this is the last checkpoint, {last.path.name}"
        return Located(last.path, run_dir, f"{note}; {last.note}" if last.note else note)
    return Located(_chosen(run_dir, chosen if chosen == BEST else str(int(chosen))), run_dir)


def run_directory(named: Path, allowed: str = _ALLOWED) -> Path:
    """The run that the user named, with links resolved. Raises UsageError, with what is allowed, for anything else."""
    if not (named / CONFIG_FILE).is_file():
        raise _no_run(named, allowed)
    return named.resolve()


def _latest_run() -> Path:
    """What runs/latest leads to. The newest run by name if there are no links here, or if that run was removed."""
    latest = RUNS / LATEST
    if latest.is_dir():
        return RUNS / latest.readlink() if latest.is_symlink() else latest
    runs = [file.parent for file in RUNS.glob(f"[0-9]*/*/{CONFIG_FILE}")]
    if not runs:
        raise UsageError(f"there is no run below {RUNS}/", allowed="the path of a run, or border-train first")
    return max(runs)


def _chosen(run_dir: Path, checkpoint: str) -> Path:
    """best/ or the checkpoint of an opt step. If it is missing or does not verify, the error names the others."""
    steps = {str(int(path.name.partition("-")[2])): path for path in store.list_steps(run_dir / CHECKPOINTS)}
    best = {BEST: run_dir / BEST} if store.exists(run_dir / BEST) else {}
    models = best | steps
    if checkpoint not in models:
        near = min(steps, key=lambda step: abs(int(step) - int(checkpoint)), default=None)
        raise UsageError(
            f"checkpoint={checkpoint}: {run_dir} has none",
            nearest=near and f"checkpoint={near}",
            allowed=[*best, *([LAST] if steps else []), *steps] or "another run",
        )
    try:
        store.verify(models[checkpoint], _UNREAD)
    except store.InvalidCheckpointError as e:
        others = [str(path) for path in models.values() if store.verifies(path, _UNREAD)]
        if not others:
            raise
        raise UsageError(str(e), allowed=others) from e
    return models[checkpoint]


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


def _no_run(path: Path, allowed: str = _ALLOWED) -> UsageError:
    what = f"is not a run: it has neither {CONFIG_FILE} nor checkpoints" if path.exists() else "is not there"
    is_known = not path.exists() and (RUNS / path / CONFIG_FILE).is_file()
    return UsageError(f"{path} {what}", nearest=str(RUNS / path) if is_known else None, allowed=allowed)
