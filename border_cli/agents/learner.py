"""The agent of every family: a policy that acts, and a rule by which its weights are changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from border_cli.agents.batches import Batches, TensorBatch
from border_cli.agents.flat import FlatModule
from border_cli.agents.outcome import Outcome
from border_cli.agents.policy import NetworkPolicy
from border_cli.core.protocols import Estimates, ModelInfo, ReplayBuffer
from border_cli.core.record import Record
from border_cli.core.spaces import Array, Obs
from border_cli.core.state import State, check_arrays, count, require
from border_cli.runtime import seeding

_LEARNING = "learning"
POLICY_STEPS = "policy_steps"
"""A count that rules may have: opt steps since the last record that have changed the policy."""
_LOOK_INTERVAL = 100
"""Opt steps after which it is looked whether the last ones were skipped, on any device and whatever is recorded."""


class Rule(Protocol):
    """How an agent learns. All that changes with it is in the vectors, the counts, the outcome and the generator."""

    @property
    def outcome(self) -> Outcome:
        """Of the opt steps since the last record."""

    @property
    def rng(self) -> np.random.Generator:
        """What chance has to do with learning comes from it."""

    def opt_step(self, batch: TensorBatch, number: int) -> Tensor | None:
        """Opt step no. `number`, from 1, in place; of a weighted batch the (B,) absolute errors."""

    def update_targets(self, number: int) -> None:
        """What is due of target networks after opt step no. `number`."""

    def means(self, sums: Sequence[float], opt_steps: int) -> dict[str, float]:
        """Of what so many opt steps have yielded, by the last part of the metric's name; what they are over begins anew.

        sums: those of the outcome.
        """

    def examine(self, batch: TensorBatch) -> dict[str, float]:
        """What only a record asks for, of the last batch, by metric. Changes nothing, and draws nothing."""

    def vectors(self) -> dict[str, tuple[FlatModule, Tensor]]:
        """Weights and moments: the kind of network, whose names the parts have, and the vector."""

    def counts(self) -> dict[str, Tensor]:
        """Scalar tensors that count something."""

    def restart(self) -> None:
        """The policy's weights were replaced: begin from them."""


class Learner:
    """Implements `core.protocols.Agent`."""

    def __init__(self, policy: NetworkPolicy, rule: Rule, batch_size: int) -> None:
        self.opt_steps = 0
        self.skipped_in_a_row = 0
        self._policy = policy
        self._rule = rule
        self._device = policy.weights.device
        self._batches = Batches(batch_size, self._device)
        self._unread = 0

    # -- learning -------------------------------------------------------

    def opt(self, buffer: ReplayBuffer, record: bool = False) -> Record | None:
        """One opt step on one batch; with `record` the means over the opt steps since the last one."""
        batch = self._batches.next(buffer)
        errors = self._rule.opt_step(batch, self.opt_steps + 1)
        self.opt_steps += 1
        self._policy.version = self.opt_steps
        self._unread += 1
        self._rule.update_targets(self.opt_steps)
        if errors is not None:
            self._update_priorities(buffer, errors)
        # elsewhere a look at it waits for the device
        if record or self._device.type == "cpu" or self.opt_steps % _LOOK_INTERVAL == 0:
            self.skipped_in_a_row = int(self._rule.outcome.skipped_in_a_row.item())
        return self._read(batch) if record else None

    def _update_priorities(self, buffer: ReplayBuffer, errors: Tensor) -> None:
        assert self._batches.last is not None
        values = errors.cpu().numpy()
        known = np.isfinite(values)
        if known.all():
            buffer.update_priority(self._batches.last.ix, values)
        else:
            buffer.update_priority(self._batches.last.ix[known], values[known])

    def skipped_batch(self) -> dict[str, Array] | None:
        """Copies of the columns of the last batch, if its opt step is known to have been skipped."""
        return self._batches.columns() if self.skipped_in_a_row and self._batches.last is not None else None

    def take_record(self) -> Record | None:
        """The means since the last record."""
        return self._read() if self._unread else None

    def _read(self, batch: TensorBatch | None = None) -> Record:
        """Means over the opt steps that were not skipped, none where all of them were; and what the last batch shows."""
        sums, skipped = self._rule.outcome.read()
        counted, self._unread = self._unread - skipped, 0
        values = {"agent/skipped_steps": float(skipped)}
        if counted:
            values |= {f"agent/{name}": mean for name, mean in self._rule.means(sums, counted).items()}
        return Record(values if batch is None else values | self._rule.examine(batch))

    # -- state ----------------------------------------------------------

    def check_finite(self) -> bool:
        """Whether every weight and moment is finite."""
        return all(bool(torch.isfinite(vector).all()) for _, vector in self._rule.vectors().values())

    def state(self) -> State:
        """Weights and moments by the networks' names; counters as values."""
        arrays: dict[str, Array] = {}
        for label, (net, vector) in self._rule.vectors().items():
            host = vector.detach().cpu()
            arrays |= {f"{label}.{name}": view.numpy() for name, view in net.views(host).items()}
        arrays["sums"] = self._rule.outcome.sums.cpu().numpy()
        values = {"opt_steps": self.opt_steps, "unread": self._unread}
        return State(arrays, values | {name: int(scalar) for name, scalar in self._counts().items()})

    def load_state(self, state: State) -> None:
        """Take over a saved state. Raises ValueError on a name or shape that does not fit."""
        check_arrays(state.arrays, self.state().arrays, "the agent")
        names = ("opt_steps", "unread", *self._counts())
        # in the first checkpoints the sums of the policy stood for all opt steps
        values = {POLICY_STEPS: state.values.get("unread")} | dict(state.values)
        require(values, names, "the agent")
        counts = {name: count(values[name], name) for name in names}
        with torch.no_grad():
            for label, (net, vector) in self._rule.vectors().items():
                for name, view in net.views(vector).items():
                    view.copy_(torch.from_numpy(np.array(state.arrays[f"{label}.{name}"])))
            self._rule.outcome.sums.copy_(torch.from_numpy(np.array(state.arrays["sums"])))
            for name, scalar in self._counts().items():
                scalar.fill_(counts[name])
        self.opt_steps = self._policy.version = counts["opt_steps"]
        self._unread = counts["unread"]
        self.skipped_in_a_row = counts["skipped_in_a_row"]

    def _counts(self) -> dict[str, Tensor]:
        outcome = self._rule.outcome
        return self._rule.counts() | {
            "skipped": outcome.skipped,
            "skipped_in_a_row": outcome.skipped_in_a_row,
        }

    def generator_state(self) -> dict[str, Any]:
        """States of the generators of exploration and of learning, as JSON values."""
        return self._policy.generator_state() | {_LEARNING: dict(self._rule.rng.bit_generator.state)}

    def load_generator_state(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        require(state, (), "the agent's generators")
        own = dict(state)
        if _LEARNING in own:  # the first checkpoints had none: nothing was drawn then
            learning = own.pop(_LEARNING)
            require(learning, (), "the generator of learning")
            seeding.restore(self._rule.rng, learning)
        self._policy.load_generator_state(own)

    # -- acting ---------------------------------------------------------

    @property
    def version(self) -> int:
        """Opt step of the weights it acts with."""
        return self._policy.version

    def sample(self, obs: Obs, env_steps: int = 0, env_ix: Sequence[int] = ()) -> Array:
        """Actions (B, ...) as stored."""
        return self._policy.sample(obs, env_steps, env_ix)

    def estimates(self) -> Estimates | None:
        """Of the last actions, where the policy knows of values."""
        return self._policy.estimates()

    def begin_episode(self, env_ix: int) -> None:
        """An episode begins in this environment."""
        self._policy.begin_episode(env_ix)

    def train(self) -> None:
        """Explore from now on."""
        self._policy.train()

    def eval(self) -> None:
        """Exploit from now on."""
        self._policy.eval()

    def model_info(self) -> ModelInfo:
        """The policy's weights under the network's names (views)."""
        return self._policy.model_info()

    def sync_model(self, info: ModelInfo) -> None:
        """Start from these weights, targets included; a new agent's count of opt steps stays 0."""
        self._policy.sync_model(info)
        self._policy.version = self.opt_steps
        self._rule.restart()
