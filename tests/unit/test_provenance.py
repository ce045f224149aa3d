"""provenance.json and the JSON files of a run."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import border_cli
from border_cli.core import json_text
from border_cli.run.summary import read_json, read_run_id, record_launch, write_json


def provenance(run_dir: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((run_dir / "provenance.json").read_text())
    return data


def git(folder: Path, *args: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
    answer = subprocess.run(["git", "-C", str(folder), *identity, *args], check=True, capture_output=True)
    return answer.stdout.decode().strip()


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory outside of any repository."""
    folder = tmp_path / "workplace"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    return folder


def test_provenance_has_versions_host_seeds_and_launches(tmp_path: Path, workplace: Path) -> None:
    run_id = record_launch(tmp_path, ["agent=dqn", "env.kwargs={a: 1}"], seed=7)
    data = provenance(tmp_path)
    assert data.keys() == {"run_id", "versions", "git", "host", "seeds", "launches"}
    assert data["run_id"] == run_id == read_run_id(tmp_path)
    assert data["seeds"] == {"root": 7}
    assert data["versions"].keys() == {
        "python", "border_cli", "torch", "numpy", "gymnasium", "hydra", "safetensors",
    }  # fmt: skip
    assert data["versions"]["border_cli"] == border_cli.__version__
    assert data["host"]["cpu_count"] == os.cpu_count()
    (launch,) = data["launches"]
    assert shlex.split(launch["command"]) == ["border-train", "agent=dqn", "env.kwargs={a: 1}"]
    assert datetime.fromisoformat(launch["time"]).utcoffset() == timedelta(0)
    assert launch["cwd"] == str(workplace)


def test_a_second_launch_is_added_and_each_run_has_its_own_id(tmp_path: Path) -> None:
    first = record_launch(tmp_path, ["seed=1"], seed=1)
    before = provenance(tmp_path)
    assert record_launch(tmp_path, ["resume=here"], seed=1) == first
    after = provenance(tmp_path)
    commands = [launch["command"] for launch in after.pop("launches")]
    assert commands == ["border-train seed=1", "border-train resume=here"]
    before.pop("launches")
    assert after == before
    (tmp_path / "other").mkdir()
    assert record_launch(tmp_path / "other", [], seed=1) != first


@pytest.mark.parametrize("case", ["outside a repository", "without a commit", "without git"])
def test_outside_a_repository_there_is_no_commit(
    tmp_path: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    if case == "without a commit":
        git(workplace, "init", "-q")
    if case == "without git":
        monkeypatch.setenv("PATH", str(tmp_path))
    record_launch(tmp_path, [], seed=0)
    assert provenance(tmp_path)["git"] is None


@pytest.mark.parametrize("dirty", [False, True])
def test_the_commit_and_whether_files_were_changed(tmp_path: Path, workplace: Path, dirty: bool) -> None:
    git(workplace, "init", "-q")
    git(workplace, "commit", "-q", "--allow-empty", "-m", "first")
    if dirty:
        (workplace / "new.py").write_text("")
    record_launch(tmp_path, [], seed=0)
    assert provenance(tmp_path)["git"] == {"commit": git(workplace, "rev-parse", "HEAD"), "dirty": dirty}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"run_id": 5}'])
def test_an_unreadable_id_is_none(tmp_path: Path, text: str) -> None:
    assert read_run_id(tmp_path) is None
    (tmp_path / "provenance.json").write_text(text)
    assert read_run_id(tmp_path) is None
    assert record_launch(tmp_path, [], seed=0) == read_run_id(tmp_path)
    assert len(provenance(tmp_path)["launches"]) == 1  # a damaged file is replaced


def test_a_file_that_cannot_be_replaced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(descriptor: int) -> None:
        raise OSError("no room")

    write_json(tmp_path / "a.json", {"n": 1})
    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match="no room"):
        write_json(tmp_path / "a.json", {"n": 2})
    assert read_json(tmp_path / "a.json") == {"n": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_numbers_that_are_not_finite_are_null(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"b": [float("nan")], "a": (float("inf"), 1.5)})
    text = (tmp_path / "a.json").read_text()
    assert text == '{\n  "a": [\n    null,\n    1.5\n  ],\n  "b": [\n    null\n  ]\n}\n'


def test_an_absurdly_large_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a.json").open("wb") as file:
        file.truncate(json_text.MAX_BYTES + 1)
    with pytest.raises(ValueError, match="larger than"):
        read_json(tmp_path / "a.json")


REFUSED = {
    b"NaN": "NaN is not a number",
    b"[-Infinity]": "not a number",
    b"[" * 100_000: "nested too deeply",
    b"\xff": "utf-8",
    b"[1": "delimiter",
    b'{"a": 1, "a": 2}': "key twice",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:10])
def test_invalid_json_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=REFUSED[text]):
        json_text.decode(text)


@pytest.mark.parametrize("value", [2**128 - 1, -(2**127), 1e308, -0.5, 0, 10**39, None, [1, {"a": "ü"}]])
def test_valid_json_round_trips(value: object) -> None:
    assert json_text.decode(json_text.encode(value)) == value
