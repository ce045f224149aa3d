"""Saves checkpoints without torch, and kills the saving process at every file operation of a save.

The parent process has one thread, so it can fork all savers instead of starting Python for each.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from border_cli.checkpoints import store
from border_cli.checkpoints.contents import BEST, CHECKPOINTS, read_run_state
from border_cli.config.schema import CheckpointConfig, TrainConfig
from border_cli.core.progress import Progress
from border_cli.core.spaces import Array
from border_cli.core.state import Block, RunState, State
from border_cli.core.types import Evaluation, ModelInfo
from border_cli.training.checkpointer import CheckpointManager
from border_cli.training.ratio_limiter import RatioLimiter
from border_cli.training.telemetry import Telemetry
from tests.fakes import COUNTING_SPEC
from tests.faults.amounts import times

_KILLED = 9
_EVENTS = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link")


class FakeAgent:
    """All its weights equal its number of opt steps."""

    def __init__(self) -> None:
        self.opt_steps = 0

    def model_info(self) -> ModelInfo:
        return ModelInfo(self.opt_steps, {"weights": self.weights})

    @property
    def weights(self) -> Array:
        return np.full(5_000, self.opt_steps, np.float32)

    def state(self) -> RunState:
        """Return a state with one sealed block of the replay per opt step, and one open block."""
        blocks = tuple(
            Block(f"rows-{i:09d}", i < self.opt_steps, partial(_rows, i)) for i in range(self.opt_steps + 1)
        )
        loop = {"limiter": {"opt_steps": self.opt_steps}}
        agent = State({"weights": self.weights}, {"opt_steps": self.opt_steps})
        return RunState(agent, State({}, {}, blocks), State(), State(), loop, {})


def _rows(i: int) -> dict[str, Array]:
    return {"obs": np.full(300, i, np.int64)}


def save(run_dir: Path, steps: range, keep: int = 2) -> Iterator[int]:
    """Save the best model and a checkpoint at each of these opt steps, and yield the opt step after each save."""
    agent: Any = FakeAgent()
    config = TrainConfig(checkpoint=CheckpointConfig(keep=keep, replay="full"))
    telemetry = Telemetry(RatioLimiter(1.0, 0, 64), Progress())
    manager = CheckpointManager(run_dir, config, COUNTING_SPEC, agent, telemetry)
    for agent.opt_steps in steps:
        manager.save_best(agent.model_info(), Evaluation(agent.opt_steps, (1.0,), (1,)))
        manager.save(agent.state())
        yield agent.opt_steps


def read(run_dir: Path) -> int | None:
    """Return the opt step of the newest checkpoint that verifies, after checking its content; None if there is none."""
    path = store.newest_valid(run_dir / CHECKPOINTS)
    if path is None:
        return None
    state = read_run_state(path, with_replay=True)
    opt_steps: int = state.agent.values["opt_steps"]
    assert (state.agent.arrays["weights"] == opt_steps).all()
    assert state.replay is not None and len(state.replay.blocks) == opt_steps + 1
    for i, block in enumerate(state.replay.blocks):
        assert (block.arrays()["obs"] == i).all()
    return opt_steps


def _killed_at(run_dir: Path, moment: int) -> bool:
    """Fork a process that saves opt step 3 and is killed at this moment. Returns whether the save was not over then."""
    pid = os.fork()
    if pid == 0:
        left = moment

        def die(event: str, args: tuple[Any, ...]) -> None:
            nonlocal left
            if event in _EVENTS or (event == "open" and args[2] & os.O_CREAT):
                left -= 1
                if left < 0:
                    os._exit(_KILLED)  # as SIGKILL would: nothing is cleaned up

        sys.addaudithook(die)
        os._exit(len(list(save(run_dir, range(3, 4)))) - 1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, _KILLED)
    return code == _KILLED


def main(folder: Path) -> None:
    """Kill savers at every moment, and check what each leaves. Prints opt steps of the newest checkpoints and of best/."""
    whole, moment, running = folder / "whole", 0, True
    assert list(save(whole, range(1, 3))) == [1, 2]
    while running:
        run_dir = Path(shutil.copytree(whole, folder / str(moment)))
        running = _killed_at(run_dir, moment)
        steps = store.list_steps(run_dir / CHECKPOINTS)
        assert len([path for path in steps if store.verifies(path)]) >= 2
        print(read(run_dir), store.verify(run_dir / BEST).opt_steps)
        assert len(list((run_dir / CHECKPOINTS).glob(".*"))) <= 1
        assert list(save(run_dir, range(4, 5))) == [4]  # the next save cleans up
        assert [*run_dir.glob(".*"), *(run_dir / CHECKPOINTS).glob(".*")] == []
        assert read(run_dir) == store.verify(run_dir / BEST).opt_steps == 4
        shutil.rmtree(run_dir)
        moment += times(3, 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
