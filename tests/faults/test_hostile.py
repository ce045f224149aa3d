"""Runs of somebody else's making: nothing of them is executed, nothing is written outside, nothing is unbounded.

Rows I1, I3 and I4. Each is looked at as a person would: judged by `border-eval`, and gone on with by `resume`.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from border_cli.checkpoints import store
from border_cli.cli.eval import main as border_eval
from border_cli.cli.train import main as border_train
from tests.data.make_format_1 import FORMAT_1, OPT_STEPS
from tests.faults import hostile
from tests.real_runs import Run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="measures memory as Linux does")

STEP = store.step_name(OPT_STEPS)
MEGABYTES = 100
"""A hostile file may cost so much memory at most."""


@pytest.fixture
def run(workplace: Path) -> Run:
    """A copy of a stored run, that is not in the list of own runs; only its newest checkpoint is left."""
    run = Run(shutil.copytree(FORMAT_1, workplace / "run"))
    shutil.rmtree(run.path / "checkpoints" / store.step_name(OPT_STEPS // 2))
    return run


def judge(run: Run, *words: str) -> int:
    return border_eval([str(run.path), "checkpoint=last", "episodes=1", *words])


def go_on(run: Run, *words: str) -> int:
    budget = [] if any("max_opts" in word for word in words) else [f"trainer.max_opts={OPT_STEPS + 5}"]
    return border_train([f"resume={run.path}", *budget, *words])


def refused(act: Callable[[Run], int], run: Run, capsys: pytest.CaptureFixture[str], code: int = 7) -> str:
    """It ends with this code, and in three lines at most: these."""
    assert act(run) == code
    lines = capsys.readouterr().err.splitlines()
    assert 1 <= len(lines) <= 3, lines
    return "\n".join(lines)


# -- I1: nothing is executed --------------------------------------------------


def test_i1_who_unpickles_the_evil_file_does_execute_it(tmp_path: Path) -> None:
    """The control: what the tests below plant is what it is said to be."""
    canary = tmp_path / "executed"
    assert not canary.exists()
    pickle.loads(hostile.evil_pickle(canary))
    assert canary.is_dir()


def test_i1_what_lies_beside_is_never_opened(run: Run) -> None:
    canary = run.path.parent / "executed"
    evil = hostile.evil_pickle(canary)
    for folder in (".", "best", f"checkpoints/{STEP}", "checkpoints"):
        for name in (
            "model.pt",
            "replay.pkl",
            "weights.npy",
            "weights.npz",
            "sitecustomize.py",
            "conftest.py",
        ):
            (run.path / folder / name).write_bytes(evil)
    assert judge(run) == 0
    assert go_on(run) == 0
    assert not canary.exists()


@pytest.mark.parametrize("name", sorted(path.name for path in (FORMAT_1 / "checkpoints" / STEP).iterdir()))
def test_i1_a_pickle_in_the_place_of_any_file_is_refused(
    run: Run, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    canary, path = run.path.parent / "executed", run.path / "checkpoints" / STEP
    evil = hostile.evil_pickle(canary)
    if name == "manifest.json":
        (path / name).write_bytes(evil)
    else:
        hostile.forge(path, name, evil)
    if name.partition(".")[0] in ("manifest", "model"):
        assert name in refused(judge, run, capsys)
    if name.partition(".")[0] not in ("counters",):  # for people: nobody goes on from it
        assert name in refused(go_on, run, capsys)
    assert not canary.exists()


# -- I3: nothing outside is read or written -------------------------------------


@pytest.mark.parametrize(
    "name", ["../../../outside.json", "/etc/passwd", "a/b.json", "..", ".x.json", "manifest.json"]
)
def test_i3_a_manifest_that_names_what_lies_elsewhere(
    run: Run, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    hostile.claim(run.path / "checkpoints" / STEP, 4, name)
    for act in (judge, go_on):
        assert "is no name of a checkpoint's file" in refused(act, run, capsys)


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


@pytest.mark.parametrize("instead", [as_link, as_pipe, as_device, as_folder])
@pytest.mark.parametrize("name", ["model.safetensors", "manifest.json", "replay.rows-000000000.safetensors"])
def test_i3_what_is_no_plain_file_is_not_read(
    run: Run, capsys: pytest.CaptureFixture[str], name: str, instead: Callable[[Path], None]
) -> None:
    instead(run.path / "checkpoints" / STEP / name)
    for act in (judge, go_on):
        assert name in refused(act, run, capsys)


@pytest.mark.parametrize("name", ["provenance.json", "summary.json"])
def test_i3_a_pipe_in_the_place_of_a_description_keeps_nobody_waiting(
    run: Run, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (run.path / name).unlink(missing_ok=True)
    os.mkfifo(run.path / name)
    assert judge(run) == 0
    assert "is no plain file" in refused(go_on, run, capsys, code=2)


FOLDERS = ("checkpoints", "best", "nonfinite", "tensorboard")
WRITTEN = (
    "config.yaml",
    "metrics.jsonl",
    "summary.json",
    "train.log",
    ".lock",
    ".summary.json.tmp",
    *FOLDERS,
    "nonfinite/step-000000101.part",
    "tensorboard/events.out.tfevents.1",
)


@pytest.mark.parametrize(
    ("name", "how"),
    [(name, "symbolic") for name in WRITTEN] + [(name, "hard") for name in WRITTEN if name not in FOLDERS],
)
def test_i3_a_run_is_not_gone_on_with_through_links(
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
    assert "is no plain file or folder" in refused(go_on, run, capsys, code=2)
    assert before == (outside.read_bytes() if outside.is_file() else Run(outside).files(""))


@pytest.mark.parametrize(
    "name", ["eval", f"eval/.{STEP}-seed0-episodes1.json.tmp", f"eval/{STEP}-seed0-episodes1.json"]
)
def test_i3_a_judgement_is_not_written_through_links(
    run: Run, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    outside = run.path.parent / "outside"
    outside.mkdir()
    (outside / "precious").write_text("precious")
    path = run.path / name
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(outside if name == "eval" else outside / "precious")
    assert judge(run) == 0
    assert "not written" in capsys.readouterr().out
    assert Run(outside).files("") == {"precious": b"precious"} or [p.name for p in outside.iterdir()] == [
        "precious"
    ]
    assert (outside / "precious").read_text() == "precious"


def test_i3_an_own_run_may_keep_its_checkpoints_elsewhere(run: Run) -> None:
    """Such as on a larger disk: links in a run are the user's own business as long as the run is."""
    assert go_on(run) == 0  # from then on it is in the list
    folder = run.path / "checkpoints"
    folder.rename(run.path.parent / "large-disk")
    folder.symlink_to(run.path.parent / "large-disk")
    assert border_train([f"resume={run.path}", f"trainer.max_opts={OPT_STEPS + 10}"]) == 0
    assert run.checkpoints[-1] == store.step_name(OPT_STEPS + 10)


# -- I4: nothing is unbounded -------------------------------------------------


def grown_by(act: Callable[[], object]) -> float:
    """Megabytes of memory that this process had at most meanwhile, above what it has now."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that of now on, and not of an earlier test
    before = _resident_kib("VmRSS")
    act()
    return (_resident_kib("VmHWM") - before) / 1024


def _resident_kib(which: str) -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(f"{which}:"))


def test_i4_growth_is_measured_below_an_earlier_peak_too() -> None:
    """Or the bounds of this row would show nothing in a process that once had more."""
    size = 2 * MEGABYTES * 2**20
    bytearray(b"x") * (2 * size)  # gone again at once
    assert grown_by(lambda: bytearray(b"x") * size) > 1.5 * MEGABYTES
    assert grown_by(lambda: None) < MEGABYTES / 10


def with_opt_steps(path: Path, number: str) -> None:
    """Let the manifest give this number."""
    file = path / "manifest.json"
    file.write_text(re.sub(r'"opt_steps": \d+', f'"opt_steps": {number}', file.read_text()))


ARRAYS, TEXT, TERABYTE = "model.safetensors", "model.json", 2**40
SPOILT: dict[str, Callable[[Path], None]] = {
    "sparse arrays": lambda path: hostile.sparse(path, TERABYTE, ARRAYS),
    "sparse text": lambda path: hostile.sparse(path, TERABYTE, TEXT),
    "sparse manifest": lambda path: os.truncate(path / "manifest.json", TERABYTE),
    "a size that is none": lambda path: hostile.claim(path, 10**30, ARRAYS),
    "thousands of digits": lambda path: with_opt_steps(path, "9" * 5000),
    "an infinite number": lambda path: with_opt_steps(path, "1e400"),
    "a terabyte in the header": lambda path: hostile.forge(path, ARRAYS, hostile.header([2**38], TERABYTE)),
    "an overflow in the header": lambda path: hostile.forge(path, ARRAYS, hostile.header([2**62, 2**62], 0)),
    "nesting": lambda path: hostile.forge(path, TEXT, b"[" * 2**19),
    "nesting of 64 MB": lambda path: hostile.forge(path, TEXT, b"[" * 2**26),
    "many lists": lambda path: hostile.forge(path, TEXT, b"[" + b"[]," * 2**20 + b"[]]"),
}
"""Ways to make one thing of a checkpoint absurdly large."""


@pytest.mark.parametrize("what", SPOILT)
def test_i4_absurd_sizes_are_refused_before_they_cost_anything(
    run: Run, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    assert go_on(run) == 0  # whatever that needs has been loaded
    (path, *_) = store.list_steps(run.path / "checkpoints")
    for other in store.list_steps(run.path / "checkpoints")[1:]:
        shutil.rmtree(other)
    SPOILT[what](path)
    capsys.readouterr()
    assert grown_by(lambda: refused(judge, run, capsys)) < MEGABYTES


@pytest.mark.parametrize("blocks", [1, 4000])
def test_i4_a_replay_is_no_larger_than_that_of_the_run(
    run: Run, capsys: pytest.CaptureFixture[str], blocks: int
) -> None:
    """Refused by what the manifest says, against what the capacity and the spaces allow: nothing is read."""
    path = run.path / "checkpoints" / STEP
    names = [f"replay.rows-{i:09d}.safetensors" for i in range(1, 1 + blocks)]
    hostile.sparse(path, 2**30 // blocks, *names)
    said = list[str]()
    assert grown_by(lambda: said.append(refused(go_on, run, capsys))) < MEGABYTES
    assert "its part replay has" in said[0]


def test_i4_a_replay_of_more_rows_than_the_run_has(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    path = run.path / "checkpoints" / STEP
    for content in (b'{"capacity": 64, "rows": 1000000000000}', b'{"capacity": 1000000000000, "rows": 10}'):
        hostile.forge(path, "replay.json", content)
        text = refused(go_on, run, capsys)
        assert "cannot be gone on from" in text
