"""Seconds from the command to the environments' first steps, beside those of `import torch, gymnasium`."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from bench import runs
from bench.report import Figure

OPTIONS = (
    "agent=dqn env=gym env.entry_point=bench.clocked_env:ClockedCartPole preset=none trainer.max_env_steps=2000 "
    "trainer.warmup_period=1900 trainer.eval_interval=null"
)


def measure(folder: Path, repetitions: int) -> list[Figure]:
    """Measure the imports and runs with 1 and 8 actors in turn."""
    imports: list[float] = []
    after: dict[int, list[float]] = {1: [], 8: []}
    over: dict[int, list[float]] = {1: [], 8: []}
    first: dict[int, list[float]] = {1: [], 8: []}
    last: dict[int, list[float]] = {1: [], 8: []}
    for i in range(repetitions):
        around = [_imports()]
        for n_actors in (1, 8):
            steps = first_steps(folder / f"startup-{n_actors}-{i}", n_actors)
            first[n_actors].append(min(steps))
            last[n_actors].append(max(steps))
            around.append(_imports())
            importing = sum(around[-2:]) / 2
            after[n_actors].append(max(steps) - importing)
            over[n_actors].append(max(steps) / importing)
        imports += around
    return [
        Figure("import torch, gymnasium", imports, "s"),
        Figure("command to the first env step, 1 actor", first[1], "s"),
        Figure("first env step after these imports, 1 actor", after[1], "s", "at most 0.8"),
        Figure("command to the first env step, 8 actors", first[8], "s"),
        Figure("command to the first env step of every one of 8 actors", last[8], "s"),
        Figure("first env step after these imports, every one of 8 actors", after[8], "s", "at most 1.2"),
        Figure("command to the first env step over imports, 1 actor", over[1], ""),
        Figure("command to the first env step over imports, every one of 8 actors", over[8], ""),
    ]


def _imports() -> float:
    """Return the seconds that a program takes that only imports torch and gymnasium."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch, gymnasium"], check=True)
    return time.monotonic() - began


def first_steps(folder: Path, n_actors: int) -> list[float]:
    """Return the seconds from the command to each actor's first step."""
    marks = folder / "marks"
    marks.mkdir(parents=True)
    began = time.monotonic()
    runs.train(folder / "run", [*OPTIONS.split(), f"env.kwargs.folder={marks}", f"n_actors={n_actors}"])
    steps = [float(mark.read_text(encoding="utf-8")) - began for mark in marks.iterdir()]
    if len(steps) != n_actors:
        raise SystemExit(f"{len(steps)} of {n_actors} actors stepped")
    return steps
