"""Makes one gymnasium environment, from its id or an import path, with the wrappers of the configuration."""

from __future__ import annotations

import copy
import functools
import importlib.util
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np

from border_cli.config.convert import as_typed, nearest, nearest_line
from border_cli.config.registry import ENVS, import_path, nearest_path
from border_cli.config.schema import EnvConfig, WrapperConfig
from border_cli.core.errors import BorderError, UsageError, first_line
from border_cli.core.spaces import ACTION_MASK
from border_cli.envs import atari
from border_cli.envs.atari import NativeGame
from border_cli.envs.spaces import is_taken, part_name

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
_STATISTICS = ("obs_rms", "ret_rms", "return_rms", "rew_rms", "reward_rms")
GYMNASIUM_WRAPPERS: dict[str, Any] = {
    name: found
    for name, found in sorted(vars(gymnasium.wrappers).items())
    if isinstance(found, type) and issubclass(found, gymnasium.Wrapper)
}
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
    for wrapper in config.wrappers:
        env = _wrapped(CopiedObservation(env), wrapper)
    env = _with_parts(env, config.obs_keys)
    if config.frame_stack > 1:
        if ACTION_MASK in getattr(env.observation_space, "spaces", ()):
            raise UsageError(
                f"env.frame_stack={config.frame_stack} would stack the {ACTION_MASK} of the observations too\n"
                f"allowed: env.frame_stack=1, or a mask in the info of the environment"
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
    if is_game:
        kwargs = atari.game_arguments(config) | kwargs
    if entry.factory:
        env = _checked(entry.load()(config, **kwargs), f"env={config.type}")
    else:
        env = _from_entry_point(config, kwargs) if config.entry_point else _from_id(config, kwargs)
    return atari.preprocessed(env, config) if is_game else env


def stack_size(env: gymnasium.Env[Any, Any]) -> int:
    """How many observations a wrapper stacks, the newest last and the first one repeated at the start; 1 without one."""
    while isinstance(env, (*_TRANSPARENT, CopiedObservation, SelectedParts, MaskFromInfo)):
        env = env.env
    if isinstance(env, gymnasium.wrappers.FrameStackObservation) and env.padding_type == "reset":
        return int(env.stack_size)
    return 1


class CopiedObservation(gymnasium.ObservationWrapper[Any, Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """Copies each observation, for a wrapper that keeps some while the environment changes its own array in place."""

    def __getattr__(self, name: str) -> Any:
        """As if the wrapper around it had the environment itself."""
        return getattr(self.__dict__["env"], name)

    def observation(self, observation: Any) -> Any:
        """A copy."""
        return copy.deepcopy(observation)


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


class SelectedParts(gymnasium.ObservationWrapper[Any, Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """Keeps some parts of a Dict observation.

    Args:
        paths: the keys that lead to each part that is kept, through Dicts alone.
        left_out: names of the other parts, with the kinds of their spaces, unless the user has left them out.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], paths: Sequence[Sequence[str]], left_out: Sequence[str]
    ) -> None:
        super().__init__(env)
        self.left_out = left_out
        self._kept: dict[str, Any] = {}  # nested as the parts are; None: all below it
        for path in paths:
            branch = self._kept
            for key in path[:-1]:
                branch = branch.setdefault(key, {})
            branch[path[-1]] = None
        self.observation_space = self._space(env.observation_space, self._kept)

    def observation(self, observation: Any) -> dict[str, Any]:
        """The parts that are kept."""
        return self._parts(observation, self._kept)

    def _space(self, space: Any, kept: dict[str, Any]) -> gymnasium.spaces.Dict:
        return gymnasium.spaces.Dict(
            {
                key: space[key] if below is None else self._space(space[key], below)
                for key, below in kept.items()
            }
        )

    def _parts(self, observation: Any, kept: dict[str, Any]) -> dict[str, Any]:
        return {
            key: observation[key] if below is None else self._parts(observation[key], below)
            for key, below in kept.items()
        }


def _with_parts(env: gymnasium.Env[Any, Any], keys: Sequence[str]) -> gymnasium.Env[Any, Any]:
    """The environment with the parts of its observation that `env.obs_keys` names, or with all that an agent takes."""
    space = env.observation_space
    if not isinstance(space, gymnasium.spaces.Dict):
        if keys:
            raise UsageError(
                f"env.obs_keys={as_typed(list(keys))}: the observation is a {type(space).__name__}, which has no keys\n"
                "allowed: env.obs_keys=[] with it, or an environment with a Dict observation"
            )
        return env
    parts = list(_dict_parts(space))
    taken = [path for path, part in parts if is_taken(part)]
    allowed = [name for path in taken if (name := part_name(path)) != ACTION_MASK]
    kept = taken
    if keys:
        kept = [path for path in taken if path == (ACTION_MASK,)]
        for key in keys:
            found = [(path, part) for path, part in parts if f"{part_name(path)}.".startswith(f"{key}.")]
            refused = [
                f"{part_name(path)!r} is a {type(part).__name__}" for path, part in found if path not in taken
            ]
            if not found or refused:
                problem = f"{refused[0]}, which no agent takes" if refused else f"there is no {key!r}"
                match = "" if refused else nearest_line(nearest(key, allowed))
                raise UsageError(f"env.obs_keys: {problem}\nallowed: {', '.join(allowed)}{match}")
            kept += [path for path, _ in found if path not in kept]
    if len(kept) == len(parts) or not allowed:  # without any part left, `env_spec` says what is allowed
        return env
    left_out = [] if keys else [f"{part_name(p)} ({type(s).__name__})" for p, s in parts if p not in kept]
    return SelectedParts(env, [path for path, _ in parts if path in kept], left_out)


def _dict_parts(space: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The spaces in a Dict, and in the Dicts in it, with the keys that lead to them."""
    for key, part in space.spaces.items():
        if isinstance(part, gymnasium.spaces.Dict):
            yield from _dict_parts(part, (*path, key))
        else:
            yield (*path, key), part


def _wrapped(env: gymnasium.Env[Any, Any], wrapper: WrapperConfig) -> gymnasium.Env[Any, Any]:
    """The environment in a wrapper of the configuration. Raises UsageError where there is none, or it raises."""
    name = wrapper.name
    if ":" in name:
        make = import_path(name, "env.wrappers")
    else:
        make = GYMNASIUM_WRAPPERS.get(name)
        if make is None:
            match = nearest_line(nearest_path(name) or nearest(name, GYMNASIUM_WRAPPERS))
            raise UsageError(
                f"env.wrappers: gymnasium has no wrapper {name!r}\n"
                f"allowed: {', '.join(GYMNASIUM_WRAPPERS)}; others as module:name{match}"
            )
    try:
        made = make(env, **wrapper.kwargs)
    except BorderError:
        raise
    except Exception as e:
        raise UsageError(
            f"env.wrappers: {name} cannot be made: {type(e).__name__}: {first_line(e)}\n"
            f"its arguments: {as_typed(wrapper.kwargs)}; they are given as {{name: {name}, kwargs: {{…}}}}"
        ) from e
    return _checked(made, f"env.wrappers: {name}")


def own_statistics(env: gymnasium.Env[Any, Any]) -> tuple[str, bool] | None:
    """The layer of an environment that normalises by running statistics of its own, and whether it does so to rewards.

    Such statistics are attributes of a class RunningMeanStd, or called as in gymnasium's and other wrappers. None where
    there are none, or where they are fixed.
    """
    while True:
        for name, value in vars(env).items():
            found = name in _STATISTICS or type(value).__name__ == "RunningMeanStd"
            if found and getattr(env, "update_running_mean", True):
                return type(env).__name__, "ret" in name or "rew" in name
        if not isinstance(env, gymnasium.Wrapper):
            return None
        env = env.env


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
    path = str(config.entry_point)
    module, _, name = path.partition(":")
    maker = getattr(import_path(module, "env.entry_point"), name, None) if name else None
    if maker is None:
        raise UsageError(
            f"env.entry_point: {path!r} has no such class or function\n"
            f"form: module:name{nearest_line(nearest_path(path))}"
        )
    return _checked(maker(**kwargs), f"env.entry_point: {config.entry_point!r}")


def _checked(env: Any, label: str) -> gymnasium.Env[Any, Any]:
    if not isinstance(env, gymnasium.Env):
        raise UsageError(f"{label} gave a {type(env).__name__}\nallowed: gymnasium.Env")
    return env
