"""summary.json: how a run ended, in one object; and crash.json, for the ends that should not be."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from border_cli.core.errors import ActorLostError, ExitCode
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
    counters: opt_steps, env_steps, episodes and the like · actors: one entry per actor · exact: whether the run equals
    an uninterrupted one, None where runs cannot be repeated · dropped: records that could not be written, by file.
    """

    ended_by: str
    exit_code: ExitCode
    error: str | None = None
    last: Score | None = None
    best: Score | None = None
    seconds: float = 0.0
    counters: Mapping[str, int] = field(default_factory=dict)
    actors: Sequence[ActorStat] = ()
    exact: bool | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)


class Summary:
    """The summary of one run, in its directory from the start."""

    def __init__(self, run_dir: Path, run_id: str) -> None:
        self._path = run_dir / SUMMARY_FILE
        self._run_id = run_id
        self._saved: dict[str, float] | None = None
        self._inexact = False
        self._config: Mapping[str, Any] = {}

    @classmethod
    def start(
        cls,
        run_dir: Path,
        run_id: str,
        saved: tuple[int, float] | None = None,
        exact: bool | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> Summary:
        """Write it with status "running". Raises OSError when it cannot be written.

        saved: opt step of the checkpoint that a resumed run goes on from, and the seconds until then · exact: as of `End`;
        once it is False it stays so · config: the resolved configuration, as plain data, so that runs can be compared by
        their summaries alone.
        """
        summary = cls(run_dir, run_id)
        summary._config = config or {}
        summary._inexact = exact is False
        if saved is not None:
            summary._saved = {"opt_steps": saved[0], "seconds": saved[1]}
        summary._write("running", None)
        return summary

    def saved(self, opt_steps: int, seconds: float, exact: bool | None = None) -> None:
        """Note that there is a checkpoint, and how long the run took until then. Raises OSError as `start` does."""
        self._saved = {"opt_steps": opt_steps, "seconds": seconds}
        self._inexact |= exact is False
        self._write("running", None)

    def finish(self, end: End) -> None:
        """Write how the run ended. Raises OSError as `start` does, KeyError for an unknown `ended_by`."""
        self._write(_STATUS[end.ended_by], end)

    def _write(self, status: str, end: End | None) -> None:
        data = {"run_id": self._run_id, "status": status, "saved": self._saved} | (
            _NOTHING_YET if end is None else _end_data(end)
        )
        if self._inexact:
            data["exact"] = False
        data["config"] = self._config
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
    "exact": None,
    "records_dropped": {},
}
"""The same keys from the start, so that a reader needs no cases."""


def write_crash(run_dir: Path, error: BaseException) -> Path:
    """Write crash.json: a traceback, where it happened, and the versions it happened with. Returns its path.

    Of an exception in an actor it is the actor's own traceback; `context` says which environment, episode, step and
    action that was. Of any other defect `context` is empty.
    """
    context, lines = dict[str, Any](), traceback.format_exception(error)
    if isinstance(error, ActorLostError):
        context, lines = dict(error.context), error.details.splitlines(keepends=True)
    path = run_dir / CRASH_FILE
    write_json(
        path,
        {
            "error": type(error).__name__,
            "message": str(error),
            "context": context,
            "traceback": lines,
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
        "exact": end.exact,
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
