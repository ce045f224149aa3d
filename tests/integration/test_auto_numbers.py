"""Real runs with `auto` for actors and environments, with speeds that are given instead of measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from border_cli.cli.train import main
from border_cli.config.throughput import Measured
from border_cli.run import probes
from border_cli.runtime import machine
from tests.real_runs import Run, tiny, train

AUTO = ("n_actors=auto", "actor_manager.envs_per_actor=auto")
SHORT = ("env=cartpole", "trainer.max_opts=40", "trainer.eval_interval=null")


def numbers(run: Run) -> tuple[int | None, int | None]:
    return run.config.n_actors, run.config.actor_manager.envs_per_actor


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Which environments were to be measured, on a machine with four CPUs."""
    calls: list[tuple[Any, ...]] = []

    def measure(config: Any, spec: Any, envs: Any, *_: Any) -> Measured:
        calls.append(tuple(envs))
        return Measured({1: 1_000.0, 16: 1_000.0}, 1_500.0)

    monkeypatch.setattr(probes, "measure", measure)
    monkeypatch.setattr(machine, "cpus", lambda: 4)
    return calls


def test_a_run_stores_what_was_decided_and_says_why(workplace: Path, asked: list[Any]) -> None:
    run = train(*SHORT, *AUTO)
    assert asked == [(1, 16)]
    # 1,500 opt steps/s need 1,500·1.1 env steps/s; an actor takes 1,000 with any number of environments
    assert numbers(run) == (2, 1)
    log = (run.path / "train.log").read_text(encoding="utf-8")
    assert "auto     n_actors=2 envs_per_actor=1: they can take 2,000 env steps/s" in log
    assert "async with 2 actors" in log
    assert {actor["actor"] for actor in run.summary["actors"]} == {0, 1}
    assert main(["resume=runs/latest", "trainer.max_opts=50"]) == 0
    assert (len(asked), numbers(Run(run.path))) == (1, (2, 1))
    assert main(tiny(*SHORT, *AUTO, "trainer.max_opts=60", "resume=auto")) == 0  # that run is done: a new one
    assert (len(asked), Run(Path("runs/latest").resolve()).path == run.path) == (2, False)


def test_what_is_really_measured(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "AUTO_S", 0.01)
    found: list[Measured] = []
    measure = probes.measure

    def noted(*args: Any) -> Measured:
        found.append(measure(*args))
        return found[-1]

    monkeypatch.setattr(probes, "measure", noted)
    run = train(*SHORT, *AUTO)
    (measured,) = found
    assert set(measured.acting) == {1, 16}
    speeds = [*measured.acting.values(), measured.learning]
    assert min(speeds) > 0
    assert None not in numbers(run)
