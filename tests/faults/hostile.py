"""Forged run directories, and the commands that read them."""

from __future__ import annotations

import hashlib
import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from border_cli.cli.eval import main as border_eval
from border_cli.cli.train import main as border_train
from tests.real_runs import Run
from tests.stored_run import OPT_STEPS


def evaluate(run: Run, *args: str) -> int:
    return border_eval([str(run.path), "checkpoint=last", "episodes=1", *args])


def resume(run: Run, *args: str) -> int:
    budget = [] if any("max_opts" in arg for arg in args) else [f"trainer.max_opts={OPT_STEPS + 5}"]
    return border_train([f"resume={run.path}", *budget, *args])


def refused(act: Callable[[Run], int], run: Run, capsys: pytest.CaptureFixture[str], code: int = 7) -> str:
    """Check that the action exits with `code` and prints at most three lines, and return them."""
    assert act(run) == code
    lines = capsys.readouterr().err.splitlines()
    assert 1 <= len(lines) <= 3, lines
    return "\n".join(lines)


class Evil:
    """Creates the folder `canary` when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self._canary = canary

    def __reduce__(self) -> Any:
        return Path.mkdir, (self._canary,)


def evil_pickle(canary: Path) -> bytes:
    return pickle.dumps({"weights": [Evil(canary)]})


def forge(path: Path, name: str, content: bytes) -> None:
    """Write this content into a file of a checkpoint, and its checksum into the manifest."""
    (path / name).unlink(missing_ok=True)
    (path / name).write_bytes(content)
    claim(path, len(content), name, sha256=hashlib.sha256(content).hexdigest())


def claim(path: Path, nbytes: Any, *names: str, sha256: str = "0" * 64) -> None:
    """Change the sizes that the manifest states for some files."""
    file = path / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["files"] |= {name: {"bytes": nbytes, "sha256": sha256} for name in names}
    manifest["parts"] = sorted({name.partition(".")[0] for name in manifest["files"]})
    file.write_text(json.dumps(manifest))


def header(shape: list[int], nbytes: int) -> bytes:
    """Return a safetensors file that declares an array of this shape and has no data."""
    text = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, nbytes]}}).encode()
    return struct.pack("<Q", len(text)) + text
