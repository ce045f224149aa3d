"""The value-based family: the policy that acts, and the rule by which it learns.

A module named in `border_cli.config.registry` offers `check_spec`, `make_policy` and `make_agent`, as this one does.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from border_cli.agents.batches import TensorBatch
from border_cli.agents.dqn.config import DqnConfig
from border_cli.agents.dqn.explorer import Explorer, explore, make_explorer
from border_cli.agents.dqn.heads import CategoricalHead, Head, make_head
from border_cli.agents.dqn.loss import (
    NO_STEP_DRAWS,
    SCALARS,
    DqnNetworks,
    DqnState,
    StepDraws,
    allowed,
    beyond_atoms,
    opt_step,
    update_target,
)
from border_cli.agents.dqn.network import NO_DRAWS, Draws, QNetwork
from border_cli.agents.flat import FlatModule
from border_cli.agents.learner import Learner
from border_cli.agents.outcome import Outcome
from border_cli.agents.policy import NetworkPolicy
from border_cli.core.errors import UsageError
from border_cli.core.metrics import declare
from border_cli.core.protocols import Estimates
from border_cli.core.spaces import Array, EnvSpec
from border_cli.runtime import seeding

declare("agent/loss", "", "mean loss of the TD error")
declare("agent/q_mean", "reward", "mean value of the actions in the batches")
declare("agent/target_mean", "reward", "mean TD target")
declare("agent/grad_norm", "", "mean gradient norm before clipping")
declare("agent/target_beyond", "", "share of the last batch's targets beyond the atoms of a categorical head")

_MUCH = 0.5
"""So great a share of the targets cut off is told: the atoms are too narrow, not the network new."""
_logger = logging.getLogger(__name__)


def check_spec(config: DqnConfig, spec: EnvSpec) -> None:
    """Raise UsageError where the spaces are not for this agent."""
    if spec.action.kind != "discrete":
        raise UsageError(
            f"agent={config.type} chooses among a finite number of actions, and this environment's are "
            f"{spec.action.kind} {list(spec.action.shape)}\nallowed: agent=sac, td3 or tqc with it, or an environment "
            "with a Discrete action space"
        )


def make_policy(
    config: DqnConfig, spec: EnvSpec, seed: int, actor: int = 0, n_actors: int = 1, incarnation: int = 0
) -> DqnPolicy:
    """The acting part alone, for an actor or an evaluation. `seed` is the run's."""
    net = QNetwork(spec, config, torch.Generator().manual_seed(0))
    rng = seeding.generator(seed, *seeding.exploration_key(actor, incarnation))
    flat = FlatModule(net)
    explorer = make_explorer(config, actor, n_actors)
    return DqnPolicy(flat, flat.initial(), config, explorer, rng, seed, spec.mask)


def make_agent(config: DqnConfig, spec: EnvSpec, seed: int, device: str = "cpu") -> Learner:
    """A fresh agent. `seed` is the run's."""
    check_spec(config, spec)
    generator = torch.Generator().manual_seed(seeding.integer(seed, seeding.AGENT))
    net = FlatModule(QNetwork(spec, config, generator))
    state = DqnState.fresh(net.initial().to(torch.device(device)))
    rng = seeding.generator(seed, *seeding.exploration_key(0, 0))
    explorer = make_explorer(config, 0, 1)
    policy = DqnPolicy(net, state.online.weights, config, explorer, rng, seed, spec.mask)
    rule = DqnRule(net, config, state, seeding.generator(seed, *seeding.LEARNING), spec.mask)
    return Learner(policy, rule, config.batch_size)


class DqnPolicy(NetworkPolicy):
    """Explores in train mode; greedy, or random with eval_epsilon, and without noise in eval mode."""

    def __init__(
        self,
        net: FlatModule,
        weights: Tensor,
        config: DqnConfig,
        explorer: Explorer,
        rng: np.random.Generator,
        seed: int,
        mask: str | None,
    ) -> None:
        super().__init__(net, weights, rng, seed)
        self._mask = mask
        self._last: tuple[Array, Array] | None = None
        self._head = make_head(config)
        self._explorer = explorer
        self._eval_epsilon = config.eval_epsilon
        self._noise_size = cast(QNetwork, self._network).noise_size

    def values(self, obs: dict[str, Tensor], draws: Draws = NO_DRAWS) -> Tensor:
        """(B, n) expected returns, -inf of actions that are not allowed."""
        return allowed(self._head.values(self._network(obs, draws)), obs, self._mask)

    def _explore(self, obs: dict[str, Tensor], env_steps: int, env_ix: Sequence[int]) -> Array:
        del env_ix
        values = self.values(obs, self._noise()).cpu().numpy()
        actions = self._explorer(values, env_steps, self._rng)
        self._last = values, actions
        return actions

    def estimates(self) -> Estimates | None:
        """Of the last actions in train mode, by the values they were chosen by."""
        if self._last is None:
            return None
        values, actions = self._last
        return Estimates(values.max(1), values[np.arange(len(actions)), actions])

    def _exploit(self, obs: dict[str, Tensor]) -> Array:
        return explore(self.values(obs).cpu().numpy(), self._eval_epsilon, self._evaluation_rng)

    def _noise(self) -> Draws:
        size = self._noise_size
        return Draws(noise=_normal(self._rng, size, self._weights.device)) if size else NO_DRAWS


class DqnRule:
    """Implements `agents.learner.Rule`."""

    def __init__(
        self,
        net: FlatModule,
        config: DqnConfig,
        state: DqnState,
        rng: np.random.Generator,
        mask: str | None,
    ) -> None:
        self.state = state
        self._mask = mask
        self.rng = rng
        self._net = net
        self._config = config
        self._head: Head = make_head(config)
        self._networks = DqnNetworks.over(net, state)
        self._noise_size = cast(QNetwork, self._networks.online).noise_size
        self._device = state.target.device
        self._told = False

    @property
    def outcome(self) -> Outcome:
        """Of the opt steps since the last record."""
        return self.state.outcome

    def opt_step(self, batch: TensorBatch, number: int) -> Tensor | None:
        """As of `Rule`."""
        del number
        draws = self._draws(batch)
        return opt_step(self._networks, self._head, self._config, self.state, batch, draws, self._mask)

    def update_targets(self, number: int) -> None:
        """As of `Rule`."""
        if number % self._config.target_interval == 0:
            update_target(self.state, self._config.target_tau)

    def means(self, sums: Sequence[float], opt_steps: int) -> dict[str, float]:
        """As of `Rule`."""
        return {name: total / opt_steps for name, total in zip(SCALARS, sums, strict=True)}

    def examine(self, batch: TensorBatch) -> dict[str, float]:
        """As of `Rule`: how much of the targets a categorical head cuts off, which is told once where it is much."""
        if not isinstance(self._head, CategoricalHead):
            return {}
        share = beyond_atoms(self._networks, self._head, self._config, batch, self._mask)
        if not math.isfinite(share):
            return {}  # of a batch that was skipped
        if share > _MUCH and not self._told:
            self._told = True
            _logger.warning(
                "%.0f%% of the TD targets lie outside agent.v_min=%g … agent.v_max=%g and are clipped; widen the range",
                100 * share,
                self._config.v_min,
                self._config.v_max,
            )
        return {"agent/target_beyond": share}

    def vectors(self) -> dict[str, tuple[FlatModule, Tensor]]:
        """As of `Rule`."""
        online = self.state.online
        named = {
            "online": online.weights,
            "target": self.state.target,
            "adam_mean": online.mean,
            "adam_variance": online.variance,
        }
        return {label: (self._net, vector) for label, vector in named.items()}

    def counts(self) -> dict[str, Tensor]:
        """As of `Rule`."""
        return {"adam_count": self.state.online.count}

    def restart(self) -> None:
        """The target becomes what the online network is."""
        update_target(self.state, 1.0)

    def _draws(self, batch: TensorBatch) -> StepDraws:
        """Noise for each of the three passes (Fortunato et al., 2018), levels for the two that are compared."""
        config, rows = self._config, len(batch.action)
        if not self._noise_size and config.head != "implicit_quantile":
            return NO_STEP_DRAWS
        taus: list[Tensor | None] = [None, None, None]
        if config.head == "implicit_quantile":
            taus[0] = self._levels(rows, config.quantiles)
            taus[1] = self._levels(rows, config.target_quantiles)
        noises: list[Tensor | None] = [None, None, None]
        if self._noise_size:
            drawn = _normal(self.rng, 3 * self._noise_size, self._device)
            noises = list(drawn.split(self._noise_size))
        return StepDraws(*(Draws(tau, noise) for tau, noise in zip(taus, noises, strict=True)))

    def _levels(self, rows: int, n: int) -> Tensor:
        return torch.from_numpy(self.rng.random((rows, n), np.float32)).to(self._device)


def _normal(rng: np.random.Generator, n: int, device: torch.device) -> Tensor:
    return torch.from_numpy(rng.standard_normal(n, np.float32)).to(device)
