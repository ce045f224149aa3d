"""Real runs with `auto` for actors, environments and threads, with speeds that are given instead of measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from border_cli import probes
from border_cli.cli.train import main
from border_cli.config import resources, throughput
from border_cli.config.throughput import Measured
from tests.real_runs import Run, tiny, train

AUTO = ("n_actors=auto", "actor_manager.envs_per_actor=auto", "threads=auto")
SHORT = ("env=cartpole", "trainer.max_opts=40", "trainer.eval_interval=null")


def numbers(run: Run) -> tuple[int | None, int | None, int | None]:
    return run.config.n_actors, run.config.actor_manager.envs_per_actor, run.config.threads


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Which environments and threads were to be measured, on a machine with four CPUs."""
    calls: list[tuple[Any, ...]] = []

    def measure(config: Any, spec: Any, envs: Any, counts: Any, *_: Any) -> Measured:
        calls.append((tuple(envs), tuple(counts)))
        return Measured(
            {1: 1_000.0, 16: 1_000.0}, {n: {1: 1_000.0, 2: 1_500.0, 4: 1_500.0}[n] for n in counts}
        )

    monkeypatch.setattr(probes, "measure", measure)
    monkeypatch.setattr(resources, "cpus", lambda: 4)
    return calls


def test_a_run_stores_what_was_decided_and_says_why(
    workplace: Path, asked: list[Any], monkeypatch: Any
) -> None:
    monkeypatch.setattr(throughput, "SMALL_OPT_STEP", 1)
    run = train(*SHORT, *AUTO)
    assert asked == [((1, 16), (1, 2, 4))]
    # 1,500 opt steps/s need 1,500·1.1 env steps/s; an actor takes 1,000 with any number of environments
    assert numbers(run) == (2, 1, 2)
    log = (run.path / "train.log").read_text(encoding="utf-8")
    assert "auto     n_actors=2 envs_per_actor=1: they can take 2,000 env steps/s" in log
    assert "async with 2 actors" in log
    assert {actor["actor"] for actor in run.summary["actors"]} == {0, 1}
    assert main(["resume=runs/latest", "trainer.max_opts=50"]) == 0
    assert (len(asked), numbers(Run(run.path))) == (1, (2, 1, 2))
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
    assert numbers(Run(run.path)) == (2, 1, 1)


def test_small_networks_and_fixed_numbers_are_not_measured(workplace: Path, asked: list[Any]) -> None:
    run = train(*SHORT, "threads=auto")
    assert (asked, numbers(run)) == ([], (1, 1, 1))
    assert "threads=1: its opt steps are too small" in (run.path / "train.log").read_text(encoding="utf-8")


@pytest.mark.parametrize("mode", [("trainer=sync",), ("trainer.lockstep=true",)])
def test_reproducible_runs_measure_nothing_and_repeat_their_bits(
    workplace: Path, asked: list[Any], monkeypatch: pytest.MonkeyPatch, mode: tuple[str, ...]
) -> None:
    monkeypatch.setattr(throughput, "SMALL_OPT_STEP", 1)
    run = train(*SHORT, *AUTO, *mode)
    plain = train(*SHORT, *mode)
    assert (asked, numbers(run)) == ([], (1, 1, 1))
    assert run.files("checkpoints") == plain.files("checkpoints") != {}


def test_what_is_really_measured(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "SMALL_OPT_STEP", 1)
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
    assert set(measured.learning) == set(throughput.up_to(resources.cpus()))
    speeds = [*measured.acting.values(), *measured.learning.values(), measured.insert_s, measured.publish_s]
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
        "allowed: a whole number >= 1, or auto (threads); torch threads of the learner; auto: as many as make it clearly "
        "faster on the cores that the actors leave idle",
    ]
