"""Environments that take long to make: what is shown meanwhile, and the limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from border_cli.cli.train import main
from tests.real_runs import tiny

SLOW = ("env=gym", "env.entry_point=tests.counting:CountingEnv", "env.kwargs.make_s=1.0")


def test_a_line_shows_that_environments_are_still_being_made(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the run on stderr, and while actors start by the view."""
    for module in ("border_cli.run.preflight", "border_cli.display.views"):
        monkeypatch.setattr(f"{module}.SILENCE_S", 0.2)
    args = tiny(*SLOW, "trainer.max_opts=5", "trainer.eval_interval=null", "recorder.console=plain")
    assert main(args) == 0
    shown = capsys.readouterr()
    assert shown.err.count("making the environment, for ") >= 2
    assert shown.out.count("phase=starting") >= 3


def test_the_limit_of_making_an_environment_is_named(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("border_cli.config.resolve._MAKING_S", 0.5)
    args = tiny(*SLOW, "trainer=sync", "trainer.max_opts=5", "trainer.eval_interval=null")
    assert main([*args, "actor_manager.start_timeout_s=0.5"]) == 2
    error = capsys.readouterr().err
    assert "making the environment took longer than 0.5 s" in error
    assert "allowed: a higher actor_manager.start_timeout_s" in error
    assert main([*args, "actor_manager.start_timeout_s=60"]) == 0
