"""What is said before the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from border_cli.agents.dqn.config import DqnConfig
from border_cli.config.schema import EnvConfig, PresetConfig, TrainConfig
from border_cli.recorders.banner import banner, preset_note

RUN = Path("runs/2026-11-21/10-15-00.123_dqn_cartpole")


def config(**changes: object) -> TrainConfig:
    values: dict[str, object] = {"agent": DqnConfig(), "env": EnvConfig(id="CartPole-v1")}
    return TrainConfig(**(values | changes))  # type: ignore[arg-type]


def lines_of(c: TrainConfig, typed: dict[str, str] | None = None, width: int = 100) -> list[str]:
    return banner(c, typed or {}, 4_000_000, 10, 9, "none", RUN, width)


def line(lines: list[str], label: str) -> str | None:
    """Text behind a label; None if there is no such line."""
    return next((text[len(label) :].strip() for text in lines if text.startswith(f"{label} ")), None)


def test_the_banner_as_a_whole() -> None:
    c = config(n_actors=8)
    c.agent = DqnConfig(lr=2.3e-3)
    c.trainer.opt_interval = 2.0
    c.preset = PresetConfig("dqn_cartpole", "CartPole-v1", "mean return of at least 475")
    typed = {"agent": "dqn", "env": "cartpole", "n_actors": "8"}
    lines = banner(c, typed, 4_000_000, 10, 9, preset_note(c), RUN)
    assert lines[0].startswith("border-cli ")
    assert lines[0].endswith(
        ": dqn on CartPole-v1, async with 8 actors, device cpu, seed 0, not reproducible"
    )
    assert lines[1:] == [
        "preset   dqn_cartpole: mean return of at least 475",
        "budget   50,000 env steps; 2 env steps per opt step after 1,000 env steps of warm-up",
        "typed    n_actors=8",
        "changed  agent.lr=0.0023  trainer.opt_interval=2.0",
        "replay   3.8 MiB for 100,000 rows, part of each checkpoint",
        "machine  10 processes, 9 compute threads",
        "run      runs/2026-11-21/10-15-00.123_dqn_cartpole",
    ]


def test_defaults_have_nothing_typed_or_changed() -> None:
    lines = lines_of(config())
    assert line(lines, "typed") is None and line(lines, "changed") is None


def test_what_was_typed_is_shown_even_if_it_is_the_default_and_never_twice() -> None:
    c = config()
    c.agent = DqnConfig(lr=1e-3, double=False)
    lines = lines_of(c, {"agent.lr": "1e-3", "agent.double": "false"})
    assert line(lines, "typed") == "agent.lr=0.001  agent.double=false"
    assert line(lines, "changed") is None


def test_values_are_shown_as_they_are_typed() -> None:
    c = config(plugins=["a", "b"])
    c.env.kwargs = {"sutton_barto_reward": True}
    c.trainer.eval_interval = None
    lines = lines_of(c, {"env.kwargs.sutton_barto_reward": "true"})
    assert line(lines, "typed") == "env.kwargs={sutton_barto_reward:true}"
    assert line(lines, "changed") == "trainer.eval_interval=null  plugins=[a,b]"


def test_a_key_is_not_typed_because_another_begins_like_it() -> None:
    c = config(seed=3)
    assert line(lines_of(c, {"seeded.by": "me"}), "changed") == "seed=3"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"max_env_steps": None, "max_opts": 1}, "1 opt step; 1 env step per opt step"),
        (
            {"max_time": 3_600.0, "stop_return": 475.0},
            "50,000 env steps or 1:00:00 or a mean return of 475.0; ",
        ),
        ({"opt_interval": None}, "50,000 env steps; free-running after"),
    ],
)
def test_budget(changes: dict[str, object], text: str) -> None:
    c = config()
    for name, value in changes.items():
        setattr(c.trainer, name, value)
    assert (line(lines_of(c), "budget") or "").startswith(text)


@pytest.mark.parametrize(
    ("trainer", "lockstep", "said"), [("async", False, True), ("async", True, False), ("sync", False, False)]
)
def test_g4_a_seed_that_does_not_give_the_same_bits_is_no_promise(
    trainer: str, lockstep: bool, said: bool
) -> None:
    c = config()
    c.trainer.type, c.trainer.lockstep = trainer, lockstep
    assert lines_of(c)[0].endswith("seed 0, not reproducible" if said else "seed 0")


def test_sync_names_its_environments() -> None:
    c = config()
    c.trainer.type = "sync"
    c.actor_manager.envs_per_actor = 4
    assert "sync with 4 environments" in lines_of(c)[0]


def test_several_environments_per_actor() -> None:
    c = config(n_actors=2)
    c.actor_manager.envs_per_actor = 4
    assert "async with 2 actors of 4 environments" in lines_of(c)[0]


def test_long_rows_are_folded_under_their_label() -> None:
    c = config()
    c.agent = DqnConfig(
        lr=0.5, adam_eps=1e-4, double=False, loss="mse", target_interval=1, epsilon_final=0.5, target_tau=0.5
    )
    lines = lines_of(c, width=60)
    at = next(i for i, text in enumerate(lines) if text.startswith("changed"))
    assert lines[at + 1].startswith(" " * 9) and "=" in lines[at + 1]
    assert max(len(text) for text in lines) <= 60


def test_a_preset_in_use() -> None:
    assert preset_note(config(preset=PresetConfig("mine", "CartPole-v1"))) == "mine"


def test_a_preset_that_would_be_there() -> None:
    assert preset_note(config()) == "none in use; preset=dqn_cartpole was tuned for CartPole-v1"


@pytest.mark.parametrize(
    ("env", "name"),
    [(EnvConfig(id="Foo-v0"), "Foo-v0"), (EnvConfig(entry_point="mine:Maze"), "mine:Maze")],
)
def test_no_preset_at_all(env: EnvConfig, name: str) -> None:
    assert preset_note(config(env=env)) == f"none for dqn on {name}: the defaults stand"
