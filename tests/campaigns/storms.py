"""Random signals to random processes at random times; nothing stays behind, and every run can be gone on with."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from tests.campaigns.started import SHORT, Started, attempt, check_whole, is_done, only_run, say
from tests.faults.processes import processes

_CODES = (0, 5, 130, 143, -signal.SIGKILL)
"""5: in lockstep an actor was lost."""
_CODES_BEFORE = (-signal.SIGTERM, -signal.SIGINT, -signal.SIGUSR1)
"""It came before Python had begun with us; there is no run then."""
_PROBE_KILLED = "while it made the environment"
"""What is said, with code 2, when the process that looks at the environment is the one that was hit; no run either."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGKILL, signal.SIGSTOP)


def storms(runs: int, seed: int, first: int = 0) -> int:
    """How many failed. first: number of the first one, to have one of them again."""
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for i in range(first, first + runs):
            rng = random.Random(f"{seed} {i}")
            error = attempt(_storm, Path(folder) / str(i), rng)
            failed += bool(error)
            say(f"storm {i}: {error or 'well'}")
            if not error:
                shutil.rmtree(Path(folder) / str(i))
    return failed


def _storm(folder: Path, rng: random.Random) -> None:
    words = [
        *SHORT,
        "n_actors=3",
        "trainer.max_opts=1500",
        "trainer.eval_interval=200",
        "trainer.save_interval=100",
        "actor_manager.heartbeat_timeout_s=2",
        "actor_manager.stop_timeout_s=2",
        rng.choice(["trainer.lockstep=true", "actor_manager.restart_delay_s=0.1"]),
        rng.choice(["evaluator=inline", "evaluator=process"]),
    ]
    started = Started(folder, words)
    frozen: list[int] = []
    for _ in range(rng.randint(1, 4)):
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.process.wait(rng.uniform(0.0, 2.5))
        if started.process.poll() is not None:
            break
        _strike(started.process.pid, rng, frozen)
    for pid in frozen:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    code = started.end()
    before = code in _CODES_BEFORE or (code == 2 and _PROBE_KILLED in started.errors)
    before = before and not list(folder.glob("runs/[0-9]*/*/config.yaml"))
    assert code in _CODES or before, f"exit code {code}: {started.errors}"
    if not list(folder.glob("runs/[0-9]*/*/summary.json")):
        shutil.rmtree(folder / "runs", ignore_errors=True)
    if not is_done(folder):
        Started(folder, words).end_well()
    check_whole(only_run(folder), 1500)


def _strike(main: int, rng: random.Random, frozen: list[int]) -> None:
    number = rng.choice(SIGNALS)
    target = rng.choice(["main", "group", "any"])
    members = sorted(processes(session=main))
    pid = main if target != "any" or not members else rng.choice(members)
    with contextlib.suppress(ProcessLookupError):
        if number == signal.SIGSTOP:
            os.kill(pid, number)
            frozen.append(pid)
        elif target == "group":
            os.killpg(main, number)
        else:
            os.kill(pid, number)
