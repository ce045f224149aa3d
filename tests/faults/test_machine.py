"""Complete runs on machines with too little memory, descriptors, shared memory or disk, or without a reader of stdout."""

from __future__ import annotations

import contextlib
import errno
import os
import pty
import re
import resource
import signal
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from border_cli.cli.train import main
from border_cli.runtime.transport import Ring
from tests.faults.amounts import sampled
from tests.faults.commands import border_train, endless, resume_hint, run_here, saved_steps
from tests.faults.processes import START_S, wait_until
from tests.faults.test_runs import trap
from tests.faults.trap import THREADS

NO_MEMORY = os.strerror(errno.ENOMEM)
REFUSED_S = 15.0
"""CPU seconds until what is impossible is refused: seven times what it takes, most of which are Python's imports."""


@contextlib.contextmanager
def soft_limit(which: int, soft: int) -> Iterator[None]:
    """Lower a soft limit of this process."""
    before = resource.getrlimit(which)
    resource.setrlimit(which, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(which, before)


# -- refused at the start -----------------------------------------------


def assert_refused(folder: Path, errors: str, cpu_s: float) -> list[str]:
    """Check for a quick refusal in at most three lines, before a run directory was made. Returns the lines."""
    assert cpu_s < REFUSED_S
    assert not (folder / "runs").exists()
    lines = errors.splitlines()
    assert len(lines) <= 3
    return lines


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its ended children."""
    return sum(os.times()[:4])


def test_f4_a_soft_limit_is_raised(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with soft_limit(resource.RLIMIT_NOFILE, 70):
        run_here(0, "trainer.max_opts=20")
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 74
    assert capsys.readouterr().err == ""


def test_b5_f1_a_run_that_does_not_fit_into_memory_is_refused_before_it_allocates(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The address space is limited far below, so an allocation would fail with another error."""
    began = cpu_seconds()
    with soft_limit(resource.RLIMIT_AS, 2**36):
        assert main(endless("buffer.capacity=1e12")) == 3
    first, taken, allowed = assert_refused(workplace, capsys.readouterr().err, cpu_seconds() - began)
    assert re.search(r"needs 6\d\.\d TiB of memory, and [\d.]+ [GM]iB are free", first)
    assert re.search(r"replay 6\d\.", taken)
    assert allowed.startswith("nearest: buffer.capacity=")


# -- rings without memory ----------------------------------------


def refuse_rings(monkeypatch: pytest.MonkeyPatch, allowed: int) -> None:
    """Allow `allowed` rings. There is no memory for later ones."""
    init, left = Ring.__init__, iter(range(allowed))

    def refuse(*_: int) -> None:
        raise OSError(errno.ENOMEM, NO_MEMORY)

    def limited_init(ring: Ring, *args: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            if next(left, None) is None:
                patch.setattr(os, "posix_fallocate", refuse)
            init(ring, *args)

    monkeypatch.setattr(Ring, "__init__", limited_init)


def test_f1_a_ring_without_memory_at_the_start_ends_the_run(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is the ring of the second actor, after the first was started. No actor must remain."""
    refuse_rings(monkeypatch, 1)
    run = run_here(3)
    first, *others = capsys.readouterr().err.splitlines()
    assert re.fullmatch(rf"error: an actor's ring: {NO_MEMORY}", first)
    assert others[0].startswith("allowed: a smaller n_actors") and len(others) <= 2
    assert (run.summary["status"], run.summary["exit_code"]) == ("failed", 3)
    assert run.summary["counters"].get("opt_steps", 0) == 0
    assert saved_steps(run) == []


def test_f1_a_ring_without_memory_for_the_next_incarnation_ends_the_run(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse_rings(monkeypatch, 2)
    args = ("actor_manager.restarts=1", "actor_manager.min_actors=2", "actor_manager.restart_delay_s=0.1")
    run = run_here(5, *trap("actor", "step", "kill", 100), *args)
    errors = capsys.readouterr().err
    assert re.match(r"error: actor [01] could not be started again: an actor's ring: ", errors)
    assert NO_MEMORY in errors and len(errors.splitlines()) <= 3
    assert (run.summary["status"], run.summary["exit_code"]) == ("failed", 5)
    assert saved_steps(run) == [run.counts[0]] and run.counts[0] > 0


# -- while training -----------------------------------------------------


@pytest.mark.parametrize("threads", sampled([2, 1], 2))
def test_f6_every_actor_has_one_torch_thread_and_the_learner_what_it_was_given(
    tmp_path: Path, threads: int
) -> None:
    args = ("env.entry_point=tests.faults.trap:CountThreads", f"threads={threads}", "evaluator=inline")
    with border_train(tmp_path, *args, "trainer.max_opts=50", "trainer.eval_interval=50") as command:
        assert command.end() == 0, command.errors
    threads_of = {path.name: path.read_text() for path in (tmp_path / THREADS).iterdir()}
    actors = {"trial": "1 1", "actor-0": "1 1", "actor-1": "1 1"}  # the first process is the preflight
    assert threads_of == actors | {"MainProcess": f"{threads} {os.environ.get('OMP_NUM_THREADS')}"}


def test_f3_a_learner_out_of_memory_saves_its_state_and_names_the_cause(tmp_path: Path) -> None:
    with border_train(tmp_path, "trainer.save_interval=20", faults="starve:30") as command:
        assert command.end() == 1
    run, errors = command.run, command.errors
    assert "MemoryError: Unable to allocate 384. MiB" in errors
    *_, cause, advice, hint = errors.splitlines()
    assert cause.startswith("error: MemoryError: Unable to allocate")
    assert advice.startswith("less memory is needed")
    assert hint == resume_hint(run, tmp_path)
    assert (run.summary["status"], run.summary["exit_code"]) == ("failed", 1)
    assert "Unable to allocate" in run.summary["error"]
    assert "MemoryError" in run.json("crash.json")["error"]
    assert saved_steps(run) == [29, 20]


@pytest.mark.parametrize(
    ("number", "code"), [(None, 0), (signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["end", "term", "int"]
)
def test_d9_a_terminal_that_does_not_read_blocks_neither_the_run_nor_its_end(
    tmp_path: Path, number: signal.Signals | None, code: int
) -> None:
    """Its output is suspended, as by Ctrl-S, before the first line."""
    ours, its = pty.openpty()
    termios.tcflow(its, termios.TCOOFF)
    limit = ("trainer.max_opts=300",) if number is None else ("trainer.save_interval=100",)
    args = ("trainer=sync", "recorder.console=screen", *limit)
    try:
        with border_train(tmp_path, *args, variables={"TERM": "xterm"}, stdout=its) as command:
            if number is not None:
                wait_until(lambda: list(tmp_path.glob("runs/latest/checkpoints/step-*")), "a save", START_S)
                command.send(number)
            assert (command.end(), command.errors) == (code, "")
        assert command.run.counts[0] >= 100
    finally:
        os.close(its)
        os.close(ours)


@pytest.mark.parametrize("closed", sampled([(0, 1, 2), (1,)], 2))
def test_d9_a_run_without_its_streams_completes(tmp_path: Path, closed: tuple[int, ...]) -> None:
    args = ("trainer=sync", "recorder.console=auto", "trainer.max_opts=50")
    with border_train(tmp_path, *args, closed=closed) as command:
        assert command.end() == 0
    assert command.run.counts[0] == 50
