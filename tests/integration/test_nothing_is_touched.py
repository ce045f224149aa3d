"""Evaluating, recording and saving use no generator of training (G6). Jumps of the wall clock have no effect (H4)."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from border_cli.checkpoints.contents import read_run_state
from tests.counting import CountingEnv
from tests.real_runs import Run, train

OFTEN = ("trainer.eval_interval=20", "trainer.save_interval=25", "trainer.record_interval=15")
NEVER = ("trainer.eval_interval=null", "trainer.save_interval=null", "trainer.record_interval=null")


def test_g6_a_run_without_evaluations_records_and_saves_learns_the_same(workplace: Path) -> None:
    def learned(run: Run) -> dict[str, bytes]:
        path = run.path / "checkpoints" / "step-000000100"
        parts = ("actors.", "generators.", "model.", "replay.")
        files = {file.name: file.read_bytes() for file in path.iterdir() if file.name.startswith(parts)}
        arrays = read_run_state(path, with_replay=False).agent.arrays
        # "stats." are the sums since the last record
        return files | {name: a.tobytes() for name, a in arrays.items() if not name.startswith("stats.")}

    args = ("trainer=sync", "env=cartpole", "trainer.max_opts=100", "actor_manager.envs_per_actor=2")
    often = train(*args, *OFTEN, "recorder.tensorboard=true", "agent.eval_epsilon=0.5")
    assert often.saves == [25, 50, 75, 100] and often.steps("eval/return_mean") == [20, 40, 60, 80, 100]
    never = learned(train(*args, *NEVER, "agent.eval_epsilon=0.5"))
    assert len(never) > 20
    assert [name for name, data in learned(often).items() if data != never[name]] == []


def jumping_clock() -> Iterator[float]:
    """A wall clock [s] that jumps back by an hour, forward by a day and so on."""
    now = 1_700_000_000.0
    while True:
        yield now
        now -= 3600
        yield now
        now += 86400


def make_env_whose_clock_jumps() -> CountingEnv:
    """Make an environment. In a child process the wall clock jumps from now on."""
    if multiprocessing.current_process().name != "MainProcess":
        clock = jumping_clock()
        time.time = lambda: next(clock)
        time.time_ns = lambda: int(1e9 * next(clock))
    return CountingEnv()


def test_h4_a_wall_clock_that_jumps_changes_no_rate_no_interval_and_no_timeout(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It jumps in the actor processes too. The learner waits for them, checks heartbeats and stops them."""
    clock, readings = jumping_clock(), []

    def jump() -> float:
        readings.append(next(clock))
        return readings[-1]

    before = time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", jump)
        patch.setattr(time, "time_ns", lambda: int(1e9 * jump()))
        run = train(
            *(
                "n_actors=2",
                "env=gym",
                "env.entry_point=tests.integration.test_nothing_is_touched:make_env_whose_clock_jumps",
            ),
            *("trainer.max_opts=100", "trainer.ratio_tolerance=16", "trainer.max_time=1000", *OFTEN),
            # An evaluator beside a fast learner may leave models out.
            *("evaluator=inline", "recorder.tensorboard=true"),
        )
    real = time.monotonic() - before
    assert readings  # TensorBoard's events read the clock
    assert run.summary["ended_by"] == "max_opts"
    assert [(actor["state"], actor["restarts"]) for actor in run.summary["actors"]] == [("done", 0)] * 2
    assert run.steps("throughput/samples_per_sec")[-7:] == [15, 30, 45, 60, 75, 90, 100]
    assert run.steps("eval/return_mean") == [20, 40, 60, 80, 100]
    assert run.saves == [25, 50, 75, 100]
    times = [record["time"] for record in run.records]
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] <= run.summary["seconds"] <= real
    for name in ("throughput/samples_per_sec", "throughput/opt_steps_per_sec", "time/opt_ms", "time/eval_ms"):
        assert all(0 <= value < 1e7 for _, value in run.series(name)), name
    assert all(value > 0 for _, value in run.series("throughput/samples_per_sec")[:-1])
