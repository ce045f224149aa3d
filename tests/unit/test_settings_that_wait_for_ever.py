"""Row B2: settings with which learner and actors would wait for each other for ever are refused, all others learn.

The tests use a grid of settings around every limit, with the real limiter, step processors and replay, and with actors that
use all their credit.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from border_cli.actors.sampler import Sampler
from border_cli.actors.spec import ActorId
from border_cli.agents.dqn.config import DqnConfig
from border_cli.config.resolve import ratio_tolerance
from border_cli.config.schema import ActorManagerConfig, BufferConfig, EnvConfig, TrainConfig, TrainerConfig
from border_cli.config.validate import validate
from border_cli.core.errors import UsageError
from border_cli.replay.buffer import RowReplayBuffer
from border_cli.replay.n_step import NStepProcessor
from border_cli.replay.samplers import UniformSampler
from border_cli.training.ratio_limiter import RatioLimiter
from tests.fakes import COUNTING_SPEC, NumpyPolicy, make_counting_env
from tests.faults.amounts import sampled

OPT_STEPS = 5
GRID = list(
    itertools.product(
        (1, 3),  # n_actors
        (1, 2),  # envs_per_actor
        (1, 3),  # n_step
        (0.3, 1.0, 4.0),  # opt_interval
        (0, 6, 20),  # warmup_period
        (1, 5, 6, 16),  # ratio_tolerance
        (1, 8, 20),  # batch_size
        (20, 60),  # capacity
    )
)


def config(values: tuple[float, ...]) -> TrainConfig:
    n_actors, envs, n_step, interval, warmup, tolerance, batch, capacity = values
    return TrainConfig(
        agent=DqnConfig(batch_size=int(batch)),
        env=EnvConfig(entry_point="tests.counting:CountingEnv", kwargs={"lengths": [1, 4]}),
        buffer=BufferConfig(capacity=int(capacity), n_step=int(n_step)),
        actor_manager=ActorManagerConfig(envs_per_actor=int(envs)),
        trainer=TrainerConfig(
            opt_interval=interval,
            warmup_period=int(warmup),
            ratio_tolerance=int(tolerance),
            max_opts=OPT_STEPS,
        ),
        n_actors=int(n_actors),
    )


def sampler(c: TrainConfig, actor: int) -> Sampler:
    n_envs = c.actor_manager.envs_per_actor
    env = make_counting_env(ActorId(actor, 0, c.n_actors, n_envs, 0), c.env)
    processor = NStepProcessor(COUNTING_SPEC, n_envs, c.buffer.n_step, 0.9)
    sampler = Sampler(env, NumpyPolicy(), processor, lambda env, episode: None if episode else 0)
    sampler.begin()
    return sampler


def opt_steps_done(c: TrainConfig) -> int:
    """Return OPT_STEPS, or fewer if learner and actors wait for each other."""
    n, group, interval = c.n_actors, c.actor_manager.envs_per_actor, c.trainer.opt_interval
    limiter = RatioLimiter(interval, c.trainer.warmup_period, ratio_tolerance(c), None, n, group)
    buffer = RowReplayBuffer(c.buffer.capacity, COUNTING_SPEC, UniformSampler(np.random.default_rng(0)))
    actors, taken = [sampler(c, actor) for actor in range(n)], [0] * n
    while limiter.opt_steps < OPT_STEPS:
        if limiter.may_opt() and len(buffer) >= c.agent.batch_size:
            buffer.batch(c.agent.batch_size)
            limiter.count_opt()
            continue
        limiter.grant()
        if list(limiter.credits) == taken:
            break
        for actor in range(n):
            while (credit := limiter.credits[actor] - taken[actor]) > 0:
                k = min(group, credit)
                buffer.push(actors[actor].sample([(taken[actor] + i) % group for i in range(k)], 0), actor)
                taken[actor] += k
                limiter.inserted(actor, k)
    return limiter.opt_steps


def test_b2_settings_are_refused_or_learn() -> None:
    refused = 0
    for values in (grid := sampled(GRID, 5)):
        c = config(values)
        try:
            validate(c)
        except UsageError as e:
            refused += 1
            assert 2 <= len(str(e).splitlines()) <= 3, values
            continue
        assert opt_steps_done(c) == OPT_STEPS, values
    assert len(grid) // 4 < refused < len(grid) * 3 // 4  # the grid has many of both kinds


@pytest.mark.parametrize("values", [(3, 2, 3, 1.0, 0, 6, 20, 100), (1, 1, 1, 0.3, 0, 5, 8, 60)])
def test_b2_refused_settings_would_wait_for_ever(values: tuple[float, ...]) -> None:
    c = config(values)
    with pytest.raises(UsageError, match=r"warmup_period \+ opt_interval \+ ratio_tolerance"):
        validate(c)
    assert opt_steps_done(c) < OPT_STEPS
