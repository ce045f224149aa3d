"""Hostile run directories: no code runs, and no file outside is read or written (rows I1, I3 and I4).

Each test uses `border-eval` and `resume`.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from border_cli.checkpoints import store
from border_cli.core import json_text
from tests.faults import hostile
from tests.faults.amounts import sampled
from tests.faults.hostile import evaluate, refused, resume
from tests.real_runs import Run
from tests.stored_run import FILES, OPT_STEPS

STEP = store.step_name(OPT_STEPS)


@pytest.fixture
def run(workplace: Path, stored_run: Path) -> Run:
    """A copy of a stored run with only its newest checkpoint, which is not trusted."""
    run = Run(shutil.copytree(stored_run, workplace / "run"))
    shutil.rmtree(run.path / "checkpoints" / store.step_name(OPT_STEPS // 2))
    return run


# -- I1: nothing is executed --------------------------------------------------


def test_i1_unpickling_the_evil_file_executes_it(tmp_path: Path) -> None:
    """Negative control: the pickle of the tests below does run code."""
    canary = tmp_path / "executed"
    assert not canary.exists()
    pickle.loads(hostile.evil_pickle(canary))
    assert canary.is_dir()


def test_i1_files_beside_the_checkpoint_are_never_opened(run: Run) -> None:
    canary = run.path.parent / "executed"
    evil = hostile.evil_pickle(canary)
    for folder in (".", "best", f"checkpoints/{STEP}", "checkpoints"):
        for name in ("model.pt", "replay.pkl", "weights.npz", "sitecustomize.py"):
            (run.path / folder / name).write_bytes(evil)
    assert evaluate(run) == 0
    assert resume(run) == 0
    assert not canary.exists()


@pytest.mark.parametrize("name", sampled(FILES, 4))
def test_i1_a_pickle_instead_of_any_file_is_refused(
    run: Run, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    canary, path = run.path.parent / "executed", run.path / "checkpoints" / STEP
    evil = hostile.evil_pickle(canary)
    if name == "manifest.json":
        (path / name).write_bytes(evil)
    else:
        hostile.forge(path, name, evil)
    if name.partition(".")[0] in ("manifest", "model"):
        assert name in refused(evaluate, run, capsys)
    assert name in refused(resume, run, capsys)
    assert not canary.exists()


# -- I3: nothing outside is read or written -------------------------------------


def as_link(path: Path) -> None:
    outside = path.parents[2] / "outside.safetensors"
    path.rename(outside)
    path.symlink_to(outside)


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def as_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


NOT_PLAIN = [
    (name, instead)
    for name in ("model.safetensors", "manifest.json", "replay.rows-000000000.safetensors")
    for instead in (as_link, as_pipe, as_device, as_folder)
]


@pytest.mark.parametrize(("name", "instead"), sampled(NOT_PLAIN, 3))
def test_i3_a_link_pipe_device_or_folder_is_not_read(
    run: Run, capsys: pytest.CaptureFixture[str], name: str, instead: Callable[[Path], None]
) -> None:
    instead(run.path / "checkpoints" / STEP / name)
    for act in (evaluate, resume):
        assert name in refused(act, run, capsys)


@pytest.mark.parametrize("name", ["provenance.json", "summary.json"])
def test_i3_a_pipe_instead_of_a_description_is_refused_without_waiting(
    run: Run, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (run.path / name).unlink(missing_ok=True)
    os.mkfifo(run.path / name)
    assert evaluate(run) == 0
    assert "is no plain file" in refused(resume, run, capsys, code=2)


FOLDERS = ("checkpoints", "best", "tensorboard")
WRITTEN = (
    *("config.yaml", "metrics.jsonl", "summary.json", "train.log", ".lock", ".summary.json.tmp"),
    "tensorboard/events.out.tfevents.1",
)
LINKS = [*((name, "symbolic") for name in (*FOLDERS, *WRITTEN)), *((name, "hard") for name in WRITTEN)]


@pytest.mark.parametrize(("name", "how"), sampled(LINKS, 3))
def test_i3_a_run_is_not_resumed_through_links(
    run: Run, capsys: pytest.CaptureFixture[str], name: str, how: str
) -> None:
    outside, path = run.path.parent / "outside", run.path / name
    path.parent.mkdir(exist_ok=True)
    if path.exists():
        path.rename(outside)
    elif name in FOLDERS:
        outside.mkdir()
    else:
        outside.write_text("precious")
    if how == "symbolic":
        path.symlink_to(outside)
    else:
        path.hardlink_to(outside)
    before = outside.read_bytes() if outside.is_file() else Run(outside).files("")
    assert "is no plain file or folder" in refused(resume, run, capsys, code=2)
    assert before == (outside.read_bytes() if outside.is_file() else Run(outside).files(""))


@pytest.mark.parametrize(
    "name", ["eval", f"eval/.{STEP}-seed0-episodes1.json.tmp", f"eval/{STEP}-seed0-episodes1.json"]
)
def test_i3_an_evaluation_is_not_written_through_links(
    run: Run, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    outside = run.path.parent / "outside"
    outside.mkdir()
    (outside / "precious").write_text("precious")
    path = run.path / name
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(outside if name == "eval" else outside / "precious")
    assert evaluate(run) == 0
    assert "not written" in capsys.readouterr().out
    assert Run(outside).files("") == {"precious": b"precious"}


def test_i3_a_trusted_run_may_have_its_checkpoints_elsewhere(run: Run) -> None:
    """Links are allowed there, for example to a larger disk."""
    folder = run.path / "checkpoints"
    folder.rename(run.path.parent / "large-disk")
    folder.symlink_to(run.path.parent / "large-disk")
    assert resume(run, f"trainer.max_opts={OPT_STEPS + 10}", "trust=true") == 0
    assert run.checkpoints[-1] == store.step_name(OPT_STEPS + 10)


# -- I4: unfit content is refused -------------------------------------------


def forged(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda path: hostile.forge(path, name, content)


SPOILT: dict[str, tuple[str, Callable[[Path], None]]] = {
    "nesting": ("model.json", forged("model.json", b"[" * 2**19)),
    "a key twice": ("model.json", forged("model.json", b'{"agent": {}, "agent": {}}')),
    "an overflow in the header": (
        "model.safetensors",
        forged("model.safetensors", hostile.header([2**62, 2**62], 0)),
    ),
}


@pytest.mark.parametrize("what", SPOILT)
def test_i4_invalid_content_of_a_checkpoint_is_refused(
    run: Run, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    name, spoil = SPOILT[what]
    spoil(run.path / "checkpoints" / STEP)
    assert name in refused(evaluate, run, capsys)


def test_i4_a_manifest_that_is_too_large_is_not_read(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    path = run.path / "checkpoints" / STEP / "manifest.json"
    path.write_text(path.read_text() + " " * json_text.MAX_BYTES)
    assert f"it is larger than {json_text.MAX_BYTES} bytes" in refused(evaluate, run, capsys)


def test_i4_a_replay_with_more_rows_than_the_run_has_is_refused(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run.path / "checkpoints" / STEP
    for content in (b'{"capacity": 64, "rows": 1000000000000}', b'{"capacity": 1000000000000, "rows": 10}'):
        hostile.forge(path, "replay.json", content)
        assert "cannot be resumed from" in refused(resume, run, capsys)


@pytest.mark.parametrize("records", ["x", {"jsonl": "x"}, {"jsonl": 1.5}, {"jsonl": None}, []])
def test_i4_recorder_positions_that_are_not_numbers_are_refused(
    run: Run, capsys: pytest.CaptureFixture[str], records: object
) -> None:
    path = run.path / "checkpoints" / STEP
    loop = json.loads((path / "loop.json").read_text())
    hostile.forge(path, "loop.json", json.dumps(loop | {"records": records}).encode())
    assert "cannot be resumed from" in refused(resume, run, capsys)
