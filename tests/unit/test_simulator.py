"""`trainer=device`: a simulator of torch tensors beside the learner, its rows, its evaluations, and its mistakes."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from border_cli.actors.sampler import InThreadSource
from border_cli.actors.simulator_sampler import SimulatorSampler
from border_cli.agents.flashsac.config import FlashsacConfig
from border_cli.agents.policy import NetworkPolicy
from border_cli.config.registry import AGENTS
from border_cli.config.schema import EnvConfig
from border_cli.core.errors import ActorLostError, UsageError
from border_cli.core.types import Chunk, Column, ModelInfo
from border_cli.envs.simulator import Simulator, SimulatorEpisodes
from border_cli.replay.buffer import Returns, RowReplayBuffer
from border_cli.replay.device import DeviceRows
from border_cli.replay.samplers import UniformSampler
from border_cli.replay.streams import PackedRows
from border_cli.training.evaluators import EpisodeRunner
from tests.kinds import AGENTS as OUR_AGENTS
from tests.learners import make_learner, observations

CPU = torch.device("cpu")


def make(name: str, n_envs: int = 2, obs_keys: list[str] | None = None, **kwargs: Any) -> Simulator:
    path = f"tests.simulators:{name}"
    config = EnvConfig(type="simulator", entry_point=path, kwargs=kwargs, obs_keys=obs_keys or [])
    return Simulator(config, n_envs, "the test")


class Marked:
    """Its action is (env steps so far, environment)."""

    def __init__(self) -> None:
        self.begun: list[int] = []

    def act(self, obs: dict[str, Tensor], env_steps: int) -> Tensor:
        rows = obs["obs"][:, 0]
        return torch.stack([torch.full_like(rows, env_steps), rows], 1) / 100

    def begin_episode(self, env_ix: int) -> None:
        self.begun.append(env_ix)


def make_source(
    simulator: Simulator, on_device: bool, policy: Any = None, extra: tuple[Column, ...] = ()
) -> InThreadSource:
    def seed_of(incarnation: int) -> int:
        return 70 + incarnation

    sampler = SimulatorSampler(simulator, policy or Marked(), seed_of, on_device, extra)
    source = InThreadSource(sampler, simulator.n_envs, lambda: None)
    source.start(ModelInfo(0, {}))
    return source


def collect(source: InThreadSource, env_steps: int, credit: int) -> Chunk:
    source.grant([credit], env_steps)
    (chunk,) = source.collect()
    return chunk


def plain(chunk: Chunk) -> dict[str, list[Any]]:
    return {name: np.asarray(column).tolist() for name, column in chunk.items.items()}


@pytest.mark.parametrize("on_device", [True, False])
def test_the_rows_of_each_env_step_are_exact(on_device: bool) -> None:
    policy = Marked()
    source = make_source(make("Counter"), on_device, policy)
    first, second = (collect(source, n, 5) for n in (0, 2))
    assert isinstance(first.items["obs"], Tensor if on_device else np.ndarray)
    assert isinstance(first.items["reward"], np.ndarray)
    rows = plain(first)  # environment 0 ends its episode of one env step: a row more
    assert rows["obs"] == [[0, 0, 0], [1, 0, 0], [0, 0, 1]]
    assert np.allclose(rows["action"], [[0, 0], [0, 0.01], [0, 0]])
    assert (rows["reward"], rows["terminated"]) == ([0, 100, 0], [True, False, False])
    assert (rows["final"], rows["step"], rows["env"]) == ([False, False, True], [0, 0, 1], [0, 1, 0])
    assert (rows["episode_return"], rows["episode_length"]) == ([0, 0, 0], [0, 0, 1])
    rows = plain(second)
    assert rows["obs"] == [[0, 1, 0], [1, 0, 1], [1, 0, 2]]
    assert np.allclose(rows["action"], [[0.02, 0], [0.02, 0.01], [0, 0]])
    assert (rows["terminated"], rows["step"], rows["env"]) == ([False, True, False], [0, 1, 2], [0, 1, 1])
    assert (rows["episode_return"][2], rows["episode_length"][2]) == (100 + 101, 2)
    assert (first.env_steps, second.env_steps) == (2, 2)
    assert source.collect() == []  # one env step is left: no environment is stepped without its rows
    assert policy.begun == [0, 1, 0, 1]
    (stat,) = source.stats()
    assert (stat.env_steps, stat.episodes, stat.exact) == (4, 2, True)


@pytest.mark.parametrize("on_device", [True, False])
def test_rows_have_the_columns_of_the_agent(on_device: bool) -> None:
    """FlashSAC's discounted returns, G ← 0.5·G + r: rewards are 100·env + step, and episodes end by turns in both ways."""
    simulator, module = make("Counter"), OUR_AGENTS["flashsac"].load()
    config = FlashsacConfig(hidden=[4, 4], critic_hidden=[4, 4], gamma=0.5)
    agent = module.make_agent(config, simulator.spec, 0)
    source = make_source(simulator, on_device, agent.policy, module.extra_columns(config, simulator.spec))
    rows = partial(DeviceRows, device=CPU) if on_device else PackedRows
    buffer = RowReplayBuffer(
        40,
        simulator.spec,
        UniformSampler(np.random.default_rng(0)),
        1,
        module.extra_columns(config, simulator.spec),
        Returns(0.5),
        rows,
    )
    returns = []
    for n in range(6):
        items = collect(source, 2 * n, 40).items
        buffer.push(items)
        of_env = (items["env"] == 1) & ~items["final"]
        returns += items["discounted_return"][of_env].tolist()
        assert not items["discounted_return"][items["final"]].any()
    # of environment 1: a terminated episode of 2 env steps, a truncated one of 3, which the next one continues
    assert returns == [100, 151, 100, 151, 177.5, 188.75]
    sampled = np.concatenate([np.asarray(buffer.batch(8).extra["discounted_return"]) for _ in range(20)])
    assert {*sampled.tolist()} >= {100, 151, 177.5}


@pytest.mark.parametrize("final_obs", [True, False])
def test_transitions_lead_to_the_true_last_observation(
    final_obs: bool, caplog: pytest.LogCaptureFixture
) -> None:
    simulator = make("Counter", 3, final_obs=final_obs)
    source = make_source(simulator, on_device=True)
    rows = partial(DeviceRows, device=CPU)
    buffer = RowReplayBuffer(
        200, simulator.spec, UniformSampler(np.random.default_rng(0)), 1, (), Returns(0.5), rows
    )
    for n in range(20):
        buffer.push(collect(source, 3 * n, 60).items)
    batch = buffer.batch(50)
    assert isinstance(batch.next_obs["obs"], Tensor)
    seen = set()
    for obs, next_obs, discount, reward in zip(
        *(np.asarray(column).tolist() for column in (batch.obs["obs"], batch.next_obs["obs"])),
        *(np.asarray(column).tolist() for column in (batch.discount, batch.reward)),
        strict=True,
    ):
        env, episode, step = obs
        is_last = step == env + episode % 2
        kind = "inner" if not is_last else "truncated" if episode % 2 else "terminated"
        seen.add(kind)
        after = [env, episode, step + 1] if final_obs or not is_last else [env, episode + 1, 0]
        assert next_obs == after
        assert discount == (0.0 if kind == "terminated" else 0.5)
        assert reward == 100 * env + step
    assert seen == {"inner", "terminated", "truncated"}
    assert caplog.text.count("final_obs") == (0 if final_obs else 1)


def test_an_evaluation_in_the_simulator_of_the_training_cuts_its_episodes() -> None:
    simulator = make("Counter", 3)
    source = make_source(simulator, on_device=False)
    make_rows = PackedRows
    buffer = RowReplayBuffer(
        200, simulator.spec, UniformSampler(np.random.default_rng(0)), 1, (), Returns(), make_rows
    )
    before = collect(source, 0, 30)
    episodes = SimulatorEpisodes(simulator, 2)
    assert episodes.n_envs == 2

    class Still:
        train = eval = begin_episode = staticmethod(lambda *_: None)

        def sample(self, obs: Any, env_steps: int = 0, env_ix: Any = ()) -> Any:
            return np.zeros((len(env_ix), 2), np.float32)

    runner = EpisodeRunner(episodes, 100, lambda: False)
    policy: Any = Still()
    evaluation = runner.evaluate(policy, 7, [5, 6])
    assert evaluation is not None
    assert (evaluation.returns, evaluation.lengths) == ((0.0, 100.0 + 101.0), (1, 2))
    after = collect(source, 3, 30)
    assert (before.incarnation, after.incarnation) == (0, 1)
    assert np.asarray(after.items["obs"])[:3].tolist() == [[0, 0, 0], [1, 0, 0], [2, 0, 0]]
    assert after.items["step"][:3].tolist() == [0, 0, 0]
    assert simulator._env.seeds == [70, 5, 71]
    buffer.push(before.items)
    buffer.break_streams(0)  # as the loop does for a new incarnation
    buffer.push(after.items)
    batch = buffer.batch(len(buffer))
    assert (batch.next_obs["obs"][:, 2] == batch.obs["obs"][:, 2] + 1).all()


def test_a_resumed_simulator_begins_anew_with_other_seeds() -> None:
    simulator = make("Counter")
    source = make_source(simulator, on_device=False)
    collect(source, 0, 4)
    state = source.state()
    resumed = make("Counter")
    sampler = SimulatorSampler(resumed, Marked(), lambda incarnation: 70 + incarnation, False)
    again = InThreadSource(sampler, 2, lambda: None)
    again.start(ModelInfo(0, {}), state)
    assert collect(again, 2, 4).incarnation == 1
    assert resumed._env.seeds == [71]
    (stat,) = again.stats()
    assert (stat.env_steps, stat.env_steps_before, stat.exact) == (4, 2, False)


def test_the_dynamics_are_those_of_gymnasium() -> None:
    simulator, env = make("CartPole", 1), gymnasium.make("CartPole-v1")
    rng = np.random.default_rng(0)
    for seed in range(3):
        simulator.reset(seed)
        env.reset(seed=seed)
        env.unwrapped.state = simulator.obs["obs"][0].double().numpy()  # type: ignore[attr-defined]
        over, n = False, 0
        while not over:
            action = int(rng.integers(2))
            step = simulator.step(torch.tensor([action]))
            expected, _, over, *_ = env.step(action)
            assert np.allclose(step.next_obs["obs"][0], expected, atol=1e-4)
            assert bool(step.terminated[0]) == over
            n += 1
        assert n > 5


def test_groups_of_observations_are_leaves() -> None:
    both = make("TwoGroups")
    assert [(leaf.name, leaf.shape) for leaf in both.spec.obs.leaves] == [
        ("obs.critic", (5,)),
        ("obs.policy", (4,)),
    ]
    one = make("TwoGroups", obs_keys=["policy"])
    one.reset(0)
    before = one.obs["obs.policy"].clone()
    step = one.step(torch.tensor([0, 1]))
    assert list(step.next_obs) == ["obs.policy"]
    assert torch.equal(
        torch.as_tensor(step.obs["obs.policy"]), before
    )  # although the simulator changes its own tensor


def bad(value: Any, name: str) -> Any:
    """A simulator whose next result is spoilt."""
    simulator = make("Point", 3)
    simulator.reset(0)
    step = simulator._env.step

    def spoilt(action: Tensor) -> Any:
        result = dict(zip(("obs", "reward", "terminated", "truncated", "info"), step(action), strict=True))
        result[name] = value
        return tuple(result.values())

    simulator._env.step = spoilt
    return simulator


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "reward",
            torch.tensor([0.0, torch.inf, 0.0]),
            "EnvDataError: the reward or observation of environment 1",
        ),
        ("obs", torch.tensor([[0.0], [0.0], [torch.nan]]), "environment 2 is not finite"),
        ("obs", torch.zeros(3), r"observation obs has shape \(3,\), its space says \(3, 1\)"),
        ("info", None, "TypeError"),
    ],
)
def test_a_bad_result_is_an_error_of_the_simulator(name: str, value: Any, message: str) -> None:
    with pytest.raises(
        ActorLostError, match=f"the simulator of the test failed when it was stepped.*{message}"
    ):
        bad(value, name).step(torch.zeros(3, 1))


def test_a_last_observation_that_is_not_finite_is_an_error() -> None:
    last = torch.tensor([[torch.nan], [0.0], [0.0]])
    bad({"final_obs": last}, "info").step(torch.zeros(3, 1))  # no episode has ended
    simulator = bad({"final_obs": last}, "info")
    simulator._env._time = 19
    with pytest.raises(ActorLostError, match="environment 0 is not finite"):
        simulator.step(torch.zeros(3, 1))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Unbounded", "has no bounds\nallowed: "),
        ("Nothing", "has no 'Nothing'"),
    ],
)
def test_a_simulator_that_does_not_fit_is_refused(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(name)


def test_close_is_called_once() -> None:
    simulator = make("Counter")
    inner = simulator._env
    simulator.close()
    simulator.close()
    assert inner.is_closed and not simulator.is_open


ACTING = [agent for agent in OUR_AGENTS if agent not in ("r2d2", "rsac")]  # preflight refuses a memory


@pytest.mark.parametrize("env_steps", [0, 10**9])
@pytest.mark.parametrize("agent", ACTING)
def test_tensors_give_the_actions_of_arrays(agent: str, env_steps: int) -> None:
    """The same random numbers give the same actions, but for ε-greedy ones, which are drawn in another order."""
    settings = (
        {"epsilon_start": 0.0, "epsilon_final": 0.0}
        if "epsilon_final" in vars(AGENTS[agent].config())
        else {}
    )
    policies: list[NetworkPolicy] = [make_learner(agent, **settings).policy for _ in range(2)]
    obs = observations(1)
    tensors = {name: torch.from_numpy(rows) for name, rows in obs.items()}
    for _ in range(2):
        actions = policies[0].act(tensors, env_steps)
        expected = policies[1].sample(obs, env_steps)
        assert actions.dtype == torch.from_numpy(expected).dtype
        assert np.allclose(actions, expected, atol=1e-5)


def test_state_dependent_noise_is_that_of_arrays() -> None:
    policies = [make_learner("sac", exploration="state_dependent").policy for _ in range(2)]
    obs = observations(1, 5)
    actions = policies[0].act({name: torch.from_numpy(rows) for name, rows in obs.items()}, 10**9)
    assert np.allclose(actions, policies[1].sample(obs, 10**9, range(5)), atol=1e-5)


def test_random_actions_are_uniform_among_the_allowed_ones() -> None:
    policy: Any = make_learner("dqn", epsilon_start=0.5, epsilon_final=0.5).policy
    obs = {name: torch.from_numpy(rows) for name, rows in observations(1, 1).items()}
    many = {name: rows.expand(8000, *rows.shape[1:]) for name, rows in obs.items()}
    (best,) = policy.decide(obs)[0].tolist()
    n = policy.action_values(observations(1, 1)).shape[1]
    counts = torch.bincount(policy.act(many, 0), minlength=n) / 8000
    expected = torch.full((n,), 0.5 / n)
    expected[best] += 0.5
    assert torch.allclose(counts, expected, atol=0.03)
    policy._mask, policy.network.branches = "obs.mask", (n,)
    many["obs.mask"] = torch.zeros(8000, n)
    many["obs.mask"][:, 1] = 1
    assert (policy.act(many, 0) == 1).all()


def test_the_replay_on_a_device_stores_tensors_as_arrays() -> None:
    from border_cli.core.types import Column

    columns = [Column("a", (2, 2), "float32"), Column("b", (), "int64"), Column("c", (5,), "uint8")]
    rng = np.random.default_rng(0)
    written = {c.name: rng.integers(0, 200, (3, *c.shape)).astype(c.dtype) for c in columns}
    stores = [DeviceRows(columns, 6, CPU) for _ in range(2)]
    for where in (slice(0, 3), np.array([5, 0, 4])):
        stores[0].write(where, written)
        tensors: dict[str, Any] = {name: torch.from_numpy(rows) for name, rows in written.items()}
        stores[1].write(where, tensors)
    slots = np.arange(6)
    for name, rows in stores[0].read(slots).items():
        assert np.array_equal(rows, stores[1].read(slots)[name])


def test_several_discrete_actions_are_given_counted_from_their_start() -> None:
    simulator = make("Several")
    simulator.reset(0)
    step = simulator.step(torch.tensor([[0, 0], [1, 2]]))
    assert simulator._env.seen.tolist() == [[5, -1], [6, 1]]
    assert step.action.tolist() == [[0, 0], [1, 2]]  # as stored
