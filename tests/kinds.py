"""The agents and buffers of border-cli itself. Plugins of tests register more when they are imported, in any order."""

from __future__ import annotations

from border_cli.config import registry

AGENTS, BUFFERS = dict(registry.AGENTS), dict(registry.BUFFERS)
