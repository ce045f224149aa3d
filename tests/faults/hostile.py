"""Run directories of somebody else's making: how to forge them, and what a person does with them."""

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


def evaluate(run: Run, *words: str) -> int:
    return border_eval([str(run.path), "checkpoint=last", "episodes=1", *words])


def resume(run: Run, *words: str) -> int:
    budget = [] if any("max_opts" in word for word in words) else [f"trainer.max_opts={OPT_STEPS + 5}"]
    return border_train([f"resume={run.path}", *budget, *words])


def refused(act: Callable[[Run], int], run: Run, capsys: pytest.CaptureFixture[str], code: int = 7) -> str:
    """It ends with this code, and in three lines at most: these."""
    assert act(run) == code
    lines = capsys.readouterr().err.splitlines()
    assert 1 <= len(lines) <= 3, lines
    return "\n".join(lines)


class Evil:
    """Makes a folder when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self._canary = canary

    def __reduce__(self) -> Any:
        return Path.mkdir, (self._canary,)


def evil_pickle(canary: Path) -> bytes:
    return pickle.dumps({"weights": [Evil(canary)]})


def forge(path: Path, name: str, content: bytes) -> None:
    """Give a file of a checkpoint this content, and the manifest the sum of it."""
    (path / name).unlink(missing_ok=True)
    (path / name).write_bytes(content)
    claim(path, len(content), name, sha256=hashlib.sha256(content).hexdigest())


def claim(path: Path, nbytes: Any, *names: str, sha256: str = "0" * 64) -> None:
    """Let the manifest say this of some files."""
    file = path / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["files"] |= {name: {"bytes": nbytes, "sha256": sha256} for name in names}
    manifest["parts"] = sorted({name.partition(".")[0] for name in manifest["files"]})
    file.write_text(json.dumps(manifest))


def header(shape: list[int], nbytes: int) -> bytes:
    """A safetensors file that claims an array of this shape, and has no data."""
    text = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, nbytes]}}).encode()
    return struct.pack("<Q", len(text)) + text
