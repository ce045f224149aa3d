"""Every agent with every environment option: the pair trains, or is refused with a message."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from border_cli.cli.train import main
from border_cli.config.presets import conf_dir, env_ids
from tests.faults.amounts import FULL, sampled
from tests.kinds import AGENTS
from tests.real_runs import Run, known_to

CONTINUOUS = ("pendulum", "halfcheetah", "hopper", "walker2d", "ant", "humanoid")
CONTINUOUS += ("mountaincarcontinuous", "lunarlandercontinuous", "bipedalwalker")
NEEDS = {"gym": ("env.id=FrozenLake-v1",), "atari": ("env.id=ALE/Freeway-v5",)}
SMALL = (
    *("preset=none", "trainer=sync", "trainer.max_opts=20", "trainer.warmup_period=200"),
    *("trainer.eval_interval=null", "buffer.capacity=1000", "agent.hidden=[16]", "agent.batch_size=16"),
    *("agent.random_env_steps=100", "agent.quantiles=8", "agent.target_quantiles=8"),
    *("agent.sequence_length=8", "agent.burn_in=4"),
    *("checkpoint.replay=none", "recorder.tensorboard=false", "recorder.console=none"),
)
KINDS = ("cartpole", "gym", "catch", "pendulum", "halfcheetah")
"""One environment of each kind of spaces. `make test` tests every agent on these; dqn and sac on all others too."""
TESTED = [
    (agent, env)
    for agent, env in product(AGENTS, env_ids())
    if FULL or env in KINDS or agent in ("dqn", "sac")
]


def is_refused(pair: tuple[str, str]) -> bool:
    agent, env = pair
    return (agent in ("sac", "td3", "tqc", "crossq", "rsac", "flashsac")) != (env in CONTINUOUS)


def assert_trains(agent: str, env: str, *words: str) -> None:
    file = (conf_dir() / "env" / f"{env}.yaml").read_text(encoding="utf-8")
    channels = (
        ["agent.channels=[4]"] if env == "atari" or "- atari" in file or "preprocess: atari" in file else []
    )
    assert main([f"agent={agent}", f"env={env}", *NEEDS.get(env, ()), *words, *channels]) == 0
    run = Run(Path("runs/latest").resolve())
    assert run.counts[0] == 20
    assert run.records[-1]["agent/skipped_steps"] == 0


@pytest.mark.parametrize(("agent", "env"), sampled([pair for pair in TESTED if not is_refused(pair)], 13))
def test_a_pair_that_fits_trains(workplace: Path, agent: str, env: str) -> None:
    assert_trains(agent, env, *known_to(agent, *SMALL))


@pytest.mark.parametrize(("agent", "env"), sampled([pair for pair in TESTED if is_refused(pair)], 19))
def test_a_pair_that_does_not_fit_is_refused(
    workplace: Path, capsys: pytest.CaptureFixture[str], agent: str, env: str
) -> None:
    args = [f"agent={agent}", f"env={env}", *NEEDS.get(env, ()), "preset=none", "recorder.console=none"]
    assert main(args) == 2
    message, nearest, allowed = capsys.readouterr().err.splitlines()
    assert message.startswith(f"error: agent={agent} ")
    assert nearest.startswith("nearest: agent=")
    assert allowed.startswith("allowed: agent=")
    assert not Path("runs").exists()


def test_several_games_of_an_actor_train(workplace: Path) -> None:
    words = {"trainer=sync", "trainer.warmup_period=200"}
    small = [word for word in known_to("dqn", *SMALL) if word not in words]
    assert_trains("dqn", "pong", "actor_manager.envs_per_actor=3", "trainer.warmup_period=60", *small)
