"""Starts the real command for a campaign, and checks the files and processes that it leaves."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from border_cli.checkpoints.store import list_steps, verify
from tests.faults.commands import Command
from tests.faults.processes import assert_session_ends, processes
from tests.real_runs import Run

ENDS_S = 300.0
"""A run that has not ended by then hangs."""
SHORT = (
    "agent=dqn",
    "env=cartpole",
    "preset=none",
    "recorder.console=none",
    "evaluator.episodes=5",
    "trainer.warmup_period=200",
    "resume=auto",
)


class Started(Command):
    """`border-train` with the given arguments, started in `folder`."""

    def __init__(self, folder: Path, args: Sequence[str]) -> None:
        super().__init__(folder, *args, warm=False)

    def workers(self) -> list[int]:
        """Return the processes that step environments: those with a higher niceness than the learner."""
        nicer = []
        for pid in sorted(processes(session=self.pid)):
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                if int(fields[16]) > 0:
                    nicer.append(pid)
        return nicer

    def end(self) -> int:
        """Wait until all its processes ended. Returns the exit code, negative for a signal. Raises AssertionError."""
        try:
            code = self.wait(ENDS_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.pid, signal.SIGKILL)
            raise AssertionError("it did not end") from None
        assert_session_ends(self.pid)
        return code

    def end_well(self) -> None:
        """Wait for the end. Raises AssertionError unless the exit code is 0."""
        code = self.end()
        assert code == 0, f"exit code {code}: {self.errors}"

    @property
    def errors(self) -> str:
        """Return the end of its stderr."""
        return super().errors[-1500:]


def only_run(folder: Path) -> Run:
    """Return the only run in a folder."""
    runs = [Run(path.parent) for path in sorted(folder.glob("runs/[0-9]*/*/config.yaml"))]
    assert len(runs) == 1, [(run.path.name, run.summary["status"], run.checkpoints) for run in runs]
    return runs[0]


def is_done(folder: Path) -> bool:
    """Whether the run is done. Its process may have been killed after that."""
    runs = folder.glob("runs/[0-9]*/*/summary.json")
    return any(Run(path.parent).summary["status"] == "done" for path in runs)


def check_whole(run: Run, opt_steps: int) -> None:
    """Check that the run is done, its checkpoints verify, and each metric has each step once."""
    summary = run.summary
    assert (summary["status"], summary["counters"]["opt_steps"]) == ("done", opt_steps), summary
    assert summary["last_score"]["opt_steps"] == opt_steps, summary
    for path in list_steps(run.path / "checkpoints"):
        verify(path)
    points = Counter((name, record["opt_steps"]) for record in run.records for name in record if "/" in name)
    twice = [point for point, n in points.items() if n > 1]
    assert not twice, twice[:3]


def attempt(what: Callable[..., None], *arguments: object) -> str:
    """Return the error in one line, or an empty string."""
    try:
        what(*arguments)
    except AssertionError as e:
        return " ".join(str(e).split())[:500] or "an assertion failed"
    return ""


def say(line: str) -> None:
    print(line, flush=True)
