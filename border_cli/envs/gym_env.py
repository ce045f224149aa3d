"""The adapter over gymnasium environments: several of one kind, stepped together in one process."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from border_cli.config.schema import EnvConfig
from border_cli.core.errors import UsageError
from border_cli.core.protocols import Step
from border_cli.core.spaces import Array, EnvSpec, Obs
from border_cli.envs.extras import install_hint
from border_cli.envs.guard import ANY_REWARD, EnvGuard
from border_cli.envs.spaces import decode_action, env_spec


class GymEnv:
    """A group of gymnasium environments that implements `core.protocols.Env`.

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
        self._guard = EnvGuard(space, self.spec, n_envs, config.nonfinite == "drop", reward_limit)

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
        """One env step in each of these environments."""
        k = len(env_ix)
        obs = self.observe(env_ix)
        reward = np.empty(k, np.float64)
        terminated, truncated = np.empty(k, bool), np.empty(k, bool)
        for row, i in enumerate(env_ix):
            result = self._envs[i].step(decode_action(self.spec.action, action[row]))
            observation, reward[row], terminated[row], truncated[row], _ = result
            self._guard.take(i, observation)
        dropped = self._guard.unusable(env_ix, reward)
        return Step(env_ix, obs, action, reward, terminated, truncated, self.observe(env_ix), dropped)

    def render(self, env_ix: int = 0) -> Any:
        """What the environment draws (see gymnasium's render modes)."""
        return self._envs[env_ix].render()

    def close(self) -> None:
        """Close every environment."""
        for env in self._envs:
            env.close()


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
