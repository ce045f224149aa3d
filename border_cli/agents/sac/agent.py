"""The actor-critic family: the policy that acts, and the algorithm that trains it and its critics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from border_cli.agents.agent import Algorithm, NetworkAgent, NetworkPolicy, bytes_by, policy_maker
from border_cli.agents.config import ActorCriticConfig
from border_cli.agents.memory import STATE, memory_columns
from border_cli.agents.nets import Encoder, to_tensors
from border_cli.agents.params import FlatParams, TensorBatch
from border_cli.agents.sac import loss
from border_cli.agents.sac.config import SacConfig
from border_cli.agents.sac.network import (
    Critics,
    EntropyCoefficient,
    PolicyNetwork,
    TanhBijector,
)
from border_cli.core.errors import UsageError
from border_cli.core.spaces import Array, EnvSpec, Obs
from border_cli.core.state import State, check_like
from border_cli.runtime import seeding
from border_cli.runtime.tensors import to_device


def check_spec(config: SacConfig, spec: EnvSpec) -> None:
    """Raise UsageError unless the actions are a box."""
    if spec.action.kind != "box":
        raise UsageError(
            f"agent={config.type} needs a continuous action space, and this one has discrete actions",
            nearest="agent=dqn",
            allowed="agent=dqn, c51, qrdqn, iqn or rainbow, or an environment with a Box action space",
        )
    if not spec.action.low:
        raise UsageError(
            f"agent={config.type}: the environment's actions have no component", allowed="at least one"
        )


@dataclass(frozen=True)
class Parts:
    """What an actor-critic agent is made of. check_spec: raises UsageError unless the agent can act in these spaces."""

    check_spec: Callable[[Any, EnvSpec], None]
    network: Callable[..., nn.Module]
    critics: Callable[..., nn.Module]
    policy: Callable[..., NetworkPolicy]
    algorithm: type[ActorCriticAlgorithm]


def make_agent(
    config: ActorCriticConfig, spec: EnvSpec, seed: int, device: str = "cpu", parts: Parts | None = None
) -> NetworkAgent:
    """A new agent. `seed` is the run's."""
    parts = parts or SAC
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
    state = loss.SacState.init(layouts, torch.device(device), config.adam_beta1, scalars)
    policy = parts.policy(layouts["policy"], state.policy.params, config, spec, seed, shared=True)
    return NetworkAgent(policy, parts.algorithm(layouts, state, config, spec, seed), config.batch_size)


agent_bytes = bytes_by(make_agent)
extra_columns = memory_columns


_MAX_SEED = 2**63 - 1


class StateDependentNoise:
    """A matrix of standard normal numbers per environment (gSDE, Raffin et al., 2021), saved as the seed that generates it.

    interval: env steps after which an environment gets a new matrix; None: only when an episode begins.
    """

    def __init__(self, shape: tuple[int, ...], interval: int | None = None) -> None:
        self._shape = shape
        self._interval = interval
        self._seeds: dict[int, int] = {}
        self._uses: dict[int, int] = {}
        self._matrices: dict[int, Array] = {}

    def begin_episode(self, env_ix: int) -> None:
        """The next `sample` draws a new matrix."""
        for by_env in (self._seeds, self._uses, self._matrices):
            by_env.pop(env_ix, None)

    def sample(self, env_ix: Sequence[int], rng: np.random.Generator) -> Array:
        """(k, *shape) float32 of these environments, for one env step."""
        for i in env_ix:
            if self._uses.get(i) == self._interval:
                self.begin_episode(i)
            if i not in self._seeds:
                self._seeds[i], self._uses[i] = int(rng.integers(0, _MAX_SEED)), 0
            if i not in self._matrices:
                generator = np.random.Generator(np.random.PCG64(self._seeds[i]))
                self._matrices[i] = generator.standard_normal(self._shape, np.float32)
            self._uses[i] += 1
        return np.stack([self._matrices[i] for i in env_ix])

    def state(self) -> dict[str, Any]:
        """The seed of each environment's matrix, and how often it was used, as JSON values."""
        return {str(i): [seed, self._uses[i]] for i, seed in sorted(self._seeds.items())}

    def load_state(self, state: Any) -> None:
        """Raises IncompatibleStateError unless the state is one of `state`."""
        lists = list(state.values()) if isinstance(state, dict) else state
        check_like(State({}, {"noise": lists}), State({}, {"noise": [[0, 0]]}), "the policy")
        self._seeds = {int(i): seed for i, (seed, _) in state.items()}
        self._uses = {int(i): uses for i, (_, uses) in state.items()}
        self._matrices = {}


class SacPolicy(NetworkPolicy):
    """Acts by the policy network: with noise in train mode, after uniform actions at first; by the mean in eval mode."""

    def _prepare(self, spec: EnvSpec, actor: int, n_actors: int) -> None:
        bijector = TanhBijector(spec.action)
        self._shape, self._bijector, self._size = spec.action.shape, bijector, bijector.size
        self._middle, self._half_range = bijector.arrays
        self._low, self._high = (np.array(b, np.float32) for b in (spec.action.low, spec.action.high))
        self._noise: Any = self._make_noise(cast(PolicyNetwork, self._network))

    def _make_noise(self, network: Any) -> Any:
        """What is kept of the exploration noise of each environment; None if each env step has noise of its own."""
        if self._config.exploration != "state_dependent":
            return None
        return StateDependentNoise(tuple(network.log_std.shape), self._config.noise_interval)

    def begin_episode(self, env_ix: int) -> None:
        super().begin_episode(env_ix)
        if self._noise is not None:
            self._noise.begin_episode(env_ix)

    def generator_state(self) -> dict[str, Any]:
        noise = {} if self._noise is None else {"noise": self._noise.state()}
        return super().generator_state() | noise

    def load_generator_state(self, state: dict[str, Any]) -> None:
        if self._noise is not None:
            kinds = dict.fromkeys(self.generator_state())
            check_like(State({}, {"policy": state}), State({}, {"policy": kinds}), "the generators")
            self._noise.load_state(state["noise"])
            state = {name: value for name, value in state.items() if name != "noise"}
        super().load_generator_state(state)

    def _explore(self, obs: Obs, env_steps: int, env_ix: Sequence[int]) -> Array:
        rows = len(next(iter(obs.values())))
        is_random = env_steps < self._config.random_env_steps
        if not is_random or self._memory is not None:  # a memory sees random steps too
            mean, std, features = self._action_parameters(obs)
        if is_random:
            share = self._rng.random((rows, self._size), np.float32)
            return self._inside(self._low * (1 - share) + self._high * share)
        if isinstance(self._noise, StateDependentNoise):
            matrices = self._noise.sample(env_ix or range(rows), self._rng)
            weights = matrices * cast(PolicyNetwork, self._network).weight_std().detach().cpu().numpy()
            return self._squashed(mean + np.einsum("bf,bfd->bd", features, weights))
        normal = self._normal(env_ix or range(rows))
        if self._config.policy == "gaussian":
            return self._squashed(mean + std * normal)
        # a deterministic policy: the noise is added to the action, in half ranges
        return self._scaled(np.clip(np.tanh(mean) + self._config.noise_std * normal, -1.0, 1.0))

    def _normal(self, env_ix: Sequence[int]) -> Array:
        """(k, d) float32 standard normal numbers: the exploration noise of these environments."""
        return self._rng.standard_normal((len(env_ix), self._size), np.float32)

    @torch.no_grad()
    def act(self, obs: dict[str, Tensor], env_steps: int) -> Tensor:
        """(B, *shape) float32."""
        device, size = self.params.device, (len(next(iter(obs.values()))), self._size)
        network = cast(PolicyNetwork, self._network)
        if env_steps < self._config.random_env_steps:
            x = 2.0 * to_device(self._rng.random(size, np.float32), device) - 1.0
        elif isinstance(self._noise, StateDependentNoise):
            of_action = network(obs)
            weights = to_device(self._noise.sample(range(size[0]), self._rng), device) * network.weight_std()
            x = torch.tanh(of_action.mean + torch.einsum("bf,bfd->bd", of_action.features, weights))
        else:
            of_action, normal = network(obs), to_device(self._normal(range(size[0])), device)
            if self._config.policy == "gaussian":
                x = torch.tanh(of_action.mean + of_action.std * normal)
            else:
                x = (torch.tanh(of_action.mean) + self._config.noise_std * normal).clamp(-1.0, 1.0)
        low, high = to_device(self._low, device), to_device(self._high, device)
        return self._bijector.to(device).scale(x).clamp(low, high).view(-1, *self._shape)

    def _exploit(self, obs: Obs) -> Array:
        return self._squashed(self._action_parameters(obs)[0])

    def decide(self, obs: dict[str, Tensor], state: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """(B, d) float32, the mean of the policy."""
        if state is not None:
            state = cast(PolicyNetwork, self._network).remember(obs, state)
            obs = {STATE: state}
        mean: Tensor = self._network(obs).mean
        return self._bijector.squash(mean), state

    def _action_parameters(self, obs: Obs) -> tuple[Array, Array, Array]:
        """Mean, std and features of `ActionParameters`, as arrays. A memory passes one time step."""
        network = cast(PolicyNetwork, self._network)
        if self._arrays is not None:
            state = None if self._memory is None else self._memory.before
            with np.errstate(over="ignore", invalid="ignore"):  # as torch
                out, features, after = self._arrays(obs, None, state)
                if self._memory is not None:
                    self._memory.after = after
                return network.parameters_of_arrays(out, features)
        with torch.inference_mode():
            tensors = to_tensors(obs, self.params.device)
            if self._memory is not None:
                before = torch.from_numpy(self._memory.before).to(self.params.device)
                after = network.remember(tensors, before)
                self._memory.after = after.cpu().numpy()
                tensors = {STATE: after}
            parameters = network(tensors)
        mean, std, features = (
            part.cpu().numpy() for part in (parameters.mean, parameters.std, parameters.features)
        )
        return mean, std, features

    def _squashed(self, u: Array) -> Array:
        """(B, d) unbounded numbers → actions (B, *shape), as `TanhBijector.squash`."""
        return self._scaled(np.tanh(u))

    def _scaled(self, x: Array) -> Array:
        """(B, d) numbers in [-1, 1] → actions (B, *shape)."""
        return self._inside(self._middle + self._half_range * x)

    def _inside(self, action: Array) -> Array:
        """(B, d) actions → (B, *shape) float32, clipped to the bounds after rounding; NaN becomes the lower bound."""
        inside = np.fmin(np.fmax(action, self._low), self._high)
        return np.asarray(inside, np.float32).reshape(len(action), *self._shape)


make_policy = policy_maker(SacPolicy, PolicyNetwork)


class ActorCriticAlgorithm(Algorithm):
    """Networks, targets and metrics of an agent with a policy and critics."""

    config: ActorCriticConfig
    state: loss.SacState
    scalars: tuple[str, ...] = loss.SCALARS

    def __init__(
        self,
        layouts: dict[str, FlatParams],
        state: loss.SacState,
        config: ActorCriticConfig,
        spec: EnvSpec,
        seed: int,
    ) -> None:
        super().__init__(config, state, layouts, seed)
        self.spec = spec
        self.variants = (1,) if config.policy_interval == 1 else (0, 1)

    def bind(self, state: loss.SacState) -> loss.SacNetworks:
        def bound(name: str, vector: Tensor) -> nn.Module:
            return self._layouts[name].bind(vector, self.config.precision)

        policy = bound("policy", state.policy.params)
        return loss.SacNetworks(
            policy,
            policy if state.policy_target is None else bound("policy", state.policy_target),
            bound("critics", state.critics.params),
            None if state.critics_target is None else bound("critics", state.critics_target),
            None if state.alpha is None else bound("alpha", state.alpha.params),
        )

    def encoders(self, networks: loss.SacNetworks) -> Sequence[Encoder]:
        every = (networks.policy, networks.policy_target, networks.critics, networks.critics_target)
        return [cast(PolicyNetwork | Critics, network).encoder for network in every if network is not None]

    def variant(self, number: int) -> int:
        """1 where the policy changes too."""
        return int(number % self.config.policy_interval == 0)

    def update_targets(self, number: int) -> None:
        if number % self.config.target_interval == 0:
            loss.update_targets(self.state, self.config.target_tau)

    def reset_targets(self) -> None:
        loss.update_targets(self.state, 1.0)

    def metrics(self, sums: Sequence[float], opt_steps: int) -> dict[str, float]:
        """See `Algorithm`. Means of the policy are over the opt steps that changed it, and are left out if none did."""
        policy_steps = self.state.policy_steps.item()
        self.state.policy_steps.zero_()
        divisors = dict.fromkeys(self.scalars, float(opt_steps)) | dict.fromkeys(
            ("policy_loss", "entropy"), policy_steps
        )
        totals = zip(self.scalars, sums, strict=True)
        return {name: total / divisors[name] for name, total in totals if divisors[name]}


class SacAlgorithm(ActorCriticAlgorithm):
    """SAC, TD3, TQC or CrossQ, as the configuration combines their parts."""

    config: SacConfig

    def __init__(
        self,
        layouts: dict[str, FlatParams],
        state: loss.SacState,
        config: SacConfig,
        spec: EnvSpec,
        seed: int,
    ) -> None:
        super().__init__(layouts, state, config, spec, seed)
        bijector = TanhBijector(spec.action).to(state.critics.params.device)
        self.constants = loss.SacConstants(config, bijector, self.target_entropy(bijector.n_free))

    def target_entropy(self, n: int) -> float:
        """The target entropy [nats] of n action dimensions, scaled to [-1, 1]."""
        return -float(n) if self.config.target_entropy is None else self.config.target_entropy

    def noise(self, rows: int) -> loss.StepNoise:
        sequences = getattr(self.config, "sequences", None)
        size = rows * (1 if sequences is None else sequences.length), self.constants.bijector.size
        device = self.state.critics.params.device
        action, next_action = (
            to_device(self.rng.standard_normal(size, np.float32), device) for _ in range(2)
        )
        subset = dropout = next_dropout = None
        config, p = self.config, self.config.critic_dropout
        if config.critic_subset is not None:
            subset = to_device(self.rng.permutation(config.critics)[: config.critic_subset], device)
        if p:
            shape = 2, config.critics, size[0], sum(config.critic_hidden or config.hidden)
            is_kept = self.rng.integers(0, 2**16, shape, np.uint16) >= round(p * 2**16)
            dropout, next_dropout = to_device(is_kept * np.float32(1.0 / (1.0 - p)), device)
        return loss.StepNoise(action, next_action, subset, dropout, next_dropout)

    def learn(
        self,
        networks: loss.SacNetworks,
        state: loss.SacState,
        batch: TensorBatch,
        noise: loss.StepNoise,
        lr_scale: float | Tensor,
        variant: int,
    ) -> Tensor | None:
        return loss.opt_step(networks, self.constants, state, batch, noise, variant == 1, lr_scale)


SAC = Parts(check_spec, PolicyNetwork, Critics, SacPolicy, SacAlgorithm)
