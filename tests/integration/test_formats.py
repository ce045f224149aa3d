"""C9: every version of the checkpoint format that was ever released stays readable; a newer one is refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from border_cli.cli.eval import main as border_eval
from border_cli.cli.train import main as border_train
from border_cli.core.errors import ExitCode
from border_cli.runs.load import load
from tests.data.make_format_1 import ENV_STEPS, FORMAT_1, OPT_STEPS, make
from tests.real_runs import Run


@pytest.fixture
def run(workplace: Path) -> Run:
    """A copy of the stored run: CartPole, one hidden layer of eight units."""
    return Run(shutil.copytree(FORMAT_1, workplace / "run"))


def as_format_2(run: Run) -> None:
    for file in run.path.rglob("manifest.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"format_version": 2}))


def test_c9_format_1_is_loaded(run: Run) -> None:
    model = load(run.path, "last")
    assert model.opt_steps == OPT_STEPS
    actions = [model.sample(np.array([0.0, 0.0, angle, 0.0], np.float32)) for angle in (-0.2, 0.0, 0.2)]
    assert all(action in (0, 1) for action in actions)
    assert load(run.path).opt_steps == run.summary["best_score"]["opt_steps"]


def test_c9_format_1_is_judged(run: Run) -> None:
    assert border_eval([str(run.path), "checkpoint=last", "episodes=1"]) == 0
    (result,) = (run.path / "eval").glob("*.json")
    assert json.loads(result.read_text())["opt_steps"] == OPT_STEPS


def test_c9_format_1_is_gone_on_from(run: Run) -> None:
    """The state is that of the opt step: what the run does from there, it does on top of it."""
    assert run.counts == (OPT_STEPS, ENV_STEPS)
    assert border_train([f"resume={run.path}", f"trainer.max_opts={OPT_STEPS + 10}"]) == 0
    assert run.counts == (OPT_STEPS + 10, ENV_STEPS + 10)
    assert run.checkpoints[-1] == f"step-{OPT_STEPS + 10:09d}"
    assert run.steps("agent/loss") == [10, 20, 30, 40, 50]
    assert all(actor["exact"] for actor in run.summary["actors"])


def test_c9_a_newer_format_is_refused_by_name(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    as_format_2(run)
    before = run.files("checkpoints", "best")
    for refused in (
        lambda: border_eval([str(run.path)]),
        lambda: border_train([f"resume={run.path}", "trainer.max_opts=50"]),
    ):
        assert refused() == ExitCode.NO_VALID_CHECKPOINT
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) <= 3
        assert "format_version 2; this border-cli reads 1" in lines[0]
    assert run.files("checkpoints", "best") == before


def test_the_stored_run_is_what_its_script_makes(workplace: Path) -> None:
    """As to its files: that the numbers are the same on every machine is promised by nobody."""
    make(workplace / "made")
    assert Run(workplace / "made").files("").keys() == Run(FORMAT_1).files("").keys()
