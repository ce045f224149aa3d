"""A plugin whose import does not come to an end."""

from __future__ import annotations

from tests.faults.marks import spring

spring("hang")
