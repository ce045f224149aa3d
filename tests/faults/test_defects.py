"""Row D8 of the fault table: a part of our own raises in the middle of a run. The run ends well, and says why, once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from border_cli.agents.dqn import agent
from border_cli.agents.learner import Learner
from border_cli.cli.train import main
from border_cli.core.errors import ExitCode
from border_cli.evaluation.episodes import EpisodeRunner
from border_cli.recorders.jsonl import JsonlRecorder
from tests.faults.audited import nothing_left
from tests.faults.commands import verified_checkpoints, what_is_kept
from tests.real_runs import Run, tiny

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

WORDS = (
    *("env=gym", "env.entry_point=border_cli.envs.counting:CountingEnv", "n_actors=2"),
    *("trainer.max_opts=50", "trainer.record_interval=10", "trainer.save_interval=25"),
    *("trainer.eval_interval=20", "agent.target_interval=33"),
)
FIRST, SECOND = "KeyError: 'what came first'", "RuntimeError: a defect"


def broken(*_: Any, **__: Any) -> None:
    try:
        raise KeyError("what came first")
    except KeyError as e:
        raise RuntimeError("a defect") from e


def broken_once(method: Callable[..., Any], strikes: Callable[..., bool]) -> Callable[..., Any]:
    """The method, but for the calls that `strikes` says."""
    return lambda *given, **named: (broken if strikes(*given) else method)(*given, **named)


SYNC = ("trainer=sync", "n_actors=1")
PARTS: dict[str, tuple[Any, str, Callable[..., Any], list[int], tuple[str, ...]]] = {
    "recorder": (JsonlRecorder, "write", lambda _, record: record.opt_steps >= 30, [25, 30], ()),
    "recorder's flush": (JsonlRecorder, "flush", lambda _: True, [25, 50], SYNC),
    "evaluator": (EpisodeRunner, "evaluate", lambda *_: True, [20], SYNC),
    "opt": (Learner, "opt", lambda agent, _: agent.opt_steps == 29, [25, 29], ()),
    "opt, half done": (agent, "update_target", lambda *_: True, [25, 33], SYNC),
    "state": (Learner, "state", lambda agent: agent.opt_steps >= 30, [25], SYNC),
}
"""What raises, when, the checkpoints that are there in the end, and more words."""


def ended(code: int, *words: str) -> Run:
    """A run that ends with this code, of which nothing is left but its directory."""
    with nothing_left():
        assert main(tiny(*WORDS, *words)) == code
    run = Run(Path("runs/latest").resolve())
    assert (run.summary["status"], run.summary["exit_code"]) == ("failed", code)
    return run


@pytest.mark.parametrize("part", PARTS)
def test_d8_a_defect_ends_the_run_with_its_cause_and_its_last_state(
    workplace: Path, capsys: pytest.CaptureFixture[str], part: str
) -> None:
    owner, name, strikes, kept, words = PARTS[part]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, broken_once(getattr(owner, name), strikes))
        run = ended(ExitCode.DEFECT, *words)
    errors = capsys.readouterr().err
    times = (
        2 if part in ("state", "recorder's flush") else 1
    )  # of it the last save, and the closing, failed as well
    crash = "".join(run.json("crash.json")["traceback"])
    for text in (errors, crash, (run.path / "train.log").read_text()):
        assert [text.count(f"\n{line}\n") for line in (FIRST, SECOND)] == [times, times]
    told = [f"error: {SECOND}", "this is a defect, of border-cli or of your code"]
    assert errors.splitlines()[-3:] == [*told, what_is_kept(run, workplace)]
    assert run.summary["error"] == "a defect"
    assert {actor["state"] for actor in run.summary["actors"]} == {"done"}
    assert [checkpoint.opt_steps for checkpoint in reversed(verified_checkpoints(run))] == kept
    if part == "opt, half done":  # the one whose parts might not agree on how far they are
        assert main([f"resume={run.path}", "trainer.max_opts=60"]) == 0
        assert run.counts[0] == 60


def test_d8_a_defect_in_the_process_of_the_evaluator(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It costs restarts, and only without any left the run: the environment or our code, who knows."""
    plugin = ("plugins=[tests.faults.broken_evaluator]", "trainer.max_opts=1000000")
    run = ended(ExitCode.ACTOR_LOST, *plugin, "evaluator=process", "evaluator.restarts=0")
    error = "the evaluator failed: RuntimeError: a defect in judging"
    errors, log = capsys.readouterr().err, (run.path / "train.log").read_text()
    assert run.summary["error"] == error
    assert errors.splitlines()[-2:] == [f"error: {error}", what_is_kept(run, workplace)]
    for text in (errors, log):
        assert [text.count(f"\n{line}") for line in (FIRST, SECOND)] == [1, 1]
    (newest, *_) = verified_checkpoints(run)
    assert newest.opt_steps == run.counts[0] > 0


def test_d8_an_evaluator_that_cannot_be_closed_does_not_keep_the_recorder_open(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, close = list[JsonlRecorder](), JsonlRecorder.close
    monkeypatch.setattr(EpisodeRunner, "close", broken)
    monkeypatch.setattr(JsonlRecorder, "close", lambda recorder: closed.append(recorder) or close(recorder))
    ended(ExitCode.DEFECT, *SYNC)
    assert len(closed) == 1
