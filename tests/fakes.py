"""An agent without torch, and what actor processes are made of in the tests."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from border_cli.actors.manager import ActorManager
from border_cli.actors.place import ActorSpec, Place
from border_cli.config.schema import ActorManagerConfig, EnvConfig
from border_cli.core.errors import ActorLostError, ExitCode
from border_cli.core.items import Column, item_columns
from border_cli.core.protocols import ModelInfo
from border_cli.core.spaces import ActionSpec, Array, EnvSpec, Obs, ObsLeaf, ObsSpec
from border_cli.envs.gym_env import GymEnv
from border_cli.envs.taped import TapedEnv
from border_cli.replay.step_processor import NStepProcessor
from border_cli.runtime import forkserver
from border_cli.runtime.clock import Backoff
from border_cli.runtime.factory import Factory
from border_cli.runtime.signals import StopFlag

COUNTING_SPEC = EnvSpec(
    ObsSpec((ObsLeaf("obs", (), "box", (4,), "int32", 0.0, float(2**31 - 1)),)),
    ActionSpec("discrete", n=2),
)
COUNTING_COLUMNS: tuple[Column, ...] = item_columns(COUNTING_SPEC)
LIGHT_PRELOAD = (
    "border_cli.runtime.forkserver_preload",
    "gymnasium",
    "border_cli.actors.process",
    "border_cli.envs.gym_env",
    "border_cli.replay.step_processor",
)
"""Enough for actors without torch."""


class NumpyPolicy:
    """Acts by one array; what it does depends on the model alone."""

    def __init__(self) -> None:
        self.weight = np.zeros(4, np.float32)
        self.versions: list[int] = []
        self.env_steps = deque[int](maxlen=100)  # an actor may live long
        self.training = True

    def begin_episode(self, env_ix: int) -> None:
        pass

    def estimates(self) -> None:
        return None

    def sample(self, obs: Obs, env_steps: int = 0, env_ix: Sequence[int] = ()) -> Array:
        self.env_steps.append(env_steps)
        return (np.arange(len(obs["obs"])) + int(self.weight[0])) % 2

    def train(self) -> None:
        self.training = True

    def eval(self) -> None:
        self.training = False

    def model_info(self) -> ModelInfo:
        return model(self.versions[-1] if self.versions else 0)

    def sync_model(self, info: ModelInfo) -> None:
        self.weight[...] = info.arrays["weight"]
        self.versions.append(info.version)


def model(version: int = 0) -> ModelInfo:
    return ModelInfo(version, {"weight": np.full(4, version, np.float32)})


def make_counting_env(place: Place, config: EnvConfig) -> GymEnv:
    return GymEnv(replace(config, kwargs={**config.kwargs, "actor": place.actor}), place.n_envs)


def make_policy(place: Place, spec: EnvSpec) -> NumpyPolicy:
    return NumpyPolicy()


def make_processor(place: Place, spec: EnvSpec, n_step: int) -> NStepProcessor:
    return NStepProcessor(spec, place.n_envs, n_step, 0.99, None)


def make_env_that_exits(place: Place, config: EnvConfig) -> GymEnv:
    os._exit(3)


def make_resumable_env(place: Place, config: EnvConfig) -> TapedEnv:
    return TapedEnv(make_counting_env(place, config))


def make_env_that_logs(place: Place, config: EnvConfig) -> GymEnv:
    logging.getLogger("tests.env").warning("made %d of %d", place.actor, place.n_actors)
    return make_counting_env(place, config)


def counting_actors(
    n_envs: int = 1,
    n_step: int = 1,
    n_buffer: int = 64,
    make_env: str = "make_counting_env",
    **env_kwargs: Any,
) -> ActorSpec:
    """Actors over CountingEnv with the numpy policy."""
    config = EnvConfig(entry_point="border_cli.envs.counting:CountingEnv", kwargs=env_kwargs)
    return ActorSpec(
        env=Factory(f"tests.fakes:{make_env}", (config,)),
        policy=Factory("tests.fakes:make_policy"),
        processor=Factory("tests.fakes:make_processor", (n_step,)),
        n_envs=n_envs,
        n_buffer=n_buffer,
        seed=0,
    )


def learner() -> None:
    """A learner with two actors, to be killed: prints its state as JSON lines, ends by SIGINT or SIGTERM."""
    forkserver.start_early(LIGHT_PRELOAD)
    config = ActorManagerConfig(stop_timeout_s=3.0)
    with StopFlag() as stop:
        manager = ActorManager(counting_actors(), COUNTING_COLUMNS, 2, config, stop)
        print(json.dumps(_run_until_stopped(manager, stop)), flush=True)
    sys.exit(stop.code or ExitCode.DONE)


def forgetful_learner() -> None:
    """A learner that ends by an exception and never stops its actors."""
    forkserver.start_early(LIGHT_PRELOAD)
    manager = ActorManager(counting_actors(), COUNTING_COLUMNS, 2, ActorManagerConfig())
    manager.start(model())
    raise RuntimeError("the learner has a defect")


def _run_until_stopped(manager: ActorManager, stop: StopFlag) -> dict[str, Any]:
    backoff, env_steps, error = Backoff(), 0, ""
    try:
        manager.start(model())
        print(json.dumps({"pid": os.getpid(), "forkserver": forkserver.forkserver_pid()}), flush=True)
        while not stop():
            manager.grant([env_steps + 100] * 2)
            env_steps += sum(chunk.env_steps for chunk in manager.collect())
            backoff.sleep()
    except ActorLostError as lost:
        error = str(lost)
    stats = manager.stop()
    return {"error": error, "states": [stat.state for stat in stats]}
