"""`plan=true` prints what the run would do and use, and writes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import border_cli
from border_cli.agents.dqn.config import DqnConfig
from border_cli.cli.train import main
from border_cli.config.schema import EnvConfig, TrainConfig
from border_cli.core.errors import UsageError
from border_cli.run import probes
from border_cli.runtime.machine import available_memory
from tests.real_runs import tiny, train
from tests.unit.test_plan import cells

SHORT = ("env=cartpole", "trainer.max_opts=40", "trainer.eval_interval=null")


@pytest.fixture
def short_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "PLAN_S", 0.1)


@pytest.mark.parametrize("shape", [("n_actors=3",), ("trainer=sync", "threads=2")])
def test_a_plan_is_printed_and_no_file_is_written(
    workplace: Path, short_probe: None, capsys: pytest.CaptureFixture[str], shape: tuple[str, ...]
) -> None:
    assert main(tiny(*SHORT, *shape, "plan=true")) == 0
    text, doing = capsys.readouterr()
    assert [line.partition(" ")[0] for line in doing.splitlines()] == ["making", "measuring"]
    rows = cells(text)
    asynchronous = "n_actors=3" in shape
    assert text.startswith("border-cli ")
    assert (rows["opt steps"], rows["env steps"]) == ("40", "90")
    assert rows["processes"] == ("4" if asynchronous else "1")
    assert ("rings" in rows) == asynchronous
    assert all(float(rows[f"{side} alone"].replace(",", "")) > 0 for side in SIDES)
    assert [path.name for path in workplace.iterdir() if path.name != "state"] == []


SIDES = ("env steps/s of one actor", "opt steps/s of the learner")


def test_the_run_does_what_its_plan_says(
    workplace: Path, short_probe: None, capsys: pytest.CaptureFixture[str]
) -> None:
    args = (
        "env=cartpole",
        "trainer.max_env_steps=300",
        "trainer.eval_interval=100",
        "trainer.save_interval=90",
        "evaluator=inline",  # beside a fast learner, models may be left out
    )
    assert main(tiny(*args, "plan=true")) == 0
    text = capsys.readouterr().out
    rows, run = cells(text), train(*args)
    about = "\ninput    obs (4,) float32: flattened\n"
    assert about in text and about in (run.path / "train.log").read_text(encoding="utf-8")
    assert (rows["opt steps"], rows["env steps"]) == tuple(str(n) for n in run.counts)
    assert int(rows["evaluations"]) == len(run.steps("eval/return_mean"))
    assert int(rows["checkpoints written"]) == len(run.saves)
    newest = run.path / "checkpoints" / run.checkpoints[-1]
    real = sum(file.stat().st_size for file in newest.iterdir())
    kibibytes, unit = rows["one checkpoint"].split()
    assert unit == "KiB" and real <= float(kibibytes) * 1024 <= real + 2**17


def test_a_plan_is_refused_if_its_run_would_be(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tiny(*SHORT, "buffer.capacity=1e12", "plan=true")) == 3
    assert "of memory, and" in capsys.readouterr().err
    assert available_memory() is not None


def test_a_sweep_has_no_plan(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tiny(*SHORT, "-m", "plan=false,true")) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["error: plan=true shows one run, and --multirun starts several", "allowed: one of them"]
    assert not (workplace / "runs").exists()


def test_an_environment_that_raises_when_stepped_is_named(
    workplace: Path, short_probe: None, capsys: pytest.CaptureFixture[str]
) -> None:
    args = (
        "env=gym",
        "env.entry_point=tests.envs:Leaving",
        "+env.kwargs.leaves_at=2",  # the preflight takes one step
        "trainer.max_opts=40",
    )
    assert main(tiny(*args, "plan=true")) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: an actor cannot be tried")


def test_training_from_python_refuses_a_plan(workplace: Path) -> None:
    config = TrainConfig(agent=DqnConfig(), env=EnvConfig(id="CartPole-v1"), plan=True)
    with pytest.raises(UsageError, match="this function trains"):
        border_cli.train_async(config, "run")
    assert not (workplace / "run").exists()
