"""What every agent with every buffer keeps to: the same seed gives the same bits, and so does going on (contract C8).

Whatever is registered, or has a file under conf/, is in here by its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import gymnasium
import pytest

from border_cli.cli.compose import Composer
from border_cli.cli.overrides import parse_words
from border_cli.cli.train import main
from border_cli.core.errors import UsageError
from border_cli.envs.spaces import env_spec
from border_cli.parts import check_spec
from tests.interrupted import assert_same_bits, run_interrupted, run_whole
from tests.real_runs import Run, in_folder, known_to, tiny

ENVIRONMENTS = ("CartPole-v1", "Pendulum-v1")
"""Each agent trains in the first of them whose spaces are for it."""
COMMON = (
    "env.max_episode_steps=15",
    "trainer.max_opts=40",
    "trainer.eval_interval=16",
    "trainer.save_interval=15",
    "trainer.record_interval=10",
    "evaluator.max_episode_steps=50",
    "agent.target_interval=8",
    "agent.epsilon_env_steps=100",
    "agent.random_env_steps=55",
    "buffer.capacity=90",
    "actor_manager.envs_per_actor=2",
)
MODES = {
    "lockstep": ("trainer.lockstep=true", "trainer.lockstep_steps=3", "n_actors=2"),
    "sync": ("trainer=sync",),
}
STOPPED_AT = 21
"""Some opt steps after a record, a save and an evaluation, and some before the next ones."""


@dataclass(frozen=True)
class Pair:
    """An agent and a buffer that fit together. words: what makes a small run of them."""

    agent: str
    buffer: str
    words: tuple[str, ...]


def options(group: str) -> list[str]:
    with Composer([], None) as composer:
        return composer.choices(group)


def pairs() -> Iterator[Pair]:
    """Each agent with each buffer, less those pairs that are refused in every environment."""
    for agent, buffer in product(AGENTS, BUFFERS):
        fitting = [env_id for env_id in ENVIRONMENTS if fits(words_of(agent, buffer, env_id), env_id)]
        if fitting:
            yield Pair(agent, buffer, words_of(agent, buffer, fitting[0]))


def words_of(agent: str, buffer: str, env_id: str) -> tuple[str, ...]:
    groups = (f"agent={agent}", f"buffer={buffer}", "env=gym", f"env.id={env_id}")
    return *groups, *known_to(agent, *COMMON)


def fits(words: tuple[str, ...], env_id: str) -> bool:
    env = gymnasium.make(env_id)
    try:
        with Composer(parse_words(tiny(*words)), None) as composer:
            config = composer.compose(composer.words()).config
        check_spec(config, env_spec(env.observation_space, env.action_space))
    except UsageError:
        return False
    return True


AGENTS, BUFFERS = options("agent"), options("buffer")
PAIRS = list(pairs())


FRAMES = Pair(
    "rainbow",
    "prioritized, frames",
    (
        *("agent=rainbow", "buffer=prioritized", "env=catch", "buffer.n_step=3", "agent.channels=[4]"),
        *known_to("rainbow", *COMMON),
    ),
)
"""Stacked observations, of which the replay stores frames."""


LASTING = [
    (Pair(agent, f"uniform, {exploration}", (*words_of(agent, "uniform", "Pendulum-v1"), *words)), mode)
    for agent, exploration, words, mode in (
        (
            "sac",
            "state_dependent",
            ("agent.exploration=state_dependent", "agent.noise_interval=7"),
            "lockstep",
        ),
        ("td3", "ornstein_uhlenbeck", ("agent.exploration=ornstein_uhlenbeck",), "sync"),
    )
]
"""Exploration that lasts for several env steps, and is part of what an actor goes on with; one mode of each."""


def test_every_agent_and_every_buffer_is_in_a_pair() -> None:
    assert {pair.agent for pair in PAIRS} == set(AGENTS)
    assert {pair.buffer for pair in PAIRS} == set(BUFFERS)


@dataclass(frozen=True)
class Case:
    """words: of every run of it · whole: the uninterrupted one."""

    name: str
    words: tuple[str, ...]
    whole: Run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, full_forkserver: None) -> Iterator[Path]:
    with in_folder(tmp_path_factory.mktemp("pairs")) as path:
        yield path


@pytest.fixture(
    scope="module",
    params=[*product([*PAIRS, FRAMES], MODES), *LASTING],
    ids=lambda param: f"{param[0].agent}, {param[0].buffer}, {param[1]}",
)
def case(request: pytest.FixtureRequest, folder: Path) -> Case:
    pair, mode = request.param
    name, words = f"{pair.agent}, {pair.buffer}, {mode}", (*pair.words, *MODES[mode])
    return Case(name, words, run_whole(folder / name, *words))


def test_g1_the_same_seed_is_the_same_run(folder: Path, case: Case) -> None:
    assert_same_bits(run_whole(folder / f"{case.name}, again", *case.words), case.whole)


def test_importance_weights_follow_the_budget_that_a_run_began_with(folder: Path) -> None:
    run = run_whole(folder / "beta", *words_of("dqn", "prioritized", "CartPole-v1"), *MODES["sync"])
    assert run.config.buffer.beta_opt_steps == 40
    assert main([f"resume={run.path}", "trainer.max_opts=50"]) == 0
    assert Run(run.path).config.buffer.beta_opt_steps == 40


def test_g2_a_resumed_run_equals_the_uninterrupted_one(folder: Path, case: Case) -> None:
    resumed = run_interrupted(folder / f"{case.name}, resumed", *case.words, at=STOPPED_AT)
    assert_same_bits(resumed, case.whole)
    assert resumed.summary["exact"] is True
    assert {"agent/q_mean", "train/episode_return", "eval/return_mean"} <= {
        name for record in resumed.records for name in record
    }
