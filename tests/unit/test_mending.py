"""What becomes of an environment that raises while it acts, in one process: nothing of the others is lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from border_cli.actors.board import ActorLine, ActorState, Board
from border_cli.actors.mending import EnvGivenUp, InPlaceMender, describe, describe_fault
from border_cli.actors.messages import Mended, Message
from border_cli.actors.place import Place
from border_cli.actors.sampler import Sampler
from border_cli.config.schema import EnvConfig
from border_cli.core.items import Items
from border_cli.core.protocols import StepError
from border_cli.envs.gym_env import GymEnv
from border_cli.runtime import seeding
from border_cli.runtime.restarts import RestartBudget
from tests.fakes import NumpyPolicy, make_processor

PLACE = Place(actor=1, incarnation=2, n_actors=2, n_envs=3, seed=0)


class Heard:
    """Takes the messages instead of a pipe."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def send(self, message: Message) -> None:
        self.messages.append(message)

    @property
    def where(self) -> list[dict[str, Any]]:
        return [message.raised.context for message in self.messages if isinstance(message, Mended)]


class Bench:
    """Environments that raise, and what mends them."""

    def __init__(self, n_envs: int = 2, n_step: int = 1, restarts: int = 5, **kwargs: Any) -> None:
        config = EnvConfig(
            entry_point="border_cli.envs.counting:CountingEnv", kwargs={"fault": "raise", **kwargs}
        )
        self.n_envs = n_envs
        self.env = GymEnv(config, n_envs)
        self.line: ActorLine = Board(2).line(1)
        self.heard = Heard()
        mender = InPlaceMender(self.env, PLACE, RestartBudget(restarts, 600.0), self.line, self.heard)  # type: ignore[arg-type]
        processor = make_processor(PLACE, self.env.spec, n_step)
        self.sampler = Sampler(self.env, NumpyPolicy(), processor, range(n_envs), mender)
        self.sampler.begin()

    def sample(self, rounds: int) -> Items:
        parts = [self.sampler.sample(range(self.n_envs), 0) for _ in range(rounds)]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def stream(items: Items, env: int) -> list[tuple[int, int, int]]:
    """(episode, time, span) of each row of one environment, in order."""
    mine = items["env"] == env
    obs = items["obs"][mine]
    return list(zip(obs[:, 2].tolist(), obs[:, 3].tolist(), items["span"][mine].tolist(), strict=True))


def test_a6_an_episode_that_breaks_off_ends_at_its_last_known_observation() -> None:
    bench = Bench(n_envs=1, fault_step=4, lengths=[100])
    items = bench.sample(6)
    assert bench.sampler.env_steps == 5  # the one that raised is none
    # three steps and the observation they led to; then a new environment, at its own beginning
    assert stream(items, 0) == [(0, 0, 1), (0, 1, 1), (0, 2, 1), (0, 3, 0), (0, 0, 1), (0, 1, 1)]
    assert not items["terminated"].any()
    assert not items["episode_length"].any()  # nothing that may be reported as an episode


def test_a6_no_row_spans_the_restart_with_several_steps_per_row() -> None:
    bench = Bench(n_envs=1, n_step=3, fault_step=4, lengths=[100])
    items = bench.sample(6)
    assert stream(items, 0) == [(0, 0, 3), (0, 1, 2), (0, 2, 1), (0, 3, 0)]
    np.testing.assert_allclose(items["discount"], [0.99**3, 0.99**2, 0.99, 1.0], rtol=1e-6)


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_a6_the_other_environments_of_the_actor_lose_nothing(broken: int) -> None:
    bench = Bench(n_envs=3, fault_step=10**9, lengths=[100])
    bench.env._envs[broken].unwrapped._fault_step = 3  # type: ignore[attr-defined]
    items = bench.sample(5)
    assert bench.sampler.env_steps == 3 * 5 - 1
    for env in range(3):
        whole = [(0, t, 1) for t in range(5)]
        cut = [(0, 0, 1), (0, 1, 1), (0, 2, 0), (0, 0, 1), (0, 1, 1)]
        assert stream(items, env) == (cut if env == broken else whole)
    assert [where["env"] for where in bench.heard.where] == [broken]


def test_e2_numbers_that_are_not_finite_do_not_slip_through_beside_an_environment_that_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(n_envs=2, fault_step=10**9, lengths=[100])
    first, second = bench.env._envs
    second.unwrapped._fault_step = 3  # type: ignore[attr-defined]
    step, taken = first.step, iter(range(10))

    def with_a_bad_reward(action: Any) -> Any:
        obs, reward, *rest = step(action)
        return obs, float("nan") if next(taken) == 2 else reward, *rest

    monkeypatch.setattr(first, "step", with_a_bad_reward)
    items = bench.sample(5)
    assert np.isfinite(items["reward"]).all()
    assert bench.sampler.env_steps == 2 * 5 - 2
    assert bench.sampler.dropped == 1
    cut = [(0, 0, 1), (0, 1, 1), (0, 2, 0), (1, 0, 1), (1, 1, 1)]
    assert [row[1:] for row in stream(items, 0)] == [row[1:] for row in cut]


def test_a6_what_raised_is_told_with_its_place() -> None:
    bench = Bench(n_envs=2, fault_step=9, lengths=[4])
    bench.sample(9)
    first, second = bench.heard.messages
    assert isinstance(first, Mended)
    assert isinstance(second, Mended)
    assert first.raised.context == {
        "actor": 1,
        "incarnation": 2,
        "phase": "step",
        "env": 0,
        "episode": 2,
        "step": 0,
        "action": 0,
    }
    assert (first.times, second.times) == (1, 2)
    assert first.raised.error == "RuntimeError: CountingEnv was told to raise at step"
    assert "counting.py" in first.raised.traceback
    assert bench.line.state == ActorState.ACTING


def test_a6_a_reset_that_raises_leaves_the_episode_before_it_whole() -> None:
    bench = Bench(n_envs=1, lengths=[2], fault="raise", fault_at="step", fault_step=10**9)
    env = bench.env._envs[0].unwrapped
    bench.sample(1)
    env._fault_at = "reset"  # type: ignore[attr-defined]
    items = bench.sample(2)
    assert stream(items, 0) == [(0, 1, 1), (0, 2, 0), (0, 0, 1)]
    assert items["terminated"].tolist() == [True, False, False]
    assert items["episode_length"].tolist() == [0, 2, 0]
    (where,) = bench.heard.where
    assert (where["phase"], where["episode"], where["step"], where["action"]) == ("reset", 1, 0, None)


def test_a6_once_too_often_ends_the_actor() -> None:
    bench = Bench(n_envs=1, restarts=2, fault_step=1)
    bench.sample(2)
    with pytest.raises(EnvGivenUp) as lost:
        bench.sample(1)
    assert lost.value.raised.context["episode"] == 2
    assert lost.value.raised.error == "RuntimeError: CountingEnv was told to raise at step"
    assert len(bench.heard.messages) == 2


def test_a6_what_raises_while_it_is_made_anew_ends_the_actor() -> None:
    bench = Bench(n_envs=1, fault_step=1)
    bench.env._config.kwargs["fault_at"] = "make"
    with pytest.raises(RuntimeError, match="raise at make"):
        bench.sample(1)
    assert bench.sampler.phase == "making the environment"


def test_a6_each_life_of_an_environment_has_a_seed_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int | None] = []
    bench = Bench(n_envs=1, fault_step=1)
    reset = bench.env.reset

    def noting(env_ix: int, seed: int | None = None) -> None:
        seeds.append(seed)
        reset(env_ix, seed)

    monkeypatch.setattr(bench.env, "reset", noting)
    bench.sample(3)
    assert seeds == [seeding.remade_env_seed(0, 1, 2, 0, times) for times in (1, 2, 3)]
    assert len({*seeds, seeding.env_seed(0, 1, 2, 0)}) == 4


def test_a6_without_a_mender_what_was_raised_goes_on() -> None:
    bench = Bench(n_envs=1, fault_step=1)
    bench.sampler._mender = None
    with pytest.raises(StepError) as lost:
        bench.sample(1)
    assert isinstance(lost.value.__cause__, RuntimeError)
    raised = describe_fault(bench.sampler.fault, PLACE)
    assert raised.error == "RuntimeError: CountingEnv was told to raise at step"
    assert raised.context == {
        "actor": 1, "incarnation": 2, "phase": "step", "env": 0, "episode": 0, "step": 0, "action": 0,
    }  # fmt: skip


def test_a6_what_a_new_environment_raises_at_its_reset_is_told_with_its_place() -> None:
    """It is not mended: the next one would do the same."""
    bench = Bench(n_envs=2, fault_step=3, lengths=[2])
    bench.env._envs[1].unwrapped._fault_step = 10**9  # type: ignore[attr-defined]
    bench.env._config.kwargs["fault_at"] = "reset"
    with pytest.raises(RuntimeError, match="raise at reset"):
        bench.sample(3)
    assert describe_fault(bench.sampler.fault, PLACE).context == {
        "actor": 1, "incarnation": 2, "phase": "reset", "env": 0, "episode": 2, "step": 0, "action": None,
    }  # fmt: skip


def test_a6_a_very_large_action_does_not_fill_the_pipe() -> None:
    raised = describe(ValueError("x" * 5000), "step", None, action="…")
    assert len(raised.error) < 1100
    bench = Bench(n_envs=1, fault_step=1)
    bench.sampler._policy.sample = lambda *_: np.zeros((1, 10_000))  # type: ignore[method-assign] # cannot be decoded
    bench.sample(1)
    (where,) = bench.heard.where
    assert len(str(where["action"])) < 1100


def test_closing_raises_only_after_every_environment_was_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(n_envs=3)
    closed: list[int] = []

    def fail(i: int) -> None:
        closed.append(i)
        raise OSError("the window is gone")

    for i, env in enumerate(bench.env._envs):
        monkeypatch.setattr(env, "close", lambda i=i: fail(i))
    bench.env.remake(1)
    assert "the window is gone" in caplog.text  # and the new one is there
    with pytest.raises(OSError, match="the window is gone"):
        bench.env.close()
    assert sorted(closed) == [0, 1, 2]
