"""Makes one gymnasium environment, from its id or an import path, with the wrappers of the configuration."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import logging
import re
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from border_cli.config.convert import as_typed, nearest
from border_cli.config.registry import ENVS, import_path, nearest_path
from border_cli.config.schema import EnvConfig, WrapperConfig
from border_cli.core.errors import BorderError, UsageError, first_line
from border_cli.core.spaces import ACTION_MASK
from border_cli.envs import atari
from border_cli.envs.atari import NativeGame
from border_cli.envs.wrappers import (
    CopiedObservation,
    MaskFromInfo,
    bound_actions,
    flatten_actions,
    int_actions,
)

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
_SHOWN_IDS = 20
_STATISTICS = ("obs_rms", "ret_rms", "return_rms", "rew_rms", "reward_rms")
_WRAPPERS: dict[str, Any] = {
    name: wrapper
    for name, wrapper in sorted(vars(gymnasium.wrappers).items())
    if isinstance(wrapper, type) and issubclass(wrapper, gymnasium.Wrapper)
} | {"BoundActions": bound_actions, "FlattenActions": flatten_actions, "IntActions": int_actions}
"""By the names that `env.wrappers` takes."""
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
    if config.max_episode_steps is not None:
        env = _limited(env, config.max_episode_steps)
    for wrapper in config.wrappers:
        env = _wrapped(CopiedObservation(env), wrapper)
    if config.frame_stack > 1:
        if ACTION_MASK in getattr(env.observation_space, "spaces", ()):
            raise UsageError(
                f"env.frame_stack={config.frame_stack} would stack the {ACTION_MASK} of the observations too",
                allowed="env.frame_stack=1, or a mask in the info of the environment",
            )
        env = gymnasium.wrappers.FrameStackObservation(env, config.frame_stack)
    layer = env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, gymnasium.wrappers.FrameStackObservation):  # ours, or one of the user's
            layer.env = CopiedObservation(layer.env)
        layer = layer.env
    return MaskFromInfo(env) if config.action_mask == "info" else env


def _bare(config: EnvConfig, kwargs: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """The environment before the wrappers that every kind gets; an Atari game is preprocessed."""
    is_game, entry = config.preprocess == "atari", ENVS[config.type]
    if is_game and config.entry_point is None:  # every frame, and only the actions that the game uses
        sticky = {"repeat_action_probability": config.sticky_actions}
        kwargs = {"frameskip": 1, "full_action_space": False} | sticky | kwargs
    if entry.factory:
        env = _checked(entry.load()(config, **kwargs), f"env={config.type}")
    else:
        env = _from_entry_point(config, kwargs) if config.entry_point else _from_id(config, kwargs)
    if env.render_mode == "human" and "render_mode" not in kwargs:
        env.unwrapped.render_mode = None  # the default of some classes: a window in each process
    return atari.preprocessed(env, config) if is_game else env


def stack_size(env: gymnasium.Env[Any, Any]) -> int:
    """How many observations a wrapper stacks, the newest last and the first one repeated at the start; 1 without one."""
    while isinstance(env, (*_TRANSPARENT, CopiedObservation, MaskFromInfo)):
        env = env.env
    if isinstance(env, gymnasium.wrappers.FrameStackObservation) and env.padding_type == "reset":
        return int(env.stack_size)
    return 1


def _wrapped(env: gymnasium.Env[Any, Any], wrapper: WrapperConfig) -> gymnasium.Env[Any, Any]:
    """The environment in a wrapper of the configuration. Raises UsageError where there is none, or it raises."""
    name = wrapper.name
    if ":" in name:
        make = import_path(name, "env.wrappers")
    else:
        make = _WRAPPERS.get(name)
        if make is None:
            raise UsageError(
                f"env.wrappers: there is no wrapper {name!r}",
                nearest=nearest_path(name) or nearest(name, _WRAPPERS),
                allowed=["module:name", *_WRAPPERS],
            )
    try:
        wrapped = make(env, **_with_arrays(make, wrapper.kwargs))
    except BorderError:
        raise
    except Exception as e:
        raise UsageError(
            f"env.wrappers: {name} cannot be made: {type(e).__name__}: {first_line(e)}\n"
            f"its arguments: {as_typed(wrapper.kwargs)}; they are given as {{name: {name}, kwargs: {{…}}}}"
        ) from e
    return _checked(wrapped, f"env.wrappers: {name}")


def _with_arrays(make: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments, with arrays in place of lists where the annotation asks for an array."""
    expected = inspect.signature(make).parameters
    return {
        name: np.array(value)
        if isinstance(value, list) and name in expected and "ndarray" in str(expected[name].annotation)
        else value
        for name, value in kwargs.items()
    }


def _limited(env: gymnasium.Env[Any, Any], limit: int) -> gymnasium.Env[Any, Any]:
    """The environment with this limit of env steps in place of its own."""
    layer, has_limit = env, False
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, gymnasium.wrappers.TimeLimit):
            layer._max_episode_steps, has_limit = limit, True
        layer = layer.env
    return env if has_limit else gymnasium.wrappers.TimeLimit(env, limit)


def check_statistics(env: gymnasium.Env[Any, Any]) -> None:
    """Raise UsageError for an environment that normalises by running statistics of its own, different in each process.

    They are attributes of a class RunningMeanStd, or called as in gymnasium's and other wrappers, and are not fixed.
    """
    layer = env
    while True:
        for name, value in vars(layer).items():
            is_running = name in _STATISTICS or type(value).__name__ == "RunningMeanStd"
            if is_running and getattr(layer, "update_running_mean", True):
                what, instead = "observations", "agent.normalize_obs=true"
                if "ret" in name or "rew" in name:
                    what, instead = (
                        "rewards",
                        "agent.reward_clip, or a wrapper of your own with a fixed scale",
                    )
                raise UsageError(
                    f"env: {type(layer).__name__} normalises {what} by running statistics of its own, which differ in "
                    "each actor and evaluation",
                    allowed=f"{instead} instead of it",
                )
        if not isinstance(layer, gymnasium.Wrapper):
            return
        layer = layer.env


@functools.cache
def register(path: str) -> None:
    """Import a module that registers environments, or call the function `module:function` for that; once in a process."""
    imported = import_path(path, "env.imports")
    if ":" in path:
        imported()


def _from_id(config: EnvConfig, kwargs: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    module, _, env_id = config.id.rpartition(":")
    if module:
        import_path(module, "env.id")
    if env_id.startswith("ALE/"):
        atari.register(env_id)
    spec = gymnasium.registry.get(env_id)
    if spec is not None and "mujoco" in str(spec.entry_point):
        _log_mujoco_warnings()
    try:
        # `EnvChecker` checks more than gymnasium's checker does, and in every process.
        return gymnasium.make(env_id, **{"disable_env_checker": True, **kwargs})
    except (
        gymnasium.error.NameNotFound,
        gymnasium.error.NamespaceNotFound,
        gymnasium.error.VersionNotFound,
    ) as e:
        hint = _registering(env_id, [module, *config.imports])
        raise UsageError(f"env.id: there is no environment {env_id!r}\n{hint}{_install_hint(env_id)}") from e
    except gymnasium.error.DeprecatedEnv as e:
        raise UsageError(f"env.id: {env_id!r} is deprecated\n{first_line(e)}") from e
    except gymnasium.error.DependencyNotInstalled as e:
        hint = _install_hint(env_id, e)
        raise UsageError(f"env.id: {env_id!r} needs a package that is not installed{hint}") from e
    except gymnasium.error.Error as e:
        raise UsageError(f"env.id: {env_id!r} cannot be made\n{first_line(e)}") from e


def _registering(env_id: str, imports: Sequence[str]) -> str:
    """Which id is like this one, or which ones the imported packages have registered."""
    packages = {re.split("[.:/]", name)[0] for name in (*imports, env_id)} - {"", "gymnasium"}
    brought = [
        name
        for name, spec in gymnasium.registry.items()
        if str(spec.entry_point).partition(".")[0] in packages
    ]
    if match := nearest(env_id, brought) or nearest(env_id, gymnasium.registry):
        return f"nearest: {match}"
    return f"allowed: {', '.join(brought[:_SHOWN_IDS])}" if brought else _REGISTERING


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
    path = str(config.entry_point)
    module, _, name = path.partition(":")
    maker = getattr(import_path(module, "env.entry_point"), name, None) if name else None
    if maker is None:
        raise UsageError(
            f"env.entry_point: {path!r} has no such class or function",
            nearest=nearest_path(path),
            allowed="module:name",
        )
    return _checked(maker(**kwargs), f"env.entry_point: {config.entry_point!r}")


def _checked(env: Any, label: str) -> gymnasium.Env[Any, Any]:
    if not isinstance(env, gymnasium.Env):
        hint = "; docs/extending.md shows how to wrap one of the old gym" if hasattr(env, "step") else ""
        name = f"{type(env).__module__}.{type(env).__qualname__}"
        raise UsageError(f"{label} gave a {name}", allowed=f"gymnasium.Env{hint}")
    return env
