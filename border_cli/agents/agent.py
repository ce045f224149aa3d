"""An agent is a policy, which acts, and an algorithm, which changes its weights.

A module of agents offers these functions, of which a `Family` has the first four; `border_cli.agents.dqn.agent` is one:

- `check_spec(config, spec)` raises UsageError if the agent cannot act in these spaces.
- `make_policy(config, spec, seed, actor, n_actors, incarnation)` returns the policy of an actor or an evaluation.
- `make_agent(config, spec, seed, device)` returns the agent that learns.
- `agent_bytes(config, spec)`, optional, returns the bytes of the model, and of the whole state of an agent.
- `extra_columns(config, spec)`, optional, returns the columns that the policy adds to each row (`ActingPolicy.extras`).

A `NetworkPolicy` can also act in a simulator (`trainer=device`), and be exported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from border_cli.agents.algorithm import Algorithm, copy_statistics
from border_cli.agents.params import BatchLoader, FlatParams, TensorBatch
from border_cli.agents.policy import NetworkPolicy, copy_arrays
from border_cli.config.registry import AGENTS
from border_cli.core.metrics import Record, declare
from border_cli.core.protocols import ReplayBuffer
from border_cli.core.spaces import Array, EnvSpec
from border_cli.core.state import State, check_like
from border_cli.core.types import ModelInfo
from border_cli.runtime import seeding

declare("agent/lr", "rate", "learning rate of the last opt step, where a schedule lowers it")
_SKIP_CHECK_INTERVAL = 100
"""Opt steps between two reads of `skipped_in_a_row` on a GPU, where reading waits for the device."""


class NetworkAgent:
    """Implements `core.protocols.Agent` by a policy and an algorithm that share the policy's parameters.

    compiling: called with each batch before the opt step until it returns True; it may set `algorithm.graphs`.
    """

    def __init__(self, policy: NetworkPolicy, algorithm: Algorithm) -> None:
        self.policy = policy
        self.algorithm = algorithm
        self.opt_steps = 0
        self.skipped_in_a_row = 0
        self.compiling: Callable[[TensorBatch], bool] | None = None
        self._unread = 0  # opt steps since the last record
        self._device = policy.params.device
        self._batches = BatchLoader(algorithm.config.batch_size, self._device)
        self.sample, self.extras, self.begin_episode = policy.sample, policy.extras, policy.begin_episode
        self.train, self.eval, self.model_info = policy.train, policy.eval, policy.model_info

    def opt(self, buffer: ReplayBuffer, record: bool = False) -> Record | None:
        algorithm, config = self.algorithm, self.algorithm.config
        batch = self._batches.next(buffer)
        if self.compiling is not None and self.compiling(batch):
            self.compiling = None
        interval = config.reset_interval
        if interval is not None and self.opt_steps and self.opt_steps % interval == 0:
            self._reset(self.opt_steps // interval)
        number = self.opt_steps + 1
        noise, variant = algorithm.noise(len(batch.reward)), algorithm.variant(number)
        lr_scale = config.lr_scale(number)
        if variant in algorithm.graphs:
            errors = algorithm.graphs[variant](batch, noise, lr_scale)
        else:
            errors = algorithm.step(batch, noise, lr_scale, variant)
        self.opt_steps = self.policy.version = number
        self._unread += 1
        algorithm.update_targets(number)
        if errors is not None and self._batches.last is not None:
            ix, values = self._batches.last.ix, errors.cpu().numpy()
            known = np.isfinite(values)
            buffer.update_priority(*((ix, values) if known.all() else (ix[known], values[known])))
        if record or self._device.type == "cpu" or number % _SKIP_CHECK_INTERVAL == 0:
            self.skipped_in_a_row = int(algorithm.state.stats.skipped_in_a_row.item())
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
        means, skipped = self.algorithm.state.stats.read()
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

    def load_state(self, state: State) -> None:
        check_like(state, self.state(), "the agent")
        copy_arrays(self.algorithm.tensors(), state.arrays)
        self.opt_steps = self.policy.version = state.values["opt_steps"]
        self._unread = state.values["unread"]
        self.skipped_in_a_row = int(self.algorithm.state.stats.skipped_in_a_row.item())

    def generator_state(self) -> dict[str, Any]:
        learning = dict(self.algorithm.rng.bit_generator.state)
        return {"policy": self.policy.generator_state(), "learning": learning}

    def load_generator_state(self, state: dict[str, Any]) -> None:
        kinds = {"agent": {"policy": None, "learning": None}}
        check_like(State({}, {"agent": state}), State({}, kinds), "the generators")
        seeding.restore(self.algorithm.rng, state["learning"])
        self.policy.load_generator_state(state["policy"])

    def sync_model(self, info: ModelInfo) -> None:
        """Start from these parameters, targets and the statistics of all networks included. Opt steps count on."""
        self.policy.sync_model(info)
        self.policy.version = self.opt_steps
        encoders = self.algorithm.encoders
        if encoders:
            copy_statistics(encoders[0], encoders)
        self.algorithm.move_targets(1.0)

    def load_networks(self, arrays: Mapping[str, Array]) -> list[str]:
        self.algorithm.move_targets(1.0)
        state, networks = self.algorithm.state, dict[str, dict[str, Tensor]]()
        for name, tensor in self.algorithm.tensors().items():
            network = name.partition(".")[0]
            is_param = name.startswith(f"{network}.params.")
            is_other = is_param and state.nets[network].params is not self.policy.params
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
    """The parts of an agent, and the functions of a module that follow from them.

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
        return NetworkAgent(policy, algorithm)

    def agent_bytes(self, config: Any, spec: EnvSpec) -> tuple[int, int]:
        """Bytes of the model, and of the whole state of an agent."""
        with torch.device("meta"):  # no memory is allocated
            agent = self.make_agent(config, spec, 0, "meta")
        return agent.policy.params.nbytes, sum(t.nbytes for t in agent.algorithm.tensors().values())
