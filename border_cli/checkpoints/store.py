"""Checkpoint directories on disk: whole or not there, and never believed without their checksums.

A directory is written under a temporary name, brought to the disk, verified, and renamed. Where one of that
name exists it steps aside first, so there are two renames; whoever looks between them finds the old one at
`aside`. At every instant, after a crash too, `name` or its aside verifies if any did before.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Protocol

from border_cli.checkpoints.manifest import (
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    FileEntry,
    Manifest,
    check_file_name,
    part_of,
)
from border_cli.core.errors import CheckpointIOError, NoValidCheckpointError
from border_cli.runtime.files import open_plain

_logger = logging.getLogger(__name__)
_TEMPORARY = ".checkpoint.tmp"
_DISCARDED = ".checkpoint.old"
_BLOCK = 2**20
_STEP_NAME = re.compile(r"step-(\d{9,18})")
_READ_TRIES = 3
_LEAST_VERIFIED = 2
_NO_LIMITS: Mapping[str, int] = MappingProxyType({})


class InvalidCheckpointError(NoValidCheckpointError):
    """One checkpoint that does not verify; the message names the file."""


class Sink(Protocol):
    """Where a `Writer` writes to."""

    def write(self, data: bytes | memoryview, /) -> int:
        """Append these bytes."""


Writer = Callable[[Sink], None]
"""Writes the content of a file that is too large to be made in memory first."""


@dataclass(frozen=True)
class LinkTo:
    """A file that an earlier checkpoint has already: it gets a second name instead of a second copy.

    path, entry: there · content: what to write where that is gone, or the file system knows no second names.
    """

    path: Path
    entry: FileEntry
    content: Content


Content = bytes | Writer | LinkTo


def step_name(opt_steps: int) -> str:
    """Name of the checkpoint taken at this opt step."""
    return f"step-{opt_steps:09d}"


def aside(path: Path) -> Path:
    """Where a checkpoint is kept while another one takes its place."""
    return path.with_name(f".{path.name}.aside")


# -- writing ------------------------------------------------------------


def write(parent: Path, name: str, files: Mapping[str, Content], opt_steps: int) -> Path:
    """Write `parent/name` whole, in the place of one that is there already, and return its path.

    files: name → content. What is written is read back; a linked file was when it was written. One process writes
    below `parent` at a time. What a crashed one left is removed.
    Raises CheckpointIOError when the disk fails; then nothing of it is left and what was there is as it was.
    Raises ValueError for a file name that could leave the directory.
    """
    for file_name in files:
        check_file_name(file_name)
    path, temporary = parent / name, parent / _TEMPORARY
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(parent)
        _fill(temporary, files, opt_steps)
        linked = {name for name, content in files.items() if isinstance(content, LinkTo)}
        _read(temporary, (), linked)  # what the disk did not keep must not take the place of what it did
        _put_in_place(temporary, path)
    except (OSError, InvalidCheckpointError) as e:
        raise CheckpointIOError(
            f"checkpoint {path} cannot be written: {_reason(e)}\nthe checkpoints before it are as they were"
        ) from e
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return path


def prune(parent: Path, keep: int, by_size: Collection[str] = ()) -> None:
    """Remove all but the newest `keep` checkpoints, and never all but two that verify.

    by_size: parts of which only the size is looked at. Raises CheckpointIOError when the disk fails.
    """
    paths = list_steps(parent)
    if len(paths) <= keep:
        return
    kept, verified = paths[:keep], 0
    for path in paths:
        if verified >= _LEAST_VERIFIED:
            break
        try:
            verify(path, by_size)
        except InvalidCheckpointError as e:
            _logger.warning("%s", e)
            continue
        verified += 1
        kept = [*kept, path]
    if verified < _LEAST_VERIFIED:
        _logger.warning("%s: fewer than two checkpoints verify; no older one is removed", parent)
        return
    try:
        for path in paths:
            if path not in kept:
                _discard(path)
                _discard(aside(path))
    except OSError as e:
        raise CheckpointIOError(f"an old checkpoint in {parent} cannot be removed: {_reason(e)}") from e


def _fill(folder: Path, files: Mapping[str, Content], opt_steps: int) -> None:
    folder.mkdir()
    entries = {name: _put_file(folder / name, content) for name, content in files.items()}
    _write_file(folder / MANIFEST_FILE, Manifest(opt_steps, entries).encode())
    _sync_folder(folder)


def _put_file(path: Path, content: Content) -> FileEntry:
    if not isinstance(content, LinkTo):
        return _write_file(path, content)
    try:
        os.link(content.path, path, follow_symlinks=False)
    except OSError:  # gone, or no second names on this file system
        return _put_file(path, content.content)
    return content.entry


def _write_file(path: Path, content: bytes | Writer) -> FileEntry:
    with path.open("xb") as file:
        sink = _HashingSink(file)
        if isinstance(content, bytes):
            sink.write(content)
        else:
            content(sink)
        file.flush()
        os.fsync(file.fileno())
    return sink.entry


class _HashingSink:
    """Passes bytes on to a file and takes their checksum on the way."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._bytes = 0

    def write(self, data: bytes | memoryview, /) -> int:
        self._file.write(data)
        self._hash.update(data)
        size = memoryview(data).nbytes
        self._bytes += size
        return size

    @property
    def entry(self) -> FileEntry:
        return FileEntry(self._bytes, self._hash.hexdigest())


def _put_in_place(temporary: Path, path: Path) -> None:
    """Rename `temporary` to `path`; what is there steps aside first and goes last."""
    kept = aside(path)
    if path.exists():
        if kept.exists() and not _verifies(path):
            _discard(path)  # a crash left the good one aside: it stays until the new one is in place
        else:
            _discard(kept)
            path.rename(kept)
    try:
        temporary.rename(path)
    except OSError:
        if kept.exists():
            kept.rename(path)
        raise
    _sync_folder(path.parent)
    _discard(kept)


def _discard(path: Path) -> None:
    """Remove a directory; it loses its name first, so that no reader meets half of it."""
    if not path.exists():
        return
    gone = path.with_name(_DISCARDED)
    path.rename(gone)
    shutil.rmtree(gone)


def _remove_leftovers(parent: Path) -> None:
    for name in (_TEMPORARY, _DISCARDED):
        if (parent / name).exists():
            shutil.rmtree(parent / name)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- reading ------------------------------------------------------------


def verify(path: Path, by_size: Collection[str] = (), limits: Mapping[str, int] = _NO_LIMITS) -> Manifest:
    """The manifest of a checkpoint, read as `read` does. Raises InvalidCheckpointError."""
    return read(path, (), by_size, limits)[0]


def read(
    path: Path,
    parts: Collection[str] | None = None,
    by_size: Collection[str] = (),
    limits: Mapping[str, int] = _NO_LIMITS,
) -> tuple[Manifest, dict[str, bytes]]:
    """Manifest and file contents of these parts, or all; the whole checkpoint is verified in any case.

    by_size: parts that are not read, and of whose files only the size is looked at · limits: bytes that a part may
    have; where it has more, nothing is read. Files that the manifest does not name are never looked at. Where a writer
    is just replacing the checkpoint, or crashed doing so, the one that verifies is read. Raises InvalidCheckpointError.
    """
    for _ in range(_READ_TRIES - 1):
        try:
            return _read_either(path, parts, by_size, limits)
        except InvalidCheckpointError as e:
            if not isinstance(e.__cause__, FileNotFoundError):
                raise
        # Gone at one look and back at the next: a writer went by between the two.
    return _read_either(path, parts, by_size, limits)


def read_file(path: Path, name: str, entry: FileEntry) -> bytes:
    """One file of a checkpoint that was verified, whose bytes are checked once more: those that are returned.

    Raises InvalidCheckpointError.
    """
    try:
        with _open_folder(_standing(path)) as folder, open_plain(name, folder) as file:
            return _read_entry(file, entry, wanted=True)
    except (OSError, ValueError) as e:
        raise InvalidCheckpointError(f"{path / name} does not verify: {_reason(e)}") from e


def read_manifest(path: Path) -> Manifest:
    """What a checkpoint consists of, by its own account. Raises InvalidCheckpointError."""
    try:
        with _open_folder(_standing(path)) as folder, open_plain(MANIFEST_FILE, folder) as file:
            return Manifest.decode(_read_limited(file, MAX_MANIFEST_BYTES))
    except (OSError, ValueError) as e:
        raise InvalidCheckpointError(f"{path / MANIFEST_FILE} does not verify: {_reason(e)}") from e


def _standing(path: Path) -> Path:
    """Where a checkpoint is at the moment."""
    return path if path.exists() else aside(path)


def exists(path: Path) -> bool:
    """Whether there is a checkpoint of this name, valid or not."""
    return path.is_dir() or aside(path).is_dir()


def list_steps(parent: Path) -> list[Path]:
    """Paths of the checkpoints below `parent`, newest first, valid or not."""
    if not parent.is_dir():
        return []
    found = {name: int(match[1]) for name in _visible_names(parent) if (match := _STEP_NAME.fullmatch(name))}
    return [parent / name for name, _ in sorted(found.items(), key=lambda item: item[1], reverse=True)]


def newest_valid(
    parent: Path, by_size: Collection[str] = (), limits: Mapping[str, int] = _NO_LIMITS
) -> Path | None:
    """The newest checkpoint that verifies, None where there is none at all. Warns of each one passed over.

    by_size, limits: as of `read`. Raises NoValidCheckpointError when checkpoints exist and none verifies.
    """
    paths = list_steps(parent)
    failure = ""
    for path in paths:
        try:
            verify(path, by_size, limits)
            return path
        except InvalidCheckpointError as e:
            failure = str(e)
            _logger.warning("%s; the checkpoint before it is taken", failure)
    if not paths:
        return None
    raise NoValidCheckpointError(
        f"{failure}\nnone of the checkpoints in {parent} verifies: {len(paths)} tried"
    )


def _visible_names(parent: Path) -> set[str]:
    """Names of directories, those that a crash left aside under their own names."""
    names = {entry.name for entry in os.scandir(parent) if entry.is_dir(follow_symlinks=False)}
    return {_own_name(name) for name in names}


def _own_name(name: str) -> str:
    """The name of a checkpoint that may stand aside (see `aside`)."""
    return name[1 : -len(".aside")] if name.endswith(".aside") else name


def _verifies(path: Path) -> bool:
    """Whether the directory of this very name does, whatever stands aside."""
    try:
        _read(path, ())
    except InvalidCheckpointError:
        return False
    return True


def _read_either(
    path: Path, parts: Collection[str] | None, by_size: Collection[str], limits: Mapping[str, int]
) -> tuple[Manifest, dict[str, bytes]]:
    """What `path` holds or else what stepped aside from there; the first one's error if neither verifies."""
    try:
        return _read(path, parts, by_size, limits)
    except InvalidCheckpointError:
        with contextlib.suppress(InvalidCheckpointError):
            return _read(aside(path), parts, by_size, limits)
        raise


def _read(
    path: Path,
    parts: Collection[str] | None,
    by_size: Collection[str] = (),
    limits: Mapping[str, int] = _NO_LIMITS,
) -> tuple[Manifest, dict[str, bytes]]:
    """One pass over a directory: the bytes that are returned are those that were verified.

    by_size: parts, or single files, of which only the size is looked at.
    """
    name, contents = MANIFEST_FILE, {}
    try:
        with _open_folder(path) as folder:
            with open_plain(name, folder) as file:
                manifest = Manifest.decode(_read_limited(file, MAX_MANIFEST_BYTES))
            _check_name(path, manifest)
            _check_limits(manifest, limits)
            for name, entry in manifest.files.items():
                with open_plain(name, folder) as file:
                    _check_size(file, entry)
                    if name in by_size or part_of(name) in by_size:
                        continue
                    wanted = parts is None or part_of(name) in parts
                    content = _read_entry(file, entry, wanted)
                if wanted:
                    contents[name] = content
    except (OSError, ValueError) as e:
        raise InvalidCheckpointError(f"{path / name} does not verify: {_reason(e)}") from e
    return manifest, contents


def _check_name(path: Path, manifest: Manifest) -> None:
    """The manifest has no sum of its own; of what it says, only the opt step is not held against the files."""
    match = _STEP_NAME.fullmatch(_own_name(path.name))
    if match and int(match[1]) != manifest.opt_steps:
        raise ValueError(f"it is of opt step {manifest.opt_steps}, and its directory is not")


def _check_limits(manifest: Manifest, limits: Mapping[str, int]) -> None:
    for part, most in limits.items():
        total = sum(entry.bytes for name, entry in manifest.files.items() if part_of(name) == part)
        if total > most:
            raise ValueError(f"its part {part} has {total} bytes, and this run at most {most}")


@contextlib.contextmanager
def _open_folder(path: Path) -> Iterator[int]:
    """Descriptor of a folder: it stays the same one when the path begins to mean another."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read_limited(file: BinaryIO, limit: int) -> bytes:
    if os.fstat(file.fileno()).st_size > limit:
        raise ValueError(f"it is larger than {limit} bytes")
    return file.read(limit)


def _read_entry(file: BinaryIO, entry: FileEntry, wanted: bool) -> bytes:
    """Check a file against its entry; its content where wanted, else nothing."""
    _check_size(file, entry)
    digest, kept = hashlib.sha256(), bytearray()
    while block := file.read(_BLOCK):
        digest.update(block)
        if wanted:
            kept += block
    if digest.hexdigest() != entry.sha256:
        raise ValueError("its SHA-256 is not that of its manifest")
    return bytes(kept)


def _check_size(file: BinaryIO, entry: FileEntry) -> None:
    size = os.fstat(file.fileno()).st_size
    if size != entry.bytes:
        raise ValueError(f"it has {size} bytes, its manifest says {entry.bytes}")


def _reason(error: Exception) -> str:
    """One line that says why."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return text.splitlines()[0] if text else type(error).__name__
