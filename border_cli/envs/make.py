"""Makes one gymnasium environment, from its id or an import path, with the wrappers of the configuration."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.util
import inspect
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from border_cli.config.convert import as_typed
from border_cli.config.registry import ENVS, import_path, nearest_path
from border_cli.config.schema import EnvConfig, WrapperConfig
from border_cli.core.errors import BorderError, UsageError, first_line, nearest
from border_cli.core.spaces import ACTION_MASK
from border_cli.envs import atari
from border_cli.envs.vector import SubEnv, Vector

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
_logger = logging.getLogger(__name__)


def make_gym(
    config: EnvConfig, render_mode: str | None = None, base: gymnasium.Env[Any, Any] | None = None
) -> gymnasium.Env[Any, Any]:
    """Make one environment, or wrap `base`. Raises UsageError for an unknown id or a missing extra."""
    env = base or (next(sub_envs(config, 1, render_mode)) if config.vector else _bare(config, render_mode))
    if config.preprocess == "atari" and config.fire_reset:
        env = atari.Fire(env)
    if config.max_episode_steps is not None and not config.vector:
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
    for layer in _layers(env):
        if isinstance(layer, gymnasium.wrappers.FrameStackObservation):  # ours, or one of the user's
            layer.env = CopiedObservation(layer.env)
    return MaskFromInfo(env) if config.action_mask == "info" else env


def sub_envs(config: EnvConfig, n_envs: int, render_mode: str | None = None) -> Iterator[SubEnv]:
    """Make a vector environment, and its sub-environments without wrappers. Raises UsageError."""
    limit = {} if config.max_episode_steps is None else {"max_episode_steps": config.max_episode_steps}
    vector = Vector(_bare(config, render_mode, num_envs=n_envs, **limit))
    yield from (SubEnv(vector, i) for i in range(n_envs))


def _bare(config: EnvConfig, render_mode: str | None, **more: Any) -> Any:
    """The environment before the wrappers that every kind gets; an Atari game is preprocessed. more: its arguments."""
    for registering in config.imports:
        register(registering)
    kwargs = config.kwargs | more | ({} if render_mode is None else {"render_mode": render_mode})
    is_game, entry = config.preprocess == "atari", ENVS[config.type]
    if is_game and config.entry_point is None:  # every frame, and only the actions that the game uses
        sticky = {"repeat_action_probability": config.sticky_actions}
        kwargs = {"frameskip": 1, "full_action_space": False} | sticky | kwargs
    if entry.factory:
        env = _checked(entry.load()(config, **kwargs), f"env={config.type}", config.vector)
    elif config.entry_point:
        made = maker(config)(**kwargs)
        env = _checked(made, f"env.entry_point: {config.entry_point!r}", config.vector)
    else:
        env = _from_id(config, kwargs)
    if env.render_mode == "human" and "render_mode" not in kwargs:
        env.unwrapped.render_mode = None  # the default of some classes: a window in each process
    return atari.preprocessed(env, config) if is_game else env


def maker(config: EnvConfig) -> Any:
    """The class or function that `env.entry_point` names. Raises UsageError where there is none."""
    path = config.entry_point or ""
    if ":" not in path:
        raise UsageError(
            f"env.entry_point: {path!r} names no class or function",
            nearest=nearest_path(path),
            allowed="module:name",
        )
    return import_path(path, "env.entry_point")


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
        kwargs, expected = dict(wrapper.kwargs), inspect.signature(make).parameters
        for key, value in wrapper.kwargs.items():
            if isinstance(value, list) and key in expected and "ndarray" in str(expected[key].annotation):
                kwargs[key] = np.array(value)
        wrapped = make(env, **kwargs)
    except Exception as e:
        if isinstance(e, BorderError):
            raise
        raise UsageError(
            f"env.wrappers: {name} cannot be made: {type(e).__name__}: {first_line(e)}\n"
            f"its arguments: {as_typed(wrapper.kwargs)}; they are given as {{name: {name}, kwargs: {{…}}}}"
        ) from e
    return _checked(wrapped, f"env.wrappers: {name}")


def _limited(env: gymnasium.Env[Any, Any], limit: int) -> gymnasium.Env[Any, Any]:
    """The environment with this limit of env steps in place of its own."""
    limits = [layer for layer in _layers(env) if isinstance(layer, gymnasium.wrappers.TimeLimit)]
    for layer in limits:
        layer._max_episode_steps = limit
    return env if limits else gymnasium.wrappers.TimeLimit(env, limit)


def check_statistics(env: gymnasium.Env[Any, Any]) -> None:
    """Raise UsageError for an environment that normalises by running statistics of its own, different in each process.

    Such statistics are of a class RunningMeanStd, or have the names of known wrappers, and are not fixed.
    """
    for layer in _layers(env):
        for name, value in vars(layer).items():
            is_running = name in _STATISTICS or type(value).__name__ == "RunningMeanStd"
            if is_running and getattr(layer, "update_running_mean", True):
                raise UsageError(
                    f"env: {type(layer).__name__} normalises by running statistics of its own, which differ in each "
                    "actor and evaluation",
                    allowed="without it, agent.normalize_obs=true or agent.reward_clip, or a wrapper with a fixed scale",
                )


def _layers(env: gymnasium.Env[Any, Any]) -> Iterator[gymnasium.Env[Any, Any]]:
    """The wrappers of an environment, from the outermost, and the environment in them."""
    yield env
    while isinstance(env, gymnasium.Wrapper | gymnasium.vector.VectorWrapper | SubEnv):
        env = env.env
        yield env


@functools.cache
def register(path: str) -> None:
    """Import a module that registers environments, or call the function `module:function` for that; once in a process."""
    imported = import_path(path, "env.imports")
    if ":" in path:
        imported()


def _from_id(config: EnvConfig, kwargs: dict[str, Any]) -> Any:
    module, _, env_id = config.id.rpartition(":")
    if module:
        import_path(module, "env.id")
    if env_id.startswith("ALE/"):
        atari.register(env_id)
    spec = gymnasium.registry.get(env_id)
    extra = re.search(r"gymnasium\.envs\.(box2d|mujoco)\b", str(spec and spec.entry_point))
    if extra and extra[1] == "mujoco":
        _log_mujoco_warnings()
    try:
        # `EnvChecker` checks more than gymnasium's checker does, and in every process.
        mode = "vector_entry_point" if config.vector and spec and spec.vector_entry_point else ""
        if kwargs.get("vectorization_mode", mode) != "vector_entry_point":
            kwargs = {"disable_env_checker": True, **kwargs}
        return (gymnasium.make_vec if config.vector else gymnasium.make)(env_id, **kwargs)
    except gymnasium.error.DependencyNotInstalled as e:
        hint = f"install it with: pip install 'border-cli[{extra[1]}]'" if extra else first_line(e)
        raise UsageError(f"env.id: {env_id!r} needs a package that is not installed\n{hint}") from e
    except gymnasium.error.UnregisteredEnv as e:
        hint = _registered(env_id, [module, *config.imports])
        raise UsageError(f"env.id: there is no environment {env_id!r}\n{hint}") from e
    except gymnasium.error.Error as e:
        raise UsageError(f"env.id: {env_id!r} cannot be made\n{first_line(e)}") from e


def _registered(env_id: str, imports: Sequence[str]) -> str:
    """A hint for an unknown id: the module that registers it, a similar id, or the ids of the imported packages."""
    packages = {re.split("[.:/]", name)[0] for name in (*imports, env_id)} - {"", "gymnasium", "__main__"}
    brought = [
        name
        for name, spec in gymnasium.registry.items()
        if str(spec.entry_point).partition(".")[0] in packages
    ]
    paths = [] if brought else [path for path in _registering(env_id, packages) if path not in imports]
    if paths:
        return f"nearest: env.imports=[{paths[0]}]"
    if match := nearest(env_id, brought) or nearest(env_id, gymnasium.registry):
        return f"nearest: {match}"
    return f"allowed: {', '.join(brought[:_SHOWN_IDS])}" if brought else _REGISTERING


def _registering(env_id: str, packages: Iterable[str]) -> list[str]:
    """Modules, or functions in them, whose text registers ids; first those that name this id. Nothing is imported."""
    paths = {}
    for spec in filter(None, map(importlib.util.find_spec, packages)):
        for root in map(Path, spec.submodule_search_locations or ()):
            for file in filter(Path.is_file, root.rglob("*.py")):
                text = file.read_text("utf-8", "ignore")
                if "gymnasium" in text and "register(" in text:
                    function = re.search(r"^def (register\w*)\(\)", text, re.M)
                    module = ".".join(file.relative_to(root.parent).with_suffix("").parts)
                    module = module.removesuffix(".__init__")
                    paths[f"{module}:{function[1]}" if function else module] = env_id not in text
    return sorted(paths, key=lambda path: (paths[path], path))


@functools.cache
def _log_mujoco_warnings() -> None:
    """Send MuJoCo's warnings to the log, each once per process."""
    with contextlib.suppress(ModuleNotFoundError):
        import mujoco  # type: ignore[import-untyped, import-not-found, unused-ignore]

        mujoco.set_mju_user_warning(functools.cache(lambda message: _logger.info("MuJoCo: %s", message)))


def _checked(env: Any, label: str, vector: bool = False) -> Any:
    if not isinstance(env, gymnasium.vector.VectorEnv if vector else gymnasium.Env):
        hint = "; docs/extending/environment.md wraps one of the old gym" if hasattr(env, "step") else ""
        hint = ", or a VectorEnv with env.vector=true" if hasattr(env, "num_envs") else hint
        allowed = "gymnasium.vector.VectorEnv" if vector else f"gymnasium.Env{hint}"
        name = f"{type(env).__module__}.{type(env).__qualname__}"
        raise UsageError(f"{label} returned a {name}", allowed=allowed)
    return env


# -- wrappers of ours --------------------------------------------------------------

MAX_COMBINATIONS = 4096


def flatten_actions(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Number the combinations of a MultiDiscrete or MultiBinary action space, the last component changing fastest.

    Raises UsageError for more than 4,096 of them, and for other spaces.
    """
    space = env.action_space
    sizes = component_sizes(space)
    if not 0 < prod(sizes) <= MAX_COMBINATIONS:
        raise UsageError(
            f"env.wrappers: FlattenActions cannot number the actions of {space}",
            allowed=f"MultiDiscrete and MultiBinary with at most {MAX_COMBINATIONS:,} combinations",
        )

    def combination(number: Any) -> Any:
        values = np.reshape(np.unravel_index(int(number), sizes), space.shape) + getattr(space, "start", 0)
        return values.astype(space.dtype)

    return gymnasium.wrappers.TransformAction(env, combination, spaces.Discrete(prod(sizes)))


def component_sizes(space: spaces.Space[Any]) -> list[int]:
    """How many values each component of a MultiDiscrete or MultiBinary space has; [0] for another space."""
    if isinstance(space, spaces.MultiBinary):
        return [2] * prod(space.shape)
    return space.nvec.ravel().tolist() if isinstance(space, spaces.MultiDiscrete) else [0]


def int_actions(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Give actions as Python's int."""
    return gymnasium.wrappers.TransformAction(env, int, env.action_space)


def bound_actions(
    env: gymnasium.Env[Any, Any], low: float | Sequence[float], high: float | Sequence[float]
) -> gymnasium.Env[Any, Any]:
    """Give finite bounds to a Box of actions: one number for all components, or one for each."""
    shape, dtype = env.action_space.shape, env.action_space.dtype
    bounds = [np.broadcast_to(np.asarray(bound, dtype), shape) for bound in (low, high)]
    return gymnasium.wrappers.TransformAction(env, lambda action: action, spaces.Box(*bounds, dtype=dtype))


class CopiedObservation(gymnasium.ObservationWrapper[Any, Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """Copies each observation, for a wrapper that keeps some while the environment changes its own array in place."""

    def __getattr__(self, name: str) -> Any:
        """Attributes of the environment, as if this wrapper were not there."""
        return getattr(self.__dict__["env"], name)

    def observation(self, observation: Any) -> Any:
        return copy.deepcopy(observation)


class MaskFromInfo(gymnasium.Wrapper[Any, Any, Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """Adds info["action_mask"] to the observation, as a Dict. Without a mask in the info, all actions are allowed."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        if not isinstance(env.action_space, spaces.Discrete):
            raise UsageError(
                "env.action_mask=info: only one of a finite number of actions can be forbidden",
                allowed="environments with a Discrete action space, or env.action_mask=none",
            )
        self._n = int(env.action_space.n)
        self.observation_space = spaces.Dict(
            {"obs": env.observation_space, ACTION_MASK: spaces.MultiBinary(self._n)}
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._masked(observation, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._masked(observation, info), reward, terminated, truncated, info

    def _masked(self, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        mask = info.get(ACTION_MASK)
        mask = np.ones(self._n, np.int8) if mask is None else np.asarray(mask).astype(np.int8)
        return {"obs": observation, ACTION_MASK: mask}


_WRAPPERS: dict[str, Any] = {
    name: wrapper
    for name, wrapper in sorted(vars(gymnasium.wrappers).items())
    if isinstance(wrapper, type) and issubclass(wrapper, gymnasium.Wrapper)
} | {"BoundActions": bound_actions, "FlattenActions": flatten_actions, "IntActions": int_actions}
"""By the names that `env.wrappers` takes."""
