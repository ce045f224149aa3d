"""Configuration of SAC for discrete actions. Does not import torch: the command line reads it before anything heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from border_cli.agents.config import ActorCriticConfig
from border_cli.config.schema import option


@dataclass
class DsacConfig(ActorCriticConfig):
    """SAC for discrete actions (Christodoulou, 2019), with a learned entropy coefficient."""

    only_with: ClassVar[dict[str, str]] = ActorCriticConfig.only_with | {
        "agent.entropy_coef=null": "entropy_coef_start target_entropy",
    }

    type: str = option("dsac", "name of the agent")
    target_entropy: float = option(
        0.5,
        "target entropy of a learned coefficient, as a share of that of uniform actions, log n; with several actions, of "
        "the mean of log n",
        unit="share",
        ge=0.0,
        le=1.0,
    )
