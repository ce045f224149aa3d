"""ALE's preprocessing gives the same frames, rewards and ends as gymnasium's."""

from __future__ import annotations

import numpy as np
import pytest

from border_cli.actors.spec import ActorId
from border_cli.config.resolve import steps_natively
from border_cli.config.schema import ActorManagerConfig, EnvConfig, TrainConfig, TrainerConfig
from border_cli.envs.atari import NativeGame
from border_cli.envs.group import GymEnv
from border_cli.envs.make import make_gym
from border_cli.run import factories
from tests.faults.amounts import sampled

pytest.importorskip("ale_py")


def config(game: str = "Breakout", **values: object) -> EnvConfig:
    given: dict[str, object] = {"noop_max": 0, "fire_reset": True, "life_loss": True, "frame_stack": 4}
    return EnvConfig(id=f"ALE/{game}-v5", **{"preprocess": "atari"} | given | values)  # type: ignore[arg-type]


# with and without FIRE; both have lives
@pytest.mark.parametrize(("game", "env_steps"), sampled([("Breakout", 300), ("MsPacman", 650)], 2))
def test_two_games_equal_those_of_gymnasium_over_several_episodes(game: str, env_steps: int) -> None:
    native, usual = GymEnv(config(game), 2, native=True), GymEnv(config(game), 2)
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
    assert ends >= 2
    assert losses > ends
    native.close()
    usual.close()


def test_a_time_limit_is_a_truncation() -> None:
    env = GymEnv(config(max_episode_steps=5), 1, native=True)
    env.reset(0, seed=0)
    ends = [env.step([0], np.array([0])).truncated[0] for _ in range(5)]
    assert ends == [False] * 4 + [True]
    env.close()


@pytest.mark.parametrize(("noop_max", "seeds"), [(0, 2), (1, 4), (3, 9)])
def test_there_are_at_most_noop_max_idle_frames_at_the_start(noop_max: int, seeds: int) -> None:
    game = NativeGame(config("Seaquest", noop_max=noop_max))
    idle = set()
    for seed in range(seeds):
        _, info = game._game.reset(np.zeros(1, np.int64), np.array([seed]))
        idle.add(int(info["episode_frame_number"][0]))
    assert idle == set(range(noop_max + 1))


def test_the_seed_determines_the_first_start_and_the_generator_later_ones() -> None:
    game = make_gym(
        config("Seaquest", noop_max=30, fire_reset=False, frame_stack=1, screen_size=80), native=True
    )
    first = [game.reset(seed=seed)[0] for seed in range(4)]
    again = [game.reset(seed=seed)[0] for seed in range(4)]
    np.testing.assert_equal(first, again)
    assert first[0].shape == (80, 80)
    assert len({frame.tobytes() for frame in first}) > 1
    following = {game.reset()[0].tobytes() for _ in range(4)}
    assert len(following) > 1


def test_a_reset_discards_the_unfinished_step() -> None:
    one, other = NativeGame(config()), NativeGame(config())
    one.reset(seed=3)
    one.send(np.int64(1))
    for game in (one, other):
        game.reset(seed=4)
    for t in range(20):
        np.testing.assert_equal(one.step(np.int64(t % 4))[0], other.step(np.int64(t % 4))[0])


def test_an_episode_ends_even_if_the_policy_never_fires() -> None:
    env = GymEnv(config())
    env.reset(0, seed=0)
    steps, over = 0, False
    while not over:
        over = bool(env.step([0], np.array([0])).over[0])  # NOOP
        steps += 1
        assert steps < 1000
    env.close()


@pytest.mark.parametrize(
    ("env", "envs_per_actor", "trainer", "expected"),
    [
        (config(), 2, TrainerConfig(), True),
        (config(), 1, TrainerConfig(), False),
        (config(native="never"), 2, TrainerConfig(), False),
        (config(native="always"), 1, TrainerConfig(), True),
        (config(kwargs={"mode": 1}), 2, TrainerConfig(), False),
        (config(), 2, TrainerConfig(lockstep=True), False),
        (config(), 2, TrainerConfig(type="sync"), False),
        (EnvConfig(id="CartPole-v1"), 2, TrainerConfig(), False),
        (config(preprocess="none"), 2, TrainerConfig(), False),
        (EnvConfig(entry_point="a:B", preprocess="atari"), 2, TrainerConfig(), False),
    ],
)
def test_auto_uses_ale_for_several_games_per_actor_in_free_running_runs(
    env: EnvConfig, envs_per_actor: int, trainer: TrainerConfig, expected: bool
) -> None:
    manager = ActorManagerConfig(envs_per_actor=envs_per_actor)
    assert steps_natively(TrainConfig(env=env, actor_manager=manager, trainer=trainer)) is expected


@pytest.mark.parametrize("envs_per_actor", [1, 2])
def test_an_actor_gets_the_resolved_value(envs_per_actor: int) -> None:
    manager = ActorManagerConfig(envs_per_actor=envs_per_actor)
    place = ActorId(actor=0, incarnation=0, n_actors=1, n_envs=envs_per_actor, seed=0)
    env = factories.actor_env(place, TrainConfig(env=config(), actor_manager=manager))
    kinds = {type(each.unwrapped) for each in env.envs}
    assert (kinds == {NativeGame}) is (envs_per_actor > 1)
    env.close()
