"""What the machine has left for this process: memory, disk, descriptors, processes; limits of containers included.

Every function answers None where the system does not tell, or sets no limit. root: of the file system to look at, for
tests.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
_CAPABLE = 1 << 24 | 1 << 21
"""CAP_SYS_RESOURCE and CAP_SYS_ADMIN: who has one of them is not held to RLIMIT_NPROC."""


def available_memory(root: Path = ROOT) -> int | None:
    """Bytes that may still be taken."""
    known = [limit for limit in (_meminfo_available(root), *_group_memory(root)) if limit is not None]
    return min(known) if known else _physical()


def cpus() -> int:
    """CPUs that this process may use, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_disk(path: Path) -> int:
    """Bytes that may still be written where `path` is, or will be. Raises OSError."""
    state = os.statvfs(existing(path))
    return state.f_bavail * state.f_frsize


def existing(path: Path) -> Path:
    """The path itself, or the nearest above it that is there."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def open_descriptors() -> int:
    """Descriptors this process holds now."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


def descriptor_limits() -> tuple[int | None, int | None]:
    """Descriptors one process may hold: the soft limit, and the hard one up to which it may be raised."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _unless_infinite(soft), _unless_infinite(hard)


def raise_descriptor_limit(wanted: int) -> None:
    """Let this process, and those it starts from now on, hold so many. Raises ValueError above the hard limit."""
    global _soft_before
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    _soft_before = soft if _soft_before is None else _soft_before


def raised_descriptor_limit() -> tuple[int, int] | None:
    """The soft limit that this process was started with and the one it has, if it has raised it."""
    if _soft_before is None:
        return None
    return _soft_before, resource.getrlimit(resource.RLIMIT_NOFILE)[0]


_soft_before: int | None = None  # the limit is the process's own, and so is what it was


def free_tasks(root: Path = ROOT) -> int | None:
    """Processes and threads that may still be started."""
    known = [limit for limit in (_user_tasks(root), *_group_tasks(root)) if limit is not None]
    return min(known) if known else None


# -- memory -------------------------------------------------------------


def _meminfo_available(root: Path) -> int | None:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _physical() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _group_memory(root: Path) -> Iterator[int | None]:
    """What each control group around this process leaves, of both versions."""
    for group in _groups(root, "memory"):
        yield _left(group, "memory.max", "memory.current", "inactive_file")
        yield _left(group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _left(group: Path, limit_file: str, used_file: str, cache: str) -> int | None:
    """Limit less use. Pages of files that were read and are not needed count as used: the kernel gives them back."""
    limit, used = _number(group / limit_file), _number(group / used_file)
    if limit is None or used is None:
        return None
    return max(0, limit - max(0, used - _stat(group / "memory.stat", cache)))


def _stat(path: Path, name: str) -> int:
    return next((int(line.split()[1]) for line in _lines(path) if line.split()[:1] == [name]), 0)


# -- processes ----------------------------------------------------------


def _user_tasks(root: Path) -> int | None:
    """What RLIMIT_NPROC leaves, which counts the threads of all processes of a user."""
    limit = _unless_infinite(resource.getrlimit(resource.RLIMIT_NPROC)[0])
    own = _status(root / "proc/self/status")
    if limit is None or not own or os.getuid() == 0 or int(own.get("CapEff", "0"), 16) & _CAPABLE:
        return None
    return max(0, limit - _tasks_of(root, own["Uid"].split()[0]))


def _tasks_of(root: Path, user: str) -> int:
    n = 0
    for entry in (root / "proc").iterdir():
        if entry.name.isdigit():
            status = _status(entry / "status")
            if status and status["Uid"].split()[0] == user:
                n += int(status.get("Threads", "1"))
    return n


def _group_tasks(root: Path) -> Iterator[int | None]:
    for group in _groups(root, "pids"):
        limit, used = _number(group / "pids.max"), _number(group / "pids.current")
        yield None if limit is None or used is None else max(0, limit - used)


# -- reading ------------------------------------------------------------


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of the control groups around this process: each may set a limit.

    A container may see its own group as the root of the mount, though the kernel names it by its path outside.
    """
    mount = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            bases = [mount, mount / "unified"]
        elif controller in controllers.split(","):
            bases = [mount / controller, mount / controllers]
        else:
            continue
        for base in dict.fromkeys(bases):
            inner = Path(path.lstrip("/"))
            yield from (base / part for part in (inner, *inner.parents) if (base / part).is_dir())


def _number(path: Path) -> int | None:
    """The number in a file; None for "max", and where there is no such file."""
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].isdigit() else None


def _status(path: Path) -> dict[str, str]:
    pairs = (line.partition(":") for line in _lines(path))
    return {name: value.strip() for name, _, value in pairs}


def _lines(path: Path) -> list[str]:
    """Lines of a file, none where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _unless_infinite(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit
