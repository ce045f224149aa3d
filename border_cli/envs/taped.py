"""Environments that can be resumed in the middle of an episode: its seed and the actions since are its state.

An environment that draws from its own generator alone comes out of the same seed and the same actions as it was; a hash
of its last observation tells whether it did.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from border_cli.core.protocols import Step
from border_cli.core.spaces import Array, Obs
from border_cli.core.state import State, check_arrays, count, require
from border_cli.envs.guard import JudgedEnv

_MAX_SEED = 2**31 - 1


class TapedEnv:
    """Implements `core.protocols.Env` by another one, and keeps the tape of each unfinished episode.

    Every reset needs a seed: without one, what comes after would depend on all that came before.
    """

    def __init__(self, env: JudgedEnv) -> None:
        self._env = env
        self.n_envs = env.n_envs
        self.spec = env.spec
        self._seeds = [0] * env.n_envs
        self._actions: list[list[Array]] = [[] for _ in range(env.n_envs)]

    def reset(self, env_ix: int, seed: int | None = None) -> None:
        """As the environment's own; a new tape begins. Raises ValueError without a seed."""
        if seed is None:
            raise ValueError("an episode that shall be resumable needs a seed")
        self._env.reset(env_ix, seed)
        self._seeds[env_ix], self._actions[env_ix] = seed, []

    def observe(self, env_ix: Sequence[int]) -> Obs:
        """As the environment's own."""
        return self._env.observe(env_ix)

    def step(self, env_ix: Sequence[int], action: Array) -> Step:
        """As the environment's own; the actions are added to the tapes."""
        step = self._env.step(env_ix, action)
        for k, i in enumerate(env_ix):
            self._actions[i].append(action[k].copy())
        return step

    def remake(self, env_ix: int) -> None:
        """As the environment's own; there is no tape until the next reset."""
        self._env.remake(env_ix)
        self._actions[env_ix] = []

    def close(self) -> None:
        """As the environment's own."""
        self._env.close()

    def state(self) -> State:
        """Seed, actions (t, ...) and a hash of the present observation, for each environment; what they have judged."""
        shape, dtype = self.spec.action.shape, self.spec.action.stored_dtype
        arrays = {
            str(i): np.array(actions, dtype).reshape(-1, *shape) for i, actions in enumerate(self._actions)
        }
        values = {str(i): {"seed": seed, "observation": self._hash(i)} for i, seed in enumerate(self._seeds)}
        return State(arrays, {**values, "judged": self._env.judged()})

    def load_state(self, state: State) -> list[int]:
        """Bring every environment to where it was, by playing its tape; those that did not come out the same.

        Raises ValueError for a state that does not fit.
        """
        names = [str(i) for i in range(self.n_envs)]
        require(state.values, names, "the environments")
        require(state.arrays, names, "the environments")
        with self._judged_before(state):
            return [
                i for i, name in enumerate(names) if not self._play(i, state.values[name], state.arrays[name])
            ]

    def _judged_before(self, state: State) -> AbstractContextManager[None]:
        if "judged" not in state.values:  # format 1 began without it: the counts begin anew
            return nullcontext()
        return self._env.judged_before(state.values["judged"])

    def _play(self, env_ix: int, values: Any, actions: Array) -> bool:
        require(values, ("seed", "observation"), "an environment")
        expected = np.empty(
            (len(np.atleast_1d(actions)), *self.spec.action.shape), self.spec.action.stored_dtype
        )
        check_arrays({"actions": actions}, {"actions": expected}, "an environment")
        self.spec.action.check(actions)
        self.reset(env_ix, count(values["seed"], "an episode's seed", _MAX_SEED))
        for action in actions:
            step = self.step([env_ix], action[np.newaxis])
            if step.terminated[0] or step.truncated[0]:
                return False  # it went on when it was saved
        return bool(self._hash(env_ix) == values["observation"])

    def _hash(self, env_ix: int) -> str:
        digest = hashlib.sha256()
        for name, rows in sorted(self._env.observe([env_ix]).items()):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(rows).tobytes())
        return digest.hexdigest()
