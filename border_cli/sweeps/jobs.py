"""The jobs of a sweep, and sweep.jsonl, the journal of their states: where a sweep continues."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from border_cli.core.errors import ExitCode, UsageError
from border_cli.core.progress import JobProgress
from border_cli.core.state import finite_or_null
from border_cli.recorders.files import AppendedFile
from border_cli.run.directory import CONFIG_FILE, RUNS, SWEEP_FILE, SWEEPS
from border_cli.run.summary import SUMMARY_FILE, mean_score, read_or_empty
from border_cli.runtime.files import open_plain

WAITING, RUNNING, DONE, STOPPED, FAILED = "waiting", "running", "done", "stopped", "failed"
STATES = (WAITING, RUNNING, DONE, STOPPED, FAILED)
"""Stopped: the run has started and can be resumed."""


@dataclass
class Job:
    """One run of a sweep.

    overrides: those of the command with the values of this job, without those that do not change what it learns · run_dir:
    which may not exist yet · exit_code: of its last process; None before one has ended · error: what a failed job said, one
    line · summary: the run's summary.json, empty where there is none.
    """

    number: int
    overrides: tuple[str, ...]
    run_dir: Path
    state: str = WAITING
    exit_code: int | None = None
    error: str = ""
    summary: dict[str, Any] = field(default_factory=dict)

    def refresh(self) -> None:
        """Read the state of the run from its directory, after its process has ended.

        A job that waits although its run has failed was put back because it had no room beside other jobs.
        """
        self.summary = read_or_empty(self.run_dir / SUMMARY_FILE)
        status = self.summary.get("status")
        if status == DONE:
            self.state, self.exit_code, self.error = DONE, 0, ""
        elif FAILED in (status, self.state):
            self.state = WAITING if self.state == WAITING else FAILED
        else:  # with a configuration there is a run to resume
            self.state = STOPPED if (self.run_dir / CONFIG_FILE).exists() else WAITING

    def end(self, code: int, error: str) -> None:
        """Note how the job's process has ended: with this exit code, negative for a signal that killed it."""
        self.exit_code = code if code >= 0 else 128 - code  # as a shell has it
        self.state = STOPPED if self.exit_code in (ExitCode.SIGINT, ExitCode.SIGTERM) else FAILED
        self.error = error
        self.refresh()

    @property
    def best(self) -> float | None:
        return mean_score(self.summary, "best_score")

    @property
    def last(self) -> float | None:
        return mean_score(self.summary, "last_score")

    @property
    def progress(self) -> JobProgress:
        """The progress of the run by its directory, while no process reports more."""
        phase = "starting" if self.state == RUNNING else self.state
        fraction = 1.0 if self.state == DONE else None
        return JobProgress(phase, self.summary.get("seconds"), fraction, last=self.last, best=self.best)

    def to_json(self, folder: Path) -> dict[str, Any]:
        """The line in the journal."""
        counters = self.summary.get("counters") or {}
        run = self.run_dir.relative_to(folder) if self.run_dir.is_relative_to(folder) else self.run_dir
        return {
            "number": self.number,
            "overrides": list(self.overrides),
            "run": str(run),
            "state": self.state,
            "exit_code": self.exit_code,
            "error": self.error or None,
            "seed": (self.summary.get("config") or {}).get("seed"),
            "best": self.best,
            "last": self.last,
            "opt_steps": counters.get("opt_steps"),
            "env_steps": counters.get("env_steps"),
            "seconds": self.summary.get("seconds"),
        }


@dataclass
class Sweep:
    """A sweep in its folder.

    Its journal, sweep.jsonl, is only appended to: first a line with the id and the arguments, then a line for each change
    of a job. The last line of a job counts.

    argv: the arguments that determine the jobs (see `job_argv`).
    """

    folder: Path
    argv: list[str]
    sweep_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    jobs: list[Job] = field(default_factory=list)
    _end: int = 0  # of the last whole line of the journal [bytes]
    _saved: dict[int, dict[str, Any]] = field(default_factory=dict)  # the entry of each job in the journal
    _shared: frozenset[str] | None = None  # the overrides that all jobs have, once they are known

    @classmethod
    def read(cls, folder: Path) -> Sweep:
        """The sweep that a folder holds. Raises UsageError where it cannot be read."""
        path = folder / SWEEP_FILE
        try:
            with open_plain(path) as file:
                lines = file.read().splitlines(keepends=True)
            if lines and not lines[-1].endswith(b"\n"):  # torn: the sweep was killed
                lines.pop()
            head, *entries = [json.loads(line) for line in lines]
            saved = {int(entry["number"]): entry for entry in entries}
            jobs = []
            for number, entry in sorted(saved.items()):
                overrides, run_dir = tuple(map(str, entry["overrides"])), folder / str(entry["run"])
                end = str(entry["state"]), entry["exit_code"], entry["error"] or ""
                jobs.append(Job(number, overrides, run_dir, *end))
            argv = [str(word) for word in head["argv"]]
            return cls(folder, argv, str(head["sweep_id"]), jobs, sum(map(len, lines)), saved)
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise UsageError(f"{path} cannot be read: {type(e).__name__}: {e}") from e

    def add(self, overrides: Sequence[str], place: Callable[[int], Path]) -> Job:
        """The job with these overrides: that of an earlier launch with its results, or a new one.

        place: returns the run directory of the job with this number.
        """
        words = tuple(job_argv(overrides))
        job = next((job for job in self.jobs if job.overrides == words), None)
        number = len(self.jobs) if job is None else job.number
        run_dir = place(number)
        if job is None:
            job = Job(number, words, run_dir)
            self.jobs.append(job)
            self._shared = None
        job.refresh()
        return job

    def save(self, *jobs: Job) -> None:
        """Append the changes of these jobs, or of all, to the journal. Raises OSError; a later call tries again."""
        entries = {job.number: job.to_json(self.folder) for job in jobs or self.jobs}
        changed = {number: entry for number, entry in entries.items() if self._saved.get(number) != entry}
        head = [] if self._end else [{"sweep_id": self.sweep_id, "argv": self.argv}]
        text = "".join(f"{json.dumps(finite_or_null(entry))}\n" for entry in (*head, *changed.values()))
        if text:
            file = AppendedFile(self.folder / SWEEP_FILE, self._end)
            file.append(text.encode("ascii"))
            self._end = file.end
        self._saved |= changed

    def settings(self, job: Job) -> str:
        """The overrides of a job that not all jobs share. If it is the only job, all of them."""
        if self._shared is None:
            every = [frozenset(job.overrides) for job in self.jobs]
            self._shared = frozenset.intersection(*every) if len(every) > 1 else frozenset()
        return " ".join(word.lstrip("+") for word in job.overrides if word not in self._shared)

    def title(self, job: Job) -> str:
        """What messages call a job."""
        return f"job {job.number} ({self.settings(job)})"


_NOT_OF_JOBS = ("sweep.", "recorder.console=", "debug=", "hydra.sweep.dir=")
"""Beginnings of arguments that do not change what the jobs learn."""


def job_argv(argv: Iterable[str]) -> list[str]:
    """The arguments that determine the jobs of a sweep. A command with the same ones continues it."""
    words = (word for word in argv if word not in ("-m", "--multirun"))
    return [word for word in words if not word.lstrip("+").startswith(_NOT_OF_JOBS)]


def newest_sweep(argv: Sequence[str]) -> Path | None:
    """The newest sweep with these arguments, None where there is none."""
    for path in sorted((RUNS / SWEEPS).glob(f"*/*/{SWEEP_FILE}"), reverse=True):
        if read_head(path).get("argv") == list(argv):
            return path.parent
    return None


def read_head(path: Path) -> dict[str, Any]:
    """The first line of a journal, with `sweep_id` and `argv`; empty where it cannot be read."""
    with contextlib.suppress(OSError, ValueError), open_plain(path) as file:
        head = json.loads(file.readline())
        if isinstance(head, dict):
            return head
    return {}
