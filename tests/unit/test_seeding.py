"""Row G4: a run that is not reproducible is honest about it; its seeds are derived all the same, and no two are equal."""

from __future__ import annotations

from border_cli.runtime import seeding

ACTORS, INCARNATIONS, EPISODES = range(64), range(5), range(100)


def test_g4_no_two_streams_of_a_run_are_the_same() -> None:
    seeds = [seeding.evaluation_seed(7, episode) for episode in EPISODES]
    seeds += [seeding.judgement_seed(7, episode) for episode in EPISODES]
    for opt_steps in (1000, 2000):
        seeds += [seeding.confirmation_seed(7, opt_steps, episode) for episode in EPISODES]
    for actor in ACTORS:
        for incarnation in INCARNATIONS:
            seeds += [seeding.env_seed(7, actor, incarnation, env) for env in range(2)]
            seeds += [seeding.episode_seed(7, actor, incarnation, 0, episode) for episode in range(2)]
            seeds += [seeding.remade_env_seed(7, actor, incarnation, 0, 1)]
            seeds += [seeding.integer(7, *seeding.exploration_key(actor, incarnation))]
    assert len(set(seeds)) == len(seeds)


def test_g4_seeds_follow_from_that_of_the_run_alone() -> None:
    one, again, other = (seeding.env_seed(seed, 3, 1, 0) for seed in (7, 7, 8))
    assert one == again != other
