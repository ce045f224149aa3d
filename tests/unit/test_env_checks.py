"""Checks of observations and rewards: numbers that are not finite, shapes, dtypes and bounds."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from border_cli.actors.sampler import RowProcessor
from border_cli.agents.dqn.heads import ScalarHead
from border_cli.config.schema import EnvConfig
from border_cli.core.errors import ActorLostError, ExitCode, UsageError
from border_cli.core.progress import Progress
from border_cli.core.spaces import Array
from border_cli.core.types import Chunk, Evaluation, concat_items, item_columns
from border_cli.envs.group import GymEnv
from border_cli.envs.try_env import try_env
from border_cli.replay.buffer import Returns, RowReplayBuffer
from border_cli.replay.samplers import UniformSampler
from border_cli.training.ratio_limiter import RatioLimiter
from border_cli.training.telemetry import Telemetry
from tests.fakes import NumpyPolicy, processed, sampler_of
from tests.faults.amounts import sampled
from tests.unit.test_step_processor import SPEC, step

NAN, INF = float("nan"), float("inf")
BOX = spaces.Box(-10.0, 1000.0, (2,), np.float32)


class Scripted(gymnasium.Env[Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """Observation and reward are functions of (episode, time), both counted from 1. Episodes have `length` env steps.

    parts: in place of those that gymnasium's API asks for, by name: from `reset` the info, from `step` any.
    """

    def __init__(
        self, observation: Any = None, reward: Any = 1.0, length: int = 5, space: Any = BOX, **parts: Any
    ) -> None:
        self.observation_space = space
        self.action_space = spaces.Discrete(2)
        self._observation = observation or pair
        self._reward = reward if callable(reward) else lambda e, t: reward
        self._length, self._parts = length, parts
        self._episode = self._time = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode, self._time = self._episode + 1, 0
        return self._observation(self._episode, 0), self._parts.get("reset_info", {})

    def step(self, action: Any) -> Any:
        self._time += 1
        at = (self._episode, self._time)
        terminated = self._time == self._length
        parts = {"observation": self._observation(*at), "reward": self._reward(*at), "terminated": terminated}
        return tuple((parts | {"truncated": False, "info": {}} | self._parts).values())


def group(n: int = 1, **kwargs: Any) -> GymEnv:
    env = GymEnv(EnvConfig(entry_point=f"{__name__}:Scripted", kwargs=kwargs), n, "actor 7")
    for i in range(n):
        env.reset(i, seed=i)
    return env


def steps(env: GymEnv, n: int) -> None:
    for _ in range(n):
        step = env.step(range(env.n_envs), np.zeros(env.n_envs, np.int64))
        for i in np.flatnonzero(step.over):
            env.reset(int(i))


def at(
    episode: int, time: int, value: Any, otherwise: Callable[[int, int], Any]
) -> Callable[[int, int], Any]:
    """Return a function of (episode, time) with `value` at one moment."""
    return lambda e, t: value if (e, t) == (episode, time) else otherwise(e, t)


def pair(e: int, t: int) -> Array:
    return np.array([e, t], np.float32)


# -- E2: numbers that are not finite ------------------------------------


def data_error(match: str) -> Any:
    return pytest.raises(ActorLostError, match=f"EnvDataError: .*{match}")


def test_e2_the_error_of_a_reward_names_environment_episode_and_step() -> None:
    env = group(2, reward=at(3, 4, -INF, lambda e, t: 1.0))
    with pytest.raises(ActorLostError) as lost:
        steps(env, 20)
    assert lost.value.code == ExitCode.ACTOR_LOST
    assert str(lost.value).startswith(
        "actor 7 failed while stepping, after 28 env steps: EnvDataError: environment 0, episode 3, env step 4 of it: "
        "the reward is -inf"
    )
    assert lost.value.context["env"] == 0


def test_e2_the_error_of_an_observation_names_leaf_and_value() -> None:
    space = spaces.Dict(a=BOX, b=spaces.Box(-1.0, 1.0, (), np.float32))
    good = {"a": pair(1, 1), "b": np.float32(0.5)}
    env = group(
        space=space, observation=at(2, 1, good | {"a": np.array([1, NAN], np.float32)}, lambda e, t: good)
    )
    with data_error(r"episode 2, env step 1 of it: observation obs\.a\[1\] is nan"):
        steps(env, 20)
    with data_error(r"episode 1, env step 0 of it: observation obs\.b is -inf"):
        group(space=space, observation=lambda e, t: good | {"b": np.float32(-INF)})


def test_e2_numbers_are_checked_as_they_are_stored() -> None:
    space = spaces.Box(-INF, INF, (1,), np.float64)
    with pytest.warns(RuntimeWarning, match="overflow"), data_error(r"obs\[0\] is inf"):
        group(space=space, observation=lambda e, t: np.array([1e39]))
    # Large numbers are finite, even if their squares are not.
    space = spaces.Box(-INF, INF, (1,), np.float32)
    steps(group(space=space, observation=lambda e, t: np.array([3e38], np.float32)), 5)


def rows(env: GymEnv, n: int) -> list[tuple[float, float, float, bool]]:
    """Return (episode, time, reward, final) of the rows of n env steps, from the second episode on."""
    sampler = sampler_of(env, NumpyPolicy(), RowProcessor(env.spec, 1))
    items = concat_items([sampler.sample([0], 0) for _ in range(n)])
    assert all(np.isfinite(items[column.name]).all() for column in item_columns(env.spec))
    stored = zip(items["obs"], items["reward"], items["final"], strict=True)
    return [(float(o[0]), float(o[1]), float(r), bool(f)) for o, r, f in stored]


# -- E3: values outside the spaces -----------------------------------


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (BOX, np.zeros(3, np.float32), r"obs has shape \(3,\), its space says \(2,\)"),
        (spaces.Box(0, 9, (2,), np.int32), np.zeros(2), "obs has dtype float64, its space says int32"),
        (spaces.Dict(a=BOX), {"b": pair(0, 0)}, r"observation obs\.a is missing"),
    ],
)
def test_e3_shape_and_dtype_are_an_error_at_once(space: spaces.Space[Any], value: Any, message: str) -> None:
    space.seed(0)
    good = space.sample()
    for time in (0, 1):
        with data_error(f"episode 1, env step {time} of it.*{message}"):
            steps(group(space=space, observation=at(1, time, value, lambda e, t: good)), 1)


@pytest.mark.parametrize(
    "value",
    [
        lambda e, t: pair(e, t).astype(np.float64),
        lambda e, t: pair(e, t).astype(np.float64 if t % 2 else np.float32),
    ],
    ids=["float64", "now and then"],
)
def test_e3_values_are_converted(value: Callable[[int, int], Any], caplog: pytest.LogCaptureFixture) -> None:
    env = group(observation=value)
    steps(env, 12)
    assert env.observe([0])["obs"].dtype == np.float32
    (warning,) = caplog.messages
    assert "its space says float32: it is converted" in warning


OUT = np.array([1.0, -10.5], np.float32)


def test_e3_a_value_out_of_bounds_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Bounds are checked in the first 100 observations and in every 1000th."""
    early = group(length=1000, observation=lambda e, t: OUT if t == 99 else pair(e, t))
    late = group(length=5000, observation=lambda e, t: OUT if t >= 100 else pair(e, t))
    for env, first in ((early, 99), (late, 1000)):
        steps(env, first - 1)
        assert caplog.messages == []
        steps(env, 2000)
        (warning,) = caplog.messages
        assert warning.startswith("observation obs[1] is -10.5, its space says between -10.0 and 1000")
        caplog.clear()


@pytest.mark.parametrize("frame_stack", [1, 2])
def test_e3_a_value_of_no_category_is_one_warning(frame_stack: int, caplog: pytest.LogCaptureFixture) -> None:
    """Of images with the channels first, which hold 1 and 3, and from the fourth env step on 2 and 4."""
    image = np.full((2, 3, 3), [[[1]], [[3]]], np.uint8)
    kwargs: dict[str, Any] = {"space": spaces.Box(0, 9, (2, 3, 3), np.uint8), "length": 9}
    kwargs["observation"] = lambda e, t: image if t < 4 else image + np.uint8(1)
    config = EnvConfig(entry_point=f"{__name__}:Scripted", kwargs=kwargs, categories={"obs": [3, 4]})
    env = GymEnv(replace(config, frame_stack=frame_stack))
    env.reset(0, seed=0)
    steps(env, 3)
    assert caplog.messages == []
    steps(env, 20)
    (warning,) = caplog.messages
    assert warning.startswith("observation obs has 4 in channel 1, which has 4 categories")


@pytest.mark.parametrize(
    ("space", "bad"),
    [
        (spaces.MultiBinary(2), np.array([0, 2], np.int8)),
        (spaces.Box(0, 255, (1,), np.int64), np.array([256])),
    ],
)
def test_e3_a_lossy_conversion_is_always_an_error(space: spaces.Space[Any], bad: Any) -> None:
    space.seed(0)
    good = space.sample()
    with data_error(r"env step 501 of it: .* its space says between"):
        steps(group(length=5000, space=space, observation=at(1, 501, bad, lambda e, t: good)), 501)


WELL_KNOWN = [
    spec.id
    for spec in gymnasium.registry.values()
    if re.match(r"gymnasium\.envs\.(classic_control|toy_text|box2d)", str(spec.entry_point))
]


@pytest.mark.filterwarnings("ignore")  # of old versions and of pygame
@pytest.mark.parametrize("env_id", sampled(WELL_KNOWN, 6))
def test_e3_well_known_environments_pass(env_id: str, caplog: pytest.LogCaptureFixture) -> None:
    env = GymEnv(EnvConfig(id=env_id, imports=[], kwargs={}))
    space = gymnasium.make(env_id).action_space
    space.seed(1)
    start = int(getattr(space, "start", 0))
    env.reset(0, seed=1)
    for _ in range(150):
        action = np.array([space.sample()])
        if env.step([0], action - start if env.spec.action.kind == "discrete" else action).over[0]:
            env.reset(0)
    env.close()
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"reset_info": None}, "reset() returns info that is not a dict: None"),
        ({"reward": "1"}, "step() returns reward that is not one number: '1'"),
        ({"reward": np.ones(2)}, "step() returns reward that is not one number: array([1., 1.])"),
        ({"terminated": "False"}, "step() returns terminated that is not True or False: 'False'"),
    ],
)
def test_e3_each_odd_part_of_a_result_is_named_with_what_came(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(ActorLostError, match=f"EnvApiError: {re.escape(message)}"):
        steps(group(**parts), 1)
    with pytest.raises(UsageError, match=f"^env: {re.escape(message)}\n"):
        try_env(EnvConfig(entry_point=f"{__name__}:Scripted", kwargs=parts))


@pytest.mark.parametrize(("start", "change", "warnings"), [(1.7e9, 1, 1), (1.7e9, 128, 0)])
def test_e3_numbers_that_float32_cannot_tell_apart_are_reported_once(
    start: float, change: float, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    space = spaces.Box(0, np.inf, (2,), np.float64)
    steps(group(space=space, observation=lambda e, t: np.array([0, start + t * change])), 4)
    assert len(caplog.messages) == warnings
    for message in caplog.messages:
        assert message.startswith(f"observation obs[1] was {start} and then {start + change}, which are one")


# -- E5: extremes -------------------------------------------------------


def test_e5_rewards_whose_sums_may_be_infinite_are_not_stored() -> None:
    reward = at(2, 2, 2e30, lambda e, t: 1e29)
    with data_error(r"the reward is 2e\+30"):
        rows(group(reward=reward), 5)
    assert rows(group(reward=reward), 1)[0] == (2, 0, float(np.float32(1e29)), False)


GAMMA = 0.5
HUGE = 1e30


def targets(buffer: RowReplayBuffer) -> dict[float, tuple[float, float]]:
    """Return observation → (TD target, next observation). The value of an observation is 100 times itself."""
    batch = buffer.batch(len(buffer))
    value = torch.from_numpy(100.0 * batch.next_obs["obs"])
    columns = (torch.from_numpy(rows) for rows in (batch.reward, batch.discount, batch.terminated))
    y = ScalarHead("huber").target(value, *columns)[:, 0]
    sampled = zip(batch.obs["obs"][:, 0], y, batch.next_obs["obs"][:, 0], strict=True)
    return {float(obs): (float(target), float(next_obs)) for obs, target, next_obs in sampled}


@pytest.mark.parametrize("n_step", [1, 3])
def test_e5_episodes_of_one_env_step_bootstrap_only_if_truncated(n_step: int) -> None:
    """Observation t leads to t + 1 with reward 2."""
    processor = RowProcessor(SPEC, 1)
    sampler = UniformSampler(np.random.default_rng(0))
    buffer = RowReplayBuffer(1000, SPEC, sampler, n_step, returns=Returns(GAMMA))
    for t in range(0, 400, 4):
        buffer.push(processed(processor, step(t, 2.0, terminated=True)))
        buffer.push(processed(processor, step(t + 2, 2.0, truncated=True)))
    learned = targets(buffer)
    assert len(learned) > 20
    for obs, (target, next_obs) in learned.items():
        assert next_obs == obs + 1  # the final observation, never the first of the next episode
        assert target == (2.0 if obs % 4 == 0 else 2.0 + GAMMA * 100 * (obs + 1))


def test_e5_terminated_and_truncated_at_once_is_terminated() -> None:
    processor = RowProcessor(SPEC, 1)
    buffer = RowReplayBuffer(1000, SPEC, UniformSampler(np.random.default_rng(0)))
    for _ in range(64):
        buffer.push(processed(processor, step(8, 3.0, terminated=True, truncated=True)))
    assert targets(buffer) == {8.0: (3.0, 9.0)}


def test_e5_records_of_huge_returns_are_finite() -> None:
    limiter = RatioLimiter(1.0, 10, 64, None, 1, 1)
    telemetry = Telemetry(limiter, Progress())
    evaluation = Evaluation(5, (HUGE, -HUGE, 3 * HUGE), (1, 1, 1))
    assert (evaluation.mean, evaluation.std) == pytest.approx((HUGE, HUGE * math.sqrt(8 / 3)))
    items: Any = processed(RowProcessor(SPEC, 1), step(0, HUGE, terminated=True))
    for sequence in range(5):
        telemetry.chunk(Chunk(0, 0, sequence, 1, 0, items))
    values = telemetry.interval_values(5, 100, [], {})
    assert values["train/episode_return"] == pytest.approx(HUGE)
    assert values["train/episode_length"] == 1.0
    assert all(math.isfinite(value) for value in values.values())
