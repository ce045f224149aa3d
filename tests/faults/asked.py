"""The name by which a run is told when to ask itself for checkpoints: see `tests.faults.asked_to_save`."""

from __future__ import annotations

ASKED_AT = "ASKED_AT"
"""Environment variable: opt steps, separated by commas."""
