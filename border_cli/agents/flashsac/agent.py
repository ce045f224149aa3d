"""FlashSAC (Kim et al., 2026): networks, acting and the opt step.

It is SAC with bounded networks: batch normalisation, residual blocks and weights of norm 1. Its critics are categorical
(Bellemare et al., 2017), for rewards divided by a running scale of the discounted returns. What is not here is SAC's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from border_cli.agents import actor_critic
from border_cli.agents.actor_critic import critics_and_alpha
from border_cli.agents.agent import Family
from border_cli.agents.algorithm import Learned, td_target
from border_cli.agents.batch_renorm import BatchRenorm, BatchStats
from border_cli.agents.dqn.heads import CategoricalHead
from border_cli.agents.flashsac.config import NARROW, FlashsacConfig
from border_cli.agents.memory import PerEnvironment, mean_of_rows
from border_cli.agents.nets import Encoder, in_float32, layer_list
from border_cli.agents.params import TensorBatch, flat_gradient
from border_cli.agents.sac.agent import (
    SacAlgorithm,
    SacPolicy,
    StepNoise,
    check_spec,
    sample_action,
)
from border_cli.agents.sac.network import ActionParameters, TanhBijector
from border_cli.core.metrics import declare
from border_cli.core.spaces import Array, EnvSpec
from border_cli.core.types import Column, Step
from border_cli.runtime.tensors import library_of

__all__ = ["agent_bytes", "check_spec", "extra_columns", "make_agent", "make_policy"]

declare("agent/reward_scale", "reward", "what rewards are divided by")
SCALARS = (*actor_critic.SCALARS, "reward_scale")
RETURN = "discounted_return"
"""Column: (), discounted return up to an env step, G ← γ·G + r. It begins at 0 after a terminated episode, and continues
after a truncated one, as the values of a truncated one do: otherwise they could be far beyond the largest return."""
_MAX_RETURN, _ATOMS = 5.0, 101
"""Normalised returns are within ±5, which 101 atoms cover."""
_LOG_STD_RANGE = (-10.0, 2.0)
_ZETA = 2.0
RMS_EPS = 1e-6
_NORM_EPS = 1e-5  # of 348 inputs of Humanoid, 44 have a variance below 0.001 under random actions
_MIN_VARIANCE = 1e-8
_MOST_BATCHES = 300  # more would lag behind returns that rise fast


def extra_columns(config: FlashsacConfig, spec: EnvSpec) -> tuple[Column, ...]:
    """The column of discounted returns, from which the scale of the rewards is taken."""
    del config, spec
    return (Column(RETURN, (), "float32"),)


# -- networks -------------------------------------------------------------------


class UnitLinear(nn.Module):
    """n linear layers without bias, (n, B, n_in) → (n, B, n_out). The weights of each output have norm 1."""

    kind = "unit"

    def __init__(self, n: int, n_in: int, n_out: int, generator: torch.Generator) -> None:
        super().__init__()
        weight = torch.empty(n, n_in, n_out).normal_(generator=generator)
        self.weight = nn.Parameter(weight / weight.square().sum(1, keepdim=True).sqrt())

    def forward(self, x: Tensor) -> Tensor:
        return torch.bmm(x, self.weight)


class Block(nn.Module):
    """An inverted residual without its sum: four times as wide inside, batch normalisation before each ReLU."""

    def __init__(self, n: int, width: int, generator: torch.Generator) -> None:
        super().__init__()
        sizes = ((width, 4 * width), (4 * width, width))
        self.layers = nn.ModuleList(UnitLinear(n, n_in, n_out, generator) for n_in, n_out in sizes)
        self.norms = nn.ModuleList(BatchRenorm(n, 1, n_out, eps=_NORM_EPS) for _, n_out in sizes)

    def forward(self, x: Tensor, stats: BatchStats | None) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = torch.relu(norm(layer(x), stats))
        return x


class Trunk(nn.Module):
    """n networks as one, (n, B, n_in) → (n, B, n_out): an embedding, residual blocks, RMSNorm, and a linear layer.

    widths: of each block, all the same.
    """

    def __init__(
        self, n: int, n_in: int, widths: Sequence[int], n_out: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        width = widths[0]
        self.norms = nn.ModuleList([BatchRenorm(n, 1, n_in, eps=_NORM_EPS)])
        self.embedding = UnitLinear(n, n_in, width, generator)
        self.blocks = nn.ModuleList(Block(n, width, generator) for _ in widths)
        self.scale = nn.Parameter(torch.ones(n, 1, width))
        self.out = UnitLinear(n, width, n_out, generator)
        self.bias = nn.Parameter(torch.zeros(n, 1, n_out))

    def forward(self, x: Tensor, stats: BatchStats | None = None) -> Tensor:
        """stats: see `BatchRenorm`."""
        x = self.embedding(self.norms[0](x, stats))
        for block in self.blocks:
            x = x + block(x, stats)
        x = x.float()
        x = x * (x.square().mean(-1, keepdim=True) + RMS_EPS).rsqrt() * self.scale
        return in_float32(torch.baddbmm, self.bias, x, self.out.weight)

    @torch.no_grad()
    def project(self, skip: Tensor) -> None:
        """Give the weights of each output norm 1, and the scales (with shifts) of each normalisation norm √units.

        skip: scalar; if it is 1, nothing changes.
        """
        for module in self.modules():
            if isinstance(module, UnitLinear):
                _set_norm([module.weight], 1, 1.0, skip)
            elif isinstance(module, BatchRenorm):
                _set_norm([module.weight, module.bias], 2, module.weight.shape[2] ** 0.5, skip)
        _set_norm([self.scale], 2, self.scale.shape[2] ** 0.5, skip)


def _set_norm(parts: Sequence[Tensor], dim: int, norm: float, skip: Tensor) -> None:
    """Scale tensors in place so that along a dimension their squares add up to norm²."""
    factor = norm * torch.stack([part.square().sum(dim, keepdim=True) for part in parts]).sum(0).rsqrt()
    for part in parts:
        part.copy_(torch.where(skip == 0.0, part * factor, part))


class FlashsacNetwork(nn.Module):
    """The policy: observation → distribution of the action."""

    is_state_dependent = False

    def __init__(self, spec: EnvSpec, config: FlashsacConfig, generator: torch.Generator) -> None:
        super().__init__()
        seen = spec.without(config.privileged_obs).obs
        self.encoder = Encoder(seen, config, generator)
        outputs = 2 * len(spec.action.low)
        self.trunk = Trunk(1, self.encoder.features, config.hidden or NARROW, outputs, generator)

    def forward(self, obs: dict[str, Tensor], stats: BatchStats | None = None) -> ActionParameters:
        """{name: (B, ...)} → distribution of the actions. stats: see `BatchRenorm`."""
        out = self.trunk(self.encoder(obs).unsqueeze(0), stats)[0]
        return self.of_outputs(out, out)

    def of_outputs(self, out: Any, features: Any) -> ActionParameters:
        """The distribution of the actions, by the outputs of the trunk, arrays or tensors."""
        d, xp, (low, high) = out.shape[1] // 2, library_of(out), _LOG_STD_RANGE
        return ActionParameters(
            out[:, :d], xp.exp(low + (high - low) * 0.5 * (1.0 + xp.tanh(out[:, d:]))), features
        )

    def described(self) -> dict[str, Any]:
        trunk = self.trunk
        layers = layer_list(self, [trunk.norms[0], trunk.embedding])
        for block in cast(Sequence[Block], trunk.blocks):
            inner = layer_list(
                self, [x for pair in zip(block.layers, block.norms, strict=True) for x in pair]
            )
            for layer in inner:
                layer["relu"] = layer["kind"] == "norm"
            layers.append({"kind": "residual", "relu": False, "layers": inner})
        layers.append({"kind": "rms", "at": "trunk", "relu": False, "eps": RMS_EPS})
        out = [*layer_list(self, [trunk.out]), {"kind": "shift", "at": "trunk", "relu": False}]
        return {"encoder": self.encoder.described(), "layers": layers, "out": out}


class ReturnStatistics(nn.Module):
    """Running statistics of the discounted returns in batches: mean, mean square, largest absolute value; and count."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("mean", "square", "largest", "count"):
            self.register_buffer(name, torch.zeros(()))

    @torch.no_grad()
    def updated(self, returns: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The buffers with one more batch (B,). The newest has the weight 1/count, at least 1/300."""
        mean, square, largest, count = self.buffers()
        count = (count + 1.0).clamp(max=_MOST_BATCHES)
        weight = count.reciprocal()
        return (
            mean.lerp(returns.mean(), weight),
            square.lerp(returns.square().mean(), weight),
            torch.maximum(largest, returns.abs().max()),
            count,
        )


def reward_scale(mean: Tensor, square: Tensor, largest: Tensor) -> Tensor:
    """() what rewards are divided by: the standard deviation of the returns, or more where the largest would exceed 5."""
    variance = (square - mean.square()).clamp(min=0.0)  # where rounding matters in it, the largest decides
    return torch.maximum((variance + _MIN_VARIANCE).sqrt(), largest / _MAX_RETURN)


class FlashsacCritics(nn.Module):
    """Several critics as one network, for logits of normalised returns. They share encoder and statistics of returns."""

    def __init__(self, spec: EnvSpec, config: FlashsacConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.encoder = Encoder(spec.obs, config, generator)
        self._bijector = TanhBijector(spec.action)
        features, self._n = self.encoder.features + self._bijector.size, config.critics
        self.trunk = Trunk(config.critics, features, config.critic_hidden or NARROW, _ATOMS, generator)
        self.returns = ReturnStatistics()

    def forward(self, obs: dict[str, Tensor], action: Tensor, stats: BatchStats | None = None) -> Tensor:
        """{name: (B, ...)} and actions (B, d) → (critics, B, 101) logits. stats: see `BatchRenorm`."""
        action = self._bijector.to(action.device).unscale(action)
        x = torch.cat([self.encoder(obs), action], 1).expand(self._n, -1, -1)
        return cast(Tensor, self.trunk(x, stats))


# -- acting ---------------------------------------------------------------------


class Memory(PerEnvironment):
    """What the policy keeps of each environment: its noise, repeated for some env steps, and its discounted return.

    size: d, numbers per action · longest: noise serves n env steps with a probability in proportion to 1/n² (a truncated
    zeta distribution), n at most this.
    """

    def __init__(self, size: int, longest: int) -> None:
        noise, left = np.zeros((0, size), np.float32), np.zeros(0, np.int64)
        super().__init__(noise=noise, left=left, returned=np.zeros(0))
        p = np.arange(1, longest + 1, dtype=np.float64) ** -_ZETA
        self._cdf = np.cumsum(p / p.sum())[:-1]

    def begin_episode(self, env_ix: int) -> None:
        """The next `sample` draws new noise."""
        ix = self.known([env_ix])
        self.rows["left"][ix] = 0

    def sample(self, env_ix: Sequence[int], rng: np.random.Generator) -> Array:
        """(k, d) float32 noise of these environments, for one env step."""
        ix = self.known(env_ix)
        noise, left = self.rows["noise"], self.rows["left"]
        new = ix[left[ix] == 0]
        left[new] = 1 + np.searchsorted(self._cdf, rng.random(len(new)), side="right")
        noise[new] = rng.standard_normal((len(new), noise.shape[1]), np.float32)
        left[ix] -= 1
        return noise[ix]

    def add(self, step: Step, gamma: float, clip: float | None) -> Array:
        """(k,) discounted returns of the environments of an env step, see `RETURN`. clip: rewards count up to ±this."""
        ix, reward = self.known(step.env_ix), step.reward if clip is None else step.reward.clip(-clip, clip)
        total: Array = gamma * self.rows["returned"][ix] + reward
        self.rows["returned"][ix] = np.where(step.terminated, 0.0, total)
        return total


class FlashsacPolicy(SacPolicy):
    """Acts as SAC's policy, but repeats its noise."""

    def _make_noise(self, network: FlashsacNetwork) -> Memory:
        return Memory(self._bijector.size, self.config.noise_repeat)

    def _normal(self, env_ix: Sequence[int]) -> Array:
        noise: Array = self._kept_noise.sample(env_ix, self._rng)
        return noise

    def extras(self, step: Step) -> dict[str, Array]:
        return {RETURN: self._kept_noise.add(step, self.config.gamma, self.config.reward_clip)}


# -- learning -------------------------------------------------------------------


class FlashsacAlgorithm(SacAlgorithm):
    """Targets, losses and gradients."""

    scalars = SCALARS
    target_of: ClassVar[dict[str, str]] = {"critics_target": "critics"}

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        atoms = torch.linspace(-_MAX_RETURN, _MAX_RETURN, _ATOMS, device=self.device)
        self.head = CategoricalHead(atoms)

    @property
    def target_entropy(self) -> float:
        """That of Gaussian actions with the standard deviation `target_std`."""
        std: float = cast(Any, self.config).target_std
        return 0.5 * self.bijector.n_free * math.log(2 * math.pi * math.e * std**2)

    def learn(self, batch: TensorBatch, noise: StepNoise, variant: int) -> Learned:
        """See `Algorithm.learn`. Current and next observations and actions are one batch of each network in training."""
        rows, stats, alpha = len(batch.reward), BatchStats(), self.entropy_coef()
        critics: FlashsacCritics = self.networks["critics"]
        statistics = critics.returns.updated(batch.extra[RETURN])
        for buffer, value in zip(critics.returns.buffers(), statistics, strict=True):
            stats.set(buffer, value)
        scale = reward_scale(*statistics[:3])
        obs = {name: torch.cat([now, batch.next_obs[name]]) for name, now in batch.obs.items()}
        with torch.no_grad():
            parameters = self.networks["policy"](batch.next_obs)
            next_action, log_prob = sample_action(self.bijector, parameters, noise.next_action)
            action = torch.cat([batch.action.flatten(1), next_action])
            # The target network has no use for running statistics: each batch has its own.
            next_logits = self.networks["critics_target"](obs, action, BatchStats())[:, rows:]
            target = self.target(next_logits, alpha * log_prob, batch, scale)
        logits = critics(obs, action, stats)[:, :rows]
        losses = self.head.loss(logits, target, None).mean(0)
        critic_loss = mean_of_rows(losses, None, batch.weight)
        gradients = {"critics": flat_gradient(critic_loss, critics)}
        values, target_values = self.head.values(logits.detach()), self.head.target_values(target)
        q, y = values.mean() * scale, target_values.mean() * scale
        scalars = {"critic_loss": critic_loss, "q_mean": q, "target_mean": y}
        scalars |= {"entropy_coef": alpha.mean(), "reward_scale": scale}
        if variant == 1:
            both = self.networks["policy"](obs, stats)
            parameters = ActionParameters(both.mean[:rows], both.std[:rows], both.features[:rows])
            chosen, log_prob = sample_action(self.bijector, parameters, noise.action)
            value = self.head.values(critics(batch.obs, chosen)).min(0).values
            policy_loss, entropy = (alpha * log_prob - value).mean(), -log_prob.detach().mean()
            gradients["policy"] = flat_gradient(policy_loss, self.networks["policy"])
            gradients |= self.entropy_coef_gradient(entropy, self.target_entropy)
            scalars |= {"policy_loss": policy_loss, "entropy": entropy}
        errors = None if batch.weight is None else (values - target_values).abs().mean(0) * scale
        return Learned(gradients, scalars, errors, stats)

    def after_update(self, learned: Learned, skip: Tensor) -> None:
        """Set the running statistics, and project the weights of the networks that have learned."""
        super().after_update(learned, skip)
        for name in ("critics", "policy"):
            if name in learned.gradients:
                self.networks[name].trunk.project(skip)

    def target(self, next_logits: Tensor, penalty: Tensor, batch: TensorBatch, scale: Tensor) -> Tensor:
        """(B, 101) probabilities of R/scale + γ^m·(z - α·log π(a'|s')), and of R/scale where terminated, on the atoms.

        z is distributed as the critic with the smallest mean says.

        next_logits: (critics, B, 101) of the next states and actions · penalty: (B,) α·log π · scale: () of the rewards.
        """
        smaller = self.head.values(next_logits).argmin(0).view(1, -1, 1).expand(-1, -1, _ATOMS)
        p, z = next_logits.gather(0, smaller)[0].softmax(-1), self.head.atoms.expand(len(penalty), -1)
        reward = batch.reward / scale
        return self.head.project(
            p, td_target(z - penalty.unsqueeze(1), reward, batch.discount, batch.terminated)
        )


FAMILY = Family(
    check_spec,
    FlashsacPolicy,
    FlashsacAlgorithm,
    FlashsacNetwork,
    partial(critics_and_alpha, FlashsacCritics),
)
make_policy, make_agent, agent_bytes = FAMILY.make_policy, FAMILY.make_agent, FAMILY.agent_bytes
