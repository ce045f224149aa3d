"""Run directories with models in them, made without training."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from border_cli.agents.dqn.config import DqnConfig
from border_cli.checkpoints.contents import CHECKPOINTS, ModelDescription, save_best
from border_cli.config.schema import EnvConfig, TrainConfig
from border_cli.core.protocols import Evaluation
from border_cli.core.spaces import EnvSpec
from border_cli.runs.directory import write_config
from border_cli.runs.provenance import record_launch

DQN = DqnConfig(hidden=[8])


def describe(env: EnvConfig, spec: EnvSpec, **changes: Any) -> ModelDescription:
    """As a run with a small network stores it. changes: other values of the agent's section."""
    return ModelDescription(agent=asdict(DQN) | changes, env=asdict(env), spec=spec)


def save_model(folder: Path, model: ModelDescription, opt_steps: int) -> Path:
    """`folder/best` with the weights that a network begins with."""
    from border_cli.agents.dqn.agent import make_policy

    arrays = make_policy(DQN, model.spec, seed=0).model_info().arrays
    return save_best(folder, arrays, model, Evaluation(opt_steps, (1.0,), (1,)))


def save_run(
    run_dir: Path, model: ModelDescription, best: int | None = 20, steps: tuple[int, ...] = ()
) -> str:
    """A run with a best model and checkpoints of these opt steps. Returns its id."""
    run_dir.mkdir(parents=True, exist_ok=True)
    env = EnvConfig(**model.env)
    write_config(run_dir, TrainConfig(agent=DQN, env=env))
    for step in steps:
        made = save_model(run_dir / CHECKPOINTS, model, step)
        made.rename(made.with_name(f"step-{step:09d}"))
    if best is not None:
        save_model(run_dir, model, best)
    return record_launch(run_dir, ["agent=dqn"], seed=0)
