"""What the machine has: memory that may be taken, the limits of containers included."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP_V2 = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


def available_memory() -> int | None:
    """Bytes that may still be taken, None where the system does not tell."""
    known = [limit for limit in (_meminfo_available(), _cgroup_available()) if limit is not None]
    return min(known) if known else _physical()


def _meminfo_available() -> int | None:
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup_available() -> int | None:
    try:
        limit = (_CGROUP_V2 / "memory.max").read_text().strip()
        used = int((_CGROUP_V2 / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(0, int(limit) - used)


def _physical() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
