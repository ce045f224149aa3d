"""A policy without torch, and the factories of actor processes in tests."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from rich.text import Text

from border_cli.actors.sampler import RowProcessor, Sampler
from border_cli.actors.spec import ActorId, ActorSpec
from border_cli.config.schema import EnvConfig, TrainConfig
from border_cli.core.protocols import ActingPolicy, Env
from border_cli.core.spaces import ActionSpec, Array, EnvSpec, Obs, ObsLeaf, ObsSpec
from border_cli.core.types import Column, Items, ModelInfo, Step, item_columns
from border_cli.envs.group import GymEnv, ReplayedEnv

COUNTING_SPEC = EnvSpec(
    ObsSpec((ObsLeaf("obs", (), "box", (4,), "int32", 0.0, float(2**31 - 1)),)),
    ActionSpec("discrete", n=2),
)
COUNTING_COLUMNS: tuple[Column, ...] = item_columns(COUNTING_SPEC)
LIGHT_PRELOAD = (
    "gymnasium",
    "border_cli.actors.manager",
    "border_cli.envs.group",
    "border_cli.actors.sampler",
)
"""Enough for actors without torch."""


class NumpyPolicy:
    """Acts by one array. Its actions depend only on the model."""

    def __init__(self) -> None:
        self.weight = np.zeros(4, np.float32)
        self.versions: list[int] = []
        self.env_steps = deque[int](maxlen=100)  # an actor may run for long
        self.training = True

    def begin_episode(self, env_ix: int) -> None:
        pass

    def extras(self, step: Step) -> dict[str, Array]:
        return {}

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


def make_counting_env(place: ActorId, config: EnvConfig, kind: type[GymEnv] = GymEnv) -> GymEnv:
    config = replace(config, kwargs={**config.kwargs, "actor": place.actor})
    return kind(config, place.n_envs, f"actor {place.actor}")


def make_policy(place: ActorId, spec: EnvSpec) -> NumpyPolicy:
    return NumpyPolicy()


def make_processor(place: ActorId, spec: EnvSpec) -> RowProcessor:
    return RowProcessor(spec, place.n_envs)


single_steps: list[RowProcessor] = []
"""What `make_single_steps` has made in this process."""


def make_single_steps(spec: EnvSpec, n_envs: int, config: TrainConfig) -> RowProcessor:
    single_steps.append(RowProcessor(spec, n_envs))
    return single_steps[-1]


def make_resumable_env(place: ActorId, config: EnvConfig) -> GymEnv:
    return make_counting_env(place, config, ReplayedEnv)


def counting_actors(
    n_envs: int = 1,
    n_buffer: int = 64,
    credit: int = 63,
    make_env: Callable[..., Any] = make_counting_env,
    **env_kwargs: Any,
) -> ActorSpec:
    """Actors over CountingEnv with the numpy policy. A ring has 4·(credit + n_envs) rows."""
    config = EnvConfig(entry_point="tests.counting:CountingEnv", kwargs=env_kwargs)
    return ActorSpec(
        env=partial(make_env, config=config),
        policy=make_policy,
        processor=make_processor,
        n_envs=n_envs,
        n_buffer=n_buffer,
        credit=credit,
        seed=0,
    )


class Paper:
    """Stands for an Output: a frame is text, and messages are above it."""

    def __init__(self) -> None:
        self.stdout = io.StringIO()
        self.frame: Callable[[], str] | None = None

    def draw(self, frame: Callable[[], str] | None) -> None:
        self.frame = frame

    def shown(self) -> list[str]:
        text = self.stdout.getvalue() + (self.frame() if self.frame is not None else "")
        return [Text.from_ansi(line).plain for line in text.splitlines()]


def processed(processor: RowProcessor, *steps: Step) -> Items:
    """Return the rows that these env steps complete."""
    for step in steps:
        processor.add(step)
    return processor.take()


def sampler_of(env: Env, policy: ActingPolicy, processor: RowProcessor) -> Sampler:
    """Return a started sampler. The first episodes have the seeds 1, 2 …"""
    sampler = Sampler(env, policy, processor, lambda env, episode: None if episode else env + 1)
    sampler.begin()
    return sampler
