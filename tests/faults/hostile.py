"""Making of a run what nobody should trust. Nothing here is loaded by anybody but the tests."""

from __future__ import annotations

import hashlib
import json
import pickle
import struct
from pathlib import Path
from typing import Any


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


def sparse(path: Path, nbytes: int, *names: str) -> None:
    """Files that seem to be so large and take nothing, and a manifest that says so."""
    for name in names:
        with (path / name).open("wb") as file:
            file.truncate(nbytes)
    claim(path, nbytes, *names)


def header(shape: list[int], nbytes: int) -> bytes:
    """A safetensors file that claims an array of this shape, and has no data."""
    text = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, nbytes]}}).encode()
    return struct.pack("<Q", len(text)) + text
