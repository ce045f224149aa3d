"""Rows and n-step transitions by hand: rewards 1, 2, 4, 8 … and γ = 0.5, so that every sum is exact in binary."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from border_cli.actors.sampler import RowProcessor
from border_cli.config.schema import BufferConfig
from border_cli.core.spaces import ActionSpec, EnvSpec, ObsLeaf, ObsSpec
from border_cli.core.types import (
    Column,
    Items,
    Step,
    concat_items,
    count_env_steps,
    empty_items,
    finished_episodes,
    item_columns,
)
from border_cli.replay.buffer import Returns, RowReplayBuffer, make_buffer
from tests.fakes import processed

SPEC = EnvSpec(ObsSpec((ObsLeaf("obs", (), "box", (1,), "float32"),)), ActionSpec("discrete", n=9))
GAMMA = 0.5
EXTRA = Column("extra", (2,), "float32")


def step(t: int, reward: float, terminated: bool = False, truncated: bool = False, env: int = 0) -> Step:
    """Return env step t: observation t, next observation t + 1, action t."""
    return Step(
        [env],
        {"obs": np.array([[t]], np.float32)},
        np.array([t]),
        np.array([reward]),
        np.array([terminated]),
        np.array([truncated]),
        {"obs": np.array([[t + 1]], np.float32)},
    )


def joined(*steps: Step) -> Step:
    """Return one env step of several environments."""
    names = ("action", "reward", "terminated", "truncated")
    return Step(
        [i for each in steps for i in each.env_ix],
        {"obs": np.concatenate([each.obs["obs"] for each in steps])},
        **{name: np.concatenate([getattr(each, name) for each in steps]) for name in names},
        next_obs={"obs": np.concatenate([each.next_obs["obs"] for each in steps])},
    )


def rows(items: Items) -> list[tuple[float, ...]]:
    """Return (observation, action, reward, terminated, final, step) of each row."""
    names = ("action", "reward", "terminated", "final", "step")
    return list(zip(items["obs"][:, 0].tolist(), *(items[name].tolist() for name in names), strict=True))


def run(steps: list[Step]) -> Items:
    processor = RowProcessor(SPEC, 1)
    return concat_items([processed(processor, s) for s in steps])


Transition = tuple[float, float, float, bool, float]


def transitions(buffer: RowReplayBuffer) -> set[Transition]:
    """Return (observation, reward, discount, terminated, next observation) of all rows that can be sampled."""
    found = set[Transition]()
    while len(found) < len(buffer):
        batch = buffer.batch(len(buffer))
        columns = (
            batch.obs["obs"][:, 0],
            batch.reward,
            batch.discount,
            batch.terminated,
            batch.next_obs["obs"][:, 0],
        )
        found |= set(zip(*(column.tolist() for column in columns), strict=True))
    return found


def replayed(n_step: int, items: Items, clip: float | None = None) -> set[Transition]:
    config = BufferConfig(capacity=100, n_step=n_step)
    buffer = make_buffer(config, SPEC, 0, returns=Returns(GAMMA, clip))
    buffer.push(items)
    return transitions(buffer)


# -- rows ----------------------------------------------------------------------


@pytest.mark.parametrize("terminated", [True, False])
def test_an_episode_is_a_row_per_env_step_and_its_final_observation(terminated: bool) -> None:
    items = run([step(0, 1.0), step(1, 2.0, terminated=terminated, truncated=True)])
    assert rows(items) == [
        (0.0, 0, 1.0, False, False, 0),
        (1.0, 1, 2.0, terminated, False, 1),
        (2.0, 0, 0.0, False, True, 2),
    ]
    assert finished_episodes(items) == [(3.0, 2)] and count_env_steps(items) == 2


def test_rows_of_several_environments_lie_in_the_order_of_each() -> None:
    processor = RowProcessor(SPEC, 3)
    processor.add(joined(step(0, 1.0), step(3, 2.0, env=1, terminated=True), step(6, 4.0, env=2)))
    processor.add(joined(step(4, 8.0, env=1), step(7, 16.0, env=2)))
    items = processor.take()
    assert list(zip(items["env"].tolist(), items["obs"][:, 0].tolist(), strict=True)) == [
        *((0, 0.0), (1, 3.0), (2, 6.0)),
        *((1, 4.0), (1, 4.0), (2, 7.0)),  # the final observation, then the first of the next episode
    ]
    assert items["final"].tolist() == [False, False, False, True, False, False]
    assert items["step"].tolist() == [0, 0, 0, 1, 0, 1]
    assert finished_episodes(items) == [(2.0, 1)]


def test_rows_are_taken_in_parts() -> None:
    processor = RowProcessor(SPEC, 1, (EXTRA,))
    for t in range(100):  # more than there is room for at first
        processor.add(replace(step(t, 1.0), extras={"extra": np.array([[t, -t]])}))
    first = processor.take(empty_items(item_columns(SPEC, (EXTRA,)), 30))
    rest = processor.take()
    assert first["obs"][:, 0].tolist() == [*range(30)] and rest["obs"][:, 0].tolist() == [*range(30, 100)]
    assert rest["extra"].tolist() == [[t, -t] for t in range(30, 100)]
    assert processor.n_rows == 0


def test_a_cut_episode_ends_at_its_newest_observation_and_is_not_reported() -> None:
    processor = RowProcessor(SPEC, 1)
    processor.add(step(0, 1.0))
    processor.cut(0)
    processor.cut(0)
    items = processor.take()
    assert rows(items) == [(0.0, 0, 1.0, False, False, 0), (1.0, 0, 0.0, False, True, 1)]
    assert not items["episode_length"].any()


# -- transitions ---------------------------------------------------------------


@pytest.mark.parametrize("terminated", [True, False])
def test_n_step_returns_get_shorter_at_an_end(terminated: bool) -> None:
    """1 + 2/2 + 4/4 = 3, then 2 + 4/2 + 8/4 = 6; γ³ = 0.125, and 0 if terminated."""
    end, bootstraps = step(3, 8.0, terminated=terminated, truncated=not terminated), not terminated
    assert replayed(3, run([step(0, 1.0), step(1, 2.0), step(2, 4.0), end])) == {
        (0.0, 3.0, 0.125, False, 3.0),
        (1.0, 6.0, 0.125 * bootstraps, terminated, 4.0),
        (2.0, 8.0, 0.25 * bootstraps, terminated, 4.0),
        (3.0, 8.0, 0.5 * bootstraps, terminated, 4.0),
    }


def test_rewards_are_clipped_per_step_and_the_episode_return_is_not() -> None:
    items = run([step(0, 10.0), step(1, -10.0, terminated=True)])
    assert replayed(2, items, clip=1.0) == {(0.0, 0.5, 0.0, True, 2.0), (1.0, -1.0, 0.0, True, 2.0)}
    assert finished_episodes(items) == [(0.0, 2)]


def test_a_lost_life_ends_the_return_and_the_episode_continues() -> None:
    lost = replace(step(1, 2.0), life_lost=np.array([True]))
    items = run([step(0, 1.0), lost, step(2, 4.0), step(3, 8.0), step(4, 16.0, truncated=True)])
    assert replayed(3, items) == {
        *((0.0, 2.0, 0.0, True, 2.0), (1.0, 2.0, 0.0, True, 2.0)),
        *((2.0, 12.0, 0.125, False, 5.0), (3.0, 16.0, 0.25, False, 5.0), (4.0, 16.0, 0.5, False, 5.0)),
    }
    assert finished_episodes(items) == [(31.0, 5)]


def test_a_life_lost_in_a_truncated_step_prevents_the_bootstrap() -> None:
    last = replace(step(1, 1.0, truncated=True), life_lost=np.array([True]))
    assert {transition[3] for transition in replayed(2, run([step(0, 1.0), last]))} == {True}
