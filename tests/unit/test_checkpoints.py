"""Checkpoints: writes are atomic, reads verify checksums, and content comes back unchanged."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from border_cli.checkpoints import store
from border_cli.checkpoints.contents import (
    Files,
    ModelDescription,
    checkpoint_files,
    read_run_state,
    read_scores,
)
from border_cli.config.schema import TrainConfig
from border_cli.core.errors import CheckpointIOError, ExitCode
from border_cli.core.progress import Progress
from border_cli.core.spaces import ActionSpec, EnvSpec, ObsLeaf, ObsSpec
from border_cli.core.state import RunState, State
from border_cli.core.types import Evaluation, ModelInfo
from border_cli.training.checkpointer import MAX_FAILURES, CheckpointManager
from border_cli.training.ratio_limiter import RatioLimiter
from border_cli.training.telemetry import Telemetry
from tests.fakes import COUNTING_SPEC
from tests.trained import read_checkpoint, save_best

FILES = {"model.json": b"{}", "model.bin": b"\x00\x01\x02"}
SPEC = EnvSpec(
    ObsSpec(
        (
            ObsLeaf("obs.a", ("a",), "box", (2, 3), "float32", -1.0, None),
            ObsLeaf("obs.b.0", ("b", 0), "discrete", (), "int64", categories=(5,), start=(2,)),
        )
    ),
    ActionSpec("discrete", n=3, start=1),
)
MODEL = ModelDescription({"type": "dqn", "lr": 0.001}, {"id": "CartPole-v1"}, SPEC, ("plugin",))
SCORE = Evaluation(7, (1.0, 3.0), (10, 20))
GENERATORS = {"replay": {"state": 2**120 + 1}}
WEIGHTS = np.arange(6, dtype=np.float32).reshape(2, 3)
INFO = ModelInfo(7, {"net.weight": WEIGHTS, "net.bias": np.float32(1.5) * np.ones(3)})
AGENT = State(
    {"z": WEIGHTS.T, "count": np.array(3, np.int64), "a": np.zeros((0, 2), np.float32)},
    {"opt_steps": 7, "epsilon": 0.1},
)


def contents(info: ModelInfo = INFO) -> Files:
    state = RunState(AGENT, None, State(), State(), {"limiter": {}}, GENERATORS)
    return checkpoint_files(MODEL, info, state)


def save(folder: Path, **changes: bytes) -> Path:
    """Save a checkpoint of opt step 7. changes: forged content of files, with correct checksums."""
    store.write(folder, store.step_name(7), {**contents(), **changes}, 7)
    return folder / store.step_name(7)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def flipped(path: Path) -> None:
    (path / "model.bin").write_bytes(b"\x00\x01\x03")


def test_files_are_read_back_and_no_temporary_file_remains(tmp_path: Path) -> None:
    store.write(tmp_path, "best", {"model.json": b"old", "other.json": b"old"}, 1)
    path = tmp_path / "best"
    written = store.write(tmp_path, "best", {**FILES, "replay.bin": lambda: b"ab"}, 7)
    assert store.read(path) == (written, {**FILES, "replay.bin": b"ab"})
    assert written.opt_steps == 7
    assert store.read(path, ("replay",))[1] == {"replay.bin": b"ab"}
    assert names(tmp_path) == ["best"]
    assert names(path) == ["manifest.json", "model.bin", "model.json", "replay.bin"]
    assert json.loads((path / "manifest.json").read_text())["files"]["model.json"] == {
        "bytes": 2,
        "sha256": hashlib.sha256(b"{}").hexdigest(),
    }


@pytest.mark.parametrize("name", ["../x.json", "a/b.json", ".hidden.json", "manifest.json", "none", ""])
def test_file_names_outside_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="not a valid name"):
        store.write(tmp_path, "best", {name: b""}, 0)
    files = {name: {"bytes": 1, "sha256": "0" * 64}}
    manifest = {"format_version": 1, "opt_steps": 1, "parts": [], "files": files}
    with pytest.raises(ValueError, match="not a valid name"):
        store.Manifest.decode(json.dumps(manifest).encode())


def lose(path: Path, synced: str) -> None:
    """A disk that loses a byte of a file after it was synced."""
    if synced == "manifest.json":
        flipped(path.parent / ".checkpoint.tmp")


def fail(path: Path, synced: str) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


SYNCED = ["model.json", "model.bin", "manifest.json", ".checkpoint.tmp"]


@pytest.mark.parametrize(
    ("at", "act", "said"), [*((i, fail, "No space left") for i in range(4)), (2, lose, "SHA-256")]
)
def test_every_file_is_synced_and_a_failing_disk_keeps_the_previous_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, act: Callable[[Path, str], None], said: str
) -> None:
    store.write(tmp_path, "best", FILES, 1)
    fsync, synced = os.fsync, list[str]()

    def noted(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)
        if len(synced) == at + 1:
            act(tmp_path / "best", synced[-1])

    monkeypatch.setattr(os, "fsync", noted)
    with pytest.raises(CheckpointIOError, match=said) as caught:
        store.write(tmp_path, "best", FILES, 2)
    assert synced == (SYNCED if act is lose else SYNCED[: at + 1])
    assert caught.value.code == ExitCode.CHECKPOINT_IO
    assert store.verify(tmp_path / "best").opt_steps == 1
    assert names(tmp_path) == ["best"]


def test_a_failing_rename_keeps_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write(tmp_path, "best", FILES, 1)
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name == ".checkpoint.tmp":
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(CheckpointIOError, match="Input/output error"):
        store.write(tmp_path, "best", FILES, 2)
    assert names(tmp_path) == ["best"]
    assert store.verify(tmp_path / "best").opt_steps == 1


@pytest.mark.parametrize(
    ("steps", "damaged", "keep", "left"),
    [
        ([100, 200, 10**9, 300], [], 2, [300, 10**9]),
        ([1, 2, 3, 4, 5, 6], [5], 1, [4, 5, 6]),  # two that verify stay, even if `keep` is smaller
        ([1, 2, 3], [1, 3], 1, [1, 2, 3]),
    ],
)
def test_the_newest_checkpoints_are_kept(
    tmp_path: Path, caplog: Any, steps: list[int], damaged: list[int], keep: int, left: list[int]
) -> None:
    for step in steps:
        store.write(tmp_path, store.step_name(step), FILES, step)
    for step in damaged:
        flipped(tmp_path / store.step_name(step))
    store.prune(tmp_path, keep)
    assert names(tmp_path) == [store.step_name(step) for step in left]
    assert ("fewer than two checkpoints verify" in caplog.text) == (left == steps)


def test_a_checkpoint_replaced_meanwhile_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader has read the manifest of the folder that the writer removes."""
    open_plain = store.open_plain
    store.write(tmp_path, "best", FILES, 1)

    def replace_first(path: Path, links: bool) -> Any:
        if path.name == "model.json":
            monkeypatch.undo()
            store.write(tmp_path, "best", FILES | {"model.json": b"other"}, 2)
        return open_plain(path, links)

    monkeypatch.setattr(store, "open_plain", replace_first)
    assert store.verify(tmp_path / "best").opt_steps == 2


def test_a_crash_between_two_renames_hides_no_checkpoint_and_the_next_save_tidies_up(tmp_path: Path) -> None:
    path = tmp_path / store.step_name(5)
    store.write(tmp_path, path.name, FILES, 5)
    path.rename(store.aside(path))
    assert store.newest_valid(tmp_path) == path
    assert store.read(path)[1] == FILES
    store.write(tmp_path, path.name, FILES, 5)
    shutil.copytree(path, store.aside(path))  # a crash after the second rename
    store.write(tmp_path, path.name, FILES, 5)
    assert names(tmp_path) == [path.name]


def test_a_checkpoint_with_the_opt_steps_of_another_is_refused(tmp_path: Path) -> None:
    """The name of the folder and the manifest's count are what no checksum covers."""
    store.write(tmp_path, store.step_name(5), FILES, 5)
    path = (tmp_path / store.step_name(5)).rename(tmp_path / store.step_name(8))
    with pytest.raises(store.InvalidCheckpointError, match="of opt step 5, and its directory is not"):
        store.read(path)


def test_a_checkpoint_is_read_back_completely(tmp_path: Path) -> None:
    path = save(tmp_path)
    checkpoint = read_checkpoint(path)
    assert checkpoint.opt_steps == checkpoint.model.info.version == 7
    assert checkpoint.model.description == MODEL
    assert checkpoint.generators == GENERATORS
    assert checkpoint.score is None
    np.testing.assert_array_equal(checkpoint.model.info.arrays["net.weight"], WEIGHTS)
    assert checkpoint.training is not None
    assert checkpoint.training.values == AGENT.values
    np.testing.assert_array_equal(checkpoint.training.arrays["z"], WEIGHTS.T)
    assert checkpoint.training.arrays["count"].shape == ()
    assert checkpoint.training.arrays["a"].shape == (0, 2)
    arrays = read_run_state(path, with_replay=False).agent.arrays
    assert arrays.keys() == AGENT.arrays.keys() and all(array.flags.writeable for array in arrays.values())


def test_best_holds_the_model_and_its_scores(tmp_path: Path) -> None:
    path = save_best(tmp_path, INFO.arrays, MODEL, SCORE)
    assert path == tmp_path / "best"
    assert json.loads((path / "score.json").read_text()) == {
        "opt_steps": 7, "episodes": 2, "mean": 2.0, "std": 1.0, "min": 1.0, "max": 3.0,
        "returns": [1.0, 3.0], "lengths": [10, 20], "confirmed": False,
    }  # fmt: skip
    checkpoint = read_checkpoint(path)
    assert (checkpoint.score, checkpoint.training) == (SCORE, None)
    with pytest.raises(store.InvalidCheckpointError, match=r"has no 'training\.safetensors'"):
        read_run_state(path, with_replay=False)
    save_best(tmp_path, {}, MODEL, SCORE, Evaluation(7, (math.nan, 5.0), (30, 30)))
    data = json.loads((path / "score.json").read_text())
    assert (data["mean"], data["regular"]["mean"], data["regular"]["returns"]) == (2.0, None, [None, 5.0])
    score, regular = read_scores(path)
    assert score == SCORE and regular is not None and math.isnan(regular.returns[0])


# -- the checkpoint manager on a failing disk ------------------------------


class Disk:
    """A run directory in which the listed writes of a checkpoint or of best/ fail, counted from 1."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path, refused: Collection[int]) -> None:
        self.writes = 0
        self.written: list[str] = []
        self.telemetry = Telemetry(RatioLimiter(1.0, 0, 64), Progress())
        self._agent: Any = SimpleNamespace()
        self.manager = CheckpointManager(folder, TrainConfig(), COUNTING_SPEC, self._agent, self.telemetry)
        write = store.write

        def write_or_fail(parent: Path, name: str, *rest: Any) -> store.Manifest:
            self.writes += 1
            if self.writes in refused:
                raise CheckpointIOError(f"checkpoint {name} cannot be written: No space left\nthe rest")
            self.written.append(name)
            return write(parent, name, *rest)

        patch.setattr(store, "write", write_or_fail)

    def save(self, *opt_steps: int, last: bool = False) -> None:
        for step in opt_steps:
            self._agent.model_info = lambda step=step: ModelInfo(step, {})
            state = RunState(State(), None, State(), State(), {"limiter": {"opt_steps": step}}, {})
            self.manager.save(state, last)

    def save_best(self, at_the_end: bool = False) -> None:
        score = Evaluation(5, (1.0,), (1,))
        self.manager.save_best(ModelInfo(5, {}), score, score if at_the_end else None)

    @property
    def failed_saves(self) -> float | None:
        return self.telemetry.interval_values(0, 1, [], {}).get("checkpoint/failed_saves")


Make = Callable[..., Disk]


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    return lambda *refused: Disk(monkeypatch, tmp_path, refused)


@pytest.mark.parametrize(
    ("refused", "failed"),
    [([1], []), ([2, 3], [2]), ([1, 2, 3, 4, 6, 7, 8, 9], [1, 2, 4, 5])],
    ids=["repeated at once", "one failed", "a success in between"],
)
def test_c6_a_save_is_repeated_once_and_training_continues_after_two_failures(
    failing: Make, refused: list[int], failed: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    disk = failing(*refused)
    disk.save(1, 2, 3, 4, 5, 6)
    assert disk.written == [f"step-{i:09d}" for i in range(1, 7) if i not in failed]
    assert (disk.failed_saves or 0, disk.manager.saved_at) == (len(failed), 6)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    what = "checkpoint step-{:09d} cannot be written: No space left; training continues"
    assert warnings == [what.format(i) for i in failed]


def test_c6_the_third_failure_in_a_row_or_that_of_the_last_save_ends_the_run(failing: Make) -> None:
    disk = failing(*range(1, 7))
    disk.save(1, 2)
    with pytest.raises(CheckpointIOError) as caught:
        disk.save(3)
    assert caught.value.code == ExitCode.CHECKPOINT_IO
    first, second, _ = str(caught.value).splitlines()
    assert first.endswith("No space left")
    assert second.startswith("3 saves in a row have failed")
    disk = failing(1, 2)
    with pytest.raises(CheckpointIOError, match="it was the last save of the run"):
        disk.save(1, last=True)
    assert disk.manager.saved_at == 0


def test_an_unwritten_best_model_is_first_a_warning(failing: Make, caplog: pytest.LogCaptureFixture) -> None:
    disk = failing(*range(1, 2 * MAX_FAILURES + 1), 9, 10)
    for _ in range(MAX_FAILURES):  # which are no failures of checkpoints
        disk.save_best()
    disk.save(1)
    assert (disk.written, disk.failed_saves) == (["step-000000001"], MAX_FAILURES)
    assert caplog.text.count("best cannot be written: No space left; the next best model") == MAX_FAILURES
    disk.save_best(at_the_end=True)
    with pytest.raises(CheckpointIOError, match="it was the last save of the run"):
        disk.save_best(at_the_end=True)
    assert disk.written == ["step-000000001", "best"]


def test_an_unwritten_best_model_is_written_at_the_end_of_a_run_that_confirms_none(failing: Make) -> None:
    disk = failing(1, 2, 4, 5, 6, 7)
    disk.save_best()
    for _ in range(2):
        disk.manager.save_unwritten_best()
    assert disk.written == ["best"]
    disk.save_best()
    with pytest.raises(CheckpointIOError, match="it was the last save of the run"):
        disk.manager.save_unwritten_best()


def test_c7_an_old_checkpoint_that_cannot_be_removed_is_a_warning(
    failing: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise CheckpointIOError("an old checkpoint cannot be removed")

    disk = failing()
    monkeypatch.setattr(store, "prune", fail)
    disk.save(1, 2)
    assert disk.manager.saved_at == 2 and caplog.text.count("cannot be removed") == 2
