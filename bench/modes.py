"""Free-running, lockstep and synchronous training at the same ratio: opt steps per second of whole runs."""

from __future__ import annotations

from pathlib import Path

from bench import runs
from bench.learning import COMMON, opt_steps_per_s
from bench.report import Figure

OPT_STEPS = 10_000
PROMISED = "at least 0.85"
ACTORS = (1, 8)


def measure(folder: Path, repetitions: int) -> list[Figure]:
    """All in turn; each lockstep run is compared with the mean of the free-running ones before and after it."""
    sync: list[float] = []
    free: dict[int, list[float]] = {n: [] for n in ACTORS}
    lockstep: dict[int, list[float]] = {n: [] for n in ACTORS}
    ratio: dict[int, list[float]] = {n: [] for n in ACTORS}
    for i in range(repetitions):
        sync.append(_rate(folder / f"sync-{i}", "trainer=sync"))
        for n in ACTORS:
            before = _rate(folder / f"free-{n}-{i}", f"n_actors={n}")
            lockstep[n].append(_rate(folder / f"lockstep-{n}-{i}", f"n_actors={n}", "trainer.lockstep=true"))
            after = _rate(folder / f"free-{n}-{i}-after", f"n_actors={n}")
            free[n] += [before, after]
            ratio[n].append(2 * lockstep[n][-1] / (before + after))
    return [
        Figure("synchronous", sync, "opt steps/s"),
        *(Figure(f"free-running, {_actors(n)}", free[n], "opt steps/s") for n in ACTORS),
        *(Figure(f"lockstep, {_actors(n)}", lockstep[n], "opt steps/s") for n in ACTORS),
        *(Figure(f"lockstep over free-running, {_actors(n)}", ratio[n], "", PROMISED) for n in ACTORS),
    ]


def _rate(run_dir: Path, *words: str) -> float:
    runs.train(run_dir, [*COMMON, f"trainer.max_opts={OPT_STEPS}", *words])
    return opt_steps_per_s(run_dir)


def _actors(n: int) -> str:
    return "1 actor" if n == 1 else f"{n} actors"
