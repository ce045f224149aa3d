"""An algorithm of one's own: what follows from the gradients that its `learn` returns, by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from border_cli.agents.algorithm import Algorithm, Learned
from border_cli.agents.config import NetworkConfig
from border_cli.agents.params import TensorBatch, flat_gradient
from border_cli.core.spaces import ActionSpec, EnvSpec, ObsLeaf, ObsSpec
from tests.learners import opt_step

T = torch.tensor
SPEC = EnvSpec(ObsSpec((ObsLeaf("obs", (), "box", (1,), "float32"),)), ActionSpec("discrete", n=2))


@dataclass
class Config(NetworkConfig):
    type: str = "mean"
    lr: float = 0.1
    target_interval: int = 2
    target_tau: float = 0.5


class Number(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = nn.Parameter(T([value]))


class Mean(Algorithm):
    """Two numbers move towards the mean reward, the second one in every second opt step; one of them has a target."""

    scalars = ("loss", "of_second", "grad_norm")
    target_of: ClassVar[dict[str, str]] = {"first_target": "first"}
    variants = (0, 1)

    def variant(self, number: int) -> int:
        return int(number % 2 == 0)

    def lr(self, network: str) -> float:
        return float(self.config.lr) * (2.0 if network == "second" else 1.0)

    def learn(self, batch: TensorBatch, noise: Any, variant: int) -> Learned:
        networks = self.networks
        first, second = (
            (networks[n].value - batch.reward.mean()).square().sum() for n in ("first", "second")
        )
        gradients = {"first": flat_gradient(first, networks["first"])}
        if variant == 0:
            return Learned(gradients, {"loss": first})
        gradients["second"] = flat_gradient(second, networks["second"])
        return Learned(gradients, {"loss": first, "of_second": second})


def algorithm() -> Mean:
    return Mean(Config(), SPEC, 0, {"first": Number(1.0), "second": Number(5.0)}, torch.device("cpu"))


def batch(reward: float) -> TensorBatch:
    obs = {"obs": torch.zeros(1, 1)}
    return TensorBatch(obs, T([0]), T([reward]), T([0.9]), T([False]), obs)


def values(mean: Mean) -> list[float]:
    """The numbers, and the target of the first one."""
    state = mean.state
    return [*(state.nets[n].params.item() for n in ("first", "second")), state.targets["first_target"].item()]


def test_networks_learn_with_their_own_rates_and_targets_follow() -> None:
    mean = algorithm()
    for number in (1, 2):  # Adam's first steps are as long as the learning rate
        opt_step(mean, batch(0.0), number)
        mean.update_targets(number)
        expected = [0.9, 5.0, 1.0] if number == 1 else [0.8, 4.8, (1.0 + 0.8) / 2]
        assert torch.allclose(T(values(mean)), T(expected), atol=1e-3)


def test_means_are_over_the_opt_steps_that_have_the_scalar() -> None:
    mean = algorithm()
    for number in (1, 2, 3):
        opt_step(mean, batch(0.0), number)
    (loss, of_second, norm), skipped = mean.state.stats.read()
    assert skipped == 0 and loss is not None and norm is not None
    assert math.isclose(loss, (1.0 + 0.81 + 0.64) / 3, rel_tol=1e-2)
    assert of_second == 25.0
    # of the opt steps with gradients 2, (1.8, 10) and 1.6
    assert math.isclose(norm, (2.0 + math.hypot(1.8, 10.0) + 1.6) / 3, rel_tol=1e-2)
    assert mean.state.stats.read() == ([None, None, None], 0)


def test_a_loss_that_is_not_finite_changes_nothing() -> None:
    mean = algorithm()
    before = {name: tensor.clone() for name, tensor in mean.tensors().items()}
    opt_step(mean, batch(math.nan), 2)
    changed = {name for name, tensor in mean.tensors().items() if not torch.equal(tensor, before[name])}
    assert changed == {"stats.skipped", "stats.skipped_in_a_row"}
    assert mean.state.stats.read() == ([None, None, None], 1)
