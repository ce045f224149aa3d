"""The keys of `env` that change what an environment shows: wrappers, parts of a Dict, and statistics of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from border_cli.config.convert import to_config
from border_cli.config.schema import EnvConfig, TrainConfig
from border_cli.core.errors import UsageError
from border_cli.envs import make
from border_cli.envs.group import GymEnv
from border_cli.envs.try_env import try_env
from border_cli.run import initial_weights
from tests.envs import SPACES, Sound

ONE = np.zeros(1, np.int64)
COUNTING = "tests.counting:CountingEnv"
GRID = EnvConfig(entry_point="tests.envs:Grid")


def env_config(**env: Any) -> EnvConfig:
    """Return the section as the command line would give it."""
    return to_config({"agent": {"type": "dqn"}, "env": env}).env


def refused(config: EnvConfig) -> str:
    """Return the message that the trial of this environment ends with."""
    with pytest.raises(UsageError) as caught:
        try_env(config)
    assert len(str(caught.value).splitlines()) <= 3
    return str(caught.value)


# -- wrappers -----------------------------------------------------------


def test_wrappers_are_applied_in_order_with_their_arguments() -> None:
    add = {"name": "tests.envs:Add", "kwargs": {"number": 3}}
    shown = []
    for wrappers in ([add, "tests.envs:twice"], ["tests.envs:twice", add]):
        env = GymEnv(env_config(entry_point=COUNTING, kwargs={"actor": 5, "env": 0}, wrappers=wrappers))
        env.reset(0, seed=0)
        shown.append(env.observe([0])["obs"][0, 0])
    assert shown == [(5 + 3) * 2, 5 * 2 + 3]


class InPlace(gymnasium.Env[Any, Any]):
    """Returns the same array each time: the number of env steps of the episode."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(0, 9, (1,)), spaces.Discrete(2)
        self.count = np.zeros(1, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.count[0] = 0
        return self.count, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count[0] += 1
        return self.count, 1.0, False, False, {}


def test_wrappers_keep_observations_that_the_environment_changes_in_place() -> None:
    env = GymEnv(env_config(entry_point=f"{__name__}:InPlace", frame_stack=3))
    env.reset(0, seed=0)
    for _ in range(3):
        env.step([0], ONE)
    assert env.observe([0])["obs"].ravel().tolist() == [1, 2, 3]
    # a wrapper may ask for attributes of the environment
    assert make.CopiedObservation(InPlace()).count.tolist() == [0]


@pytest.mark.parametrize(
    ("wrapper", "message"),
    [
        ("TimeAwareObservations", "nearest: TimeAwareObservation\nallowed: module:name, "),
        ("FrameStack", "nearest: FrameStackObservation"),
        ("tests.envs.Add", "nearest: tests.envs:Add"),
        ("TimeAwareObservation", "TimeAwareObservation cannot be made: ValueError: The environment must be"),
        ("tests.envs:Add", "tests.envs:Add cannot be made: TypeError: "),
        ("tests.envs:Adds", "the module tests.envs has no 'Adds'"),
    ],
)
def test_a_wrapper_that_is_misspelt_or_raises_is_named(wrapper: str, message: str) -> None:
    assert message in refused(env_config(entry_point=COUNTING, wrappers=[wrapper]))


# -- ids of packages ----------------------------------------------------


def test_what_the_imported_packages_have_registered_is_suggested() -> None:
    """tests.envs registers FourValues and NoEnv."""
    message = refused(env_config(id="Unlike-v0", imports=["tests.envs"]))
    assert message.endswith("\nallowed: tests/FourValues-v0, tests/NoEnv-v0")
    assert refused(env_config(id="tests/FourValue-v0", imports=["tests.envs"])).endswith(
        "nearest: tests/FourValues-v0"
    )
    assert refused(env_config(id="CartPol-v1")).endswith("nearest: CartPole-v1")
    assert "env.imports=[module:function] calls a function that does" in refused(env_config(id="Unlike-v0"))


def test_a_module_that_registers_is_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its text: none of them is imported for that."""
    texts = {
        "__init__": "",
        "envs/__init__": "import gymnasium\nraise gymnasium.register('ids_of_tests/Deep-v0', 'it:Deep')",
        "late": "import gymnasium\ndef register_late():\n    'gymnasium.register(ids_of_tests/Late-v0)'",
        "other": "import atexit\natexit.register('ids_of_tests/Deep-v0', 'ids_of_tests/Late-v0')",
    }
    for name, text in texts.items():
        path = tmp_path / "ids_of_tests" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    late = "ids_of_tests.late:register_late"
    for env_id, imports, hint in (
        ("ids_of_tests/Deep-v0", ["ids_of_tests"], "nearest: env.imports=[ids_of_tests.envs]"),
        ("ids_of_tests/Late-v0", ["ids_of_tests"], f"nearest: env.imports=[{late}]"),
        ("Unlike-v0", [late], "nearest: env.imports=[ids_of_tests.envs]"),
    ):
        assert refused(env_config(id=env_id, imports=imports)).endswith(f"\n{hint}")
    (tmp_path / "ids_of_tests" / "envs" / "__init__.py").unlink()
    assert "calls a function that does" in refused(env_config(id="ids_of_tests/Late-v0", imports=[late]))


# -- windows, limits, statistics of its own ------------------------------


class Window(Sound):
    """Opens a window by default, as the games of some packages do."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["human", "rgb_array"]}

    def __init__(self, render_mode: str | None = "human") -> None:
        self.render_mode = render_mode


def test_an_environment_opens_no_window_by_default() -> None:
    config = env_config(entry_point=f"{__name__}:Window")
    assert GymEnv(config).envs[0].render_mode is None
    assert GymEnv(config, render_mode="human").envs[0].render_mode == "human"
    assert GymEnv(replace(config, kwargs={"render_mode": "human"})).envs[0].render_mode == "human"


def steps_of_an_episode(**env: Any) -> int:
    """Env steps until an episode of `Sound`, which never ends by itself, is truncated."""
    group, n, over = GymEnv(env_config(**env)), 0, False
    group.reset(0, seed=0)
    while not over:
        over = bool(group.step([0], ONE).over[0])
        n += 1
    return n


def limited() -> gymnasium.Env[Any, Any]:
    """Return an environment with a limit of 5 env steps within another wrapper."""
    return gymnasium.wrappers.ClipReward(gymnasium.wrappers.TimeLimit(Sound(), 5), 0.0, 1.0)


def test_the_limit_that_is_typed_holds() -> None:
    for typed, steps in (({}, 5), ({"max_episode_steps": 3}, 3), ({"max_episode_steps": 9}, 9)):
        assert steps_of_an_episode(entry_point=f"{__name__}:limited", **typed) == steps
    without_limit = next(name for name in gymnasium.registry if name.startswith("CliffWalking-"))
    assert steps_of_an_episode(id=without_limit, max_episode_steps=6) == 6
    assert steps_of_an_episode(entry_point="tests.envs:Sound", max_episode_steps=7) == 7


@pytest.mark.parametrize(
    ("env", "layer"),
    [
        ({"entry_point": "tests.envs:normalized_cartpole"}, "NormalizeObservation"),
        ({"id": "CartPole-v1", "wrappers": ["tests.envs:Standardized"]}, "Standardized"),
    ],
)
def test_statistics_of_an_environments_own_are_refused(env: dict[str, Any], layer: str) -> None:
    assert f"{layer} normalises by running statistics of its own" in refused(env_config(**env))


# -- parts of a Dict ----------------------------------------------------


@pytest.mark.parametrize("stack", [1, 3])
def test_a_part_that_no_agent_takes_is_left_out(stack: int) -> None:
    env = GymEnv(env_config(entry_point="tests.envs:Grid", frame_stack=stack))
    assert [leaf.name for leaf in env.spec.obs.leaves] == ["obs.cell", "obs.image"]
    assert env.spec.left_out == ("mission (Text)" if stack == 1 else "mission (Tuple)",)
    env.reset(0, seed=0)
    env.step([0], ONE + 1)
    assert env.observe([0])["obs.image"][0, ..., 2, 1, 0].ravel()[-1] == 9  # the agent is in cell 1


FURTHER: dict[str, spaces.Space[Any]] = {
    "nested": spaces.Dict(
        {
            "a": spaces.Dict({"x": spaces.Discrete(2), "text": spaces.Text(3)}),
            "action_mask": spaces.MultiBinary(3),
            "b": spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3))),
        }
    ),
    "small": spaces.Box(0, 3, (35, 40, 1), np.uint8),
    "large": spaces.Box(0, 3, (36, 40, 1), np.uint8),
    "binary": spaces.Box(0, 1, (4, 4, 2), np.uint8),
}


@pytest.fixture
def further_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, space in FURTHER.items():
        monkeypatch.setitem(SPACES, name, space)


@pytest.mark.usefixtures("further_spaces")
@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ([], ["obs.a.x", "obs.action_mask", "obs.b.0", "obs.b.1"]),
        (["a.x"], ["obs.a.x", "obs.action_mask"]),
    ],
)
def test_parts_within_parts_have_dotted_names_and_masks_stay(keys: list[str], expected: list[str]) -> None:
    config = env_config(entry_point="tests.envs:Sampled", kwargs={"space": "nested"}, obs_keys=keys)
    spec = GymEnv(config).spec
    assert [leaf.name for leaf in spec.obs.leaves] == expected
    assert spec.left_out == (() if keys else ("a.text (Text)",))


NESTED = {"entry_point": "tests.envs:Sampled", "kwargs": {"space": "nested"}}
CORRIDOR: dict[str, Any] = {"entry_point": "tests.envs:Grid"}


@pytest.mark.usefixtures("further_spaces")
@pytest.mark.parametrize(
    ("env", "message"),
    [
        (CORRIDOR | {"obs_keys": ["images"]}, "no 'images'\nnearest: image\nallowed: cell, image"),
        (CORRIDOR | {"obs_keys": ["mission"]}, "'mission' is a Text, which no agent takes\nallowed: cell"),
        (NESTED | {"obs_keys": ["a"]}, "'a.text' is a Text, which no agent takes\nallowed: a.x, b"),
        ({"id": "CartPole-v1", "obs_keys": ["image"]}, "obs_keys: there is no 'image'\nallowed: obs"),
        (CORRIDOR | {"kwargs": {"parts": ["mission"]}}, "nothing that an agent takes: mission is a Text"),
        (CORRIDOR | {"categories": {"image": [2]}}, "no small integer image 'image' of 1 channels\n"),
    ],
)
def test_parts_that_do_not_exist_or_cannot_be_used_are_refused(env: dict[str, Any], message: str) -> None:
    assert message in refused(env_config(**env))


# -- categories ---------------------------------------------------------


def categories(**env: Any) -> dict[str, list[int]]:
    return try_env(env_config(**{"entry_point": "tests.envs:Grid"} | env)).categories


@pytest.mark.usefixtures("further_spaces")
@pytest.mark.parametrize(
    ("env", "expected"),
    [
        *(
            ({"entry_point": "tests.envs:Sampled", "kwargs": {"space": space}}, expected)
            for space, expected in [("small", {"obs": [4]}), ("large", {}), ("binary", {})]
        ),
        ({"kwargs": {"brightest": 31}}, {"image": [32, 6, 1]}),
        ({"kwargs": {"brightest": 32}}, {}),  # a picture
        ({"frame_stack": 3}, {"image": [10, 6, 1]}),
        ({"categories": {}}, {}),
        ({"categories": {"image": [11, 6, 3]}}, {"image": [11, 6, 3]}),
        ({"entry_point": "tests.envs:only_image"}, {"obs": [10, 6, 1]}),
    ],
)
def test_which_images_hold_categories(env: dict[str, Any], expected: dict[str, list[int]]) -> None:
    assert categories(**env) == expected


def test_the_categories_of_the_weights_are_taken_over() -> None:
    here, typed = EnvConfig(entry_point="tests.envs:MaskedGrid"), {"image": [12, 7, 1]}
    saved: Any = SimpleNamespace(spec=try_env(replace(here, categories=typed)).spec)
    config, model = TrainConfig(env=here, init_from="runs/latest"), SimpleNamespace(description=saved)
    probed = initial_weights.with_saved_spec(model, config, try_env(here))
    assert (probed.spec, probed.categories) == (saved.spec, typed)
