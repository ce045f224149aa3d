"""What the agents of all families share: a policy acts, and an algorithm changes its weights.

The module of a family offers these functions, which a `Family` has; see `border_cli.agents.dqn.agent` for an example:

- `check_spec(config, spec)` raises UsageError if the agent cannot act in these spaces.
- `make_policy(config, spec, seed, actor, n_actors, incarnation)` returns the policy of an actor or an evaluation.
- `make_agent(config, spec, seed, device)` returns the agent that learns.
- `agent_bytes(config, spec)`, optional, returns the bytes of the model, and of the whole state of an agent.
- A policy with the method `act` of `NetworkPolicy` can act in a simulator (`trainer=device`).
- `extra_columns(config, spec)`, optional, returns the columns that the policy adds to each row (`ActingPolicy.extras`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from border_cli.agents.batch_renorm import BatchStats
from border_cli.agents.memory import STATE, SavedMemory
from border_cli.agents.nets import Encoder, numpy_network
from border_cli.agents.params import (
    AdamState,
    BatchLoader,
    FlatParams,
    LearnerState,
    StepStats,
    TensorBatch,
    clip_norm_,
    polyak_,
)
from border_cli.config.registry import AGENTS
from border_cli.core.errors import IncompatibleStateError, UsageError
from border_cli.core.metrics import Record, declare
from border_cli.core.protocols import ReplayBuffer
from border_cli.core.spaces import Array, EnvSpec, Obs
from border_cli.core.state import State, check_like
from border_cli.core.types import ModelInfo, Step
from border_cli.runtime import seeding

Networks = Mapping[str, Any]
"""Bound networks by name, of `Algorithm.bind`."""
declare("agent/lr", "rate", "learning rate of the last opt step, where a schedule lowers it")


class NetworkPolicy(ABC):
    """Implements `core.protocols.ActingPolicy` except for the choice of actions.

    Args:
        params: (n,) its parameters, used in place: the policy of an agent acts with the parameters that it learns.
        actor, incarnation: with the seed they determine the random generator of exploration. Evaluation has its own
            generator, which depends on the seed alone and restarts with each `eval`.
        shared: whether an algorithm changes the parameters too. Otherwise only `sync_model` does.

    seen: the spec without the parts of the observation that only critics see.
    """

    def __init__(
        self,
        layout: FlatParams,
        params: Tensor,
        config: Any,
        spec: EnvSpec,
        seed: int,
        actor: int = 0,
        n_actors: int = 1,
        incarnation: int = 0,
        shared: bool = False,
    ) -> None:
        self.params = params
        self._config = config
        self.spec, self.seed = spec, seed
        self._mask = spec.mask
        self.seen = spec.without(getattr(config, "privileged_obs", ()))
        self._shared = shared
        self._views: tuple[dict[str, Array], Array] | None = None  # of parameters on the CPU
        self.version = 0
        self._layout = layout
        self._network = layout.bind(params)
        self._arrays = numpy_network(self._network)
        self._rng = seeding.generator(seed, seeding.ACTOR, actor, incarnation, 1)
        self._eval_rng = seeding.generator(seed, seeding.EVALUATION_POLICY)
        self._exploring = True
        units = getattr(config, "gru", None)
        self._memory = None if units is None else SavedMemory(units)
        self._prepare(spec, actor, n_actors)

    def _prepare(self, spec: EnvSpec, actor: int, n_actors: int) -> None:  # noqa: B027
        """The rest of the initialisation, where a subclass has more."""

    def sample(self, obs: Obs, env_steps: int = 0, env_ix: Sequence[int] = ()) -> Array:
        if self._memory is None:
            return self._explore(obs, env_steps, env_ix) if self._exploring else self._exploit(obs)
        self._memory.select(env_ix or range(len(next(iter(obs.values())))))
        action = self._explore(obs, env_steps, env_ix) if self._exploring else self._exploit(obs)
        self._memory.keep()
        return action

    @abstractmethod
    def _explore(self, obs: Obs, env_steps: int, env_ix: Sequence[int]) -> Array:
        """Actions in train mode; random numbers come from `_rng`."""

    @abstractmethod
    def _exploit(self, obs: Obs) -> Array:
        """Actions in eval mode; random numbers, if any, come from `_eval_rng`."""

    def act(self, obs: dict[str, Tensor], env_steps: int) -> Tensor:
        """As `sample` in train mode, of tensors on the device: {name: (B, ...)} of environments 0 … B - 1 → (B, ...)."""
        raise NotImplementedError

    @property
    def network(self) -> nn.Module:
        """The network that it acts with."""
        return self._network

    def decide(self, obs: dict[str, Tensor], state: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The greedy action of each row as a function of tensors, for exports: {name: (B, ...)} as stored → (B, ...).

        state: (B, units) of the memory of a recurrent network. Its state after the time step is returned too.
        """
        raise NotImplementedError

    @property
    def memory_units(self) -> int | None:
        """Units of the memory; None without one."""
        return None if self._memory is None else self._memory.units

    def extras(self, step: Step) -> dict[str, Array]:
        """The states of the memory before the observations, if there is one; a subclass may add columns."""
        return {} if self._memory is None else {STATE: self._memory.before}

    def begin_episode(self, env_ix: int) -> None:
        """Forget what is remembered of an environment."""
        if self._memory is not None:
            self._memory.begin_episode(env_ix)

    def train(self) -> None:
        self._exploring = True

    def eval(self) -> None:
        """Act greedily from now on."""
        self._exploring = False
        self._eval_rng = seeding.generator(self.seed, seeding.EVALUATION_POLICY)

    def model_info(self) -> ModelInfo:
        if self._views is None or self.params.device.type != "cpu":
            params = self.params.detach().cpu()
            parts = self._layout.unflatten(params)
            self._views = {name: part.numpy() for name, part in parts.items()}, params.numpy()
        return ModelInfo(self.version, *self._views)

    def sync_model(self, info: ModelInfo) -> None:
        """Copy the parameters. Raises ValueError if names or shapes differ."""
        parts = self._layout.unflatten(self.params)
        expected = {name: tuple(part.shape) for name, part in parts.items()}
        received = {name: tuple(array.shape) for name, array in info.arrays.items()}
        if expected != received:
            raise ValueError(f"the network has {expected}, the model {received}")
        if info.vector is None:
            copy_arrays(parts, info.arrays)
        else:
            self.params.copy_(torch.from_numpy(info.vector))
        if self._arrays is not None and not self._shared:
            self._arrays.copy_params()
        self.version = info.version

    def generator_state(self) -> dict[str, Any]:
        memory = {} if self._memory is None else {"memory": self._memory.state()}
        return dict(self._rng.bit_generator.state) | memory

    def load_generator_state(self, state: dict[str, Any]) -> None:
        if self._memory is not None:
            kinds = dict.fromkeys(NetworkPolicy.generator_state(self))
            check_like(State({}, {"policy": state}), State({}, {"policy": kinds}), "the generators")
            self._memory.load_state(state["memory"])
            state = {name: value for name, value in state.items() if name != "memory"}
        seeding.restore(self._rng, state)


def copy_arrays(tensors: Mapping[str, Tensor], arrays: Mapping[str, Array]) -> None:
    """Copy arrays into the tensors of the same names."""
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(torch.from_numpy(np.array(arrays[name])))


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

    Args:
        networks: those that Adam trains, by name.
        seed: the run's; it determines `rng`, the random generator of the opt steps.

    Attributes:
        state: everything that an opt step reads and changes.
        layouts: by the names of networks and target networks.
        networks: `bind(state)`.
        graphs: compiled forms of `step`, by variant; see `border_cli.agents.graph`. Empty: every opt step is eager.
    """

    scalars: tuple[str, ...]
    """Names of the scalars that opt steps add to `stats`, "grad_norm" among them."""

    def __init__(
        self,
        config: Any,
        spec: EnvSpec,
        seed: int,
        networks: Mapping[str, nn.Module],
        device: torch.device,
    ) -> None:
        self.config, self.spec = config, spec
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
        self.networks = self.bind(self.state)
        if config.normalize_obs and not self.encoders(self.networks):
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

    @property
    def stats(self) -> StepStats:
        return self.state.stats

    def opt_step(self, batch: TensorBatch, number: int) -> Tensor | None:
        """Do opt step `number`, from 1, in place. Returns (B,) absolute errors of a batch with weights, else None."""
        noise, variant, lr_scale = (
            self.noise(len(batch.reward)), self.variant(number), self.config.lr_scale(number)
        )  # fmt: skip
        if variant in self.graphs:
            return self.graphs[variant](batch, noise, lr_scale)
        return self.step(self.networks, self.state, batch, noise, lr_scale, variant)

    def step(
        self,
        networks: Networks,
        state: LearnerState,
        batch: TensorBatch,
        noise: Any,
        lr_scale: float | Tensor,
        variant: int,
    ) -> Tensor | None:
        """Change the state in place by one opt step, without the update of the targets.

        Nothing but these arguments may be read that can change, and no value of a tensor may decide what is done, so that
        the step can be compiled.

        Args:
            networks: `bind(state)`.
            noise: from `noise`.
            lr_scale: factor of every learning rate; a scalar tensor while the step is compiled.
            variant: from `variant`.

        Returns:
            (B,) absolute errors if the batch has weights, else None.
        """
        if self.config.normalize_obs:
            update_statistics(self.encoders(networks), batch, getattr(self.config, "burn_in", 0))
        learned = self.learn(networks, state, batch, noise, variant)
        with torch.no_grad():
            skip = self._update(state, learned, lr_scale)
            self.after_update(networks, learned, skip)
        return learned.errors

    def encoders(self, networks: Networks) -> list[Encoder]:
        """The encoders of all networks that have one, in their attribute `encoder`."""
        return [network.encoder for network in networks.values() if hasattr(network, "encoder")]

    def bind(self, state: LearnerState) -> dict[str, nn.Module]:
        """Networks whose parameters are views of the vectors in a state, by name."""
        vectors = {name: adam.params for name, adam in state.nets.items()} | state.targets
        precision = self.config.precision
        return {name: self.layouts[name].bind(vector, precision) for name, vector in vectors.items()}

    def noise(self, rows: int) -> Any:
        """New random numbers of one opt step for a batch of `rows`: None, or a dataclass of tensors, from `rng`."""
        del rows

    def variant(self, number: int) -> int:
        """Which form opt step `number` has: what differs between forms is not decided by tensors."""
        del number
        return 0

    @abstractmethod
    def learn(
        self, networks: Networks, state: LearnerState, batch: TensorBatch, noise: Any, variant: int
    ) -> Learned:
        """The losses of a batch and their gradients. The rules of `step` hold, and nothing is changed."""

    def _update(self, state: LearnerState, learned: Learned, lr_scale: float | Tensor) -> Tensor:
        """Clip the gradients, and do the steps of Adam. Returns a scalar, 1 if nothing has changed.

        That is so if a scalar is not finite.
        """
        config, gradients = self.config, learned.gradients
        norms = [clip_norm_(gradient, config.max_grad_norm) for gradient in gradients.values()]
        scalars = learned.scalars | {"grad_norm": norms[0] if len(norms) == 1 else torch.stack(norms).norm()}
        skip = state.stats.add([scalars.get(name) for name in self.scalars])
        for name, gradient in gradients.items():
            state.nets[name].update(gradient, self.lr(name) * lr_scale, config.adam_eps, skip)
        return skip

    def after_update(self, networks: Networks, learned: Learned, skip: Tensor) -> None:
        """What happens after the steps of Adam, such as a projection of weights. skip: scalar; if 1, change nothing."""
        if learned.stats is not None:
            learned.stats.apply(skip)

    def lr(self, network: str) -> float:
        """The learning rate of a network, before the schedule."""
        del network
        return float(self.config.lr)

    def update_targets(self, number: int) -> None:
        """Update the target networks if it is due after opt step `number`."""
        if number % self.config.target_interval == 0:
            self._move_targets(self.config.target_tau)

    def reset_targets(self) -> None:
        """Copy the networks to their targets. Called after parameters were replaced."""
        self._move_targets(1.0)

    def _move_targets(self, tau: float) -> None:
        for name, source in self.target_of.items():
            polyak_(self.state.targets[name], self.state.nets[source].params, tau)

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
        self.reset_targets()

    def batch_metrics(self, batch: TensorBatch) -> dict[str, float]:
        """Metrics of the last batch that only records need. Changes no state and draws no random numbers."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        return self.state.tensors(self.layouts)


@torch.no_grad()
def update_statistics(encoders: Sequence[Encoder], batch: TensorBatch, burn_in: int = 0) -> None:
    """Update the statistics of observations of one encoder and copy them to the others, so that all have the same.

    A batch with a number that is not finite changes nothing. Nothing is read back from the device.
    """
    # Critics may see more than the policy.
    widest = max(encoders, key=lambda encoder: len(encoder.normalized))
    obs, next_obs, valid = batch.obs, batch.next_obs, batch.extra.get("is_valid")
    if valid is not None:  # of the rows of sequences
        next_obs = {name: rows.flatten(0, 1) for name, rows in obs.items()}
        obs = {name: rows[:, burn_in : burn_in + valid.shape[1]].flatten(0, 1) for name, rows in obs.items()}
    before, after = widest.statistics(), widest.updated_statistics(obs, valid)
    numbers = [batch.reward, *(next_obs[name] for name in widest.normalized), *after]
    total = torch.stack([part.sum().float() for part in numbers]).sum()
    is_finite = total - total == 0.0  # half of the time of isfinite
    for old, new in zip(before, after, strict=True):
        old.copy_(torch.where(is_finite, new, old))
    own = dict(zip(widest.normalized, widest.normalizers, strict=True))
    for other in encoders:
        if other is not widest:
            for name, part in zip(other.normalized, other.normalizers, strict=True):
                for copied, tensor in zip(part.buffers(), own[name].buffers(), strict=True):
                    copied.copy_(tensor)


_SKIP_CHECK_INTERVAL = 100
"""Opt steps between two reads of `skipped_in_a_row` on a GPU, where reading waits for the device."""


class NetworkAgent:
    """Implements `core.protocols.Agent` by a policy and an algorithm that share the policy's parameters.

    compiling: called with each batch before the opt step until it returns True; it may set `algorithm.graphs`.
    """

    def __init__(self, policy: NetworkPolicy, algorithm: Algorithm, batch_size: int) -> None:
        self.policy = policy
        self.algorithm = algorithm
        self.opt_steps = 0
        self.skipped_in_a_row = 0
        self.compiling: Callable[[TensorBatch], bool] | None = None
        self._unread = 0  # opt steps since the last record
        self._device = policy.params.device
        self._batches = BatchLoader(batch_size, self._device)
        self.sample, self.extras, self.begin_episode = policy.sample, policy.extras, policy.begin_episode
        self.train, self.eval, self.model_info = policy.train, policy.eval, policy.model_info

    def opt(self, buffer: ReplayBuffer, record: bool = False) -> Record | None:
        batch = self._batches.next(buffer)
        if self.compiling is not None and self.compiling(batch):
            self.compiling = None
        interval = self.algorithm.config.reset_interval
        if interval is not None and self.opt_steps and self.opt_steps % interval == 0:
            self._reset(self.opt_steps // interval)
        errors = self.algorithm.opt_step(batch, self.opt_steps + 1)
        self.opt_steps += 1
        self.policy.version = self.opt_steps
        self._unread += 1
        self.algorithm.update_targets(self.opt_steps)
        if errors is not None and self._batches.last is not None:
            ix, values = self._batches.last.ix, errors.cpu().numpy()
            known = np.isfinite(values)
            buffer.update_priority(*((ix, values) if known.all() else (ix[known], values[known])))
        if record or self._device.type == "cpu" or self.opt_steps % _SKIP_CHECK_INTERVAL == 0:
            self.skipped_in_a_row = int(self.algorithm.stats.skipped_in_a_row.item())
        return self._read(batch) if record else None

    def _reset(self, number: int) -> None:
        """Draw all networks anew (Nikishin et al., 2022), moments included, and copy them to the targets.

        An opt step begins with it, so that models that were trained up to the reset are evaluated and saved.
        """
        config, policy = self.algorithm.config, self.policy
        seed = seeding.integer(policy.seed, *seeding.RESET, number)
        fresh = AGENTS[config.type].load().make_agent(config, policy.spec, seed, str(self._device))
        self.algorithm.reset_to(fresh.algorithm)

    def take_record(self) -> Record | None:
        return self._read() if self._unread else None

    def _read(self, batch: TensorBatch | None = None) -> Record:
        """Means over the opt steps since the last record that were not skipped. batch: add its own metrics."""
        means, skipped = self.algorithm.stats.read()
        self._unread = 0
        values = {"agent/skipped_steps": float(skipped)}
        for name, mean in zip(self.algorithm.scalars, means, strict=True):
            if mean is not None:
                values[f"agent/{name}"] = mean
        config = self.algorithm.config
        if config.lr_schedule != "constant":
            values["agent/lr"] = config.lr * config.lr_scale(self.opt_steps)
        return Record(values if batch is None else values | self.algorithm.batch_metrics(batch))

    def check_finite(self) -> bool:
        return all(bool(torch.isfinite(tensor).all()) for tensor in self.algorithm.tensors().values())

    def state(self) -> State:
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in self.algorithm.tensors().items()}
        return State(arrays, {"opt_steps": self.opt_steps, "unread": self._unread})

    def nbytes(self) -> tuple[int, int]:
        """Bytes of the model and of the whole state. Reads no values, so it works on torch's meta device."""
        return self.policy.params.nbytes, sum(t.nbytes for t in self.algorithm.tensors().values())

    def load_state(self, state: State) -> None:
        check_like(state, self.state(), "the agent")
        if not np.isfinite(state.arrays["stats.skipped_in_a_row"]):
            raise IncompatibleStateError("the number of skipped opt steps in a row is not finite")
        copy_arrays(self.algorithm.tensors(), state.arrays)
        self.opt_steps = self.policy.version = state.values["opt_steps"]
        self._unread = state.values["unread"]
        self.skipped_in_a_row = int(self.algorithm.stats.skipped_in_a_row.item())

    def generator_state(self) -> dict[str, Any]:
        learning = dict(self.algorithm.rng.bit_generator.state)
        return {"policy": self.policy.generator_state(), "learning": learning}

    def load_generator_state(self, state: dict[str, Any]) -> None:
        kinds = {"agent": {"policy": None, "learning": None}}
        check_like(State({}, {"agent": state}), State({}, kinds), "the generators")
        seeding.restore(self.algorithm.rng, state["learning"])
        self.policy.load_generator_state(state["policy"])

    def sync_model(self, info: ModelInfo) -> None:
        """Start from these parameters, targets included. The count of opt steps does not change."""
        self.policy.sync_model(info)
        self.policy.version = self.opt_steps
        self.algorithm.reset_targets()

    def load_networks(self, arrays: Mapping[str, Array]) -> list[str]:
        self.algorithm.reset_targets()
        state, networks = self.algorithm.state, dict[str, dict[str, Tensor]]()
        for name, tensor in self.algorithm.tensors().items():
            network = name.partition(".")[0]
            is_other = ".params." in name and state.nets[network].params is not self.policy.params
            if is_other or network in state.targets:
                networks.setdefault(network, {})[name] = tensor
        missing = []
        for network, tensors in sorted(networks.items()):
            saved = {name: arrays[name] for name in tensors if name in arrays}
            if saved:
                fresh = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
                check_like(State(saved), State(fresh), network)
                copy_arrays(tensors, saved)
            elif network not in state.targets:
                missing.append(network)
        return missing


@dataclass(frozen=True)
class Family:
    """What the agents of a module consist of, and from it the functions that such a module offers.

    network: makes the network that acts · others: the other networks that Adam trains, by name; both get spec,
    configuration and random generator · acting: name of the network that acts.
    """

    check_spec: Callable[[Any, EnvSpec], None]
    policy: Callable[..., NetworkPolicy]
    algorithm: Callable[..., Algorithm]
    network: Callable[..., nn.Module]
    others: Callable[..., dict[str, nn.Module]] = lambda *_: {}
    acting: str = "policy"

    def make_policy(
        self, config: Any, spec: EnvSpec, seed: int, actor: int = 0, n_actors: int = 1, incarnation: int = 0
    ) -> Any:
        """The policy of an actor or an evaluation."""
        layout = FlatParams(self.network(spec, config, torch.Generator().manual_seed(0)))
        return self.policy(layout, layout.init(), config, spec, seed, actor, n_actors, incarnation)

    def make_agent(self, config: Any, spec: EnvSpec, seed: int, device: str = "cpu") -> NetworkAgent:
        """A new agent. seed: the run's."""
        self.check_spec(config, spec)
        generator = torch.Generator().manual_seed(seeding.integer(seed, seeding.AGENT))
        networks = {self.acting: self.network(spec, config, generator)}
        networks |= self.others(spec, config, generator)
        algorithm = self.algorithm(config, spec, seed, networks, torch.device(device))
        params = algorithm.state.nets[self.acting].params
        policy = self.policy(algorithm.layouts[self.acting], params, config, spec, seed, shared=True)
        return NetworkAgent(policy, algorithm, config.batch_size)

    def agent_bytes(self, config: Any, spec: EnvSpec) -> tuple[int, int]:
        """Bytes of the model, and of the whole state of an agent."""
        with torch.device("meta"):  # no memory is allocated
            return self.make_agent(config, spec, 0, "meta").nbytes()
