"""Agents with a memory: the GRU, states of sequences, targets, losses and errors, row by row; and the policy's states."""

from __future__ import annotations

import json
from typing import Any, cast

import numpy as np
import pytest
import torch

from border_cli.agents.dqn.network import QNetwork
from border_cli.agents.memory import STATE, Gru, states_of_sequences
from border_cli.agents.numpy_policy import _ARRAYS, _feed
from border_cli.agents.params import TensorBatch
from border_cli.core.errors import IncompatibleStateError
from border_cli.core.spaces import Array, Obs
from border_cli.core.types import Batch
from tests.learners import SHAPE, SIZE, OneBatchBuffer, batch_of, learn_from, make_learner, observations

MAX_SHARE = 0.9


def as_tensors(batch: Batch) -> TensorBatch:
    extra = {name: torch.from_numpy(rows) for name, rows in batch.extra.items()}
    obs = {name: torch.from_numpy(rows) for name, rows in batch.obs.items()}
    numbers = map(torch.from_numpy, (batch.action, batch.reward, batch.discount, batch.terminated))
    return TensorBatch(obs, *numbers, {}, None, extra)


def test_one_time_step_by_hand() -> None:
    gru = Gru(1, 1, torch.Generator())
    with torch.no_grad():
        # rows: r, z, n
        gru.weight_x[:] = torch.tensor([[1.0], [2.0], [3.0]])
        gru.weight_h[:] = torch.tensor([[4.0], [5.0], [6.0]])
        gru.bias_x[:] = torch.tensor([0.1, 0.2, 0.3])
        gru.bias_h[:] = torch.tensor([0.4, 0.5, 0.6])
    x, h = 0.5, -0.25
    r = 1 / (1 + np.exp(-(1 * x + 0.1 + 4 * h + 0.4)))
    z = 1 / (1 + np.exp(-(2 * x + 0.2 + 5 * h + 0.5)))
    n = np.tanh(3 * x + 0.3 + r * (6 * h + 0.6))
    wanted = (1 - z) * n + z * h
    states, last = gru(torch.tensor([[[x]]]), torch.tensor([[h]]))
    assert states.item() == last.item() == pytest.approx(wanted)
    assert steps_by_numpy(gru, np.array([[x]]), np.array([h]))[0].item() == pytest.approx(wanted)


def test_numpy_computes_gates_of_large_features_without_a_warning() -> None:
    gru = Gru(1, 2, torch.Generator().manual_seed(0))
    with torch.no_grad():
        gru.weight_x[:] = torch.tensor([[-1.0], [1.0], [1.0], [-1.0], [0.0], [0.0]])
    state = np.array([0.5, -0.25], np.float32)
    # r of the first unit is 0, and its z is 1: it keeps its state. The second unit takes n with r = 1.
    first, second = steps_by_numpy(gru, np.array([[1e4]], np.float32), state)[0]
    with torch.no_grad():
        h = (gru.weight_h @ torch.from_numpy(state) + gru.bias_h)[5]
        n = torch.tanh(gru.bias_x[5] + h).item()
    assert (first, second) == (pytest.approx(0.5), pytest.approx(n, rel=1e-5))


def steps_by_numpy(gru: Gru, features: Array, state: Array) -> list[Array]:
    layers = [("gru", False, [getattr(gru, name).detach().numpy().T for name in _ARRAYS["gru"]])]
    states = []
    for x in features:
        _, after = _feed(layers, x[None], state=state[None])
        state = after[0]
        states.append(state)
    return states


def states_by_hand(gru: Gru, encode: Any, batch: Batch, i: int, stored: bool) -> list[Array]:
    """States at the rows of sequence i and the observations behind them, one time step after the other."""
    with torch.no_grad():
        features = encode({name: torch.from_numpy(rows[i]) for name, rows in batch.obs.items()}).numpy()
    first, start = batch.extra[STATE][i] if stored else np.zeros((2, gru.units), np.float32)
    before, after = features[: SHAPE.burn_in], features[SHAPE.burn_in :]
    if batch.extra["has_burn_in"][i]:
        start = steps_by_numpy(gru, before, first)[-1]
    return steps_by_numpy(gru, after, start)


@pytest.mark.parametrize("stored", [True, False])
def test_a_memory_passes_the_burn_in_first_without_a_gradient(stored: bool) -> None:
    learner, batch = make_learner("r2d2"), batch_of("r2d2", 1)
    network = cast(QNetwork, learner.algorithm.networks["online"])
    gru, tensors = cast(Gru, network.gru), as_tensors(batch)
    tensors.obs["obs.x"].requires_grad_()
    states = states_of_sequences(gru, network.features, tensors, SHAPE.burn_in, stored)
    for i in range(SIZE):
        wanted = states_by_hand(gru, network.features, batch, i, stored)
        np.testing.assert_allclose(states[i].detach().numpy(), wanted, rtol=1e-4, atol=1e-5)
    (gradient,) = torch.autograd.grad(states.sum(), tensors.obs["obs.x"])
    assert not gradient[:, : SHAPE.burn_in].any()
    assert gradient[:, SHAPE.burn_in :].any((0, 2)).all()


def mixed(errors: list[float]) -> float:
    return MAX_SHARE * max(errors) + (1 - MAX_SHARE) * sum(errors) / len(errors)


def test_targets_loss_and_errors_of_r2d2_row_by_row() -> None:
    learner, batch = make_learner("r2d2"), batch_of("r2d2", 1, weighted=True)
    networks = learner.algorithm.networks
    with torch.no_grad():
        networks["target"].value[-1].weight.mul_(2.0)
        networks["target"].advantage[-1].weight.mul_(-1.0)  # another network, with another best action
    losses, wanted, targets = [], [], []
    for i in range(SIZE):
        q, q_target = (
            network.outputs(
                torch.from_numpy(np.stack(states_by_hand(network.gru, network.features, batch, i, True)))
            )[:, :, 0].detach().numpy()
            for network in (networks["online"], networks["target"])
        )  # fmt: skip
        errors = []
        for k in np.flatnonzero(batch.extra["is_valid"][i]):
            then = batch.extra["next"][i, k]
            value = 0.0 if batch.terminated[i, k] else q_target[then, q[then].argmax()]
            target = batch.reward[i, k] + batch.discount[i, k] * value
            targets.append(float(target))
            errors.append(abs(float(q[k, batch.action[i, k]] - target)))
            assert batch.weight is not None
            losses.append(batch.weight[i] * (0.5 * errors[-1] ** 2 if errors[-1] < 1 else errors[-1] - 0.5))
        wanted.append(mixed(errors))
    (given,) = learn_from(learner, batch)
    np.testing.assert_allclose(given, wanted, rtol=1e-3, atol=1e-5)
    record = learner.take_record()
    assert record is not None
    assert record.values["agent/loss"] == pytest.approx(np.mean(losses), rel=1e-3)
    assert record.values["agent/target_mean"] == pytest.approx(np.mean(targets), rel=1e-3)


def test_targets_loss_and_errors_of_rsac_row_by_row() -> None:
    learner, batch = make_learner("rsac", entropy_coef=0.25), batch_of("rsac", 1, weighted=True)
    algorithm: Any = learner.algorithm
    networks, bijector, rows = algorithm.networks, algorithm.bijector, SHAPE.length
    with torch.no_grad():
        networks["critics_target"].gru.weight_x.mul_(0.5)
    state = algorithm.rng.bit_generator.state
    noise = algorithm.noise(SIZE).next_action.view(SIZE, rows, -1)
    algorithm.rng.bit_generator.state = state
    losses, wanted = [], []

    def states(network: Any, i: int, stored: bool = False) -> Any:
        return torch.from_numpy(np.stack(states_by_hand(network.gru, network.encoder, batch, i, stored)))

    for i in range(SIZE):
        of_policy = states(networks["policy"], i, stored=True)
        of_critics, of_target = states(networks["critics"], i), states(networks["critics_target"], i)
        errors = []
        for k in np.flatnonzero(batch.extra["is_valid"][i]):
            then = slice(batch.extra["next"][i, k], batch.extra["next"][i, k] + 1)
            with torch.no_grad():
                now = networks["policy"]({STATE: of_policy[then]})
                u = now.mean + now.std * noise[i, k]
                log_prob = bijector.log_prob(u, now.mean, now.std).item()
                values = networks["critics_target"]({STATE: of_target[then]}, bijector.squash(u))
                action = torch.from_numpy(batch.action[i, k : k + 1]).flatten(1)
                q = networks["critics"]({STATE: of_critics[k : k + 1]}, action).flatten()
            value = 0.0 if batch.terminated[i, k] else values.min().item() - 0.25 * log_prob
            target = float(batch.reward[i, k] + batch.discount[i, k] * value)
            errors.append(float((q - target).abs().mean()))
            assert batch.weight is not None
            losses.append(batch.weight[i] * float(0.5 * (q - target).square().sum()))
        wanted.append(mixed(errors))
    (given,) = learn_from(learner, batch)
    np.testing.assert_allclose(given, wanted, rtol=1e-3, atol=1e-4)
    record = learner.take_record()
    assert record is not None
    assert record.values["agent/critic_loss"] == pytest.approx(np.mean(losses), rel=1e-3)


@pytest.mark.parametrize("agent", ["r2d2", "rsac"])
def test_a_policy_remembers_each_environment_until_its_episode_ends(agent: str) -> None:
    policy: Any = make_learner(agent).policy
    policy.params.mul_(3.0)
    obs = observations(0, 6)
    seen = lambda *rows: {name: values[list(rows)] for name, values in obs.items()}  # noqa: E731

    def steps(*rows: int, env_ix: int) -> list[Array]:
        states = []
        for row in rows:
            policy.sample(seen(row), 10**6, [env_ix])
            states.append(policy.extras(None)[STATE][0])
        return states

    alone = steps(0, 1, 2, env_ix=7)
    assert not alone[0].any() and alone[1].any() and (alone[1] != alone[2]).any()
    policy.sample(seen(0, 3), 10**6, [1, 0])
    policy.sample(seen(4, 1), 10**6, [0, 1])
    together = policy.extras(None)[STATE]
    np.testing.assert_allclose(together[1], alone[1], rtol=1e-5, atol=1e-6)  # by environment, in any order
    saved = json.loads(json.dumps(policy.generator_state()))
    policy.begin_episode(7)
    assert (steps(0, 1, env_ix=7)[1] == alone[1]).all()
    policy.load_generator_state(saved)
    np.testing.assert_allclose(steps(2, env_ix=1)[0], alone[2], rtol=1e-5, atol=1e-6)
    other: Any = make_learner(agent, gru=3).policy
    with pytest.raises(IncompatibleStateError, match="policy does not fit"):
        other.load_generator_state(saved)


def test_a_memory_and_other_states_of_a_policy_are_saved_together() -> None:
    policies: list[Any] = [
        make_learner("rsac", seed, exploration="state_dependent").policy for seed in (3, 4)
    ]
    policies[1].params.copy_(policies[0].params)
    policies[0].sample(observations(0, 6), 10**6)
    policies[1].load_generator_state(json.loads(json.dumps(policies[0].generator_state())))
    first, second = (policy.sample(observations(1, 6), 10**6) for policy in policies)
    assert (first == second).all()


def test_a_categorical_head_with_a_memory_records() -> None:
    learner = make_learner("r2d2", head="categorical")
    buffer: Any = OneBatchBuffer(batch_of("r2d2", 1))
    record = learner.opt(buffer, record=True)
    assert record is not None and np.isfinite(record.values["agent/loss"])


def test_only_rows_that_are_there_count_in_statistics_of_observations() -> None:
    learner, batch = make_learner("r2d2", normalize_obs=True), batch_of("r2d2", 1)
    rows = batch.obs["obs.x"][:, SHAPE.burn_in : SHAPE.burn_in + SHAPE.length][batch.extra["is_valid"]]
    learn_from(learner, batch)
    normalizer: Any = cast(QNetwork, learner.policy.network).encoder.normalizers["obs.x"]
    np.testing.assert_allclose(normalizer.mean, rows.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(normalizer.std, rows.std(0), rtol=1e-4)


def remembered(policy: Any, obs: Obs) -> Array:
    policy.sample(obs, 10**6)
    return np.array(policy.extras(None)[STATE])


@pytest.mark.parametrize("agent", ["r2d2", "rsac"])
def test_numpy_and_torch_remember_the_same(agent: str) -> None:
    policies: list[Any] = [make_learner(agent).policy for _ in range(2)]
    policies[1]._arrays = None
    for policy in policies:
        policy.eval()
    for seed in range(4):
        first, second = (remembered(policy, observations(seed, 5)) for policy in policies)
        np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-6)
    assert first.any()
