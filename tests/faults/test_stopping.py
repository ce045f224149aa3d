"""The end of a run when ending itself fails: what can still be done is done (rows D8 and F3)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from border_cli.actors.manager import ActorManager
from border_cli.actors.slot import ActorSlot
from border_cli.cli.train import main
from border_cli.core.errors import ExitCode
from border_cli.recorders.jsonl import JsonlRecorder
from border_cli.replay.buffer import RowReplayBuffer
from tests.fakes import counting_actors
from tests.faults.actors import audit, running  # noqa: F401 - audit is a fixture
from tests.faults.commands import verified_checkpoints
from tests.real_runs import Run, tiny

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def and_raises(method: Callable[..., Any], strikes: Callable[..., bool]) -> Callable[..., Any]:
    """The method, which then is out of memory in the calls that `strikes` says."""

    def raising(*given: Any, **named: Any) -> Any:
        result = method(*given, **named)
        if strikes(*given):
            raise MemoryError("there is none")
        return result

    return raising


@pytest.mark.usefixtures("audit")
def test_f3_one_actor_that_cannot_be_ended_does_not_keep_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(counting_actors(), n_actors=3) as manager:
        drain = and_raises(ActorSlot.drain, lambda slot: slot.actor == 1)
        monkeypatch.setattr(ActorSlot, "drain", drain)
        with pytest.raises(MemoryError):
            manager.stop()
        assert manager.pids() == [None] * 3


@pytest.mark.parametrize("lockstep", [False, True])
def test_f3_actors_that_cannot_be_stopped_do_not_cost_the_last_state(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, lockstep: bool
) -> None:
    monkeypatch.setattr(ActorManager, "stop", and_raises(ActorManager.stop, lambda *_: True))
    words = ("n_actors=2", "trainer.max_opts=50", "trainer.save_interval=null")
    assert main(tiny(*words, f"trainer.lockstep={str(lockstep).lower()}")) == ExitCode.DEFECT
    (kept,) = verified_checkpoints(Run(Path("runs/latest").resolve()))
    assert kept.opt_steps == 50


@pytest.mark.parametrize(
    "words", [("trainer=sync",), ("n_actors=1",), ("n_actors=2", "trainer.lockstep=true")]
)
def test_d8_a_replay_that_raises_leaves_a_state_that_is_gone_on_from(
    workplace: Path, words: tuple[str, ...]
) -> None:
    """What was collected is lost with it, and counted: another count than that of the actors fits nobody.

    The warm-up and the tolerance of the ratio are 114 env steps: so many may be there before the first opt step.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            RowReplayBuffer, "push", and_raises(RowReplayBuffer.push, lambda own, *_: len(own) > 150)
        )
        ends = ("trainer.max_opts=200", "trainer.save_interval=null", "trainer.max_env_steps=400")
        assert main(tiny(*words, *ends)) == ExitCode.DEFECT
    run = Run(Path("runs/latest").resolve())
    assert len(verified_checkpoints(run)) == 1
    assert main([f"resume={run.path}"]) == 0
    assert run.counts[0] == 200


def test_d8_what_each_actor_has_done_is_known_after_a_launch_that_failed(workplace: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            JsonlRecorder, "write", and_raises(JsonlRecorder.write, lambda _, record: record.opt_steps > 30)
        )
        words = ("n_actors=2", "trainer.lockstep=true", "trainer.max_opts=60", "trainer.record_interval=10")
        assert main(tiny(*words)) == ExitCode.DEFECT
    run = Run(Path("runs/latest").resolve())
    assert main([f"resume={run.path}"]) == 0
    actors, (opt_steps, env_steps) = run.summary["actors"], run.counts
    assert opt_steps == 60
    assert (
        sum(actor["env_steps"] for actor in actors) >= env_steps
    )  # with those of the rounds under way at the end
    assert all(actor["env_steps"] - actor["env_steps_before"] < env_steps / 2 for actor in actors)
