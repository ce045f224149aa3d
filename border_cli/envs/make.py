"""Makes one gymnasium environment, from its id or an import path, with the wrappers of the configuration."""

from __future__ import annotations

import functools
import importlib.util
import logging
from typing import Any

import gymnasium
import numpy as np

from border_cli.config.convert import nearest
from border_cli.config.registry import ENVS, import_path
from border_cli.config.schema import EnvConfig
from border_cli.core.errors import UsageError, first_line
from border_cli.core.spaces import ACTION_MASK
from border_cli.envs import atari
from border_cli.envs.atari import NativeGame

_EXTRAS = {
    "box2d": ("LunarLander", "BipedalWalker", "CarRacing"),
    "mujoco": (
        "Ant", "HalfCheetah", "Hopper", "Humanoid", "InvertedDoublePendulum", "InvertedPendulum", "Pusher", "Reacher",
        "Swimmer", "Walker2d",
    ),
    "atari": ("ALE/", "Pong", "Breakout"),
}  # fmt: skip
"""Extras of border-cli, each with the beginnings of the ids that it installs."""
_MODULES = {"box2d": "Box2D", "mujoco": "mujoco", "atari": "ale_py"}
_TRANSPARENT = (
    gymnasium.wrappers.TimeLimit,
    gymnasium.wrappers.OrderEnforcing,
    gymnasium.wrappers.PassiveEnvChecker,
    gymnasium.wrappers.RecordEpisodeStatistics,
)
"""Wrappers that leave observations as they are."""
_REGISTERING = (
    "env.imports=[module] imports what registers it, env.imports=[module:function] calls a function that does"
)
_logger = logging.getLogger(__name__)


def make_gym(
    config: EnvConfig, render_mode: str | None = None, native: bool = False
) -> gymnasium.Env[Any, Any]:
    """Make one environment. native: as a `NativeGame`. Raises UsageError for an unknown id or a missing extra."""
    for path in config.imports:
        register(path)
    kwargs = dict(config.kwargs)
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
    env = NativeGame(config) if native else _bare(config, kwargs)
    if config.preprocess == "atari" and config.fire_reset:
        env = atari.Fire(env)
    # gymnasium.make applies the limit of an environment that it makes by its id.
    by_id = not (ENVS[config.type].factory or config.entry_point) and config.preprocess == "none"
    if config.max_episode_steps is not None and not by_id:
        env = gymnasium.wrappers.TimeLimit(env, config.max_episode_steps)
    if config.frame_stack > 1:
        if ACTION_MASK in getattr(env.observation_space, "spaces", ()):
            raise UsageError(
                f"env.frame_stack={config.frame_stack} would stack the {ACTION_MASK} of the observations too\n"
                f"allowed: env.frame_stack=1, or a mask in the info of the environment"
            )
        env = gymnasium.wrappers.FrameStackObservation(env, config.frame_stack)
    return MaskFromInfo(env) if config.action_mask == "info" else env


def _bare(config: EnvConfig, kwargs: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """The environment before the wrappers that every kind gets; an Atari game is preprocessed."""
    is_game, entry = config.preprocess == "atari", ENVS[config.type]
    if is_game:
        kwargs = atari.game_arguments(config) | kwargs
    if entry.factory:
        env = _checked(entry.load()(config, **kwargs), f"env={config.type}")
    else:
        env = _from_entry_point(config, kwargs) if config.entry_point else _from_id(config, kwargs)
    return atari.preprocessed(env, config) if is_game else env


def stack_size(env: gymnasium.Env[Any, Any]) -> int:
    """How many observations a wrapper stacks, the newest last and the first one repeated at the start; 1 without one."""
    while isinstance(env, (*_TRANSPARENT, MaskFromInfo)):
        env = env.env
    if isinstance(env, gymnasium.wrappers.FrameStackObservation) and env.padding_type == "reset":
        return int(env.stack_size)
    return 1


class MaskFromInfo(gymnasium.Wrapper[Any, Any, Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """Adds info["action_mask"] to the observation, as a Dict. Without a mask in the info, all actions are allowed."""

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
        """Adds the mask to the observation."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._masked(observation, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Adds the mask to the observation."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._masked(observation, info), reward, terminated, truncated, info

    def _masked(self, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        mask = info.get(ACTION_MASK)
        given = np.ones(self._n, np.int8) if mask is None else np.asarray(mask).astype(np.int8)
        return {"obs": observation, ACTION_MASK: given}


@functools.cache
def register(path: str) -> None:
    """Import a module that registers environments, or call the function `module:function` for that; once in a process."""
    found = import_path(path, "env.imports")
    if ":" in path:
        found()


def _from_id(config: EnvConfig, kwargs: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    module, _, env_id = config.id.rpartition(":")
    if module:
        import_path(module, "env.id")
    if env_id.startswith("ALE/"):
        atari.register(env_id)
    spec = gymnasium.registry.get(env_id)
    if spec is not None and "mujoco" in str(spec.entry_point):
        _log_mujoco_warnings()
    if config.max_episode_steps is not None and config.preprocess == "none":
        kwargs = {"max_episode_steps": config.max_episode_steps} | kwargs
    try:
        # `EnvChecker` checks more than gymnasium's checker does, and in every process.
        return gymnasium.make(env_id, **{"disable_env_checker": True, **kwargs})
    except (
        gymnasium.error.NameNotFound,
        gymnasium.error.NamespaceNotFound,
        gymnasium.error.VersionNotFound,
    ) as e:
        match = nearest(env_id, gymnasium.registry)
        hint = f"nearest: {match}" if match else _REGISTERING
        raise UsageError(f"env.id: there is no environment {env_id!r}\n{hint}{_install_hint(env_id)}") from e
    except gymnasium.error.DeprecatedEnv as e:
        raise UsageError(f"env.id: {env_id!r} is deprecated\n{first_line(e)}") from e
    except gymnasium.error.DependencyNotInstalled as e:
        hint = _install_hint(env_id, e)
        raise UsageError(f"env.id: {env_id!r} needs a package that is not installed{hint}") from e
    except gymnasium.error.Error as e:
        raise UsageError(f"env.id: {env_id!r} cannot be made\n{first_line(e)}") from e


def _install_hint(env_id: str, error: Exception | None = None) -> str:
    """A newline and what to install; empty if nothing is known to help."""
    extra = next((extra for extra, names in _EXTRAS.items() if env_id.startswith(names)), None)
    if extra and (error is not None or importlib.util.find_spec(_MODULES[extra]) is None):
        return f"\ninstall it with: pip install 'border-cli[{extra}]'"
    return f"\n{first_line(error)}" if error and str(error) else ""


@functools.cache
def _log_mujoco_warnings() -> None:
    """Send MuJoCo's warnings to the log, each once per process."""
    try:
        import mujoco  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ModuleNotFoundError:
        return
    mujoco.set_mju_user_warning(functools.cache(lambda message: _logger.info("MuJoCo: %s", message)))


def _from_entry_point(config: EnvConfig, kwargs: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    module, _, name = str(config.entry_point).partition(":")
    maker = getattr(import_path(module, "env.entry_point"), name, None) if name else None
    if maker is None:
        raise UsageError(
            f"env.entry_point: {config.entry_point!r} has no such class or function\nform: module:name"
        )
    return _checked(maker(**kwargs), f"env.entry_point: {config.entry_point!r}")


def _checked(env: Any, label: str) -> gymnasium.Env[Any, Any]:
    if not isinstance(env, gymnasium.Env):
        raise UsageError(f"{label} gave a {type(env).__name__}\nallowed: gymnasium.Env")
    return env
