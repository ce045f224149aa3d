"""Unusual ends of runs: weights that are not finite, an environment that calls sys.exit, a closed stdout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from border_cli.agents.agent import NetworkAgent
from border_cli.cli.train import main
from border_cli.core.metrics import Record
from tests.real_runs import Run, tiny

COMMANDS = """
import importlib, json, sys
for name, words in json.loads(sys.argv[1]):
    if code := importlib.import_module(f"border_cli.cli.{name}").main(words):
        sys.exit(code)
"""
SYNC = ("trainer=sync", "trainer.max_opts=120", "trainer.eval_interval=null")


def run_to_end(*args: str) -> tuple[int, Run]:
    code = main(tiny(*SYNC, *args))
    return code, Run(Path("runs/latest").resolve())


@pytest.mark.parametrize(
    "intervals",
    [
        ("trainer.record_interval=null", "trainer.save_interval=50"),
        ("trainer.record_interval=500", "trainer.save_interval=null"),
    ],
)
def test_weights_that_are_not_finite_are_never_kept(
    workplace: Path, intervals: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = NetworkAgent.opt

    def spoil(self: NetworkAgent, *given: Any, **named: Any) -> Record | None:
        self.policy.params[0] = float("nan")
        return learn(self, *given, **named)

    monkeypatch.setattr(NetworkAgent, "opt", spoil)
    code, run = run_to_end("env=cartpole", "trainer.max_nonfinite=1000", *intervals)
    assert code == 4
    assert run.summary["error"].startswith("a weight or moment of the agent is not a finite number")
    assert run.checkpoints == []
    assert run.summary["status"] == "failed"


def test_names_of_folders_need_not_be_text(workplace: Path) -> None:
    """Any bytes are a name on Linux, and under LC_ALL=C those of ü are no text."""
    folder = workplace / os.fsdecode(b"\xff\xc3")
    folder.mkdir()
    os.chdir(folder)

    words = tiny("trainer=sync", "env=cartpole", "trainer.max_opts=20", "recorder.console=plain")
    commands = [
        ("train", [*words, "hydra.run.dir=runs/first"]),
        ("train", [*words, "hydra.run.dir=runs/second", f"init_from='{folder / 'runs' / 'first'}'"]),
        ("eval", ["runs/second", "episodes=1"]),
        ("report", ["runs", "metric=train/episode_return"]),
    ]
    # in a process: what it prints is no text either, which the reports of tests have to be
    subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(commands)], stdout=subprocess.DEVNULL, check=True
    )
    for name in ("first", "second"):
        run = Run(folder / "runs" / name)
        assert run.summary["status"] == "done" and run.records
