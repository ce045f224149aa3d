"""Real runs with `auto` for actors and environments, with speeds that are given instead of measured."""

from __future__ import annotations

import json
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


def test_resume_auto_finds_the_run_and_keeps_its_numbers(workplace: Path, asked: list[Any]) -> None:
    args = ("env=cartpole", "trainer.max_opts=40", "trainer.eval_interval=null", *AUTO)
    run = train(*args)
    summary = run.summary | {"status": "running"}
    (run.path / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    assert main(tiny(*args[:1], "trainer.max_opts=50", *args[2:], "resume=auto")) == 0
    assert len(asked) == 1
    assert Run(run.path).counts[0] == 50
    assert numbers(Run(run.path)) == (2, 1)


def test_fixed_numbers_are_not_measured(workplace: Path, asked: list[Any]) -> None:
    run = train(*SHORT)
    assert (asked, numbers(run)) == ([], (1, 1))


@pytest.mark.parametrize("mode", [("trainer=sync",), ("trainer.lockstep=true",)])
def test_reproducible_runs_measure_nothing_and_repeat_their_bits(
    workplace: Path, asked: list[Any], mode: tuple[str, ...]
) -> None:
    run = train(*SHORT, *AUTO, "threads=auto", *mode)
    plain = train(*SHORT, *mode, "threads=1")
    assert (asked, numbers(run), run.config.threads) == ([], (1, 1), 1)
    assert run.files("checkpoints") == plain.files("checkpoints") != {}


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


def test_auto_without_a_ratio_is_refused(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tiny(*SHORT, "n_actors=auto", "trainer.opt_interval=null")) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: trainer.opt_interval=null enforces no ratio, so no number of actors or environments is enough for `auto`",
        "allowed: a number of n_actors and of actor_manager.envs_per_actor, or of trainer.opt_interval",
    ]


def test_a_wrong_number_is_refused_with_auto_among_what_is_allowed(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(tiny(*SHORT, "threads=automatic")) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: threads: 'automatic' is of the wrong type",
        "allowed: a whole number >= 1, or auto (threads); torch threads of the learner; auto: the number with which this "
        "run is fastest, timed again and again; 1 where bits have to repeat",
    ]
