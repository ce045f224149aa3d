"""Judging in the learner's own thread, which does nothing else meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from border_cli.core.protocols import ActingPolicy, Evaluation, ModelInfo
from border_cli.evaluation.episodes import EpisodeRunner


class InlineEvaluator:
    """Implements `core.protocols.Evaluator`. An environment that hangs here hangs the run.

    policy: of the evaluator's own, so that nothing of an evaluation is left in the agent.
    """

    concurrent = False

    def __init__(self, runner: EpisodeRunner, policy: ActingPolicy) -> None:
        self._runner = runner
        self._policy = policy
        self._evaluation: Evaluation | None = None

    def begin(self, model: ModelInfo, seeds: Sequence[int]) -> None:
        """Run the episodes, unless asked to stop meanwhile."""
        self._policy.sync_model(model)
        self._evaluation = self._runner.evaluate(self._policy, model.version, seeds)

    def poll(self) -> Evaluation | None:
        """What `begin` has found out, once."""
        evaluation, self._evaluation = self._evaluation, None
        return evaluation

    def close(self) -> None:
        """Release the environments."""
        self._runner.close()
