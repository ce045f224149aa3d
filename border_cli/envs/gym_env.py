"""The adapter over gymnasium environments: several of one kind, stepped together in one process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import gymnasium
import numpy as np

from border_cli.config.schema import EnvConfig
from border_cli.core.errors import BorderError
from border_cli.core.protocols import Step, StepError
from border_cli.core.spaces import ACTION_MASK, Array, EnvSpec, Obs
from border_cli.envs.guard import ANY_REWARD, EnvDataError, EnvGuard
from border_cli.envs.making import make_gym, stack_size
from border_cli.envs.spaces import decode_action, env_spec

_logger = logging.getLogger(__name__)


class GymEnv:
    """A group of gymnasium environments that implements `envs.guard.JudgedEnv`.

    Nothing resets by itself: an environment that ended stays ended until `reset` is called for it.
    made: called after each environment, because making many can take long; what it raises ends the making.
    reward_limit: a reward beyond ± this counts as not finite. All it gives has passed an `EnvGuard`.
    native: they are Atari games in threads of ALE's own, and run at the same time.
    gives_mask: whether the last reset told which actions are allowed, in its info alone.
    """

    def __init__(
        self,
        config: EnvConfig,
        n_envs: int = 1,
        render_mode: str | None = None,
        made: Callable[[], None] = lambda: None,
        reward_limit: float = ANY_REWARD,
        native: bool = False,
    ) -> None:
        self._config = config
        self._render_mode = render_mode
        self._native = native
        self._envs: list[gymnasium.Env[Any, Any]] = []
        try:
            for _ in range(n_envs):
                self._envs.append(make_gym(config, render_mode, native))
                made()
        except BaseException:
            self.close()
            raise
        self.n_envs = n_envs
        space = self._envs[0].observation_space
        self.spec: EnvSpec = env_spec(space, self._envs[0].action_space, stack_size(self._envs[0]))
        self._life_loss = config.preprocess == "atari" and config.life_loss
        self._lives = [0] * n_envs
        self.gives_mask = False
        self._guard = EnvGuard(
            space,
            self.spec,
            n_envs,
            drop=config.nonfinite == "drop",
            strict_bounds=config.out_of_bounds == "error",
            reward_limit=reward_limit,
        )

    def reset(self, env_ix: int, seed: int | None = None) -> None:
        """Start a new episode in one environment; without a seed it goes on with its own generator."""
        observation, info = self._envs[env_ix].reset(seed=seed)
        while not self._guard.begin(env_ix, observation):
            observation, info = self._envs[env_ix].reset()
        self._lives[env_ix] = info.get("lives", 0)
        told = np.shape(info.get(ACTION_MASK)) == (self.spec.action.n,)
        self.gives_mask = told and self.spec.mask is None

    def observe(self, env_ix: Sequence[int]) -> Obs:
        """Current observations (k, ...) of these environments, as copies."""
        ix = list(env_ix)
        return {name: rows[ix] for name, rows in self._guard.obs.items()}

    def step(self, env_ix: Sequence[int], action: Array) -> Step:
        """One env step in each of these environments. Raises StepError when one of them raises."""
        k = len(env_ix)
        step = Step(
            env_ix,
            self.observe(env_ix),
            action,
            np.empty(k, np.float64),
            np.empty(k, bool),
            np.empty(k, bool),
            next_obs={},
            boundary=np.zeros(k, bool) if self._life_loss else None,
        )
        if self._native:
            for row, i in enumerate(env_ix):
                self._envs[i].unwrapped.send(decode_action(self.spec.action, action[row]))
        for row, i in enumerate(env_ix):
            try:
                self._step_one(row, i, step)
            except BorderError:  # not a fault of the environment: something to type differently
                raise
            except (Exception, SystemExit) as e:
                step.dropped = np.zeros(k, bool)  # of those that were stepped before it
                step.dropped[:row] = self._guard.not_finite(env_ix[:row], step.reward[:row])
                raise StepError(i, self._rows(step, range(row)), env_ix[row + 1 :]) from e
        try:
            step.dropped = self._guard.unusable(env_ix, step.reward)
        except EnvDataError as e:
            raise self._unusable(step) from e
        step.next_obs = self.observe(env_ix)
        return step

    def remake(self, env_ix: int) -> None:
        """Close one environment and make it anew. That the old one cannot be closed is logged and changes nothing."""
        try:
            self._envs[env_ix].close()
        except Exception:
            _logger.exception("closing an environment failed")
        self._envs[env_ix] = make_gym(self._config, self._render_mode, self._native)

    def judged(self) -> dict[str, object]:
        """What the guard has counted."""
        return self._guard.state()

    def judged_before(self, saved: Mapping[str, Any]) -> AbstractContextManager[None]:
        """As of `JudgedEnv`."""
        return self._guard.judged_before(saved)

    def render(self, env_ix: int = 0) -> Any:
        """What the environment draws (see gymnasium's render modes)."""
        return self._envs[env_ix].render()

    def close(self) -> None:
        """Close every environment, also after one that raises then."""
        with ExitStack() as closing:
            for env in self._envs:
                closing.callback(env.close)

    def _step_one(self, row: int, env_ix: int, step: Step) -> None:
        result = self._envs[env_ix].step(decode_action(self.spec.action, step.action[row]))
        observation, step.reward[row], step.terminated[row], step.truncated[row], info = result
        self._guard.take(env_ix, observation)
        if step.boundary is not None:
            lives = info.get("lives", 0)
            step.boundary[row] = lives < self._lives[env_ix]
            self._lives[env_ix] = lives

    def _unusable(self, step: Step) -> StepError:
        """The first environment whose numbers cannot be used, after all have been stepped."""
        bad = self._guard.not_finite(step.env_ix, step.reward)
        first = int(bad.argmax())
        step.dropped = bad
        others = [row for row in range(len(step.env_ix)) if row != first]
        return StepError(step.env_ix[first], self._rows(step, others), ())

    def _rows(self, step: Step, rows: Sequence[int]) -> Step | None:
        """What some of the environments of a step did; None for none."""
        if not rows:
            return None
        ix, env_ix = list(rows), [step.env_ix[row] for row in rows]
        return Step(
            env_ix,
            {name: column[ix] for name, column in step.obs.items()},
            step.action[ix],
            step.reward[ix],
            step.terminated[ix],
            step.truncated[ix],
            self.observe(env_ix),
            None if step.dropped is None else step.dropped[ix],
            None if step.boundary is None else step.boundary[ix],
        )
