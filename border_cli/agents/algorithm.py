"""What the algorithms of all agents share: one opt step, from the gradients that an algorithm returns to the new state."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from border_cli.agents.batch_renorm import BatchStats
from border_cli.agents.nets import Encoder
from border_cli.agents.params import (
    AdamState,
    FlatParams,
    LearnerState,
    StepStats,
    TensorBatch,
    clip_norm_,
)
from border_cli.core.errors import UsageError
from border_cli.core.metrics import declare
from border_cli.core.spaces import EnvSpec
from border_cli.runtime import seeding

declare("agent/q_mean", "reward", "mean value of the actions in the batches")
declare("agent/target_mean", "reward", "mean TD target")
declare("agent/grad_norm", "", "mean gradient norm before clipping")


@dataclass(frozen=True)
class Learned:
    """What an opt step finds out from a batch.

    gradients: (n_trained,), by network · scalars: by name; those that this opt step does not have are missing · errors:
    (B,) absolute errors, of a batch with weights · stats: new running statistics of batch normalisation.
    """

    gradients: dict[str, Tensor]
    scalars: dict[str, Tensor]
    errors: Tensor | None = None
    stats: BatchStats | None = None


class Algorithm(ABC):
    """How an agent learns: one opt step as a function of its state, a batch and random numbers.

    All gradients are computed before any parameter changes. So an opt step with numbers that are not finite can be skipped
    as a whole.

    Args:
        networks: those that Adam trains, by name.
        seed: the run's; it determines `rng`, the random generator of the opt steps.

    Attributes:
        state: everything that an opt step reads and changes.
        layouts: by the names of networks and target networks.
        networks: networks and target networks by name, whose parameters are views of the vectors in `state`.
        graphs: compiled forms of `step`, by variant; see `border_cli.agents.graph`. Empty: every opt step is eager.
    """

    scalars: tuple[str, ...]
    """Names of the scalars that opt steps add to `state.stats`, "grad_norm" among them."""

    def __init__(
        self,
        config: Any,
        spec: EnvSpec,
        seed: int,
        networks: Mapping[str, nn.Module],
        device: torch.device,
    ) -> None:
        self.config, self.spec, self.device = config, spec, device
        self.rng = seeding.generator(seed, *seeding.LEARNING)
        self.graphs: dict[int, Callable[[TensorBatch, Any, float], Tensor | None]] = {}
        layouts = {name: FlatParams(network) for name, network in networks.items()}
        nets = {
            name: AdamState.init(layout, layout.init().to(device), config.adam_beta1)
            for name, layout in layouts.items()
        }
        targets = {name: nets[source].params.clone() for name, source in self.target_of.items()}
        self.state = LearnerState(nets, targets, StepStats.init(len(self.scalars), device))
        self.layouts = layouts | {name: layouts[source] for name, source in self.target_of.items()}
        if config.weight_decay:
            for name, adam in nets.items():
                adam.weight_decay, adam.decayed = config.weight_decay, layouts[name].matrices
        self.networks: Mapping[str, Any] = self._bind(self.state)
        if config.normalize_obs and not self.encoders:
            raise UsageError(
                f"agent={config.type} does not normalise observations", allowed="agent.normalize_obs=false"
            )

    @property
    def target_of(self) -> Mapping[str, str]:
        """The target networks, and the networks that they follow."""
        return {}

    @property
    def variants(self) -> tuple[int, ...]:
        """What `variant` can return."""
        return (0,)

    def step(self, batch: TensorBatch, noise: Any, lr_scale: float | Tensor, variant: int) -> Tensor | None:
        """Change the state in place by one opt step, without the update of the targets.

        Nothing but these arguments, `state` and `networks` may be read that can change, and no value of a tensor may
        decide what is done, so that the step can be compiled.

        Args:
            noise: from `noise`.
            lr_scale: factor of every learning rate; a scalar tensor while the step is compiled.
            variant: from `variant`.

        Returns:
            (B,) absolute errors if the batch has weights, else None.
        """
        if self.config.normalize_obs:
            update_statistics(self.encoders, batch, getattr(self.config, "burn_in", 0))
        learned = self.learn(batch, noise, variant)
        with torch.no_grad():
            skip = self._update(learned, lr_scale)
            self.after_update(learned, skip)
        return learned.errors

    def on(self, state: LearnerState) -> Algorithm:
        """The same algorithm with another state, to trace an opt step. It shares all but `networks` with this one."""
        other = copy.copy(self)
        other.state, other.networks = state, self._bind(state)
        return other

    @property
    def encoders(self) -> list[Encoder]:
        """The encoders of all networks that have an `Encoder` as their attribute `encoder`, the acting network's first."""
        every = (getattr(self.networks[name], "encoder", None) for name in self.layouts)
        return [encoder for encoder in every if isinstance(encoder, Encoder)]

    def _bind(self, state: LearnerState) -> dict[str, nn.Module]:
        vectors = {name: adam.params for name, adam in state.nets.items()} | state.targets
        precision = self.config.precision
        return {name: self.layouts[name].bind(vector, precision) for name, vector in vectors.items()}

    def noise(self, rows: int) -> Any:
        """New random numbers of one opt step for a batch of `rows`: None, or a dataclass of tensors, from `rng`."""
        del rows

    def variant(self, number: int) -> int:
        """Which form opt step `number` has: what differs between forms is not decided by tensors."""
        return 0

    @abstractmethod
    def learn(self, batch: TensorBatch, noise: Any, variant: int) -> Learned:
        """The losses of a batch and their gradients. The rules of `step` hold, and nothing is changed."""

    def _update(self, learned: Learned, lr_scale: float | Tensor) -> Tensor:
        """Clip the gradients, and do the steps of Adam.

        Returns a scalar: 1 if a scalar of the opt step is not finite; then no parameter changes.
        """
        config, gradients = self.config, learned.gradients
        norms = [clip_norm_(gradient, config.max_grad_norm) for gradient in gradients.values()]
        scalars = learned.scalars | {"grad_norm": norms[0] if len(norms) == 1 else torch.stack(norms).norm()}
        if unknown := scalars.keys() - set(self.scalars):
            raise ValueError(f"{type(self).__name__}.scalars lacks {sorted(unknown)}")
        skip = self.state.stats.add([scalars.get(name) for name in self.scalars])
        for name, gradient in gradients.items():
            self.state.nets[name].update(gradient, self.lr(name) * lr_scale, config.adam_eps, skip)
        return skip

    def after_update(self, learned: Learned, skip: Tensor) -> None:
        """What happens after the steps of Adam, such as a projection of weights. skip: scalar; if 1, change nothing."""
        if learned.stats is not None:
            learned.stats.apply(skip)

    def lr(self, network: str) -> float:
        """The learning rate of a network, before the schedule."""
        return float(self.config.lr)

    def update_targets(self, number: int) -> None:
        """Update the target networks if it is due after opt step `number`."""
        if self.target_of and number % self.config.target_interval == 0:
            self.move_targets(self.config.target_tau)

    def move_targets(self, tau: float) -> None:
        """Target networks ← (1 - τ)·target + τ·network. Called with τ = 1 after parameters were replaced."""
        for name, source in self.target_of.items():
            target, params = self.state.targets[name], self.state.nets[source].params
            if tau == 1.0:
                target.copy_(params)  # lerp_ could change the sign of a zero
            else:
                target.lerp_(params, tau)

    def reset_to(self, fresh: Algorithm) -> None:
        """Copy the networks and moments of a new algorithm, but not the statistics of observations and returns."""
        for name, new in fresh.state.nets.items():
            adam, layout = self.state.nets[name], self.layouts[name]
            for moment in ("exp_avg", "exp_avg_sq", "step"):
                getattr(adam, moment).copy_(getattr(new, moment))
            parts, statistics = layout.unflatten(adam.params), layout.statistics
            for path, part in layout.unflatten(new.params).items():
                if path not in statistics:
                    parts[path].copy_(part)
        self.move_targets(1.0)

    def batch_metrics(self, batch: TensorBatch) -> dict[str, float]:
        """Metrics of the last batch that only records need. Changes no state and draws no random numbers."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        return self.state.tensors(self.layouts)


def td_target(values: Tensor, reward: Tensor, discount: Tensor, terminated: Tensor) -> Tensor:
    """(B, k) values of the next states → r + γ^m·value, and r alone where terminated.

    By `where`, because the product 0·inf is NaN. reward, discount, terminated: (B,) n-step sum, γ^m, and bool.
    """
    bootstrap = torch.where(terminated.unsqueeze(1), 0.0, values)
    return reward.unsqueeze(1) + discount.unsqueeze(1) * bootstrap


@torch.no_grad()
def update_statistics(encoders: Sequence[Encoder], batch: TensorBatch, burn_in: int = 0) -> None:
    """Update the statistics of observations of one encoder and copy them to the others, so that all have the same.

    A batch with a number that is not finite changes nothing. Nothing is read back from the device.
    """
    # Critics may see more than the policy.
    widest = max(encoders, key=lambda encoder: len(encoder.normalizers))
    obs, next_obs, valid = batch.obs, batch.next_obs, batch.extra.get("is_valid")
    if valid is not None:  # of the rows of sequences
        next_obs = {name: rows.flatten(0, 1) for name, rows in obs.items()}
        obs = {name: rows[:, burn_in : burn_in + valid.shape[1]].flatten(0, 1) for name, rows in obs.items()}
    before, after = widest.statistics(), widest.updated_statistics(obs, valid)
    numbers = [batch.reward, *(next_obs[name] for name in widest.normalizers), *after]
    total = torch.stack([part.sum().float() for part in numbers]).sum()
    is_finite = total - total == 0.0  # half of the time of isfinite
    for old, new in zip(before, after, strict=True):
        old.copy_(torch.where(is_finite, new, old))
    copy_statistics(widest, encoders)


@torch.no_grad()
def copy_statistics(source: Encoder, encoders: Sequence[Encoder]) -> None:
    """Copy the statistics of observations of one encoder to all that normalise the same parts."""
    for encoder in encoders:
        for name, part in encoder.normalizers.items():
            if encoder is not source and name in source.normalizers:
                for copied, tensor in zip(part.buffers(), source.normalizers[name].buffers(), strict=True):
                    copied.copy_(tensor)
