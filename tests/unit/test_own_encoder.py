"""A network of the user's own as the encoder of every agent. See also `test_extending`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from border_cli.agents.compiler import graph_path
from border_cli.agents.dqn.network import QNetwork
from border_cli.agents.nets import Encoder
from border_cli.agents.params import FlatParams
from border_cli.core.errors import UsageError
from border_cli.core.spaces import ActionSpec, EnvSpec, ObsLeaf, ObsSpec
from border_cli.core.state import State
from tests.kinds import AGENTS
from tests.learners import (
    assert_same_state,
    config_of,
    learn,
    make_learner,
    observations,
    spec_of,
)
from tests.unit.test_compiled_check import check_code, job, vector_learner

agents = pytest.mark.parametrize("agent", AGENTS)


class Attention(nn.Module):
    """Attention between two parts of the observation, with a constant buffer and a layer that is called twice."""

    def __init__(self, spec: ObsSpec, width: int = 8) -> None:
        super().__init__()
        self.features = width
        self.number, self.kind = nn.Linear(3, width), nn.Embedding(8, width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.again = self.norm
        self.scale: Tensor
        self.register_buffer("scale", torch.tensor([2.0]))

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        parts = self.number(obs["obs.x"] * self.scale), self.kind(obs["obs.k"].reshape(-1))
        x = torch.stack(parts, 1)
        y, _ = self.attention(x, x, x, need_weights=False)
        out: Tensor = self.again(self.norm(x + y).mean(1))
        return out


class Sum(nn.Module):
    """The sum of all parts as the environment gives them, as one number; or one with a problem."""

    features = 1

    def __init__(self, spec: ObsSpec, problem: str = "") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.layer: nn.Module = LAYERS.get(problem, nn.Identity)()
        self.names: list[str] = []
        if problem == "twice":
            self.other = self.weight
        if problem == "list":
            self.parts = [self.weight]
        if problem == "frozen":
            self.weight.requires_grad_(False)
        if problem == "integers":
            self.register_buffer("count", torch.zeros(1, dtype=torch.int64))
        if problem == "float64":
            self.double()
        if problem == "shape":
            self.features = 2

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        self.names = list(obs)
        weight = self.other if hasattr(self, "other") else getattr(self, "parts", [self.weight])[0]
        total = torch.stack([rows.reshape(rows.shape[0], -1).float().sum(1) for rows in obs.values()]).sum(0)
        out: Tensor = self.layer((weight * total[:, None]).to(weight.dtype))
        return out


class Log(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.log(x - x)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "log": Log,
    "norm": lambda: nn.BatchNorm1d(1),
    "batch": lambda: nn.BatchNorm1d(1, track_running_stats=False),
    "dropout": nn.Dropout,
    "spectral": lambda: nn.Sequential(
        nn.Linear(1, 4), nn.utils.spectral_norm(nn.Linear(4, 4)), nn.Linear(4, 1)
    ),
}


def no_module(spec: ObsSpec) -> list[ObsSpec]:
    return [spec]


ATTENTION = {"encoder": "tests.unit.test_own_encoder:Attention", "encoder_kwargs": {"width": 4}}
SUM = "tests.unit.test_own_encoder:Sum"


def test_it_gets_observations_as_the_environment_gives_them() -> None:
    spec = spec_of("dqn").obs
    encoder = Encoder(spec, config_of("dqn", encoder=SUM), torch.Generator())
    obs = observations(1, 3)
    expected = obs["obs.x"].sum(1) + obs["obs.k"].reshape(-1)
    given = {name: torch.from_numpy(rows) for name, rows in obs.items()}
    np.testing.assert_allclose(encoder(given).detach().numpy()[:, 0], expected, rtol=1e-6)
    assert encoder.features == 1


@agents
def test_every_agent_learns_resumes_and_acts_with_it(agent: str) -> None:
    learner, other = (make_learner(agent, seed, **ATTENTION) for seed in (3, 77))
    before = {name: array.copy() for name, array in learner.model_info().arrays.items()}
    learn(agent, learner, range(3))
    after = learner.model_info().arrays
    (name,) = (name for name in after if name.endswith("own.number.weight"))
    assert after[name].shape == (4, 3)
    assert (after[name] != before[name]).any()
    state = learner.state()
    other.load_state(State(state.arrays, json.loads(json.dumps(state.values))))
    other.load_generator_state(learner.generator_state())
    acting = AGENTS[agent].load().make_policy(config_of(agent, **ATTENTION), spec_of(agent), 8)
    acting.sync_model(learner.model_info())
    for each in (learner, other, acting):
        each.eval()
    acted = [each.sample(observations(9)) for each in (learner, other, acting)]
    assert (acted[0] == acted[1]).all()
    assert (acted[0] == acted[2]).all()
    for each in (learner, other):
        each.train()
        learn(agent, each, range(3, 5))
    assert_same_state(learner, other)


@pytest.mark.parametrize("agent", ["dqn", "sac"])
def test_its_compiled_opt_step_equals_the_eager_one(agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_code(*vector_learner(agent, **ATTENTION), monkeypatch)


def test_the_cache_of_compiled_opt_steps_knows_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    code = tmp_path / "an_encoder.py"
    code.write_text("from tests.unit.test_own_encoder import Sum\n", encoding="utf-8")
    settings = {"encoder": "an_encoder:Sum"}
    before = graph_path(job("dqn", **settings), 0)
    assert graph_path(job("dqn", **settings), 0) == before
    code.write_text("from tests.unit.test_own_encoder import Sum  # changed\n", encoding="utf-8")
    assert graph_path(job("dqn", **settings), 0) != before


def test_the_seed_decides_its_first_weights_and_torchs_generator_does_not() -> None:
    def first(seed: int) -> np.ndarray:
        torch.rand(seed)  # moves torch's generator
        arrays = make_learner("dqn", seed, **ATTENTION).model_info().arrays
        return arrays["encoder.own.number.weight"]

    before = torch.get_rng_state()
    same = first(3), first(3)
    assert (same[0] == same[1]).all()
    assert (same[0] != first(4)).any()
    torch.set_rng_state(before)
    make_learner("dqn", 3, **ATTENTION)
    assert (torch.get_rng_state() == before).all()


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ("norm", r"layer\.num_batches_tracked, which is not float32"),
        ("batch", "raised ValueError"),
        ("dropout", "returns other numbers when it is called again"),
        ("spectral", "changes its buffers"),
        ("twice", "under two names"),
        ("list", "in a list"),
        ("frozen", "has frozen parameters"),
        ("integers", "not float32"),
        ("float64", "not float32"),
        ("shape", r"returns \(16, 1\) torch.float32 for 16 observations"),
        ("log", "not finite"),
        ("nothing", ""),
    ],
)
def test_what_cannot_be_trained_is_refused(problem: str, message: str) -> None:
    if not message:
        make_learner("dqn", encoder=SUM, encoder_kwargs={"problem": problem})
        return
    with pytest.raises(UsageError, match=message):
        make_learner("dqn", encoder=SUM, encoder_kwargs={"problem": problem})


@pytest.mark.parametrize(
    ("encoder", "kwargs", "message"),
    [
        ("builtins:dict", {}, "raised TypeError"),
        (SUM, {"problems": "x"}, "raised TypeError: .*problems"),
        ("tests.unit.test_own_encoder:no_module", {}, "makes no torch.nn.Module"),
        ("tests.unit.test_own_encoder:ATTENTION", {}, "raised TypeError"),
    ],
)
def test_what_is_no_encoder_is_refused(encoder: str, kwargs: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_learner("dqn", encoder=encoder, encoder_kwargs=kwargs)


def test_it_gets_the_parts_of_its_spec_alone_in_their_order() -> None:
    """No action mask, and nothing that only the critics may see."""
    leaves = [ObsLeaf(name, (name,), "box", (1,), "float32") for name in ("z", "a", "secret")]
    mask = ObsLeaf("action_mask", ("action_mask",), "multi_binary", (2,), "int8")
    spec = EnvSpec(ObsSpec((*leaves, mask)), ActionSpec("discrete", n=2))
    config = config_of("dsac", encoder=SUM, privileged_obs=["secret"])
    algorithm = AGENTS["dsac"].load().make_agent(config, spec, 0).algorithm
    obs = {leaf.name: torch.ones(3, *leaf.shape) for leaf in sorted(spec.obs.leaves, key=lambda x: x.name)}
    networks = algorithm.networks
    for network, names in ((networks["policy"], ["z", "a"]), (networks["critics"], ["z", "a", "secret"])):
        network(obs)
        assert network.encoder.own.names == names


def test_weight_decay_takes_all_its_matrices() -> None:
    layout = FlatParams(QNetwork(spec_of("dqn"), config_of("dqn", **ATTENTION), torch.Generator()))
    vector = layout.init().zero_()
    for part in layout.matrices:
        vector[part] = 1.0
    decayed = {name for name, part in layout.unflatten(vector).items() if part.all()}
    assert {name.rpartition("own.")[2] for name in decayed if "own" in name} == {
        "number.weight",
        "kind.weight",
        "attention.in_proj_weight",
        "attention.out_proj.weight",
    }
