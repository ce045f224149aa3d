"""FlashSAC by hand: targets, the scale of the rewards, batch statistics, projection of weights, and repeated noise."""

from __future__ import annotations

import json
import math
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch

from border_cli.actors.sampler import RowProcessor
from border_cli.agents.flashsac.agent import RETURN, Memory, extra_columns, make_agent, reward_scale
from border_cli.agents.flashsac.config import FlashsacConfig
from border_cli.agents.params import TensorBatch
from border_cli.config.schema import EnvConfig
from border_cli.core.errors import UsageError
from border_cli.core.types import Step
from border_cli.envs.group import GymEnv
from tests.fakes import sampler_of
from tests.learners import opt_step, sums
from tests.learning.test_probes import Probe
from tests.unit.test_sac import T, spec

SIZES: dict[str, Any] = {"hidden": [8, 8], "critic_hidden": [8], "batch_size": 16, "random_env_steps": 0}


def agent(**changes: Any) -> Any:
    return make_agent(FlashsacConfig(**SIZES | changes), spec(), 0)


def batch(n: int = 16, bad: bool = False) -> TensorBatch:
    rng = torch.Generator().manual_seed(1)
    obs, next_obs = ({"obs": torch.randn(n, 3, generator=rng)} for _ in range(2))
    action, terminated = torch.rand(n, 1, generator=rng), torch.zeros(n, dtype=torch.bool)
    reward = torch.full((n,), math.nan if bad else 1.0)
    returns = {RETURN: torch.randn(n, generator=rng)}
    return TensorBatch(obs, action, reward, torch.full((n,), 0.9), terminated, next_obs, extra=returns)


def learn(learner: Any, rows: TensorBatch, number: int = 2) -> None:
    opt_step(learner.algorithm, rows, number)
    learner.algorithm.update_targets(number)


def test_targets_by_hand() -> None:
    """The first critic says 1 and the second 2. α·log π is 0.2 and the scale 2, so rewards 3.05, 3.05 and 20 are 1.525,
    1.525 and 10. The second row is terminated. 1.525 + 0.5·(1 - 0.2) = 1.925 is between atoms 69 (1.9) and 70.
    """
    logits = torch.full((2, 3, 101), -1e4)
    logits[0, :, 60] = logits[1, :, 70] = 0.0
    rows = batch(3)
    rows.reward, rows.terminated = T([3.05, 3.05, 20.0]), T([False, True, False])
    rows.discount = T([0.5, 0.0, 0.5])
    target = agent().algorithm.target(logits, torch.full((3,), 0.2), rows, T(2.0))
    shares = [{int(i): float(p[i]) for i in p.nonzero()} for p in target]
    expected = [{69: 0.75, 70: 0.25}, {65: 0.75, 66: 0.25}, {100: 1.0}]
    assert shares == [pytest.approx(row, abs=1e-4) for row in expected]


# -- the scale of the rewards ----------------------------------------------------


def test_the_scale_is_the_deviation_of_the_returns_or_a_fifth_of_the_largest() -> None:
    assert reward_scale(T(1.0), T(5.0), T(3.0)).item() == pytest.approx(2.0)
    assert reward_scale(T(1.0), T(5.0), T(20.0)).item() == pytest.approx(4.0)


def test_each_opt_step_adds_its_batch_to_the_statistics_unless_it_is_skipped() -> None:
    learner, rows = agent(), batch()
    returns = learner.algorithm.networks["critics"].returns
    for number, values in ((1, [2.0, -4.0]), (2, [1.0, 2.0])):
        rows.extra[RETURN] = T(values * 8)
        learn(learner, rows, number)
    assert [b.item() for b in returns.buffers()] == pytest.approx([(-1 + 1.5) / 2, (10 + 2.5) / 2, 4.0, 2.0])
    before = deepcopy(learner.state().arrays)
    learn(learner, batch(bad=True))
    for name, array in learner.state().arrays.items():
        assert name.startswith(("stats", "critics_target")) or (array == before[name]).all(), name


def test_in_a_terminated_row_the_reward_is_normalised_by_statistics_with_its_own_batch() -> None:
    learner, rows = agent(entropy_coef=0.0), batch()
    rows.terminated[:], rows.discount[:], rows.extra[RETURN][:] = True, 0.0, 10.0
    learn(learner, rows)
    _, _, _, target_mean, *_, scale = sums(learner.algorithm)
    assert (target_mean, scale) == pytest.approx((1.0, 2.0), rel=1e-5)


class ThreeSteps(Probe):
    """Rewards 1, 2, 3, then the end."""

    def __init__(self, is_terminated: bool) -> None:
        super().__init__(continuous=True)
        self.is_terminated = is_terminated

    def step(self, action: Any) -> tuple[Any, ...]:
        self.t += 1
        is_over = self.t == 3
        return self.observe(), float(self.t), is_over and self.is_terminated, is_over, {}


@pytest.mark.parametrize(
    ("is_terminated", "clip", "returns"),
    [
        (True, None, [1.0, 2.5, 4.25] * 2),
        (True, 1.5, [1.0, 2.0, 2.5] * 2),
        (False, None, [1.0, 2.5, 4.25, 3.125, 3.5625, 4.78125]),
    ],
)
def test_rows_have_the_discounted_return_which_ends_at_terminated_and_never_at_truncated(
    is_terminated: bool, clip: float | None, returns: list[float]
) -> None:
    env = GymEnv(EnvConfig(entry_point=f"{__name__}:ThreeSteps", kwargs={"is_terminated": is_terminated}), 2)
    config = FlashsacConfig(**SIZES, gamma=0.5, reward_clip=clip)
    learner = make_agent(config, env.spec, 0)
    sampler = sampler_of(env, learner, RowProcessor(env.spec, 2, extra_columns(config, env.spec)))
    rows = [sampler.sample([0, 1], 0) for _ in range(6)]
    for i in (0, 1):
        column = np.concatenate([part[RETURN][(part["env"] == i) & ~part["final"]] for part in rows])
        assert column.tolist() == returns


# -- batch normalisation -----------------------------------------------------------


def test_current_and_next_rows_are_one_batch_of_each_network_that_learns() -> None:
    """The running statistics after one opt step are a hundredth of those of both halves."""
    learner, rows = agent(), batch()
    networks = learner.algorithm.networks
    noise = learner.algorithm.noise(16)
    with torch.no_grad():
        bijector = learner.algorithm.bijector
        parameters = networks["policy"](rows.next_obs)  # by its running statistics
        next_action = bijector.squash(parameters.mean + parameters.std * noise.next_action)
    both = torch.cat([rows.obs["obs"], rows.next_obs["obs"]])
    inputs = torch.cat([both, bijector.unscale(torch.cat([rows.action, next_action]))], 1)
    learner.algorithm.step(rows, noise, 1.0, 1)
    of_policy, of_critics = (n.trunk.norms[0].mean for n in (networks["policy"], networks["critics"]))
    assert of_policy.flatten().tolist() == pytest.approx((0.01 * both.mean(0)).tolist(), rel=1e-4)
    for critic in of_critics:
        assert critic[0].tolist() == pytest.approx((0.01 * inputs.mean(0)).tolist(), rel=1e-4)
    assert networks["critics_target"].trunk.norms[0].mean.abs().max() == 0.0


def test_the_policy_acts_by_running_statistics_whatever_the_batch_is() -> None:
    learner, rows = agent(), batch()
    for number in range(1, 5):
        learn(learner, rows, number)
    learner.eval()
    obs = {"obs": rows.obs["obs"].numpy()}
    before = deepcopy(learner.state().arrays)
    together = learner.sample(obs)
    alone = np.concatenate([learner.sample({"obs": obs["obs"][i : i + 1]}) for i in range(16)])
    with torch.no_grad():
        in_torch = learner.policy.decide(rows.obs)[0].numpy()
    assert together == pytest.approx(alone, abs=1e-6) and together == pytest.approx(in_torch, abs=1e-6)
    assert all((array == before[name]).all() for name, array in learner.state().arrays.items())


# -- weights -----------------------------------------------------------------------


def norms_of(vector: torch.Tensor, layout: Any) -> dict[str, list[float]]:
    """Of the weights of each output, and of each normalisation's scale, with its shift, as a share of √units."""
    parts = layout.unflatten(vector)
    norms = {}
    for name, part in parts.items():
        if name.endswith(("embedding.weight", "out.weight")) or ".layers." in name:
            norms[name] = part.square().sum(1).sqrt().flatten().tolist()
        elif name.endswith("scale"):
            norms[name] = (part.square().mean(2)).sqrt().flatten().tolist()
        elif ".norms." in name and name.endswith("weight"):
            shift = parts[name.removesuffix("weight") + "bias"]
            norms[name] = (part.square() + shift.square()).mean(2).sqrt().flatten().tolist()
    return norms


@pytest.mark.parametrize("network", ["policy", "critics"])
def test_the_weights_of_each_output_have_norm_1_after_opt_steps(network: str) -> None:
    learner = agent(lr=0.1)
    algorithm = learner.algorithm
    state, layout = algorithm.state.nets[network], algorithm.layouts[network]
    before = state.params.clone()
    for number in (2, 4, 6):
        learn(learner, batch(), number)
    norms = norms_of(state.params, layout)
    assert len(norms) == (12 if network == "policy" else 8)
    for name, values in norms.items():
        assert values == pytest.approx([1.0] * len(values), abs=1e-5), name
        assert (layout.unflatten(state.params)[name] - layout.unflatten(before)[name]).abs().max() > 1e-3


def test_targets_follow_the_projected_weights() -> None:
    learner = agent(lr=0.1, target_tau=0.25)
    before = learner.algorithm.state.targets["critics_target"].clone()
    learn(learner, batch())
    online = learner.algorithm.state.nets["critics"].params
    expected = 0.75 * before + 0.25 * online
    assert torch.allclose(learner.algorithm.state.targets["critics_target"], expected, atol=1e-6)


def test_blocks_of_different_width_are_refused() -> None:
    with pytest.raises(UsageError, match=r"agent.critic_hidden=\[64, 32\]"):
        FlashsacConfig(critic_hidden=[64, 32]).validate()


# -- noise --------------------------------------------------------------------------


def test_noise_is_repeated_for_as_many_env_steps_as_a_truncated_zeta_law_says() -> None:
    """Up to 3: n env steps with a probability in proportion to 1, 1/4 and 1/9. Environments have noise of their own."""
    memory, rng = Memory(1, 3), np.random.default_rng(0)
    noise = np.stack([memory.sample([0, 4], rng) for _ in range(20_000)])[:, :, 0]
    assert not (noise[:, 0] == noise[:, 1]).any()
    for column in noise.T:
        starts = np.flatnonzero(np.diff(column, prepend=np.inf))
        lengths, counts = np.unique(np.diff(starts), return_counts=True)
        assert lengths.tolist() == [1, 2, 3]
        assert (counts / counts.sum()).tolist() == pytest.approx([36 / 49, 9 / 49, 4 / 49], abs=0.01)


def test_a_new_episode_begins_with_new_noise() -> None:
    memory, rng = Memory(2, 10**6), np.random.default_rng(5)
    first = [memory.sample([0, 1], rng).tolist() for _ in range(2)]
    assert first[0] == first[1]  # with this seed both are repeated
    memory.begin_episode(0)
    changed, kept = memory.sample([0, 1], rng).tolist()
    assert changed != first[0][0] and kept == first[0][1]


def test_noise_and_returns_continue_from_a_saved_state() -> None:
    learner, other = agent(), make_agent(FlashsacConfig(**SIZES), spec(), 7)
    obs = {"obs": np.zeros((2, 3), np.float32)}
    rows = np.zeros(2)
    step = Step([0, 1], obs, rows, np.array([0.1, 0.7]), rows > 0, rows > 0, obs)
    for each in (learner, other):
        each.train()
        each.sample(obs, 0, [0, 1])
        each.extras(step)
    while not any(learner.generator_state()["policy"]["noise"]["left"]):
        learner.sample(obs, 0, [0, 1])
    other.load_state(learner.state())
    other.load_generator_state(json.loads(json.dumps(learner.generator_state())))
    for _ in range(30):
        assert (learner.sample(obs, 0, [0, 1]) == other.sample(obs, 0, [0, 1])).all()
        assert (learner.extras(step)[RETURN] == other.extras(step)[RETURN]).all()
