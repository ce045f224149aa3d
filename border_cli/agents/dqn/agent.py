"""The value-based family: the policy that acts, and the algorithm that trains its network."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from border_cli.agents.agent import Algorithm, NetworkAgent, NetworkPolicy, bytes_by, policy_maker
from border_cli.agents.branches import ArrayMask, mask_actions
from border_cli.agents.dqn import loss
from border_cli.agents.dqn.config import DqnConfig
from border_cli.agents.dqn.network import NO_NOISE, Noise, QNetwork
from border_cli.agents.memory import memory_columns
from border_cli.agents.nets import Encoder, to_tensors
from border_cli.agents.params import FlatParams, TensorBatch, polyak_
from border_cli.core.errors import UsageError
from border_cli.core.metrics import declare
from border_cli.core.spaces import Array, EnvSpec, Obs
from border_cli.runtime import seeding
from border_cli.runtime.tensors import to_device

declare("agent/loss", "", "mean loss of the TD error")
declare("agent/q_mean", "reward", "mean value of the actions in the batches")
declare("agent/target_mean", "reward", "mean TD target")
declare("agent/grad_norm", "", "mean gradient norm before clipping")
declare("agent/target_clipped", "", "share of the last batch's TD targets outside [v_min, v_max]")

_MAX_CLIPPED = 0.5
"""A larger share of clipped targets is logged: the range of the atoms is too narrow. An untrained network has less."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EpsilonSchedule:
    """ε of ε-greedy exploration: linear from `start` at env step 0 to `final` at `env_steps`, then to the `power`."""

    start: float
    final: float
    env_steps: int
    power: float = 1.0

    def __call__(self, env_steps: int) -> float:
        share = min(env_steps / self.env_steps, 1.0)
        return float((self.start + share * (self.final - self.start)) ** self.power)


def epsilon_schedule(config: DqnConfig, actor: int, n_actors: int) -> EpsilonSchedule:
    """The schedule of one actor; ε is 0 if only noisy layers explore.

    On the ladder of Ape-X (Horgan et al., 2018) the power of actor i is 1 + α·i/(n - 1).
    """
    if config.exploration == "none":
        return EpsilonSchedule(0.0, 0.0, 1)
    power = 1.0
    if config.epsilon_ladder is not None and n_actors > 1:
        power += config.epsilon_ladder * actor / (n_actors - 1)
    return EpsilonSchedule(config.epsilon_start, config.epsilon_final, config.epsilon_env_steps, power)


def epsilon_greedy(values: Array, epsilon: float, rng: np.random.Generator, masked: bool) -> Array:
    """(B,) the best action of each row, or with probability ε a random allowed one; without ε nothing is drawn.

    Args:
        values: (B, n), -inf for forbidden actions. Rows in which every action is forbidden count as free.
        masked: whether there may be forbidden actions.
    """
    best: Array = values.argmax(1)
    if epsilon == 0.0:
        return best
    random = (rng.random(len(best)) < epsilon).nonzero()[0]
    if len(random):  # usually none
        share = rng.random(len(random))  # `integers` takes five times as long
        if masked:
            forbidden = values[random] == -np.inf
            allowed = ~forbidden | forbidden.all(1, keepdims=True)
            drawn = (share * allowed.sum(1)).astype(np.int64)
            best[random] = (allowed.cumsum(1) > drawn[:, None]).argmax(1)  # the drawn-th allowed one, from 0
        else:
            best[random] = (share * values.shape[1]).astype(np.int64)
    return best


def check_spec(config: DqnConfig, spec: EnvSpec) -> None:
    """Raise UsageError unless the actions are discrete."""
    if spec.action.kind == "multi_discrete" and config.gru is not None:
        raise UsageError(
            "agent.gru is not for several discrete actions at once", allowed="env.wrappers=[FlattenActions]"
        )
    if spec.action.kind == "box":
        n = math.prod(spec.action.shape)
        raise UsageError(
            f"agent={config.type} chooses among discrete actions, and this environment takes {n} number{'s' * (n != 1)}",
            nearest="agent=sac",
            allowed="agent=sac, td3 or tqc, or an environment with a Discrete action space",
        )


def make_agent(
    config: DqnConfig,
    spec: EnvSpec,
    seed: int,
    device: str = "cpu",
    algorithm: Callable[..., DqnAlgorithm] | None = None,
) -> NetworkAgent:
    """A new agent. seed: the run's · algorithm: `DqnAlgorithm`, or a class derived from it."""
    check_spec(config, spec)
    generator = torch.Generator().manual_seed(seeding.integer(seed, seeding.AGENT))
    layout = FlatParams(QNetwork(spec, config, generator))
    state = loss.DqnState.init(layout, layout.init().to(torch.device(device)), config.adam_beta1)
    policy = DqnPolicy(layout, state.online.params, config, spec, seed, shared=True)
    learning = (algorithm or DqnAlgorithm)(layout, state, config, spec, seed)
    return NetworkAgent(policy, learning, config.batch_size)


agent_bytes = bytes_by(make_agent)
extra_columns = memory_columns


class DqnPolicy(NetworkPolicy):
    """Acts by the Q-network. In eval mode it is greedy up to `eval_epsilon`, and the network has no noise."""

    def _prepare(self, spec: EnvSpec, actor: int, n_actors: int) -> None:
        self._head = loss.make_head(self._config)
        self._epsilon = epsilon_schedule(self._config, actor, n_actors)
        self._noise_size = cast(QNetwork, self._network).noise_size
        self._masked = ArrayMask(spec.action, self._mask)
        self._shape, self._n, self._d = self._masked.shape, spec.action.n, len(spec.action.branches)

    def action_values(self, obs: Obs, noise: Noise = NO_NOISE, env_ix: Sequence[int] | None = None) -> Array:
        """(B, n) expected returns, -inf for forbidden actions, or (B, D, n) of D actions at once.

        env_ix: the environments that a memory remembers; None: those of the last `sample`, before it.
        """
        outputs = self._outputs(obs, noise, env_ix)
        if isinstance(self._head, loss.ScalarHead):
            values: Array = outputs[:, :, 0]
        else:
            with torch.inference_mode():
                values = self._head.values(torch.from_numpy(outputs)).numpy()
        values = self._masked(values, obs)
        return values.reshape(-1, self._d, self._n) if self._shape else values

    def _outputs(self, obs: Obs, noise: Noise = NO_NOISE, env_ix: Sequence[int] | None = None) -> Array:
        """(B, n, k) outputs of the network; see `action_values`."""
        if self._memory is not None and env_ix is not None:
            self._memory.select(env_ix)
        outputs: Array
        state, after = None if self._memory is None else self._memory.before, None
        if self._arrays is not None:
            normal = None if noise.normal is None else noise.normal.numpy()
            with np.errstate(over="ignore", invalid="ignore"):  # as torch
                outputs, _, after = self._arrays(obs, normal, state)
        else:
            network, tensors = cast(QNetwork, self._network), to_tensors(obs, self.params.device)
            with torch.inference_mode():
                if state is None:
                    outputs, after = network(tensors, noise).cpu().numpy(), None
                else:
                    before = torch.from_numpy(state).to(self.params.device)
                    outputs, after = (part.cpu().numpy() for part in network.remember(tensors, before, noise))
        if self._memory is not None and after is not None:
            self._memory.after = after
        return outputs.reshape(-1, self._n, outputs.shape[-1]) if self._shape else outputs

    def decide(self, obs: dict[str, Tensor], state: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """(B,) int64, the best allowed action, (B, *shape) for several at once; without noise in the network."""
        network = cast(QNetwork, self._network)
        outputs, after = (network(obs), None) if state is None else network.remember(obs, state)
        values = mask_actions(self._head.values(outputs), obs, self._mask, network.branches)
        return values.argmax(1).reshape(-1, *self._shape), after

    @property
    def is_categorical(self) -> bool:
        """Whether the network learns the probabilities of fixed returns."""
        return isinstance(self._head, loss.CategoricalHead)

    @property
    def atoms(self) -> Array:
        """(k,) the returns of a categorical head."""
        atoms: Array = cast(loss.CategoricalHead, self._head).atoms.cpu().numpy()
        return atoms

    def action_quantiles(self, obs: Obs, env_ix: Sequence[int] | None = None) -> Array:
        """(B, n, k) quantiles of the return, (B, D, n, k) of D actions at once.

        Raises ValueError if the network does not learn quantiles.
        """
        if not isinstance(self._head, loss.QuantileHead):
            raise ValueError("the network of this agent has no quantiles\nallowed: agent=qrdqn or iqn")
        outputs = self._outputs(obs, env_ix=env_ix)
        shape = (self._d, self._n, outputs.shape[2])
        return outputs.reshape(-1, *shape) if self._shape else outputs

    def _explore(self, obs: Obs, env_steps: int, env_ix: Sequence[int]) -> Array:
        noise = NO_NOISE
        if self._noise_size:
            noise = Noise(normal=_normal(self._rng, self._noise_size, self.params.device))
        values = self.action_values(obs, noise)
        return self._chosen(values, self._epsilon(env_steps), self._rng)

    @torch.no_grad()
    def act(self, obs: dict[str, Tensor], env_steps: int) -> Tensor:
        """(B,) int64, ε-greedy, or (B, *shape) for several actions at once."""
        device, noise = self.params.device, NO_NOISE
        if self._noise_size:
            noise = Noise(normal=_normal(self._rng, self._noise_size, device))
        network = cast(QNetwork, self._network)
        values = self._head.values(network(obs, noise))
        values = mask_actions(values, obs, self._mask, network.branches)
        best, epsilon = values.argmax(1), self._epsilon(env_steps)
        if epsilon == 0.0:
            return best.reshape(-1, *self._shape)
        numbers = to_device(self._rng.random((len(best), values.shape[1] + 1), np.float32), device)
        # The largest of independent uniform numbers is a uniform draw among the allowed actions.
        drawn = numbers[:, 1:].masked_fill(values == -torch.inf, -1.0).argmax(1)
        return torch.where(numbers[:, 0] < epsilon, drawn, best).reshape(-1, *self._shape)

    @property
    def eval_epsilon(self) -> float:
        """The probability of a random action in eval mode."""
        return float(self._config.eval_epsilon)

    def _exploit(self, obs: Obs) -> Array:
        values = self.action_values(obs)
        return self._chosen(values, self.eval_epsilon, self._eval_rng)

    def _chosen(self, values: Array, epsilon: float, rng: np.random.Generator) -> Array:
        """(B, *shape) actions by their values; each of several at once explores for itself."""
        if not self._shape:
            return epsilon_greedy(values, epsilon, rng, self._masked.is_needed)
        flat = values.reshape(-1, self._n)
        return epsilon_greedy(flat, epsilon, rng, self._masked.is_needed).reshape(-1, *self._shape)


make_policy = policy_maker(DqnPolicy, QNetwork)


class DqnAlgorithm(Algorithm):
    """Double DQN (van Hasselt et al., 2016) with the extensions that the configuration selects."""

    config: DqnConfig
    state: loss.DqnState
    scalars = loss.SCALARS

    def __init__(
        self, layout: FlatParams, state: loss.DqnState, config: DqnConfig, spec: EnvSpec, seed: int
    ) -> None:
        super().__init__(config, state, {"online": layout, "target": layout}, seed)
        self._mask = spec.mask
        self._head = loss.make_head(config)
        self._noise_size = cast(QNetwork, self.networks.online).noise_size
        self._warned = False
        if config.gru is not None and type(self).targets is not DqnAlgorithm.targets:
            raise UsageError(
                f"agent={config.type} has targets of its own, for rows", allowed="agent.gru=null"
            )

    def targets(self, networks: loss.DqnNetworks, batch: TensorBatch, noise: loss.StepNoise) -> Tensor:
        """(B, k) TD targets. A variant of DQN overrides it."""
        return loss.td_targets(networks, self._head, self.config, batch, noise, self._mask)

    def bind(self, state: loss.DqnState) -> loss.DqnNetworks:
        return loss.DqnNetworks.bind(self._layouts["online"], state, self.config.precision)

    def learn(
        self,
        networks: loss.DqnNetworks,
        state: loss.DqnState,
        batch: TensorBatch,
        noise: loss.StepNoise,
        lr_scale: float | Tensor,
        variant: int,
    ) -> Tensor | None:
        del variant
        parts = (networks, self._head, self.config, state, batch, noise)
        return loss.opt_step(*parts, self._mask, lr_scale, self.targets)

    def update_targets(self, number: int) -> None:
        if number % self.config.target_interval == 0:
            polyak_(self.state.target, self.state.online.params, self.config.target_tau)

    def reset_targets(self) -> None:
        polyak_(self.state.target, self.state.online.params, 1.0)

    def encoders(self, networks: loss.DqnNetworks) -> Sequence[Encoder]:
        return [cast(QNetwork, network).encoder for network in (networks.online, networks.target)]

    def batch_metrics(self, batch: TensorBatch) -> dict[str, float]:
        """The share of targets that a categorical head clips. Logs a warning, once, if it is large."""
        if not isinstance(self._head, loss.CategoricalHead) or self.config.gru is not None:
            return {}
        share = loss.mean_share_clipped(self.networks, self._head, self.config, batch, self._mask)
        low, high = self._head.atoms[[0, -1]].tolist()
        if not math.isfinite(share):  # the opt step of this batch was skipped
            return {}
        if share > _MAX_CLIPPED and not self._warned:
            self._warned = True
            _logger.warning(
                "%.0f%% of the TD targets lie outside the range %g … %g and are clipped; set agent.v_min and agent.v_max "
                "to the smallest and the largest discounted return",
                100 * share,
                low,
                high,
            )
        return {"agent/target_clipped": share}

    def noise(self, rows: int) -> loss.StepNoise:
        """See `Algorithm`: noise for all three passes, quantile levels for the two that are compared."""
        config, device = self.config, self.state.target.device
        is_implicit = config.head == "implicit_quantile"
        if not self._noise_size and not is_implicit:
            return loss.NO_STEP_NOISE
        taus: list[Tensor | None] = [None, None, None]
        if is_implicit:
            for i, n in enumerate((config.quantiles, config.target_quantiles)):
                taus[i] = to_device(self.rng.random((rows, n), np.float32), device)
        normals: list[Tensor | None] = [None, None, None]
        if self._noise_size:
            normals = list(_normal(self.rng, 3 * self._noise_size, device).split(self._noise_size))
        return loss.StepNoise(*(Noise(tau, normal) for tau, normal in zip(taus, normals, strict=True)))


def _normal(rng: np.random.Generator, n: int, device: torch.device) -> Tensor:
    return to_device(rng.standard_normal(n, np.float32), device)
