"""The episodes that a model is judged on: whole ones, in eval mode, each from a seed of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from border_cli.core.protocols import ActingPolicy, Env, Evaluation, Step, StopCheck
from border_cli.core.spaces import Array


class EpisodeRunner:
    """Runs episodes in the caller's own thread, environments stepped together.

    env: its `n_envs` bounds how many episodes run at once ·
    max_episode_steps: an episode that reaches this many env steps is cut and counts with its return so far ·
    should_stop: polled before every env step · tick: called as often, so that whoever watches sees that time goes on.
    """

    def __init__(
        self, env: Env, max_episode_steps: int, should_stop: StopCheck, tick: Callable[[], None]
    ) -> None:
        self._env = env
        self._max_episode_steps = max_episode_steps
        self._should_stop = should_stop
        self._tick = tick

    def evaluate(self, policy: ActingPolicy, opt_steps: int, seeds: Sequence[int]) -> Evaluation | None:
        """Judge a policy on one episode per seed of the environment; opt_steps: when its model was taken.

        Returns are raw and in the order of the seeds, whichever ended first. The policy is in train mode
        afterwards, also after an exception. None if asked to stop meanwhile.
        """
        policy.eval()
        try:
            batch = _Batch(self._env, seeds, self._max_episode_steps)
            while batch.running:
                if self._should_stop():
                    return None
                self._tick()
                obs = self._env.observe(batch.running)
                batch.step(policy.sample(obs))
        finally:
            policy.train()
        return Evaluation(opt_steps, tuple(batch.returns), tuple(batch.lengths))

    def close(self) -> None:
        """Release the environments."""
        self._env.close()


class _Batch:
    """The episodes of one evaluation, as many at a time as there are environments.

    returns, lengths: by index of the episode. running: environments with an unfinished episode, ascending.
    """

    def __init__(self, env: Env, seeds: Sequence[int], max_steps: int) -> None:
        self.returns = [0.0] * len(seeds)
        self.lengths = [0] * len(seeds)
        self._env = env
        self._seeds = seeds
        self._max_steps = max_steps
        self._waiting = iter(range(len(seeds)))
        self._episode_of: dict[int, int] = {}
        for env_ix in range(env.n_envs):
            self._start_next(env_ix)

    @property
    def running(self) -> Sequence[int]:
        return sorted(self._episode_of)

    def step(self, action: Array) -> None:
        """One env step in each running environment; action has one row for each."""
        self._take(self._env.step(self.running, action))

    def _take(self, step: Step) -> None:
        over = step.over
        for row, env_ix in enumerate(step.env_ix):
            episode = self._episode_of[env_ix]
            if step.dropped is None or not step.dropped[row]:
                self.returns[episode] += float(step.reward[row])
                self.lengths[episode] += 1
            if over[row] or self.lengths[episode] >= self._max_steps:
                self._start_next(env_ix)

    def _start_next(self, env_ix: int) -> None:
        """Give an environment the next episode that waits, or nothing more to do."""
        episode = next(self._waiting, None)
        if episode is None:
            self._episode_of.pop(env_ix, None)
            return
        self._episode_of[env_ix] = episode
        self._env.reset(env_ix, seed=self._seeds[episode])
