"""Freed memory stays with the process, so repeated allocations cause no page faults."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource
import torch
from border_cli.runtime.worker import keep_freed_memory

def opt_step():
    blocks = [torch.ones(1 << 18) for _ in range(8)]  # 8 MiB, all of it touched

def page_faults():
    for _ in range(20):
        opt_step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        opt_step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

torch.set_num_threads(1)
print(page_faults())
assert keep_freed_memory()
print(page_faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has rules of its own")
def test_a_repeated_opt_step_causes_no_page_faults() -> None:
    """The variables make the C library return freed memory to the system, until it is told to keep it."""
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert after < 500 and before > 50 * 500
