"""Evaluating, recording and saving use no generator of training (G6). Jumps of the wall clock have no effect (H4)."""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from border_cli.agents.agent import NetworkAgent
from border_cli.core.protocols import Agent, ReplayBuffer
from border_cli.recorders import RecorderGroup
from border_cli.run import build, factories
from border_cli.training.checkpointer import CheckpointManager
from border_cli.training.evaluators import EpisodeRunner
from border_cli.training.telemetry import Telemetry
from tests.faults.jumping_clock import jumping_clock
from tests.real_runs import train

SYNC = ("trainer=sync", "env=cartpole", "trainer.max_opts=100", "actor_manager.envs_per_actor=2")
ASYNC = (
    *("n_actors=2", "env=gym", "env.entry_point=tests.faults.jumping_clock:make"),
    *("trainer.max_opts=100", "trainer.ratio_tolerance=16"),
)
"""The wall clock jumps in the actor processes too. The learner waits for them, checks heartbeats and stops them."""
OFTEN = ("trainer.eval_interval=20", "trainer.save_interval=25", "trainer.record_interval=15")
WATCHED = [
    (EpisodeRunner, "evaluate"),
    (RecorderGroup, "write"),
    (RecorderGroup, "close"),
    (CheckpointManager, "save"),
    (CheckpointManager, "save_best"),
    (Telemetry, "interval_values"),
]


class Generators:
    """All random generators that training depends on, collected while a run is built."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.agent: Agent | None = None
        self.buffer: ReplayBuffer | None = None
        self.envs: list[gymnasium.Env[Any, Any]] = []
        self._catch(patch, "make_agent", lambda made: setattr(self, "agent", made))
        self._catch(patch, "make_buffer", lambda made: setattr(self, "buffer", made))
        make_env, make = factories.actor_env, gymnasium.make

        def kept(*given: Any, **named: Any) -> Any:
            self.envs.append(make(*given, **named))
            return self.envs[-1]

        def made(*given: Any, **named: Any) -> Any:
            with pytest.MonkeyPatch.context() as inner:
                inner.setattr(gymnasium, "make", kept)
                return make_env(*given, **named)

        patch.setattr(build, "actor_env", made)

    def digests(self) -> dict[str, str]:
        """Return a hash of each generator's state."""
        assert self.agent is not None
        assert self.buffer is not None
        states: dict[str, Any] = {
            "Python's": random.getstate(),
            "numpy's": [np.asarray(part).tolist() for part in np.random.get_state(legacy=True)[1:]],
            "torch's": torch.get_rng_state().tolist(),
            "the agent's": self.agent.generator_state(),
            "the replay's": self.buffer.generator_state(),
        }
        for i, env in enumerate(self.envs):
            states[f"environment {i}'s"] = env.unwrapped.np_random.bit_generator.state
            states[f"action space {i}'s"] = env.action_space.np_random.bit_generator.state
        return {
            name: hashlib.sha256(json.dumps(state, default=str).encode()).hexdigest()
            for name, state in states.items()
        }

    @staticmethod
    def _catch(patch: pytest.MonkeyPatch, name: str, take: Callable[[Any], None]) -> None:
        make = getattr(build, name)

        def made(*given: Any, **named: Any) -> Any:
            result = make(*given, **named)
            take(result)
            return result

        patch.setattr(build, name, made)


def test_g6_no_generator_is_touched(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generators, calls = Generators(monkeypatch), dict.fromkeys((name for _, name in WATCHED), 0)

    def watched(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            before = generators.digests()
            result = original(*given, **named)
            assert generators.digests() == before, name
            calls[name] += 1
            return result

        return call

    for owner, name in WATCHED:
        monkeypatch.setattr(owner, name, watched(name, getattr(owner, name)))
    begin: dict[str, str] = {}
    opt = NetworkAgent.opt

    def first_opt(*given: Any, **named: Any) -> Any:
        begin.update({} if begin else generators.digests())
        return opt(*given, **named)

    monkeypatch.setattr(NetworkAgent, "opt", first_opt)
    train(*SYNC, *OFTEN, "recorder.tensorboard=true", "agent.eval_epsilon=0.5")
    assert calls["evaluate"] >= 5  # and the evaluations that confirm a best model
    assert calls["save"] == 4
    assert all(calls.values())
    end = generators.digests()
    moved = {name for name in end if end[name] != begin[name]}
    assert {
        "the agent's",
        "the replay's",
        "environment 0's",
        "environment 1's",
    } == moved  # the hashes change when numbers are drawn


@pytest.mark.parametrize("args", [SYNC, ASYNC], ids=["sync", "async"])
def test_h4_a_wall_clock_that_jumps_changes_no_rate_no_interval_and_no_timeout(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    clock, readings = jumping_clock(), []

    def jump() -> float:
        readings.append(next(clock))
        return readings[-1]

    before = time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", jump)
        patch.setattr(time, "time_ns", lambda: int(1e9 * jump()))
        # An evaluator beside a fast learner may leave models out.
        run = train(*args, *OFTEN, "evaluator=inline", "recorder.tensorboard=true", "trainer.max_time=1000")
    real = time.monotonic() - before
    assert readings  # TensorBoard's events read the clock
    assert run.summary["ended_by"] == "max_opts"
    assert [(actor["state"], actor["restarts"]) for actor in run.summary["actors"]] == [
        ("done", 0)
    ] * run.config.n_actors
    assert run.steps("throughput/samples_per_sec")[-7:] == [15, 30, 45, 60, 75, 90, 100]
    assert run.steps("eval/return_mean") == [20, 40, 60, 80, 100]
    assert run.saves == [25, 50, 75, 100]
    times = [record["time"] for record in run.records]
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] <= run.summary["seconds"] <= real
    for name in ("throughput/samples_per_sec", "throughput/opt_steps_per_sec", "time/opt_ms", "time/eval_ms"):
        assert all(0 <= value < 1e7 for _, value in run.series(name)), name
    assert all(value > 0 for _, value in run.series("throughput/samples_per_sec")[:-1])
