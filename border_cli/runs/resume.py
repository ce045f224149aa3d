"""From a run that ended, or was ended, to what it goes on from."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from border_cli.checkpoints import store
from border_cli.checkpoints.contents import CHECKPOINTS, REPLAY, read_model, read_run_state
from border_cli.config.resuming import BUDGETS, Change, changes, safe
from border_cli.config.schema import TrainConfig
from border_cli.core.errors import BorderError, NoValidCheckpointError, UsageError
from border_cli.core.spaces import EnvSpec
from border_cli.core.state import RunState, count, require
from border_cli.runs.directory import CONFIG_FILE, SWEEPS, read_config
from border_cli.runs.json_file import read_json
from border_cli.runs.lock import is_held
from border_cli.runs.summary import SUMMARY_FILE

DONE = "done"
_REPLAY_HEADS = 2**24
"""Bytes of a saved replay beside its rows, at most: heads of its files, and what its streams wait for."""


@dataclass(frozen=True)
class Resumed:
    """What a run goes on from.

    path: the checkpoint, None where there is none yet: then it begins anew, in the same directory · state: of it ·
    opt_steps, env_steps: counts then · seconds: how long it took until then, as far as that is known · changes: of its
    configuration.
    """

    path: Path | None = None
    state: RunState | None = None
    opt_steps: int = 0
    env_steps: int = 0
    seconds: float = 0.0
    changes: tuple[Change, ...] = ()

    @property
    def without_replay(self) -> bool:
        """Whether the replay begins anew."""
        return self.state is not None and self.state.replay is None


def read_resumed(run_dir: Path, config: TrainConfig, wanted: Sequence[Change], replay_bytes: int) -> Resumed:
    """The newest checkpoint of a run that verifies.

    config: with the changes that are wanted · replay_bytes: those of its replay in memory, so that no checkpoint with a
    larger one is read.
    Raises NoValidCheckpointError where there are some and none verifies, UsageError where nothing is left to be done.
    """
    with_replay = config.checkpoint.replay != "none"
    path = _newest(run_dir / CHECKPOINTS, with_replay, replay_bytes)
    if path is None:
        return Resumed(changes=tuple(wanted))
    state = read_run_state(path, with_replay)
    try:
        opt_steps, env_steps = _counts(state)
    except ValueError as e:
        raise unfit(path, e) from e
    resumed = Resumed(path, state, opt_steps, env_steps, _seconds(run_dir), tuple(wanted))
    _check_something_left(run_dir, config, resumed)
    return resumed


def _newest(folder: Path, with_replay: bool, replay_bytes: int) -> Path | None:
    limits = {REPLAY: replay_bytes + _REPLAY_HEADS}
    try:
        return store.newest_valid(folder, () if with_replay else (REPLAY,), limits)
    except NoValidCheckpointError as e:
        if with_replay and any(_verifies_without_replay(path) for path in store.list_steps(folder)):
            first = str(e).splitlines()[0]
            raise NoValidCheckpointError(
                f"{first}\nnone of the checkpoints in {folder} has a replay that verifies\n"
                "allowed: checkpoint.replay=none beside resume goes on without, from a new warm-up"
            ) from e
        raise


def _verifies_without_replay(path: Path) -> bool:
    try:
        store.verify(path, (REPLAY,))
    except store.InvalidCheckpointError:
        return False
    return True


def _counts(state: RunState) -> tuple[int, int]:
    """Opt steps and env steps of a saved state. Raises ValueError where it has none, or no positions of records."""
    require(state.loop, ("limiter", "records"), "the loop")
    require(state.loop["limiter"], ("opt_steps", "env_steps"), "the ratio limiter")
    require(state.loop["records"], (), "the recorders")
    for name, written in state.loop["records"].items():
        count(written, f"records of {name}")
    opt_steps, env_steps = (count(state.loop["limiter"][name], name) for name in ("opt_steps", "env_steps"))
    return opt_steps, env_steps


def check_spec(resumed: Resumed, spec: EnvSpec) -> None:
    """Raise UsageError where the environment is not the one that the checkpoint was trained in."""
    if resumed.path is not None and read_model(resumed.path).description.spec != spec:
        raise UsageError(
            f"resume: the spaces of the environment are not those of {resumed.path.name}\n"
            "allowed: the environment as it was, or a new run"
        )


def unfit(path: Path, error: ValueError) -> store.InvalidCheckpointError:
    """The error of a checkpoint that verifies, and whose state is none of this run."""
    return store.InvalidCheckpointError(
        f"{path} cannot be gone on from: {str(error).splitlines()[0]}\n"
        "its files are as they were written; another border-cli, or other hands, must have written them\n"
        "allowed: a new run with init_from=<run>, which takes its weights alone"
    )


def newest_unfinished(
    root: Path, config: TrainConfig, take_over: Callable[[TrainConfig, TrainConfig], None]
) -> Path | None:
    """The newest run below `root` that is not done and differs from this configuration in safe keys alone.

    take_over: (stored, config) gives the second what the first has settled. Raises UsageError where that run is held by
    a living process.
    """
    for run_dir in _runs(root):
        if _status(run_dir) != DONE and _fits(run_dir, config, take_over):
            if is_held(run_dir):
                raise UsageError(
                    f"{run_dir} is being trained by another process\nallowed: wait for it, or stop it"
                )
            return run_dir
    return None


def _runs(root: Path) -> list[Path]:
    """Runs below the folder of runs, the newest first; those of sweeps are left out."""
    found = [path.parent for path in root.glob(f"*/*/{CONFIG_FILE}") if path.parent.parent.name != SWEEPS]
    return sorted(found, key=lambda path: (path.parent.name, path.name), reverse=True)


def _fits(run_dir: Path, config: TrainConfig, take_over: Callable[[TrainConfig, TrainConfig], None]) -> bool:
    try:
        stored = read_config(run_dir)
    except (BorderError, OSError):
        return False  # of another version, or damaged: it is not this one
    config = copy.deepcopy(config)
    take_over(stored, config)
    return all(safe(stored, change) for change in changes(stored, config))


def _status(run_dir: Path) -> str:
    try:
        return str(read_json(run_dir / SUMMARY_FILE).get("status"))
    except (OSError, ValueError):
        return "unknown"


def _seconds(run_dir: Path) -> float:
    try:
        saved = read_json(run_dir / SUMMARY_FILE).get("saved")
        return float(saved["seconds"]) if isinstance(saved, dict) else 0.0
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0


def _check_something_left(run_dir: Path, config: TrainConfig, resumed: Resumed) -> None:
    """A run that is done goes on only with a larger budget."""
    if _status(run_dir) != DONE:
        return
    t = config.trainer
    used = [
        f"trainer.{name}={limit}"
        for name, count, limit in (
            ("max_opts", resumed.opt_steps, t.max_opts),
            ("max_env_steps", resumed.env_steps, t.max_env_steps),
            ("max_time", resumed.seconds, t.max_time),
        )
        if limit is not None and count >= limit
    ]
    if used or not any(change.key in BUDGETS for change in resumed.changes):
        raise UsageError(
            f"{run_dir} is done: {resumed.opt_steps} opt steps, {resumed.env_steps} env steps"
            f"{'; ' + ', '.join(used) if used else ''}\n"
            "allowed: a larger budget beside resume, such as trainer.max_env_steps="
            f"{2 * max(resumed.env_steps, 1)}"
        )
