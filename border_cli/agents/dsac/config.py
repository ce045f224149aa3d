"""Configuration of SAC for discrete actions. Does not import torch: the command line reads it before anything heavy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from border_cli.agents.config import NetworkConfig
from border_cli.config.schema import option, override_default


@dataclass
class DsacConfig(NetworkConfig):
    """SAC for discrete actions (Christodoulou, 2019), with a learned entropy coefficient."""

    not_in_opt_step: ClassVar[tuple[str, ...]] = (
        *NetworkConfig.not_in_opt_step,
        *("random_env_steps", "target_interval", "target_tau"),
    )
    only_with: ClassVar[dict[str, str]] = NetworkConfig.only_with | {
        "agent.entropy_coef=null": "entropy_coef_start target_entropy",
    }

    type: str = option("dsac", "name of the agent")
    lr: float = override_default(NetworkConfig, "lr", 3e-4)
    critic_lr: float | None = option(
        None, "learning rate of the critics; null: lr", unit="rate", gt=0.0, le=1.0
    )
    critics: int = option(2, "number of critics", unit="critics", ge=1)
    entropy_coef: float | None = option(
        None, "entropy coefficient; auto: learned", unit="reward/nat", ge=0.0, auto=True
    )
    entropy_coef_start: float = option(
        1.0, "initial value of a learned entropy coefficient", unit="reward/nat", gt=0.0
    )
    target_entropy: float = option(
        0.5,
        "target entropy of a learned coefficient, as a share of that of uniform actions, log n",
        unit="share",
        ge=0.0,
        le=1.0,
    )
    target_interval: int = option(1, "update the target networks this often", unit="opt steps", ge=1)
    target_tau: float = option(
        0.005, "share of the online networks in each target update; 1: a copy", unit="share", gt=0.0, le=1.0
    )
    random_env_steps: int = option(
        1_000, "uniform random actions until this env step", unit="env steps", ge=0
    )

    def trained(self) -> DsacConfig:
        return replace(self, random_env_steps=0)
