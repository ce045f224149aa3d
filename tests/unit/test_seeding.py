"""All random streams of a run are different and follow from its seed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from border_cli.core.errors import IncompatibleStateError
from border_cli.runtime import seeding

ACTORS, INCARNATIONS, ENVS, EPISODES = 64, 5, 2, 100


def numbers(seed: int) -> Iterator[int]:
    """Return the seeds of environments, which gymnasium accepts."""
    for episode in range(EPISODES):
        yield seeding.integer(seed, seeding.EVALUATION, episode)
        yield seeding.integer(seed, seeding.EVAL_COMMAND, episode)
        yield seeding.integer(seed, seeding.CONFIRMATION, 1000, episode)
        yield from (
            seeding.episode_seed(seed, actor, 0, env, episode) for actor in range(8) for env in range(2)
        )
    for actor in range(ACTORS):
        for incarnation in range(INCARNATIONS):
            for env in range(ENVS):
                yield seeding.first_seed(seed, actor, incarnation, env, 0)


def states(seed: int) -> Iterator[bytes]:
    """Return the initial states of our generators."""
    keys = [(seeding.AGENT,), seeding.LEARNING, (seeding.REPLAY,), (seeding.EVALUATION_POLICY,)]
    keys += [(seeding.ACTOR, actor, n, 1) for actor in range(ACTORS) for n in range(INCARNATIONS)]
    for key in keys:
        yield seeding.stream(seed, *key).generate_state(4).tobytes()


@pytest.mark.parametrize("streams", [numbers, states])
def test_g4_no_two_streams_are_the_same_and_all_follow_from_the_seed(streams) -> None:
    all_of_them = [*streams(1), *streams(2)]
    assert len(set(all_of_them)) == len(all_of_them) > 600
    assert list(streams(1)) == all_of_them[: len(all_of_them) // 2]


@pytest.mark.parametrize("bad", [2**200, -1])
def test_a_generator_state_out_of_range_is_refused(bad: int) -> None:
    rng = seeding.generator(1, 2)
    before = rng.bit_generator.state
    with pytest.raises(IncompatibleStateError, match="generator does not fit"):
        seeding.restore(rng, {**before, "state": {**before["state"], "state": bad}})
