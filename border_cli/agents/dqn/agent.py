"""DQN: the policy that acts, and the agent that learns.

A module named in `border_cli.config.registry` offers `check_spec`, `make_policy` and `make_agent`, as this one does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from border_cli.agents.dqn.config import DqnConfig
from border_cli.agents.dqn.explorer import EpsilonSchedule, explore, schedule
from border_cli.agents.dqn.loss import SCALARS, DqnNetworks, DqnState, TensorBatch, opt_step, update_target
from border_cli.agents.dqn.network import QNetwork
from border_cli.agents.encoding import to_tensors
from border_cli.agents.flat import FlatModule
from border_cli.core.errors import UsageError
from border_cli.core.metrics import declare
from border_cli.core.protocols import Batch, ModelInfo, ReplayBuffer
from border_cli.core.record import Record
from border_cli.core.spaces import Array, EnvSpec, Obs
from border_cli.core.state import State, check_arrays, count, require
from border_cli.runtime import seeding

declare("agent/loss", "", "mean loss of the TD error")
declare("agent/q_mean", "reward", "mean value of the actions in the batches")
declare("agent/target_mean", "reward", "mean TD target")
declare("agent/grad_norm", "", "mean gradient norm before clipping")


def check_spec(spec: EnvSpec) -> None:
    """Raise UsageError where the spaces are not for this agent."""
    if spec.action.kind != "discrete":
        raise UsageError(
            f"agent=dqn chooses among a finite number of actions, and this environment's are {spec.action.kind} "
            f"{list(spec.action.shape)}\nallowed: environments with a Discrete action space"
        )


def make_policy(
    config: DqnConfig, spec: EnvSpec, seed: int, actor: int = 0, n_actors: int = 1, incarnation: int = 0
) -> DqnPolicy:
    """The acting part alone, for an actor or an evaluation. `seed` is the run's."""
    net = FlatModule(QNetwork(spec, config.hidden, torch.Generator().manual_seed(0)))
    rng = seeding.generator(seed, *seeding.exploration_key(actor, incarnation))
    return DqnPolicy(
        net, net.initial(), spec, schedule(config, actor, n_actors), config.eval_epsilon, rng, seed
    )


def make_agent(config: DqnConfig, spec: EnvSpec, seed: int, device: str = "cpu") -> DqnAgent:
    """A fresh agent. `seed` is the run's."""
    return DqnAgent(config, spec, seed, torch.device(device))


class DqnPolicy:
    """Implements `core.protocols.ActingPolicy`: ε-greedy in train mode, greedy (or eval_epsilon) in eval mode.

    weights: the network's vector, used in place, so that an agent's policy acts with what the agent learns ·
    rng: of exploration; evaluations draw from a generator of their own below `seed`, anew in each.
    """

    def __init__(
        self,
        net: FlatModule,
        weights: torch.Tensor,
        spec: EnvSpec,
        epsilon: EpsilonSchedule,
        eval_epsilon: float,
        rng: np.random.Generator,
        seed: int,
    ) -> None:
        self._net = net
        self._weights = weights
        self._q_values = net.over(weights)
        self._n_actions = spec.action.n
        self._epsilon = epsilon
        self._eval_epsilon = eval_epsilon
        self._rng = rng
        self._seed = seed
        self._evaluation_rng = seeding.generator(seed, seeding.EVALUATION_POLICY)
        self._exploring = True
        self.version = 0

    def sample(self, obs: Obs, env_steps: int = 0) -> Array:
        """(B,) int64 actions."""
        with torch.inference_mode():
            q = self._q_values(to_tensors(obs, self._weights.device))
            greedy = q.argmax(1).cpu().numpy()
        if self._exploring:
            return explore(greedy, self._epsilon(env_steps), self._n_actions, self._rng)
        return explore(greedy, self._eval_epsilon, self._n_actions, self._evaluation_rng)

    def train(self) -> None:
        """Explore from now on."""
        self._exploring = True

    def eval(self) -> None:
        """Exploit from now on."""
        self._exploring = False
        self._evaluation_rng = seeding.generator(self._seed, seeding.EVALUATION_POLICY)

    def model_info(self) -> ModelInfo:
        """The network's weights under its own names (views)."""
        host = self._weights.detach().cpu()
        return ModelInfo(self.version, {n: v.numpy() for n, v in self._net.views(host).items()})

    def sync_model(self, info: ModelInfo) -> None:
        """Copy the weights. Raises ValueError where names or shapes differ."""
        parts = self._net.views(self._weights)
        expected = {name: tuple(part.shape) for name, part in parts.items()}
        given = {name: tuple(array.shape) for name, array in info.arrays.items()}
        if expected != given:
            raise ValueError(f"the network has {expected}, the model {given}")
        with torch.no_grad():
            for name, part in parts.items():
                part.copy_(torch.from_numpy(np.ascontiguousarray(info.arrays[name])))
        self.version = info.version

    def generator_state(self) -> dict[str, Any]:
        """State of the exploration generator, as JSON values."""
        return dict(self._rng.bit_generator.state)

    def load_generator_state(self, state: dict[str, Any]) -> None:
        """Explore on from a saved state."""
        seeding.restore(self._rng, state)


class DqnAgent(DqnPolicy):
    """Implements `core.protocols.Agent`."""

    def __init__(self, config: DqnConfig, spec: EnvSpec, seed: int, device: torch.device) -> None:
        check_spec(spec)
        generator = torch.Generator().manual_seed(seeding.integer(seed, seeding.AGENT))
        net = FlatModule(QNetwork(spec, config.hidden, generator))
        self._config = config
        self._device = device
        self._state = DqnState.fresh(net.initial().to(device))
        self._networks = DqnNetworks.over(net, self._state)
        self._unread = 0
        self._batch: Batch | None = None
        self._tensor_batch: TensorBatch | None = None
        rng = seeding.generator(seed, *seeding.exploration_key(0, 0))
        super().__init__(
            net, self._state.online, spec, schedule(config, 0, 1), config.eval_epsilon, rng, seed
        )
        self.opt_steps = 0
        self.skipped_in_a_row = 0

    def opt(self, buffer: ReplayBuffer, record: bool = False) -> Record | None:
        """One opt step on one batch; with `record` the means over the opt steps since the last one."""
        opt_step(self._networks, self._config, self._state, self._next_batch(buffer))
        self.opt_steps += 1
        self.version = self.opt_steps
        self._unread += 1
        if self.opt_steps % self._config.target_interval == 0:
            update_target(self._state, self._config.target_tau)
        if record or self._device.type == "cpu":  # elsewhere a look at it would wait for the device
            self.skipped_in_a_row = int(self._state.skipped_in_a_row.item())
        return self._read() if record else None

    def skipped_batch(self) -> dict[str, Array] | None:
        """Copies of the columns of the last batch, if its opt step is known to have been skipped."""
        batch = self._batch
        if batch is None or not self.skipped_in_a_row:
            return None
        columns = batch.obs | {f"next_{name}": rows for name, rows in batch.next_obs.items()}
        for name in ("action", "reward", "discount", "terminated", "ix"):
            columns[name] = getattr(batch, name)
        return {name: rows.copy() for name, rows in columns.items()}

    def take_record(self) -> Record | None:
        """The means since the last record."""
        return self._read() if self._unread else None

    def check_finite(self) -> bool:
        """Whether every weight and moment is finite."""
        s = self._state
        return all(bool(torch.isfinite(t).all()) for t in (s.online, s.target, s.mean, s.variance))

    def state(self) -> State:
        """Online and target weights and Adam's moments by the network's names; counters as values."""
        tensors: dict[str, Array] = {}
        for part, vector in self._vectors().items():
            tensors |= {f"{part}.{n}": v.numpy() for n, v in self._net.views(vector.detach().cpu()).items()}
        tensors["sums"] = self._state.sums.cpu().numpy()
        values = {"opt_steps": self.opt_steps, "unread": self._unread}
        values |= {name: int(scalar) for name, scalar in self._counts().items()}
        return State(tensors, values)

    def load_state(self, state: State) -> None:
        """Take over a saved state. Raises ValueError on a name or shape that does not fit."""
        check_arrays(state.arrays, self.state().arrays, "the agent")
        names = ("opt_steps", "unread", "skipped_in_a_row", *self._counts())
        require(state.values, names, "the agent")
        counts = {name: count(state.values[name], name) for name in names}
        with torch.no_grad():
            for part, vector in self._vectors().items():
                for name, view in self._net.views(vector).items():
                    view.copy_(torch.from_numpy(np.array(state.arrays[f"{part}.{name}"])))
            self._state.sums.copy_(torch.from_numpy(np.array(state.arrays["sums"])))
            for name, scalar in self._counts().items():
                scalar.fill_(counts[name])
        self.opt_steps = self.version = counts["opt_steps"]
        self._unread = counts["unread"]
        self.skipped_in_a_row = counts["skipped_in_a_row"]

    def sync_model(self, info: ModelInfo) -> None:
        """Start from these weights: online and target; a new agent's count of opt steps stays 0."""
        super().sync_model(info)
        self.version = self.opt_steps
        update_target(self._state, 1.0)

    def _vectors(self) -> dict[str, torch.Tensor]:
        s = self._state
        return {"online": s.online, "target": s.target, "adam_mean": s.mean, "adam_variance": s.variance}

    def _counts(self) -> dict[str, torch.Tensor]:
        s = self._state
        return {"adam_count": s.count, "skipped": s.skipped, "skipped_in_a_row": s.skipped_in_a_row}

    def _next_batch(self, buffer: ReplayBuffer) -> TensorBatch:
        """Sampled; on the CPU the tensors share the batch's memory, so a batch filled anew has its tensors already."""
        batch = buffer.batch(self._config.batch_size, into=self._batch)
        if self._tensor_batch is None or batch is not self._batch or self._device.type != "cpu":
            self._batch, self._tensor_batch = batch, self._tensors(batch)
        return self._tensor_batch

    def _tensors(self, batch: Batch) -> TensorBatch:
        def tensor(array: Array) -> torch.Tensor:
            return torch.from_numpy(array).to(self._device)

        return TensorBatch(
            obs=to_tensors(batch.obs, self._device),
            action=tensor(batch.action),
            reward=tensor(batch.reward),
            discount=tensor(batch.discount),
            terminated=tensor(batch.terminated),
            next_obs=to_tensors(batch.next_obs, self._device),
        )

    def _read(self) -> Record:
        """Means over the opt steps that were not skipped; none where all of them were."""
        skipped, sums = int(self._state.skipped.item()), self._state.sums.tolist()
        counted = self._unread - skipped
        values = {"agent/skipped_steps": float(skipped)}
        if counted:
            values |= {f"agent/{name}": total / counted for name, total in zip(SCALARS, sums, strict=True)}
        self._state.sums.zero_()
        self._state.skipped.zero_()
        self._unread = 0
        return Record(values)
