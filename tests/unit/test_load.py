"""`border_cli.load`, bare agents, and finding the model of a path or choice."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import border_cli
from border_cli.checkpoints import store
from border_cli.checkpoints.contents import ModelDescription
from border_cli.config.schema import EnvConfig
from border_cli.core.errors import BorderError, UsageError
from border_cli.core.spaces import ActionSpec, Array, EnvSpec, Obs, ObsLeaf, ObsSpec
from border_cli.core.state import State
from border_cli.core.types import Evaluation
from border_cli.envs.gym_spaces import env_spec
from border_cli.run.find import Located, model_directory
from border_cli.run.load import LoadedModel
from tests.trained import DQN, describe, save_best, save_model, save_run

spaces = gymnasium.spaces
CARTPOLE = EnvConfig(id="CartPole-v1")
BOX = spaces.Box(-1, 1, (4,), np.float32)
DICT = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(-1, 1, (2,))})
TUPLE = spaces.Tuple((spaces.Discrete(2), BOX))
CARTPOLE_SPEC = env_spec(BOX, spaces.Discrete(2))
SCORE = Evaluation(5, (1.0,), (1,))


def loaded(folder: Path, space: Any = BOX, actions: Any = None, **changes: Any) -> LoadedModel:
    """Save and load a model for these spaces, by default with two actions."""
    spec = env_spec(space, actions or spaces.Discrete(2))
    return border_cli.load(save_model(folder, describe(CARTPOLE, spec, **changes), 1))


@pytest.mark.parametrize(
    "space",
    [
        BOX,
        spaces.Discrete(5, start=-2),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(3),
        spaces.Dict({"a": spaces.Box(0, 255, (2,), np.uint8), "b": spaces.Discrete(3)}),
        TUPLE,
    ],
    ids=str,
)
def test_observations_and_actions_have_the_types_of_the_environment(tmp_path: Path, space: Any) -> None:
    """It takes single observations and batches."""
    actions = spaces.Discrete(3, start=5)
    model = loaded(tmp_path, space, actions)
    space.seed(0)
    each = [space.sample() for _ in range(6)]
    expected = [model.sample(obs) for obs in each]
    assert all(type(action) is np.int64 and actions.contains(action) for action in expected)
    if isinstance(space, spaces.Dict):
        batch: Any = {key: np.stack([obs[key] for obs in each]) for key in each[0]}
    elif isinstance(space, spaces.Tuple):
        batch = tuple(np.stack(column) for column in zip(*each, strict=True))
    else:
        batch = np.stack(each)
    assert model.sample(batch).tolist() == expected
    np.testing.assert_allclose(model.values(batch), [model.values(obs) for obs in each], rtol=0, atol=1e-6)
    assert model.values(each[0]).shape == (3,)


def test_a_checkpoint_and_the_latest_run_can_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    run = Path("runs/2026-01-01/a")
    save_run(run, describe(CARTPOLE, CARTPOLE_SPEC), best=None, steps=(10, 20))
    Path("runs/latest").symlink_to("2026-01-01/a")
    model = border_cli.load(str(run), checkpoint=10)
    assert (model.opt_steps, model.path) == (10, run / "checkpoints" / "step-000000010")
    assert border_cli.load().opt_steps == 20
    assert "no evaluation has found a best model yet" in caplog.text


@pytest.mark.parametrize(
    ("space", "obs"),
    [
        *((BOX, obs) for obs in (np.zeros(3), np.full(4, np.nan), "text", [[1.0], [2.0, 3.0]])),
        *((spaces.Discrete(3, start=5), obs) for obs in (8, 5.5)),
        (spaces.MultiDiscrete([2, 3]), [1, 3]),
        (spaces.MultiBinary(2), [0, 2]),
        (spaces.Box(0, 255, (2,), np.uint8), [0, 300]),
        *((DICT, obs) for obs in (np.zeros(3), {"a": 1})),
        (TUPLE, (1,)),
    ],
    ids=str,
)
def test_an_observation_outside_of_its_space_is_a_value_error(tmp_path: Path, space: Any, obs: Any) -> None:
    model = loaded(tmp_path, space)
    with pytest.raises(ValueError):
        model.sample(obs)


def test_with_deterministic_false_it_explores_as_at_the_end_of_training(tmp_path: Path) -> None:
    model = loaded(tmp_path, epsilon_start=0.0, epsilon_final=1.0, epsilon_env_steps=10_000)
    batch = np.zeros((200, 4), np.float32)
    assert len(set(model.sample(batch).tolist())) == 1
    assert 60 < sum(model.sample(batch, deterministic=False)) < 140
    assert len(set(model.sample(batch).tolist())) == 1
    with pytest.raises(ValueError, match="env_ix has 3 environments, the observation 200"):
        model.sample(batch, env_ix=[0, 1, 2])


def test_quantiles_of_the_return_are_available(tmp_path: Path) -> None:
    from border_cli.agents.dqn.agent import make_policy

    config = replace(DQN, type="qrdqn", head="quantile", quantiles=7)
    arrays = make_policy(config, CARTPOLE_SPEC, seed=0).model_info().arrays
    model = ModelDescription(asdict(config), asdict(CARTPOLE), CARTPOLE_SPEC)
    policy = border_cli.load(save_best(tmp_path / "qrdqn", arrays, model, SCORE))
    assert policy.quantiles(np.zeros((3, 4))).shape == (3, 2, 7)
    np.testing.assert_allclose(policy.quantiles(np.zeros(4)).mean(-1), policy.values(np.zeros(4)), rtol=1e-5)
    with pytest.raises(ValueError, match="has no quantiles"):
        loaded(tmp_path).quantiles(np.zeros(4))


def test_a_bare_agent_is_saved_and_loaded(tmp_path: Path) -> None:
    from border_cli.agents.dqn.agent import make_agent

    agent: Any = make_agent(DQN, CARTPOLE_SPEC, seed=1)
    agent.load_state(State(agent.state().arrays, {**agent.state().values, "opt_steps": 3}))
    path = border_cli.save_agent(agent, tmp_path / "mine", DQN, CARTPOLE_SPEC)
    other = border_cli.load_agent(path)
    saved, loaded_state = agent.state(), other.state()
    assert loaded_state.values == saved.values and other.opt_steps == 3
    assert all((loaded_state.arrays[name] == array).all() for name, array in saved.arrays.items())
    agent.eval()
    obs = np.random.default_rng(0).uniform(-1, 1, (20, 4)).astype(np.float32)
    assert border_cli.load(path).sample(obs).tolist() == agent.sample({"obs": obs}).tolist()
    with pytest.raises(UsageError, match="has only a model"):
        border_cli.load_agent(save_model(tmp_path, describe(CARTPOLE, CARTPOLE_SPEC), 1))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lrr": 1}, "agent.lrr"),
        ({"lr": -1.0}, "agent.lr"),
        ({"type": "nowhere"}, "plugins="),
        ({"hidden": [9]}, "weights do not fit"),
    ],
)
def test_a_stored_configuration_is_checked(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        loaded(tmp_path, **changes)
    assert said in str(caught.value)


def test_a_plugin_is_imported_if_trusted_or_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "push_plugin.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "push_plugin", raising=False)
    run, plain = tmp_path / "run", describe(CARTPOLE, CARTPOLE_SPEC)
    model = replace(plain, plugins=("push_plugin",))
    save_run(run, plain, best=None)
    best = save_model(run, model, 3)
    with pytest.raises(UsageError, match="plugins push_plugin"):
        border_cli.load(run)
    assert not (tmp_path / "imported").exists()
    assert border_cli.load(best, plugins=["push_plugin"]).opt_steps == 3
    assert (tmp_path / "imported").exists()
    assert border_cli.load(run, trust=True).opt_steps == 3


def test_import_is_cheap_and_loading_makes_no_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import sys, border_cli; print(*sys.modules)"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    modules = {"numpy", "torch", "gymnasium", "hydra", "rich", "border_cli.run"}
    assert not set(answer.stdout.split()) & modules
    monkeypatch.setattr(gymnasium, "make", None)
    loaded(tmp_path).sample(np.zeros(4))


class Noting:
    """A policy that stores its observations."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.episodes: list[int] = []

    def begin_episode(self, env_ix: int) -> None:
        self.episodes.append(env_ix)

    def sample(self, obs: Obs, env_steps: int = 0, env_ix: Sequence[int] = ()) -> Array:
        self.seen.append((list(env_ix), obs["obs"].tolist()))
        return np.zeros(len(obs["obs"]), np.int64)


STACKED = EnvSpec(
    ObsSpec((ObsLeaf("obs", (), "box", (3, 1), "int64", stack=3),)), ActionSpec("discrete", n=2)
)


def test_single_frames_are_stacked_as_in_training_the_newest_last() -> None:
    policy: Any = Noting()
    model = LoadedModel(policy, STACKED, 0, Path("x"))
    for frame in (1, 2, 3, 4):
        model.sample(np.array([frame]))
    stacks = ((1, 1, 1), (1, 1, 2), (1, 2, 3), (2, 3, 4))
    assert policy.seen == [([0], [[[a], [b], [c]]]) for a, b, c in stacks]
    model.begin_episode()
    model.sample(np.array([9]))
    model.sample(np.array([[5], [6], [7]]))  # already a stack
    assert policy.seen[4:] == [([0], [[[9], [9], [9]]]), ([0], [[[5], [6], [7]]])]
    # each environment of a batch has its own stack
    model.sample(np.array([[1], [11]]), env_ix=[2, 4])
    model.begin_episode(4)
    model.sample(np.array([[2], [12]]), env_ix=[2, 4])
    assert policy.seen[7] == ([2, 4], [[[1], [1], [2]], [[12], [12], [12]]])
    assert policy.episodes == [0, 4]


FIRST, SECOND = "checkpoints/step-000000100", "checkpoints/step-000000200"


def make_run(run_dir: Path, best: bool = True, steps: tuple[int, ...] = (100, 200)) -> Path:
    run_dir.mkdir(parents=True)
    (run_dir / "config.yaml").write_text("{}")
    for step in steps:
        store.write(run_dir / "checkpoints", store.step_name(step), {"model.json": b"{}"}, step)
    if best:
        store.write(run_dir, "best", {"model.json": b"{}"}, 150)
    return run_dir


def break_model(path: Path) -> None:
    (path / "model.json").write_bytes(b"no")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "checkpoint", "chosen"),
    [
        ("", None, "best"),
        ("", "last", SECOND),
        ("", 100, FIRST),
        ("checkpoints", "last", SECOND),
        ("best", None, "best"),
        (FIRST, None, FIRST),
    ],
)
def test_a_run_means_a_model(run: Path, name: str, checkpoint: str | int | None, chosen: str) -> None:
    assert model_directory(run / name, checkpoint) == Located(run / chosen, run)
    (run / "best").rename(store.aside(run / "best"))  # by a writer that was killed
    assert model_directory(run).path == run / "best"


def test_what_is_used_instead_is_noted(tmp_path: Path, run: Path) -> None:
    located = model_directory(make_run(tmp_path / "young", best=False))
    assert located.path.name == "step-000000200"
    assert "no evaluation has found a best model yet" in located.note
    break_model(run / SECOND)
    note = "step-000000200 does not verify: this is step-000000100"
    assert model_directory(run, "last") == Located(run / FIRST, run, note)
    store.write(tmp_path / "alone", "model", {"model.json": b"{}"}, 3)
    assert model_directory(tmp_path / "alone/model") == Located(tmp_path / "alone/model", None)


def test_without_a_path_the_latest_run_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no run below runs" in refused(None)
    first = make_run(Path("runs/2026-01-01/10-00-00.000_dqn_a"))
    second = make_run(Path("runs/2026-01-02/09-00-00.000_dqn_a"))
    assert model_directory().path == second / "best"
    Path("runs/latest").symlink_to("2026-01-01/10-00-00.000_dqn_a")
    assert model_directory().path == first / "best"
    shutil.rmtree(first)  # the link stays
    assert model_directory().path == second / "best"


def refused(
    path: Path | None, checkpoint: str | int | None = None, error: type[BorderError] = UsageError
) -> str:
    with pytest.raises(error) as caught:
        model_directory(path, checkpoint)
    assert 1 <= len(str(caught.value).splitlines()) <= 3
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "checkpoint", "message"),
    [
        ("../rnu", None, "rnu is not there\nallowed: a run, such as runs/latest"),
        ("config.yaml", None, "is not a run"),
        ("../empty", None, "is not a run"),
        ("", 190, "\nnearest: checkpoint=200\nallowed: best, last, 200, 100"),
        ("best", "last", "checkpoint=last chooses among those of a run"),
    ],
)
def test_errors_name_the_allowed(run: Path, name: str, checkpoint: str | int | None, message: str) -> None:
    (run.parent / "empty").mkdir()
    assert message.format(run=run) in refused((run / name).resolve(), checkpoint)


def test_the_error_of_a_damaged_model_names_the_others_of_the_run(run: Path) -> None:
    break_model(run / "best")
    first, second = refused(run, "best").splitlines()
    assert "/model.json does not verify" in first
    assert second == f"allowed: {run / SECOND}, {run / FIRST}"
