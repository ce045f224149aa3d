"""summary.json: how a run ended, in one object; and crash.json, for the ends that should not be."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from border_cli.core.errors import ExitCode
from border_cli.core.protocols import ActorStat
from border_cli.runs.json_file import write_json
from border_cli.runs.provenance import versions

SUMMARY_FILE = "summary.json"
CRASH_FILE = "crash.json"

_STATUS = {
    "max_opts": "done",
    "max_env_steps": "done",
    "max_time": "done",
    "stop_return": "done",
    "sigint": "stopped",
    "sigterm": "stopped",
    "error": "failed",
}
"""Status by what ended the run; until then, and for ever if the process was killed, it is "running"."""

Score = tuple[int, float]
"""Opt step and mean return of an evaluation."""


@dataclass(frozen=True)
class End:
    """How a run ended.

    ended_by: a budget's name, "stop_return", "sigint", "sigterm" or "error" · error: its message ·
    last, best: scores, None before the first evaluation · seconds: how long the run took ·
    counters: opt_steps, env_steps, episodes and the like · actors: one entry per actor ·
    dropped: records that could not be written, by file.
    """

    ended_by: str
    exit_code: ExitCode
    error: str | None = None
    last: Score | None = None
    best: Score | None = None
    seconds: float = 0.0
    counters: Mapping[str, int] = field(default_factory=dict)
    actors: Sequence[ActorStat] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)


class Summary:
    """The summary of one run, in its directory from the start."""

    def __init__(self, run_dir: Path, run_id: str) -> None:
        self._path = run_dir / SUMMARY_FILE
        self._run_id = run_id

    @classmethod
    def start(cls, run_dir: Path, run_id: str) -> Summary:
        """Write it with status "running". Raises OSError when it cannot be written."""
        summary = cls(run_dir, run_id)
        summary._write("running", None)
        return summary

    def finish(self, end: End) -> None:
        """Write how the run ended. Raises OSError as `start` does, KeyError for an unknown `ended_by`."""
        self._write(_STATUS[end.ended_by], end)

    def _write(self, status: str, end: End | None) -> None:
        data = {"run_id": self._run_id, "status": status} | (_NOTHING_YET if end is None else _end_data(end))
        write_json(self._path, data)


_NOTHING_YET: dict[str, Any] = {
    "ended_by": None,
    "exit_code": None,
    "error": None,
    "last_score": None,
    "best_score": None,
    "seconds": None,
    "counters": {},
    "throughput": {},
    "actors": [],
    "records_dropped": {},
}
"""The same keys from the start, so that a reader needs no cases."""


def write_crash(run_dir: Path, error: BaseException) -> Path:
    """Write crash.json: the traceback of a defect and the versions it happened with. Returns its path."""
    path = run_dir / CRASH_FILE
    write_json(
        path,
        {
            "error": type(error).__name__,
            "message": str(error),
            "traceback": traceback.format_exception(error),
            "versions": versions(),
        },
    )
    return path


def _end_data(end: End) -> dict[str, Any]:
    return {
        "ended_by": end.ended_by,
        "exit_code": int(end.exit_code),
        "error": end.error,
        "last_score": _score_data(end.last),
        "best_score": _score_data(end.best),
        "seconds": end.seconds,
        "counters": dict(end.counters),
        "throughput": _throughput(end.counters, end.seconds),
        "actors": [asdict(actor) | {"samples_per_sec": actor.samples_per_sec} for actor in end.actors],
        "records_dropped": dict(end.dropped),
    }


def _score_data(score: Score | None) -> dict[str, Any] | None:
    return None if score is None else {"opt_steps": score[0], "mean": score[1]}


def _throughput(counters: Mapping[str, int], seconds: float) -> dict[str, float]:
    """Over the whole run; empty for one that took no time."""
    if seconds <= 0:
        return {}
    return {
        "opt_steps_per_sec": counters.get("opt_steps", 0) / seconds,
        "samples_per_sec": counters.get("env_steps", 0) / seconds,
    }
