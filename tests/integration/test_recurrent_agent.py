"""An agent with a hidden state per environment trains, evaluates, resumes and loads: see `tests/recurrent.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from border_cli import load
from border_cli.actors.sampler import RowProcessor, Sampler
from border_cli.config.schema import EnvConfig
from border_cli.core.types import concat_items
from border_cli.envs.group import GymEnv
from border_cli.training.evaluators import EpisodeRunner
from tests import recurrent
from tests.faults.amounts import sampled
from tests.interrupted import assert_same_bits, run_interrupted, run_whole
from tests.real_runs import train
from tests.recurrent import HIDDEN, Cue, RecurrentConfig

ENV = EnvConfig(entry_point="tests.recurrent:Cue")
ARGS = (
    *("plugins=[tests.recurrent]", "agent=recurrent", "env=gym", "env.entry_point=tests.recurrent:Cue"),
    *("buffer.capacity=500", "buffer.n_step=1", "actor_manager.envs_per_actor=2"),
)
LEARNS = (
    *("agent.hidden=[]", "agent.lr=0.02", "agent.epsilon_env_steps=500", "agent.target_interval=20"),
    *(
        "trainer.max_opts=6000",
        "trainer.stop_return=1.0",
        "trainer.eval_interval=250",
        "evaluator.episodes=20",
    ),
)


def hidden_before(t: int, cue: float) -> list[float]:
    """Return h_{t-1}: the sums of cue and time (0, 1/4, …) over the earlier env steps, halved once per env step."""
    seen = [(cue if i == 0 else 0.0, i / Cue.length) for i in range(t)]
    return [sum(x[c] * 0.5 ** (t - 1 - i) for i, x in enumerate(seen)) for c in (0, 1)]


def test_the_hidden_state_is_stored_with_each_row_and_reset_with_each_episode() -> None:
    env = GymEnv(ENV, 2)
    agent = recurrent.make_agent(RecurrentConfig(hidden=[]), env.spec, 0)
    processor = RowProcessor(env.spec, 2, recurrent.extra_columns(RecurrentConfig(), env.spec))
    sampler = Sampler(env, agent, processor, lambda env, episode: None if episode else env + 1)
    sampler.begin()
    parts = [
        sampler.sample([0, 1] if i % 3 else [i % 2], 0) for i in range(60)
    ]  # sometimes one environment, sometimes both
    rows = concat_items(parts)
    checked = 0
    for env_ix in (0, 1):
        mine = np.flatnonzero(rows["env"] == env_ix)
        cue = 0.0
        for obs, final, hidden in zip(
            rows["obs"][mine], rows["final"][mine], rows[HIDDEN][mine], strict=True
        ):
            t = round(obs[1] * Cue.length)
            cue = obs[0] if t == 0 else cue
            assert hidden.tolist() == ([0.0, 0.0] if final else hidden_before(t, cue))
            checked += 1
    assert checked > 100


def test_an_evaluation_carries_the_hidden_state_of_each_environment() -> None:
    env = GymEnv(ENV, 3)
    policy = recurrent.make_policy(RecurrentConfig(hidden=[]), env.spec, 0)
    arrays = policy.model_info().arrays
    for array in arrays.values():
        array[...] = 0.0
    arrays["layers.0.weight"][1, 2] = 1.0  # the value of action 1 is the decayed cue, that of action 0 is 0
    evaluation = EpisodeRunner(env, 100, lambda: False).evaluate(policy, 0, range(20))
    assert evaluation is not None
    assert evaluation.returns == (1.0,) * 20


def test_it_learns_a_task_that_needs_memory_and_its_loaded_model_solves_it(workplace: Path) -> None:
    run = train(*ARGS, *LEARNS, "n_actors=2")
    assert run.summary["best_score"]["mean"] == 1.0
    model, env = load(run.path, plugins=["tests.recurrent"]), Cue()
    for seed in range(10):
        obs, over, total = env.reset(seed=seed)[0], False, 0.0
        model.begin_episode()
        while not over:
            obs, reward, over, _, _ = env.step(model.sample(obs))
            total += reward
        assert total == 1.0


OF_OURS = ("agent.sequence_length=3", "agent.burn_in=2", "agent.gru=8", "agent.batch_size=8")
AGENTS = {"plugin": (), "r2d2": ("agent=r2d2", "buffer.n_step=2", *OF_OURS)}


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("mode", sampled(["trainer.lockstep=true", "trainer=sync"], 2))
def test_a_resumed_run_equals_the_uninterrupted_one(workplace: Path, mode: str, agent: str) -> None:
    args = (*ARGS, mode, "trainer.max_opts=40", "trainer.save_interval=15", *AGENTS[agent])
    whole = run_whole(workplace / "whole", *args)
    assert_same_bits(run_interrupted(workplace / "resumed", *args, at=21), whole)
