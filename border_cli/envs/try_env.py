"""The trial of an environment before a run: whether it works, and what only its first env steps show."""

from __future__ import annotations

import contextlib
import inspect
import re
import warnings
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

import numpy as np
import psutil

from border_cli.config.schema import EnvConfig
from border_cli.core.errors import ActorLostError, UsageError
from border_cli.core.spaces import ACTION_MASK, Array, EnvSpec
from border_cli.core.types import Step
from border_cli.envs.checks import EnvApiError, EnvDataError, checked
from border_cli.envs.group import GymEnv, mask_root, spec_of
from border_cli.envs.gym_spaces import may_hold_categories, part_name
from border_cli.envs.make import check_statistics
from border_cli.runtime.stopping import Deadline

_SHOWN_ENV_STEPS, _SHOWN_EPISODE = 500, 50
"""Random env steps that show whether images hold categories: in total, and at most in one episode."""
_SHOWN_S = 60.0
"""Time limit for these env steps: a slow environment takes fewer."""
_QUICKLY_S = 5.0
"""An environment that takes longer to make, or that starts a process, is not made a second time to be compared."""
_MAX_CATEGORIES = 32
"""Of a channel; an image with a larger value is a picture."""
_COLOUR = re.compile(r"\x1b\[\d*m")
_API = (
    "allowed: gymnasium's API, where reset(seed=...) returns (observation, info) "
    "and step(action) returns (observation, reward, terminated, truncated, info)"
)


@dataclass(frozen=True)
class Probed:
    """The result of the trial of an environment.

    spec: its spaces · action_mask, categories: the values of these keys of `env` that it needs · warnings: first
    lines of those that it gave · first: its first env step; None for a simulator.
    """

    spec: EnvSpec
    action_mask: str
    categories: dict[str, list[int]]
    warnings: list[str]
    first: Step | None = field(default=None, compare=False)


def try_env(config: EnvConfig, at_end: ExitStack | None = None) -> Probed:
    """Make one environment, reset it and step it. Raises UsageError if it does not work.

    at_end: gets the function that closes the environment, which may take long; by default it is called here.
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
        action, action_mask = env.spec.action, config.action_mask
        if action_mask == "auto":
            action_mask = "none"
            if action.kind == "discrete" and not env.spec.mask and env.info_mask is not None:
                if env.info_mask != (action.n,):
                    raise UsageError(
                        f'env: info["{ACTION_MASK}"] has shape {env.info_mask}, and there are {action.n} actions',
                        allowed=f"a mask of shape {(action.n,)}, or env.action_mask=none",
                    )
                return _try(replace(config, action_mask="info"), at_end)  # the mask is one of the spaces then
        config = replace(config, action_mask=action_mask)
        if action.kind == "box":
            first = np.reshape(np.divide(action.low, 2) + np.divide(action.high, 2), (1, *action.shape))
        elif env.spec.mask is not None:
            first = env.observe([0])[env.spec.mask].argmax(1)
        else:
            first = np.zeros((1, *action.shape))
        step = env.step([0], first.astype(action.stored_dtype))
        if is_simple:
            _compare(step, config, at_end)
        categories = _find_categories(env, config) if config.categories is None else config.categories
        spec = spec_of(env.envs[0], replace(config, categories=categories))
        return Probed(spec, action_mask, categories, [], step)
    except ActorLostError as e:
        raise _refusal(e, env) from e


def _compare(first: Step, config: EnvConfig, at_end: ExitStack) -> None:
    """Warn if a second environment, made in the same way, differs after the same seed and action."""
    with contextlib.suppress(ActorLostError):
        other = GymEnv(config)
        at_end.callback(other.close)
        other.reset(0, seed=0)
        second = other.step([0], first.action)
        for name in first.obs:
            once, again = (
                step.obs[name].tobytes() + step.next_obs[name].tobytes() for step in (first, second)
            )
            if once != again:
                warnings.warn(
                    f"two environments that were made alike and reset with the same seed differ in {name}: random "
                    "numbers that reset(seed=…) does not set, perhaps drawn when it is made, differ in each process",
                    stacklevel=2,
                )
                return


def _refusal(error: ActorLostError, env: GymEnv | None) -> UsageError:
    """What the environment did wrong, in the words of gymnasium's API if it does not follow that."""
    cause = error.__cause__
    mistake = str(cause) if isinstance(cause, EnvApiError) else ""
    if env is not None and not mistake:  # wrappers raise errors of their own
        with contextlib.suppress(Exception):
            mistake = _api_mistake(env.envs[0].unwrapped)
    if mistake:
        hint = "a wrapper can add up several rewards (env.wrappers)" if "reward" in mistake else _API
        return UsageError(f"env: {mistake}\n{hint}")
    if isinstance(cause, EnvDataError):
        return UsageError(f"env: {cause}")
    done = {"make": "made", "reset": "reset", "step": "stepped"}[error.context["phase"]]
    first = str(cause).partition("\n")[0]
    hint = "env.kwargs.… are its arguments; debug=true shows its traceback"
    is_discrete = env is not None and env.spec.action.kind == "discrete"
    if is_discrete and done == "stepped" and re.search(r"\bint(eger)?\b", first):  # it takes no np.int64
        hint = "nearest: env.wrappers=[IntActions]"
    return UsageError(
        f"env: the environment raised when it was {done}: {type(cause).__name__}: {first}\n{hint}"
    )


def _api_mistake(env: Any) -> str:
    """How an environment without its wrappers, which is reset and stepped, differs from gymnasium's API; empty if not."""
    parameters = inspect.signature(env.reset).parameters
    if "seed" not in parameters and all(p.kind is not p.VAR_KEYWORD for p in parameters.values()):
        return "reset() takes no seed"
    try:
        checked(env.reset(seed=0), "reset")
        checked(env.step(env.action_space.sample()), "step")
    except EnvApiError as e:
        return str(e)
    return ""


def _find_categories(env: GymEnv, config: EnvConfig) -> dict[str, list[int]]:
    """The categories of each channel of the images that hold few, small values in the first random env steps.

    An environment that raises in one of them is not refused, because a run restarts it; the env steps before then
    count.
    """
    images = {leaf.name: leaf for leaf in env.spec.obs.leaves if may_hold_categories(leaf)}
    greatest = {name: np.zeros(leaf.shape[leaf.channel_axis], np.int64) for name, leaf in images.items()}
    rng, over, deadline = np.random.default_rng(0), True, Deadline(_SHOWN_S)
    with contextlib.suppress(ActorLostError):
        for i in range(_SHOWN_ENV_STEPS):
            if not images or deadline.passed:
                break
            if over or i % _SHOWN_EPISODE == 0:
                env.reset(0, seed=i)
            step = env.step([0], _random_action(env, rng))
            over = bool(step.over[0])
            for name, leaf in list(images.items()):
                pixels = np.concatenate([step.obs[name], step.next_obs[name]])
                of_channel = np.moveaxis(pixels, leaf.channel_axis, 0).reshape(len(greatest[name]), -1)
                greatest[name] = np.maximum(greatest[name], of_channel.max(1))
                if greatest[name].max() >= _MAX_CATEGORIES:
                    del images[name]  # it is a picture
    root = mask_root(config)
    return {
        part_name(leaf.path, root): [int(n) + 1 for n in greatest[name]]
        for name, leaf in images.items()
        if greatest[name].any()
    }


def _random_action(env: GymEnv, rng: np.random.Generator) -> Array:
    """(1, ...) an action of one environment, among those that its mask allows."""
    spec, mask = env.spec.action, env.spec.mask
    if spec.kind == "box":
        low, high = (bound[np.newaxis] for bound in spec.bounds)
        action: Array = (low + rng.random(low.shape) * (high - low)).astype(spec.stored_dtype)
        return action
    if mask is None:
        return rng.integers(0, spec.branches).reshape(1, *spec.shape)
    allowed = np.flatnonzero(env.observe([0])[mask][0])
    chosen: Array = rng.choice(allowed if len(allowed) else spec.n, 1)
    return chosen
