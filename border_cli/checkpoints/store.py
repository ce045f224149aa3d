"""Checkpoint directories on disk: written completely or not at all, and read only if their checksums match.

A directory is written under a temporary name, synced to the disk, read back, and renamed. An existing directory of this
name is first renamed to its `aside` name, so there are two renames; between them a reader finds the old directory
there. At every instant, also after a crash, `name` or its aside verifies if one of them did before.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType

from safetensors import SafetensorError

from border_cli.core.errors import CheckpointIOError, NoValidCheckpointError, first_line
from border_cli.core.state import MAX_JSON_BYTES, from_json, to_json
from border_cli.runtime.files import open_plain

FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"

_logger = logging.getLogger(__name__)
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)+")
_STEP_NAME = re.compile(r"step-(\d{9,18})")
_TEMPORARY = ".checkpoint.tmp"
_DISCARDED = ".checkpoint.old"
_MIN_VERIFIED = 2
"""Pruning always leaves this many checkpoints that verify."""


class InvalidCheckpointError(NoValidCheckpointError):
    """A checkpoint that does not verify; the message names the file."""


@dataclass(frozen=True)
class FileEntry:
    """Size [bytes] and SHA-256 (hexadecimal) of one file."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Opt step and files of a checkpoint. The part that a file belongs to is its name up to the first dot."""

    opt_steps: int
    files: Mapping[str, FileEntry]

    @property
    def parts(self) -> list[str]:
        return sorted({part_of(name) for name in self.files})

    def encode(self) -> bytes:
        return to_json({"format_version": FORMAT_VERSION, "parts": self.parts, **asdict(self)})

    @staticmethod
    def decode(text: bytes) -> Manifest:
        data = from_json(text)
        if (version := data["format_version"]) != FORMAT_VERSION:
            raise ValueError(f"format_version {version!r}; this border-cli reads {FORMAT_VERSION}")
        check_file_names(data["files"])
        files = {name: FileEntry(**entry) for name, entry in data["files"].items()}
        manifest = Manifest(data["opt_steps"], files)
        if type(manifest.opt_steps) is not int or manifest.opt_steps < 0:
            raise ValueError(f"opt_steps is {manifest.opt_steps!r}, not a count")
        if data["parts"] != manifest.parts:
            raise ValueError("its parts are not those of its files")
        return manifest


Content = bytes | Callable[[], bytes]
"""What to write into a file. A function is called when the file is written, and its result is not kept in memory."""
Link = tuple[Path, FileEntry]
"""A file of an earlier checkpoint, which a new one links instead of writing it again, and its entry there."""


def part_of(file_name: str) -> str:
    """The part that a file belongs to."""
    return file_name.partition(".")[0]


def check_file_names(names: Collection[str]) -> None:
    """Raise ValueError for a name that is not a plain file name with a suffix, and could leave the folder."""
    for name in names:
        if not _FILE_NAME.fullmatch(name) or name == MANIFEST_FILE:
            raise ValueError(f"{name!r} is not a valid name of a checkpoint's file")


def step_name(opt_steps: int) -> str:
    """Name of the checkpoint taken at this opt step."""
    return f"step-{opt_steps:09d}"


def aside(path: Path) -> Path:
    """Where a checkpoint is kept while another one takes its place."""
    return path.with_name(f".{path.name}.aside")


# -- writing ------------------------------------------------------------


def write(
    parent: Path,
    name: str,
    files: Mapping[str, Content],
    opt_steps: int,
    links: Mapping[str, Link] = MappingProxyType({}),
) -> Manifest:
    """Write the checkpoint `parent/name`, replacing an existing one, and return its manifest.

    Only one process may write below `parent` at a time. What a crashed writer left there is removed. New files are read
    back and verified before the checkpoint gets its name; linked files were verified when they were written.

    Raises:
        CheckpointIOError: when the disk fails; the checkpoint that was there is unchanged.
        ValueError: for a file name that could leave the directory.
    """
    check_file_names(files)
    path, temporary = parent / name, parent / _TEMPORARY
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for leftover in (temporary, parent / _DISCARDED):
            if leftover.exists():
                shutil.rmtree(leftover)
        temporary.mkdir()
        entries = {key: _put_file(temporary / key, content, links.get(key)) for key, content in files.items()}
        manifest = Manifest(opt_steps, entries)
        _put_file(temporary / MANIFEST_FILE, manifest.encode())
        _sync_folder(temporary)
        read(temporary, (), by_size=links)
        _put_in_place(temporary, path)
    except (OSError, InvalidCheckpointError) as e:
        raise CheckpointIOError(
            f"checkpoint {path} cannot be written: {_reason(e)}\nthe checkpoints before it are unchanged"
        ) from e
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return manifest


def prune(parent: Path, keep: int, by_size: Collection[str] = ()) -> None:
    """Remove all but the newest `keep` checkpoints; two that verify are always left.

    by_size: see `read`. Raises CheckpointIOError when the disk fails.
    """
    paths = list_steps(parent)
    verified = list(islice((path for path in paths if verifies(path, by_size)), _MIN_VERIFIED))
    if len(verified) == _MIN_VERIFIED:
        try:
            for path in paths[max(keep, paths.index(verified[-1]) + 1) :]:
                _discard(path)
                _discard(aside(path))
        except OSError as e:
            raise CheckpointIOError(f"an old checkpoint in {parent} cannot be removed: {_reason(e)}") from e
    elif len(paths) > max(keep, len(verified)):
        _logger.warning("%s: fewer than two checkpoints verify; no older one is removed", parent)


def _put_file(path: Path, content: Content, link: Link | None = None) -> FileEntry:
    if link is not None:
        with contextlib.suppress(OSError):  # the file was removed, or the file system has no hard links
            os.link(link[0], path, follow_symlinks=False)
            return link[1]
    data = content if isinstance(content, bytes) else content()
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return FileEntry(len(data), hashlib.sha256(data).hexdigest())


def _put_in_place(temporary: Path, path: Path) -> None:
    """Rename `temporary` to `path`. An existing checkpoint is renamed to `aside` first and removed last."""
    kept = aside(path)
    if path.exists():
        _discard(kept)  # of a writer that crashed after its new checkpoint was in place
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
    """Remove a directory. It is renamed first, so that no reader finds half of it."""
    if path.exists():
        discarded = path.with_name(_DISCARDED)
        path.rename(discarded)
        shutil.rmtree(discarded)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- reading ------------------------------------------------------------


def verify(path: Path, by_size: Collection[str] = ()) -> Manifest:
    """The manifest of a checkpoint that verifies. See `read`."""
    return read(path, (), by_size)[0]


def verifies(path: Path, by_size: Collection[str] = ()) -> bool:
    """Whether a checkpoint does. See `read`."""
    with contextlib.suppress(InvalidCheckpointError):
        verify(path, by_size)
        return True
    return False


def read(
    path: Path, parts: Collection[str] | None = None, by_size: Collection[str] = ()
) -> tuple[Manifest, dict[str, bytes]]:
    """Verify a checkpoint and read some of its files. Files that the manifest does not name are never opened.

    Args:
        parts: whose files to return; None for all. The others are verified too.
        by_size: parts or names of files of which only the size is verified. They are not returned.

    Raises:
        InvalidCheckpointError: naming the file that does not verify. The bytes that are returned do.
    """
    try:
        return _read(path, parts, by_size)
    except InvalidCheckpointError:
        return _read(path, parts, by_size)  # a writer may have replaced it meanwhile


def _read(
    path: Path, parts: Collection[str] | None, by_size: Collection[str]
) -> tuple[Manifest, dict[str, bytes]]:
    manifest, contents = read_manifest(path), dict[str, bytes]()
    for name, entry in manifest.files.items():
        only_size = name in by_size or part_of(name) in by_size
        data = read_file(path, name, entry, only_size)
        if not only_size and (parts is None or part_of(name) in parts):
            contents[name] = data
    return manifest, contents


def read_file(path: Path, name: str, entry: FileEntry, by_size: bool = False) -> bytes:
    """The content of a file, verified; empty if only its size is to be verified. Raises InvalidCheckpointError."""
    with verifying(path / name), open_plain(_current(path) / name, links=False) as file:
        size = os.fstat(file.fileno()).st_size
        if size != entry.bytes:
            raise ValueError(f"it has {size} bytes, its manifest says {entry.bytes}")
        if by_size:
            return b""
        data = file.read()
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise ValueError("its SHA-256 is not that of its manifest")
        return data


def read_manifest(path: Path) -> Manifest:
    """The manifest of a checkpoint, without verifying the files. Raises InvalidCheckpointError."""
    with verifying(path / MANIFEST_FILE), open_plain(_current(path) / MANIFEST_FILE, links=False) as file:
        manifest = Manifest.decode(file.read(MAX_JSON_BYTES + 1))
        match = _STEP_NAME.fullmatch(path.name)
        if match and int(match[1]) != manifest.opt_steps:  # which no checksum covers
            raise ValueError(f"it is of opt step {manifest.opt_steps}, and its directory is not")
        return manifest


def exists(path: Path) -> bool:
    """Whether there is a checkpoint of this name, valid or not."""
    return _current(path).is_dir()


def list_steps(parent: Path) -> list[Path]:
    """Paths of the checkpoints below `parent`, newest first, valid or not."""
    if not parent.is_dir():
        return []
    folders = (entry.name for entry in os.scandir(parent) if entry.is_dir(follow_symlinks=False))
    names = {re.sub(r"^\.(.*)\.aside$", r"\1", name) for name in folders}
    steps = {int(match[1]): name for name in names if (match := _STEP_NAME.fullmatch(name))}
    return [parent / steps[opt_steps] for opt_steps in sorted(steps, reverse=True)]


def newest_valid(parent: Path, by_size: Collection[str] = ()) -> Path | None:
    """The newest checkpoint that verifies, None where there are no checkpoints. Logs each one that does not.

    by_size: see `read`. Raises NoValidCheckpointError when checkpoints exist and none verifies.
    """
    paths, failure = list_steps(parent), ""
    for path in paths:
        try:
            verify(path, by_size)
            return path
        except InvalidCheckpointError as e:
            failure = str(e)
            _logger.warning("%s; the checkpoint before it is used", failure)
    if not paths:
        return None
    raise NoValidCheckpointError(
        f"{failure}\nnone of the checkpoints in {parent} verifies: {len(paths)} tried"
    )


def _current(path: Path) -> Path:
    """Where a checkpoint is now: under its name, or aside."""
    return path if path.exists() else aside(path)


@contextlib.contextmanager
def verifying(path: Path) -> Iterator[None]:
    """Turn what is wrong with a file into an InvalidCheckpointError that names it."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as e:
        raise InvalidCheckpointError(f"{path} does not verify: {_reason(e)}") from e


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it has no {error}"
    return (error.strerror if isinstance(error, OSError) else None) or first_line(error)
