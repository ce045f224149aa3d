"""An opt step that breaks off: agent and limiter still agree on how many there were."""

from __future__ import annotations

from typing import Any

import pytest

from border_cli.config.schema import TrainerConfig
from border_cli.trainers.loop import TrainingLoop
from tests.unit.test_take_in import Parts


class Breaking:
    """Raises from its second opt step, before it has counted it or after."""

    def __init__(self, counted: bool) -> None:
        self.opt_steps = self.skipped_in_a_row = 0
        self._counted = counted

    def opt(self, buffer: Any, record: bool = False) -> None:
        if self.opt_steps == 1 and not self._counted:
            raise RuntimeError("before")
        self.opt_steps += 1
        if self.opt_steps == 2:
            raise RuntimeError("after")


@pytest.mark.parametrize(("counted", "opt_steps"), [(False, 1), (True, 2)])
def test_an_opt_step_that_raises_counts_if_the_agent_has_counted_it(counted: bool, opt_steps: int) -> None:
    parts: Any = Parts()
    parts.agent = Breaking(counted)
    parts.telemetry.opt_took = lambda _: None
    loop = TrainingLoop(TrainerConfig(), parts)
    loop._phase = "training"
    loop._opt()
    with pytest.raises(RuntimeError):
        loop._opt()
    assert parts.limiter.opt_steps == parts.agent.opt_steps == opt_steps
