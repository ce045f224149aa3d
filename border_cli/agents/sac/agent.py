"""The actor-critic family: the policy that acts, and the rule by which it and its critics learn.

A module named in `border_cli.config.registry` offers `check_spec`, `make_policy` and `make_agent`, as this one does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from border_cli.agents.batches import TensorBatch
from border_cli.agents.flat import FlatModule
from border_cli.agents.learner import POLICY_STEPS, Learner
from border_cli.agents.outcome import Outcome
from border_cli.agents.policy import NetworkPolicy
from border_cli.agents.sac.bounds import Bounds
from border_cli.agents.sac.config import SacConfig
from border_cli.agents.sac.explorer import LastingNoise, OrnsteinUhlenbeck, StateDependentNoise
from border_cli.agents.sac.loss import (
    SCALARS,
    Rules,
    SacNets,
    SacNetworks,
    SacState,
    StepDraws,
    opt_step,
    update_targets,
)
from border_cli.agents.sac.network import Critics, EntropyCoefficient, PolicyNetwork
from border_cli.core.errors import UsageError
from border_cli.core.metrics import declare
from border_cli.core.spaces import Array, EnvSpec
from border_cli.core.state import require
from border_cli.runtime import seeding

declare("agent/critic_loss", "", "mean loss of the critics, summed over them")
declare("agent/policy_loss", "reward", "mean loss of the policy")
declare("agent/q_mean", "reward", "mean value of the actions in the batches")
declare("agent/target_mean", "reward", "mean TD target")
declare("agent/entropy_coef", "reward", "weight of the entropy")
declare("agent/entropy", "nats", "mean of minus the log-probability of the policy's actions")
declare("agent/grad_norm", "", "mean gradient norm before clipping")

_NOISE = "noise"
_OF_POLICY_STEPS = ("policy_loss", "entropy")


def check_spec(config: SacConfig, spec: EnvSpec) -> None:
    """Raise UsageError where the spaces are not for this agent."""
    if spec.action.kind != "box":
        raise UsageError(
            f"agent={config.type} gives real numbers, and this environment has {spec.action.n} actions to choose from\n"
            "allowed: agent=dqn, c51, qrdqn, iqn or rainbow with it, or an environment with a Box action space"
        )
    if not spec.action.low:
        raise UsageError(
            f"agent={config.type}: the environment's actions have no component\nallowed: at least one"
        )


def make_policy(
    config: SacConfig, spec: EnvSpec, seed: int, actor: int = 0, n_actors: int = 1, incarnation: int = 0
) -> SacPolicy:
    """The acting part alone, for an actor or an evaluation. `seed` is the run's."""
    del n_actors
    net = FlatModule(PolicyNetwork(spec, config, torch.Generator().manual_seed(0)))
    rng = seeding.generator(seed, *seeding.exploration_key(actor, incarnation))
    return SacPolicy(net, net.initial(), config, spec, rng, seed)


def make_agent(config: SacConfig, spec: EnvSpec, seed: int, device: str = "cpu") -> Learner:
    """A fresh agent. `seed` is the run's."""
    check_spec(config, spec)
    generator = torch.Generator().manual_seed(seeding.integer(seed, seeding.AGENT))
    is_learnt = config.policy == "gaussian" and config.entropy_coef is None
    nets = SacNets(
        FlatModule(PolicyNetwork(spec, config, generator)),
        FlatModule(Critics(spec, config, generator)),
        FlatModule(EntropyCoefficient(config.entropy_coef_start)) if is_learnt else None,
    )
    where = torch.device(device)
    state = SacState.fresh(nets, config, where)
    rng = seeding.generator(seed, *seeding.exploration_key(0, 0))
    policy = SacPolicy(nets.policy, state.policy.weights, config, spec, rng, seed)
    rule = SacRule(nets, rules(config, spec, where), state, seeding.generator(seed, *seeding.LEARNING))
    return Learner(policy, rule, config.batch_size)


def rules(config: SacConfig, spec: EnvSpec, device: torch.device) -> Rules:
    """What does not change."""
    bounds = Bounds(spec.action).to(device)
    wanted = -float(bounds.freedom) if config.target_entropy is None else config.target_entropy
    return Rules(config, bounds, wanted)


class SacPolicy(NetworkPolicy):
    """Uniform actions at first, then those of the policy with noise in train mode; its mean in eval mode."""

    def __init__(
        self,
        net: FlatModule,
        weights: Tensor,
        config: SacConfig,
        spec: EnvSpec,
        rng: np.random.Generator,
        seed: int,
    ) -> None:
        super().__init__(net, weights, rng, seed)
        self._config = config
        self._shape = spec.action.shape
        self._bounds = Bounds(spec.action).to(weights.device)
        self._low, self._high = (np.array(b, np.float32) for b in (spec.action.low, spec.action.high))
        self._noise = _lasting_noise(config, cast(PolicyNetwork, self._network))

    def begin_episode(self, env_ix: int) -> None:
        """Its noise begins anew."""
        if self._noise is not None:
            self._noise.begin_episode(env_ix)

    def generator_state(self) -> dict[str, Any]:
        """State of the exploration generator, and of what lasts for an episode, as JSON values."""
        noise = {} if self._noise is None else {_NOISE: self._noise.state()}
        return super().generator_state() | noise

    def load_generator_state(self, state: dict[str, Any]) -> None:
        """Explore on from a saved state."""
        require(state, (), "the policy's generator")
        own = dict(state)
        noise = own.pop(_NOISE, {})
        super().load_generator_state(own)
        if self._noise is not None:
            self._noise.load_state(noise)

    def _explore(self, obs: dict[str, Tensor], env_steps: int, env_ix: Sequence[int]) -> Array:
        rows = len(next(iter(obs.values())))
        if env_steps < self._config.random_env_steps:
            share = self._rng.random((rows, self._bounds.size), np.float32)
            return self._stored(self._low * (1 - share) + self._high * share)
        given = self._network(obs)
        if self._config.policy == "deterministic":
            x = torch.tanh(given.mean) + self._noise_on_actions(rows, env_ix)
            return self._stored(self._bounds.scaled(x.clamp(-1.0, 1.0)))
        if isinstance(self._noise, StateDependentNoise):
            matrices = self._tensor(self._noise.sample(env_ix or range(rows), self._rng))
            weights = matrices * cast(PolicyNetwork, self._network).deviation()
            u = given.mean + torch.bmm(given.features.unsqueeze(1), weights).squeeze(1)
        else:
            normal = self._rng.standard_normal((rows, self._bounds.size), np.float32)
            u = given.mean + given.std * self._tensor(normal)
        return self._stored(self._bounds.squashed(u))

    def _exploit(self, obs: dict[str, Tensor]) -> Array:
        return self._stored(self._bounds.squashed(self._network(obs).mean))

    def _noise_on_actions(self, rows: int, env_ix: Sequence[int]) -> Tensor:
        """(rows, d) noise on the actions of a deterministic policy, in half ranges."""
        if isinstance(self._noise, OrnsteinUhlenbeck):
            return self._tensor(self._noise.sample(env_ix or range(rows), self._rng).astype(np.float32))
        normal = self._rng.standard_normal((rows, self._bounds.size), np.float32)
        return self._tensor(self._config.noise_std * normal)

    def _stored(self, action: Tensor | Array) -> Array:
        """(rows, *shape) float32 within the bounds, whatever was rounded; NaN becomes the lower one."""
        rows = action.cpu().numpy() if isinstance(action, Tensor) else action
        inside = np.fmin(np.fmax(rows, self._low), self._high)
        return np.asarray(inside, np.float32).reshape(len(rows), *self._shape)

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self._weights.device)


class SacRule:
    """Implements `agents.learner.Rule`."""

    def __init__(self, nets: SacNets, rules: Rules, state: SacState, rng: np.random.Generator) -> None:
        self.state = state
        self.rng = rng
        self._nets = nets
        self._rules = rules
        self._networks = SacNetworks.over(nets, state)

    @property
    def outcome(self) -> Outcome:
        """Of the opt steps since the last record."""
        return self.state.outcome

    def opt_step(self, batch: TensorBatch, number: int) -> Tensor | None:
        """As of `Rule`."""
        due = number % self._rules.config.policy_interval == 0
        return opt_step(self._networks, self._rules, self.state, batch, self._draws(len(batch.action)), due)

    def update_targets(self, number: int) -> None:
        """As of `Rule`."""
        if number % self._rules.config.target_interval == 0:
            update_targets(self.state, self._rules.config.target_tau)

    def means(self, sums: Sequence[float], opt_steps: int) -> dict[str, float]:
        """As of `Rule`. The policy's are over the opt steps that changed it, and left out without one."""
        policy_steps = self.state.policy_steps.item()
        self.state.policy_steps.zero_()
        divisors = dict.fromkeys(SCALARS, float(opt_steps)) | dict.fromkeys(_OF_POLICY_STEPS, policy_steps)
        totals = zip(SCALARS, sums, strict=True)
        return {name: total / divisors[name] for name, total in totals if divisors[name]}

    def examine(self, batch: TensorBatch) -> dict[str, float]:
        """As of `Rule`: nothing."""
        del batch
        return {}

    def vectors(self) -> dict[str, tuple[FlatModule, Tensor]]:
        """As of `Rule`."""
        state, nets = self.state, self._nets
        found = {"critics_target": (nets.critics, state.critics_target)}
        if state.policy_target is not None:
            found["policy_target"] = (nets.policy, state.policy_target)
        for label, (net, trained) in self._trained().items():
            found[label] = (net, trained.weights)
            found[f"{label}_adam_mean"] = (net, trained.mean)
            found[f"{label}_adam_variance"] = (net, trained.variance)
        return found

    def counts(self) -> dict[str, Tensor]:
        """As of `Rule`."""
        counts = {f"{label}_adam_count": trained.count for label, (_, trained) in self._trained().items()}
        return counts | {POLICY_STEPS: self.state.policy_steps}

    def restart(self) -> None:
        """The targets become what the online networks are; the critics, which no model has, stay as they are."""
        update_targets(self.state, 1.0)

    def _trained(self) -> dict[str, tuple[FlatModule, Any]]:
        found = {
            "policy": (self._nets.policy, self.state.policy),
            "critics": (self._nets.critics, self.state.critics),
        }
        if self._nets.coef is not None and self.state.coef is not None:
            found["coef"] = (self._nets.coef, self.state.coef)
        return found

    def _draws(self, rows: int) -> StepDraws:
        size = (rows, self._rules.bounds.size)
        drawn = (torch.from_numpy(self.rng.standard_normal(size, np.float32)) for _ in range(2))
        return StepDraws(*(normal.to(self.state.critics_target.device) for normal in drawn))


def _lasting_noise(config: SacConfig, network: PolicyNetwork) -> LastingNoise | None:
    if config.exploration == "state_dependent":
        return StateDependentNoise((network.n_features, network.n_actions), config.noise_interval)
    if config.exploration == "ornstein_uhlenbeck":
        return OrnsteinUhlenbeck(network.n_actions, config.noise_std, config.noise_theta)
    return None
