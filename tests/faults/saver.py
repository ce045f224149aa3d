"""Processes that save checkpoints in a loop, without torch, and kill themselves at a chosen moment.

The moments are the disk operations of a save: make, open, write, sync, link, rename, remove. The parent process has one
thread, so it can fork all savers instead of starting Python for each.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from border_cli.checkpoints import contents, store
from border_cli.checkpoints.contents import CHECKPOINTS, read_run_state
from border_cli.config.schema import CheckpointConfig, TrainConfig
from border_cli.core.progress import Progress
from border_cli.core.spaces import Array
from border_cli.core.state import Block, RunState, State
from border_cli.core.types import ModelInfo
from border_cli.training.checkpointer import CheckpointManager
from border_cli.training.ratio_limiter import RatioLimiter
from border_cli.training.telemetry import Telemetry
from tests.fakes import COUNTING_SPEC

SAVES = 5
NEVER = 2**31
_EVENTS = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link")
_WEIGHTS = 50_000
_BLOCK_ROWS = 3000


class FakeAgent:
    """All its weights equal its number of opt steps."""

    def __init__(self) -> None:
        self.opt_steps = 0

    def model_info(self) -> ModelInfo:
        return ModelInfo(self.opt_steps, {"weights": self.weights})

    @property
    def weights(self) -> Array:
        return np.full(_WEIGHTS, self.opt_steps, np.float32)

    def state(self) -> State:
        return State({"weights": self.weights}, {"opt_steps": self.opt_steps})


def manager(run_dir: Path, agent: Any, keep: int = 2) -> CheckpointManager:
    config = TrainConfig(checkpoint=CheckpointConfig(keep=keep, replay="full"))
    return CheckpointManager(
        run_dir, config, COUNTING_SPEC, agent, Telemetry(RatioLimiter(1.0, 0, 64), Progress())
    )


def run_state(agent: FakeAgent) -> RunState:
    """Return a state with one sealed block of the replay per opt step, and one open block."""
    blocks = tuple(
        Block(f"rows-{i:09d}", i < agent.opt_steps, partial(_rows, i)) for i in range(agent.opt_steps + 1)
    )
    loop = {"limiter": {"opt_steps": agent.opt_steps}}
    return RunState(agent.state(), State({}, {}, blocks), State(), State(), loop, {})


def _rows(i: int) -> dict[str, Array]:
    return {"obs": np.full(_BLOCK_ROWS, i, np.int64)}


def save(run_dir: Path, steps: range, keep: int = 2) -> Iterator[int]:
    """Save a checkpoint at each of these opt steps, and yield the opt step after each save."""
    agent = FakeAgent()
    saves = manager(run_dir, agent, keep)
    for agent.opt_steps in steps:
        saves.save(run_state(agent))
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


class _TickingFile:
    """A file that ticks in the middle of each write."""

    def __init__(self, file: Any, tick: Callable[[], None]) -> None:
        self._file = file
        self._tick = tick

    def write(self, data: bytes) -> None:
        half = len(data) // 2
        self._file.write(data[:half])
        self._file.flush()
        self._tick()
        self._file.write(data[half:])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _Killer:
    """Counts moments, and kills this process at moment `at`. armed: whether it counts."""

    def __init__(self, at: int, armed: bool) -> None:
        self._at = at
        self.seen = 0
        self.armed = armed

    def tick(self) -> None:
        if self.armed:
            self.seen += 1
            if self.seen == self._at:
                os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        """Count all disk operations from now on, and the middle of each write."""
        fsync, path_open = os.fsync, Path.open

        def ticking_fsync(descriptor: int) -> None:
            self.tick()
            fsync(descriptor)

        @contextlib.contextmanager
        def ticking_open(path: Path, mode: str = "r", **options: Any) -> Iterator[Any]:
            with path_open(path, mode, **options) as file:
                yield _TickingFile(file, self.tick) if mode == "xb" else file

        def audit(event: str, args: tuple[Any, ...]) -> None:
            if event in _EVENTS or (event == "open" and args[2] & os.O_CREAT):
                self.tick()

        os.fsync = ticking_fsync
        Path.open = ticking_open  # type: ignore[assignment,method-assign]
        sys.addaudithook(audit)

    def watch_prune(self) -> None:
        """Count only the operations that remove old checkpoints."""
        prune = contents.store.prune

        def armed_prune(*args: Any, **kwargs: Any) -> None:
            self.armed = True
            prune(*args, **kwargs)
            self.armed = False

        contents.store.prune = armed_prune


def _run(folder: Path, mode: str, at: int) -> int:
    """Save until the process is killed at moment `at`. Returns the number of moments if it is never reached."""
    killer = _Killer(at, armed=mode != "prune")
    if mode == "prune":
        killer.watch_prune()
    killer.watch()
    with (folder.parent / f"{folder.name}.committed").open("wb", buffering=0) as committed:
        for step in save(folder, range(1, SAVES + 1)):
            committed.write(b"%d" % step)
    return killer.seen


def _forked(folder: Path, mode: str, at: int) -> int | None:
    """Run `_run` in a forked process and return its result; None if it was killed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            seen = _run(folder, mode, at)
            os.write(writing, b"%d" % seen)
            os._exit(0)
        os._exit(1)
    os.close(writing)
    _, status = os.waitpid(pid, 0)
    with os.fdopen(reading, "rb") as pipe:
        seen = pipe.read()
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return None
    assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0, f"the saver ended with {status}"
    return int(seen)


def main(folder: Path, mode: str, points: list[float]) -> None:
    """Run one saver per point, killed at that share of all moments, each in its own folder. Prints folders and moments."""
    total = _forked(folder / "whole", mode, NEVER)
    assert total
    for i, point in enumerate(points):
        at = 1 + int(point * total)
        assert _forked(folder / str(i), mode, at) is None
        print(json.dumps({"folder": str(folder / str(i)), "at": at, "of": total}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], [float(point) for point in sys.argv[3:]])
