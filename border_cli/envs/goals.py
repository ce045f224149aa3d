"""Goal-conditioned environments, as gymnasium-robotics defines them: what they say of goals that were not their own."""

from __future__ import annotations

from contextlib import closing

import numpy as np

from border_cli.config.schema import EnvConfig
from border_cli.core.errors import UsageError, first_line
from border_cli.core.spaces import Array, EnvSpec
from border_cli.core.types import Step
from border_cli.envs.group import GymEnv

_NEEDS = "compute_reward(achieved_goal, desired_goal, info), of the environment or a wrapper, for k goals and an empty info"


class GoalOutcome:
    """Reward and `terminated` of any goals, by `compute_reward` and, if there is one, `compute_terminated`.

    The environment is made in this process and closed at once. It is never reset or stepped here: both functions may
    depend on nothing but their arguments and constants. Raises UsageError where there are no goals.
    """

    def __init__(self, config: EnvConfig, spec: EnvSpec) -> None:
        with closing(GymEnv(config, quiet=True)) as group:
            env = group.envs[0]
        if not spec.goals or not env.has_wrapper_attr("compute_reward"):
            raise UsageError(
                "buffer.her: the environment lacks goals in its observations, or compute_reward",
                allowed="a Dict with achieved_goal and desired_goal of one space, all of them in env.obs_keys, without "
                "env.frame_stack",
            )
        self._reward, self._terminated = env.get_wrapper_attr("compute_reward"), None
        if env.has_wrapper_attr("compute_terminated"):
            self._terminated = env.get_wrapper_attr("compute_terminated")
        self._leaf, space = spec.goals[0], env.observation_space
        for key in self._leaf.path:
            space = space[key]
        self._dtype = space.dtype

    def __call__(self, achieved: Array, desired: Array) -> tuple[Array, Array | None]:
        """Rewards (k,) and `terminated` (k,), None without `compute_terminated`, of goals (k, ...) as rows store them."""
        start = np.reshape(self._leaf.start, self._leaf.shape) if self._leaf.start else 0
        goals, k = [(stored + start).astype(self._dtype) for stored in (achieved, desired)], len(achieved)
        reward = np.broadcast_to(self._reward(*goals, {}), k)
        return reward, self._terminated and np.broadcast_to(self._terminated(*goals, {}), k)

    def check(self, spec: EnvSpec, first: Step) -> None:
        """Raise UsageError unless several goals at once have the results of single ones, and `first` has its own reward."""
        achieved, desired = (leaf.name for leaf in spec.goals)
        before, after, goal = first.obs[achieved], first.next_obs[achieved], first.next_obs[desired]
        pairs = [(after, goal), (before, goal), (after, before), (goal, goal)]
        try:
            *single, together = (
                np.array([part for part in self(*goals) if part is not None], np.float64)
                for goals in (*pairs, map(np.concatenate, zip(*pairs, strict=True)))
            )
        except Exception as e:
            raise UsageError(
                f"buffer.her: the rewards of four goals raise {type(e).__name__}: {first_line(e)}",
                allowed=_NEEDS,
            ) from e
        singly = np.concatenate(single, axis=1)
        singly[0, 0] = first.reward[0]
        if not np.allclose(together, singly, rtol=1e-3, atol=1e-5):  # stored goals are float32
            raise UsageError(
                f"buffer.her: reward and `terminated` of four goals at once are {together.tolist()},\n"
                f"and one by one, the first reward as the env step gave it, {singly.tolist()}",
                allowed=_NEEDS,
            )
