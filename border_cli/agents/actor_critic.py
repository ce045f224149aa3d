"""What SAC, discrete SAC and FlashSAC share: names of networks, metrics, and the entropy coefficient."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import cast

import torch
from torch import Tensor, nn

from border_cli.agents.algorithm import Algorithm
from border_cli.agents.config import ActorCriticConfig
from border_cli.agents.params import flat_gradient
from border_cli.core.metrics import declare
from border_cli.core.spaces import EnvSpec

declare(
    "agent/critic_loss", "", "loss summed over the critics (FlashSAC: their mean), mean over the interval"
)
declare("agent/policy_loss", "reward", "mean loss of the policy (FlashSAC: in units of agent/reward_scale)")
declare("agent/entropy_coef", "reward/nat", "entropy coefficient")
declare("agent/entropy", "nats", "mean of minus the log-probability of the policy's actions")
SCALARS = ("critic_loss", "policy_loss", "q_mean", "target_mean", "entropy_coef", "entropy", "grad_norm")
"""Scalars that an opt step adds to the statistics."""


class EntropyCoefficient(nn.Module):
    """The entropy coefficient α of SAC as a parameter, stored as its logarithm."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor([math.log(start)], dtype=torch.float32))

    def forward(self) -> Tensor:
        """(1,)."""
        return self.log.exp()


class ActorCriticAlgorithm(Algorithm):
    """An algorithm of the networks "policy", "critics" and, where the entropy coefficient is learned, "alpha"."""

    config: ActorCriticConfig
    scalars: tuple[str, ...] = SCALARS

    @property
    def target_of(self) -> Mapping[str, str]:
        return {"critics_target": "critics"}

    @property
    def variants(self) -> tuple[int, ...]:
        return (1,) if self.config.policy_interval == 1 else (0, 1)

    def variant(self, number: int) -> int:
        """1 where the policy changes too."""
        return int(number % self.config.policy_interval == 0)

    def lr(self, network: str) -> float:
        critic_lr = self.config.critic_lr
        return self.config.lr if network != "critics" or critic_lr is None else critic_lr

    def entropy_coef(self) -> Tensor:
        """(1,) entropy coefficient, without a gradient; 0 for a deterministic policy."""
        if "alpha" in self.networks:
            return cast(Tensor, self.networks["alpha"]()).detach()
        return torch.full((1,), self.config.fixed_entropy_coef or 0.0, device=self.device)

    def entropy_coef_gradient(self, entropy: Tensor, target: float) -> dict[str, Tensor]:
        """(1,) gradient of log α, which falls while the entropy, a scalar without gradient, is above its target.

        By the name of the network; {} if α is not learned.
        """
        if "alpha" not in self.networks:
            return {}
        alpha = self.networks["alpha"]
        return {"alpha": flat_gradient((alpha.log * (entropy - target)).mean(), alpha)}


def critics_and_alpha(
    critics: Callable[..., nn.Module], spec: EnvSpec, config: ActorCriticConfig, generator: torch.Generator
) -> dict[str, nn.Module]:
    """The networks beside the policy: these critics, and the entropy coefficient if it is learned."""
    networks = {"critics": critics(spec, config, generator)}
    if config.fixed_entropy_coef is None:
        networks["alpha"] = EntropyCoefficient(config.entropy_coef_start)
    return networks
