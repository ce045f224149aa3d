"""The checkpoint store after kills at any moment and damage at any place (rows C1 to C4)."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from border_cli.checkpoints import store
from border_cli.checkpoints.contents import CHECKPOINTS, REPLAY
from border_cli.core.errors import NoValidCheckpointError
from tests.faults import saver
from tests.faults.amounts import seeded, times
from tests.faults.processes import ROOT, TIMEOUT_S


def killed(folder: Path, mode: str, points: list[float]) -> list[Path]:
    """Run savers that are killed at these shares of all their moments. Returns their run folders."""
    command = [sys.executable, "-m", "tests.faults.saver", str(folder), mode, *map(str, points)]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=2 * TIMEOUT_S).stdout
    print(output.decode())
    return [Path(json.loads(line)["folder"]) for line in output.splitlines()]


def committed(run_dir: Path) -> int:
    """Return the opt step of the last save that returned; 0 if none did."""
    file = run_dir.with_name(f"{run_dir.name}.committed")
    if not file.exists():  # killed before the file was made
        return 0
    return int(file.read_bytes()[-1:] or b"0")


def temporaries(run_dir: Path) -> list[str]:
    folder = run_dir / CHECKPOINTS
    return [path.name for path in folder.glob(".*")] if folder.exists() else []


def points(name: str, n: int) -> list[float]:
    """Return n random points, one in each n-th of all moments."""
    rng = seeded(name)
    return [(i + rng.random()) / n for i in range(n)]


# -- killed -------------------------------------------------------------


def assert_survived(run_dir: Path, read: Callable[[Path], int | None]) -> None:
    found = read(run_dir)
    assert (found or 0) >= committed(run_dir)


def test_c1_after_a_kill_at_any_moment_the_newest_complete_checkpoint_verifies(tmp_path: Path) -> None:
    for run_dir in killed(tmp_path, "store", points("c1", times(10, 50))):
        assert_survived(run_dir, saver.read)
        assert len(temporaries(run_dir)) <= 1
        newest = saver.read(run_dir) or 0
        assert list(saver.save(run_dir, range(newest + 1, newest + 2))) == [newest + 1]
        assert temporaries(run_dir) == []
        assert saver.read(run_dir) == newest + 1


def test_c2_after_a_kill_while_old_checkpoints_are_removed_two_verify(tmp_path: Path) -> None:
    for run_dir in killed(tmp_path, "prune", points("c2", times(3, 20))):
        steps = store.list_steps(run_dir / CHECKPOINTS)
        assert len([path for path in steps if verifies(path)]) >= 2
        assert saver.read(run_dir) == committed(run_dir) + 1  # the checkpoint of this save


# -- damaged ------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("saved")
    assert list(saver.save(run_dir, range(1, 4), keep=3)) == [1, 2, 3]
    return run_dir


def verifies(path: Path) -> bool:
    try:
        store.verify(path)
    except store.InvalidCheckpointError:
        return False
    return True


def own_files(path: Path) -> list[Path]:
    """Return the files of a checkpoint, without sealed blocks, which it shares with the previous one."""
    return sorted(file for file in path.iterdir() if file.stat().st_nlink == 1)


@contextmanager
def damaged(file: Path, content: bytes | None) -> Iterator[None]:
    """Replace the content of a file, or remove the file, inside the block."""
    before = file.read_bytes()
    try:
        file.unlink()
        if content is not None:
            file.write_bytes(content)
        yield
    finally:
        file.write_bytes(before)


def flipped(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    changed[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def assert_fallen_back(run_dir: Path, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Check that the previous checkpoint is used, and that a warning names the file or the manifest."""
    caplog.clear()
    assert saver.read(run_dir) == 2
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert f"{file.parent.name}/" in warning and "the checkpoint before it is taken" in warning
    assert file.name in warning or file.name == "manifest.json"


def test_c3_every_flipped_bit_is_found(saved: Path, caplog: pytest.LogCaptureFixture) -> None:
    rng, files = seeded("c3"), own_files(saved / CHECKPOINTS / store.step_name(3))
    assert len(files) > 10
    for i in range(times(20, 300)):
        file = files[i % len(files)]
        with damaged(file, flipped(file.read_bytes(), rng)):
            assert_fallen_back(saved, file, caplog)
    assert saver.read(saved) == 3


def test_c3_every_flipped_bit_of_a_manifest_is_found(saved: Path) -> None:
    file = saved / CHECKPOINTS / store.step_name(3) / "manifest.json"
    content = file.read_bytes()
    for bit in range(0, 8 * len(content), times(233, 1)):  # 233, so that the bit within the byte changes
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        with damaged(file, bytes(changed)):
            assert not verifies(file.parent), bit


def test_c3_a_flipped_bit_that_makes_two_names_equal_is_found(saved: Path) -> None:
    """The JSON then has a key twice, and a reader that takes the last one would lose a block unnoticed."""
    file = saved / CHECKPOINTS / store.step_name(3) / "manifest.json"
    content = file.read_bytes()
    changed = content.replace(b"rows-000000000", b"rows-000000001")
    assert sum((a ^ b).bit_count() for a, b in zip(changed, content, strict=True)) == 1
    with damaged(file, changed):
        assert not verifies(file.parent)


def test_c3_a_damaged_block_shared_by_all_checkpoints_costs_only_the_replay(
    saved: Path, tmp_path: Path
) -> None:
    """Checkpoints link to the same file of a sealed block, so no older checkpoint has a copy."""
    run_dir = Path(shutil.copytree(saved, tmp_path / "run"))
    for path in store.list_steps(run_dir / CHECKPOINTS):
        file = path / f"{REPLAY}.rows-000000000.safetensors"
        file.write_bytes(flipped(file.read_bytes(), seeded("shared")))
    with pytest.raises(NoValidCheckpointError, match="3 tried"):
        store.newest_valid(run_dir / CHECKPOINTS)
    assert store.newest_valid(run_dir / CHECKPOINTS, (REPLAY,)) == run_dir / CHECKPOINTS / store.step_name(3)


def test_c4_every_truncated_empty_or_missing_file_is_found(
    saved: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rng, files = seeded("c4"), own_files(saved / CHECKPOINTS / store.step_name(3))
    for i in range(times(20, 200)):
        file = files[i % len(files)]
        with damaged(file, file.read_bytes()[: rng.randrange(file.stat().st_size)]):
            assert_fallen_back(saved, file, caplog)
    for file in files:
        for content in (None, b""):
            with damaged(file, content):
                assert_fallen_back(saved, file, caplog)


@pytest.mark.parametrize("name", ["model.pt", "replay.rows-000000099.safetensors"])
def test_c4_a_file_that_the_manifest_does_not_name_is_never_opened(saved: Path, name: str) -> None:
    """It may come from a file manager, and the checkpoint stays valid."""
    path, opened = saved / CHECKPOINTS / store.step_name(3), list[str]()
    (path / name).write_bytes(b"x")
    watching = True

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if watching and event == "open":
            opened.append(os.path.basename(str(args[0])))  # noqa: PTH119 - it may be a descriptor

    try:
        sys.addaudithook(audit)
        assert saver.read(saved) == 3
    finally:
        watching = False
        (path / name).unlink()
    assert "manifest.json" in opened
    assert name not in opened
