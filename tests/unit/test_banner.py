"""The banner before the start of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from border_cli.agents.dqn.config import DqnConfig
from border_cli.config.schema import EnvConfig, PresetConfig, TrainConfig
from border_cli.display.banner import banner, preset_note
from border_cli.replay.config import PrioritizedConfig

RUN = Path("runs/2026-11-21/10-15-00.123_dqn_cartpole")


def config(**changes: object) -> TrainConfig:
    values: dict[str, object] = {"agent": DqnConfig(), "env": EnvConfig(id="CartPole-v1")}
    return TrainConfig(**(values | changes))  # type: ignore[arg-type]


def lines_of(c: TrainConfig, overrides: dict[str, str] | None = None, width: int = 100) -> list[str]:
    return banner(c, overrides or {}, 4_000_000, RUN, width)


def differences(c: TrainConfig, overrides: dict[str, str] | None = None) -> tuple[str | None, str | None]:
    """Return the lines `typed` and `changed`, None if the banner does not have them."""
    lines = {line[:9].strip(): line[9:] for line in lines_of(c, overrides)[1:]}
    return lines.get("typed"), lines.get("changed")


def test_the_complete_banner() -> None:
    c = config(n_actors=8)
    c.agent = DqnConfig(lr=2.3e-3, atoms=21)
    c.trainer.opt_interval = 2.0
    c.preset = PresetConfig("dqn_cartpole", "CartPole-v1", "mean return of at least 475")
    lines = lines_of(c, {"agent": "dqn", "env": "cartpole", "n_actors": "8"})
    assert lines[0].startswith("border-cli ")
    assert lines[0].endswith(
        ": dqn on CartPole-v1, async with 8 actors, device cpu, seed 0, not reproducible"
    )
    assert lines[1:] == [
        "preset   dqn_cartpole: mean return of at least 475; 2 other values, which --cfg job shows",
        "budget   50,000 env steps; 2 env steps per opt step after 1,000 env steps of warm-up",
        "typed    agent=dqn  env=cartpole  n_actors=8",
        "changed  agent.atoms=21",
        "replay   3.8 MiB for 100,000 rows, part of each checkpoint",
        "machine  processes: 9, compute threads: 9",
        "run      runs/2026-11-21/10-15-00.123_dqn_cartpole",
    ]


def test_typed_values_are_shown_once_even_if_they_are_defaults() -> None:
    assert differences(config()) == (None, None)
    c = config(agent=DqnConfig(lr=1e-3, double=False))
    typed = {"agent.lr": "1e-3", "agent.double": "false"}
    assert differences(c, typed) == ("agent.lr=1e-3  agent.double=false", None)
    c = config(plugins=["a", "b"])
    c.env.kwargs = {"sutton_barto_reward": True}
    c.trainer.eval_interval = None
    assert differences(c, {"env.kwargs.sutton_barto_reward": "true"}) == (
        "env.kwargs.sutton_barto_reward=true",
        "trainer.eval_interval=null  plugins=[a,b]",
    )
    assert differences(config(n_actors=4), {"n_actors": "auto"}) == ("n_actors=auto", None)
    assert differences(config(seed=3), {"seeded.by": "me"}) == ("seeded.by=me", "seed=3")
    c = config(buffer=PrioritizedConfig())
    c.evaluator.type = "process"
    assert differences(c) == (None, "buffer=prioritized  evaluator=process")
    assert differences(c, {"buffer": "prioritized", "evaluator": "process", "agent": "dqn"}) == (
        "buffer=prioritized  evaluator=process  agent=dqn",
        None,
    )


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"max_env_steps": None, "max_opts": 1}, "1 opt step; 1 env step per opt step"),
        (
            {"max_time": 3_600.0, "stop_return": 475.0},
            "50,000 env steps or 1:00:00 after the start or a mean return of 475.0; ",
        ),
        ({"opt_interval": None}, "50,000 env steps; ratio not enforced after"),
    ],
)
def test_budget(changes: dict[str, object], text: str) -> None:
    c = config()
    for name, value in changes.items():
        setattr(c.trainer, name, value)
    assert any(line.startswith(f"budget   {text}") for line in lines_of(c))


@pytest.mark.parametrize(
    ("trainer", "lockstep", "note"),
    [("async", False, ", not reproducible"), ("async", True, ""), ("sync", False, "")],
)
def test_g4_the_banner_says_if_a_run_is_not_reproducible(trainer: str, lockstep: bool, note: str) -> None:
    c = config()
    c.trainer.type, c.trainer.lockstep = trainer, lockstep
    assert lines_of(c)[0].endswith(f"seed 0{note}")


@pytest.mark.parametrize(
    ("trainer", "text"),
    [("sync", "sync with 4 environments"), ("async", "async with 2 actors of 4 environments")],
)
def test_environments_are_counted(trainer: str, text: str) -> None:
    c = config(n_actors=2)
    c.trainer.type, c.actor_manager.envs_per_actor = trainer, 4
    assert text in lines_of(c)[0]


def test_long_rows_are_wrapped_under_their_label() -> None:
    c = config()
    c.agent = DqnConfig(
        lr=0.5, adam_eps=1e-4, double=False, loss="mse", target_interval=1, epsilon_final=0.5, target_tau=0.5
    )
    lines = lines_of(c, width=60)
    at = next(i for i, text in enumerate(lines) if text.startswith("changed"))
    assert lines[at + 1].startswith(" " * 9) and "=" in lines[at + 1]
    assert max(len(text) for text in lines) <= 60


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"preset": PresetConfig("mine", "CartPole-v1")}, "mine"),
        ({}, "none in use; preset=dqn_cartpole was tuned for CartPole-v1"),
        (
            {"env": EnvConfig(id="ALE/Pong-v5")},
            "none in use; env=pong has a preset and Atari's preprocessing",
        ),
        ({"env": EnvConfig(id="Foo-v0")}, "none for dqn on Foo-v0: the defaults stand"),
        ({"env": EnvConfig(entry_point="mine:Maze")}, "none for dqn on mine:Maze: the defaults stand"),
    ],
)
def test_the_preset_in_use_or_an_available_one_is_shown(changes: dict[str, object], note: str) -> None:
    assert preset_note(config(**changes)) == note
