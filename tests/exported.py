"""Policies of every agent for every kind of space, and observations for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from border_cli.agents.policy import NetworkPolicy
from border_cli.core.spaces import Array, EnvSpec, Obs, decode_actions, encode
from border_cli.envs.gym_spaces import env_spec
from tests.kinds import AGENTS

N = 1000
OBSERVATIONS: dict[str, tuple[spaces.Space[Any], int, dict[str, list[int]]]] = {
    "vector": (spaces.Box(-5.0, 5.0, (4,)), 1, {}),
    "wide integers": (spaces.Box(-1000, 1000, (3,), np.int32), 1, {}),
    "small integers": (spaces.Box(2, 9, (2, 2), np.int64), 1, {}),
    "stacked vector": (spaces.Box(-5.0, 5.0, (3, 4)), 3, {}),
    "discrete": (spaces.Discrete(5, start=-2), 1, {}),
    "multi-discrete": (spaces.MultiDiscrete([3, 4]), 1, {}),
    "multi-binary": (spaces.MultiBinary([2, 3]), 1, {}),
    "image": (spaces.Box(0, 255, (10, 12, 3), np.uint8), 1, {}),
    "stacked frames": (spaces.Box(0, 255, (4, 40, 40), np.uint8), 4, {}),
    "channels first": (spaces.Box(-20, 80, (3, 10, 12), np.int16), 1, {}),
    "stacked colour frames": (spaces.Box(0, 255, (2, 10, 12, 3), np.uint8), 2, {}),
    "categories": (spaces.Box(0, 9, (5, 5, 2), np.uint8), 1, {"obs": [4, 10]}),
    "dict": (
        spaces.Dict(
            {
                "speed": spaces.Box(-1.0, 1.0, (2,)),
                "gear": spaces.Discrete(3),
                "view": spaces.Box(0, 1, (6, 6, 2)),
            }
        ),
        1,
        {},
    ),
    "tuple": (spaces.Tuple((spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,)))), 1, {}),
    "mask": (spaces.Dict({"obs": spaces.Box(-1.0, 1.0, (2,)), "action_mask": spaces.MultiBinary(4)}), 1, {}),
}
DISCRETE, BOX = (
    spaces.Discrete(4, start=1),
    spaces.Box(np.array([-1, 0, 2], np.float32), np.array([1, 3, 2], np.float32)),
)
SMALL = {"hidden": [16, 16], "channels": [4, 8]}
VARIANTS: dict[str, dict[str, Any]] = {
    "dqn": {"dueling": True},
    "c51": {},
    "qrdqn": {"quantiles": 5},
    "iqn": {"act_quantiles": 4, "cosines": 8, "dueling": True},
    "rainbow": {},
    "btr": {"act_quantiles": 4, "cosines": 8},
    "sac": {},
    "td3": {},
    "tqc": {"exploration": "state_dependent"},
    "crossq": {},
    "flashsac": {"critic_hidden": [8]},
    "dsac": {},
    "r2d2": {"gru": 8},
    "rsac": {"gru": 8},
}
BOXED = ("sac", "td3", "tqc", "crossq", "rsac", "flashsac")


def spec_of(name: str, agent: str) -> EnvSpec:
    """The spaces of a case; agents of the actor-critic family get a box of actions."""
    space, stack, categories = OBSERVATIONS[name]
    action = BOX if agent in BOXED else DISCRETE
    return env_spec(space, action, stack, categories)


def policy_of(agent: str, spec: EnvSpec, seed: int = 0) -> NetworkPolicy:
    """A policy in eval mode with random parameters, as those of a trained network are: also statistics of observations."""
    values = {**SMALL, "normalize_obs": True, **VARIANTS[agent]}
    config = AGENTS[agent].config(type=agent, **values)
    policy: NetworkPolicy = AGENTS[agent].load().make_policy(config, spec, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in (*policy.network.named_parameters(), *policy.network.named_buffers()):
            inputs = parameter[0].numel() if parameter.ndim > 1 else 10_000
            parameter.uniform_(-3 * inputs**-0.5, 3 * inputs**-0.5, generator=generator)
            if "norms" in name and name.endswith(".weight"):
                parameter.add_(1.0)
            if name.endswith((".std", ".variance")):
                parameter.abs_().add_(0.5)
    policy.eval()
    return policy


def observations(name: str, spec: EnvSpec, seed: int = 0) -> tuple[list[Array], Obs]:
    """N observations as the environment gives them, a part per leaf, and the same as training stores them."""
    space = OBSERVATIONS[name][0]
    space.seed(seed)
    parts: list[Array] = []
    for leaf in spec.obs.leaves:
        rows = [np.array(value) for value in _sampled(space, leaf.path, N)]
        values = np.stack(rows).reshape(N, *leaf.shape)
        if leaf.categories and leaf.kind == "box":
            values = values % np.array(leaf.categories)  # the other values are coded as zeros
        if leaf.name == spec.mask:
            values[~values.any(1)] = 1
        parts.append(values)
    stored = {leaf.name: encode(leaf, rows) for leaf, rows in zip(spec.obs.leaves, parts, strict=True)}
    return parts, stored


def _sampled(space: Any, path: tuple[str | int, ...], n: int) -> Iterator[Any]:
    for key in path:
        space = space[key]
    for _ in range(n):
        yield space.sample()


def nested(spec: EnvSpec, parts: list[Array]) -> Any:
    """The parts of observations, one for each leaf, as the environment gives them."""
    if spec.obs.leaves[0].path == ():
        return parts[0]
    observation = {leaf.path[0]: part for leaf, part in zip(spec.obs.leaves, parts, strict=True)}
    return tuple(observation.values()) if 0 in observation else observation


def actions_of(policy: NetworkPolicy, spec: EnvSpec, stored: Obs) -> Array:
    """What border-cli does in these observations."""
    return np.array(decode_actions(spec.action, policy.sample(stored)))


def assert_same(spec: EnvSpec, actions: Array, expected: Array) -> None:
    if spec.action.kind == "discrete":
        np.testing.assert_array_equal(actions, expected)
    else:
        np.testing.assert_allclose(actions, expected, atol=2e-5)


def various(agent: str, spec: EnvSpec, stored: Obs) -> tuple[NetworkPolicy, Array]:
    """A policy that does not do the same in all of these observations, and what it does."""
    for seed in range(20):
        policy = policy_of(agent, spec, seed)
        actions = actions_of(policy, spec, stored)
        if len(np.unique(actions.round(3), axis=0)) > 1:
            return policy, actions
    raise AssertionError("each policy does the same everywhere")
