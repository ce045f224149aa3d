"""Configuration of DQN. Imports no torch: the command line reads it before anything heavy is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from border_cli.config.options import option
from border_cli.config.schema import AgentConfig


@dataclass
class DqnConfig(AgentConfig):
    """DQN (Mnih et al., 2015), with double targets (van Hasselt et al., 2016) and an Ape-X ladder (Horgan et al., 2018)."""

    type: str = option("dqn", "which agent this is")
    lr: float = option(1e-3, "Adam's step size", gt=0.0, le=1.0)
    adam_eps: float = option(1e-8, "Adam's epsilon", gt=0.0)
    double: bool = option(True, "choose the target's action with the online network")
    loss: str = option("huber", "of the TD error", choices=("huber", "mse"))
    max_grad_norm: float | None = option(10.0, "global gradient norm is clipped here; null: not", gt=0.0)
    hidden: list[int] = option([256, 256], "units per hidden layer", unit="units", ge=1)
    target_interval: int = option(128, "the target network is updated this often", unit="opt steps", ge=1)
    target_tau: float = option(1.0, "share of the online network in that update; 1 is a copy", gt=0.0, le=1.0)
    epsilon_start: float = option(1.0, "share of random actions at env step 0", ge=0.0, le=1.0)
    epsilon_final: float = option(0.05, "share of random actions from epsilon_env_steps on", ge=0.0, le=1.0)
    epsilon_env_steps: int = option(
        10_000, "linear decay over so many env steps, warm-up included", unit="env steps", ge=1
    )
    epsilon_ladder: float | None = option(
        None, "α of the ladder ε^(1+α·i/(n-1)) over actors i = 0..n-1; null: the same ε for all", gt=0.0
    )
    eval_epsilon: float = option(0.0, "share of random actions in evaluation", ge=0.0, le=1.0)
