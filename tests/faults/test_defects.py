"""Rows D8 and F3: a part of our own raises in the middle of a run, or at its end. The run ends well, and says why, once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from border_cli.actors.manager import ActorManager
from border_cli.actors.process import ActorHandle
from border_cli.agents.agent import NetworkAgent
from border_cli.agents.dqn import agent
from border_cli.cli.train import main
from border_cli.core.errors import ExitCode
from border_cli.recorders.jsonl import JsonlRecorder
from border_cli.replay.buffer import RowReplayBuffer
from border_cli.training.evaluators import EpisodeRunner
from tests.fakes import counting_actors
from tests.faults.actors import running
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
    method: Callable[..., Any], strikes: Callable[..., bool], after: bool = False
) -> Callable[..., Any]:
    """The method, but for the calls that `strikes` names, which raise. after: they do their work before."""

    def call(*given: Any, **named: Any) -> Any:
        if not strikes(*given):
            return method(*given, **named)
        if after:
            method(*given, **named)
        try:
            raise KeyError("what came first")
        except KeyError as first:
            raise (MemoryError if after else RuntimeError)("a defect") from first

    return call


PARTS: dict[str, tuple[Any, str, Callable[..., bool], list[int], tuple[str, ...]]] = {
    "recorder": (JsonlRecorder, "write", lambda _, record: record.opt_steps >= 30, [25, 30], ()),
    "recorder's flush": (JsonlRecorder, "flush", always, [25, 50], SYNC),
    "evaluator": (EpisodeRunner, "evaluate", always, [20], SYNC),
    "opt": (NetworkAgent, "opt", lambda agent, _: agent.opt_steps == 29, [25, 29], SYNC),
    "opt, half done": (agent, "polyak_", always, [25, 33], (*SYNC, "agent.target_interval=33")),
    "state": (NetworkAgent, "state", lambda agent: agent.opt_steps >= 30, [25], SYNC),
}
"""What raises, when, the checkpoints that are there in the end, and more words."""


def assert_failed(run: Run) -> None:
    assert (run.summary["status"], run.summary["exit_code"]) == ("failed", ExitCode.DEFECT)
    assert {actor["state"] for actor in run.summary["actors"]} == {"done"}


@pytest.mark.parametrize("part", PARTS)
def test_d8_a_defect_ends_the_run_with_its_cause_and_its_last_state(
    workplace: Path, capsys: pytest.CaptureFixture[str], part: str
) -> None:
    owner, name, strikes, kept, words = PARTS[part]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, failing(getattr(owner, name), strikes))
        run = run_here(ExitCode.DEFECT, *ENDS, *words)
    assert_failed(run)
    errors = capsys.readouterr().err
    # Of these the last save, or the closing, failed as well: neither error is lost.
    times = 2 if part in ("state", "recorder's flush") else 1
    crash = "".join(run.json("crash.json")["traceback"])
    for text in (errors, crash, (run.path / "train.log").read_text()):
        assert [text.count(f"\n{line}\n") for line in (FIRST, SECOND)] == [times, times]
    last = [f"error: {SECOND}", "this is a bug in border-cli, or in your code that it calls"]
    assert errors.splitlines()[-3:] == [*last, resume_hint(run, workplace)]
    assert run.summary["error"] == "a defect"
    assert saved_steps(run)[::-1] == kept
    if part == "opt, half done":  # the one whose parts might not agree on how far they are
        assert main([f"resume={run.path}", "trainer.max_opts=60"]) == 0
        assert run.counts[0] == 60


def test_d8_an_evaluator_that_cannot_be_closed_does_not_keep_the_recorder_open(
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
def test_f3_one_actor_that_cannot_be_ended_does_not_keep_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(counting_actors(), n_actors=3) as manager, monkeypatch.context() as patch:
        patch.setattr(
            ActorHandle, "end", failing(ActorHandle.end, lambda actor: actor.actor == 1, after=True)
        )
        with pytest.raises(MemoryError):
            manager.stop()
        assert manager.pids() == [None] * 3


@pytest.mark.parametrize("words", [(), LOCKSTEP], ids=["async", "lockstep"])
def test_f3_actors_that_cannot_be_stopped_do_not_cost_the_last_state(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(ActorManager, "stop", failing(ActorManager.stop, always, after=True))
    run = run_here(ExitCode.DEFECT, "trainer.max_opts=50", *words)
    assert saved_steps(run) == [50]


@pytest.mark.parametrize("words", [SYNC, (), LOCKSTEP], ids=["sync", "async", "lockstep"])
def test_d8_a_replay_that_raises_leaves_a_state_that_can_be_resumed(
    workplace: Path, words: tuple[str, ...]
) -> None:
    """What was collected is lost with it, and counted: the actors' counts and the learner's must still agree.

    The warm-up and the tolerance of the ratio are 84 env steps: so many may be there before the first opt step.
    """
    with pytest.MonkeyPatch.context() as patch:
        push = failing(RowReplayBuffer.push, lambda buffer, *_: len(buffer) > 150)
        patch.setattr(RowReplayBuffer, "push", push)
        run = run_here(ExitCode.DEFECT, "trainer.max_opts=200", "trainer.max_env_steps=400", *words)
    assert len(saved_steps(run)) == 1
    assert main([f"resume={run.path}"]) == 0
    assert run.counts[0] == 200


def test_d8_what_each_actor_has_done_is_known_after_a_launch_that_failed(workplace: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        write = failing(JsonlRecorder.write, lambda _, record: record.opt_steps > 30, after=True)
        patch.setattr(JsonlRecorder, "write", write)
        words = (*LOCKSTEP, "trainer.max_opts=60", "trainer.record_interval=10")
        assert main(tiny(*words)) == ExitCode.DEFECT
    run = Run(Path("runs/latest").resolve())
    assert main([f"resume={run.path}"]) == 0
    actors, (opt_steps, env_steps) = run.summary["actors"], run.counts
    assert opt_steps == 60
    # with the env steps of the rounds under way at the end
    assert sum(actor["env_steps"] for actor in actors) >= env_steps
    assert all(actor["env_steps"] - actor["env_steps_before"] < env_steps / 2 for actor in actors)
