"""ONNX files, run by onnxruntime, act as border-cli's own policies on 1,000 observations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from border_cli.export.write import write_policy
from tests.exported import (
    BOXED,
    OBSERVATIONS,
    VARIANTS,
    actions_of,
    assert_same,
    observations,
    spec_of,
    various,
)

onnxruntime = pytest.importorskip("onnxruntime")
CASES = [(agent, name) for agent in VARIANTS for name in OBSERVATIONS if name != "mask" or agent not in BOXED]


@pytest.mark.parametrize(("agent", "name"), CASES)
def test_onnx_policies_act_as_ours(tmp_path: Path, agent: str, name: str) -> None:
    spec = spec_of(name, agent)
    rows, stored = observations(name, spec)
    policy, expected = various(agent, spec, stored)
    write_policy(policy, spec, tmp_path, "onnx", "title")
    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"))
    inputs = {leaf.name: rows.astype(leaf.dtype) for leaf, rows in zip(spec.obs.leaves, rows, strict=True)}
    if policy.memory_units is not None:
        inputs["gru"] = np.zeros((len(expected), policy.memory_units), np.float32)
    actions, *after = session.run(None, inputs)
    assert_same(spec, actions, expected)
    later, *_ = session.run(None, inputs | dict(zip(["gru"], after, strict=False)))
    assert_same(spec, later, actions_of(policy, spec, stored))
