"""provenance.json, summary.json and crash.json. What a whole run writes into them: integration/test_run_directory.py."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from border_cli.config.schema import TrainConfig
from border_cli.core.errors import ActorLostError, ExitCode, Interrupted, UsageError
from border_cli.core.state import MAX_JSON_BYTES
from border_cli.run.directory import Launch
from border_cli.run.summary import (
    SUMMARY_FILE,
    RunFiles,
    read_json,
    read_or_empty,
    read_run_id,
    record_launch,
    write_crash,
    write_json,
)


def provenance(run_dir: Path) -> dict[str, Any]:
    return read_json(run_dir / "provenance.json")


@pytest.mark.parametrize("text", ["", '{"run_id": 5}'])
def test_a_damaged_provenance_is_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / "provenance.json").write_text(text)
    assert read_run_id(tmp_path) is None
    assert record_launch(tmp_path, [], seed=0) == read_run_id(tmp_path)
    assert len(provenance(tmp_path)["launches"]) == 1


@pytest.mark.parametrize("dirty", [None, False, True], ids=["outside a repository", "clean", "dirty"])
def test_commit_and_changed_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dirty: bool | None
) -> None:
    def git(*args: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
        answer = subprocess.run(["git", *identity, *args], check=True, capture_output=True, text=True)
        return answer.stdout.strip()

    workplace, expected = tmp_path / "workplace", None
    workplace.mkdir()
    monkeypatch.chdir(workplace)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    if dirty is not None:
        git("init", "-q")
        git("commit", "-q", "--allow-empty", "-m", "first")
        expected = {"commit": git("rev-parse", "HEAD"), "dirty": dirty}
    if dirty:
        (workplace / "new.py").write_text("")
    record_launch(tmp_path, [], seed=0)
    assert provenance(tmp_path)["git"] == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Interrupted(ExitCode.SIGTERM), ("stopped", "sigterm", 143, None)),
        (UsageError("mistyped"), ("failed", "error", 2, "mistyped")),
        (RuntimeError("a defect"), ("failed", "error", 1, "a defect")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_summary_of_an_early_end(tmp_path: Path, error: BaseException, expected: tuple[Any, ...]) -> None:
    files = RunFiles(TrainConfig(), tmp_path, Launch([]), None)
    files.start()
    running = read_or_empty(tmp_path / SUMMARY_FILE)
    keys = ("status", "ended_by", "exit_code", "error")
    assert [running[key] for key in keys] == ["running", None, None, None]
    files.failed(error)
    ended = read_or_empty(tmp_path / SUMMARY_FILE)
    assert tuple(ended[key] for key in keys) == expected
    assert ended.keys() == running.keys() and ended["run_id"] == read_run_id(tmp_path)
    assert (tmp_path / "crash.json").exists() == (ended["exit_code"] == ExitCode.DEFECT)


def test_a_summary_that_cannot_be_written_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files: Any = RunFiles(TrainConfig(), tmp_path, Launch([]), None)
    files.start()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    files.loop = type(
        "Loop", (), {"parts": type("Parts", (), {"telemetry": type("T", (), {"seconds": 1.0})})}
    )
    files.saved(10)
    assert "summary.json cannot be written: No space left" in caplog.text
    assert read_or_empty(tmp_path / SUMMARY_FILE)["saved"] is None
    assert [entry.name for entry in tmp_path.glob(".*")] == []


def test_a_crash_keeps_the_traceback_with_its_causes_or_that_of_the_actor(tmp_path: Path) -> None:
    error = RuntimeError("the defect")
    error.__cause__ = ValueError("the cause")
    data = read_json(write_crash(tmp_path, error))
    assert (data["error"], data["message"], data["context"]) == ("RuntimeError", "the defect", {})
    assert "the cause" in "".join(data["traceback"]) and data["versions"]["python"]
    context = {"actor": 2, "incarnation": 1, "env": 0, "episode": 3, "step": 17, "action": [0.5]}
    lost = ActorLostError("actor 2 failed", "Traceback\n  in its env\n", context)
    data = read_json(write_crash(tmp_path, lost))
    assert (data["context"], data["traceback"]) == (context, ["Traceback\n", "  in its env\n"])


def test_numbers_that_are_not_finite_are_null_and_a_large_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"b": [float("nan")], "a": (float("inf"), 1.5)})
    assert path.read_text() == '{\n  "a": [\n    null,\n    1.5\n  ],\n  "b": [\n    null\n  ]\n}\n'
    with path.open("wb") as file:
        file.truncate(MAX_JSON_BYTES + 1)
    with pytest.raises(ValueError, match="larger than"):
        read_json(path)
