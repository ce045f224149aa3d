"""ALE's own threads give the same frames, rewards and ends as gymnasium's preprocessing."""

from __future__ import annotations

import numpy as np
import pytest

from border_cli.actors.spec import ActorId
from border_cli.config.resolve import steps_natively
from border_cli.config.schema import (
    ActorManagerConfig,
    EnvConfig,
    TrainConfig,
    TrainerConfig,
    WrapperConfig,
)
from border_cli.envs.atari import NativeGame
from border_cli.envs.group import GymEnv
from border_cli.run import factories
from tests.faults.amounts import sampled

pytest.importorskip("ale_py")


def config(game: str = "Breakout", **values: object) -> EnvConfig:
    usual: dict[str, object] = {"noop_max": 0, "fire_reset": True, "life_loss": True, "frame_stack": 4}
    return EnvConfig(id=f"ALE/{game}-v5", **{"preprocess": "atari"} | usual | values)  # type: ignore[arg-type]


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
    assert losses > ends >= 2
    native.close()
    usual.close()


def test_a_start_has_at_most_noop_max_idle_frames_follows_its_seed_and_discards_an_unfinished_step() -> None:
    game = NativeGame(config("Seaquest", noop_max=3))
    infos = [game._game.reset(np.zeros(1, np.int64), np.array([seed]))[1] for seed in range(6)]
    assert {int(info["episode_frame_number"][0]) for info in infos} <= {0, 1, 2, 3}
    assert len({info["episode_frame_number"][0] for info in infos}) > 1
    first = [game.reset(seed=seed)[0] for seed in range(2)]
    game.send(np.int64(1))
    np.testing.assert_equal(first, [game.reset(seed=seed)[0] for seed in range(2)])
    assert len({game.reset()[0].tobytes() for _ in range(4)}) > 1  # the game's generator continues


@pytest.mark.parametrize(
    ("env", "n_envs", "trainer", "native"),
    [
        (config(), 2, TrainerConfig(), True),
        (config(), 1, TrainerConfig(), False),
        (config(kwargs={"mode": 1}), 2, TrainerConfig(), False),
        (config(wrappers=[WrapperConfig("ClipReward")]), 2, TrainerConfig(), False),
        (config(), 2, TrainerConfig(lockstep=True), False),
        (EnvConfig(id="CartPole-v1"), 2, TrainerConfig(), False),
    ],
    ids=["several games", "a single game", "arguments", "wrappers", "lockstep", "no game"],
)
def test_which_actors_use_them(env: EnvConfig, n_envs: int, trainer: TrainerConfig, native: bool) -> None:
    whole = TrainConfig(env=env, actor_manager=ActorManagerConfig(envs_per_actor=n_envs), trainer=trainer)
    assert steps_natively(whole) is native
    if env.kwargs or env.wrappers:
        return
    place = ActorId(actor=0, incarnation=0, n_actors=1, n_envs=n_envs, seed=0)
    group = factories.actor_env(place, whole)
    assert ({type(each.unwrapped) for each in group.envs} == {NativeGame}) is native
    group.close()
