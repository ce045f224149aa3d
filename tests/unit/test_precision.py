"""`agent.precision=bfloat16` lowers the matrix products of opt steps, and nothing else."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from border_cli.agents.agent import NetworkAgent
from border_cli.agents.nets import Linear, in_float32
from border_cli.agents.params import FlatParams
from border_cli.agents.sac.config import SacConfig
from border_cli.config.schema import TrainConfig
from border_cli.core.errors import UsageError
from border_cli.run import preflight
from border_cli.runtime import machine
from tests.kinds import AGENTS
from tests.learners import learn, make_learner, observations

_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm"}
_MOVES = {
    *("_to_copy", "_unsafe_view", "alias", "clone", "detach", "expand", "slice"),
    *("squeeze", "t", "transpose", "unsqueeze", "view"),
}
_LAYERS = {"relu", "threshold_backward", "mul", "add", "sum"}
"""mul: IQN multiplies features by embedded levels · add, sum: gradients of what is used more than once."""


class Bfloat16Operations(TorchDispatchMode):
    """Records the names of the operations that read or return numbers of bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(isinstance(x, torch.Tensor) and x.dtype == torch.bfloat16 for x in (*args, result)):
            self.names.add(func.overloadpacket.__name__)
        return result


@pytest.mark.parametrize("agent", AGENTS)
def test_only_matrix_products_and_layers_are_lowered(agent: str) -> None:
    operations = Bfloat16Operations()
    with operations:
        learn(agent, make_learner(agent, precision="bfloat16"), range(2))
    assert operations.names & _PRODUCTS
    assert operations.names <= _PRODUCTS | _MOVES | _LAYERS


@pytest.mark.parametrize("agent", AGENTS)
def test_the_opt_step_is_that_of_float32_up_to_rounding(agent: str) -> None:
    # The probabilities of atoms by symlog are tiny at first, so that rounding counts more. For btr
    # the bound was measured with this learning rate.
    ranged = {"v_min": -10.0, "v_max": 10.0}
    settings = {"c51": ranged, "rainbow": ranged, "btr": {"lr": 1e-3}}.get(agent, {})
    share = 0.3 if agent == "flashsac" else 0.15  # its shifts begin at 0
    full, lowered = (make_learner(agent, precision=p, **settings) for p in ("float32", "bfloat16"))
    for learner in (full, lowered):
        learner.eval()
    assert_acts_alike(full, lowered)
    for learner in (full, lowered):
        learn(agent, learner, range(5))
    arrays = lowered.state().arrays
    for name, array in full.state().arrays.items():
        assert arrays[name].dtype == array.dtype
        error = np.linalg.norm(array - arrays[name])
        slack = 1e-3 if name.endswith(".mean") else 1e-5  # normalised inputs have the mean 0
        assert error <= share * np.linalg.norm(array) + slack, name
    assert any((array != arrays[name]).any() for name, array in full.state().arrays.items())
    lowered.sync_model(full.model_info())
    assert_acts_alike(full, lowered)


def assert_acts_alike(full: NetworkAgent, lowered: NetworkAgent) -> None:
    obs = observations(0)
    assert np.array_equal(full.sample(obs, 10**6), lowered.sample(obs, 10**6)), "acting is in float32"


def test_a_bound_network_returns_float32_gradients() -> None:
    layout = FlatParams(Linear(2, 1, torch.Generator().manual_seed(0)))
    network = layout.bind(torch.tensor([1.0, 0.0, 0.0]), "bfloat16")
    x = torch.tensor([[1.0 + 2.0**-10, 1.0]])  # the last digit is lost in 8 bits
    assert network(x).dtype == torch.bfloat16 and network(x).item() == 1.0
    (gradient, _) = torch.autograd.grad(network(x).float().sum(), tuple(network.parameters()))
    assert gradient.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        exact = in_float32(torch.matmul, x.to(torch.float32), torch.tensor([[1.0], [0.0]]))
    assert exact.dtype == torch.float32 and exact.item() == 1.0 + 2.0**-10


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16\n", True),
        ("Features\t: fp asimd bf16\n", True),
        ("flags\t\t: fpu avx512f\nbugs\t\t: avx512_bf16\n", False),
    ],
)
def test_the_instructions_of_the_cpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, expected: bool
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(text)
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    assert machine.has_bfloat16() is expected
    monkeypatch.setattr(machine, "ROOT", tmp_path / "elsewhere")
    assert machine.has_bfloat16() is False


@pytest.mark.parametrize("supported", [False, True])
@pytest.mark.parametrize("device", ["cpu", "cuda:0", "mps"])
def test_it_is_refused_where_the_device_has_no_instructions_for_it(
    monkeypatch: pytest.MonkeyPatch, supported: bool, device: str
) -> None:
    monkeypatch.setattr(machine, "has_bfloat16", lambda: supported)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: supported)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    single, half = (TrainConfig(agent=SacConfig(precision=p), device=device) for p in ("float32", "bfloat16"))
    preflight._check_device(single)
    if supported and device != "mps":
        preflight._check_device(half)
        return
    with pytest.raises(UsageError, match=f"device={device} has no instructions") as raised:
        preflight._check_device(half)
    # a run that is resumed keeps its precision
    assert "allowed here: agent.precision=float32 in a new run, which init_from=<run>" in str(raised.value)
