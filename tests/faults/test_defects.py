"""Rows D8 and F3: a component raises during the run or at its end. The run ends cleanly and reports the cause once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from border_cli.actors.manager import ActorHandle, ActorManager
from border_cli.agents.agent import NetworkAgent
from border_cli.agents.algorithm import Algorithm
from border_cli.cli.train import main
from border_cli.core.errors import ExitCode
from border_cli.recorders.files import JsonlRecorder
from border_cli.replay.buffer import RowReplayBuffer
from border_cli.training.evaluators import EpisodeRunner
from tests.fakes import counting_actors
from tests.faults.actors import pids, running
from tests.faults.commands import resume_hint, run_here, saved_steps
from tests.real_runs import Run, tiny

ENDS = (
    "trainer.max_opts=50",
    "trainer.record_interval=10",
    "trainer.save_interval=25",
    "trainer.eval_interval=20",
)
FIRST, SECOND = "KeyError: 'what came first'", "RuntimeError: a defect"
SYNC = ("trainer=sync",)
LOCKSTEP = ("n_actors=2", "trainer.lockstep=true")


def always(*_: Any) -> bool:
    return True


def failing(
    method: Callable[..., Any], failing_calls: Callable[..., bool], after: bool = False
) -> Callable[..., Any]:
    """Wrap a method so that the calls in `failing_calls` raise. after: they raise after doing their work."""

    def call(*values: Any, **named: Any) -> Any:
        if not failing_calls(*values):
            return method(*values, **named)
        if after:
            method(*values, **named)
        try:
            raise KeyError("what came first")
        except KeyError as first:
            raise (MemoryError if after else RuntimeError)("a defect") from first

    return call


PARTS: dict[str, tuple[Any, str, Callable[..., bool], list[int], tuple[str, ...]]] = {
    "recorder": (JsonlRecorder, "write", lambda _, record: record.opt_steps >= 30, [25, 30], ()),
    "evaluator": (EpisodeRunner, "evaluate", always, [20], SYNC),
    "opt, half done": (Algorithm, "move_targets", always, [25, 33], (*SYNC, "agent.target_interval=33")),
    "state": (NetworkAgent, "state", lambda agent: agent.opt_steps >= 30, [25], SYNC),
}
"""What raises, when, the checkpoints that are there in the end, and more args."""


def assert_failed(run: Run) -> None:
    assert (run.summary["status"], run.summary["exit_code"]) == ("failed", ExitCode.DEFECT)
    assert {actor["state"] for actor in run.summary["actors"]} == {"done"}


@pytest.mark.parametrize("part", PARTS)
def test_d8_a_defect_ends_the_run_with_its_cause_and_its_last_state(
    workplace: Path, capsys: pytest.CaptureFixture[str], part: str
) -> None:
    owner, name, failing_calls, kept, args = PARTS[part]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, failing(getattr(owner, name), failing_calls))
        run = run_here(ExitCode.DEFECT, *ENDS, *args)
    assert_failed(run)
    errors = capsys.readouterr().err
    # With this part the last save fails too. Both errors must be reported.
    times = 2 if part == "state" else 1
    crash = "".join(run.json("crash.json")["traceback"])
    for text in (errors, crash, (run.path / "train.log").read_text()):
        assert [text.count(f"\n{line}\n") for line in (FIRST, SECOND)] == [times, times]
    last = [f"error: {SECOND}", "this is a bug in border-cli, or in your code that it calls"]
    assert errors.splitlines()[-3:] == [*last, resume_hint(run, workplace)]
    assert run.summary["error"] == "a defect"
    assert saved_steps(run)[::-1] == kept
    if part == "opt, half done":  # the checkpoint whose parts may disagree about the opt step
        assert main([f"resume={run.path}", "trust=true", "trainer.max_opts=60"]) == 0
        assert run.counts[0] == 60


def test_d8_the_recorder_is_closed_if_closing_the_evaluator_raises(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both errors are logged if the recorder cannot be closed either."""
    closed, close = list[JsonlRecorder](), JsonlRecorder.close

    def close_and_fail(recorder: JsonlRecorder) -> None:
        closed.append(recorder)
        close(recorder)
        raise LookupError("a defect of the recorder")

    monkeypatch.setattr(EpisodeRunner, "close", failing(EpisodeRunner.close, always))
    monkeypatch.setattr(JsonlRecorder, "close", close_and_fail)
    run = run_here(ExitCode.DEFECT, *ENDS, *SYNC)
    assert_failed(run)
    assert len(closed) == 1
    log = (run.path / "train.log").read_text()
    for line in (FIRST, SECOND, "LookupError: a defect of the recorder"):
        assert log.count(f"\n{line}\n") == 1


@pytest.mark.usefixtures("light_forkserver")
def test_f3_the_other_actors_end_if_ending_one_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(counting_actors(), n_actors=3) as manager, monkeypatch.context() as patch:
        patch.setattr(
            ActorHandle, "end", failing(ActorHandle.end, lambda actor: actor.actor == 1, after=True)
        )
        with pytest.raises(MemoryError):
            manager.stop()
        assert pids(manager) == [None] * 3


def test_f3_the_last_state_is_saved_if_stopping_the_actors_raises(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ActorManager, "stop", failing(ActorManager.stop, always, after=True))
    run = run_here(ExitCode.DEFECT, "trainer.max_opts=50")
    assert saved_steps(run) == [50]


@pytest.mark.parametrize("args", [SYNC, ()], ids=["sync", "async"])
def test_d8_a_run_whose_replay_raised_can_be_resumed(workplace: Path, args: tuple[str, ...]) -> None:
    """The rows of the failed push are lost but counted, so the counts of actors and learner still agree.

    Warm-up and ratio tolerance allow 84 env steps before the first opt step.
    """
    with pytest.MonkeyPatch.context() as patch:
        push = failing(RowReplayBuffer.push, lambda buffer, *_: len(buffer) > 150)
        patch.setattr(RowReplayBuffer, "push", push)
        run = run_here(ExitCode.DEFECT, "trainer.max_opts=200", "trainer.max_env_steps=400", *args)
    assert len(saved_steps(run)) == 1
    assert main([f"resume={run.path}", "trust=true"]) == 0
    assert run.counts[0] == 200


def test_d8_the_counts_of_each_actor_are_kept_after_a_failed_launch(workplace: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        write = failing(JsonlRecorder.write, lambda _, record: record.opt_steps > 30, after=True)
        patch.setattr(JsonlRecorder, "write", write)
        args = (*LOCKSTEP, "trainer.max_opts=60", "trainer.record_interval=10")
        assert main(tiny(*args)) == ExitCode.DEFECT
    run = Run(Path("runs/latest").resolve())
    assert main([f"resume={run.path}", "trust=true"]) == 0
    actors, (opt_steps, env_steps) = run.summary["actors"], run.counts
    assert opt_steps == 60
    # includes the env steps of the unfinished rounds
    assert sum(actor["env_steps"] for actor in actors) >= env_steps
    assert all(actor["env_steps"] - actor["env_steps_before"] < env_steps / 2 for actor in actors)
