"""What SAC, discrete SAC and FlashSAC share: the state of an opt step, its networks, targets and metrics.

All gradients of an opt step are computed before any parameter changes. So an opt step with numbers that are not finite
can be skipped as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from border_cli.agents.agent import Algorithm, NetworkAgent, NetworkPolicy
from border_cli.agents.config import ActorCriticConfig
from border_cli.agents.nets import Encoder
from border_cli.agents.params import AdamState, FlatParams, StepStats, clip_norm_, flat_gradient, polyak_
from border_cli.core.metrics import declare
from border_cli.core.spaces import EnvSpec
from border_cli.runtime import seeding

declare(
    "agent/critic_loss", "", "loss summed over the critics (FlashSAC: their mean), mean over the interval"
)
declare("agent/policy_loss", "reward", "mean loss of the policy (FlashSAC: in units of agent/reward_scale)")
declare("agent/q_mean", "reward", "mean value of the actions in the batches")
declare("agent/target_mean", "reward", "mean TD target")
declare("agent/entropy_coef", "reward/nat", "entropy coefficient")
declare("agent/entropy", "nats", "mean of minus the log-probability of the policy's actions")
declare("agent/grad_norm", "", "mean gradient norm before clipping")
SCALARS = ("critic_loss", "policy_loss", "q_mean", "target_mean", "entropy_coef", "entropy", "grad_norm")
"""Scalars that an opt step adds to the statistics. policy_loss and entropy are 0 if it does not change the policy."""


@dataclass
class ActorCriticState:
    """Everything that an opt step reads and changes.

    critics_target: (n,), None without target networks · policy_target: (n,), None too unless the policy is deterministic ·
    alpha: the entropy coefficient, None unless it is learned ·
    policy_steps: scalar, opt steps since the last record that changed the policy.
    """

    policy: AdamState
    critics: AdamState
    critics_target: Tensor | None
    policy_target: Tensor | None
    alpha: AdamState | None
    stats: StepStats
    policy_steps: Tensor

    @staticmethod
    def init(
        layouts: dict[str, FlatParams], device: torch.device, beta1: float, n_scalars: int
    ) -> ActorCriticState:
        """The state before the first opt step. Optional fields without a layout are None."""
        online = {
            name: AdamState.init(layouts[name], layouts[name].init().to(device), beta1)
            for name in ("policy", "critics", "alpha")
            if name in layouts
        }
        return ActorCriticState(
            policy=online["policy"],
            critics=online["critics"],
            critics_target=online["critics"].params.clone() if "critics_target" in layouts else None,
            policy_target=online["policy"].params.clone() if "policy_target" in layouts else None,
            alpha=online.get("alpha"),
            stats=StepStats.init(n_scalars, device),
            policy_steps=torch.zeros((), device=device),
        )


@dataclass(frozen=True)
class ActorCriticNetworks:
    """The networks, bound to the parameters in a state. policy_target: the policy itself if it has no target network."""

    policy: nn.Module
    policy_target: nn.Module
    critics: nn.Module
    critics_target: nn.Module | None
    alpha: nn.Module | None


class EntropyCoefficient(nn.Module):
    """The entropy coefficient α of SAC as a parameter, stored as its logarithm."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor([math.log(start)], dtype=torch.float32))

    def forward(self) -> Tensor:
        """(1,)."""
        return self.log.exp()


class ActorCriticAlgorithm(Algorithm):
    """Networks, targets and metrics of an agent with a policy and critics."""

    config: ActorCriticConfig
    state: ActorCriticState
    scalars: tuple[str, ...] = SCALARS

    def __init__(
        self,
        layouts: dict[str, FlatParams],
        state: ActorCriticState,
        config: ActorCriticConfig,
        spec: EnvSpec,
        seed: int,
    ) -> None:
        super().__init__(config, state, layouts, seed)
        self.spec = spec
        self.variants = (1,) if config.policy_interval == 1 else (0, 1)

    def bind(self, state: ActorCriticState) -> ActorCriticNetworks:
        def bound(name: str, vector: Tensor) -> nn.Module:
            return self._layouts[name].bind(vector, self.config.precision)

        policy = bound("policy", state.policy.params)
        return ActorCriticNetworks(
            policy,
            policy if state.policy_target is None else bound("policy", state.policy_target),
            bound("critics", state.critics.params),
            None if state.critics_target is None else bound("critics", state.critics_target),
            None if state.alpha is None else bound("alpha", state.alpha.params),
        )

    def encoders(self, networks: ActorCriticNetworks) -> Sequence[Encoder]:
        every = (networks.policy, networks.policy_target, networks.critics, networks.critics_target)
        return [cast(Any, network).encoder for network in every if network is not None]

    def variant(self, number: int) -> int:
        """1 where the policy changes too."""
        return int(number % self.config.policy_interval == 0)

    def entropy_coef(self, networks: ActorCriticNetworks) -> Tensor:
        """(1,) entropy coefficient, without a gradient; 0 for a deterministic policy."""
        if networks.alpha is not None:
            return cast(Tensor, networks.alpha()).detach()
        device = next(networks.policy.parameters()).device
        return torch.full((1,), self.config.fixed_entropy_coef or 0.0, device=device)

    def entropy_coef_gradient(
        self, networks: ActorCriticNetworks, entropy: Tensor, target: float
    ) -> dict[str, Tensor]:
        """(1,) gradient of log α, which falls while the entropy, a scalar without gradient, is above its target.

        By the name of the network; {} if α is not learned.
        """
        if networks.alpha is None:
            return {}
        loss = (cast(EntropyCoefficient, networks.alpha).log * (entropy - target)).mean()
        return {"alpha": flat_gradient(loss, tuple(networks.alpha.parameters()))}

    def change(
        self,
        state: ActorCriticState,
        gradients: dict[str, Tensor],
        scalars: Sequence[Tensor],
        lr_scale: float | Tensor,
    ) -> Tensor:
        """Clip the gradients, by the name of their network, and do the steps of Adam.

        scalars: of the statistics, except for the gradient's norm. Returns a scalar, 1 if one of them was not finite: then
        nothing has changed.
        """
        config = self.config
        norms = [clip_norm_(gradient, config.max_grad_norm) for gradient in gradients.values()]
        skip = state.stats.add((*scalars, torch.stack(norms).norm()))
        if "policy" in gradients:
            state.policy_steps.add_(1.0 - skip)
        for name, gradient in gradients.items():
            lr = config.critic_lr if name == "critics" and config.critic_lr is not None else config.lr
            cast(AdamState, getattr(state, name)).update(gradient, lr * lr_scale, config.adam_eps, skip)
        return skip

    def update_targets(self, number: int) -> None:
        if number % self.config.target_interval == 0:
            self._move_targets(self.config.target_tau)

    def reset_targets(self) -> None:
        self._move_targets(1.0)

    def _move_targets(self, tau: float) -> None:
        """Move the targets towards the online parameters by the share tau; 1 copies them."""
        state = self.state
        if state.critics_target is not None:
            polyak_(state.critics_target, state.critics.params, tau)
        if state.policy_target is not None:
            polyak_(state.policy_target, state.policy.params, tau)

    def metrics(self, sums: Sequence[float], opt_steps: int) -> dict[str, float]:
        """See `Algorithm`. Means of the policy are over the opt steps that changed it, and are left out if none did."""
        policy_steps = self.state.policy_steps.item()
        self.state.policy_steps.zero_()
        divisors = dict.fromkeys(self.scalars, float(opt_steps)) | dict.fromkeys(
            ("policy_loss", "entropy"), policy_steps
        )
        totals = zip(self.scalars, sums, strict=True)
        return {name: total / divisors[name] for name, total in totals if divisors[name]}


@dataclass(frozen=True)
class Parts:
    """What an actor-critic agent is made of. check_spec: raises UsageError unless the agent can act in these spaces."""

    check_spec: Callable[[Any, EnvSpec], None]
    network: Callable[..., nn.Module]
    critics: Callable[..., nn.Module]
    policy: Callable[..., NetworkPolicy]
    algorithm: type[ActorCriticAlgorithm]


def make_agent(
    config: ActorCriticConfig, spec: EnvSpec, seed: int, device: str = "cpu", *, parts: Parts
) -> NetworkAgent:
    """A new agent of these parts. `seed` is the run's."""
    parts.check_spec(config, spec)
    generator = torch.Generator().manual_seed(seeding.integer(seed, seeding.AGENT))
    layouts = {
        "policy": FlatParams(parts.network(spec, config, generator)),
        "critics": FlatParams(parts.critics(spec, config, generator)),
    }
    if config.fixed_entropy_coef is None:
        layouts["alpha"] = FlatParams(EntropyCoefficient(config.entropy_coef_start))
    layouts |= {name: layouts[name.removesuffix("_target")] for name in config.target_networks}
    scalars = len(parts.algorithm.scalars)
    state = ActorCriticState.init(layouts, torch.device(device), config.adam_beta1, scalars)
    policy = parts.policy(layouts["policy"], state.policy.params, config, spec, seed, shared=True)
    return NetworkAgent(policy, parts.algorithm(layouts, state, config, spec, seed), config.batch_size)
