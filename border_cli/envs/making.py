"""Making one gymnasium environment: by its id or by an import path, with the wrappers that the configuration asks for."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from border_cli.config.schema import EnvConfig
from border_cli.core.errors import UsageError
from border_cli.core.spaces import ACTION_MASK
from border_cli.envs import atari
from border_cli.envs.extras import install_hint
from border_cli.envs.mujoco import log_warnings
from border_cli.envs.native_atari import NativeGame

_TRANSPARENT = (
    gymnasium.wrappers.TimeLimit,
    gymnasium.wrappers.OrderEnforcing,
    gymnasium.wrappers.PassiveEnvChecker,
    gymnasium.wrappers.RecordEpisodeStatistics,
)
"""Wrappers that leave observations as they are."""


def make_gym(
    config: EnvConfig, render_mode: str | None = None, native: bool = False
) -> gymnasium.Env[Any, Any]:
    """Make one environment. Raises UsageError for a mistake in the id, an extra that is missing, or bad arguments.

    native: the innermost one is a `NativeGame`.
    """
    for module in config.imports:
        _import(module)
    kwargs = dict(config.kwargs)
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
    env = _bare(config, kwargs, native)
    if config.preprocess == "atari" and config.fire_reset:
        env = atari.Fire(env)
    if config.max_episode_steps is not None and (config.entry_point or config.preprocess != "none"):
        env = gymnasium.wrappers.TimeLimit(env, config.max_episode_steps)
    if config.frame_stack > 1:
        if ACTION_MASK in getattr(env.observation_space, "spaces", ()):
            raise UsageError(
                f"env.frame_stack={config.frame_stack} would stack the {ACTION_MASK} of the observations too\n"
                f"allowed: env.frame_stack=1, or a mask in the info of the environment"
            )
        env = gymnasium.wrappers.FrameStackObservation(env, config.frame_stack)
    return MaskFromInfo(env) if config.action_mask == "info" else env


def _bare(config: EnvConfig, kwargs: dict[str, Any], native: bool) -> gymnasium.Env[Any, Any]:
    """Without what is the same for all: an Atari game is preprocessed, as it is where it is native."""
    if native:
        return NativeGame(config)
    if config.preprocess == "atari":
        kwargs = atari.game_arguments(config) | kwargs
    env = _from_entry_point(config, kwargs) if config.entry_point else _from_id(config, kwargs)
    return atari.preprocessed(env, config) if config.preprocess == "atari" else env


def stack_size(env: gymnasium.Env[Any, Any]) -> int:
    """How many observations of an environment its wrapper stacks, the newest last and the first repeated; else 1."""
    while isinstance(env, (*_TRANSPARENT, MaskFromInfo)):
        env = env.env
    if isinstance(env, gymnasium.wrappers.FrameStackObservation) and env.padding_type == "reset":
        return int(env.stack_size)
    return 1


class MaskFromInfo(gymnasium.Wrapper[Any, Any, Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """Puts info["action_mask"] beside the observation, as a Dict of both. Without one in the info all is allowed."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        if not isinstance(env.action_space, gymnasium.spaces.Discrete):
            raise UsageError(
                "env.action_mask=info: only one of a finite number of actions can be forbidden\n"
                "allowed: environments with a Discrete action space, or env.action_mask=none"
            )
        self._n = int(env.action_space.n)
        self.observation_space = gymnasium.spaces.Dict(
            {"obs": env.observation_space, ACTION_MASK: gymnasium.spaces.MultiBinary(self._n)}
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """As the environment's own, with the mask."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._masked(observation, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the environment's own, with the mask."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._masked(observation, info), reward, terminated, truncated, info

    def _masked(self, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        mask = info.get(ACTION_MASK)
        given = np.ones(self._n, np.int8) if mask is None else np.asarray(mask).astype(np.int8)
        return {"obs": observation, ACTION_MASK: given}


def _from_id(config: EnvConfig, kwargs: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    module, _, env_id = config.id.rpartition(":")
    if module:
        _import(module)
    if env_id.startswith("ALE/"):
        atari.register(env_id)
    if _is_mujoco(env_id):
        log_warnings()
    own_limit = config.max_episode_steps if config.preprocess == "none" else None
    limit = {} if own_limit is None else {"max_episode_steps": own_limit}
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


def _is_mujoco(env_id: str) -> bool:
    spec = gymnasium.registry.get(env_id)
    return spec is not None and "mujoco" in str(spec.entry_point)


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
