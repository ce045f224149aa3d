"""Env steps of a simulator beside the learner (`trainer=device`): actions, observations and rows are tensors.

What the replay keeps in the main memory, a few numbers per env step, is the only part that leaves the device.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from border_cli.core.state import State, check_like
from border_cli.core.types import Column, Items, empty_items, item_columns, stored_step

_logger = logging.getLogger(__name__)


class SimulatorSampler:
    """Takes the place of `Sampler` and its step processor in `InThreadSource`.

    Args:
        simulator: a `border_cli.envs.simulator.Simulator`.
        policy: that of the agent; it has the method `act`.
        seed_of: incarnation → seed of the reset.
        on_device: whether the replay takes tensors; otherwise they become arrays here.
        extra: columns of the agent, which the policy adds to each row (`ActingPolicy.extras`).

    Attributes:
        incarnation: how often all environments began anew: after an evaluation in them, or because the run was resumed.
            No transition spans two of them.
    """

    next_env = 0

    def __init__(
        self,
        simulator: Any,
        policy: Any,
        seed_of: Callable[[int], int],
        on_device: bool,
        extra: tuple[Column, ...] = (),
    ) -> None:
        self.processor = self
        self.incarnation, self.exact = 0, True
        self.least_credit = int(simulator.n_envs)
        self._simulator, self._policy, self._seed_of, self._on_device = simulator, policy, seed_of, on_device
        tensors = {"action", *(leaf.name for leaf in simulator.spec.obs.leaves)}
        self._columns = tuple(c for c in item_columns(simulator.spec, extra) if c.name not in tensors)
        self._extra = [column.name for column in extra]
        self._rows: Items = {}

    def begin(self, first_episode: int = 0) -> None:
        """Start new episodes in all environments. first_episode: the incarnation."""
        n, self.incarnation = self._simulator.n_envs, first_episode
        self._length, self._return = np.zeros(n, np.int64), np.zeros(n)  # of each episode so far
        self._simulator.reset(self._seed_of(self.incarnation))
        self._resets = self._simulator.resets
        for env_ix in range(n):
            self._policy.begin_episode(env_ix)

    def begin_from(self, state: State) -> None:
        """Start the incarnation after the saved one: no simulator can be restored."""
        check_like(state, self.state(), "the simulator")
        self.exact = False
        _logger.warning("a simulator cannot be resumed exactly: new episodes start in all its environments")
        self.begin(state.values["incarnation"] + 1)

    def state(self) -> State:
        return State({}, {"incarnation": self.incarnation})

    def next_envs(self, k: int) -> range:
        return range(k)

    def step(self, env_ix: Sequence[int], env_steps: int) -> int:
        """One env step in all environments. Exploration schedules follow env_steps, the global count. Returns how many."""
        if self._simulator.resets != self._resets:  # by an evaluation
            self.begin(self.incarnation + 1)
        step, n = self._simulator.step(self._policy.act(self._simulator.obs, env_steps)), len(env_ix)
        ended = np.flatnonzero(step.over)
        rows = self._rows = empty_items(self._columns, n + len(ended))
        rows["env"][:n], rows["env"][n:] = env_ix, ended
        rows["step"][:n] = stored_step(self._length)
        extras = self._policy.extras(step) if self._extra else {}
        for name in self._extra:
            rows[name][:n] = extras[name]
        self._length += 1
        self._return += step.reward
        rows["reward"][:n], rows["terminated"][:n] = step.reward, step.terminated
        rows["final"][n:], rows["step"][n:] = True, stored_step(self._length[ended])
        rows["episode_return"][n:], rows["episode_length"][n:] = self._return[ended], self._length[ended]
        self._length[ended] = self._return[ended] = 0
        ix = torch.from_numpy(ended).to(step.action.device)
        columns: dict[str, Any] = {"action": torch.cat([step.action, torch.zeros_like(step.action[ix])])}
        for name, obs in step.obs.items():
            columns[name] = torch.cat([obs, step.next_obs[name][ix]])
        rows.update(columns if self._on_device else {name: c.cpu().numpy() for name, c in columns.items()})
        for i in ended.tolist():
            self._policy.begin_episode(i)
        return n

    def take(self) -> Items:
        """The rows of the last env step, those of final observations last."""
        return self._rows
