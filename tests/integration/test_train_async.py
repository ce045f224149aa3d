"""`train_async`: training from Python, without the command line and without Hydra."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra.core.hydra_config import HydraConfig

import border_cli
from border_cli.agents.dqn.config import DqnConfig
from border_cli.config.schema import (
    ActorManagerConfig,
    EnvConfig,
    EvaluatorConfig,
    PresetConfig,
    RecorderConfig,
    TrainConfig,
    TrainerConfig,
)
from border_cli.core.errors import ExitCode, UsageError
from border_cli.core.types import Evaluation, ModelInfo
from tests import fakes
from tests.faults.commands import endless, trap
from tests.real_runs import Run, tiny
from tests.warm import finished


def small(**sections: object) -> TrainConfig:
    default: dict[str, object] = {
        "agent": DqnConfig(hidden=[16], batch_size=16),
        "env": EnvConfig(id="CartPole-v1"),
        "trainer": TrainerConfig(max_opts=30, max_env_steps=None, warmup_period=50, eval_interval=20),
        "evaluator": EvaluatorConfig(episodes=2),
        "recorder": RecorderConfig(console="none", tensorboard=False),
    }
    return TrainConfig(**default | sections)  # type: ignore[arg-type]


def test_the_result_has_scores_totals_throughput_and_actors(workplace: Path) -> None:
    records = border_cli.BufferedRecorder()
    result = border_cli.train_async(small(n_actors=2, seed=5), workplace / "run", recorder=records)
    run = Run(workplace / "run")
    assert records.series("eval/return_mean") == run.series("eval/return_mean") != []
    assert (result.code, result.ended_by, result.opt_steps) == (ExitCode.DONE, "max_opts", 30)
    assert result.best is not None and result.best.mean == run.summary["best_score"]["mean"]
    assert result.last is not None and result.last.opt_steps == 30
    assert border_cli.load(run.path).opt_steps == run.summary["best_score"]["opt_steps"]
    assert border_cli.load(run.path).sample([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    assert run.steps("eval/return_mean") == [20, 30]
    assert run.checkpoints == ["step-000000030"]
    assert not (run.path / ".hydra").exists() and not Path("runs").exists()
    assert (run.config.seed, run.config.n_actors, run.config.agent.batch_size) == (5, 2, 16)
    assert [actor.actor for actor in result.actors] == [0, 1]
    assert sum(actor.env_steps for actor in result.actors) == result.env_steps
    assert result.samples_per_sec == pytest.approx(result.env_steps / result.seconds)
    assert result.opt_steps_per_sec == pytest.approx(30 / result.seconds)
    assert result.samples_per_opt_step == pytest.approx((result.env_steps - 50) / 30)
    assert run.summary["bound"] == result.bound != ""
    assert result.bound in (run.path / "train.log").read_text(encoding="utf-8")
    before = run.summary
    assert run.json("provenance.json")["launches"][0]["command"] == "train_async"
    with pytest.raises(UsageError, match="already holds a run"):
        border_cli.train_async(small(), "run")
    assert run.summary == before


def test_agent_environment_and_preset_are_taken_by_name(workplace: Path) -> None:
    config = border_cli.compose("agent=dqn", "env=cartpole", "n_actors=3")
    assert (config.preset.name, config.env.id, config.n_actors) == ("dqn_cartpole", "CartPole-v1", 3)
    args = [
        "agent=dqn",
        "env=cartpole",
        "trainer.max_opts=30",
        "trainer.warmup_period=50",
        "evaluator.episodes=2",
    ]
    result = border_cli.train(args, workplace / "run")
    run = Run(workplace / "run")
    assert (run.config.trainer.type, run.config.preset.name, result.opt_steps) == ("sync", "dqn_cartpole", 30)


class FixedEvaluator:
    """An evaluator that gives every model a mean return equal to its opt step."""

    concurrent = False

    def __init__(self) -> None:
        self.evaluated: list[int] = []
        self.closed = False
        self._evaluation: Evaluation | None = None

    def begin(self, model: ModelInfo, seeds: Sequence[int], tick: Callable[[], None] = lambda: None) -> None:
        self.evaluated.append(model.version)
        self._evaluation = Evaluation(model.version, (float(model.version),) * len(seeds), (1,) * len(seeds))

    def poll(self) -> Evaluation | None:
        evaluation, self._evaluation = self._evaluation, None
        return evaluation

    def close(self) -> None:
        self.closed = True


def test_a_custom_evaluator_and_step_processor_are_used(workplace: Path) -> None:
    evaluator = FixedEvaluator()
    fakes.single_steps.clear()
    result = border_cli.train(
        small(step_processor="tests.fakes:make_single_steps"), workplace / "run", evaluator=evaluator
    )
    assert set(evaluator.evaluated) == {20, 30} and evaluator.closed
    assert result.best is not None and (result.best.opt_steps, result.best.mean) == (30, 30.0)
    assert len(fakes.single_steps) == 1


@pytest.mark.parametrize("train", [border_cli.train, border_cli.train_async])
def test_metrics_of_infos_need_our_step_processor(workplace: Path, train: Any) -> None:
    config = small(
        env=EnvConfig(id="CartPole-v1", info_keys=["score"]), step_processor="tests.fakes:make_single_steps"
    )
    with pytest.raises(UsageError, match=r"env\.info_keys needs the step processor of border-cli"):
        train(config, workplace / "run")


def test_a_run_without_an_opt_step_ends_with_code_2(workplace: Path) -> None:
    config = small(trainer=TrainerConfig(max_time=0.01, max_env_steps=None, warmup_period=90_000))
    with pytest.raises(UsageError, match=r"trainer\.max_time before its first opt step: .*\n.* 90,001 env"):
        border_cli.train_async(config, workplace / "run")
    summary = Run(workplace / "run").summary
    assert (summary["status"], summary["exit_code"]) == ("failed", 2)


def test_an_invalid_configuration_is_refused_before_the_run_directory_is_made(workplace: Path) -> None:
    with pytest.raises(UsageError, match="has no name"):
        border_cli.train_async(small(env=EnvConfig()), "run")
    with pytest.raises(UsageError, match="there is no environment 'CartPool-v1'"):
        border_cli.train_async(small(env=EnvConfig(id="CartPool-v1")), "run")
    assert not (workplace / "run").exists()


@pytest.mark.parametrize(
    ("expect", "env_steps", "said"),
    [
        ("mean return of about 999 after 10 env steps", 10, "published elsewhere: mean return of about 999"),
        ("mean return of at least 999 within 10 env steps", 10, "mean return of at least 999"),
        ("mean return of at least 999 within 10,000 env steps", 10_000, ""),  # the run was shorter
    ],
)
def test_a_run_below_the_figure_of_its_preset_says_whose_it_is(
    workplace: Path, expect: str, env_steps: int, said: str
) -> None:
    config = border_cli.compose(*tiny("env=cartpole", "preset=none", "trainer=sync", "trainer.max_opts=30"))
    config.preset = PresetConfig("mine", "CartPole-v1", expect, 999.0, env_steps)
    result = border_cli.train(config, "run")
    assert result.expected.startswith(said) and bool(result.expected) == bool(said)
    assert ("not reproduced here" in result.expected) == ("published" in said)


def test_h5_an_environment_that_changes_the_working_folder_does_not_split_its_run(workplace: Path) -> None:
    Path("elsewhere").mkdir()
    words = endless(*trap("MainProcess", "step", "chdir", 30), "trainer=sync", "trainer.max_opts=50")
    border_cli.train(words, "runs/mine")
    assert Run(workplace / "runs" / "mine").summary["status"] == "done"
    assert len(list((workplace / "runs" / "mine" / "checkpoints").iterdir())) == 1
    assert list((workplace / "elsewhere").iterdir()) == []


def hydra_application() -> None:
    def application(_: object) -> None:
        print(border_cli.compose("agent=iqn").agent.type, HydraConfig.get().job.name)

    application.__module__ = "__main__"
    hydra.main(version_base=None, config_path=None)(application)()


def test_a_configuration_is_composed_inside_a_hydra_application(workplace: Path) -> None:
    done = finished("tests.integration.test_train_async:hydra_application")
    assert (done.returncode, done.stdout) == (0, "iqn test_train_async\n"), done.stderr


def test_lockstep_ends_with_its_env_steps(workplace: Path) -> None:
    trainer = TrainerConfig(
        max_env_steps=600, warmup_period=100, opt_interval=4.0, lockstep=True, eval_interval=None
    )
    config = small(trainer=trainer, actor_manager=ActorManagerConfig(envs_per_actor=2), n_actors=2)
    result = border_cli.train_async(config, workplace / "run")
    assert (result.ended_by, result.env_steps, result.opt_steps) == ("max_env_steps", 600, 125)


SYNC: dict[str, Any] = {"vectorization_mode": "sync"}


@pytest.mark.parametrize(
    "kwargs",
    [{}, SYNC, SYNC | {"vector_kwargs": {"autoreset_mode": "SameStep"}}],
    ids=["own", "sync", "same step"],
)
def test_actors_with_vector_environments_use_up_a_budget(workplace: Path, kwargs: dict[str, Any]) -> None:
    """Each env step of CartPole has the reward 1. The least tolerance makes the actors wait often."""
    records = border_cli.BufferedRecorder()
    config = small(
        env=EnvConfig(id="CartPole-v1", vector=True, kwargs=kwargs),
        trainer=TrainerConfig(
            max_env_steps=803, warmup_period=50, opt_interval=4.0, ratio_tolerance=20, eval_interval=60, record_interval=20
        ),
        actor_manager=ActorManagerConfig(envs_per_actor=5),
        n_actors=2,
    )  # fmt: skip
    result = border_cli.train_async(config, workplace / "run", recorder=records)
    assert (result.code, result.ended_by) == (ExitCode.DONE, "max_env_steps")
    assert 803 - 2 * 4 <= result.env_steps <= 803
    assert result.opt_steps == (result.env_steps - 50) // 4
    assert result.env_steps == sum(actor.env_steps for actor in result.actors)
    assert min(actor.env_steps for actor in result.actors) > 0
    returns = records.series("train/episode_return")
    assert returns == records.series("train/episode_length") != []
    assert result.best is not None and result.best.mean == sum(result.best.lengths) / len(result.best.lengths)


def test_an_actor_that_lost_its_vector_environment_gets_another(workplace: Path) -> None:
    """A NaN comes within 80 steps, of 4 environments each, and at another time in each incarnation."""
    kwargs = {"nan_at": 60, "nan_spread": 20, "lengths": [1000]}
    config = small(
        env=EnvConfig(entry_point="tests.vector:CountingVector", vector=True, kwargs=kwargs),
        trainer=TrainerConfig(max_env_steps=400, warmup_period=50, eval_interval=None),
        actor_manager=ActorManagerConfig(envs_per_actor=4, restart_delay_s=0.1),
    )
    result = border_cli.train_async(config, workplace / "run")
    assert (result.code, result.ended_by) == (ExitCode.DONE, "max_env_steps")
    (actor,) = result.actors
    assert actor.restarts >= 1 and 400 - 3 <= actor.env_steps <= 400
