"""The adapter over gymnasium environments: several of one kind, stepped together in one process."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import gymnasium
import numpy as np
import psutil

from border_cli.config.schema import EnvConfig
from border_cli.core.errors import ActorLostError, BorderError, UsageError
from border_cli.core.spaces import ACTION_MASK, Array, EnvSpec, Obs, decode_actions
from border_cli.core.state import State, check_like, joined, section
from border_cli.core.types import Step
from border_cli.envs.checks import EnvApiError, EnvChecker, EnvDataError, api_mistake, checked
from border_cli.envs.gym_spaces import env_spec, may_hold_categories, part_name
from border_cli.envs.make import check_statistics, make_gym, stack_size
from border_cli.runtime.clock import Deadline
from border_cli.runtime.signals import LEFT_TO_CLIENT

MOST_REPLAYED = 1_000_000
_TOO_LONG = -1  # in the place of an episode's seed
_SHOWN_ACTION = 100
_SHOWN_ENV_STEPS, _SHOWN_EPISODE = 500, 50
"""Random env steps whose images show whether they hold categories, and of one episode at most."""
_SHOWN_S = 60.0
"""Time for them; a slow environment shows fewer."""
_QUICKLY_S = 5.0
"""An environment that takes longer to make, or that starts a process, is not made a second time to be compared."""
_MAX_CATEGORIES = 32
"""Of a channel; an image with a larger value is a picture."""
_COLOUR = re.compile(r"\x1b\[\d*m")
_API = (
    "allowed: gymnasium's API, where reset(seed=...) returns (observation, info) "
    "and step(action) returns (observation, reward, terminated, truncated, info)"
)
_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def settings_restored() -> Iterator[None]:
    """Restore what is changed inside: warnings, settings of numpy and torch, signal handlers and the current folder."""
    errors, handlers = np.geterr(), {number: signal.getsignal(number) for number in LEFT_TO_CLIENT}
    folder = os.open(".", os.O_RDONLY)
    torch = sys.modules.get("torch")
    dtype, grad = (torch.get_default_dtype(), torch.is_grad_enabled()) if torch else (None, True)
    try:
        with warnings.catch_warnings():
            yield
    finally:
        np.seterr(**errors)
        for number, handler in handlers.items():
            if signal.getsignal(number) != handler:
                signal.signal(number, handler)
        os.fchdir(folder)
        os.close(folder)
        if torch:
            torch.set_default_dtype(dtype)
            torch.set_grad_enabled(grad)


class GymEnv:
    """Environments of one kind. Implements `core.protocols.Env`; what they give passes an `EnvChecker`.

    Nothing resets by itself: an environment whose episode has ended waits until `reset` is called for it. What one raises,
    SystemExit included, becomes ActorLostError, whose context says where it happened; a BorderError stays what it is.

    Args:
        config: how to make one environment.
        n_envs: how many.
        owner: who acts in them, for messages.
        render_mode: as gymnasium's.
        made: called after each environment is made, because making many can take long.
        native: they are Atari games that run at the same time, in ALE's own threads.
        quiet: ignore warnings while they are made, because `try_env` has printed them.

    Attributes:
        info_mask: shape of info["action_mask"] at the last reset; None without one.
    """

    def __init__(
        self,
        config: EnvConfig,
        n_envs: int = 1,
        owner: str = "the environment",
        *,
        render_mode: str | None = None,
        made: Callable[[], None] = lambda: None,
        native: bool = False,
        quiet: bool = False,
    ) -> None:
        self.n_envs = n_envs
        self.envs: list[gymnasium.Env[Any, Any]] = []
        self._owner = owner
        self._native = native
        try:
            with self._failures("make"):
                for _ in range(n_envs):
                    with settings_restored():
                        if quiet:
                            warnings.simplefilter("ignore")
                        self.envs.append(make_gym(config, render_mode, native))
                    made()
        except BaseException:
            self.close()
            raise
        space = self.envs[0].observation_space
        self.spec = _spec(self.envs[0], config)
        self.checker = EnvChecker(
            space,
            self.spec,
            n_envs,
            drop=config.nonfinite == "drop",
            strict_bounds=config.out_of_bounds == "error",
        )
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
            while not self.checker.take_first(env_ix, observation):
                self.checker.begin(env_ix)
                observation, info = checked(self.envs[env_ix].reset(), "reset")
            self._lives[env_ix] = info.get("lives", 0)
        mask = info.get(ACTION_MASK)
        self.info_mask = None if mask is None else np.shape(mask)

    def observe(self, env_ix: Sequence[int]) -> Obs:
        """Current observations (k, ...) of these environments, in arrays that do not change any more."""
        return self.checker.observe(env_ix)

    def step(self, env_ix: Sequence[int], action: Array) -> Step:
        """One env step in each of these environments."""
        k, checker = len(env_ix), self.checker
        reward, terminated, truncated = np.empty(k), np.empty(k, bool), np.empty(k, bool)
        lost = np.zeros(k, bool) if self._life_loss else None
        infos = np.full((k, len(self._info_keys)), np.nan) if self._info_keys else None
        step = Step(
            env_ix,
            checker.observe(env_ix),
            action,
            reward,
            terminated,
            truncated,
            {},
            life_lost=lost,
            infos=infos,
        )
        i = env_ix[0]
        try:  # not by `_failures`: making a context manager takes as long as stepping CartPole
            actions = decode_actions(self.spec.action, action)
            if self._native:
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
            step.dropped = checker.dropped(env_ix, reward)
        except BorderError:
            raise
        except (Exception, SystemExit) as e:
            i = e.env_ix if isinstance(e, EnvDataError) else i
            raise self._lost(e, "step", i, action[list(env_ix).index(i)]) from e
        step.next_obs = checker.observe(env_ix)
        return step

    def _values(self, info: dict[str, Any]) -> list[float]:
        """The numbers of `env.info_keys` in an episode's last info, NaN where there is none, with one warning per key."""
        values = []
        for key in self._info_keys:
            values.append(_number(info.get(key)))
            if math.isnan(values[-1]) and key not in self._missing_keys:
                self._missing_keys.add(key)
                has = "no number" if key in info else f"none; it has {', '.join(map(str, info)) or 'nothing'}"
                _logger.warning("env.info_keys: %s: the info at the end of an episode has %s", key, has)
        return values

    def render(self, env_ix: int = 0) -> Any:
        """What the environment draws (see gymnasium's render modes)."""
        return self.envs[env_ix].render()

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
        except BorderError:
            raise
        except (Exception, SystemExit) as e:
            raise self._lost(e, phase, env_ix) from e

    def _lost(
        self, e: BaseException, phase: str, env_ix: int | None, action: Array | None = None
    ) -> ActorLostError:
        """The error of an actor whose environment `env_ix` raised. action: that it was given, in a step."""
        where: dict[str, Any] = {"who": self._owner, "phase": phase}
        doing = "making the environment"
        if env_ix is not None:
            where |= {
                "env": env_ix,
                "episode": self.checker.episodes[env_ix],
                "step": self.checker.steps[env_ix],
            }
            doing = "resetting"
        if action is not None:
            doing = f"stepping, after {self.checker.env_steps} env steps"
            where["action"] = action.tolist() if action.size <= _SHOWN_ACTION else str(action)[:_SHOWN_ACTION]
        message = f"{self._owner} failed while {doing}: {type(e).__name__}: {e}".rstrip(": ")
        return ActorLostError(message, "".join(traceback.format_exception(e)), where)


def evaluation_envs(config: EnvConfig, n_envs: int, **options: Any) -> GymEnv:
    """Environments of an evaluation: one, where a process can have no second one, as with some emulators."""
    try:
        return GymEnv(config, n_envs, "the evaluation", **options)
    except ActorLostError as e:
        if n_envs == 1:
            raise
        env = GymEnv(config, 1, "the evaluation", **options)
        _logger.warning("evaluations step one environment at a time, not %d: %s", n_envs, e)
        return env


def _root(config: EnvConfig) -> tuple[str, ...]:
    """Where `MaskFromInfo` has put the observation."""
    return ("obs",) if config.action_mask == "info" else ()


def _spec(env: gymnasium.Env[Any, Any], config: EnvConfig) -> EnvSpec:
    spaces = env.observation_space, env.action_space
    return env_spec(*spaces, stack_size(env), config.categories, _root(config), config.obs_keys)


@dataclass(frozen=True)
class Probed:
    """What a trial has found out about an environment.

    spec: its spaces · action_mask, categories: the values of these keys of `env` that it needs · warnings: first
    lines of those that it gave.
    """

    spec: EnvSpec
    action_mask: str
    categories: dict[str, list[int]]
    warnings: list[str]


def try_env(config: EnvConfig, at_end: ExitStack | None = None) -> Probed:
    """Make one environment, reset it and step it. Raises UsageError if it does not work.

    at_end: gets what closes the environment, which may take long; by default it is closed here.
    """
    with ExitStack() as here, warnings.catch_warnings(record=True) as caught:
        probed = _try(config, at_end or here)
    texts = dict.fromkeys(_COLOUR.sub("", str(warning.message)) for warning in caught)
    probed.warnings.extend(text.removeprefix("WARN: ").partition("\n")[0] for text in texts)
    return probed


def _try(config: EnvConfig, at_end: ExitStack) -> Probed:
    env, began, before = None, monotonic(), psutil.Process().children()
    try:
        env = GymEnv(config)
        at_end.callback(env.close)
        is_simple = monotonic() - began <= _QUICKLY_S and psutil.Process().children() == before
        check_statistics(env.envs[0])
        env.reset(0, seed=0)
        action = env.spec.action
        if (
            config.action_mask == "auto"
            and action.kind != "box"
            and not env.spec.mask
            and env.info_mask is not None
        ):
            if env.info_mask != (action.n,):
                raise UsageError(
                    f'env: info["{ACTION_MASK}"] has shape {env.info_mask}, and there are {action.n} actions',
                    allowed=f"a mask of shape {(action.n,)}, or env.action_mask=none",
                )
            return _try(replace(config, action_mask="info"), at_end)  # the mask is one of the spaces then
        action_mask = "none" if config.action_mask == "auto" else config.action_mask
        config = replace(config, action_mask=action_mask)
        if action.kind == "box":
            chosen = np.reshape(np.divide(action.low, 2) + np.divide(action.high, 2), (1, *action.shape))
        else:
            mask = env.spec.mask
            chosen = np.array([0 if mask is None else env.observe([0])[mask][0].argmax()])
        step = env.step([0], chosen.astype(action.stored_dtype))
        categories = _find_categories(env, config) if config.categories is None else config.categories
        if is_simple:
            _compare(step, config, at_end)
        spec = _spec(env.envs[0], replace(config, categories=categories))
        return Probed(spec, action_mask, categories, [])
    except ActorLostError as e:
        cause = e.__cause__
        mistake = str(cause) if isinstance(cause, EnvApiError) else ""
        if env is not None and not mistake:  # wrappers raise errors of their own
            with contextlib.suppress(Exception):
                mistake = api_mistake(env.envs[0].unwrapped)
        if mistake:
            hint = "a wrapper can add up several rewards (env.wrappers)" if "reward" in mistake else _API
            raise UsageError(f"env: {mistake}\n{hint}") from e
        done = {"make": "made", "reset": "reset", "step": "stepped"}[e.context["phase"]]
        first = str(cause).partition("\n")[0]
        hint = "env.kwargs.… are its arguments; debug=true shows its traceback"
        if (
            done == "stepped"
            and re.search(r"\bint(eger)?\b", first)
            and env
            and env.spec.action.kind == "discrete"
        ):
            hint = "nearest: env.wrappers=[IntActions]\nit gives actions as Python's int, not as np.int64"
        raise UsageError(
            f"env: the environment raised when it was {done}: {type(cause).__name__}: {first}\n{hint}"
        ) from e


def _compare(first: Step, config: EnvConfig, at_end: ExitStack) -> None:
    """Warn where another environment that is made alike differs after the same seed and action."""
    with contextlib.suppress(ActorLostError):
        other = GymEnv(config)
        at_end.callback(other.close)
        other.reset(0, seed=0)
        second = other.step([0], first.action)
        for name, leaf in first.obs.items():
            for before, after in ((leaf, second.obs[name]), (first.next_obs[name], second.next_obs[name])):
                if not np.array_equal(before, after, equal_nan=before.dtype.kind == "f"):
                    warnings.warn(
                        f"two environments that were made alike and reset with the same seed differ in {name}: random "
                        "numbers that reset(seed=…) does not set, perhaps drawn when it is made, differ in each process",
                        stacklevel=2,
                    )
                    return


def _find_categories(env: GymEnv, config: EnvConfig) -> dict[str, list[int]]:
    """The categories of each channel of the images that hold few, small values in the first random env steps.

    An environment that raises in one of them is not refused: a run restarts it. Then the env steps before are what counts.
    """
    images = {leaf.name: leaf for leaf in env.spec.obs.leaves if may_hold_categories(leaf)}
    greatest = {name: np.zeros(leaf.shape[leaf.channel_axis], np.int64) for name, leaf in images.items()}
    rng, over = np.random.default_rng(0), True
    deadline = Deadline(_SHOWN_S)
    with contextlib.suppress(ActorLostError):
        for i in range(_SHOWN_ENV_STEPS):
            if not images or deadline.passed:
                break
            if over or i % _SHOWN_EPISODE == 0:
                env.reset(0, seed=i)
            step = env.step([0], _random_action(env, rng))
            over = bool(step.over[0]) or step.dropped is not None
            for name, leaf in list(images.items()):
                pixels = np.concatenate([step.obs[name], step.next_obs[name]])
                of_channel = np.moveaxis(pixels, leaf.channel_axis, 0).reshape(len(greatest[name]), -1)
                greatest[name] = np.maximum(greatest[name], of_channel.max(1))
                if greatest[name].max() >= _MAX_CATEGORIES:
                    del images[name]  # it is a picture
    root = _root(config)
    return {
        part_name(leaf.path, root): [int(n) + 1 for n in greatest[name]]
        for name, leaf in images.items()
        if greatest[name].any()
    }


def _number(value: Any) -> float:
    """A value of an info; NaN for what is no number."""
    return float(value) if isinstance(value, int | float | np.bool_ | np.integer | np.floating) else math.nan


def _random_action(env: GymEnv, rng: np.random.Generator) -> Array:
    """(1, ...) an action of one environment, among those that its mask allows."""
    spec, mask = env.spec.action, env.spec.mask
    if spec.kind == "box":
        low, high = (np.reshape(bound, (1, *spec.shape)) for bound in (spec.low, spec.high))
        action: Array = (low + rng.random(low.shape) * (high - low)).astype(spec.stored_dtype)
        return action
    allowed = np.arange(spec.n) if mask is None else np.flatnonzero(env.observe([0])[mask][0])
    chosen: Array = rng.choice(allowed if len(allowed) else spec.n, 1)
    return chosen


class ReplayedEnv(GymEnv):
    """Environments that can be resumed in the middle of an episode; implements `actors.sampler.ResumableEnv`.

    The state is the seed and the actions of each unfinished episode. An environment that draws random numbers from its own
    generator alone reaches the same point again with them; a hash of the current observation shows whether it did. Every
    reset needs a seed, because otherwise an episode would depend on all earlier ones. An episode of more than MOST_REPLAYED
    env steps is not resumed: its actions would fill memory and every checkpoint.
    """

    def __init__(self, config: EnvConfig, n_envs: int = 1, owner: str = "", **options: Any) -> None:
        super().__init__(config, n_envs, owner, **options)
        self._seeds = np.zeros(n_envs, np.int64)
        self._actions = [bytearray() for _ in range(n_envs)]

    def reset(self, env_ix: int, seed: int | None = None) -> None:
        """Start a new episode with this seed. Raises ValueError without one."""
        if seed is None:
            raise ValueError("an episode that can be resumed needs a seed")
        super().reset(env_ix, seed)
        self._seeds[env_ix], self._actions[env_ix] = seed, bytearray()

    def step(self, env_ix: Sequence[int], action: Array) -> Step:
        """One env step in each of these environments."""
        step = super().step(env_ix, action)
        stored = action.astype(self.spec.action.stored_dtype, copy=False)
        for k, i in enumerate(env_ix):
            if self._seeds[i] != _TOO_LONG:
                self._actions[i] += stored[k].tobytes()
                if len(self._actions[i]) > MOST_REPLAYED * stored[k].nbytes:
                    self._seeds[i], self._actions[i] = _TOO_LONG, bytearray()
        return step

    def state(self) -> State:
        """Seeds, actions (t, ...), hashes of the current observations, and what the checks have counted."""
        action = self.spec.action
        arrays = {
            f"actions-{i}": np.frombuffer(bytes(actions), action.stored_dtype).reshape(-1, *action.shape)
            for i, actions in enumerate(self._actions)
        }
        arrays["seeds"] = self._seeds.copy()
        arrays["observations"] = np.stack([self._hash(i) for i in range(self.n_envs)])
        return joined({"episodes": State(arrays), "checks": self.checker.state()})

    def load_state(self, state: State) -> list[int]:
        """Replay the episodes; the environments that did not come back exactly. Raises IncompatibleStateError."""
        actions = [f"episodes/actions-{i}" for i in range(self.n_envs)]
        check_like(state, self.state(), "the environments", growing=actions)
        with self.checker.replaying(section(state, "checks")):
            return [i for i in range(self.n_envs) if not self._replay(i, section(state, "episodes"))]

    def _replay(self, env_ix: int, episodes: State) -> bool:
        if (seed := int(episodes.arrays["seeds"][env_ix])) == _TOO_LONG:
            return False
        self.reset(env_ix, seed)
        for action in episodes.arrays[f"actions-{env_ix}"]:
            if self.step([env_ix], action[np.newaxis]).over[0]:
                return False  # the saved episode continued here
        return bool((self._hash(env_ix) == episodes.arrays["observations"][env_ix]).all())

    def _hash(self, env_ix: int) -> Array:
        digest = hashlib.sha256()
        for name, rows in sorted(self.observe([env_ix]).items()):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(rows).tobytes())
        return np.frombuffer(digest.digest(), np.uint8)
