"""Sync and lockstep repeat their bits: every agent with every buffer, several environments, any number of actors.

Each run is stopped by SIGTERM at an opt step drawn from the printed seed, then resumed. The result must equal that of the
uninterrupted run, which it can only if the same seed gives the same bits. TEST_FULL=1 stops the runs of CELLS ten times.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import gymnasium
import pytest

from border_cli.core.errors import UsageError
from border_cli.envs.gym_spaces import env_spec
from tests.faults.amounts import FULL, sampled, seeded, times
from tests.faults.processes import ROOT
from tests.interrupted import assert_same_bits, run_interrupted, run_whole
from tests.kinds import AGENTS, BUFFERS
from tests.real_runs import Run, known_to, tiny

ENVIRONMENTS = ("CartPole-v1", "Pendulum-v1")
"""Each agent trains in the first of these whose spaces it accepts."""
PAIR = (
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


def args_of(agent: str, buffer: str) -> tuple[str, ...]:
    groups = (f"agent={agent}", f"buffer={buffer}", "env=gym", f"env.id={env_of(agent)}")
    return *groups, *known_to(agent, *PAIR)


FRAMES = (
    *("agent=rainbow", "buffer=prioritized", "env=catch", "buffer.n_step=3", "agent.channels=[4]"),
    *known_to("rainbow", *PAIR),
)
"""Observations are stacks of frames; the replay stores single frames."""
RESIDUAL = (
    *("agent=btr", "buffer=prioritized", "env=catch", "env.screen_size=40", "agent.channels=[4]"),
    *("agent.batch_size=16", "agent.hidden=[16]", *known_to("btr", *PAIR)),
)
"""Impala's network with spectral norms, Munchausen targets, and both noisy layers and ε explore."""
CORRELATED = (
    *(*args_of("sac", "uniform"), "agent.exploration=state_dependent", "agent.noise_interval=7"),
    *("agent.critics=3", "agent.critic_subset=2", "agent.norm=layer", "agent.critic_dropout=0.1"),
)
"""Exploration noise that lasts several env steps and is restored with its actor, and random critics without some units."""
HINDSIGHT = (
    *(
        "agent=dqn",
        "buffer=uniform",
        "buffer.her=future",
        "env=gym",
        "env.entry_point=tests.goal_envs:BitFlip",
    ),
    *known_to("dqn", *PAIR),
)
"""Rewards of other goals are computed in the learner."""
PAIRS = {f"{a}, {b}": args_of(a, b) for a, b in product(sorted(AGENTS), sorted(BUFFERS))} | {
    "frames": FRAMES,
    "residual blocks": RESIDUAL,
    "hindsight": HINDSIGHT,
    "correlated noise": CORRELATED,
}
OF_PAIRS = {f"{pair}, {mode}": (*PAIRS[pair], *MODES[mode]) for pair, mode in product(PAIRS, MODES)}
OF_PAIRS.pop("correlated noise, sync")  # the learner keeps that noise as it keeps any generator

CELL = (
    "trainer.lockstep=true",
    "trainer.max_opts=90",
    "trainer.eval_interval=32",
    "trainer.save_interval=25",
    "trainer.record_interval=20",
    "evaluator.max_episode_steps=40",  # an evaluation must not take longer than training
    "agent.target_interval=24",
    "agent.epsilon_env_steps=200",
    "buffer.capacity=120",
    "seed=5",
)
SHORT = "env.max_episode_steps=17"
"""Makes episodes end within these short runs."""
CELLS = {
    "cartpole, 1": "actor_manager.envs_per_actor=3 trainer.opt_interval=0.5 trainer.lockstep_steps=2",
    "cartpole, 3": "evaluator=process trainer.opt_interval=2.5 trainer.lockstep_steps=5",
    "cartpole, 8": "buffer.n_step=3 agent.reward_clip=0.5",
    "acrobot, 1": f"{SHORT} buffer.n_step=3 trainer.opt_interval=3 trainer.lockstep_steps=4",
    "acrobot, 3": f"{SHORT} actor_manager.envs_per_actor=2 trainer.opt_interval=0.7",
    "acrobot, 8": f"{SHORT} evaluator=process trainer.opt_interval=4 trainer.lockstep_steps=3",
    "lunarlander, 1": (
        "env.kwargs.enable_wind=true env.kwargs.wind_power=19 evaluator=process trainer.opt_interval=2"
    ),
    "lunarlander, 3": (
        f"{SHORT} env.kwargs.gravity=-4 buffer.n_step=3 actor_manager.envs_per_actor=2 trainer.opt_interval=2 "
        "trainer.lockstep_steps=3"
    ),
    "lunarlander, 8": (
        f"{SHORT} env.kwargs.enable_wind=true env.kwargs.turbulence_power=0.5 actor_manager.envs_per_actor=2 "
        "trainer.opt_interval=5 trainer.lockstep_steps=7"
    ),
}
"""Arguments per environment and number of actors. Together the cells use every kind of option."""


def args_of_cell(name: str) -> tuple[str, ...]:
    env, n_actors = name.split(", ")
    ladder = () if n_actors == "1" else ("agent.epsilon_ladder=7",)  # refused with one actor
    return f"env={env}", f"n_actors={n_actors}", *CELL, *ladder, *CELLS[name].split()


OF_CELLS = {name: args_of_cell(name) for name in CELLS}
CASES = OF_PAIRS | OF_CELLS


# test_every_agent.py and test_every_buffer.py check each agent and each buffer in one process
@pytest.mark.parametrize("name", [*sampled(list(OF_PAIRS), 22), *sampled(list(OF_CELLS), 9)])
def test_g1_g2_a_resumed_run_has_the_bits_of_the_uninterrupted_one(folder: Path, name: str) -> None:
    args, rng = CASES[name], seeded(name)
    whole = run_whole(folder / name, *args)
    assert {"agent/q_mean", "train/episode_return", "eval/return_mean"} <= {
        metric for record in whole.records for metric in record
    }
    parts = times(1, 10) if name in CELLS else 1
    for i in range(parts):
        at = 1 + (whole.counts[0] - 1) * i // parts + rng.randrange((whole.counts[0] - 1) // parts)
        print(f"stopped at opt step {at}")
        run = run_interrupted(folder / f"{name}, {i}", *args, at=at)
        assert_same_bits(run, whole)
        assert run.summary["exact"] is True
        assert all(actor["exact"] for actor in run.summary["actors"])
        assert len(run.json("provenance.json")["launches"]) == 2


@pytest.mark.skipif(not FULL, reason="make test-full: it starts an interpreter, with other hashes")
def test_g1_another_process_with_other_hashes_of_strings_has_the_same_bits(folder: Path) -> None:
    """The environment draws in each reset and env step, and some saves come between two opt steps for one env step."""
    args = ("trainer=sync", "env=gym", "env.id=Blackjack-v1", "actor_manager.envs_per_actor=3", "seed=11")
    args += ("buffer.n_step=3", "trainer.opt_interval=0.5", "trainer.max_opts=70", "trainer.save_interval=13")
    here = run_whole(folder / "here", *args, "trainer.eval_interval=50")
    words = [*tiny(*args, "trainer.eval_interval=50"), "hydra.run.dir=there"]
    program = (
        "import json, sys; from border_cli.cli.train import main; sys.exit(main(json.loads(sys.argv[1])))"
    )
    subprocess.run(
        [sys.executable, "-c", program, json.dumps(words)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "2"},
        check=True,
        timeout=400,
    )
    elsewhere = Run(folder / "there")
    assert here.json("provenance.json")["run_id"] != elsewhere.json("provenance.json")["run_id"]
    assert_same_bits(here, elsewhere)
