"""What becomes of scores: records, the best model, and whether training may end early."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from border_cli.config.schema import TrainerConfig
from border_cli.core.progress import View
from border_cli.core.protocols import Agent, Evaluation, Evaluator
from border_cli.core.state import require
from border_cli.trainers.saving import Saving
from border_cli.trainers.telemetry import Telemetry


class Judging:
    """Has models judged and keeps the best. best, last: evaluations so far.

    write: takes the values of one record.
    """

    def __init__(
        self,
        config: TrainerConfig,
        evaluator: Evaluator,
        saving: Saving,
        view: View,
        telemetry: Telemetry,
        write: Callable[[dict[str, float]], None],
    ) -> None:
        self._config = config
        self._evaluator = evaluator
        self._saving = saving
        self._view = view
        self._telemetry = telemetry
        self._write = write
        self.best: Evaluation | None = None
        self.last: Evaluation | None = None

    def judge(self, agent: Agent, opt_steps: int) -> bool:
        """Evaluate the agent as it is now. False if the run was asked to stop meanwhile: then nothing came of it."""
        began = monotonic()
        evaluation = self._evaluator.evaluate(agent, opt_steps)
        self._telemetry.excluded(monotonic() - began)
        if evaluation is None:
            return False
        is_best = math.isfinite(evaluation.mean) and (self.best is None or evaluation.mean > self.best.mean)
        self.last = evaluation
        self._write(_evaluation_values(evaluation) | {"time/eval_ms": 1e3 * (monotonic() - began)})
        if is_best:
            self.best = evaluation
            self._saving.save_best(agent, evaluation)
            self._view.note(
                f"new best at opt step {evaluation.opt_steps}: {evaluation.mean:.1f} ± {evaluation.std:.1f}"
            )
        self._telemetry.evaluated(evaluation, is_best)
        return True

    def judge_last(self, agent: Agent, opt_steps: int) -> None:
        """Evaluate the result of the run, unless that was done already."""
        judged = self.last is not None and self.last.opt_steps == opt_steps
        if self._config.eval_interval is not None and opt_steps and not judged:
            self.judge(agent, opt_steps)

    def state(self) -> dict[str, Any]:
        """The scores so far, as JSON values."""
        best, last = (None if e is None else e.to_json() for e in (self.best, self.last))
        return {"best": best, "last": last}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over saved scores. Raises ValueError for what is none."""
        require(state, ("best", "last"), "the scores")
        self.best, self.last = (
            None if state[name] is None else Evaluation.from_json(state[name]) for name in ("best", "last")
        )

    @property
    def good_enough(self) -> bool:
        """Whether the last score reaches stop_return."""
        wanted = self._config.stop_return
        return self.last is not None and wanted is not None and self.last.mean >= wanted


def _evaluation_values(evaluation: Evaluation) -> dict[str, float]:
    return {
        "eval/return_mean": evaluation.mean,
        "eval/return_std": evaluation.std,
        "eval/return_min": min(evaluation.returns),
        "eval/return_max": max(evaluation.returns),
        "eval/length_mean": sum(evaluation.lengths) / len(evaluation.lengths),
    }
