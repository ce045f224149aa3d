"""Frame stacks, preprocessing and lost lives, from the environment to the batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest

from border_cli.actors.sampler import RowProcessor
from border_cli.actors.spec import ActorId
from border_cli.config.resolve import steps_natively
from border_cli.config.schema import (
    ActorManagerConfig,
    BufferConfig,
    EnvConfig,
    TrainConfig,
    TrainerConfig,
    WrapperConfig,
)
from border_cli.envs.atari import Catch, NativeGame
from border_cli.envs.group import GymEnv, VectorGroup
from border_cli.replay.buffer import make_buffer
from border_cli.run import factories
from tests.fakes import processed
from tests.faults.amounts import sampled

pytest.importorskip("cv2", reason="extra atari is not installed")
CATCH = EnvConfig(entry_point="border_cli.envs.atari:Catch", preprocess="atari", frame_stack=4, noop_max=3)


class TwoLives(Catch):
    """A game that continues after its first life."""

    def reset(self, **following: Any) -> tuple[Any, dict[str, Any]]:
        self.frames = 0
        return super().reset(**following)[0], {"lives": 2}

    def step(self, action: Any) -> tuple[Any, ...]:
        self.frames += 1
        observation, _, _, _, _ = super().step(action)
        lives = 2 if self.frames < 20 else 1 if self.frames < 40 else 0
        return observation, 1.0, lives == 0, False, {"lives": lives}


def stacked_by_us() -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.FrameStackObservation(gymnasium.make("Pendulum-v1"), 3)


def padded_with_zeros() -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.FrameStackObservation(gymnasium.make("Pendulum-v1"), 3, padding_type="zero")


def test_a_users_frame_stack_is_detected_unless_its_padding_differs() -> None:
    for entry, stack in (("stacked_by_us", 3), ("padded_with_zeros", 1)):
        (leaf,) = GymEnv(EnvConfig(entry_point=f"{__name__}:{entry}", max_episode_steps=9)).spec.obs.leaves
        assert (leaf.shape, leaf.stack) == ((3, 3), stack)


def test_sampled_stacks_equal_those_of_the_environment() -> None:
    n_step, env = 3, GymEnv(CATCH, 2)
    buffer = make_buffer(BufferConfig(capacity=5000, n_step=n_step), env.spec, 0)
    processor, rng = RowProcessor(env.spec, 2), np.random.default_rng(0)
    following: dict[bytes, list[bytes]] = {}
    all_given = set[bytes]()
    episodes: list[list[bytes]] = [[], []]
    for i in range(2):
        env.reset(i, seed=i)
    for _ in range(120):
        step = env.step([0, 1], rng.integers(0, 3, 2))
        buffer.push(processed(processor, step))
        for i in range(2):
            episodes[i].append(step.obs["obs"][i].tobytes())
            all_given |= {step.obs["obs"][i].tobytes(), step.next_obs["obs"][i].tobytes()}
            if step.over[i]:
                episodes[i].append(step.next_obs["obs"][i].tobytes())
                for t, obs in enumerate(episodes[i][:-1]):
                    following.setdefault(obs, []).append(episodes[i][min(t + n_step, len(episodes[i]) - 1)])
                episodes[i] = []
                env.reset(i)
    checked = 0
    for _ in range(20):
        batch = buffer.batch(32)
        for obs, next_obs in zip(batch.obs["obs"], batch.next_obs["obs"], strict=True):
            assert {obs.tobytes(), next_obs.tobytes()} <= all_given
            if obs.tobytes() in following:  # from an earlier episode
                assert next_obs.tobytes() in following[obs.tobytes()]
                checked += 1
    assert checked > 300


def test_a_lost_life_ends_the_return_but_not_the_episode() -> None:
    config = EnvConfig(
        entry_point=f"{__name__}:TwoLives", preprocess="atari", frame_stack=4, noop_max=0, life_loss=True
    )
    env = GymEnv(replace(config, life_loss=False))
    env.reset(0, seed=0)
    assert env.step([0], np.zeros(1, np.int64)).life_lost is None
    env = GymEnv(config)
    processor = RowProcessor(env.spec, 1)
    env.reset(0, seed=0)
    rows: list[dict[str, Any]] = []
    losses, over = [], False
    while not over:
        step = env.step([0], np.zeros(1, np.int64))
        assert step.life_lost is not None
        losses.append(bool(step.life_lost[0]))
        over = bool(step.over[0])
        rows.append(processed(processor, step))
    # Frames 1 to 40, four to an env step: the life is lost in the fifth env step, the game in the tenth.
    assert losses == [False] * 4 + [True] + [False] * 4 + [True]
    columns = {name: np.concatenate([part[name] for part in rows]) for name in rows[0]}
    assert columns["terminated"].tolist() == [*losses, False]
    assert columns["final"].tolist() == [False] * 10 + [True]
    assert columns["step"].tolist() == list(range(11))
    assert columns["episode_return"][-1] == 40.0
    assert columns["episode_length"].tolist() == [0] * 10 + [10]


def test_catch_is_won_by_moving_under_the_ball() -> None:
    env = Catch(balls=20)
    total, over = 0.0, False
    env.reset(seed=0)
    while not over:
        ball, paddle = env._x + 2, env._paddle + 7
        _, reward, over, _, _ = env.step(np.int64(0 if abs(ball - paddle) < 3 else 1 if ball > paddle else 2))
        total += reward
    assert total == 20


# -- ALE's own threads give what gymnasium's preprocessing gives -----------


pytest.importorskip("ale_py")


def atari(game: str = "Breakout", **values: object) -> EnvConfig:
    usual: dict[str, object] = {"noop_max": 0, "fire_reset": True, "life_loss": True, "frame_stack": 4}
    return EnvConfig(id=f"ALE/{game}-v5", **{"preprocess": "atari"} | usual | values)  # type: ignore[arg-type]


# with and without FIRE; both have lives
@pytest.mark.parametrize(("game", "env_steps"), sampled([("Breakout", 300), ("MsPacman", 650)], 2))
def test_two_games_equal_those_of_gymnasium_over_several_episodes(game: str, env_steps: int) -> None:
    games = (NativeGame(atari(game)) for _ in range(2))
    native, usual = GymEnv(atari(game), 2, bases=games), GymEnv(atari(game), 2)
    assert native.spec == usual.spec
    rng = np.random.default_rng(0)
    for env in (native, usual):
        for i in range(2):
            env.reset(i, seed=i)
    ends = losses = 0
    for time in range(env_steps):
        # sometimes only one of the two steps, as with little credit
        which = [time % 2] if time % 5 == 0 else [0, 1]
        action = rng.integers(0, native.spec.action.n, len(which))
        ours, theirs = native.step(which, action), usual.step(which, action)
        for name in ("obs", "action", "reward", "terminated", "truncated", "next_obs", "life_lost"):
            np.testing.assert_equal(getattr(ours, name), getattr(theirs, name), err_msg=f"{name} at {time}")
        assert ours.life_lost is not None
        ends, losses = ends + int(ours.over.sum()), losses + int(ours.life_lost.sum())
        for row, i in enumerate(which):
            if ours.over[row]:
                native.reset(i)
                usual.reset(i)
    assert losses > ends >= 2
    native.close()
    usual.close()


def test_a_start_has_at_most_noop_max_idle_frames_follows_its_seed_and_discards_an_unfinished_step() -> None:
    native = NativeGame(atari("Seaquest", noop_max=3))
    infos = [native._game.reset(np.zeros(1, np.int64), np.array([seed]))[1] for seed in range(6)]
    assert {int(info["episode_frame_number"][0]) for info in infos} <= {0, 1, 2, 3}
    assert len({info["episode_frame_number"][0] for info in infos}) > 1
    first = [native.reset(seed=seed)[0] for seed in range(2)]
    native.send(np.int64(1))
    np.testing.assert_equal(first, [native.reset(seed=seed)[0] for seed in range(2)])
    assert len({native.reset()[0].tobytes() for _ in range(4)}) > 1  # the game's generator continues


@pytest.mark.parametrize(
    ("env", "n_envs", "trainer", "native"),
    [
        (atari(), 2, TrainerConfig(), True),
        (atari(), 1, TrainerConfig(), False),
        (atari(wrappers=[WrapperConfig("ClipReward")]), 2, TrainerConfig(), False),
        (atari(), 2, TrainerConfig(lockstep=True), False),
    ],
    ids=["several games", "a single game", "wrappers", "lockstep"],
)
def test_which_actors_use_them(env: EnvConfig, n_envs: int, trainer: TrainerConfig, native: bool) -> None:
    whole = TrainConfig(env=env, actor_manager=ActorManagerConfig(envs_per_actor=n_envs), trainer=trainer)
    assert steps_natively(whole) is native
    if env.wrappers:
        return
    place = ActorId(actor=0, incarnation=0, n_actors=1, n_envs=n_envs, seed=0)
    group = factories.actor_env(place, whole)
    assert ({type(each.unwrapped) for each in group.envs} == {NativeGame}) is native
    group.close()


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_the_vector_environment_of_ale_gives_its_frames_once(mode: str) -> None:
    """Beside the same vector environment, stepped by hand. `stack_num=1` leaves the stacking to `env.frame_stack`."""
    kwargs = {"autoreset_mode": mode, "stack_num": 1, "max_num_frames_per_episode": 200, "noop_max": 0}
    env = VectorGroup(EnvConfig(id="ALE/Breakout-v5", vector=True, kwargs=kwargs, frame_stack=4), 2)
    (leaf,) = env.spec.obs.leaves
    assert (leaf.shape, leaf.row_shape, leaf.stack) == ((4, 1, 84, 84), (1, 84, 84), 4)
    raw = gymnasium.make_vec("ALE/Breakout-v5", num_envs=2, **kwargs)
    first, _ = raw.reset(seed=5)
    for i in (0, 1):
        env.reset(i, seed=5)
    rng, ends = np.random.default_rng(0), 0
    for _ in range(120):
        np.testing.assert_equal(env.observe([0, 1])["obs"][:, -1], first)
        action = rng.integers(0, env.spec.action.n, 2)
        step = env.step([0, 1], action)
        last, reward, terminated, truncated, info = raw.step(action)
        over, first = terminated | truncated, last
        if over.any():  # of both, by the limit of frames
            ends += 1
            first = last if mode == "SameStep" else raw.step(action)[0]
            last = info.get("final_obs", last)
        np.testing.assert_equal(step.next_obs["obs"][:, -1], last)
        np.testing.assert_equal(step.reward, reward)
        np.testing.assert_equal(step.over, over)
        for i in np.flatnonzero(over).tolist():
            env.reset(i)
    assert ends == 2
    env.close()
    raw.close()
