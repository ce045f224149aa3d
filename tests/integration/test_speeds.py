"""What is measured before a run, or instead of one: `auto`, `plan=true` and border-bench."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from border_cli import compose
from border_cli.agents.sac.agent import SacPolicy
from border_cli.cli import bench
from border_cli.cli.train import main
from border_cli.config.throughput import Measured
from border_cli.run import probes
from border_cli.runtime import machine
from border_cli.runtime.stopping import StopFlag
from tests.real_runs import Run, tiny, train

SHORT = ("env=cartpole", "trainer.max_opts=40", "trainer.eval_interval=null")
AUTO = ("n_actors=auto", "actor_manager.envs_per_actor=auto")
SLOW = ("env=gym", "env.entry_point=tests.counting:CountingEnv", "env.kwargs.make_s=0.5")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PLAN_S", "AUTO_S"):
        monkeypatch.setattr(probes, name, 0.02)


def cells(text: str) -> dict[str, str]:
    """Label and value of each row of a table."""
    rows = [line.strip("|").split("|") for line in text.splitlines() if "|" in line]
    return {row[0].strip(): row[1].strip() for row in rows}


def rate(cell: str) -> float:
    """The number that `format.number` has shown: 31,000 or 12.3."""
    return float(cell.partition(" ")[0].replace(",", "").replace("M", "e6"))


def test_a_run_does_what_its_plan_says_and_the_plan_writes_no_file(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = (
        "env=cartpole",
        "trainer.max_env_steps=300",
        "trainer.eval_interval=100",
        "trainer.save_interval=90",
        "evaluator=inline",  # beside a fast learner, models may be left out
    )
    assert main(tiny(*args, "plan=true")) == 0
    text, doing = capsys.readouterr()
    assert [line.partition(" ")[0] for line in doing.splitlines()] == ["making", "measuring"]
    assert [path.name for path in workplace.iterdir() if path.name != "state"] == []
    rows, run = cells(text), train(*args)
    about = "\ninput    obs (4,) float32: flattened\n"
    assert about in text and about in (run.path / "train.log").read_text(encoding="utf-8")
    assert (rows["opt steps"], rows["env steps"]) == tuple(str(n) for n in run.counts)
    assert int(rows["evaluations"]) == len(run.steps("eval/return_mean"))
    assert int(rows["checkpoints written"]) == len(run.saves)
    assert all(rate(rows[f"{side} steps/s"]) > 0 for side in ("env", "opt"))
    newest = run.path / "checkpoints" / run.checkpoints[-1]
    real = sum(file.stat().st_size for file in newest.iterdir())
    kibibytes, unit = rows["one checkpoint"].split()
    assert unit == "KiB" and real <= float(kibibytes) * 1024 <= real + 2**17


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ((*SHORT, "buffer.capacity=1e12"), 3, "of memory, and"),
        ((*SHORT, "-m", "seed=1,2"), 2, "plan=true shows one run, and -m starts several"),
        (  # the preflight takes one step
            (
                "env=gym",
                "env.entry_point=tests.envs:Leaving",
                "env.kwargs.leaves_at=2",
                "trainer.max_opts=40",
            ),
            2,
            "error: an actor cannot be tried",
        ),
    ],
    ids=["too large", "a sweep", "an environment that raises later"],
)
def test_a_plan_is_refused(
    workplace: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], code: int, message: str
) -> None:
    assert main(tiny(*args, "plan=true")) == code
    assert message in capsys.readouterr().err


def test_bench_measures_each_part_and_its_recommendation_can_be_typed(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(tiny(*SHORT, "agent.compile=false", "actor_manager.envs_per_actor=3")) == 0
    text = capsys.readouterr().out
    rows = cells(text)
    parts = [f"one actor, {n} environment{'s' * (n > 1)}" for n in (1, 3, 16)]
    assert all(rate(rows[part]) > 0 for part in (*parts, "learner, eager, 1 thread"))
    assert rate(rows["env steps/s"]) == pytest.approx(rate(rows["opt steps/s"]), rel=0.01)  # opt_interval=1
    words = text.splitlines()[-1].split()[1:]
    assert [word.partition("=")[0] for word in words] == [
        "n_actors",
        "actor_manager.envs_per_actor",
        "trainer.opt_interval",
    ]
    assert compose("env=cartpole", *words).trainer.opt_interval == 1
    assert [path.name for path in workplace.iterdir() if path.name != "state"] == []


def test_bench_measures_an_environment_with_masks_and_categories(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It raises when it gets an action that its mask forbids."""
    args = ("env=gym", "env.entry_point=tests.envs:MaskedGrid", "trainer.eval_interval=null")
    assert bench.main(tiny(*args, "agent.compile=false")) == 0
    assert rate(cells(capsys.readouterr().out)["one actor, 16 environments"]) > 0


def test_an_actor_is_measured_as_it_acts_in_most_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with the random actions at the start, and with the copied weights that actors use once they were sent some."""
    seen: list[bool] = []
    normal = SacPolicy._normal

    def noted(self: SacPolicy, env_ix: Sequence[int]) -> Any:
        assert self._arrays is not None
        weight = self._arrays._lists["layers"][0][2][0]
        seen.append(not np.shares_memory(weight, self.params.numpy()))
        return normal(self, env_ix)

    monkeypatch.setattr(SacPolicy, "_normal", noted)
    config = compose("agent=sac", "env=pendulum", "agent.random_env_steps=1000", "agent.hidden=[4]")
    ((acted, _),) = probes.act_alone([config], 0.0)
    assert acted > 0 and seen and all(seen)


def test_an_actor_whose_environment_waits_keeps_less_of_a_cpu_busy() -> None:
    counting = ["env=gym", "env.entry_point=tests.counting:CountingEnv"]
    with StopFlag() as stop:
        _, waits = probes.acting(compose(*counting, "env.kwargs.step_s=0.02"), [1], 0.1, stop)
        _, computes = probes.acting(compose(*counting), [1], 0.1, stop)
    assert waits < 0.5 < computes


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["plan=true"],
            "plan has no effect in border-bench, which trains nothing\nallowed: border-train plan=…",
        ),
        (["agent.typo=1"], "agent.typo: there is no such key"),
        (["-m", "seed=1,2"], "there is no flag -m"),
    ],
)
def test_mistakes_of_bench(
    workplace: Path, capsys: pytest.CaptureFixture[str], args: list[str], message: str
) -> None:
    assert bench.main(args) == 2
    assert message in capsys.readouterr().err


def test_the_installed_command() -> None:
    command = [str(Path(sys.executable).parent / "border-bench"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("border-bench measures each part of a run alone")


def test_a_run_stores_what_auto_became_and_says_why(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with four CPUs; the first run is really measured."""
    measured: list[tuple[Measured, tuple[int, ...]]] = []
    measure = probes.measure

    def noted(config: Any, spec: Any, envs: Any, *rest: Any) -> Measured:
        measured.append((measure(config, spec, envs, *rest), tuple(envs)))
        return Measured({1: 1_000.0, 16: 1_000.0}, {}, 1_500.0)

    def numbers(run: Run) -> tuple[int | None, int | None]:
        return run.config.n_actors, run.config.actor_manager.envs_per_actor

    monkeypatch.setattr(probes, "measure", noted)
    monkeypatch.setattr(machine, "cpus", lambda: 4)
    run = train(*SHORT, *AUTO)
    ((real, envs),) = measured
    assert envs == (1, 16) and min(*real.acting.values(), real.opt_steps) > 0
    # 1,500 opt steps/s need 1,500·1.1 env steps/s; an actor takes 1,000 with any number of environments
    assert numbers(run) == (2, 1)
    log = (run.path / "train.log").read_text(encoding="utf-8")
    assert "auto     n_actors=2 envs_per_actor=1: they can take 2,000 env steps/s" in log
    assert {actor["actor"] for actor in run.summary["actors"]} == {0, 1}
    assert main(["resume=runs/latest", "trainer.max_opts=50"]) == 0
    assert (len(measured), numbers(Run(run.path))) == (1, (2, 1))


def test_a_line_shows_that_environments_are_still_being_made(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the run on stderr, and while actors start by the view."""
    for module in ("border_cli.run.preflight", "border_cli.display.views"):
        monkeypatch.setattr(f"{module}.SILENCE_S", 0.1)
    args = tiny(*SLOW, "trainer.max_opts=5", "trainer.eval_interval=null", "recorder.console=plain")
    assert main(args) == 0
    shown = capsys.readouterr()
    assert shown.err.count("making the environment, for ") >= 2
    assert shown.out.count("phase=starting") >= 3


def test_the_limit_of_making_an_environment_is_named(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("border_cli.config.resolve._MAKING_S", 0.2)
    args = tiny(*SLOW, "trainer=sync", "trainer.max_opts=5", "trainer.eval_interval=null")
    assert main([*args, "actor_manager.start_timeout_s=0.2"]) == 2
    error = capsys.readouterr().err
    assert "making the environment took longer than 0.2 s" in error
    assert "allowed: a higher actor_manager.start_timeout_s" in error
