"""The adapter over gymnasium environments: several of one kind, stepped together in one process."""

from __future__ import annotations

import difflib
import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import gymnasium
import numpy as np

from border_cli.config.schema import EnvConfig
from border_cli.core.errors import BorderError, UsageError
from border_cli.core.protocols import Step, StepError
from border_cli.core.spaces import Array, EnvSpec, Obs
from border_cli.envs.extras import install_hint
from border_cli.envs.guard import ANY_REWARD, EnvDataError, EnvGuard
from border_cli.envs.spaces import decode_action, env_spec

_logger = logging.getLogger(__name__)


class GymEnv:
    """A group of gymnasium environments that implements `envs.guard.JudgedEnv`.

    Nothing resets by itself: an environment that ended stays ended until `reset` is called for it.
    made: called after each environment, because making many can take long; what it raises ends the making.
    reward_limit: a reward beyond ± this counts as not finite. All it gives has passed an `EnvGuard`.
    """

    def __init__(
        self,
        config: EnvConfig,
        n_envs: int = 1,
        render_mode: str | None = None,
        made: Callable[[], None] = lambda: None,
        reward_limit: float = ANY_REWARD,
    ) -> None:
        self._config = config
        self._render_mode = render_mode
        self._envs: list[gymnasium.Env[Any, Any]] = []
        try:
            for _ in range(n_envs):
                self._envs.append(make_gym(config, render_mode))
                made()
        except BaseException:
            self.close()
            raise
        self.n_envs = n_envs
        space = self._envs[0].observation_space
        self.spec: EnvSpec = env_spec(space, self._envs[0].action_space)
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
        observation, _ = self._envs[env_ix].reset(seed=seed)
        while not self._guard.begin(env_ix, observation):
            observation, _ = self._envs[env_ix].reset()

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
        )
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
        self._envs[env_ix] = make_gym(self._config, self._render_mode)

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
        observation, step.reward[row], step.terminated[row], step.truncated[row], _ = result
        self._guard.take(env_ix, observation)

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
        )


def make_gym(config: EnvConfig, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """Make one environment. Raises UsageError for a mistake in the id, an extra that is missing, or bad arguments."""
    for module in config.imports:
        _import(module)
    kwargs = dict(config.kwargs)
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
    env = _from_entry_point(config, kwargs) if config.entry_point else _from_id(config, kwargs)
    if config.max_episode_steps is not None and config.entry_point:
        env = gymnasium.wrappers.TimeLimit(env, config.max_episode_steps)
    return env


def _from_id(config: EnvConfig, kwargs: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    module, _, env_id = config.id.rpartition(":")
    if module:
        _import(module)
    limit = {} if config.max_episode_steps is None else {"max_episode_steps": config.max_episode_steps}
    try:
        return gymnasium.make(env_id, **limit, **kwargs)
    except (
        gymnasium.error.NameNotFound,
        gymnasium.error.NamespaceNotFound,
        gymnasium.error.VersionNotFound,
    ) as e:
        near = difflib.get_close_matches(env_id, list(gymnasium.registry), n=3, cutoff=0.5)
        hint = f"nearest: {', '.join(near)}" if near else "env.imports=[module] imports what registers it"
        raise UsageError(f"env.id: there is no environment {env_id!r}\n{hint}{install_hint(env_id)}") from e
    except gymnasium.error.DeprecatedEnv as e:
        raise UsageError(f"env.id: {env_id!r} is deprecated\n{_first_line(e)}") from e
    except gymnasium.error.DependencyNotInstalled as e:
        raise UsageError(
            f"env.id: {env_id!r} needs a package that is not installed{install_hint(env_id, e)}"
        ) from e
    except gymnasium.error.Error as e:
        raise UsageError(f"env.id: {env_id!r} cannot be made\n{_first_line(e)}") from e


def _from_entry_point(config: EnvConfig, kwargs: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    module, _, name = str(config.entry_point).partition(":")
    maker: Callable[..., Any] | None = getattr(_import(module), name, None) if name else None
    if maker is None:
        raise UsageError(
            f"env.entry_point: {config.entry_point!r} has no such class or function\nform: module:name"
        )
    env = maker(**kwargs)
    if not isinstance(env, gymnasium.Env):
        raise UsageError(
            f"env.entry_point: {config.entry_point!r} gave a {type(env).__name__}\nallowed: gymnasium.Env"
        )
    return env


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as e:
        raise UsageError(
            f"env: module {module!r} cannot be imported: {e}\nit must be installed or on PYTHONPATH"
        ) from e


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
