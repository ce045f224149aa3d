"""Every kind of space, from the environment through a run to a loaded model; and starting from another run's weights."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest

import border_cli
from border_cli.checkpoints.contents import read_checkpoint
from tests.envs import SPACES, START
from tests.real_runs import Run, train

SHORT = ("trainer.max_opts=40", "trainer.eval_interval=20", "trainer.save_interval=20")
SYNC = "trainer=sync"
ASYNC = ("n_actors=2", "actor_manager.envs_per_actor=2")

pytestmark = pytest.mark.usefixtures("workplace")


def assert_done(run: Run) -> None:
    assert run.counts[0] == 40
    assert run.steps("eval/return_mean") == [20, 40]
    assert all(value is not None for _, value in run.series("agent/loss"))


def sampled(space: str) -> list[str]:
    return ["env=gym", "env.entry_point=tests.envs:Sampled", f"env.kwargs.space={space}"]


# -- spaces -------------------------------------------------------------


@pytest.mark.parametrize("space", list(SPACES))
def test_a_run_takes_the_space_and_its_model_acts_in_it(space: str) -> None:
    """The environment raises on an action outside its own, which start at 5."""
    run = train(*sampled(space), SYNC, *SHORT)
    assert_done(run)
    model = border_cli.load(run.path)
    assert model.opt_steps == 20  # every episode returns 10, and of equal scores the first stays the best
    SPACES[space].seed(0)
    actions = [model.sample(SPACES[space].sample()) for _ in range(20)]
    assert all(isinstance(action, int) for action in actions)
    assert set(actions) <= {START, START + 1, START + 2}


@pytest.mark.parametrize("space", ["dict", "tuple", "discrete"])
def test_actors_hand_over_every_leaf_of_an_observation(space: str) -> None:
    run = train(*sampled(space), *ASYNC, *SHORT, "buffer.n_step=3")
    assert_done(run)
    SPACES[space].seed(0)
    assert border_cli.load(run.path).sample(SPACES[space].sample()) in {START, START + 1, START + 2}


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "CliffWalking-v1", "Blackjack-v1"])
def test_gymnasiums_own_tables_need_no_file(env_id: str) -> None:
    words = ["env=gym", f"env.id={env_id}", "evaluator.max_episode_steps=30", "seed=1"]
    run = train(*words, SYNC, *SHORT)
    assert_done(run)
    env = gymnasium.make(env_id)
    observation, _ = env.reset(seed=0)
    assert env.action_space.contains(border_cli.load(run.path).sample(observation))
    env.close()


def test_a_loaded_model_acts_as_it_did_when_it_was_judged() -> None:
    """Greedy actions from the stored weights give the confirmation's returns again, episode by episode."""
    from border_cli.runtime.seeding import confirmation_seed

    run = train("seed=7", SYNC, *SHORT)
    score = read_checkpoint(run.path / "best").score
    assert score is not None
    model = border_cli.load(run.path)
    env = gymnasium.make("CartPole-v1")
    for episode, expected in enumerate(score.returns):
        observation, _ = env.reset(seed=confirmation_seed(7, score.opt_steps, episode))
        total, over = 0.0, False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(model.sample(observation))
            total += float(reward)
            over = terminated or truncated
        assert total == expected
    env.close()


# -- init_from ----------------------------------------------------------


@pytest.fixture
def first() -> Run:
    run = train("seed=1", SYNC, *SHORT)
    assert run.checkpoints == ["step-000000020", "step-000000040"]
    return run


def starting_weights(run: Run) -> dict[str, np.ndarray]:
    """Of a run that did not yet copy its network into the target: the target is what it began with."""
    (name,) = run.checkpoints
    training = read_checkpoint(run.path / "checkpoints" / name).training
    assert training is not None
    return {key.removeprefix("target."): a for key, a in training.arrays.items() if key.startswith("target.")}


@pytest.mark.parametrize("trainer", [(SYNC,), ASYNC], ids=["sync", "async"])
@pytest.mark.parametrize("source", ["", "best", "checkpoints/step-000000020"])
def test_a_new_run_starts_from_the_weights_of_another(
    first: Run, source: str, trainer: tuple[str, ...]
) -> None:
    path = first.path / source
    run = train(f"init_from={path}", "seed=2", *trainer, "trainer.max_opts=5", "trainer.eval_interval=null")
    expected = read_checkpoint(path if source else first.path / "best").model.info.arrays
    found = starting_weights(run)
    assert found.keys() == expected.keys()
    for name, weights in expected.items():
        np.testing.assert_array_equal(found[name], weights)
    assert run.counts[0] == 5  # weights only: the counts begin anew
    assert run.config.init_from == str(path if source else first.path / "best")


def test_actors_act_with_the_given_weights_before_the_first_opt_step(workplace: Path, first: Run) -> None:
    """Without random actions, what actors do in the warm-up is what the loaded model does: so are their returns."""
    greedy = ["agent.epsilon_start=0", "agent.epsilon_final=0", "trainer.warmup_period=200"]
    short = ["trainer.max_opts=1", "trainer.eval_interval=null", "seed=4"]
    returns = []
    for trainer in ((SYNC,), ("n_actors=1",)):
        run = train(f"init_from={first.path}", *greedy, *short, *trainer, "trainer.ratio_tolerance=1")
        returns.append((run.records[0]["env_steps"], run.records[0]["train/episode_return"]))
    assert returns[0] == returns[1]


def test_the_latest_run_can_be_the_start_of_the_next(workplace: Path) -> None:
    first = train("env=cartpole", "trainer=sync", "trainer.max_opts=60")
    second = train("env=cartpole", "trainer=sync", "trainer.max_opts=60", "init_from=runs/latest")
    assert second.path != first.path
    assert second.config.init_from == str(first.path / "best")
