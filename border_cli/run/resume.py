"""What a resumed run continues from: the newest checkpoint of its directory that verifies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from border_cli.agents.config import NetworkConfig
from border_cli.checkpoints import store
from border_cli.checkpoints.contents import BEST, CHECKPOINTS, REPLAY, read_model, read_run_state, read_scores
from border_cli.config.budget import counts
from border_cli.config.resolve import (
    BUDGETS,
    Change,
    changes,
    envs_per_actor,
    inherit,
    is_reproducible,
    keeps_the_bits,
    reopen,
    safe,
)
from border_cli.config.schema import TrainConfig
from border_cli.core.errors import (
    BorderError,
    IncompatibleStateError,
    NoValidCheckpointError,
    UsageError,
    first_line,
)
from border_cli.core.spaces import EnvSpec
from border_cli.core.state import RunState
from border_cli.run.directory import CONFIG_FILE, locked, read_config
from border_cli.run.summary import read_summary
from border_cli.run.trust import check_plain
from border_cli.training.best_model import Candidate

DONE = "done"


@dataclass(frozen=True)
class Resumed:
    """What a run continues from.

    Attributes:
        path: the checkpoint; None where there is none yet, and the run starts over in the same directory.
        state: the state in it.
        opt_steps, env_steps: counts then.
        seconds: duration of the run until then, as far as it is known.
        changes: of the configuration.
        exact: whether a reproducible run gives the bits of an uninterrupted one.
        best: the model of best/, which may be newer than the checkpoint; None for a reproducible run.
    """

    path: Path | None = None
    state: RunState | None = None
    opt_steps: int = 0
    env_steps: int = 0
    seconds: float = 0.0
    changes: tuple[Change, ...] = ()
    exact: bool = True
    best: Candidate | None = None

    def position(self, recorder: str) -> int:
        """Lines that a recorder's file had at the checkpoint."""
        return 0 if self.state is None else int(self.state.loop["records"].get(recorder, 0))


def read_resumed(run_dir: Path, config: TrainConfig, wanted: Sequence[Change]) -> Resumed:
    """Read the newest checkpoint of a run that verifies. config: with the wanted changes.

    Raises NoValidCheckpointError where there are checkpoints and none verifies, UsageError where nothing is left to do.
    """
    with_replay = config.checkpoint.replay != "none"
    path = _newest(run_dir / CHECKPOINTS, with_replay)
    summary = read_summary(run_dir)
    if path is None:
        if summary.get("status") == DONE or summary.get("saved"):
            raise NoValidCheckpointError(
                f"{run_dir}: the run has saved checkpoints, and they are gone\nallowed: a new run: init_from={run_dir}"
            )
        return Resumed(changes=tuple(wanted))
    state = read_run_state(path, with_replay)
    try:
        opt_steps, env_steps, whole = _counts(state.loop)
    except IncompatibleStateError as e:
        raise unfit(path, e) from e
    exact = summary.get("exact") is not False and state.replay is not None and whole
    exact = exact and all(_keeps(config, state, change) for change in wanted)
    exact = exact and not _had_schedules_of_the_budget(config, wanted)
    best = None if is_reproducible(config) else _best(run_dir)
    saved = summary.get("saved")
    seconds = saved.get("seconds") if isinstance(saved, dict) else None
    seconds = float(seconds) if isinstance(seconds, int | float) and seconds > 0 else 0.0
    resumed = Resumed(path, state, opt_steps, env_steps, seconds, tuple(wanted), exact, best)
    _check_something_left(run_dir, config, resumed, summary)
    return resumed


def describe(config: TrainConfig, resumed: Resumed) -> str:
    """For the banner: what the run continues from, what changes, and what is lost by that."""
    if resumed.path is None:
        return "from the beginning: there is no checkpoint yet"
    words = [f"{resumed.path.name}: {resumed.opt_steps:,} opt steps, {resumed.env_steps:,} env steps"]
    words += [str(change) for change in resumed.changes]
    agent, length = config.agent, _lr_opt_steps(config)
    if (
        isinstance(agent, NetworkConfig)
        and length is not None
        and length < (counts(config).opt_steps or math.inf)
    ):
        last = agent.lr * agent.lr_final
        words.append(
            f"the learning rate is {last:g} from opt step {length:,} on: agent.lr_opt_steps=<number> changes that"
        )
    if resumed.state is not None and resumed.state.replay is None:
        words.append("without its replay, so there is a warm-up first")
        budget = config.trainer.max_env_steps
        if budget is not None and budget - resumed.env_steps <= config.trainer.warmup_period:
            words.append("the warm-up takes all that is left of max_env_steps: nothing more is learned")
    if is_reproducible(config) and not resumed.exact:
        words.append("the bits will not be those of an uninterrupted run")
    return "; ".join(words)


def check_spec(resumed: Resumed, spec: EnvSpec) -> None:
    """Raise UsageError where the environment is not the one that the checkpoint was trained in."""
    if resumed.path is None:
        return
    saved = read_model(resumed.path).description.spec
    if saved != spec:
        raise UsageError(
            f"resume: the spaces of the environment are not those of {resumed.path.name}: {saved.difference(spec)}",
            allowed="the environment as it was, or a new run",
        )


def unfit(path: Path, error: ValueError) -> store.InvalidCheckpointError:
    """The error of a checkpoint that verifies, and whose state does not fit this run."""
    return store.InvalidCheckpointError(
        f"{path} cannot be resumed from: {first_line(error)}\n"
        "its files are undamaged, so another version of border-cli or another program wrote them\n"
        "allowed: a new run with init_from=<run>, which takes its weights alone"
    )


def newest_unfinished(root: Path, config: TrainConfig, trusted: bool) -> Path | None:
    """The newest run below `root` that is not done and differs from this configuration in safe keys alone.

    Raises UsageError where a living process holds that run.
    """
    runs = [path.parent for path in root.glob(f"[0-9]*/*/{CONFIG_FILE}")]  # without those of sweeps
    for run_dir in sorted(runs, key=lambda path: (path.parent.name, path.name), reverse=True):
        if read_summary(run_dir).get("status") == DONE:
            continue
        try:
            stored = reopen(read_config(run_dir))
        except (BorderError, OSError):
            continue  # damaged, or of another version
        if all(safe(stored, change) for change in changes(stored, reopen(inherit(config, stored)))):
            check_plain(run_dir, trusted)  # before the lock is written
            with locked(run_dir):
                return run_dir
    return None


def _newest(folder: Path, with_replay: bool) -> Path | None:
    try:
        return store.newest_valid(folder, () if with_replay else (REPLAY,))
    except NoValidCheckpointError as e:
        if with_replay and any(store.verifies(path, (REPLAY,)) for path in store.list_steps(folder)):
            raise NoValidCheckpointError(
                f"{first_line(e)}\nnone of the checkpoints in {folder} has a replay that verifies\n"
                "allowed: checkpoint.replay=none beside resume continues without it, after a new warm-up"
            ) from e
        raise


def _counts(loop: dict[str, Any]) -> tuple[int, int, bool]:
    """Opt steps, env steps, and whether the state is whole. Raises IncompatibleStateError."""
    try:
        counts = [loop["limiter"]["opt_steps"], loop["limiter"]["env_steps"], *loop["records"].values()]
        whole = loop["whole"]
    except (KeyError, TypeError, AttributeError) as e:
        raise IncompatibleStateError("the state of the loop is incomplete") from e
    if not all(type(n) is int and n >= 0 for n in counts) or type(whole) is not bool:
        raise IncompatibleStateError("a count in the state of the loop is not a count")
    return counts[0], counts[1], whole


def _keeps(config: TrainConfig, state: RunState, change: Change) -> bool:
    """Whether a reproducible run with this change equals a run that had it from the start.

    A used-up budget of env steps may have cut short the last round, or the last step of a group.
    """
    if change.key == "trainer.max_env_steps" and change.before is not None:
        rounds = state.actors.values.get("rounds", {})
        started = rounds.get("env_steps") if config.trainer.lockstep else state.loop["limiter"]["env_steps"]
        group = 1 if config.trainer.lockstep else envs_per_actor(config)
        cut = config.trainer.lockstep or change.before % group > 0
        if not isinstance(started, int) or (started >= change.before and cut):
            return False
    return keeps_the_bits(change)


def _had_schedules_of_the_budget(config: TrainConfig, wanted: Sequence[Change]) -> bool:
    """Whether a schedule ends with the budget before these changes: with the new one from the start it would be longer."""
    before = {c.key.removeprefix("trainer."): c.before for c in wanted if c.key in BUDGETS}
    opt_steps = counts(replace(config, trainer=replace(config.trainer, **before))).opt_steps
    lengths = _lr_opt_steps(config), getattr(config.buffer, "beta_opt_steps", None)
    return bool(before) and opt_steps is not None and opt_steps in lengths


def _lr_opt_steps(config: TrainConfig) -> int | None:
    """Length of the schedule of the learning rate, None where there is none."""
    return config.agent.lr_opt_steps if isinstance(config.agent, NetworkConfig) else None


def _best(run_dir: Path) -> Candidate | None:
    """The model of best/ and its regular evaluation, if that verifies."""
    try:
        model, (score, regular) = read_model(run_dir / BEST).info, read_scores(run_dir / BEST)
    except store.InvalidCheckpointError:
        return None
    return Candidate(model, regular or score)


def _check_something_left(
    run_dir: Path, config: TrainConfig, resumed: Resumed, summary: Mapping[str, Any]
) -> None:
    """Raise UsageError for a typed budget below what the run has done, and for a run that is done without a larger one."""
    t, is_done = config.trainer, summary.get("status") == DONE
    before = {change.key: change.before for change in resumed.changes}
    goal, goal_before = t.stop_return, before.get("trainer.stop_return", t.stop_return)
    reached = is_done and summary.get("ended_by") == "stop_return"
    if reached and goal is not None and goal_before is not None and goal <= goal_before:
        raise UsageError(
            f"{run_dir} is done: it has reached trainer.stop_return={goal_before:g}",
            allowed="trainer.stop_return=null, or a greater one, and a budget that is not used up",
        )
    counts: dict[str, tuple[int, float | None]] = {
        "trainer.max_opts": (resumed.opt_steps, t.max_opts),
        "trainer.max_env_steps": (resumed.env_steps, t.max_env_steps),
        "trainer.max_time": (math.ceil(resumed.seconds), t.max_time),
    }
    used = {
        key: count
        for key, (count, limit) in counts.items()
        if limit is not None and (count >= limit if is_done else count > limit and key in before)
    }
    if used or (is_done and not before.keys() & set(BUDGETS)):
        used = used or {"trainer.max_env_steps": resumed.env_steps}
        larger = " ".join(f"{key}={2 * max(count, 1)}" for key, count in used.items())
        length = _lr_opt_steps(config)
        longer = "" if length is None else f" agent.lr_opt_steps={2 * length}"
        raise UsageError(
            f"{run_dir} has done {resumed.opt_steps:,} opt steps and {resumed.env_steps:,} env steps already",
            allowed=f"a larger budget beside resume, such as {larger}{longer}",
        )
