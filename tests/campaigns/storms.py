"""Random signals to random processes at random times. No process must remain, and every run must be resumable."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.campaigns.started import SHORT, Started, attempt, check_whole, is_done, only_run, say
from tests.faults.processes import processes

_CODES = (0, 5, 130, 143, -signal.SIGKILL)
"""5: in lockstep an actor was lost."""
_CODES_BEFORE = (-signal.SIGTERM, -signal.SIGINT, -signal.SIGUSR1)
"""The signal came while Python itself was starting, so there is no run."""
_PROBE_KILLED = "while it made the environment"
"""What is said, with code 2, when the process that looks at the environment is the one that was hit; no run either."""
_INTERPRETER = "init_import_site"
"""In Python's own message when SIGINT ends it while it starts, with code 1."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGKILL, signal.SIGSTOP)


def storms(runs: int, seed: int, first: int = 0) -> int:
    """Return how many storms failed. first: number of the first storm, to repeat one of them."""
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
    args = [
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
    started = Started(folder, args)
    strikes = _strike_often(started, rng)
    code = started.end()
    before = code in _CODES_BEFORE or (code == 2 and _PROBE_KILLED in started.errors)
    before |= code == 1 and _INTERPRETER in started.errors
    before = before and not list(folder.glob("runs/[0-9]*/*/config.yaml"))
    expected = code in _CODES or before or (code == -signal.SIGINT and _is_second(strikes, started.pid))
    assert expected, f"exit code {code} after {strikes}: {started.errors}"
    if not list(folder.glob("runs/[0-9]*/*/summary.json")):
        shutil.rmtree(folder / "runs", ignore_errors=True)
    if not is_done(folder):
        Started(folder, args).end_well()
    check_whole(only_run(folder), 1500)


@dataclass(frozen=True)
class _Strike:
    """A signal to the process `pid`, or to its group."""

    signal: signal.Signals
    pid: int
    group: bool


def _strike_often(started: Started, rng: random.Random) -> list[_Strike]:
    """Send signals until the run ends or enough were sent, and return them. Continue stopped processes."""
    strikes: list[_Strike] = []
    for _ in range(rng.randint(1, 4)):
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.wait(rng.uniform(0.0, 2.5))
        if started.poll() is not None:
            break
        strikes.append(_strike(started.pid, rng))
    for strike in strikes:
        if strike.signal == signal.SIGSTOP:
            with contextlib.suppress(ProcessLookupError):
                os.kill(strike.pid, signal.SIGCONT)
    return strikes


def _strike(main: int, rng: random.Random) -> _Strike:
    number = rng.choice(SIGNALS)
    target = rng.choice(["main", "group", "any"])
    members = sorted(processes(session=main))
    pid = main if target != "any" or not members else rng.choice(members)
    group = target == "group" and number != signal.SIGSTOP
    with contextlib.suppress(ProcessLookupError):
        (os.killpg if group else os.kill)(pid, number)
    return _Strike(number, pid, group)


def _is_second(strikes: list[_Strike], main: int) -> bool:
    """Whether SIGINT followed an earlier request to stop. The signal then ends the command at once."""
    asked = [strike.signal for strike in strikes if strike.pid == main]
    ending = [i for i, number in enumerate(asked) if number in (signal.SIGINT, signal.SIGTERM)]
    return bool(ending) and signal.SIGINT in asked[ending[0] + 1 :]
