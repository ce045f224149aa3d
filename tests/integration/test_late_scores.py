"""Resume of a run whose best score is newer than its last checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from border_cli.cli.train import main
from border_cli.run.summary import RunFiles
from tests.interrupted import assert_same_bits, resume, run_whole, signal_at
from tests.real_runs import Run, tiny

pytestmark = pytest.mark.usefixtures("workplace")

BESIDE = ("trainer=sync", "evaluator=process", "trainer.eval_interval=40", "trainer.save_interval=null")
"""With evaluator=process a result takes effect when the next model is submitted."""


def test_g1_a_score_that_had_no_effect_yet_when_the_run_was_saved_has_it_again(tmp_path: Path) -> None:
    """The checkpoint of opt step 60 has a pending evaluation of opt step 40."""
    whole = run_whole(tmp_path / "whole", *BESIDE, "trainer.max_opts=120")
    parts = run_whole(tmp_path / "parts", *BESIDE, "trainer.max_opts=60")
    assert parts.summary["best_score"]["opt_steps"] in (40, 60)
    resume(parts.path, "trainer.max_opts=120")
    assert Run(parts.path).summary["exact"] is True
    assert_same_bits(Run(parts.path), whole)


def test_g1_a_run_that_is_not_exact_stays_so_when_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = ("n_actors=1", "trainer.lockstep=true", "trainer.max_opts=120", "trainer.save_interval=20")
    with signal_at(50):
        assert main([*tiny(*args), f"hydra.run.dir='{tmp_path / 'run'}'"]) == 143
    run = Run(tmp_path / "run")
    assert run.summary["exact"] is True
    with monkeypatch.context() as patch, signal_at(90):
        write = RunFiles._write
        # as if the process was killed before
        patch.setattr(RunFiles, "_write", lambda files, result=None: result or write(files))
        assert main([f"resume={run.path}", "evaluator.episodes=3"]) == 143
    assert json.loads((run.path / "summary.json").read_text())["status"] == "running"
    resume(run.path)
    assert Run(run.path).summary["exact"] is False
