"""The number of tested cases and injected faults.

`make test` runs a sample of the cases and injects few faults. TEST_FULL=1 (`make test-full`) runs all cases with as many
faults as docs/project/reliability.md states.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

FULL = os.environ.get("TEST_FULL") == "1"
SEED = int(os.environ.get("FAULTS_SEED", "20240607"))


def times(short: T, full: T) -> T:
    return full if FULL else short


def sampled(cases: Sequence[T], width: int) -> list[T]:
    """Return all cases with TEST_FULL=1, else one of each `width` consecutive cases: the first, the second of the next …"""
    groups = [cases[i : i + width] for i in range(0, len(cases), width)]
    return list(cases) if FULL else [group[i % len(group)] for i, group in enumerate(groups)]


def seeded(name: str) -> random.Random:
    """Return a generator for one test. Its seed is printed, and pytest shows it if the test fails."""
    print(f"FAULTS_SEED={SEED}")
    return random.Random(f"{SEED} {name}")
