"""Interrupting a run of this process at a known opt step, and comparing what two runs have left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
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
from tests.faults.processes import ROOT, TIMEOUT_S, assert_session_ends
from tests.real_runs import Run, tiny


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
    """A signal to this very process right after this opt step."""

    def strike(done: int) -> None:
        if done == opt_steps:
            os.kill(os.getpid(), number)

    with after_opt_steps(strike):
        yield


def run_whole(folder: Path, *words: str) -> Run:
    """A run to its end, in this folder."""
    assert main([*tiny(*words), f"hydra.run.dir='{folder}'"]) == 0
    return Run(folder)


def run_interrupted(folder: Path, *words: str, at: int) -> Run:
    """The same run, stopped by SIGTERM after opt step `at` and resumed to its end."""
    with signal_at(at):
        assert main([*tiny(*words), f"hydra.run.dir='{folder}'"]) == 143
    resume(folder)
    return Run(folder)


def resume(folder: Path, *words: str) -> None:
    """Continue to the end from the newest checkpoint, of which there is one, and not from the beginning."""
    run = Run(folder)
    newest = run.checkpoints[-1]
    before = (run.path / "train.log").stat().st_size
    assert main([f"resume={folder}", *words]) == 0
    assert f"resumed  {newest}: " in (run.path / "train.log").read_bytes()[before:].decode()


def value_records(run: Run) -> list[dict[str, Any]]:
    """The records without time and clock metrics, in the order of the file; nothing of a record that had no others."""
    kept = [
        {name: value for name, value in record.items() if name != "time" and not _clock(name)}
        for record in run.records
    ]
    return [record for record in kept if record.keys() - {"opt_steps", "env_steps"}]


def _clock(name: str) -> bool:
    return name not in ("opt_steps", "env_steps") and METRICS[name].kind == "clock"


def assert_same_bits(one: Run, other: Run) -> None:
    """The last checkpoint (parameters, optimiser state, replay and all), best/ and the records are the other run's."""
    assert one.checkpoints[-1] == other.checkpoints[-1]
    folders = (f"checkpoints/{one.checkpoints[-1]}", "best")
    ours, theirs = one.files(*folders), other.files(*folders)
    assert ours.keys() == theirs.keys()
    assert {f"{folders[0]}/{part}.safetensors" for part in ("model", "training", "replay")} <= ours.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []
    assert value_records(one) == value_records(other)


def run_killed(folder: Path, *words: str, at: int) -> Run:
    """The same run in a process of its own, killed by SIGKILL after opt step `at`; nothing of it lives any more."""
    program = "import json, sys; from tests.interrupted import be_killed; be_killed(*json.loads(sys.argv[1]))"
    arguments = json.dumps([[*tiny(*words), f"hydra.run.dir='{folder}'"], at])
    with subprocess.Popen(
        [sys.executable, "-c", program, arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        start_new_session=True,
    ) as process:
        assert process.wait(TIMEOUT_S) == -signal.SIGKILL
    assert_session_ends(process.pid)
    return Run(folder)


def be_killed(words: list[str], at: int) -> None:
    """What `run_killed` runs."""
    with signal_at(at, signal.SIGKILL):
        main(words)
