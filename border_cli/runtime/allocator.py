"""What becomes of memory that is freed: kept for the next opt step, not given back to the kernel after each.

An opt step allocates and frees a few megabytes. glibc gives those back by default and asks for them again, zeroed page by
page: measured on SAC with two layers of 256 units, an eighth to a fifth of the learner's time.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD = -1  # M_TRIM_THRESHOLD of glibc's malloc.h
_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD
_MMAP_AT_LEAST = 32 << 20
"""Blocks from here on, such as a replay's, come from the kernel and go back to it. The most that glibc takes."""
_KEPT = 256 << 20
"""Freed memory at the end of the heap that is kept."""


def keep_freed_memory() -> bool:
    """Do so from now on, in this process and those it forks. Whether the C library, glibc, could be told."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(
        mallopt(_MMAP_THRESHOLD, _MMAP_AT_LEAST) and mallopt(_TRIM_THRESHOLD, _KEPT)
    )
