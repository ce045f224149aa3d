"""A plugin that holds up the writing of a checkpoint after its first file, until the test lets it go on."""

from __future__ import annotations

import os
from pathlib import Path

from border_cli.checkpoints import store
from border_cli.checkpoints.manifest import MANIFEST_FILE, FileEntry
from tests.faults.marks import HELD_SAVE, spring, wait_for_go

_write_file = store._write_file
_to_come = int(os.environ.get(HELD_SAVE, "0"))


def _held_write_file(path: Path, content: bytes | store.Writer) -> FileEntry:
    global _to_come
    entry = _write_file(path, content)
    if path.name == MANIFEST_FILE:
        _to_come -= 1
    elif _to_come == 1:
        spring("pass")
        wait_for_go()
    return entry


store._write_file = _held_write_file
