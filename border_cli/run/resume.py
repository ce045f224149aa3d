"""What a resumed run continues from: the newest checkpoint of its directory that verifies."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from border_cli.agents.config import NetworkConfig
from border_cli.checkpoints import store
from border_cli.checkpoints.contents import BEST, CHECKPOINTS, REPLAY, read_model, read_run_state, read_scores
from border_cli.config import resolve
from border_cli.config.schema import TrainConfig
from border_cli.core.errors import BorderError, NoValidCheckpointError, UsageError, first_line
from border_cli.core.spaces import EnvSpec
from border_cli.run.directory import CONFIG_FILE, check_plain, locked, read_config
from border_cli.run.summary import SUMMARY_FILE, Resumed, read_or_empty
from border_cli.training.choose_best import Candidate

DONE = "done"


def read_resumed(run_dir: Path, config: TrainConfig, wanted: Sequence[resolve.Change]) -> Resumed:
    """Read the newest checkpoint of a run that verifies. config: with the wanted changes.

    Raises NoValidCheckpointError where there are checkpoints and none verifies, UsageError where nothing is left to do.
    """
    with_replay = config.checkpoint.replay != "none"
    try:
        path = store.newest_valid(run_dir / CHECKPOINTS, () if with_replay else (REPLAY,))
    except NoValidCheckpointError as e:
        way_out = "\nallowed: checkpoint.replay=none beside resume, if the replay is all that is damaged"
        raise NoValidCheckpointError(f"{e}{way_out if with_replay else ''}") from e
    summary = read_or_empty(run_dir / SUMMARY_FILE)
    if path is None:
        if summary.get("status") == DONE or summary.get("saved"):
            raise NoValidCheckpointError(
                f"{run_dir}: the run has saved checkpoints, and they are gone\nallowed: a new run: init_from={run_dir}"
            )
        return Resumed(changes=tuple(wanted))
    state = read_run_state(path, with_replay)
    try:
        opt_steps, env_steps = (state.loop["limiter"][name] for name in ("opt_steps", "env_steps"))
        whole, counts = state.loop["whole"], [opt_steps, env_steps, *state.loop["records"].values()]
        if not all(type(n) is int and n >= 0 for n in counts):
            raise ValueError("a count in the state of the loop is not a count")
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        raise unfit(path, e) from e
    exact = summary.get("exact") is not False and state.replay is not None and whole
    exact = exact and config.trainer.type != "device"
    exact = exact and all(change.is_among(resolve.KEEP_THE_BITS) for change in wanted)
    best = None
    with contextlib.suppress(store.InvalidCheckpointError):
        if not resolve.is_reproducible(config):
            model, (score, regular) = read_model(run_dir / BEST).info, read_scores(run_dir / BEST)
            best = Candidate(model, regular or score)
    saved = summary.get("saved")
    seconds = saved.get("seconds") if isinstance(saved, dict) else None
    seconds = float(seconds) if isinstance(seconds, int | float) and seconds > 0 else 0.0
    resumed = Resumed(path, state, opt_steps, env_steps, seconds, tuple(wanted), exact, best)
    _check_unfinished(run_dir, config, resumed, summary)
    return resumed


def describe(config: TrainConfig, resumed: Resumed) -> str:
    """For the banner: what the run continues from, what changes, and what is lost by that."""
    if resumed.path is None:
        return "from the beginning: there is no checkpoint yet"
    words = [f"{resumed.path.name}: {resumed.opt_steps:,} opt steps, {resumed.env_steps:,} env steps"]
    words += [str(change) for change in resumed.changes]
    agent, total = config.agent, resolve.counts(config).opt_steps or math.inf
    if isinstance(agent, NetworkConfig) and (agent.lr_opt_steps or math.inf) < total:
        words.append(
            f"the learning rate is {agent.lr * agent.lr_final:g} from opt step {agent.lr_opt_steps:,} on: "
            "agent.lr_opt_steps=<number> changes that"
        )
    if resumed.state is not None and resumed.state.replay is None:
        words.append("without its replay, so there is a warm-up first")
        if (config.trainer.max_env_steps or math.inf) - resumed.env_steps <= config.trainer.warmup_period:
            words.append("the warm-up takes all that is left of max_env_steps: nothing more is learned")
    if resolve.is_reproducible(config) and not resumed.exact:
        words.append("the bits may not be those of an uninterrupted run")
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


def unfit(path: Path, error: Exception) -> store.InvalidCheckpointError:
    """The error of a checkpoint that verifies, and whose state does not fit this run."""
    return store.InvalidCheckpointError(
        f"{path} cannot be resumed from: {first_line(error)}\n"
        "its files are not damaged, so another version of border-cli or another program wrote them\n"
        "allowed: a new run with init_from=<run>, which takes only its weights"
    )


def newest_unfinished(root: Path, config: TrainConfig, trusted: bool) -> Path | None:
    """The newest run below `root` that is not done and differs from this configuration in safe keys alone.

    Raises UsageError where a living process holds that run.
    """
    runs = [path.parent for path in root.glob(f"[0-9]*/*/{CONFIG_FILE}")]  # without those of sweeps
    for run_dir in sorted(runs, key=lambda path: (path.parent.name, path.name), reverse=True):
        if read_or_empty(run_dir / SUMMARY_FILE).get("status") == DONE:
            continue
        try:
            stored = resolve.reopen(read_config(run_dir))
            wanted = resolve.changes(stored, resolve.reopen(resolve.inherit(config, stored)))
            resolve.check_changes(stored, wanted)
        except (BorderError, OSError):
            continue  # damaged, of another version, or of another configuration
        check_plain(run_dir, trusted)  # before the lock is written
        with locked(run_dir):
            return run_dir
    return None


def _check_unfinished(
    run_dir: Path, config: TrainConfig, resumed: Resumed, summary: Mapping[str, Any]
) -> None:
    """Raise UsageError where the resumed run would end at once."""
    t, is_done = config.trainer, summary.get("status") == DONE
    typed = {change.key for change in resumed.changes}
    if is_done and summary.get("ended_by") == "stop_return" and "trainer.stop_return" not in typed:
        raise UsageError(
            f"{run_dir} is done: it has reached trainer.stop_return={t.stop_return:g}",
            allowed="trainer.stop_return=null, or a greater one, and a budget that is not used up",
        )
    spent = {"max_opts": resumed.opt_steps, "max_env_steps": resumed.env_steps, "max_time": resumed.seconds}
    left = {name: (getattr(t, name) or math.inf) - used for name, used in spent.items()}
    # A run that was stopped with its budget used up still has to evaluate its last model. Its time is more than max_time.
    over = [
        name
        for name in spent
        if (left[name] <= 0 if is_done else left[name] < 0 and f"trainer.{name}" in typed)
    ]
    if over:
        larger = " ".join(f"trainer.{name}={max(2, math.ceil(2 * spent[name]))}" for name in over)
        raise UsageError(
            f"{run_dir} has done {resumed.opt_steps:,} opt steps and {resumed.env_steps:,} env steps already",
            allowed=f"a larger budget beside resume, such as {larger}",
        )
