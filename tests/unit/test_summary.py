"""summary.json and crash.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from border_cli.core.errors import ActorLostError, ExitCode
from border_cli.core.progress import RunResult
from border_cli.core.types import ActorStat, Evaluation
from border_cli.run.summary import Summary, write_crash


def read(run_dir: Path, name: str = "summary.json") -> dict[str, Any]:
    data: dict[str, Any] = json.loads((run_dir / name).read_text())
    return data


AT_START = {
    "run_id": "id",
    "status": "running",
    **dict.fromkeys(
        (
            "saved",
            "ended_by",
            "exit_code",
            "error",
            "last_score",
            "best_score",
            "start_score",
            "seconds",
            "exact",
        )
    ),
    **{"counters": {}, "throughput": {}, "actors": [], "records_dropped": {}, "config": {}},
    **{"bound": "", "expected": "", "best_confirmed": False},
}


def test_the_summary_exists_from_the_start_and_is_complete_at_the_end(tmp_path: Path) -> None:
    result = RunResult(
        "max_env_steps",
        last=Evaluation(900, (20.5,), (1,)),
        best=Evaluation(600, (20.0, 22.0), (1, 1)),
        best_confirmed=True,
        opt_steps=1_000,
        env_steps=3_000,
        episodes=5,
        seconds=10.0,
        samples_per_opt_step=2.5,
        actors=[ActorStat(0, 1, 300, 5, 10.0, 2.5, "stopped")],
        bound="learner-bound",
        expected="promised 20: reached with 21.0",
        dropped={"metrics.jsonl": 3},
    )
    summary = Summary(tmp_path, "id")
    assert read(tmp_path) == AT_START
    summary.finish(result)
    assert read(tmp_path) == AT_START | {
        "status": "done",
        "ended_by": "max_env_steps",
        "exit_code": 0,
        "last_score": {"opt_steps": 900, "mean": 20.5},
        "best_score": {"opt_steps": 600, "mean": 21.0},
        "best_confirmed": True,
        "seconds": 10.0,
        "counters": {"opt_steps": 1_000, "env_steps": 3_000, "episodes": 5},
        "throughput": {"opt_steps_per_sec": 100.0, "samples_per_sec": 300.0, "samples_per_opt_step": 2.5},
        "bound": "learner-bound",
        "expected": "promised 20: reached with 21.0",
        "actors": [
            {"actor": 0, "incarnation": 1, "env_steps": 300, "episodes": 5, "seconds": 10.0}
            | {"blocked_seconds": 2.5, "state": "stopped", "exact": True, "restarts": 0}
            | {"samples_per_sec": 30.0, "dropped": 0, "env_steps_before": 0}
        ],
        "records_dropped": {"metrics.jsonl": 3},
    }


@pytest.mark.parametrize(
    ("ended_by", "status"),
    [
        *((budget, "done") for budget in ("max_opts", "max_env_steps", "max_time", "stop_return")),
        ("sigint", "stopped"),
        ("sigterm", "stopped"),
        ("error", "failed"),
    ],
)
def test_the_status_follows_from_the_reason_of_the_end(tmp_path: Path, ended_by: str, status: str) -> None:
    Summary(tmp_path, "id").finish(RunResult(ended_by, ExitCode.DONE))
    assert read(tmp_path)["status"] == status


def test_an_unknown_reason_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        Summary(tmp_path, "id").finish(RunResult("boredom", ExitCode.DONE))
    assert read(tmp_path)["status"] == "running"


def test_a_run_that_is_not_exact_stays_so_after_any_end(tmp_path: Path) -> None:
    summary = Summary(tmp_path, "id", exact=False)
    assert read(tmp_path)["exact"] is False  # also if it is resumed after a kill
    summary.saved(10, 1.0, exact=True)
    summary.finish(RunResult("error", ExitCode.DEFECT))
    assert read(tmp_path)["exact"] is False
    summary = Summary(tmp_path, "id", exact=True)
    assert read(tmp_path)["exact"] is None  # not known yet
    summary.saved(20, 2.0, exact=False)
    assert read(tmp_path)["exact"] is False


def test_an_early_end_has_no_throughput_and_a_nan_score_is_null(tmp_path: Path) -> None:
    score = Evaluation(1, (float("nan"),), (1,))
    Summary(tmp_path, "id").finish(RunResult("error", ExitCode.NON_FINITE, last=score, error="not finite"))
    data = read(tmp_path)
    assert data.keys() == AT_START.keys()
    assert (data["exit_code"], data["error"], data["throughput"]) == (4, "not finite", {})
    assert data["last_score"] == {"opt_steps": 1, "mean": None}


def test_a_crash_keeps_the_traceback_and_its_causes(tmp_path: Path) -> None:
    def failing() -> None:
        try:
            raise ValueError("the cause")
        except ValueError as e:
            raise RuntimeError("the defect") from e

    with pytest.raises(RuntimeError) as caught:
        failing()
    path = write_crash(tmp_path, caught.value)
    data = read(tmp_path, path.name)
    assert (data["error"], data["message"]) == ("RuntimeError", "the defect")
    text = "".join(data["traceback"])
    assert "the cause" in text and "in failing" in text
    assert data["context"] == {}
    assert data["versions"]["python"]


def test_a_crash_of_an_actor_has_the_actors_traceback(tmp_path: Path) -> None:
    context = {"actor": 2, "incarnation": 1, "env": 0, "episode": 3, "step": 17, "action": [0.5]}
    path = write_crash(tmp_path, ActorLostError("actor 2 failed", "Traceback\n  in its env\n", context))
    data = read(tmp_path, path.name)
    assert data["context"] == context
    assert data["traceback"] == ["Traceback\n", "  in its env\n"]
