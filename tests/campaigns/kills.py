"""Runs that are killed with all their processes at a random moment, then continued by the same command."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.campaigns.started import SHORT, Started, attempt, check_whole, is_done, only_run, say
from tests.interrupted import assert_same_bits
from tests.real_runs import Run


def kills(runs: int, seed: int, lockstep: bool, opt_steps: int, first: int = 0) -> int:
    """Return how many runs failed. first: number of the first run, to repeat one of them."""
    args = [
        *SHORT,
        "n_actors=2",
        "trainer.opt_interval=16",
        "buffer.capacity=30000",  # fewer rows than env steps, in more than one block
        f"trainer.max_opts={opt_steps}",
        f"trainer.eval_interval={opt_steps // 6}",
        f"trainer.save_interval={opt_steps // 10}",
        f"trainer.lockstep={str(lockstep).lower()}",
    ]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        began = time.monotonic()
        Started(root / "whole", args).end_well()
        seconds = time.monotonic() - began
        whole = only_run(root / "whole")
        check_whole(whole, opt_steps)
        failed = 0
        for i in range(first, first + runs):
            rng = random.Random(f"{seed} {i}")
            at = rng.uniform(0, 0.85 * seconds), rng.uniform(0, 0.85 * seconds)
            error = attempt(_killed_twice, root / str(i), args, at, opt_steps, whole if lockstep else None)
            failed += bool(error)
            say(f"kill {i} at {at[0]:.2f} and {at[1]:.2f} s of {seconds:.1f}: {error or 'well'}")
            if not error:
                shutil.rmtree(root / str(i))
    return failed


def _killed_twice(
    folder: Path, args: list[str], at: tuple[float, float], opt_steps: int, whole: Run | None
) -> None:
    """Kill a run twice, the second time after it was continued, unless it is done before."""
    _kill(folder, args, at[0], may_exist=False)
    _kill(folder, args, at[1], may_exist=True)
    Started(folder, args).end_well()
    run = only_run(folder)
    check_whole(run, opt_steps)
    if whole is not None:
        assert_same_bits(run, whole)


def _kill(folder: Path, args: Sequence[str], at: float, *, may_exist: bool) -> None:
    """Kill the process group after `at` seconds, or when the run is done. may_exist: whether a run may already exist."""
    kept = folder.with_name(f"{folder.name}-before")
    if may_exist:
        shutil.copytree(folder, kept, symlinks=True)
    while not _killed(folder, args, at):
        shutil.rmtree(folder)
        if may_exist:
            shutil.copytree(kept, folder, symlinks=True)
        at *= 0.7
    _check_readable(folder)
    shutil.rmtree(kept, ignore_errors=True)
    if not list(folder.glob("runs/[0-9]*/*/summary.json")):
        shutil.rmtree(folder / "runs", ignore_errors=True)  # killed before it made a run


def _check_readable(folder: Path) -> None:
    """Check that every complete line of records is readable (row h1)."""
    for path in folder.glob("runs/[0-9]*/*/metrics.jsonl"):
        for line in path.read_bytes().split(b"\n")[:-1]:
            json.loads(line)


def _killed(folder: Path, args: Sequence[str], at: float) -> bool:
    """Whether the whole group was killed after so long [s]; False if the run was done before.

    It may be done and not have ended yet: the same command would begin another one.
    """
    victim = Started(folder, args)
    with contextlib.suppress(subprocess.TimeoutExpired):
        victim.wait(at)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(victim.pid, signal.SIGKILL)
    ended = victim.end() == 0
    return not ended and not is_done(folder)
