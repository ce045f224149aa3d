"""`train_async`: training from Python, without the command line and without Hydra."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import border_cli
from border_cli.agents.dqn.config import DqnConfig
from border_cli.config.schema import (
    ActorManagerConfig,
    EnvConfig,
    EvaluatorConfig,
    RecorderConfig,
    TrainConfig,
    TrainerConfig,
)
from border_cli.core.errors import ActorLostError, ExitCode, UsageError
from tests.real_runs import Run

SCRIPT = """
from pathlib import Path
from border_cli import load, train_async
from border_cli.agents.dqn.config import DqnConfig
from border_cli.config.schema import EnvConfig, EvaluatorConfig, TrainConfig, TrainerConfig

print("imported")
if __name__ == "__main__":
    config = TrainConfig(
        agent=DqnConfig(hidden=[16], batch_size=16),
        env=EnvConfig(id="CartPole-v1"),
        trainer=TrainerConfig(max_opts=60, max_env_steps=None, warmup_period=50, eval_interval=40),
        evaluator=EvaluatorConfig(episodes=2),
        n_actors=2,
        seed=5,
    )
    result = train_async(config, "my run")
    print(f"code {int(result.code)} score {result.score}")
    print("action", load("my run").sample([0.0, 0.0, 0.0, 0.0]))
"""


def small(**sections: object) -> TrainConfig:
    given: dict[str, object] = {
        "agent": DqnConfig(hidden=[16], batch_size=16),
        "env": EnvConfig(id="CartPole-v1"),
        "trainer": TrainerConfig(max_opts=30, max_env_steps=None, warmup_period=50, eval_interval=20),
        "evaluator": EvaluatorConfig(episodes=2),
        "recorder": RecorderConfig(console="none", tensorboard=False),
    }
    return TrainConfig(**given | sections)  # type: ignore[arg-type]


def test_a_script_trains_and_loads(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        env=os.environ | {"XDG_STATE_HOME": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")
    run = Run(tmp_path / "my run")
    best = run.summary["best_score"]["mean"]
    lines = done.stdout.splitlines()
    assert f"code 0 score {best}" in lines
    assert lines[-1] in ("action 0", "action 1")
    assert (run.summary["ended_by"], run.counts[0], len(run.summary["actors"])) == ("max_opts", 60, 2)
    assert (run.config.seed, run.config.n_actors, run.config.agent.batch_size) == (5, 2, 16)
    assert run.steps("eval/return_mean") == [40, 60]
    assert run.checkpoints == ["step-000000060"]
    assert not (run.path / ".hydra").exists()
    assert not (tmp_path / "runs").exists()


def test_its_result_is_the_code_and_the_best_score(workplace: Path) -> None:
    records = border_cli.BufferedRecorder()
    result = border_cli.train_async(small(), workplace / "run", records)
    run = Run(workplace / "run")
    assert records.series("eval/return_mean") == run.series("eval/return_mean") != []
    assert (result.code, result.score) == (ExitCode.DONE, run.summary["best_score"]["mean"])
    assert border_cli.load(run.path).opt_steps == run.summary["best_score"]["opt_steps"]


def test_a_folder_that_holds_a_run_is_refused(workplace: Path) -> None:
    border_cli.train_async(small(), "run")
    before = Run(workplace / "run").summary
    with pytest.raises(UsageError, match="already holds a run"):
        border_cli.train_async(small(), "run")
    assert Run(workplace / "run").summary == before


def test_a_configuration_that_makes_no_sense_is_refused_before_there_is_a_folder(workplace: Path) -> None:
    with pytest.raises(UsageError, match="has no name"):
        border_cli.train_async(small(env=EnvConfig()), "run")
    with pytest.raises(UsageError, match="there is no environment 'CartPool-v1'"):
        border_cli.train_async(small(env=EnvConfig(id="CartPool-v1")), "run")
    assert not (workplace / "run").exists()


def test_a_failing_actor_is_raised_and_recorded(workplace: Path) -> None:
    counting = EnvConfig(
        entry_point="border_cli.envs.counting:CountingEnv", kwargs={"fault": "raise", "fault_step": 20}
    )
    with pytest.raises(ActorLostError, match="actor 0") as lost:
        border_cli.train_async(
            small(env=counting, actor_manager=ActorManagerConfig(on_env_error="stop")), "run"
        )
    assert "CountingEnv was told to raise at step" in lost.value.details
    summary = json.loads((workplace / "run" / "summary.json").read_text(encoding="utf-8"))
    assert (summary["status"], summary["ended_by"], summary["exit_code"]) == ("failed", "error", 5)
