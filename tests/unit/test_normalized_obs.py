"""Observations normalised by running statistics: statistics by hand, the same in all networks, moved by batches alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from border_cli.agents.agent import Algorithm, NetworkAgent, update_statistics
from border_cli.agents.dqn.agent import DqnAlgorithm
from border_cli.agents.dqn.agent import make_agent as make_dqn
from border_cli.agents.dqn.config import C51Config, DqnConfig
from border_cli.agents.nets import Encoder, EncoderArrays, is_normalizable
from border_cli.agents.params import TensorBatch
from border_cli.agents.sac.agent import make_agent as make_sac
from border_cli.agents.sac.config import SacConfig, Td3Config
from border_cli.core.errors import UsageError
from border_cli.core.spaces import ActionSpec, EnvSpec, ObsLeaf, ObsSpec

T = torch.tensor
DISCRETE = ActionSpec("discrete", n=2)
BOX = ActionSpec("box", shape=(1,), low=(-1.0,), high=(1.0,), dtype="float32")
INF = float("inf")


def box(*shape: int, stack: int = 1) -> ObsLeaf:
    return ObsLeaf("obs", (), "box", shape, "float32", stack=stack)


def batch_of(obs: Any, next_obs: Any = None, reward: float = 0.0, action: Any = None) -> TensorBatch:
    x = torch.as_tensor(obs, dtype=torch.float32)
    n = len(x)
    return TensorBatch(
        {"obs": x}, torch.zeros(n, dtype=torch.int64) if action is None else action, torch.full((n,), reward),
        torch.full((n,), 0.9), torch.zeros(n, dtype=torch.bool),
        {"obs": x if next_obs is None else torch.as_tensor(next_obs)},
    )  # fmt: skip


def agent(leaf: ObsLeaf | None = None, **settings: Any) -> NetworkAgent:
    config = DqnConfig(**{"hidden": [4], "normalize_obs": True} | settings)
    return make_dqn(config, EnvSpec(ObsSpec((leaf or box(1),)), DISCRETE), seed=0)


def encoders(one: NetworkAgent) -> Sequence[Encoder]:
    return one.algorithm.encoders(one.algorithm.networks)


def statistics(one: NetworkAgent) -> list[list[float]]:
    """Means, variances and count of the acting network."""
    mean, std, count = encoders(one)[0].statistics()
    return [mean.tolist(), std.square().tolist(), [count.item()]]


def normalized(one: NetworkAgent, obs: Any) -> list[list[float]]:
    found: Tensor = encoders(one)[0]({"obs": torch.as_tensor(obs, dtype=torch.float32)})
    return found.tolist()


def test_the_statistics_are_those_of_all_batches_so_far() -> None:
    one = agent(box(2))
    update_statistics(encoders(one), batch_of([[1.0, 7.0], [3.0, 7.0]]))
    assert statistics(one) == [[2.0, 7.0], [1.0, pytest.approx(1e-12)], [1.0]]
    update_statistics(encoders(one), batch_of([[4.0, 7.0], [8.0, 9.0]]))
    # of 1, 3, 4, 8: mean 4, squared deviations 9 + 1 + 0 + 16 · of 7, 7, 7, 9: mean 7.5, 3·0.25 + 2.25
    assert statistics(one) == [[4.0, 7.5], [pytest.approx(6.5), pytest.approx(0.75)], [2.0]]
    assert normalized(one, [[4.0 + 6.5**0.5, 7.5], [-1000.0, 1000.0]]) == [
        [pytest.approx(1.0), 0.0],
        [-10.0, 10.0],
    ]


def test_from_the_ten_thousandth_batch_on_a_new_one_has_the_weight_1_in_10000() -> None:
    one = agent()
    mean, std, count = encoders(one)[0].statistics()
    mean.data.fill_(1.0), std.data.fill_(2.0), count.data.fill_(10_000.0)
    update_statistics(encoders(one), batch_of([[1001.0], [1001.0]]))
    variance = 0.9999 * 4.0 + 0.0001 * 0.9999 * 1000.0**2
    assert statistics(one) == [[pytest.approx(1.1)], [pytest.approx(variance)], [10_000.0]]


def test_small_differences_of_large_numbers_are_kept() -> None:
    """The squares of these numbers are equal in float32."""
    one = agent()
    for _ in range(100):
        update_statistics(encoders(one), batch_of([[1e6], [1e6 + 1.0]] * 128))
    assert statistics(one)[1] == [pytest.approx(0.25, rel=1e-3)]
    assert normalized(one, [[1e6], [1e6 + 1.0]]) == [
        [pytest.approx(-1.0, abs=0.01)],
        [pytest.approx(1.0, abs=0.01)],
    ]


def test_a_component_that_has_been_constant_is_zero_and_then_clipped() -> None:
    one = agent()
    for _ in range(7):
        update_statistics(encoders(one), batch_of([[0.1]] * 7))
    assert normalized(one, [[0.1], [0.11]]) == [[0.0], [10.0]]


def test_the_frames_of_a_stack_have_the_statistics_of_the_newest() -> None:
    one = agent(box(2, 1, stack=2))
    update_statistics(encoders(one), batch_of([[[100.0], [1.0]], [[-100.0], [3.0]]]))
    assert statistics(one) == [[2.0], [pytest.approx(1.0)], [1.0]]
    assert normalized(one, [[[1.0], [3.0]]]) == [[-1.0, 1.0]]


LEAVES = {
    "floats": (ObsLeaf("a", (), "box", (2,), "float32", -1.0, 1.0), True),
    "a number": (ObsLeaf("b", (), "box", (), "float32"), True),
    "wide integers": (ObsLeaf("c", (), "box", (1,), "int32", -1000.0, 1000.0), True),
    "open integers": (ObsLeaf("d", (), "box", (1,), "int64", None, 3.0), True),
    "scaled integers": (ObsLeaf("e", (), "box", (1,), "uint8", 0.0, 255.0), False),
    "one-hot": (ObsLeaf("f", (), "discrete", (), "int64", categories=(3,), start=(0,)), False),
    "bits": (ObsLeaf("g", (), "multi_binary", (2,), "uint8", 0.0, 1.0), False),
    "image": (ObsLeaf("h", (), "box", (5, 5, 1), "float32", 0.0, 1.0), False),
}


def test_only_floats_and_wide_integers_are_normalised() -> None:
    assert [is_normalizable(leaf) for leaf, _ in LEAVES.values()] == [wanted for _, wanted in LEAVES.values()]
    spec = ObsSpec(tuple(leaf for leaf, _ in LEAVES.values()))
    plain, encoder = (Encoder(spec, [], torch.Generator(), normalize) for normalize in (False, True))
    assert encoder.normalized == ["a", "b", "c", "d"] and encoder.features == plain.features
    for tensor in encoder.statistics():
        tensor.data.fill_(2.0)
    obs = {leaf.name: torch.ones(1, *leaf.shape) for leaf in spec.leaves}
    obs |= {
        "e": T([[51]], dtype=torch.uint8),
        "c": T([[10]], dtype=torch.int32),
        "d": T([[1000]]),
        "f": T([1]),
    }
    kept = [0.2, 0.0, 1.0, 0.0, 1.0, 1.0, *[1.0] * 25]
    assert encoder(obs)[0].tolist() == pytest.approx([*kept, -0.5, -0.5, -0.5, 4.0, 10.0])
    arrays = {name: tensor.numpy() for name, tensor in obs.items()}
    found = EncoderArrays(encoder)(arrays)
    assert found.dtype == np.float32 and found.tolist() == encoder(obs).tolist()


def learners() -> dict[str, NetworkAgent]:
    few: dict[str, Any] = {
        "hidden": [4],
        "normalize_obs": True,
        "lr": 0.1,
        "target_tau": 0.3,
        "target_interval": 1,
    }
    spec = ObsSpec((box(2),))
    return {
        "dqn": make_dqn(DqnConfig(**few, max_grad_norm=0.1), EnvSpec(spec, DISCRETE), 0),
        "c51": make_dqn(C51Config(**few), EnvSpec(spec, DISCRETE), 0),
        "sac": make_sac(SacConfig(**few), EnvSpec(spec, BOX), 0),
        "td3": make_sac(Td3Config(**few), EnvSpec(spec, BOX), 0),
    }


def random_batch(name: str, seed: int) -> TensorBatch:
    rng = np.random.default_rng(seed)
    made = batch_of(rng.normal(3.0, 2.0, (8, 2)), rng.normal(3.0, 2.0, (8, 2)).astype(np.float32), 1.0)
    if name in ("sac", "td3"):
        made.action = torch.zeros(8, 1)
    return made


def networks(one: NetworkAgent) -> list[nn.Module]:
    found = [getattr(one.algorithm.networks, part.name) for part in fields(one.algorithm.networks)]
    return [network for network in found if hasattr(network, "encoder")]


@pytest.mark.parametrize("name", ["dqn", "c51", "sac", "td3"])
def test_opt_steps_update_the_statistics_of_all_networks_alike(name: str) -> None:
    one = learners()[name]
    for number in range(1, 6):
        given = random_batch(name, number)
        wanted = encoders(one)[0].updated_statistics(given.obs)
        one.algorithm.opt_step(given, number)
        one.algorithm.update_targets(number)
        for network in networks(one):
            assert all(map(torch.equal, network.encoder.statistics(), wanted))  # type: ignore[union-attr]
    assert one.algorithm.stats.skipped_in_a_row.item() == 0
    moments = {n: t for n, t in one.algorithm.tensors().items() if "normalizers" in n and "exp_avg" in n}
    assert moments and not any(tensor.any() for tensor in moments.values())


@pytest.mark.parametrize("name", ["dqn", "sac"])
@pytest.mark.parametrize("bad", [INF, -INF, float("nan")])
def test_a_batch_with_an_observation_that_is_not_finite_is_skipped_and_not_counted(
    name: str, bad: float
) -> None:
    one = learners()[name]
    update_statistics(encoders(one), random_batch(name, 0))
    before = [tensor.clone() for tensor in encoders(one)[0].statistics()]
    for column in ("obs", "next_obs", "reward"):
        given = random_batch(name, 1)
        (given.reward if column == "reward" else getattr(given, column)["obs"][:, 0])[3] = bad
        one.algorithm.opt_step(given, 2)
        assert all(map(torch.equal, encoders(one)[0].statistics(), before))
    assert one.algorithm.stats.skipped_in_a_row.item() == 3


def test_numbers_whose_variance_overflows_are_not_counted() -> None:
    one = agent()
    update_statistics(encoders(one), batch_of([[1.0], [3.0]]))
    update_statistics(encoders(one), batch_of([[1e30], [-1e30]]))
    assert statistics(one) == [[2.0], [pytest.approx(1.0)], [1.0]]


def test_the_statistics_of_another_agent_are_taken_over_by_all_networks() -> None:
    """As `init_from` with the policy alone: the critics take them at the first opt step."""
    one, other = learners()["sac"], learners()["sac"]
    for number in range(1, 4):
        update_statistics(encoders(one), random_batch("sac", number))
    other.sync_model(one.model_info())
    for both in (one, other):
        update_statistics(encoders(both), random_batch("sac", 9))
    wanted = encoders(one)[0].statistics()
    for encoder in encoders(other):
        assert all(map(torch.equal, encoder.statistics(), wanted))


def test_an_algorithm_without_encoders_refuses_to_normalise() -> None:
    class OtherAlgorithm(DqnAlgorithm):
        encoders = Algorithm.encoders

    given: Any = agent().algorithm
    spec = EnvSpec(ObsSpec((box(1),)), DISCRETE)
    with pytest.raises(
        UsageError, match=r"does not normalise observations\nallowed: agent\.normalize_obs=false"
    ):
        OtherAlgorithm(given._layouts["online"], given.state, given.config, spec, 0)
