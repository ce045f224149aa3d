"""The checkpoint store after kills at any moment and damage at any place (rows C1 to C4)."""

from __future__ import annotations

import logging
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
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

NEWEST = Path(CHECKPOINTS) / store.step_name(3)


def test_c1_c2_after_a_kill_at_any_moment_of_a_save_checkpoints_and_best_verify(tmp_path: Path) -> None:
    """Saving replaces best/, writes a checkpoint with links to the blocks of the one before, and removes the oldest."""
    command = [sys.executable, "-m", "tests.faults.saver", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2 * TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    survived = done.stdout.splitlines()
    assert len(survived) > times(15, 40)
    assert sorted(set(survived)) == ["2 2", "2 3", "3 3"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("saved")
    assert list(saver.save(run_dir, range(1, 4), keep=3)) == [1, 2, 3]
    return run_dir


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


@pytest.mark.parametrize("how", ["c3_flipped", "c4_cut", "c4_empty", "c4_missing"])
def test_c3_c4_damage_of_any_file_is_found_and_the_previous_checkpoint_is_used(
    saved: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    rng = seeded(how)
    # without sealed blocks, which a checkpoint shares with the previous one
    files = sorted(file for file in (saved / NEWEST).iterdir() if file.stat().st_nlink == 1)
    assert len(files) > 10
    for i in range(times(20, 300) if how in ("c3_flipped", "c4_cut") else len(files)):
        file = files[i % len(files)]
        before, caplog_before = file.read_bytes(), len(caplog.records)
        contents = {
            "c3_flipped": flipped(before, rng),
            "c4_cut": before[: rng.randrange(len(before))],
            "c4_empty": b"",
        }
        with damaged(file, contents.get(how)):
            assert saver.read(saved) == 2
        (warning,) = [r.getMessage() for r in caplog.records[caplog_before:] if r.levelno == logging.WARNING]
        assert f"{file.parent.name}/" in warning and "the checkpoint before it is used" in warning
        assert file.name in warning or file.name == "manifest.json"
    assert saver.read(saved) == 3


def test_c3_every_flipped_bit_of_a_manifest_is_found(saved: Path) -> None:
    file = saved / NEWEST / "manifest.json"
    content = file.read_bytes()
    for bit in range(0, 8 * len(content), times(233, 1)):  # 233, so that the bit within the byte changes
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        with damaged(file, bytes(changed)):
            assert not store.verifies(file.parent), bit
    # one bit makes two names equal: a reader that takes the last of them would lose a block unnoticed
    with damaged(file, content.replace(b"rows-000000000", b"rows-000000001")):
        assert not store.verifies(file.parent)


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
    assert store.newest_valid(run_dir / CHECKPOINTS, (REPLAY,)) == run_dir / NEWEST


def test_c4_a_file_that_the_manifest_does_not_name_is_never_opened(saved: Path) -> None:
    """It may come from a file manager, and the checkpoint stays valid."""
    stranger, opened, watching = (
        saved / NEWEST / "replay.rows-000000099.safetensors",
        list[str](),
        True,
    )
    stranger.write_bytes(b"x")

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if watching and event == "open":
            opened.append(os.path.basename(str(args[0])))  # noqa: PTH119 - it may be a descriptor

    try:
        sys.addaudithook(audit)
        assert saver.read(saved) == 3
    finally:
        watching = False
        stranger.unlink()
    assert "manifest.json" in opened
    assert stranger.name not in opened
