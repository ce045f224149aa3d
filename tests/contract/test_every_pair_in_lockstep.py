"""Every registered agent with every buffer: the same seed gives the same bits, also after a resume (contract C8)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import gymnasium
import pytest

from border_cli.cli.train import main
from border_cli.config.registry import AGENTS, BUFFERS
from border_cli.core.errors import UsageError
from border_cli.envs.spaces import env_spec
from tests.faults.amounts import sampled
from tests.interrupted import assert_same_bits, run_interrupted, run_whole
from tests.real_runs import Run, in_folder, known_to

ENVIRONMENTS = ("CartPole-v1", "Pendulum-v1")
"""Each agent trains in the first of them whose spaces it accepts."""
COMMON = (
    "env.max_episode_steps=15",
    "trainer.max_opts=24",
    "trainer.eval_interval=10",
    "trainer.save_interval=9",
    "trainer.record_interval=6",
    "evaluator.max_episode_steps=20",
    "agent.target_interval=5",
    "agent.epsilon_env_steps=80",
    "agent.random_env_steps=55",
    "buffer.capacity=70",
    "actor_manager.envs_per_actor=2",
)
MODES = {
    "lockstep": ("trainer.lockstep=true", "trainer.lockstep_steps=3", "n_actors=2"),
    "sync": ("trainer=sync",),
}
STOPPED_AT = 13
"""Some opt steps after a record, a save and an evaluation, and some before the next ones."""


@dataclass(frozen=True)
class Pair:
    """An agent and a buffer. words: what makes a small run of them."""

    agent: str
    buffer: str
    words: tuple[str, ...]


def env_of(agent: str) -> str:
    entry = AGENTS[agent]
    for env_id in ENVIRONMENTS:
        env = gymnasium.make(env_id)
        try:
            entry.load().check_spec(entry.config(), env_spec(env.observation_space, env.action_space))
        except UsageError:
            continue
        return env_id
    raise AssertionError(f"no environment here is for {agent}")


def words_of(agent: str, buffer: str, env_id: str) -> tuple[str, ...]:
    groups = (f"agent={agent}", f"buffer={buffer}", "env=gym", f"env.id={env_id}")
    return *groups, *known_to(agent, *COMMON)


PAIRS = [
    Pair(agent, buffer, words_of(agent, buffer, env_of(agent)))
    for agent, buffer in product(sorted(AGENTS), sorted(BUFFERS))
]
FRAMES = Pair(
    "rainbow",
    "prioritized, frames",
    (
        *("agent=rainbow", "buffer=prioritized", "env=catch", "buffer.n_step=3", "agent.channels=[4]"),
        *known_to("rainbow", *COMMON),
    ),
)
"""Stacked observations, of which the replay stores frames."""
CORRELATED = [
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
"""Exploration noise that is kept over several env steps and restored with an actor; one mode of each."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, full_forkserver: None) -> Iterator[Path]:
    with in_folder(tmp_path_factory.mktemp("pairs")) as path:
        yield path


@pytest.mark.parametrize(
    ("pair", "mode"),
    # test_every_agent.py and test_every_buffer.py do it with each agent and each buffer, in one process
    sampled([*product([*PAIRS, FRAMES], MODES), *CORRELATED], 12),
    ids=lambda param: param if isinstance(param, str) else f"{param.agent}, {param.buffer}",
)
def test_g1_g2_a_resumed_run_equals_the_uninterrupted_one(folder: Path, pair: Pair, mode: str) -> None:
    """Which it cannot unless the same seed gives the same bits."""
    name, words = f"{pair.agent}, {pair.buffer}, {mode}", (*pair.words, *MODES[mode])
    whole = run_whole(folder / name, *words)
    resumed = run_interrupted(folder / f"{name}, resumed", *words, at=STOPPED_AT)
    assert_same_bits(resumed, whole)
    assert resumed.summary["exact"] is True
    assert {"agent/q_mean", "train/episode_return", "eval/return_mean"} <= {
        name for record in resumed.records for name in record
    }


def test_importance_weights_follow_the_budget_that_a_run_began_with(folder: Path) -> None:
    run = run_whole(folder / "beta", *words_of("dqn", "prioritized", "CartPole-v1"), *MODES["sync"])
    assert run.config.buffer.beta_opt_steps == 24
    assert main([f"resume={run.path}", "trainer.max_opts=30"]) == 0
    assert Run(run.path).config.buffer.beta_opt_steps == 24
