"""The adapter over gymnasium environments: several of one kind, stepped together in one process."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np

from border_cli.config.schema import EnvConfig
from border_cli.core.errors import ActorLostError, BorderError, UsageError
from border_cli.core.protocols import Env
from border_cli.core.spaces import ACTION_MASK, Array, EnvSpec, decode_actions
from border_cli.core.state import State, check_like
from border_cli.core.types import Step
from border_cli.envs.checks import EnvChecker, EnvDataError, checked
from border_cli.envs.gym_spaces import env_spec
from border_cli.envs.make import make_gym, stack_size, sub_envs
from border_cli.runtime.stopping import handlers_restored

_SHOWN_ACTION = 100
_NUMBERS = (int, float, np.bool_, np.integer, np.floating)
_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def settings_restored() -> Iterator[None]:
    """Restore what is changed inside: warnings, settings of numpy and torch, signal handlers and the current folder."""
    folder = os.open(".", os.O_RDONLY)
    torch = sys.modules.get("torch")
    dtype, grad = (torch.get_default_dtype(), torch.is_grad_enabled()) if torch else (None, True)
    try:
        with warnings.catch_warnings(), np.errstate(), handlers_restored():
            yield
    finally:
        os.fchdir(folder)
        os.close(folder)
        if torch:
            torch.set_default_dtype(dtype)
            torch.set_grad_enabled(grad)


class GymEnv:
    """Environments of one kind. Implements `core.protocols.Env`; an `EnvChecker` checks what they return.

    Nothing resets by itself: an environment whose episode has ended waits until `reset` is called for it. An exception
    of an environment, SystemExit included, becomes ActorLostError, whose context says where it happened; a BorderError
    stays as it is.

    Args:
        owner: who acts in them, for messages.
        tick: called after each environment is made, because making many can take long.
        bases: the environments before the wrappers, all of which get their actions by `send` before the first one is
            stepped. By default they are made as `config` says.
        quiet: ignore warnings while environments are made, because `try_env` has printed them.

    Attributes:
        info_mask: shape of info["action_mask"] at the last reset; None without one.
    """

    together: list[int] | None = None

    def __init__(
        self,
        config: EnvConfig,
        n_envs: int = 1,
        owner: str = "the environment",
        *,
        render_mode: str | None = None,
        tick: Callable[[], None] = lambda: None,
        bases: Iterator[gymnasium.Env[Any, Any]] | None = None,
        quiet: bool = False,
    ) -> None:
        self.n_envs = n_envs
        self.envs: list[gymnasium.Env[Any, Any]] = []
        self._owner = owner
        self._sends = bases is not None
        with contextlib.ExitStack() as undo, self._failures("make"):
            undo.callback(self.close)
            for _ in range(n_envs):
                with settings_restored():
                    if quiet:
                        warnings.simplefilter("ignore")
                    self.envs.append(make_gym(config, render_mode, bases and next(bases)))
                tick()
            undo.pop_all()
        space = self.envs[0].observation_space
        self.spec = spec_of(self.envs[0], config)
        self.checker = EnvChecker(space, self.spec, n_envs)
        self.observe = self.checker.observe
        self.info_mask: tuple[int, ...] | None = None
        self._life_loss = config.preprocess == "atari" and config.life_loss
        self._lives = [0] * n_envs
        self._info_keys = config.info_keys
        self._missing_keys = set[str]()

    def reset(self, env_ix: int, seed: int | None = None) -> None:
        """Start a new episode in one environment; without a seed its own generator continues."""
        with self._failures("reset", env_ix):
            self.checker.begin(env_ix)
            observation, info = checked(self.envs[env_ix].reset(seed=seed), "reset")
            self.checker.take_first(env_ix, observation)
            self._lives[env_ix] = info.get("lives", 0)
        mask = info.get(ACTION_MASK)
        self.info_mask = None if mask is None else np.shape(mask)

    def step(self, env_ix: Sequence[int], action: Array) -> Step:
        k, checker = len(env_ix), self.checker
        reward, terminated, truncated = np.empty(k), np.empty(k, bool), np.empty(k, bool)
        lost = np.zeros(k, bool) if self._life_loss else None
        infos = np.full((k, len(self._info_keys)), np.nan) if self._info_keys else None
        obs, i = checker.observe(env_ix), env_ix[0]
        try:  # not by `_failures`: making a context manager takes as long as stepping CartPole
            actions = decode_actions(self.spec.action, action)
            if self._sends:
                for row, i in enumerate(env_ix):
                    self.envs[i].unwrapped.send(actions[row])
            checker.renew_arrays(whole=k == self.n_envs)
            for row, i in enumerate(env_ix):
                result = checked(self.envs[i].step(actions[row]), "step")
                observation, reward[row], terminated[row], truncated[row], info = result
                checker.take(i, observation)
                if lost is not None:
                    lives = info.get("lives", 0)
                    lost[row] = lives < self._lives[i]
                    self._lives[i] = lives
                if infos is not None and (terminated[row] or truncated[row]):
                    infos[row] = self._values(info)
            checker.check_finite(env_ix, reward)
        except (Exception, SystemExit) as e:
            if isinstance(e, BorderError):
                raise
            i = e.env_ix if isinstance(e, EnvDataError) else i
            raise self._lost(e, "step", i, action[list(env_ix).index(i)]) from e
        next_obs = checker.observe(env_ix)
        return Step(env_ix, obs, action, reward, terminated, truncated, next_obs, lost, infos)

    def _values(self, info: dict[str, Any]) -> list[float]:
        """The numbers of `env.info_keys` in an episode's last info, NaN where there is none, with one warning per key."""
        values = []
        for key in self._info_keys:
            value = info.get(key)
            values.append(float(value) if isinstance(value, _NUMBERS) else math.nan)
            if math.isnan(values[-1]) and key not in self._missing_keys:
                self._missing_keys.add(key)
                has = "no number" if key in info else f"none; it has {', '.join(map(str, info)) or 'nothing'}"
                _logger.warning("env.info_keys: %s: the info at the end of an episode has %s", key, has)
        return values

    def close(self) -> None:
        """Close every environment. One that raises then is logged."""
        for env in self.envs:
            try:
                env.close()
            except Exception:
                _logger.exception("closing an environment of %s failed", self._owner)

    @contextlib.contextmanager
    def _failures(self, phase: str, env_ix: int | None = None) -> Iterator[None]:
        """Turn what an environment raises inside into ActorLostError."""
        try:
            yield
        except (Exception, SystemExit) as e:
            if isinstance(e, BorderError):
                raise
            raise self._lost(e, phase, env_ix) from e

    def _lost(
        self, e: BaseException, phase: str, env_ix: int | None, action: Array | None = None
    ) -> ActorLostError:
        """The error of an actor whose environment `env_ix` raised. action: that it was given, in a step."""
        where: dict[str, Any] = {"who": self._owner, "phase": phase}
        doing = "making the environment"
        if env_ix is not None:
            doing, checker = "resetting", self.checker
            where |= {"env": env_ix, "episode": checker.episodes[env_ix], "step": checker.steps[env_ix]}
        if action is not None:
            doing = f"stepping, after {self.checker.env_steps} env steps"
            where["action"] = action.tolist() if action.size <= _SHOWN_ACTION else str(action)[:_SHOWN_ACTION]
        message = f"{self._owner} failed while {doing}: {type(e).__name__}: {e}".rstrip(": ")
        return ActorLostError(message, "".join(traceback.format_exception(e)), where)


class VectorGroup(GymEnv):
    """The sub-environments of one vector environment, which reset themselves. The first reset has the seed of the first."""

    together: list[int]

    def __init__(self, config: EnvConfig, n_envs: int = 1, owner: str = "", **options: Any) -> None:
        super().__init__(config, n_envs, owner, **options | {"bases": sub_envs(config, n_envs)})
        self.together = list(range(n_envs))
        self._vector = self.envs[0].unwrapped.vector

    def reset(self, env_ix: int, seed: int | None = None) -> None:
        """Start a new episode, now or in the next step, which is taken at once if all environments reset in it."""
        if not self._vector.resets_in_next_step(env_ix):
            super().reset(env_ix, seed)
            return
        self.together = [i for i in self.together if i != env_ix]
        if not self.together:
            with self._failures("reset", env_ix):
                self._vector.step()
            self._begin_episodes()

    def step(self, env_ix: Sequence[int], action: Array) -> Step:
        step = super().step(env_ix, action)
        self._begin_episodes()
        return step

    def _begin_episodes(self) -> None:
        """Take the first observations of the environments that have reset in this step."""
        resetting = set(range(self.n_envs)).difference(self.together)
        self.together = sorted(resetting.union(self.together))
        for i in resetting:
            super().reset(i)


def evaluation_envs(config: EnvConfig, n_envs: int, **options: Any) -> Env:
    """Environments of an evaluation; only one if a process cannot have more, as with some emulators."""
    if config.type == "simulator":
        from border_cli.envs.simulator import Simulator, SimulatorEpisodes  # imports torch

        if options.get("render_mode"):
            raise UsageError(
                "env=simulator: episodes of a simulator are not drawn", allowed="a film by its own means"
            )
        return SimulatorEpisodes(Simulator(config, n_envs, "the evaluation"), n_envs)
    try:
        return GymEnv(config, n_envs, "the evaluation", **options)
    except ActorLostError as e:
        if n_envs == 1:
            raise
        env = GymEnv(config, 1, "the evaluation", **options)
        _logger.warning("evaluations step one environment at a time, not %d: %s", n_envs, e)
        return env


def mask_root(config: EnvConfig) -> tuple[str, ...]:
    """Where `MaskFromInfo` has put the observation."""
    return ("obs",) if config.action_mask == "info" else ()


def spec_of(env: gymnasium.Env[Any, Any], config: EnvConfig) -> EnvSpec:
    """The spaces of an environment, as the keys of `env` select and code them."""
    spaces = env.observation_space, env.action_space
    return env_spec(*spaces, stack_size(env), config.categories, mask_root(config), config.obs_keys)


class ReplayedEnv(GymEnv):
    """Environments that can be resumed in the middle of an episode.

    The state is the seed and the actions of each unfinished episode. With these, an environment that draws random
    numbers only from its own generator reaches the same point again; a hash of the current observation shows whether it
    did. Every reset needs a seed, because otherwise an episode would depend on all earlier ones.
    """

    def __init__(self, config: EnvConfig, n_envs: int = 1, owner: str = "", **options: Any) -> None:
        super().__init__(config, n_envs, owner, **options)
        self._seeds = np.zeros(n_envs, np.int64)
        self._actions = [bytearray() for _ in range(n_envs)]

    def reset(self, env_ix: int, seed: int | None = None) -> None:
        """Start a new episode with this seed, which may not be None."""
        assert seed is not None
        super().reset(env_ix, seed)
        self._seeds[env_ix], self._actions[env_ix] = seed, bytearray()

    def step(self, env_ix: Sequence[int], action: Array) -> Step:
        step = super().step(env_ix, action)
        stored = action.astype(self.spec.action.stored_dtype, copy=False)
        for k, i in enumerate(env_ix):
            self._actions[i] += stored[k].tobytes()
        return step

    def state(self) -> State:
        """Seeds, actions (t, ...), and hashes of the current observations."""
        action = self.spec.action
        arrays = {
            f"actions-{i}": np.frombuffer(bytes(actions), action.stored_dtype).reshape(-1, *action.shape)
            for i, actions in enumerate(self._actions)
        }
        arrays["seeds"] = self._seeds.copy()
        arrays["observations"] = np.stack([self._hash(i) for i in range(self.n_envs)])
        return State(arrays)

    def load_state(self, state: State) -> list[int]:
        """Replay the episodes; the environments that did not come back exactly. Raises IncompatibleStateError."""
        check_like(
            state, self.state(), "the environments", growing=[f"actions-{i}" for i in range(self.n_envs)]
        )
        lost = []
        for i, seed in enumerate(state.arrays["seeds"]):
            self.reset(i, int(seed))
            is_same = True
            for action in state.arrays[f"actions-{i}"]:  # the saved episode continued after each
                is_same = is_same and not self.step([i], action[np.newaxis]).over[0]
            if not is_same or (self._hash(i) != state.arrays["observations"][i]).any():
                lost.append(i)
        return lost

    def _hash(self, env_ix: int) -> Array:
        digest = hashlib.sha256()
        for name, rows in sorted(self.observe([env_ix]).items()):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(rows).tobytes())
        return np.frombuffer(digest.digest(), np.uint8)
