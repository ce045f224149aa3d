"""The value-based family, from acting to the opt step.

DQN (Mnih et al., 2015) with the extensions that the configuration selects: double targets (van Hasselt et al., 2016),
other heads (`heads.py`), noisy and dueling layers (`network.py`), Munchausen targets (Vieillard et al., 2020), several
actions at once (BDQ, Tavakoli et al., 2018) and a memory (R2D2, Kapturowski et al., 2019).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap, zip_longest
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from border_cli.agents.agent import Family
from border_cli.agents.algorithm import Algorithm, Learned
from border_cli.agents.branches import by_branch, check_discrete, mask_actions, mean_of_branches
from border_cli.agents.dqn.config import DqnConfig
from border_cli.agents.dqn.heads import CategoricalHead, QuantileHead, make_head
from border_cli.agents.dqn.network import NO_NOISE, Noise, QNetwork
from border_cli.agents.memory import at_next, mean_of_rows, memory_columns, sequence_errors
from border_cli.agents.params import TensorBatch, flat_gradient
from border_cli.agents.policy import NetworkPolicy, to_array
from border_cli.core.errors import UsageError
from border_cli.core.metrics import declare
from border_cli.core.spaces import Array, EnvSpec, Obs
from border_cli.runtime.tensors import library_of, like, to_device

declare("agent/loss", "", "mean loss of the TD error")
declare("agent/target_clipped", "", "share of the last batch's TD targets outside [v_min, v_max]")

SCALARS = ("loss", "q_mean", "target_mean", "grad_norm")
"""Scalars that an opt step adds to the statistics."""
_MAX_CLIPPED = 0.5
"""A larger share of clipped targets is logged: the range of the atoms is too narrow. An untrained network has less."""
_logger = logging.getLogger(__name__)


# -- acting ---------------------------------------------------------------------


class DqnPolicy(NetworkPolicy):
    """Acts by the Q-network. In eval mode it is greedy up to `eval_epsilon`, and the network has no noise."""

    network: QNetwork

    def _prepare(self, spec: EnvSpec, actor: int, n_actors: int) -> None:
        self.head = make_head(self.config)
        # The power of ε. On the ladder of Ape-X (Horgan et al., 2018), that of actor i is 1 + α·i/(n - 1).
        self._power = 1.0
        if self.config.epsilon_ladder is not None and n_actors > 1:
            self._power += self.config.epsilon_ladder * actor / (n_actors - 1)
        self._shape = spec.action.shape

    def _noise(self) -> Noise | None:
        size = self.network.noise_size
        return Noise(normal=_normal(self._rng, size, self.params.device)) if size else None

    def action_values(self, obs: Obs, env_ix: Sequence[int] | None = None) -> Array:
        """(B, n) expected returns, -inf for forbidden actions, or (B, D, n) of D actions at once.

        env_ix: the environments that a memory remembers; None: those of the last `sample`, before it.
        """
        return self._by_action(self._values(*self._outputs(obs, env_ix)))

    def action_quantiles(self, obs: Obs, env_ix: Sequence[int] | None = None) -> Array:
        """(B, n, k) quantiles of the return, (B, D, n, k) of D actions at once.

        Raises ValueError if the network does not learn quantiles.
        """
        if not isinstance(self.head, QuantileHead):
            raise ValueError("the network of this agent has no quantiles\nallowed: agent=qrdqn or iqn")
        return self._by_action(self._outputs(obs, env_ix)[0])

    def _by_action(self, rows: Any) -> Array:
        array = to_array(rows)
        return array.reshape(-1, len(self.network.branches), *array.shape[1:]) if self._shape else array

    def _values(self, outputs: Any, obs: Mapping[str, Any]) -> Any:
        """(B·D, n) expected returns, -inf for forbidden actions."""
        return mask_actions(self.head.values(outputs), obs, self._mask, self.network.branches)

    def _greedy(self, outputs: Any, obs: dict[str, Any]) -> Any:
        """(B,) int64, without noise in the network, (B, *shape) for several at once."""
        return self._chosen(self._values(outputs, obs), 0.0, self._eval_rng)

    def _explore(self, outputs: Any, obs: dict[str, Any], env_steps: int, env_ix: Sequence[int]) -> Any:
        return self._chosen(self._values(outputs, obs), self._epsilon(env_steps), self._rng)

    def _exploit(self, outputs: Any, obs: dict[str, Any]) -> Any:
        return self._chosen(self._values(outputs, obs), self.config.eval_epsilon, self._eval_rng)

    def _epsilon(self, env_steps: int) -> float:
        """ε of ε-greedy exploration: linear over env steps, then to the actor's power; 0 if only noisy layers explore."""
        config = self.config
        if config.exploration == "none":
            return 0.0
        share = min(env_steps / config.epsilon_env_steps, 1.0)
        epsilon = config.epsilon_start + share * (config.epsilon_final - config.epsilon_start)
        return float(epsilon**self._power)

    def _chosen(self, values: Any, epsilon: float, rng: np.random.Generator) -> Any:
        """(B, *shape) best actions, or with probability ε a random allowed one; each of several explores for itself.

        values: (B·D, n), -inf for forbidden actions. Rows in which every action is forbidden count as free.
        """
        best, xp = values.argmax(1), library_of(values)
        if epsilon and np.count_nonzero(is_random := rng.random(len(best)) < epsilon):
            share = like(rng.random(values.shape, np.float32), values)
            # The largest of independent uniform numbers is a uniform draw.
            drawn = xp.where(values == -torch.inf, share - 1.0, share).argmax(1)
            best = xp.where(like(is_random, values), drawn, best)
        return best.reshape(-1, *self._shape)


# -- learning -------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class StepNoise:
    """Random numbers of the three passes of an opt step: online network, target network, selection of the next action."""

    online: Noise = NO_NOISE
    target: Noise = NO_NOISE
    select: Noise = NO_NOISE


NO_STEP_NOISE = StepNoise()


class DqnAlgorithm(Algorithm):
    """Targets, losses and gradients."""

    config: DqnConfig
    scalars = SCALARS
    target_of: ClassVar[dict[str, str]] = {"target": "online"}

    def __init__(self, config: DqnConfig, spec: EnvSpec, *rest: Any) -> None:
        super().__init__(config, spec, *rest)
        self._mask, self._branches = spec.mask, spec.action.branches
        self.head = make_head(config)
        self._noise_size = cast(QNetwork, self.networks["online"]).noise_size
        self._warned = False
        if config.gru is not None and type(self).targets is not DqnAlgorithm.targets:
            raise UsageError(
                f"agent={config.type} has targets of its own, for rows", allowed="agent.gru=null"
            )

    def noise(self, rows: int) -> StepNoise:
        """See `Algorithm`: noise for all three passes, quantile levels for the two that are compared."""
        config, device = self.config, self.device
        levels = (config.quantiles, config.target_quantiles) if config.head == "implicit_quantile" else ()
        if not self._noise_size and not levels:
            return NO_STEP_NOISE
        taus = [to_device(self.rng.random((rows, n), np.float32), device) for n in levels]
        size = self._noise_size
        normals = _normal(self.rng, 3 * size, device).split(size) if size else ()
        return StepNoise(*starmap(Noise, zip_longest(taus, normals)))

    def learn(self, batch: TensorBatch, noise: StepNoise, variant: int) -> Learned:
        config, head, d = self.config, self.head, len(self._branches)
        batch = by_branch(batch, d)
        if config.gru is None:
            with torch.no_grad():
                target = self.targets(batch, noise)
            outputs = gather_action(self.networks["online"](batch.obs, noise.online), batch.action)
        else:
            outputs, target = self._of_sequences(batch, noise)
        tau, valid = noise.online.tau, batch.extra.get("is_valid")
        losses = head.loss(outputs, target, tau if tau is None or d == 1 else tau.repeat_interleave(d, 0))
        loss = mean_of_rows(losses, valid, batch.weight)
        gradients = {"online": flat_gradient(loss, self.networks["online"])}
        outputs, errors = outputs.detach(), None
        q, y = (mean_of_rows(v, valid) for v in (head.values(outputs), head.target_values(target)))
        if batch.weight is not None:
            errors = head.error(outputs, target)
            if valid is not None:
                errors = sequence_errors(errors.view(valid.shape), valid, config.priority_max_share)
            elif d > 1:
                errors = errors.view(-1, d).mean(1)
        return Learned(gradients, {"loss": loss, "q_mean": q, "target_mean": y}, errors)

    def targets(self, batch: TensorBatch, noise: StepNoise) -> Tensor:
        """(B, k) TD targets of rows; of D actions at once (B·D, k). A variant of DQN overrides it.

        D actions all bootstrap from their mean, as in BDQ, but from their own where distributions of fixed returns are
        learned.
        """
        reward = batch.reward
        if self.config.munchausen is None:
            next_outputs, q_select = self._next_outputs(batch, noise)
            best = gather_action(next_outputs, q_select.argmax(1))
        else:
            best, bonus = self._munchausen(batch, noise)
            reward = reward + self.config.munchausen * bonus
        if not isinstance(self.head, CategoricalHead):
            best = mean_of_branches(best, len(self._branches))
        return self.head.target(best, reward, batch.discount, batch.terminated)

    def _next_outputs(self, batch: TensorBatch, noise: StepNoise) -> tuple[Tensor, Tensor]:
        """In the next states: (B, n, k) outputs of the target network, and (B, n) values that select the action."""
        outputs = self.networks["target"](batch.next_obs, noise.target)
        if self.config.double:
            selecting = self.networks["online"](batch.next_obs, noise.select)
        elif noise.target.tau is not None:  # IQN: random levels for the target, fixed ones to select
            selecting = self.networks["target"](batch.next_obs, noise.select)
        else:
            selecting = outputs
        return outputs, self._allowed(self.head.values(selecting), batch.next_obs)

    def _allowed(self, values: Tensor, obs: dict[str, Tensor]) -> Tensor:
        """(B, n) values, -inf for forbidden actions."""
        return mask_actions(values, obs, self._mask, self._branches)

    def _munchausen(self, batch: TensorBatch, noise: StepNoise) -> tuple[Tensor, Tensor]:
        """What the targets of Munchausen RL have in place of the best action, and add to the reward.

        (B, k) Σ_b π(b|s')·(output_b - τ·log π(b|s')), the soft value of the next state, and (B,) clipped τ·log π(a|s). π
        is the softmax of the target network's values by the temperature τ.
        """
        tau = self.config.munchausen_tau
        next_outputs = self.networks["target"](batch.next_obs, noise.target)
        now = (self.networks["target"](batch.obs, noise.select), batch.obs)
        log_pi, next_log_pi = (  # finite, so that 0·log 0 is 0
            (self._allowed(self.head.values(outputs), obs) / tau).clamp(min=-1e30).log_softmax(1)
            for outputs, obs in (now, (next_outputs, batch.next_obs))
        )
        bonus = tau * log_pi.gather(1, batch.action.unsqueeze(1)).squeeze(1)
        next_log_pi = next_log_pi.unsqueeze(2)
        value = (next_log_pi.exp() * (next_outputs - tau * next_log_pi)).sum(1)
        return value, bonus.clamp(self.config.munchausen_clip, 0.0)

    def _of_sequences(self, batch: TensorBatch, noise: StepNoise) -> tuple[Tensor, Tensor]:
        """(B·T, k) outputs and TD targets of networks with a memory. The next states are in the same sequences."""
        online = self.networks["online"](batch.obs, noise.online, batch)  # (B, T + n, actions, k)
        with torch.no_grad():
            next_ = batch.extra["next"]
            next_outputs = at_next(self.networks["target"](batch.obs, noise.target, batch), next_)
            values = self.head.values(at_next(online, next_) if self.config.double else next_outputs)
            if self._mask is not None:
                allowed = at_next(batch.obs[self._mask][:, self.config.burn_in :], next_)
                values = values.masked_fill(allowed == 0, -torch.inf)
            numbers = (part.flatten() for part in (batch.reward, batch.discount, batch.terminated))
            target = self.head.target(gather_action(next_outputs, values.argmax(1)), *numbers)
        rows = online[:, : batch.action.shape[1]].flatten(0, 1)
        return gather_action(rows, batch.action.flatten()), target

    @torch.no_grad()
    def batch_metrics(self, batch: TensorBatch) -> dict[str, float]:
        """The share of the targets that a categorical head clips, without noise. Logs a warning, once, if it is large."""
        if not isinstance(self.head, CategoricalHead) or self.config.gru is not None:
            return {}
        batch = by_branch(batch, len(self._branches))
        outputs, q_select = self._next_outputs(batch, NO_STEP_NOISE)
        best = gather_action(outputs, q_select.argmax(1))
        clipped = self.head.share_clipped(best, batch.reward, batch.discount, batch.terminated)
        share = clipped.mean().item()
        if not math.isfinite(share):  # the opt step of this batch was skipped
            return {}
        if share > _MAX_CLIPPED and not self._warned:
            self._warned = True
            _logger.warning(
                "%.0f%% of the TD targets lie outside the range %g … %g and are clipped; set agent.v_min and agent.v_max "
                "to the smallest and the largest discounted return",
                100 * share,
                *self.head.atoms[[0, -1]].tolist(),
            )
        return {"agent/target_clipped": share}


def gather_action(outputs: Tensor, action: Tensor) -> Tensor:
    """(B, n, k) outputs → (B, k), those of the actions (B,)."""
    ix = action.view(-1, 1, 1).expand(-1, 1, outputs.shape[2])
    return outputs.gather(1, ix).squeeze(1)


def _normal(rng: np.random.Generator, n: int, device: torch.device) -> Tensor:
    return to_device(rng.standard_normal(n, np.float32), device)


# -- what makes them ------------------------------------------------------------


def check_spec(config: DqnConfig, spec: EnvSpec) -> None:
    """Raise UsageError unless the actions are discrete."""
    if spec.action.kind == "multi_discrete" and config.gru is not None:
        raise UsageError(
            "agent.gru is not for several discrete actions at once", allowed="env.wrappers=[FlattenActions]"
        )
    check_discrete(config, spec)


FAMILY = Family(check_spec, DqnPolicy, DqnAlgorithm, QNetwork, acting="online")
make_policy, make_agent, agent_bytes = FAMILY.make_policy, FAMILY.make_agent, FAMILY.agent_bytes
extra_columns = memory_columns
