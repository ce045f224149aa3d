"""Every kind of space, from the environment through a run to a loaded model; and starting from another run's weights."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import border_cli
from border_cli.checkpoints.contents import read_scores
from border_cli.cli.train import main
from border_cli.core.state import State
from border_cli.runtime.seeding import evaluation_seed
from tests.envs import SPACES, START
from tests.real_runs import Run, in_folder, tiny, train
from tests.trained import read_checkpoint

SHORT = ("trainer.max_opts=40", "trainer.eval_interval=20", "trainer.save_interval=20")
SYNC = "trainer=sync"
ASYNC = ("n_actors=2", "actor_manager.envs_per_actor=2")
MOMENT = ("trainer.max_opts=1", "trainer.eval_interval=null")


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory, full_forkserver: None) -> Iterator[Path]:
    with in_folder(tmp_path_factory.mktemp("spaces")) as path:
        yield path


@pytest.fixture(scope="module")
def first() -> Run:
    return train("seed=7", SYNC, *SHORT)


def assert_done(run: Run) -> None:
    assert run.counts[0] == 40
    assert run.steps("eval/return_mean") == [20, 40]
    assert all(value is not None for _, value in run.series("agent/loss"))


# -- spaces -------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "trainer"),
    [
        ("multi_discrete", (SYNC,)),
        ("image", (SYNC,)),
        ("dict", (*ASYNC, "buffer.n_step=3")),
        ("tuple", (*ASYNC, "buffer.n_step=3")),
    ],
)
def test_a_run_takes_the_space_and_its_model_acts_in_it(space: str, trainer: tuple[str, ...]) -> None:
    """The environment raises on an action outside its own, which start at 5."""
    words = ["env=gym", "env.entry_point=tests.envs:Sampled", f"env.kwargs.space={space}"]
    run = train(*words, *trainer, *SHORT)
    assert_done(run)
    model = border_cli.load(run.path)
    assert model.opt_steps == 20  # every episode returns 10, and of equal scores the first stays the best
    SPACES[space].seed(0)
    actions = [model.sample(SPACES[space].sample()) for _ in range(20)]
    assert all(isinstance(action, int) for action in actions)
    assert set(actions) <= {START, START + 1, START + 2}


def test_gymnasiums_own_tables_need_no_file() -> None:
    words = ["env=gym", "env.id=FrozenLake-v1", "evaluator.max_episode_steps=30", "seed=1"]
    run = train(*words, SYNC, *SHORT)
    assert_done(run)
    assert border_cli.load(run.path).sample(0) in range(4)


def test_a_loaded_model_acts_as_it_did_when_it_was_evaluated(first: Run) -> None:
    """Greedy actions from the stored weights give the regular evaluation's returns again, episode by episode."""
    _, regular = read_scores(first.path / "best")
    assert regular is not None
    model = border_cli.load(first.path)
    env = gymnasium.make("CartPole-v1")
    for episode, expected in enumerate(regular.returns):
        observation, _ = env.reset(seed=evaluation_seed(7, episode))
        total, over = 0.0, False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(model.sample(observation))
            total += float(reward)
            over = terminated or truncated
        assert total == expected
    env.close()


# -- init_from ----------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "trainer"),
    [("", ASYNC), ("checkpoints/step-000000020", (SYNC,)), ("runs/latest", (SYNC,))],
)
def test_a_new_run_starts_from_the_weights_of_another(
    first: Run, source: str, trainer: tuple[str, ...]
) -> None:
    assert first.checkpoints == ["step-000000020", "step-000000040"]
    latest = Path("runs/latest")
    if source == str(latest):
        latest.unlink()
        latest.symlink_to(first.path)
    path = latest if source == str(latest) else first.path / source
    words = ("seed=2", "agent.lr=1e-30", "trainer.max_opts=5", "trainer.eval_interval=null")  # weights stay
    run = train(f"init_from={path}", *words, *trainer)
    best = read_checkpoint(first.path / "best")  # of whose opt step there is a whole checkpoint
    whole = source.startswith("checkpoints")
    expected = (read_checkpoint(path) if whole else best).model.info.arrays
    found = read_checkpoint(run.path / "checkpoints" / run.checkpoints[-1]).model.info.arrays
    assert found.keys() == expected.keys()
    for name, weights in expected.items():
        np.testing.assert_array_equal(found[name], weights)
    assert run.counts[0] == 5  # weights only: the counts begin anew
    checkpoint = first.path / "checkpoints" / f"step-{best.opt_steps:09d}"
    assert run.config.init_from == str(path if whole else checkpoint)


SAC = ("agent=sac", "env=pendulum", SYNC, "trainer.save_interval=20", "seed=1")


@pytest.fixture(scope="module")
def first_sac() -> Run:
    return train(*SAC, "trainer.max_opts=40", "trainer.eval_interval=20", "evaluator.episodes=1")


@pytest.fixture
def copy(first_sac: Run, tmp_path: Path) -> Path:
    return Path(shutil.copytree(first_sac.path, tmp_path / "copy"))


def training_of(path: Path) -> State:
    training = read_checkpoint(path).training
    assert training is not None
    return training


@pytest.mark.parametrize("parts", ["all", "policy"])
def test_a_new_sac_run_starts_from_the_critics_too(
    first_sac: Run, parts: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A policy trained against new critics would unlearn. A run stands for its best model."""
    words = (*MOMENT, "agent.lr=1e-30", "agent.target_tau=1e-9", "seed=2", f"init_from_parts={parts}")
    best = read_checkpoint(first_sac.path / "best").opt_steps
    source = first_sac.path / "checkpoints" / f"step-{best:09d}"
    second = train(*SAC, *words, f"init_from={first_sac.path if parts == 'all' else source}")
    assert second.config.init_from == str(source)
    saved, found = (
        training_of(path) for path in (source, second.path / "checkpoints" / second.checkpoints[-1])
    )
    same = {
        name: np.allclose(found.arrays[name], array, atol=1e-6)
        for name, array in saved.arrays.items()
        if array.ndim and not any(word in name for word in ("adam", "exp_avg", "sums"))
    }
    assert all(same[name] for name in same if name.startswith("policy."))
    critics = [name for name in same if name.startswith(("critics.", "critics_target.")) and "weight" in name]
    assert critics
    assert all(same[name] == (parts == "all") for name in critics)
    assert "start new" not in caplog.text


def test_a_run_without_the_checkpoint_of_its_best_model_gives_its_newest_checkpoint(copy: Path) -> None:
    shutil.rmtree(copy / "checkpoints" / f"step-{read_checkpoint(copy / 'best').opt_steps:09d}")
    second = train(*SAC, *MOMENT, f"init_from={copy}")
    (newest,) = (copy / "checkpoints").glob("step-*")
    assert second.config.init_from == str(newest)


def test_best_has_only_the_policy_which_is_said(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where the checkpoint of the best model's opt step is gone: with it there, the critics are read from it."""
    shutil.rmtree(copy / "checkpoints")
    train(*SAC, *MOMENT, f"init_from={copy / 'best'}")
    assert "best/ has the policy alone; alpha and critics start new" in caplog.text


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("agent.hidden=[8]", "the policy has"),
        ("agent.critics=3", "critics has"),
        (
            "env=mountaincarcontinuous",
            "spaces are not those of this environment: observation obs has shape (3,)",
        ),
    ],
)
def test_a_network_that_does_not_fit_is_named(
    first_sac: Run, capsys: pytest.CaptureFixture[str], word: str, said: str
) -> None:
    path = first_sac.path / "checkpoints" / first_sac.checkpoints[-1]
    assert main(tiny(*SAC, "trainer.max_opts=1", word, "preset=none", f"init_from={path}")) == 2
    assert said in capsys.readouterr().err.splitlines()[0]


def test_actors_act_with_the_given_weights_before_the_first_opt_step(first: Run) -> None:
    """Without random actions, what actors do in the warm-up is what the loaded model does: so are their returns."""
    greedy = ["agent.epsilon_start=0", "agent.epsilon_final=0", "trainer.warmup_period=200"]
    returns = []
    for trainer in ((SYNC,), ("n_actors=1",)):
        words = (*greedy, *MOMENT, "seed=4", *trainer, "trainer.ratio_tolerance=1")
        run = train(f"init_from={first.path}", *words)
        returns.append((run.records[0]["env_steps"], run.records[0]["train/episode_return"]))
    assert returns[0] == returns[1]
