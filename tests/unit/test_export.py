"""Exported policies act as border-cli's own on 1,000 observations, for every agent and kind of space."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from border_cli.agents import numpy_policy
from border_cli.agents.dqn.agent import NO_NOISE, DqnPolicy, Noise
from border_cli.core.errors import UsageError
from border_cli.core.spaces import ActionSpec, Array, Obs
from border_cli.export.write import ExportedPolicy, write_policy
from tests.exported import (
    BOXED,
    OBSERVATIONS,
    VARIANTS,
    actions_of,
    assert_same,
    nested,
    observations,
    policy_of,
    spec_of,
    various,
)
from tests.faults.amounts import sampled

CASES = [(agent, name) for agent in VARIANTS for name in OBSERVATIONS if name != "mask" or agent not in BOXED]


@pytest.mark.parametrize(("agent", "name"), sampled(CASES, 4))
def test_numpy_policies_act_as_ours_on_batches_and_singles(tmp_path: Path, agent: str, name: str) -> None:
    spec = spec_of(name, agent)
    shown, stored = observations(name, spec)
    policy, expected = various(agent, spec, stored)
    write_policy(policy, spec, tmp_path, "numpy", "title")
    exported = numpy_policy.load(tmp_path)
    assert_same(spec, exported(nested(spec, shown)), expected)
    # a second time step, which differs if the network has a memory
    assert_same(spec, exported(nested(spec, shown)), actions_of(policy, spec, stored))
    exported.begin_episode()
    action = exported(nested(spec, [rows[3] for rows in shown]))
    assert_same(spec, action, expected[3])
    assert (np.shape(action), np.asarray(action).dtype) == (spec.action.shape, spec.action.dtype)


def test_a_mask_in_the_info_is_an_argument_of_its_own(tmp_path: Path) -> None:
    spec = spec_of("mask", "dqn")
    (mask, obs), stored = observations("mask", spec)
    assert spec.obs.leaves[0].name == spec.mask
    policy, expected = various("dqn", spec, stored)
    write_policy(policy, spec, tmp_path, "numpy", "title", mask_in_info=True)
    exported = numpy_policy.load(tmp_path)
    assert_same(spec, exported(obs, action_mask=mask), expected)
    assert_same(spec, exported(obs), actions_of(policy, spec, stored | {str(spec.mask): np.ones_like(mask)}))
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert 'action = policy(observation, action_mask=info["action_mask"])' in page


def test_another_shape_of_a_part_is_named(tmp_path: Path) -> None:
    spec = spec_of("dict", "dqn")
    write_policy(policy_of("dqn", spec), spec, tmp_path, "numpy", "title")
    with pytest.raises(ValueError, match=r"obs.speed has shape \(3,\)"):
        numpy_policy.load(tmp_path)({"gear": 1, "speed": [0.0, 1.0, 2.0], "view": np.zeros((6, 6, 2))})


def test_the_exported_policy_runs_alone_as_its_readme_says(
    tmp_path: Path,
) -> None:
    spec = spec_of("dict", "iqn")
    policy = policy_of("iqn", spec)
    shown, stored = observations("dict", spec)
    files = write_policy(policy, spec, tmp_path, "numpy", "iqn on Car-v0")
    assert sorted(files) == sorted(tmp_path.iterdir())
    page = (tmp_path / "README.md").read_text()
    assert page.startswith("# iqn on Car-v0\n")
    for line in (
        "| `obs.gear` | () | int64 | its part gear |",
        "| `obs.view` | (6, 6, 2) | float32 | its part view |",
        "The output `action` is () int64, as the environment takes it.",
    ):
        assert line in page
    assert "random action instead" not in page
    np.savez(tmp_path / "given.npz", **nested(spec, shown))
    code = "".join(f"{line.strip()}\n" for line in page.splitlines() if line.startswith("    "))
    assert "action = policy(observation)\n" in code
    (tmp_path / "use.py").write_text(
        "import sys\n"
        "for name in ('torch', 'border_cli', 'gymnasium'):\n"
        "    sys.modules[name] = None\n"  # importing it raises
        "import numpy as np\n"
        "observation = dict(np.load('given.npz'))\n"
        f"{code}\n"
        "np.save('actions.npy', action)\n"
    )
    subprocess.run([sys.executable, "use.py"], cwd=tmp_path, check=True)
    assert_same(spec, np.load(tmp_path / "actions.npy"), actions_of(policy, spec, stored))


def test_a_policy_with_its_own_way_of_acting_is_refused(tmp_path: Path) -> None:
    """Its inherited `decide` would leave that out."""

    class Careful(DqnPolicy):
        def action_values(self, obs: Obs, noise: Noise = NO_NOISE) -> Array:
            return -super().action_values(obs, noise)

    spec = spec_of("vector", "dqn")
    policy = policy_of("dqn", spec)
    policy.__class__ = Careful
    with pytest.raises(UsageError, match="cannot be exported"):
        write_policy(policy, spec, tmp_path / "out", "onnx", "title")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("export", ["numpy", "tensors"])
def test_no_action_lies_outside_of_bounds_between_two_float32_numbers(tmp_path: Path, export: str) -> None:
    """float32(0.1) is larger than 0.1."""
    action = ActionSpec("box", shape=(2,), low=(-0.1, -0.5), high=(0.1, 0.5), dtype="float64")
    spec = replace(spec_of("vector", "sac"), action=action)
    policy = policy_of("sac", spec)
    policy.params.mul_(100.0)  # tanh saturates
    shown, stored = observations("vector", spec)
    if export == "numpy":
        write_policy(policy, spec, tmp_path, "numpy", "title")
        actions = numpy_policy.load(tmp_path)(nested(spec, shown))
    else:
        actions = ExportedPolicy(policy, spec)(*map(torch.from_numpy, stored.values())).detach().numpy()
    assert (actions.dtype, np.abs(actions).max(0).tolist()) == (np.float64, [0.1, 0.5])
