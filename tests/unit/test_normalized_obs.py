"""Observations normalised by running statistics: statistics by hand, the same in all networks, moved by batches alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from border_cli.agents.agent import NetworkAgent
from border_cli.agents.algorithm import update_statistics
from border_cli.agents.config import NetworkConfig
from border_cli.agents.dqn.agent import make_agent
from border_cli.agents.dqn.config import DqnConfig
from border_cli.agents.nets import Encoder, is_normalizable
from border_cli.agents.params import TensorBatch
from border_cli.core.spaces import ActionSpec, EnvSpec, ObsLeaf, ObsSpec
from tests import learners
from tests.learners import encoded_by_numpy, learn, learn_from, make_learner

T = torch.tensor
DISCRETE = ActionSpec("discrete", n=2)


def box(*shape: int, stack: int = 1) -> ObsLeaf:
    return ObsLeaf("obs", (), "box", shape, "float32", stack=stack)


def batch_of(obs: Any) -> TensorBatch:
    x = torch.as_tensor(obs, dtype=torch.float32)
    n = len(x)
    over, action = torch.zeros(n, dtype=torch.bool), torch.zeros(n, dtype=torch.int64)
    return TensorBatch({"obs": x}, action, torch.zeros(n), torch.full((n,), 0.9), over, {"obs": x})


def agent(leaf: ObsLeaf, *batches: Any) -> NetworkAgent:
    """Return an agent whose statistics are those of these batches."""
    config = DqnConfig(hidden=[4], normalize_obs=True)
    learner = make_agent(config, EnvSpec(ObsSpec((leaf,)), DISCRETE), seed=0)
    for obs in batches:
        update_statistics(learner.algorithm.encoders, batch_of(obs))
    return learner


def statistics(learner: NetworkAgent, rel: float = 1e-6) -> list[Any]:
    """Means, variances and count of the acting network."""
    mean, std, count = learner.algorithm.encoders[0].statistics()
    return [mean.tolist(), pytest.approx(std.square().tolist(), rel=rel), count.item()]


def normalized(learner: NetworkAgent, obs: Any) -> Any:
    z: Tensor = learner.algorithm.encoders[0]({"obs": torch.as_tensor(obs, dtype=torch.float32)})
    return pytest.approx(z.numpy(), abs=0.01)


@pytest.mark.parametrize(
    ("leaf", "batches", "mean", "variance", "obs", "expected"),
    [
        (
            # of 1, 3, 4, 8: mean 4, squared deviations 9 + 1 + 0 + 16 · of 7, 7, 7, 9: mean 7.5, 3·0.25 + 2.25
            box(2),
            [[[1.0, 7.0], [3.0, 7.0]], [[4.0, 7.0], [8.0, 9.0]]],
            [4.0, 7.5],
            [6.5, 0.75],
            [[4.0 + 6.5**0.5, 7.5], [-1000.0, 1000.0]],
            [[1.0, 0.0], [-10.0, 10.0]],
        ),
        # the squares of these numbers are equal in float32
        (box(1), [[[1e6], [1e6 + 1]] * 128] * 100, [1e6 + 0.5], [0.25], [[1e6], [1e6 + 1]], [[-1.0], [1.0]]),
        (box(1), [[[0.1]] * 7] * 7, [np.float32(0.1)], [1e-12], [[0.1], [0.11]], [[0.0], [10.0]]),
        (
            box(2, 1, stack=2),  # frames have the statistics of the newest
            [[[[100.0], [1.0]], [[-100.0], [3.0]]]],
            [2.0],
            [1.0],
            [[[1.0], [3.0]]],
            [[-1.0, 1.0]],
        ),
        # a variance that overflows: that batch is not counted
        (box(1), [[[1.0], [3.0]], [[1e30], [-1e30]]], [2.0], [1.0], [[1.0]], [[-1.0]]),
    ],
    ids=["two batches", "large numbers", "constant", "frames", "overflow"],
)
def test_statistics_by_hand(
    leaf: ObsLeaf, batches: Any, mean: list[float], variance: list[float], obs: Any, expected: Any
) -> None:
    learner = agent(leaf, *batches)
    counted = sum(np.abs(batch).max() < 1e30 for batch in batches)
    assert statistics(learner, rel=1e-3 if mean[0] > 1e5 else 1e-6) == [mean, variance, counted]
    assert normalized(learner, obs) == np.array(expected)


def test_from_the_ten_thousandth_batch_on_a_new_one_has_the_weight_1_in_10000() -> None:
    learner = agent(box(1))
    mean, std, count = learner.algorithm.encoders[0].statistics()
    mean.data.fill_(1.0), std.data.fill_(2.0), count.data.fill_(10_000.0)
    update_statistics(learner.algorithm.encoders, batch_of([[1001.0], [1001.0]]))
    variance = 0.9999 * 4.0 + 0.0001 * 0.9999 * 1000.0**2
    assert statistics(learner) == [[pytest.approx(1.1)], [variance], 10_000.0]


LEAVES = {
    "floats": (ObsLeaf("a", (), "box", (2,), "float32", -1.0, 1.0), True),
    "a number": (ObsLeaf("b", (), "box", (), "float32"), True),
    "wide integers": (ObsLeaf("c", (), "box", (1,), "int32", -1000.0, 1000.0), True),
    "open integers": (ObsLeaf("d", (), "box", (1,), "int64", None, 3.0), True),
    "scaled integers": (ObsLeaf("e", (), "box", (1,), "uint8", 0.0, 255.0), False),
    "one-hot": (ObsLeaf("f", (), "discrete", (), "int64", categories=(3,), start=(1,)), False),
    "bits": (ObsLeaf("g", (), "multi_binary", (2,), "uint8", 0.0, 1.0), False),
    "image": (ObsLeaf("h", (), "box", (5, 5, 1), "float32", 0.0, 1.0), False),
}


def test_only_floats_and_wide_integers_are_normalised() -> None:
    assert [is_normalizable(leaf) for leaf, _ in LEAVES.values()] == [wanted for _, wanted in LEAVES.values()]
    spec = ObsSpec(tuple(leaf for leaf, _ in LEAVES.values()))
    plain, encoder = (
        Encoder(spec, NetworkConfig(channels=[], normalize_obs=normalize), torch.Generator())
        for normalize in (False, True)
    )
    assert [*encoder.normalizers] == ["a", "b", "c", "d"] and encoder.features == plain.features
    for tensor in encoder.statistics():
        tensor.data.fill_(2.0)
    obs = {leaf.name: torch.ones(1, *leaf.shape) for leaf in spec.leaves}
    obs |= {
        "e": T([[51]], dtype=torch.uint8),
        "c": T([[10]], dtype=torch.int32),
        "d": T([[1000]]),
        "f": T([2]),
    }
    kept = [0.2, 0.0, 0.0, 1.0, 1.0, 1.0, *[1.0] * 25]
    assert encoder(obs)[0].tolist() == pytest.approx([-0.5, -0.5, -0.5, 4.0, 10.0, *kept])
    arrays = {name: tensor.numpy() for name, tensor in obs.items()}
    encoded = encoded_by_numpy(encoder, arrays)
    assert encoded.dtype == np.float32 and encoded.tolist() == encoder(obs).tolist()


def networks(learner: NetworkAgent) -> list[nn.Module]:
    return [network for network in learner.algorithm.networks.values() if hasattr(network, "encoder")]


@pytest.mark.parametrize("name", ["dqn", "c51", "sac", "td3"])
def test_opt_steps_update_the_statistics_of_all_networks_alike(name: str) -> None:
    settings = {"lr": 0.1, "target_tau": 0.3, "target_interval": 1, "max_grad_norm": 0.1}
    learner = make_learner(name, normalize_obs=True, **settings)
    for seed in range(5):
        batch = learners.batch_of(name, seed)
        expected = learner.algorithm.encoders[0].updated_statistics({"obs.x": T(batch.obs["obs.x"])})
        learn_from(learner, batch)
        for network in networks(learner):
            assert all(map(torch.equal, network.encoder.statistics(), expected))  # type: ignore[union-attr]
    assert learner.skipped_in_a_row == 0
    assert not [name for name in learner.algorithm.tensors() if ".parts." in name and "exp_avg" in name]


def test_the_statistics_of_another_agent_are_taken_over_by_all_networks() -> None:
    """As `init_from` with the policy alone."""
    source, target = (make_learner("sac", seed, normalize_obs=True) for seed in (1, 2))
    learn("sac", source, range(3))
    target.sync_model(source.model_info())
    for seeds in ((), [9]):  # before and after an opt step
        for learner in (source, target):
            learn("sac", learner, seeds)
        expected = source.algorithm.encoders[0].statistics()
        for encoder in target.algorithm.encoders:
            assert all(map(torch.equal, encoder.statistics(), expected))
