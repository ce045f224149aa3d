"""How often a fault is injected: a few times in the everyday tests, as often as promised with FAULTS_FULL=1."""

from __future__ import annotations

import os
import random

FULL = os.environ.get("FAULTS_FULL") == "1"
SEED = int(os.environ.get("FAULTS_SEED", "20240607"))


def times(short: int, full: int) -> int:
    return full if FULL else short


def seeded(name: str) -> random.Random:
    """A generator for one test; its seed is printed, which pytest shows where the test fails."""
    print(f"FAULTS_SEED={SEED}")
    return random.Random(f"{SEED} {name}")
