"""Lockstep gives the same bits in every environment and with any number of actors.

Each cell is one configuration. Its run is stopped by SIGTERM at an opt step drawn from the printed seed, then resumed; the
result must equal the uninterrupted run. FAULTS_FULL=1 stops each cell at ten opt steps and repeats the uninterrupted run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.faults.amounts import FULL, SEED, sampled, seeded, times
from tests.interrupted import assert_same_bits, run_interrupted, run_whole
from tests.real_runs import Run, in_folder

MAX_OPTS = 90
COMMON = (
    "trainer.lockstep=true",
    f"trainer.max_opts={MAX_OPTS}",
    "trainer.eval_interval=32",
    "trainer.save_interval=25",
    "trainer.record_interval=20",
    "evaluator.max_episode_steps=40",  # an evaluation must not take longer than training
    "agent.target_interval=24",
    "agent.epsilon_env_steps=200",
    "agent.epsilon_ladder=7",
    "buffer.capacity=120",
    "seed=5",
)
SHORT = "env.max_episode_steps=17"
"""Makes episodes end within these short runs."""
CELLS = {
    ("cartpole", 1): (
        "actor_manager.envs_per_actor=3",
        "trainer.opt_interval=0.5",
        "trainer.lockstep_steps=2",
    ),
    ("cartpole", 3): ("evaluator=process", "trainer.opt_interval=2.5", "trainer.lockstep_steps=5"),
    ("cartpole", 8): ("buffer.n_step=3", "agent.reward_clip=0.5"),
    ("acrobot", 1): (SHORT, "buffer.n_step=3", "trainer.opt_interval=3", "trainer.lockstep_steps=4"),
    ("acrobot", 3): (SHORT, "actor_manager.envs_per_actor=2", "trainer.opt_interval=0.7"),
    ("acrobot", 8): (SHORT, "evaluator=process", "trainer.opt_interval=4", "trainer.lockstep_steps=3"),
    ("lunarlander", 1): (
        *("env.kwargs.enable_wind=true", "env.kwargs.wind_power=19"),
        *("evaluator=process", "trainer.opt_interval=2"),
    ),
    ("lunarlander", 3): (
        *(SHORT, "env.kwargs.gravity=-4", "buffer.n_step=3", "actor_manager.envs_per_actor=2"),
        *("trainer.opt_interval=2", "trainer.lockstep_steps=3"),
    ),
    ("lunarlander", 8): (
        *(SHORT, "env.kwargs.enable_wind=true", "env.kwargs.turbulence_power=0.5"),
        *("actor_manager.envs_per_actor=2", "trainer.opt_interval=5", "trainer.lockstep_steps=7"),
    ),
}
"""Arguments per environment and number of actors. Together the cells use every kind of option."""


def stops() -> Iterator[Any]:
    """Yield each cell with the opt step of its stop, one in each part of the run; None repeats the uninterrupted run."""
    n = times(1, 10)
    for env, n_actors in CELLS:
        rng = seeded(f"{env} {n_actors}")
        bounds = [1 + (MAX_OPTS - 1) * i // n for i in range(n + 1)]
        for first, end in pairwise(bounds):
            at = rng.randrange(first, end)
            yield pytest.param(env, n_actors, at, id=f"{env}, {n_actors}, stopped at {at}")
        if FULL:
            yield pytest.param(env, n_actors, None, id=f"{env}, {n_actors}, again")


def args_of(env: str, n_actors: int) -> tuple[str, ...]:
    common = [
        word for word in COMMON if n_actors > 1 or "epsilon_ladder" not in word
    ]  # refused with one actor
    return f"env={env}", f"n_actors={n_actors}", *common, *CELLS[env, n_actors]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, full_forkserver: None) -> Iterator[Path]:
    with in_folder(tmp_path_factory.mktemp("everywhere")) as path:
        yield path


@pytest.fixture(scope="module")
def uninterrupted(folder: Path) -> Callable[[str, int], Run]:
    """Return a function that trains the uninterrupted run of a cell once."""

    @functools.cache
    def run(env: str, n_actors: int) -> Run:
        whole = run_whole(folder / f"{env}, {n_actors}", *args_of(env, n_actors))
        assert whole.counts[0] == MAX_OPTS
        assert {"agent/loss", "train/episode_return", "eval/return_mean"} <= {
            name for record in whole.records for name in record
        }
        return whole

    return run


@pytest.mark.parametrize(("env", "n_actors", "at"), sampled(list(stops()), 9))
def test_g1_g2_a_repeated_and_a_resumed_run_have_the_same_bits(
    folder: Path, uninterrupted: Callable[[str, int], Run], env: str, n_actors: int, at: int | None
) -> None:
    print(f"FAULTS_SEED={SEED}")  # pytest shows it if the test fails
    path, args = folder / f"{env}, {n_actors}, {at}", args_of(env, n_actors)
    if at is None:
        run = run_whole(path, *args)
    else:
        run = run_interrupted(path, *args, at=at)
        assert len(run.json("provenance.json")["launches"]) == 2
    whole = uninterrupted(env, n_actors)
    assert_same_bits(run, whole)
    assert run.summary["exact"] is True
    assert all(actor["exact"] for actor in run.summary["actors"])
    assert run.config.env == whole.config.env
