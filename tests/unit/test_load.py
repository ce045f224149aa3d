"""A trained model in two lines of Python."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import border_cli
from border_cli.checkpoints.contents import ModelDescription, save_best
from border_cli.config.options import option
from border_cli.config.registry import AGENTS, Entry
from border_cli.config.schema import AgentConfig, EnvConfig
from border_cli.core.errors import UsageError
from border_cli.core.protocols import Evaluation, ModelInfo
from border_cli.core.spaces import ActionSpec, Array, EnvSpec, Obs, ObsLeaf, ObsSpec
from border_cli.envs.spaces import env_spec
from border_cli.runs.load import LoadedModel
from border_cli.runs.trust import code_of, remember
from tests.trained import describe, save_model, save_run

spaces = gymnasium.spaces
CARTPOLE = EnvConfig(id="CartPole-v1")
CARTPOLE_SPEC = env_spec(spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2))
SCORE = Evaluation(5, (1.0,), (1,))


@pytest.fixture(autouse=True)
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (4,), np.float32),
        spaces.Box(-1, 1, (2, 2), np.float64),
        spaces.Discrete(5, start=-2),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(3),
        spaces.Dict({"a": spaces.Box(0, 255, (2,), np.uint8), "b": spaces.Discrete(3)}),
        spaces.Tuple((spaces.Discrete(2), spaces.Dict({"x": spaces.Box(-1, 1, (1,), np.float32)}))),
    ],
    ids=str,
)
def test_an_observation_goes_in_and_an_action_comes_out_as_the_environment_has_them(
    tmp_path: Path, space: Any
) -> None:
    actions = spaces.Discrete(3, start=5)
    path = save_model(tmp_path, describe(CARTPOLE, env_spec(space, actions)), 9)
    model = border_cli.load(path)
    space.seed(0)
    chosen = [model.sample(space.sample()) for _ in range(5)]
    assert all(type(action) is int and actions.contains(action) for action in chosen)
    assert (model.opt_steps, model.path) == (9, path)


def test_it_acts_as_the_stored_network_does(tmp_path: Path) -> None:
    from border_cli.agents.dqn.agent import make_policy
    from tests.trained import DQN

    path = save_model(tmp_path, describe(CARTPOLE, CARTPOLE_SPEC), 1)
    original = make_policy(DQN, CARTPOLE_SPEC, seed=0)
    original.eval()
    observations = np.random.default_rng(0).uniform(-1, 1, (50, 4)).astype(np.float32)
    model = border_cli.load(path)
    assert [model.sample(o) for o in observations] == original.sample({"obs": observations}).tolist()


def test_checkpoints_of_a_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_run(tmp_path / "run", describe(CARTPOLE, CARTPOLE_SPEC), best=None, steps=(10, 20))
    assert border_cli.load(str(tmp_path / "run"), checkpoint=10).opt_steps == 10
    assert border_cli.load(tmp_path / "run").opt_steps == 20
    assert "no evaluation has found a best model yet" in caplog.text


def test_the_latest_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_run(Path("runs/2026-01-01/a"), describe(CARTPOLE, CARTPOLE_SPEC), best=30)
    assert border_cli.load().opt_steps == 30


def test_an_observation_of_another_shape(tmp_path: Path) -> None:
    model = border_cli.load(save_model(tmp_path, describe(CARTPOLE, CARTPOLE_SPEC), 1))
    with pytest.raises(ValueError, match="shape"):
        model.sample(np.zeros(3, np.float32))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lrr": 1}, "agent.lrr"),
        ({"lr": "fast"}, "agent.lr"),
        ({"lr": -1.0}, "agent.lr"),
        ({"type": "nobody"}, "plugins="),
        ({"hidden": [9]}, "weights do not fit"),
    ],
)
def test_a_stored_configuration_is_data_that_is_checked(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    path = save_model(tmp_path, describe(CARTPOLE, CARTPOLE_SPEC, **changes), 1)
    with pytest.raises(UsageError) as caught:
        border_cli.load(path)
    assert said in str(caught.value)


def test_spaces_that_are_not_for_the_agent(tmp_path: Path) -> None:
    spec = EnvSpec(
        CARTPOLE_SPEC.obs, ActionSpec("box", shape=(1,), low=(-1.0,), high=(1.0,), dtype="float32")
    )
    path = save_best(tmp_path, {}, describe(CARTPOLE, spec), SCORE)
    with pytest.raises(UsageError, match="Discrete"):
        border_cli.load(path)


# -- agents of the user's own ------------------------------------------------------------


@dataclass
class PushConfig(AgentConfig):
    """An agent that always pushes as hard as its weight says."""

    type: str = option("push", "which agent this is")
    strength: float = option(1.0, "how hard")


class PushPolicy:
    """Gives its weight, whatever it sees."""

    def __init__(self) -> None:
        self.exploring = True
        self.weight = np.zeros(1, np.float32)

    def begin_episode(self, env_ix: int) -> None:
        pass

    def estimates(self) -> None:
        return None

    def sample(self, obs: Obs, env_steps: int = 0, env_ix: Sequence[int] = ()) -> Array:
        assert not self.exploring
        return np.repeat(self.weight[None], len(obs["obs"]), 0)

    def train(self) -> None:
        self.exploring = True

    def eval(self) -> None:
        self.exploring = False

    def sync_model(self, info: ModelInfo) -> None:
        self.weight = info.arrays["weight"]


PUSH_SPEC = env_spec(spaces.Box(-1, 1, (4,), np.float32), spaces.Box(-1, 1, (1,), np.float64))


@pytest.fixture
def push_model(tmp_path: Path) -> ModelDescription:
    return ModelDescription(asdict(PushConfig()), asdict(CARTPOLE), PUSH_SPEC, ("push_plugin",))


@pytest.fixture
def plugin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module push_plugin that leaves a mark when it is imported, and registers the agent as a plugin does."""
    module = types.ModuleType("push_agent")
    module.check_spec = lambda config, spec: None  # type: ignore[attr-defined]
    module.make_policy = lambda config, spec, seed: PushPolicy()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "push_agent", module)
    monkeypatch.setitem(AGENTS, "push", Entry(PushConfig, "push_agent"))
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "push_plugin.py").write_text(f"open({str(folder / 'imported')!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "push_plugin", raising=False)
    return folder


def test_a_continuous_action_is_clipped_and_of_the_spaces_type(
    tmp_path: Path, push_model: ModelDescription, plugin_folder: Path
) -> None:
    path = save_best(tmp_path, {"weight": np.array([3.0], np.float32)}, push_model, SCORE)
    action = border_cli.load(path, plugins=["push_plugin"]).sample(np.zeros(4))
    assert action.dtype == np.float64 and action.tolist() == [1.0]
    assert (plugin_folder / "imported").exists()


def test_a_plugin_of_somebody_elses_run_is_not_imported(
    tmp_path: Path, push_model: ModelDescription, plugin_folder: Path
) -> None:
    path = save_best(tmp_path, {}, push_model, SCORE)
    with pytest.raises(UsageError, match=r"plugins=\[push_plugin\]"):
        border_cli.load(path)
    assert not (plugin_folder / "imported").exists()


def test_a_plugin_of_a_run_of_ones_own_is(
    tmp_path: Path, push_model: ModelDescription, plugin_folder: Path
) -> None:
    run_id = save_run(tmp_path / "run", describe(CARTPOLE, CARTPOLE_SPEC), best=None)
    save_best(tmp_path / "run", {"weight": np.zeros(1, np.float32)}, push_model, SCORE)
    with pytest.raises(UsageError):
        border_cli.load(tmp_path / "run")
    remember(run_id, code_of(push_model.plugins, CARTPOLE))
    assert isinstance(border_cli.load(tmp_path / "run"), LoadedModel)
    assert (plugin_folder / "imported").exists()


# -- what is imported ------------------------------------------------------------


def loaded_modules(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sys.modules)"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(answer.stdout.split())


def test_the_package_itself_is_light() -> None:
    loaded = loaded_modules("import border_cli")
    assert not loaded & {"numpy", "torch", "gymnasium", "hydra", "rich", "border_cli.runs"}


def test_loading_builds_no_environment(tmp_path: Path) -> None:
    path = save_model(tmp_path, describe(CARTPOLE, CARTPOLE_SPEC), 1)
    assert "gymnasium" not in loaded_modules(
        f"import border_cli, numpy\nborder_cli.load({str(path)!r}).sample(numpy.zeros(4))"
    )


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="laod"):
        _ = border_cli.laod
    assert {"load", "train_async"} <= set(dir(border_cli))


class Noting:
    """A policy that keeps what it is shown."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def sample(self, obs: Obs, env_steps: int = 0, env_ix: Sequence[int] = ()) -> Array:
        self.seen.append(obs["obs"][0].tolist())
        return np.zeros(1, np.int64)


def test_single_frames_are_stacked_as_in_training_the_newest_last() -> None:
    policy: Any = Noting()
    spec = EnvSpec(
        ObsSpec((ObsLeaf("obs", (), "box", (3, 1), "int64", stack=3),)), ActionSpec("discrete", n=2)
    )
    model = LoadedModel(policy, spec, 0, Path("x"))
    for frame in (1, 2, 3, 4):
        model.sample(np.array([frame]))
    assert policy.seen == [[[a], [b], [c]] for a, b, c in ((1, 1, 1), (1, 1, 2), (1, 2, 3), (2, 3, 4))]
    model.begin_episode()
    model.sample(np.array([9]))
    model.sample(np.array([[5], [6], [7]]))  # a stack already
    assert policy.seen[4:] == [[[9], [9], [9]], [[5], [6], [7]]]
