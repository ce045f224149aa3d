"""From a run that ended, or was ended, to what it goes on from."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from border_cli.checkpoints import store
from border_cli.checkpoints.contents import (
    BEST,
    CHECKPOINTS,
    REPLAY,
    read_checkpoint,
    read_model,
    read_run_state,
)
from border_cli.config.resuming import BUDGETS, Change, changes, is_reproducible, keeps_the_bits, safe
from border_cli.config.schema import TrainConfig
from border_cli.core.errors import BorderError, NoValidCheckpointError, UsageError
from border_cli.core.protocols import Evaluation
from border_cli.core.spaces import EnvSpec
from border_cli.core.state import RunState, count, flag, require
from border_cli.runs.directory import CONFIG_FILE, read_config
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
    configuration · exact: whether what comes is what an uninterrupted run would have given, if its kind can be repeated ·
    best: the score of best/, which the evaluation of a run's result may have brought after its last checkpoint.
    """

    path: Path | None = None
    state: RunState | None = None
    opt_steps: int = 0
    env_steps: int = 0
    seconds: float = 0.0
    changes: tuple[Change, ...] = ()
    exact: bool = True
    best: Evaluation | None = None

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
        whole = flag(state.loop.get("whole"), "whole")
    except ValueError as e:
        raise unfit(path, e) from e
    exact = _summary(run_dir).get("exact") is not False and state.replay is not None and whole
    exact = exact and all(_keeps(config, state, change) for change in wanted)
    best = _best(run_dir)
    if best is not None and exact and is_reproducible(config) and _is_later(best, opt_steps, state):
        if _comes_again(config, best.opt_steps):
            best = None
        else:
            exact = False  # it was the evaluation of a result, which an uninterrupted run does not make there
    resumed = Resumed(path, state, opt_steps, env_steps, _seconds(run_dir), tuple(wanted), exact, best)
    _check_something_left(run_dir, config, resumed)
    return resumed


def _best(run_dir: Path) -> Evaluation | None:
    """The score of best/, if that is whole."""
    try:
        return read_checkpoint(run_dir / BEST).score
    except store.InvalidCheckpointError:
        return None


def _is_later(best: Evaluation, opt_steps: int, state: RunState) -> bool:
    """Whether its score took effect after this state was saved: of a later model, or of one that still waits there."""
    return best.opt_steps >= opt_steps or str(best.opt_steps) in state.waiting.values


def _comes_again(config: TrainConfig, opt_steps: int) -> bool:
    """Whether a run evaluates at this opt step, however large its budget."""
    interval = config.trainer.eval_interval
    return interval is not None and opt_steps % interval == 0


def describe(config: TrainConfig, resumed: Resumed) -> str:
    """For the banner: what the run goes on from, what changes, and what is lost by that."""
    if resumed.path is None:
        return "from its beginning: there is no checkpoint yet"
    words = [f"{resumed.path.name}: {resumed.opt_steps:,} opt steps, {resumed.env_steps:,} env steps"]
    words += [str(change) for change in resumed.changes]
    if resumed.without_replay:
        words.append("without its replay, so there is a warm-up first")
        if _learns_no_more(config, resumed):
            words.append("the warm-up takes all that is left of max_env_steps: nothing more is learnt")
    if is_reproducible(config) and not resumed.exact:
        words.append("the bits will not be those of an uninterrupted run")
    return "; ".join(words)


def _learns_no_more(config: TrainConfig, resumed: Resumed) -> bool:
    budget = config.trainer.max_env_steps
    return budget is not None and budget - resumed.env_steps <= config.trainer.warmup_period


def _keeps(config: TrainConfig, state: RunState, change: Change) -> bool:
    """Whether a reproducible run stays the same with this change: as one that had it from the start.

    A budget of env steps that was used up may have cut short the last round, or the last step of a group.
    """
    if change.key == "trainer.max_env_steps" and change.before is not None:
        rounds = state.actors.values.get("rounds", {})
        begun = rounds.get("env_steps") if config.trainer.lockstep else state.loop["limiter"]["env_steps"]
        group = 1 if config.trainer.lockstep else config.actor_manager.envs_per_actor
        cut = config.trainer.lockstep or change.before % group > 0
        if not isinstance(begun, int) or (begun >= change.before and cut):
            return False
    return keeps_the_bits(change)


def _newest(folder: Path, with_replay: bool, replay_bytes: int) -> Path | None:
    limits = {REPLAY: replay_bytes + _REPLAY_HEADS}
    try:
        return store.newest_valid(folder, () if with_replay else (REPLAY,), limits)
    except NoValidCheckpointError as e:
        if with_replay and any(_verifies_without_replay(path) for path in store.list_steps(folder)):
            first = str(e).splitlines()[0]
            raise NoValidCheckpointError(
                f"{first}\nnone of the checkpoints in {folder} has a replay that verifies\n"
                "allowed: checkpoint.replay=none beside resume does without it, from a new warm-up"
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
    """Runs below the folder of runs, by the date and time of their names, the newest first; not those of sweeps."""
    found = [path.parent for path in root.glob(f"[0-9]*/*/{CONFIG_FILE}")]
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
    return str(_summary(run_dir).get("status"))


def _seconds(run_dir: Path) -> float:
    saved = _summary(run_dir).get("saved")
    seconds = saved.get("seconds") if isinstance(saved, dict) else None
    return float(seconds) if isinstance(seconds, int | float) and seconds > 0 else 0.0


def _summary(run_dir: Path) -> dict[str, Any]:
    """What is known of how it ended; nothing where that cannot be read."""
    try:
        return read_json(run_dir / SUMMARY_FILE)
    except (OSError, ValueError):
        return {}


def _check_something_left(run_dir: Path, config: TrainConfig, resumed: Resumed) -> None:
    """A run that is done goes on only with a larger budget."""
    if _status(run_dir) != DONE:
        return
    t, best = config.trainer, _best(run_dir)
    if t.stop_return is not None and best is not None and best.mean >= t.stop_return:
        raise UsageError(
            f"{run_dir} is done: its best score {best.mean:g} reaches trainer.stop_return={t.stop_return:g}\n"
            "allowed: trainer.stop_return=null, or a greater one, and a budget that is not used up"
        )
    budgets = (
        ("max_opts", resumed.opt_steps, t.max_opts),
        ("max_env_steps", resumed.env_steps, t.max_env_steps),
        ("max_time", math.ceil(resumed.seconds), t.max_time),
    )
    used = [(name, count) for name, count, limit in budgets if limit is not None and count >= limit]
    if used or not any(change.key in BUDGETS for change in resumed.changes):
        name, count = used[0] if used else ("max_env_steps", resumed.env_steps)
        raise UsageError(
            f"{run_dir} is done: {resumed.opt_steps:,} opt steps, {resumed.env_steps:,} env steps\n"
            f"allowed: a larger budget beside resume, such as trainer.{name}={2 * max(count, 1)}"
        )
