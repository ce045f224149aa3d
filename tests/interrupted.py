"""Interrupts runs at a known opt step, and compares the files of two runs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import border_cli.agents.dqn.agent  # noqa: F401 - declares its metrics
from border_cli.cli.train import main
from border_cli.core.metrics import METRICS
from border_cli.training.ratio_limiter import RatioLimiter
from tests.faults.processes import START_S, assert_session_ends
from tests.real_runs import Run, tiny
from tests.warm import CommandProcess


@contextmanager
def after_opt_steps(act: Callable[[int], None]) -> Iterator[None]:
    """Call `act` after each opt step with its number."""
    count_opt = RatioLimiter.count_opt

    def counting(limiter: RatioLimiter) -> None:
        count_opt(limiter)
        act(limiter.opt_steps)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RatioLimiter, "count_opt", counting)
        yield


@contextmanager
def signal_at(opt_steps: int, number: signal.Signals = signal.SIGTERM) -> Iterator[None]:
    """Send a signal to this process right after the given opt step."""

    def send(done: int) -> None:
        if done == opt_steps:
            os.kill(os.getpid(), number)

    with after_opt_steps(send):
        yield


def run_whole(folder: Path, *args: str) -> Run:
    """Train a run in `folder` without interruption."""
    assert main([*tiny(*args), f"hydra.run.dir='{folder}'"]) == 0
    return Run(folder)


def run_interrupted(folder: Path, *args: str, at: int) -> Run:
    """Train a run that is stopped by SIGTERM after opt step `at` and then resumed."""
    with signal_at(at):
        assert main([*tiny(*args), f"hydra.run.dir='{folder}'"]) == 143
    resume(folder)
    return Run(folder)


def resume(folder: Path, *args: str) -> None:
    """Resume the run from its newest checkpoint, which must exist."""
    run = Run(folder)
    newest = run.checkpoints[-1]
    before = (run.path / "train.log").stat().st_size
    assert main(["trust=true", f"resume={folder}", *args]) == 0
    assert f"resumed  {newest}: " in (run.path / "train.log").read_bytes()[before:].decode()


def value_records(run: Run) -> list[dict[str, Any]]:
    """Return the records without times and clock metrics, and without records that have nothing else."""
    kept = [
        {name: value for name, value in record.items() if name != "time" and not _clock(name)}
        for record in run.records
    ]
    return [record for record in kept if record.keys() - {"opt_steps", "env_steps"}]


def _clock(name: str) -> bool:
    return name not in ("opt_steps", "env_steps") and METRICS[name].kind == "clock"


def assert_same_bits(run: Run, other: Run) -> None:
    """Check that the last checkpoint (with optimiser and replay), best/ and the records of both runs are equal."""
    assert run.checkpoints[-1] == other.checkpoints[-1]
    folders = (f"checkpoints/{run.checkpoints[-1]}", "best")
    ours, theirs = run.files(*folders), other.files(*folders)
    assert ours.keys() == theirs.keys()
    assert {f"{folders[0]}/{part}.safetensors" for part in ("model", "training", "replay")} <= ours.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []
    assert value_records(run) == value_records(other)


def run_killed(folder: Path, *args: str, at: int) -> Run:
    """Train a run in its own process, which SIGKILL ends after opt step `at`, and wait for the end of its children."""
    words = [*tiny(*args), f"hydra.run.dir='{folder}'"]
    with CommandProcess("tests.interrupted:be_killed", str(at), *words) as process:
        assert process.wait(START_S) == -signal.SIGKILL
    assert_session_ends(process.pid)
    return Run(folder)


def be_killed() -> None:
    """Entry point of the process of `run_killed`."""
    with signal_at(int(sys.argv[1]), signal.SIGKILL):
        main(sys.argv[2:])
