"""Evaluators for tests, with environments whose rewards depend on the seed and a policy that returns its weight."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from border_cli.core.errors import ActorLostError
from border_cli.core.protocols import Env
from border_cli.core.spaces import ActionSpec, Array, EnvSpec, Obs, ObsLeaf, ObsSpec
from border_cli.core.types import Evaluation, ModelInfo, Step
from border_cli.runtime.stopping import Backoff, Deadline
from border_cli.training.evaluators import EvaluatorSpec, ProcessEvaluator

SPEC = EnvSpec(ObsSpec((ObsLeaf("obs", (), "box", (1,), "float32"),)), ActionSpec("discrete", n=2))
TIMEOUT_S = 60.0
CLOSED = "closed"


class SeededEnv:
    """Environments whose episode of seed s lasts s % 7 + 1 env steps, each with reward s + action."""

    def __init__(self, n_envs: int, truncating: bool = False) -> None:
        self.n_envs = n_envs
        self.spec = SPEC
        self.seeds: list[int | None] = []
        self.closed = False
        self._seed = [-1] * n_envs
        self._time = [0] * n_envs
        self._over = [True] * n_envs
        self._truncating = truncating

    @property
    def taken(self) -> int:
        """Env steps since each environment's last reset."""
        return sum(self._time)

    def reset(self, env_ix: int, seed: int | None = None) -> None:
        assert seed is not None
        self.seeds.append(seed)
        self._seed[env_ix], self._time[env_ix], self._over[env_ix] = seed, 0, False

    def observe(self, env_ix: Sequence[int]) -> Obs:
        return {"obs": np.array([[self._seed[i]] for i in env_ix], np.float32)}

    def step(self, env_ix: Sequence[int], action: Array) -> Step:
        assert not any(self._over[i] for i in env_ix), "a step in an environment that has ended"
        obs = self.observe(env_ix)
        for i in env_ix:
            self._time[i] += 1
            self._over[i] = self._time[i] == self._seed[i] % 7 + 1
        ended = np.array([self._over[i] for i in env_ix])
        reward = np.array([self._seed[i] for i in env_ix], np.float64) + action
        none = np.zeros(len(ended), bool)
        terminated, truncated = (none, ended) if self._truncating else (ended, none)
        return Step(env_ix, obs, action, reward, terminated, truncated, self.observe(env_ix))

    def close(self) -> None:
        self.closed = True


class WeightPolicy:
    """Returns its weight as the action in eval mode, and a wrong action in train mode."""

    def __init__(self) -> None:
        self._weight = np.zeros(1, np.int64)
        self._evaluating = False

    def begin_episode(self, env_ix: int) -> None:
        pass

    def extras(self, step: Step) -> dict[str, Array]:
        return {}

    def sample(self, obs: Obs, env_steps: int = 0, env_ix: Sequence[int] = ()) -> Array:
        return np.repeat(self._weight if self._evaluating else -1000, len(obs["obs"]))

    def train(self) -> None:
        self._evaluating = False

    def eval(self) -> None:
        self._evaluating = True

    def model_info(self) -> ModelInfo:
        return ModelInfo(0, {"weight": self._weight})

    def sync_model(self, info: ModelInfo) -> None:
        self._weight[...] = info.arrays["weight"]


def model(weight: int, version: int = 0) -> ModelInfo:
    return ModelInfo(version, {"weight": np.array([weight], np.int64)})


def expected(weight: int, version: int, seeds: Sequence[int], cap: int = 100) -> Evaluation:
    """Return the result of evaluating `model(weight, version)` on these seeds."""
    lengths = [min(seed % 7 + 1, cap) for seed in seeds]
    returns = [float((seed + weight) * n) for seed, n in zip(seeds, lengths, strict=True)]
    return Evaluation(version, tuple(returns), tuple(lengths))


# -- in a process -------------------------------------------------------


class FaultyEnv(SeededEnv):
    """Causes the fault at its first step, as long as it finds a mark file in `folder`, which it removes."""

    def __init__(self, n_envs: int, folder: Path, fault: str) -> None:
        super().__init__(n_envs)
        self._folder = folder
        self._fault = fault

    def step(self, env_ix: Sequence[int], action: Array) -> Step:
        if take_mark(self._folder):
            strike(self._fault)
        return super().step(env_ix, action)

    def close(self) -> None:
        (self._folder / CLOSED).touch()


def put_marks(folder: Path, n: int) -> None:
    """Make the fault happen n times."""
    for i in range(n):
        (folder / f"mark-{i}").touch()


def take_mark(folder: Path) -> bool:
    for mark in folder.glob("mark-*"):
        with contextlib.suppress(FileNotFoundError):
            mark.unlink()
            return True
    return False


def strike(fault: str) -> None:
    match fault:
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "hang":
            threading.Event().wait()
        case "raise":
            raise RuntimeError("the evaluation's environment has a fault") from KeyError("what came first")
        case "lose":
            raise ActorLostError("the evaluation failed while stepping", "its own traceback")


def make_env(is_made: Callable[[], None], n_envs: int, truncating: bool) -> SeededEnv:
    return SeededEnv(n_envs, truncating)


def make_faulty_env(is_made: Callable[[], None], n_envs: int, folder: Path, fault: str) -> FaultyEnv:
    return FaultyEnv(n_envs, folder, fault)


def make_env_that_strikes(is_made: Callable[[], None], folder: Path, fault: str) -> FaultyEnv:
    is_made()
    if take_mark(folder):
        strike(fault)
    return FaultyEnv(1, folder, fault)


def make_env_with_helper(is_made: Callable[[], None]) -> SeededEnv:
    """Make an environment that starts another program and writes its process id."""
    logging.getLogger(__name__).warning("helper %d", subprocess.Popen(["sleep", "1000"]).pid)
    return SeededEnv(1)


def make_policy(spec: EnvSpec) -> WeightPolicy:
    assert spec == SPEC
    return WeightPolicy()


def spec_of(make: Callable[..., Env], *args: Any, cap: int = 100) -> EvaluatorSpec:
    return EvaluatorSpec(partial(call_with, make, args), make_policy, cap)


def call_with(make: Callable[..., Env], args: tuple[Any, ...], is_made: Callable[[], None]) -> Env:
    return make(is_made, *args)


@contextlib.contextmanager
def beside(
    spec: EvaluatorSpec, timeout_s: float = 30.0, restarts: int = 0, first: ModelInfo | None = None
) -> Iterator[ProcessEvaluator]:
    """Start an evaluator in its own process and close it afterwards. first: a model with the size of all models."""
    evaluator = ProcessEvaluator(spec, first or model(0), timeout_s, restarts)
    try:
        yield evaluator
    finally:
        evaluator.close()


def await_result(evaluator: Any) -> Evaluation:
    backoff, deadline = Backoff(), Deadline(TIMEOUT_S)
    while (evaluation := evaluator.poll()) is None:
        assert not deadline.passed, "waited in vain for the evaluation"
        backoff.sleep()
    return evaluation  # type: ignore[no-any-return]
