"""Freed memory stays with the process, so repeated allocations cause no page faults."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
import torch
from border_cli.runtime.worker import keep_freed_memory

def opt_step():
    blocks = [torch.ones(1 << 18) for _ in range(8)]  # 8 MiB, all of it touched

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

torch.set_num_threads(1)
if sys.argv[1] == "kept":
    assert keep_freed_memory()
for _ in range(20):
    opt_step()
before = faults()
for _ in range(50):
    opt_step()
print(faults() - before)
"""


def page_faults(way: str) -> int:
    """Return the page faults of an opt step. The variables make the C library return freed memory to the system."""
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    command = [sys.executable, "-c", SCRIPT, way]
    return int(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has rules of its own")
def test_a_repeated_opt_step_causes_no_page_faults() -> None:
    assert page_faults("kept") < 500
    assert page_faults("given back") > 50 * 500
