"""`agent.precision=bfloat16` lowers the matrix products of opt steps, and nothing else."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from border_cli.agents.agent import NetworkAgent
from border_cli.agents.nets import Linear, in_float32
from border_cli.agents.params import FlatParams
from border_cli.config.registry import AGENTS
from border_cli.config.resolve import Change, check_changes
from border_cli.config.schema import TrainConfig
from border_cli.core.errors import UsageError
from border_cli.run import preflight
from border_cli.runtime import machine
from tests.contract.test_every_agent import config_of, learn, rows, spec_of

_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm"}
_MOVES = {
    "_to_copy",
    "t",
    "transpose",
    "view",
    "_unsafe_view",
    "expand",
    "detach",
    "slice",
    "alias",
    "squeeze",
    "unsqueeze",
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


def learner(agent: str, precision: str) -> NetworkAgent:
    config = replace(config_of(agent), precision=precision)
    made: NetworkAgent = AGENTS[agent].load().make_agent(config, spec_of(agent), 3)
    return made


@pytest.mark.parametrize("agent", AGENTS)
def test_only_matrix_products_and_layers_are_lowered(agent: str) -> None:
    operations = Bfloat16Operations()
    with operations:
        learn(agent, learner(agent, "bfloat16"), range(2))
    assert operations.names & _PRODUCTS
    assert operations.names <= _PRODUCTS | _MOVES | _LAYERS


@pytest.mark.parametrize("agent", AGENTS)
def test_the_opt_step_is_that_of_float32_up_to_rounding(agent: str) -> None:
    full, lowered = learner(agent, "float32"), learner(agent, "bfloat16")
    obs = rows(np.random.default_rng(0))
    for one in (full, lowered):
        one.eval()
    before = full.sample(obs, 10**6)
    assert np.array_equal(before, lowered.sample(obs, 10**6)), "acting is in float32"
    for one in (full, lowered):
        learn(agent, one, range(5))
    differs = False
    for name, array in full.state().arrays.items():
        other = lowered.state().arrays[name]
        assert other.dtype == array.dtype
        error = np.linalg.norm(array - other)
        assert error <= 0.15 * np.linalg.norm(array) + 1e-5, name
        differs |= error > 0
    assert differs
    lowered.sync_model(full.model_info())
    assert np.array_equal(full.sample(obs, 10**6), lowered.sample(obs, 10**6))


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
        ("flags\t\t: fpu amx_bf16\n", True),
        ("Features\t: fp asimd bf16\n", True),
        ("flags\t\t: fpu avx512f\nbugs\t\t: avx512_bf16\n", False),
        ("", False),
    ],
)
def test_the_instructions_of_the_cpu(tmp_path: Path, text: str, expected: bool) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(text)
    assert machine.has_bfloat16(tmp_path) is expected
    assert machine.has_bfloat16(tmp_path / "elsewhere") is False


def devices(monkeypatch: pytest.MonkeyPatch, cpu: bool, cuda: bool) -> Iterator[tuple[str, bool]]:
    monkeypatch.setattr(machine, "has_bfloat16", lambda: cpu)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: cuda)
    yield from (("cpu", cpu), ("cuda:0", cuda), ("mps", False))


@pytest.mark.parametrize("supported", [False, True])
def test_it_is_refused_where_the_device_has_no_instructions_for_it(
    monkeypatch: pytest.MonkeyPatch, supported: bool
) -> None:
    for device, allowed in devices(monkeypatch, cpu=supported, cuda=supported):
        preflight._check_precision("float32", device)
        if allowed:
            preflight._check_precision("bfloat16", device)
            continue
        with pytest.raises(UsageError, match=f"device={device} has no instructions") as raised:
            preflight._check_precision("bfloat16", device)
        if device == "cpu":
            assert re.search(r"on this machine: \d+\.\d\d of the speed of float32", str(raised.value))
        # a run that is resumed keeps its precision
        assert "allowed here: agent.precision=float32 in a new run, which init_from=<run>" in str(
            raised.value
        )


def test_it_cannot_change_within_a_run() -> None:
    with pytest.raises(UsageError, match=r"cannot change within a run: agent\.precision"):
        check_changes(TrainConfig(), [Change("agent.precision", "float32", "bfloat16")])
