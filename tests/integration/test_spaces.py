"""Every kind of space from the environment to a loaded model, and runs with `init_from`."""

from __future__ import annotations

import shutil
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import border_cli
from border_cli.api import compose
from border_cli.checkpoints.contents import read_scores
from border_cli.cli.eval import main as evaluate_main
from border_cli.cli.train import main
from border_cli.core.state import State
from border_cli.runtime import seeding
from tests.envs import SPACES, START, Grid
from tests.real_runs import Run, tiny, train
from tests.trained import read_checkpoint

SHORT = ("trainer.max_opts=40", "trainer.eval_interval=20", "trainer.save_interval=20")
SYNC = "trainer=sync"
ASYNC = ("n_actors=2", "actor_manager.envs_per_actor=2")
ONE_OPT_STEP = ("trainer.max_opts=1", "trainer.eval_interval=null")

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture(scope="module")
def first(folder: Path) -> Run:
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
        ("dict", (*ASYNC, "buffer.n_step=3")),
    ],
)
def test_a_run_trains_on_the_space_and_its_model_acts_in_it(space: str, trainer: tuple[str, ...]) -> None:
    """The environment raises on an action outside its space, which starts at 5."""
    args = ["env=gym", "env.entry_point=tests.envs:Sampled", f"env.kwargs.space={space}"]
    run = train(*args, *trainer, *SHORT)
    assert_done(run)
    model = border_cli.load(run.path)
    assert model.opt_steps == 40  # every episode returns 10, and the newest of equal models is the best
    SPACES[space].seed(0)
    actions = [model.sample(SPACES[space].sample()) for _ in range(20)]
    assert all(type(action) is np.int64 for action in actions)
    assert set(actions) <= {START, START + 1, START + 2}


def test_categories_and_parts_are_decided_once_for_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Actors, evaluations, the loaded model, border-eval and a resumed run have the same observations."""
    args = ("env=gym", "env.entry_point=tests.envs:Grid", *ASYNC, "trainer.lockstep=true", *SHORT)
    run = train(*args, "evaluator.max_episode_steps=20")
    assert_done(run)
    assert run.config.env.categories == {"image": [10, 6, 1]}
    log = (run.path / "train.log").read_text(encoding="utf-8")
    assert log.count("no agent takes it: mission (Text)") == 1
    model = border_cli.load(run.path)
    assert [leaf.categories for leaf in model.spec.obs.leaves] == [(5,), (10, 6, 1)]
    observation, _ = Grid(brightest=200).reset()  # a category that the run has never seen
    assert model.sample(observation) in (0, 1)
    assert evaluate_main([str(run.path), "trust=true", "episodes=2", "max_episode_steps=20"]) == 0
    resumed = [f"resume={run.path}", "trust=true", "recorder.console=none"]
    assert main([*resumed, "trainer.max_opts=60"]) == 0
    assert run.counts[0] == 60
    assert main([*resumed, "trainer.max_opts=80", "env.categories={}"]) == 2
    assert "cannot change within a run: env.categories" in capsys.readouterr().err


def test_wrappers_are_around_every_environment_of_a_run() -> None:
    """The time is part of what actors, evaluations and border-eval show, and without it a model is refused."""
    wrapper = "env.wrappers=[TimeAwareObservation,{name:tests.envs:Scaled,kwargs:{number:2}}]"
    run = train("env=gym", "env.id=CartPole-v1", wrapper, *ASYNC, *SHORT, "evaluator=process")
    assert_done(run)
    assert [wrapper.name for wrapper in run.config.env.wrappers] == [
        "TimeAwareObservation",
        "tests.envs:Scaled",
    ]
    assert border_cli.load(run.path).spec.obs.leaves[0].shape == (5,)
    assert evaluate_main([str(run.path), "trust=true", "episodes=2"]) == 0
    assert evaluate_main([str(run.path), "trust=true", "episodes=2", "env.wrappers=[]"]) == 2


def test_a_loaded_model_repeats_its_evaluation(first: Run) -> None:
    """Greedy actions give the returns of the regular evaluation, episode by episode."""
    _, regular = read_scores(first.path / "best")
    assert regular is not None
    model = border_cli.load(first.path)
    env = gymnasium.make("CartPole-v1")
    for episode, expected in enumerate(regular.returns):
        observation, _ = env.reset(seed=seeding.integer(7, seeding.EVALUATION, episode))
        total, over = 0.0, False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(model.sample(observation))
            total += float(reward)
            over = terminated or truncated
        assert total == expected
    env.close()


# -- init_from ----------------------------------------------------------


@pytest.mark.parametrize(("source", "trainer"), [("", ASYNC), ("checkpoints/step-000000020", (SYNC,))])
def test_a_new_run_starts_from_the_weights_of_another(
    first: Run, source: str, trainer: tuple[str, ...]
) -> None:
    """The learning rate is so small that the weights do not change."""
    assert first.checkpoints == ["step-000000020", "step-000000040"]
    path = first.path / source
    args = ("seed=2", "agent.lr=1e-30", "trainer.max_opts=5", "trainer.eval_interval=null")
    run = train(f"init_from={path}", *args, *trainer)
    best = read_checkpoint(first.path / "best")  # its opt step has a complete checkpoint
    whole = source.startswith("checkpoints")
    expected = (read_checkpoint(path) if whole else best).model.info.arrays
    loaded_arrays = read_checkpoint(run.path / "checkpoints" / run.checkpoints[-1]).model.info.arrays
    assert loaded_arrays.keys() == expected.keys()
    for name, weights in expected.items():
        np.testing.assert_array_equal(loaded_arrays[name], weights)
    assert run.counts[0] == 5  # only weights are taken; counts start at 0
    checkpoint = first.path / "checkpoints" / f"step-{best.opt_steps:09d}"
    assert run.config.init_from == str(path if whole else checkpoint)


PENDULUM = ("agent=sac", "env=pendulum", "evaluator.max_episode_steps=20", "seed=1")
SAC = (*PENDULUM, SYNC, "trainer.save_interval=20")


@pytest.fixture(scope="module")
def first_sac(folder: Path) -> Run:
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
    """With new critics the policy would unlearn. A run directory means its best model."""
    args = (*ONE_OPT_STEP, "agent.lr=1e-30", "agent.target_tau=1e-9", "seed=2", f"init_from_parts={parts}")
    best = read_checkpoint(first_sac.path / "best").opt_steps
    source = first_sac.path / "checkpoints" / f"step-{best:09d}"
    second = train(*SAC, *args, f"init_from={first_sac.path if parts == 'all' else source}")
    assert second.config.init_from == str(source)
    saved, loaded_arrays = (
        training_of(path) for path in (source, second.path / "checkpoints" / second.checkpoints[-1])
    )
    same = {
        name: np.allclose(loaded_arrays.arrays[name], array, atol=1e-6)
        for name, array in saved.arrays.items()
        if array.ndim and not any(override in name for override in ("adam", "exp_avg", "sums"))
    }
    assert all(same[name] for name in same if name.startswith("policy."))
    critics = [name for name in same if name.startswith(("critics.", "critics_target.")) and "weight" in name]
    assert critics
    assert all(same[name] == (parts == "all") for name in critics)
    assert "start untrained" not in caplog.text


def test_a_fine_tuned_run_acts_with_its_weights_and_evaluates_them_first(first_sac: Run) -> None:
    run = train(
        *(*PENDULUM, "evaluator=process", f"init_from={first_sac.path}"),
        *("trainer.max_opts=20", "trainer.eval_interval=20", "evaluator.episodes=1"),
    )
    assert run.config.agent.random_env_steps == 0
    series = run.series("eval/return_mean")
    assert [step for step, _ in series] == [0, 20]
    assert run.summary["start_score"] == {"opt_steps": 0, "mean": series[0][1]}
    _, regular = read_scores(first_sac.path / "best")
    assert regular is not None and series[0][1] == regular.mean  # that of the same model in the same episodes


def test_values_that_are_typed_hold_when_a_run_is_fine_tuned(first_sac: Run) -> None:
    from_sac = f"init_from={first_sac.path}"
    typed = compose("agent=sac", "env=pendulum", from_sac, "agent.random_env_steps=7")
    assert typed.agent.random_env_steps == 7
    agent = compose("agent=dqn", "env=cartpole", "init_from=x").agent
    assert agent.epsilon_start == agent.epsilon_final < 0.5  # type: ignore[attr-defined]
    assert (
        compose("agent=dqn", "env=cartpole", "init_from=x", "agent.epsilon_start=0.5").agent.epsilon_start
        == 0.5
    )


def test_weights_of_another_kind_of_agent_are_refused_by_name(
    first_sac: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*tiny("agent=td3", "env=pendulum", SYNC), f"init_from={first_sac.path}"]) == 2
    problem, nearest = capsys.readouterr().err.strip().splitlines()[-2:]
    assert (
        problem.endswith("that run is sac, whose networks are not those of td3")
        and nearest == "nearest: agent=sac"
    )


def test_without_the_checkpoint_of_the_best_model_the_newest_checkpoint_is_used(copy: Path) -> None:
    shutil.rmtree(copy / "checkpoints" / f"step-{read_checkpoint(copy / 'best').opt_steps:09d}")
    second = train(*SAC, *ONE_OPT_STEP, f"init_from={copy}")
    (newest,) = (copy / "checkpoints").glob("step-*")
    assert second.config.init_from == str(newest)


def test_init_from_best_takes_only_the_policy_and_logs_it(
    copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoint of the best model's opt step is deleted here; otherwise the critics would be read from it."""
    shutil.rmtree(copy / "checkpoints")
    train(*SAC, *ONE_OPT_STEP, f"init_from={copy / 'best'}")
    assert "best/ has only the policy; alpha and critics start untrained" in caplog.text


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("agent.critics=3", "critics has"),
        (
            "env=mountaincarcontinuous",
            "spaces are not those of this environment: observation obs has shape (3,)",
        ),
    ],
)
def test_a_network_that_does_not_fit_is_named(
    first_sac: Run, capsys: pytest.CaptureFixture[str], override: str, message: str
) -> None:
    path = first_sac.path / "checkpoints" / first_sac.checkpoints[-1]
    assert main(tiny(*SAC, "trainer.max_opts=1", override, "preset=none", f"init_from={path}")) == 2
    assert message in capsys.readouterr().err.splitlines()[0]


def test_actors_act_with_the_given_weights_before_the_first_opt_step(first: Run) -> None:
    """Without random actions the warm-up follows the model: the loaded one has the same return in both modes."""
    greedy = ["agent.epsilon_start=0", "agent.epsilon_final=0", "trainer.warmup_period=200"]
    loaded = f"init_from={first.path}"
    returns = []
    for args in ((loaded, SYNC), (loaded, "n_actors=1"), (SYNC,)):
        more = ("env.wrappers=[tests.envs:SameStart]", "seed=5", "trainer.ratio_tolerance=1")
        run = train(*greedy, *ONE_OPT_STEP, *more, *args)
        returns.append(run.records[0]["train/episode_return"])
    assert returns[0] == returns[1] != returns[2]
