"""`agent.privileged_obs`: what only the critics see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from border_cli import load, save_agent
from border_cli.agents import numpy_policy
from border_cli.agents.algorithm import update_statistics
from border_cli.agents.params import TensorBatch
from border_cli.core.errors import UsageError
from border_cli.export.write import write_policy
from tests.learners import batch_of, config_of, make_learner, observations, spec_of

KINDS = ("sac", "crossq", "flashsac", "dsac")


def tensors(obs: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(rows) for name, rows in obs.items()}


def features(agent: str, **settings: Any) -> tuple[int, int]:
    """Numbers that policy and critics see of an observation: x has 3, and k four values."""
    networks = make_learner(agent, **settings).algorithm.networks
    return networks["policy"].encoder.features, networks["critics"].encoder.features


@pytest.mark.parametrize("agent", KINDS)
def test_only_the_critics_see_a_privileged_part(agent: str) -> None:
    assert features(agent) == (7, 7)
    assert features(agent, privileged_obs=["x"]) == (4, 7)
    assert features(agent, privileged_obs=["k"]) == (3, 7)
    learner = make_learner(agent, privileged_obs=["x"])
    learner.eval()
    obs = observations(1)
    other = obs | {"obs.x": obs["obs.x"] + 1.0}
    assert (learner.sample(obs) == learner.sample(other)).all()


@pytest.mark.parametrize("agent", KINDS)
def test_the_statistics_of_a_privileged_part_are_those_of_the_batches(agent: str) -> None:
    learner = make_learner(agent, privileged_obs=["x"], normalize_obs=True)
    algorithm, batch = learner.algorithm, batch_of(agent, 1)
    parts = {
        name: torch.from_numpy(getattr(batch, name))
        for name in ("action", "reward", "discount", "terminated")
    }
    update_statistics(
        algorithm.encoders,
        TensorBatch(obs=tensors(batch.obs), next_obs=tensors(batch.next_obs), **parts),
    )
    mean = batch.obs["obs.x"].mean(0)
    assert algorithm.networks["policy"].encoder.statistics() == []
    for encoder in algorithm.encoders[1:]:
        assert len(encoder.statistics()) in (0, 3)
    critics = algorithm.networks["critics"].encoder.statistics()
    np.testing.assert_allclose(critics[0].numpy(), mean, rtol=1e-5)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (["y"], "there is no 'y'\nallowed: x, k"),
        (["xx"], "there is no 'xx'\nnearest: x"),
        (["x", "k"], "nothing is left for the policy"),
    ],
)
def test_what_cannot_be_hidden_is_refused(keys: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make_learner("sac", privileged_obs=keys)


@pytest.mark.parametrize("agent", KINDS)
def test_a_loaded_and_an_exported_policy_need_no_privileged_part(agent: str, tmp_path: Path) -> None:
    hidden: dict[str, Any] = {"privileged_obs": ["x"]}
    learner, spec = make_learner(agent, **hidden), spec_of(agent)
    save_agent(learner, tmp_path / "model", config_of(agent, **hidden), spec)
    model = load(tmp_path / "model")
    write_policy(learner.policy, spec, tmp_path / "numpy", "numpy", "title")
    exported = numpy_policy.load(tmp_path / "numpy")
    learner.eval()
    for k in range(4):
        action = model.sample({"k": k + 1})  # which begins with 1
        np.testing.assert_allclose(exported({"k": k + 1}), action, rtol=1e-5, atol=1e-6)
        stored = learner.sample({"obs.x": np.zeros((1, 3), np.float32), "obs.k": np.array([k])})
        np.testing.assert_allclose(
            np.ravel(action), np.ravel(stored) + spec.action.start, rtol=1e-5, atol=1e-6
        )
