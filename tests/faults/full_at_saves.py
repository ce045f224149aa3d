"""A plugin: the disk of the run directory is full when two checkpoints are to be written, and free again after them."""

from __future__ import annotations

from tests.faults import full_disk

full_disk.FULL_AT, full_disk.FREE_AT = 15, 45
