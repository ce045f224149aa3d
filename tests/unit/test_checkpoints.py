"""Checkpoints: written whole or not at all, believed only with their checksums, read back as they were."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from border_cli.checkpoints import store
from border_cli.checkpoints.contents import (
    ModelDescription,
    read_checkpoint,
    read_model,
    read_run_state,
    save_best,
    save_checkpoint,
)
from border_cli.checkpoints.manifest import FileEntry, Manifest
from border_cli.core.errors import CheckpointIOError, ExitCode, NoValidCheckpointError
from border_cli.core.protocols import Agent, Evaluation, ModelInfo
from border_cli.core.spaces import ActionSpec, EnvSpec, ObsLeaf, ObsSpec
from border_cli.core.state import RunState, State

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
COUNTERS = {"opt_steps": 7, "env_steps": 70, "episodes": 3, "best_score": None}
GENERATORS = {"replay": {"state": 2**120 + 1}}


class FakeAgent:
    """What a checkpoint takes from an agent."""

    def __init__(self, opt_steps: int = 7) -> None:
        self.opt_steps = opt_steps
        self.weights = np.arange(6, dtype=np.float32).reshape(2, 3)

    def model_info(self) -> ModelInfo:
        return ModelInfo(
            self.opt_steps, {"net.weight": self.weights, "net.bias": np.float32(1.5) * np.ones(3)}
        )

    def state(self) -> State:
        tensors = {"z": self.weights.T, "count": np.array(3, np.int64), "a": np.zeros((0, 2), np.float32)}
        return State(tensors, {"opt_steps": self.opt_steps, "epsilon": 0.1})


def save(folder: Path, opt_steps: int = 7, keep: int = 3) -> Path:
    agent: Agent = FakeAgent(opt_steps)  # type: ignore[assignment]
    return save_checkpoint(folder, MODEL, agent.model_info(), run_state(agent), COUNTERS, keep)


def run_state(agent: Agent, **changes: Any) -> RunState:
    state = RunState(agent.state(), None, State(), State(), {"limiter": {}}, GENERATORS)
    return replace(state, **changes)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def rewrite_manifest(path: Path, **changes: Any) -> None:
    file = path / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


# -- a manifest ------------------------------------------------------------


def test_the_manifest_by_hand(tmp_path: Path) -> None:
    path = store.write(tmp_path, "step-000000007", FILES, 7)
    assert json.loads((path / "manifest.json").read_text()) == {
        "format_version": 1,
        "opt_steps": 7,
        "parts": ["model"],
        "files": {
            name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in FILES.items()
        },
    }


def test_a_manifest_comes_back() -> None:
    manifest = Manifest(3, {"replay.obs.npy": FileEntry(5, "0" * 64), "model.json": FileEntry(0, "a" * 64)})
    assert Manifest.decode(manifest.encode()) == manifest
    assert manifest.parts == ("model", "replay")


GOOD = {
    "format_version": 1,
    "opt_steps": 1,
    "parts": ["a"],
    "files": {"a.b": {"bytes": 1, "sha256": "0" * 64}},
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format_version": 2}, "format_version 2"),
        ({"opt_steps": -1}, "opt_steps is -1"),
        ({"opt_steps": True}, "opt_steps is True"),
        ({"parts": ["b"]}, "parts"),
        ({"files": {}}, "no list of files"),
        ({"files": [1]}, "no list of files"),
        ({"files": {"../x.y": GOOD["files"]["a.b"]}}, "no name of a checkpoint's file"),  # type: ignore[index]
        ({"files": {"/etc/passwd": GOOD["files"]["a.b"]}}, "no name of a checkpoint's file"),  # type: ignore[index]
        ({"files": {"manifest.json": GOOD["files"]["a.b"]}}, "no name of a checkpoint's file"),  # type: ignore[index]
        ({"files": {"a.b": {"bytes": 10**30, "sha256": "0" * 64}}}, "more than"),
        ({"files": {"a.b": {"bytes": 2**32 + 1, "sha256": "0" * 64}}}, "more than any checkpoint"),
        ({"files": {"a.json": {"bytes": 2**23 + 1, "sha256": "0" * 64}}}, "more than any checkpoint"),
        ({"files": {"a.b": {"bytes": 1, "sha256": "xyz"}}}, "sha256"),
        ({"files": {"a.b": {"bytes": 1}}}, "bytes and sha256"),
    ],
)
def test_manifests_that_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Manifest.decode(json.dumps(GOOD | changes).encode())


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"\xff", b'{"format_version": NaN}', b"[" * 100_000])
def test_what_is_no_manifest(text: bytes) -> None:
    with pytest.raises(ValueError):
        Manifest.decode(text)


# -- writing and reading ------------------------------------------------------------


def test_files_come_back_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = store.write(tmp_path, "best", FILES, 7)
    manifest, files = store.read(path)
    assert (manifest.opt_steps, files) == (7, FILES)
    assert names(tmp_path) == ["best"]
    assert names(path) == ["manifest.json", "model.bin", "model.json"]


def test_only_the_wanted_parts_are_returned(tmp_path: Path) -> None:
    path = store.write(tmp_path, "best", {"model.json": b"1", "replay.obs.npy": b"2"}, 0)
    assert store.read(path, ("replay",))[1] == {"replay.obs.npy": b"2"}


def test_a_writer_streams(tmp_path: Path) -> None:
    def three_blocks(sink: store.Sink) -> None:
        for block in (b"ab", memoryview(np.array([1], np.int64)), b""):
            sink.write(block)

    path = store.write(tmp_path, "best", {"replay.bin": three_blocks}, 0)
    assert store.read(path)[1]["replay.bin"] == b"ab" + np.array([1], np.int64).tobytes()


@pytest.mark.parametrize("name", ["../x.json", "a/b.json", ".hidden.json", "manifest.json", "none", ""])
def test_file_names_that_could_leave_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="no name"):
        store.write(tmp_path, "best", {name: b""}, 0)


def test_every_file_and_folder_reaches_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    if not Path("/proc/self/fd").exists():
        pytest.skip("there is no /proc")
    monkeypatch.setattr(os, "fsync", noted)
    store.write(tmp_path, "best", FILES, 0)
    assert synced == ["model.json", "model.bin", "manifest.json", ".checkpoint.tmp", tmp_path.name]


def test_one_replaces_another_of_its_name(tmp_path: Path) -> None:
    store.write(tmp_path, "best", FILES, 1)
    store.write(tmp_path, "best", {"model.json": b"new"}, 2)
    assert store.read(tmp_path / "best")[1] == {"model.json": b"new"}
    assert names(tmp_path) == ["best"]


# -- damage ------------------------------------------------------------


def truncated(path: Path) -> None:
    (path / "model.bin").write_bytes(b"\x00")


def flipped(path: Path) -> None:
    (path / "model.bin").write_bytes(b"\x00\x01\x03")


def missing(path: Path) -> None:
    (path / "model.bin").unlink()


def linked(path: Path) -> None:
    other = path.parent / "other"
    (path / "model.bin").rename(other)
    (path / "model.bin").symlink_to(other)


def pipe(path: Path) -> None:
    (path / "model.bin").unlink()
    os.mkfifo(path / "model.bin")


def folder(path: Path) -> None:
    (path / "model.bin").unlink()
    (path / "model.bin").mkdir()


@pytest.mark.parametrize("damage", [truncated, flipped, missing, linked, pipe, folder])
def test_damage_is_found_and_the_file_named(tmp_path: Path, damage: Any) -> None:
    path = store.write(tmp_path, "best", FILES, 0)
    damage(path)
    with pytest.raises(store.InvalidCheckpointError, match=r"model\.bin does not verify") as caught:
        store.read(path, ())
    assert caught.value.code == ExitCode.NO_VALID_CHECKPOINT


def test_a_manifest_without_end_is_not_read(tmp_path: Path) -> None:
    path = store.write(tmp_path, "best", FILES, 0)
    (path / "manifest.json").write_bytes(b" " * (2**20 + 1))
    with pytest.raises(store.InvalidCheckpointError, match=r"manifest\.json does not verify: it is larger"):
        store.verify(path)


def test_what_is_not_there_does_not_verify(tmp_path: Path) -> None:
    with pytest.raises(store.InvalidCheckpointError):
        store.verify(tmp_path / "best")


# -- a failing disk ------------------------------------------------------------


@pytest.mark.parametrize("call", range(5))
def test_a_disk_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    store.write(tmp_path, "best", FILES, 1)
    calls, fsync = iter(range(100)), os.fsync

    def failing(descriptor: int) -> None:
        if next(calls) == call:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(CheckpointIOError, match="No space left") as caught:
        store.write(tmp_path, "best", {"model.json": b"new", "model.bin": b""}, 2)
    monkeypatch.undo()
    assert caught.value.code == ExitCode.CHECKPOINT_IO
    # The last one is that of the parent: by then the new one is in place, only not yet for certain.
    assert store.verify(tmp_path / "best").opt_steps == (2 if call == 4 else 1)
    assert ".checkpoint.tmp" not in names(tmp_path)


def test_a_rename_that_fails_brings_the_old_one_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_write_that_the_disk_did_not_keep_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(tmp_path, "best", FILES, 1)
    fill = store._fill

    def losing(folder: Path, *rest: Any) -> None:
        fill(folder, *rest)
        flipped(folder)

    monkeypatch.setattr(store, "_fill", losing)
    with pytest.raises(CheckpointIOError, match="SHA-256"):
        store.write(tmp_path, "best", FILES, 2)
    assert store.verify(tmp_path / "best").opt_steps == 1


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointIOError, match=r"Not a directory|File exists"):
        store.write(tmp_path / "file", "best", FILES, 0)


# -- crashes ------------------------------------------------------------

WRITE_AND_DIE = """
import os, sys
from pathlib import Path
from border_cli.checkpoints import store

left = int(sys.argv[2])

def die(event, args):
    global left
    if event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir") or (event == "open" and args[2] & os.O_CREAT):
        left -= 1
        if left < 0:
            os._exit(9)  # as SIGKILL would: nothing is cleaned up

sys.addaudithook(die)
store.write(Path(sys.argv[1]), "best", {"model.json": b"new", "model.bin": b""}, 2)
"""


def test_whenever_the_writer_is_killed_one_verifies_and_the_next_write_cleans_up(tmp_path: Path) -> None:
    found = set()
    for survived in range(100):
        parent = tmp_path / str(survived)
        store.write(parent, "best", FILES, 1)
        code = subprocess.run([sys.executable, "-c", WRITE_AND_DIE, str(parent), str(survived)]).returncode
        found.add(store.verify(parent / "best").opt_steps)
        store.write(parent, "best", FILES, 3)
        assert names(parent) == ["best"]
        assert store.verify(parent / "best").opt_steps == 3
        if code == 0:
            break
    assert code == 0 and survived > 5  # the loop has really been through all of it
    assert found == {1, 2}


def test_a_damaged_one_does_not_outlive_the_one_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After two faults, a crash between the renames and damage, the one that verifies is not given up."""
    path = store.write(tmp_path, "best", FILES, 1)
    path.rename(store.aside(path))
    flipped(store.write(tmp_path / "elsewhere", "best", FILES, 2))
    (tmp_path / "elsewhere" / "best").rename(path)
    assert store.verify(path).opt_steps == 1
    put_in_place = store._put_in_place
    seen = []

    def looking(temporary: Path, target: Path) -> None:
        seen.append(store.verify(target).opt_steps)
        put_in_place(temporary, target)
        seen.append(store.verify(target).opt_steps)

    monkeypatch.setattr(store, "_put_in_place", looking)
    store.write(tmp_path, "best", FILES, 3)
    assert seen == [1, 3]
    assert not store.aside(path).exists()


def test_a_reader_beside_a_writer_never_meets_a_gap(tmp_path: Path) -> None:
    store.write(tmp_path, "best", FILES, 0)
    done = threading.Event()
    seen: list[int] = []
    failures: list[Exception] = []

    def reader() -> None:
        try:
            while not done.is_set():
                seen.append(store.verify(tmp_path / "best").opt_steps)
        except Exception as e:
            failures.append(e)

    thread = threading.Thread(target=reader)
    thread.start()
    for n in range(1, 60):
        store.write(tmp_path, "best", FILES, n)
    done.set()
    thread.join()
    assert failures == []
    assert seen == sorted(seen)


# -- many ------------------------------------------------------------


def test_the_newest_n_are_kept(tmp_path: Path) -> None:
    for step in (100, 200, 1_000_000_000, 300):
        save(tmp_path, step, keep=2)
    assert names(tmp_path) == ["step-000000300", "step-1000000000"]
    assert store.newest_valid(tmp_path) == tmp_path / "step-1000000000"


def test_two_that_verify_stay_whatever_the_number_that_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step in range(1, 6):
        store.write(tmp_path, store.step_name(step), FILES, step)
    flipped(tmp_path / "step-000000005")
    flipped(tmp_path / "step-000000003")
    store.prune(tmp_path, 1)
    assert names(tmp_path) == ["step-000000002", "step-000000004", "step-000000005"]
    assert "step-000000003" in caplog.text


def test_nothing_is_pruned_while_fewer_than_two_verify(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (1, 2, 3):
        store.write(tmp_path, store.step_name(step), FILES, step)
    flipped(tmp_path / "step-000000003")
    flipped(tmp_path / "step-000000001")
    store.prune(tmp_path, 1)
    assert len(names(tmp_path)) == 3
    assert "no older one is removed" in caplog.text


def test_the_one_before_is_taken_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for step in (1, 2):
        store.write(tmp_path, store.step_name(step), FILES, step)
    flipped(tmp_path / "step-000000002")
    assert store.newest_valid(tmp_path) == tmp_path / "step-000000001"
    assert "step-000000002/model.bin does not verify" in caplog.text


def test_none_verifies(tmp_path: Path) -> None:
    for step in (1, 2):
        flipped(store.write(tmp_path, store.step_name(step), FILES, step))
    with pytest.raises(NoValidCheckpointError, match="2 tried"):
        store.newest_valid(tmp_path)


def test_there_are_none(tmp_path: Path) -> None:
    assert store.newest_valid(tmp_path / "checkpoints") is None
    (tmp_path / ".checkpoint.tmp").mkdir()
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-000000001x").mkdir()
    (tmp_path / "step-000000002").symlink_to(tmp_path / "step-1")
    assert store.newest_valid(tmp_path) is None


def test_a_crash_between_renames_hides_no_step(tmp_path: Path) -> None:
    path = store.write(tmp_path, store.step_name(5), FILES, 5)
    path.rename(store.aside(path))
    assert store.newest_valid(tmp_path) == path
    assert store.read(path)[1] == FILES


# -- contents ------------------------------------------------------------


def test_all_of_a_checkpoint_comes_back(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(save(tmp_path))
    agent = FakeAgent()
    assert checkpoint.opt_steps == checkpoint.model.info.version == 7
    assert checkpoint.model.description == MODEL
    assert checkpoint.counters == COUNTERS
    assert checkpoint.generators == GENERATORS
    assert checkpoint.score is None
    np.testing.assert_array_equal(checkpoint.model.info.arrays["net.weight"], agent.weights)
    assert checkpoint.training is not None
    assert checkpoint.training.values == {"opt_steps": 7, "epsilon": 0.1}
    np.testing.assert_array_equal(checkpoint.training.arrays["z"], agent.weights.T)
    assert checkpoint.training.arrays["count"].shape == ()
    assert checkpoint.training.arrays["a"].shape == (0, 2)


def test_arrays_that_come_back_can_be_written_to(tmp_path: Path) -> None:
    state = read_run_state(save(tmp_path), with_replay=False).agent
    assert state.arrays and all(array.flags.writeable for array in state.arrays.values())


def test_the_same_state_is_the_same_bytes_whatever_the_order(tmp_path: Path) -> None:
    class Reversed(FakeAgent):
        def model_info(self) -> ModelInfo:
            info = super().model_info()
            return ModelInfo(info.version, dict(reversed(list(info.arrays.items()))))

    first = save(tmp_path / "a")
    agent: Agent = Reversed()  # type: ignore[assignment]
    second = save_checkpoint(
        tmp_path / "b", MODEL, agent.model_info(), run_state(agent), dict(reversed(list(COUNTERS.items()))), 3
    )
    assert names(first) == names(second)
    for name in names(first):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def test_best_holds_the_model_and_its_score(tmp_path: Path) -> None:
    path = save_best(tmp_path, FakeAgent().model_info().arrays, MODEL, SCORE)
    assert path == tmp_path / "best"
    assert json.loads((path / "score.json").read_text()) == {
        "opt_steps": 7, "episodes": 2, "mean": 2.0, "std": 1.0, "min": 1.0, "max": 3.0,
        "returns": [1.0, 3.0], "lengths": [10, 20],
    }  # fmt: skip
    checkpoint = read_checkpoint(path)
    assert (checkpoint.score, checkpoint.training, checkpoint.counters) == (SCORE, None, {})
    with pytest.raises(store.InvalidCheckpointError, match=r"has no training\.safetensors"):
        read_run_state(path, with_replay=False)


def test_best_holds_the_routine_evaluation_beside_the_one_that_confirmed_it(tmp_path: Path) -> None:
    path = save_best(tmp_path, {}, MODEL, SCORE, Evaluation(7, (5.0,), (30,)))
    data = json.loads((path / "score.json").read_text())
    assert (data["mean"], data["routine"]["mean"], data["routine"]["returns"]) == (2.0, 5.0, [5.0])
    assert read_checkpoint(path).score == SCORE


def test_a_score_that_is_no_number_is_null_and_comes_back(tmp_path: Path) -> None:
    path = save_best(tmp_path, {}, MODEL, Evaluation(1, (math.nan, 1.0), (1, 1)))
    assert json.loads((path / "score.json").read_text())["returns"] == [None, 1.0]
    score = read_checkpoint(path).score
    assert score is not None and math.isnan(score.returns[0])


def test_a_score_that_is_not_finite_is_null(tmp_path: Path) -> None:
    agent: Agent = FakeAgent()  # type: ignore[assignment]
    path = save_checkpoint(tmp_path, MODEL, agent.model_info(), run_state(agent), {"best_score": math.inf}, 1)
    assert read_checkpoint(path).counters == {"best_score": None}


def test_a_generator_state_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    agent: Agent = FakeAgent()  # type: ignore[assignment]
    state = run_state(agent, generators={"replay": math.inf})
    with pytest.raises(ValueError):
        save_checkpoint(tmp_path, MODEL, agent.model_info(), state, {}, 1)
    assert names(tmp_path) == []


def forged(tmp_path: Path, name: str, content: bytes) -> Path:
    """A checkpoint whose checksums fit, with one file of somebody's making."""
    _, files = store.read(save(tmp_path / "true"))
    return store.write(tmp_path, "best", {**files, name: content}, 7)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b'{"agent": 1, "env": {}, "plugins": [], "spec": {}, "opt_steps": 7}',
        b'{"agent": {}, "env": {}, "plugins": [1], "spec": {}, "opt_steps": 7}',
    ],
)
def test_a_model_that_is_described_by_nonsense(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(store.InvalidCheckpointError, match=r"model\.json cannot be read"):
        read_model(forged(tmp_path, "model.json", content))


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "evil"},
        {"dtype": "object"},
        {"dtype": 3},
        {"shape": [-1]},
        {"shape": ["x"]},
        {"path": [None]},
        {"categories": ["1"]},
        {"surplus": 1},
    ],
)
def test_an_observation_that_is_described_by_nonsense(tmp_path: Path, change: dict[str, Any]) -> None:
    data = json.loads((save(tmp_path / "other") / "model.json").read_text())
    data["spec"]["obs"][0] |= change
    with pytest.raises(store.InvalidCheckpointError, match=r"model\.json cannot be read"):
        read_model(forged(tmp_path, "model.json", json.dumps(data).encode()))


@pytest.mark.parametrize("change", [{"kind": "evil"}, {"dtype": "O"}, {"n": "3"}, {"low": ["x"]}])
def test_an_action_that_is_described_by_nonsense(tmp_path: Path, change: dict[str, Any]) -> None:
    data = json.loads((save(tmp_path / "other") / "model.json").read_text())
    data["spec"]["action"] |= change
    with pytest.raises(store.InvalidCheckpointError, match=r"model\.json cannot be read"):
        read_model(forged(tmp_path, "model.json", json.dumps(data).encode()))


def test_a_pickle_in_the_place_of_weights_is_not_opened(tmp_path: Path) -> None:
    import pickle

    class Evil:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "executed"),))

    for name in ("model.safetensors", "training.safetensors"):
        path = forged(tmp_path, name, pickle.dumps(Evil()))
        with pytest.raises(store.InvalidCheckpointError, match="cannot be read"):
            read_checkpoint(path)
    assert not (tmp_path / "executed").exists()


def test_opt_steps_of_model_and_manifest_have_to_agree(tmp_path: Path) -> None:
    path = save(tmp_path)
    rewrite_manifest(path, opt_steps=8)
    with pytest.raises(store.InvalidCheckpointError, match="of opt step 8, and its directory is not"):
        read_model(path)
    with pytest.raises(store.InvalidCheckpointError, match="opt step 7, its manifest of 8"):
        read_model(path.rename(tmp_path / "mine"))
