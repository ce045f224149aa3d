"""manifest.json: what a checkpoint consists of, with the size and SHA-256 of each file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from border_cli.core import json_text
from border_cli.core.state import count

FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"
MAX_MANIFEST_BYTES = 2**20
MAX_FILES = 5000
MAX_JSON_BYTES = 8 * 2**20
MAX_ARRAYS_BYTES = {"model": 2**30}
MAX_OTHER_BYTES = 2**32
"""Far above any file of that kind; a manifest that claims more is not believed, and the file is not looked at."""

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)+")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class FileEntry:
    """Size [bytes] and SHA-256 (hexadecimal) of one file."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Opt step and files of a checkpoint. A file's part is its name up to the first dot."""

    opt_steps: int
    files: Mapping[str, FileEntry]

    @property
    def total_bytes(self) -> int:
        """Size of all files together."""
        return sum(entry.bytes for entry in self.files.values())

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts, sorted."""
        return tuple(sorted({part_of(name) for name in self.files}))

    def encode(self) -> bytes:
        """The text of manifest.json."""
        return json_text.encode(
            {
                "format_version": FORMAT_VERSION,
                "opt_steps": self.opt_steps,
                "parts": list(self.parts),
                "files": {name: asdict(entry) for name, entry in self.files.items()},
            }
        )

    @staticmethod
    def decode(text: bytes) -> Manifest:
        """The inverse of `encode`. Raises ValueError that says what is wrong with it."""
        data = json_text.decode(text)
        if not isinstance(data, dict) or "format_version" not in data:
            raise ValueError("it is no manifest")
        if data["format_version"] != FORMAT_VERSION:
            raise ValueError(
                f"format_version {data['format_version']!r}; this border-cli reads {FORMAT_VERSION}"
            )
        manifest = Manifest(count(data.get("opt_steps"), "opt_steps"), _files(data.get("files")))
        if data.get("parts") != list(manifest.parts):
            raise ValueError("its parts are not those of its files")
        return manifest


def part_of(file_name: str) -> str:
    """The part a file belongs to."""
    return file_name.partition(".")[0]


def check_file_name(name: str) -> None:
    """Raise ValueError unless this is a plain name, with a suffix, that stays inside its folder."""
    if not _FILE_NAME.fullmatch(name) or name == MANIFEST_FILE:
        raise ValueError(f"{name!r} is no name of a checkpoint's file")


def _most_bytes(name: str) -> int:
    if name.endswith(".json"):
        return MAX_JSON_BYTES
    return MAX_ARRAYS_BYTES.get(part_of(name), MAX_OTHER_BYTES)


def _files(data: Any) -> dict[str, FileEntry]:
    if not isinstance(data, dict) or not 0 < len(data) <= MAX_FILES:
        raise ValueError("it has no list of files")
    return {name: _entry(name, entry) for name, entry in data.items()}


def _entry(name: str, data: Any) -> FileEntry:
    check_file_name(name)
    if not isinstance(data, dict) or data.keys() != {"bytes", "sha256"}:
        raise ValueError(f"{name}: bytes and sha256 are not given")
    size, digest = count(data["bytes"], f"bytes of {name}"), data["sha256"]
    if size > _most_bytes(name):
        raise ValueError(f"{name}: {size} bytes are more than any checkpoint has")
    if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
        raise ValueError(f"{name}: the sha256 is none")
    return FileEntry(size, digest)
