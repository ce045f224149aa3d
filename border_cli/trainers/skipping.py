"""Opt steps that an agent skipped because their loss or gradient was not finite: told, and kept for diagnosis."""

from __future__ import annotations

import logging

from border_cli.core.protocols import Agent
from border_cli.trainers.saving import Keeper

_logger = logging.getLogger(__name__)


class Skipping:
    """Watches an agent for skipped opt steps. The first of each series is told, as long as its batch is kept."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._in_series = False
        self._telling = True

    def watch(self, agent: Agent, opt_steps: int) -> None:
        """After each opt step."""
        skipped = agent.skipped_in_a_row > 0
        if skipped and not self._in_series and self._telling:
            self._tell(agent, opt_steps)
        self._in_series = skipped

    def _tell(self, agent: Agent, opt_steps: int) -> None:
        batch = agent.skipped_batch()
        path = None if batch is None else self._keeper.save_skipped(opt_steps, batch)
        if path is not None:
            kept = f"its batch is in {path.parent.name}/{path.name}"
        else:
            kept = "others are only counted from now on, as agent/skipped_steps"
            self._telling = False
        _logger.warning("opt step %d was skipped: its loss or gradient is not finite; %s", opt_steps, kept)
