"""Vector environments: rows, seeds and errors in each mode, beside single environments where these tell what is right."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import NormalizeObservation

from border_cli.actors.sampler import RowProcessor, Sampler
from border_cli.config.schema import EnvConfig
from border_cli.core.errors import ActorLostError, UsageError
from border_cli.core.spaces import Array, Obs
from border_cli.core.types import Items
from border_cli.envs.group import GymEnv, ReplayedEnv, VectorGroup
from border_cli.envs.try_env import try_env
from tests.envs import SPACES
from tests.fakes import NumpyPolicy
from tests.vector import CountingVector

MODES = ["NextStep", "SameStep", "Disabled"]


class ByObservation(NumpyPolicy):
    """The action is the sum of the observation, modulo 2, or the allowed one. `asked`: the environments of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[list[int]] = []

    def sample(self, obs: Obs, env_steps: int = 0, env_ix: Sequence[int] = ()) -> Array:
        self.asked.append(list(env_ix))
        mask = obs.get("obs.action_mask")
        parts = [rows.reshape(len(env_ix), -1).sum(1) for rows in obs.values()]
        return np.floor(sum(parts)).astype(np.int64) % 2 if mask is None else mask.argmax(1)


def config(path: str = "CountingVector", **values: Any) -> EnvConfig:
    kwargs = values.pop("kwargs", {})
    return EnvConfig(entry_point=f"tests.vector:{path}", vector=True, kwargs=kwargs, **values)


def counting(n_envs: int = 3, **kwargs: Any) -> VectorGroup:
    return VectorGroup(config(kwargs=kwargs), n_envs, "actor 0")


def sampler(env: GymEnv, policy: NumpyPolicy | None = None, n_info: int = 0) -> Sampler:
    """Return a started sampler whose first episodes have the seeds 7, 8 …"""
    processor = RowProcessor(env.spec, env.n_envs, n_info=n_info)
    started = Sampler(
        env, policy or ByObservation(), processor, lambda i, episode: None if episode else 7 + i
    )
    started.begin()
    return started


def sampled(started: Sampler, steps: int) -> tuple[Items, int]:
    """Return the rows of so many steps, and how many env steps these are."""
    n_envs = len(started.next_envs(99)) if started.env.together else started.env.n_envs
    count = sum(started.step(started.next_envs(n_envs), 0) for _ in range(steps))
    return started.processor.take(), count


def streams(items: Items) -> dict[int, list[tuple[Any, ...]]]:
    """By environment, in order: observation, action, reward, terminated, final, and return and length of the episode."""
    found = defaultdict(list)
    names = ("action", "reward", "terminated", "final", "episode_return", "episode_length")
    for k, env in enumerate(items["env"].tolist()):
        obs = (tuple(np.ravel(rows[k]).tolist()) for name, rows in items.items() if name.startswith("obs"))
        found[env].append((*obs, *(items[name][k].item() for name in names)))
    return dict(found)


def expected(env: int, length: int, terminated: bool, episodes: int = 9) -> list[tuple[Any, ...]]:
    """The stream of a sub-environment, by hand: rewards 1, 2 … in each episode, then its last observation."""
    rows: list[tuple[Any, ...]] = []
    for episode in range(episodes):
        for time in range(length):
            is_end = terminated and time == length - 1
            rows.append(((env, episode, time), (env + episode + time) % 2, time + 1.0, is_end, False, 0.0, 0))
        rows.append(((env, episode, length), 0, 0.0, False, True, length * (length + 1) / 2, length))
    return rows


@pytest.mark.parametrize(
    ("mode", "taken"), [("NextStep", [4, 5, 4]), ("SameStep", [6] * 3), ("Disabled", [6] * 3)]
)
def test_each_row_is_an_env_step_or_a_true_last_observation(mode: str, taken: list[int]) -> None:
    """Lengths 2, 3, 2. In the next step means: the first and the third reset in steps 3 and 6, the second in step 4."""
    env, policy = counting(mode=mode), ByObservation()
    items, count = sampled(sampler(env, policy), 6)
    found = streams(items)
    for i, (length, terminated) in enumerate([(2, True), (3, True), (2, False)]):
        assert found[i] == expected(i, length, terminated)[: len(found[i])]
        assert sum(not row[4] for row in found[i]) == taken[i]
    assert count == sum(taken)
    vector: Any = env.envs[0].unwrapped.env
    assert vector.seeds[0] == 7 and set(vector.seeds[1:]) <= {None}
    assert len(vector.received) == 6
    if mode == "NextStep":
        assert policy.asked == [[0, 1, 2], [0, 1, 2], [1], [0, 2], [0, 1, 2], [1]]
    env.close()
    assert vector.closed == 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n_envs", [1, 2])
def test_environments_that_all_end_at_the_same_time(mode: str, n_envs: int) -> None:
    """The step in which all reset is nobody's: the next one is asked for at once."""
    policy = ByObservation()
    items, count = sampled(sampler(counting(n_envs, mode=mode, lengths=(2,)), policy), 5)
    for i, rows in streams(items).items():
        assert rows == expected(i, 2, True)[:7]
    assert count == 5 * n_envs
    assert policy.asked == [list(range(n_envs))] * 5


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("space", SPACES)
def test_every_space_gives_the_rows_of_single_environments(space: str, mode: str) -> None:
    """Seeds are those of gymnasium: s, s + 1 … Episodes are truncated, so that the rows need the last observation."""
    vector = VectorGroup(config("sampled", kwargs={"space": space, "mode": mode}), 2)
    single = GymEnv(EnvConfig(entry_point="tests.envs:Sampled", kwargs={"space": space}), 2)
    assert vector.spec == single.spec
    found, right = (streams(sampled(sampler(env), 25)[0]) for env in (vector, single))
    for i in (0, 1):
        n = len(found[i])
        assert found[i] == right[i][:n] and n >= 24
        assert [row[-1] for row in found[i] if row[-1]] == [10, 10]


@pytest.mark.parametrize("mode", MODES)
def test_actions_of_a_box_are_within_its_bounds(mode: str) -> None:
    space = {"space": "image", "mode": mode}
    low, high = np.array([-1, 0], np.float32), np.array([1, 4], np.float32)
    env = VectorGroup(config("sampled", kwargs=space | {"actions": gymnasium.spaces.Box(low, high)}), 2)
    for i in (0, 1):
        env.reset(i, 1)
    env.step([0, 1], np.array([[-9, 9], [0.5, 0.25]], np.float32))
    received = [single.received for single in env.envs[0].unwrapped.env.envs]
    np.testing.assert_equal(received, [[[-1, 4]], [[0.5, 0.25]]])


@pytest.mark.parametrize("mode", MODES)
def test_masks_of_infos_and_stacks_are_those_of_the_same_episode(mode: str) -> None:
    """`Masked` raises for a forbidden action. The replay stores the newest observation of a stack."""
    env = VectorGroup(config("masked", kwargs={"mode": mode}, action_mask="info"), 2)
    items, _ = sampled(sampler(env), 12)
    is_step = ~items["final"].astype(bool)
    np.testing.assert_equal(items["action"][is_step], items["obs.obs"][is_step, 0] % 3)
    assert items["obs.obs"][~is_step].tolist() == [[3]] * (~is_step).sum() != []
    stacked = VectorGroup(config(kwargs={"mode": mode}, frame_stack=2), 3)
    (leaf,) = stacked.spec.obs.leaves
    assert (leaf.shape, leaf.stack) == ((2, 3), 2)
    started = sampler(stacked)
    seen = [
        stacked.observe([0])["obs"][0, :, 1:].tolist() for _ in range(6) if started.step(stacked.together, 0)
    ]
    ends = [[[0, 0], [0, 1]], [[1, 0], [1, 0]], [[1, 0], [1, 1]]]
    assert [stack for stack in seen if stack in ends][:3] == ends


@pytest.mark.parametrize("mode", MODES)
def test_numbers_of_the_last_info_are_recorded(mode: str) -> None:
    env = VectorGroup(config(kwargs={"mode": mode}, info_keys=["score"]), 3)
    items, _ = sampled(sampler(env, n_info=1), 5)
    ends = items["episode_length"] > 0
    right = 10 * items["obs"][ends, 0] + items["obs"][ends, 1]
    np.testing.assert_equal(items["episode_info"][ends, 0], right)
    assert ends.sum() >= 4


def test_one_sub_environment_is_an_environment_with_seeds() -> None:
    """As in evaluations, `trainer=sync` and lockstep. Each of the two groups has two vector environments."""
    for mode in MODES:
        env = GymEnv(config(kwargs={"mode": mode}), 2)
        assert env.together is None
        for seed in (3, 4):
            env.reset(1, seed)
            env.step([1], np.array([1]))
        assert [env.envs[i].unwrapped.env.seeds for i in (0, 1)] == [[], [3, 4]]
        assert env.observe([1])["obs"].tolist() == [[0, 1, 1]]
    cartpole = EnvConfig(id="CartPole-v1", vector=True)
    before, after = ReplayedEnv(cartpole, 2), ReplayedEnv(cartpole, 2)
    for i in (0, 1):
        before.reset(i, 5 + i)
    before.step([0, 1], np.array([1, 0]))
    assert after.load_state(before.state()) == []
    np.testing.assert_equal(after.observe([0, 1]), before.observe([0, 1]))


def test_time_limits_and_ids_are_those_of_make_vec() -> None:
    sync = {"vectorization_mode": "sync"}
    for kwargs in ({}, sync, sync | {"vector_kwargs": {"autoreset_mode": "SameStep"}}):
        env = VectorGroup(EnvConfig(id="CartPole-v1", vector=True, kwargs=kwargs, max_episode_steps=4), 2)
        items, _ = sampled(sampler(env), 7)
        assert items["episode_length"][items["episode_length"] > 0].tolist() == [4, 4]
        assert not items["terminated"].any()


def test_an_exception_and_a_nan_say_where_they_happened() -> None:
    env = counting(nan_at=2)
    started = sampler(env)
    started.step([0, 1, 2], 0)
    with pytest.raises(
        ActorLostError, match="environment 1, episode 1, env step 2 of it: the reward is nan"
    ) as lost:
        started.step([0, 1, 2], 0)
    assert (lost.value.context["env"], lost.value.context["action"]) == (1, 0)
    with pytest.raises(ActorLostError, match="failed while making the environment: TypeError"):
        counting(no_argument=1)


@pytest.mark.parametrize(
    ("refused", "problem"),
    [
        (config(kwargs={"mode": None}), r"CountingVector\(num_envs=1\) does not say when it resets\nallowed: metad"),
        (config("masked", kwargs={"mode": "Never"}), "'Never' is not a valid AutoresetMode"),
        (config("Masked"), "got an unexpected keyword argument 'num_envs'"),
        (EnvConfig(entry_point="tests.vector:masked", kwargs={"num_envs": 1, "mode": "NextStep"}), "or a VectorEnv"),
        (
            EnvConfig(id="CartPole-v1", vector=True, kwargs={"vectorization_mode": "sync", "vector_kwargs": {"a": 1}}),
            "unexpected keyword argument 'a'",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_before_the_run(refused: EnvConfig, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as refusal:
        try_env(refused)
    assert len(str(refusal.value).splitlines()) <= 3


def test_a_missing_last_observation_is_refused_at_the_end_of_the_first_episode() -> None:
    started = sampler(counting(mode="SameStep", final=False))
    with pytest.raises(UsageError, match="loses episodes' last observations\nallowed: Autores"):
        for _ in range(100):
            started.step([0, 1, 2], 0)


@pytest.mark.parametrize("mode", MODES)
def test_the_trial_finds_the_same_facts_as_of_a_single_environment(mode: str) -> None:
    probed = try_env(config("masked", kwargs={"mode": mode}))
    assert (probed.action_mask, probed.warnings) == ("info", [])


def test_running_statistics_in_wrappers_of_vector_environments_are_found() -> None:
    with pytest.raises(UsageError, match="NormalizeObservation normalises by running statistics"):
        try_env(EnvConfig(entry_point=f"{__name__}:normalised", vector=True))


def normalised(num_envs: int) -> Any:
    vector = CountingVector(num_envs)
    vector.metadata["autoreset_mode"] = AutoresetMode.NEXT_STEP
    return NormalizeObservation(vector)
