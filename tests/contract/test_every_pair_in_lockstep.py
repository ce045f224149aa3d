"""Every registered agent with every buffer: the same seed gives the same bits, also after a resume."""

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
from border_cli.envs.gym_spaces import env_spec
from tests.faults.amounts import sampled
from tests.interrupted import assert_same_bits, run_interrupted, run_whole
from tests.real_runs import Run, in_folder, known_to

ENVIRONMENTS = ("CartPole-v1", "Pendulum-v1")
"""Each agent trains in the first of these whose spaces it accepts."""
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
"""A few opt steps after a record, a save and an evaluation, and before the next ones."""


@dataclass(frozen=True)
class Pair:
    """An agent and a buffer. args: command-line arguments of a small run with them."""

    agent: str
    buffer: str
    args: tuple[str, ...]


def env_of(agent: str) -> str:
    entry = AGENTS[agent]
    for env_id in ENVIRONMENTS:
        env = gymnasium.make(env_id)
        try:
            entry.load().check_spec(entry.config(), env_spec(env.observation_space, env.action_space))
        except UsageError:
            continue
        return env_id
    raise AssertionError(f"{agent} accepts none of {ENVIRONMENTS}")


def args_of(agent: str, buffer: str, env_id: str) -> tuple[str, ...]:
    groups = (f"agent={agent}", f"buffer={buffer}", "env=gym", f"env.id={env_id}")
    return *groups, *known_to(agent, *COMMON)


PAIRS = [
    Pair(agent, buffer, args_of(agent, buffer, env_of(agent)))
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
"""Observations are stacks of frames; the replay stores single frames."""
CORRELATED = Pair(
    "sac",
    "uniform, state_dependent",
    (
        *args_of("sac", "uniform", "Pendulum-v1"),
        *("agent.exploration=state_dependent", "agent.noise_interval=7"),
    ),
)
"""Exploration noise that lasts several env steps and is restored with its actor."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, full_forkserver: None) -> Iterator[Path]:
    with in_folder(tmp_path_factory.mktemp("pairs")) as path:
        yield path


@pytest.mark.parametrize(
    ("pair", "mode"),
    # test_every_agent.py and test_every_buffer.py check each agent and each buffer in one process
    sampled([*product([*PAIRS, FRAMES], MODES), (CORRELATED, "lockstep")], 12),
    ids=lambda param: param if isinstance(param, str) else f"{param.agent}, {param.buffer}",
)
def test_g1_g2_a_resumed_run_equals_the_uninterrupted_one(folder: Path, pair: Pair, mode: str) -> None:
    """The runs are equal only if the same seed gives the same bits."""
    name, args = f"{pair.agent}, {pair.buffer}, {mode}", (*pair.args, *MODES[mode])
    uninterrupted = run_whole(folder / name, *args)
    resumed = run_interrupted(folder / f"{name}, resumed", *args, at=STOPPED_AT)
    assert_same_bits(resumed, uninterrupted)
    assert resumed.summary["exact"] is True
    assert {"agent/q_mean", "train/episode_return", "eval/return_mean"} <= {
        name for record in resumed.records for name in record
    }


def test_a_resume_with_a_larger_budget_keeps_beta_opt_steps(folder: Path) -> None:
    run = run_whole(folder / "beta", *args_of("dqn", "prioritized", "CartPole-v1"), *MODES["sync"])
    assert run.config.buffer.beta_opt_steps == 24
    assert main([f"resume={run.path}", "trainer.max_opts=30"]) == 0
    assert Run(run.path).config.buffer.beta_opt_steps == 24
