"""Rows E1 and E2 of the fault table in whole runs: numbers that are not finite."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from border_cli.cli.train import main
from border_cli.core.items import Items
from border_cli.core.spaces import Array
from border_cli.replay.buffer import RowReplayBuffer
from tests.faults.commands import Command, border_train, verified_checkpoints, what_is_kept
from tests.real_runs import Run, tiny

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

POISONED = (
    *("env.kwargs.place=nowhere", "env.kwargs.at=make"),
    *("plugins=[tests.faults.poison]", "trainer.save_interval=10", "checkpoint.keep=10"),
)
SYNC = ("trainer=sync", "n_actors=1")
BAD_ENV = ("env=gym", "env.entry_point=tests.envs:NotANumber", "trainer.max_opts=200")


def poisoned_run(folder: Path, first: int, last: int, *words: str) -> tuple[Command, int]:
    folder.mkdir(exist_ok=True)
    (folder / "poison").write_text(f"{first} {last}", encoding="ascii")
    with border_train(folder, *POISONED, *words) as command:
        return command, command.end()


def states(run: Run) -> dict[int, dict[str, Array]]:
    """Every array of the training state in each checkpoint, by opt step; all of them verify and are finite."""
    found = {}
    for checkpoint in verified_checkpoints(run):
        assert checkpoint.training is not None
        found[checkpoint.opt_steps] = dict(checkpoint.training.arrays)
        assert all(np.isfinite(array).all() for array in found[checkpoint.opt_steps].values())
    return found


def test_e1_one_bad_batch_costs_one_opt_step(tmp_path: Path) -> None:
    command, code = poisoned_run(tmp_path, 35, 35, *SYNC, "trainer.max_opts=60", "trainer.record_interval=30")
    assert (code, command.errors) == (0, "")
    run = command.run
    assert run.counts[0] == 60
    assert run.series("agent/skipped_steps") == [(30, 0.0), (60, 1.0)]
    assert [step for step, loss in run.series("agent/loss") if np.isfinite(loss)] == [30, 60]
    assert set(states(run)) == {10, 20, 30, 40, 50, 60}
    (kept,) = (run.path / "nonfinite").iterdir()
    assert kept.name == "step-000000035.safetensors"
    assert np.flatnonzero(np.isnan(load_file(kept)["reward"])).tolist() == [0]
    log = (run.path / "train.log").read_text()
    line = (
        f"opt step 35 was skipped: its loss or gradient is not finite; its batch is in nonfinite/{kept.name}"
    )
    assert log.count("was skipped") == log.count(line) == 1


def test_e1_bad_batches_without_end_end_the_run(tmp_path: Path) -> None:
    command, code = poisoned_run(tmp_path, 34, 10**9)
    assert command.run.config.trainer.max_nonfinite == 10  # by default
    assert code == 4
    *_, first, _, last = command.errors.splitlines()  # before it, perhaps, that an actor was slow to leave
    what = "the loss or gradient of 10 opt steps in a row is not a finite number at opt step 43"
    assert first.endswith(f"error: {what}")
    run = command.run
    assert last == what_is_kept(run, command.folder)
    assert (run.summary["status"], run.summary["exit_code"]) == ("failed", 4)
    found = states(run)
    assert set(found) == {10, 20, 30, 40, 43}
    for name, array in found[40].items():
        if name != "sums":  # of an interval that is not yet recorded
            assert np.array_equal(array, found[43][name]), name
    assert any(not np.array_equal(array, found[40][name]) for name, array in found[30].items())
    assert len(list((run.path / "nonfinite").iterdir())) == 1


def test_e2_an_actor_with_bad_numbers_ends_the_run(tmp_path: Path) -> None:
    words = ("env.kwargs.what=observation", "env.kwargs.place=actor-1", "actor_manager.on_env_error=stop")
    with border_train(tmp_path, *BAD_ENV, *words, "trainer.max_opts=100000") as command:
        assert command.end() == 5
        assert re.fullmatch(
            "actor 1 failed while stepping, after 76 env steps: EnvDataError: "
            r"environment 0, episode 8, env step 7 of it: observation obs\[1\] is nan; env\.nonfinite=drop .*",
            command.run.summary["error"],
        )
        states(command.run)


@pytest.mark.parametrize(
    ("words", "who"),
    [
        (SYNC, "actor 0 failed while stepping, after 76 env steps"),
        (("trainer.eval_interval=10", "evaluator.episodes=10"), "the evaluation failed while stepping"),
    ],
    ids=["sync", "evaluation"],
)
def test_e2_so_do_bad_numbers_in_the_learners_own_process(
    tmp_path: Path, words: tuple[str, ...], who: str
) -> None:
    bad = ("env.kwargs.what=reward", "env.kwargs.place=MainProcess")
    with border_train(tmp_path, *BAD_ENV, *bad, *words) as command:
        assert command.end() == 5
        error = command.run.summary["error"]
        assert error.startswith(who)
        assert re.search(
            r"EnvDataError: environment \d, episode \d+, env step \d+ of it: the reward is nan", error
        )


@pytest.mark.parametrize("what", ["reward", "observation"])
@pytest.mark.parametrize("words", [("n_actors=2",), ("trainer=sync",)], ids=["async", "sync"])
def test_e2_dropped_they_never_reach_the_replay(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], what: str
) -> None:
    push, pushed = RowReplayBuffer.push, list[Items]()

    def watch(self: RowReplayBuffer, items: Items, actor: int = 0) -> None:
        pushed.append(items)
        push(self, items, actor)

    monkeypatch.setattr(RowReplayBuffer, "push", watch)
    drop = ("env.nonfinite=drop", f"env.kwargs.what={what}")
    assert main(tiny(*BAD_ENV, *words, *drop, "trainer.eval_interval=100")) == 0
    run = Run(Path("runs/latest").resolve())
    assert run.summary["status"] == "done"
    assert sum(int(np.count_nonzero(items["span"])) for items in pushed) == run.counts[1]
    for items in pushed:
        assert all(np.isfinite(rows).all() for rows in items.values())
    dropped = [actor["dropped"] for actor in run.summary["actors"]]
    assert dropped == [1] * len(dropped)
    log = (run.path / "train.log").read_text()
    assert log.count("env step 7 of it: ") == len(dropped)
    assert run.series("agent/skipped_steps")[-1] == (200, 0.0)
