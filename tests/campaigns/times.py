"""Recovery times of real runs after a fault during training: medians of several repetitions."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.report import Figure, markdown
from tests.campaigns.started import SHORT, Started, say
from tests.faults.processes import handles, processes, wait_gone, wait_until

N_ACTORS = 4
HEARTBEAT_S = 2.0
TRAINING = (
    *(word for word in SHORT if not word.startswith("evaluator.")),
    f"n_actors={N_ACTORS}",
    "trainer.eval_interval=null",
    "trainer.save_interval=500",
    "actor_manager.restart_delay_s=0.1",
    f"actor_manager.heartbeat_timeout_s={HEARTBEAT_S}",
)


def times(repetitions: int) -> int:
    """Print the table. Always returns 0, because times are reported, not checked."""
    figures = []
    for what, measure in MEASURES.items():
        values = []
        for _ in range(repetitions):
            with tempfile.TemporaryDirectory() as folder:
                values.append(measure(Path(folder)))
        figures.append(Figure(what, values, "s"))
    say(markdown(("", "median", "least to greatest", "unit", ""), [figure.cells() for figure in figures]))
    return 0


def in_training(folder: Path) -> Started:
    """Start a run and wait until it has a checkpoint and all actors act."""
    started = Started(folder, TRAINING)
    wait_until(lambda: any(folder.glob("runs/[0-9]*/*/checkpoints/step-*")), "a checkpoint", 120)
    assert len(started.workers()) == N_ACTORS
    return started


def seconds_until(happened: Callable[[], bool], what: str) -> float:
    began = time.monotonic()
    wait_until(happened, what)
    return time.monotonic() - began


def replaced(folder: Path, number: signal.Signals) -> float:
    """Return the seconds from the signal to an actor until its replacement runs."""
    started = in_training(folder)
    before = set(started.workers())
    os.kill(min(before), number)
    seconds = seconds_until(lambda: bool(set(started.workers()) - before), "another actor")
    started.process.terminate()
    started.end()
    return seconds


def ended(folder: Path, *numbers: signal.Signals, stopped_actor: bool = False) -> float:
    """Return the seconds from the last signal to the main process until its end. stopped_actor: one actor is stopped."""
    started = in_training(folder)
    if stopped_actor:
        os.kill(started.workers()[0], signal.SIGSTOP)
    *first, last = numbers
    for number in first:
        started.process.send_signal(number)
        wait_until(lambda n=number: not handles(started.process.pid, n), "the signal to be handled")
    began = time.monotonic()
    started.process.send_signal(last)
    wait_gone(started.process.pid)
    seconds = time.monotonic() - began
    started.end()
    return seconds


def all_gone(folder: Path) -> float:
    """Return the seconds from SIGKILL of the main process until all processes of its session ended."""
    started = in_training(folder)
    started.process.kill()
    return seconds_until(
        lambda: started.process.poll() is not None and not processes(session=started.process.pid), "all"
    )


def refused(folder: Path, *args: str) -> float:
    """Return the seconds from the start of the command to its exit."""
    began = time.monotonic()
    started = Started(folder, [*SHORT, *args])
    assert started.process.wait() in (2, 3)
    return time.monotonic() - began


MEASURES: dict[str, Callable[[Path], float]] = {
    "a killed actor is replaced, after its wait of 0.1 s": lambda f: replaced(f, signal.SIGKILL),
    f"a stopped actor is replaced, heartbeat_timeout_s={HEARTBEAT_S:g}": lambda f: replaced(
        f, signal.SIGSTOP
    ),
    "SIGTERM to the exit, with a last checkpoint": lambda f: ended(f, signal.SIGTERM),
    "the same with one actor stopped, stop_timeout_s=5": lambda f: ended(
        f, signal.SIGTERM, stopped_actor=True
    ),
    "a second SIGINT to the exit, one actor stopped": lambda f: ended(
        f, signal.SIGINT, signal.SIGINT, stopped_actor=True
    ),
    "SIGKILL of the learner until nothing of it lives": all_gone,
    "a replay larger than the memory is refused": lambda f: refused(f, "buffer.capacity=100000000000"),
    "a misspelt key is refused": lambda f: refused(f, "trainer.max_opt=3"),
}
