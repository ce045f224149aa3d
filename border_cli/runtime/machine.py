"""CPUs, GPUs, memory and disk of this machine, and how much is free, by control groups too."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

import psutil

ROOT = Path("/")
"""Where the files of the kernel are mounted."""


def available_memory() -> int:
    """Bytes that may still be allocated, limits of control groups included."""
    left = [int(psutil.virtual_memory().available)]
    for group in _cgroups("memory"):
        for limit, used, cache in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            most, now = _number(group / limit), _number(group / used)
            if most is not None and now is not None:
                # pages of files that were read count as used, and the kernel gives them back
                cached = re.search(rf"^{cache} (\d+)", _text(group / "memory.stat"), re.MULTILINE)
                left.append(max(0, most - max(0, now - (int(cached[1]) if cached else 0))))
    return min(left)


def cpu_seconds() -> float:
    """User and system time of this process and all its descendants, including those that have ended [s]."""
    total = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile: its parent has the time
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def queued_seconds() -> float:
    """How long the main thread of this process was ready to run, but had no CPU [s]; 0 where the system does not say."""
    words = _text(ROOT / "proc/self/schedstat").split()
    return int(words[1]) / 1e9 if len(words) > 1 else 0.0


def _cgroups(controller: str) -> Iterator[Path]:
    """Folders of the control groups around this process, of version 1 or 2; each may set a limit."""
    for line in _text(ROOT / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" or controller in controllers.split(","):
            # a container may see its own group as the root of the mount, though it is named by its path outside
            inner = Path(path.lstrip("/"))
            yield from (ROOT / "sys/fs/cgroup" / controllers / part for part in (inner, *inner.parents))


def _number(path: Path) -> int | None:
    """The number in a file; None for "max", and where there is no such file."""
    words = _text(path).split()
    return int(words[0]) if words and words[0].isdigit() else None


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""


_cpu_share: int | None = None


def limit_cpus(share: int) -> None:
    """Let `cpus` return at most this: other runs of a sweep use the rest."""
    global _cpu_share
    _cpu_share = share


def cpus() -> int:
    """CPUs that this process may use, limits of control groups included; at least 1."""
    most = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1]
    for group in _cgroups("cpu"):
        quota, period = [*_text(group / "cpu.max").split(), "", ""][:2]
        if not quota:  # version 1
            quota, period = (_text(group / f"cpu.cfs_{what}_us").strip() for what in ("quota", "period"))
        if quota.isdigit() and period.isdigit():  # without a limit it is "max" or -1
            most.append(max(1, math.ceil(int(quota) / int(period))))
    return min(most) if _cpu_share is None else min(*most, _cpu_share)


def idle_s() -> float:
    """Idle time of the CPUs that this process may use, summed [s]."""
    times = psutil.cpu_times(percpu=True)
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(times))
    return sum(float(cpu.idle) for i, cpu in enumerate(times) if i in usable)


def gpus() -> list[str]:
    """Names of the GPUs that this process may use, as CUDA_VISIBLE_DEVICES takes them."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in visible.split(",") if name]
    folder = Path("/proc/driver/nvidia/gpus")
    return [str(i) for i in range(len(list(folder.iterdir())))] if folder.is_dir() else []


def has_bfloat16() -> bool:
    """Whether the CPU has instructions for products of bfloat16 numbers; False where the system does not list them."""
    flags = re.findall(r"^(?:flags|Features)\s*:(.*)$", _text(ROOT / "proc/cpuinfo"), re.MULTILINE)
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags[0].split() if flags else ())


def existing(path: Path) -> Path:
    """The path itself, or the nearest parent that exists."""
    path = path.absolute()
    return next(p for p in (path, *path.parents) if p.exists())


def free_disk(folder: Path) -> int:
    """Bytes that may still be written to `folder`, which need not exist yet. Raises OSError."""
    return int(psutil.disk_usage(str(existing(folder))).free)
