"""An evaluator that is made when something is to be judged, for a run that evaluates nothing of its own accord."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from border_cli.core.protocols import Evaluation, Evaluator, ModelInfo


class DeferredEvaluator:
    """Implements `core.protocols.Evaluator`.

    make: makes the evaluator that judges, at the first `begin`. There is one where a run with `trainer.eval_interval=null`
    is resumed with models that were still to be judged. Raises there what making it raises.
    """

    def __init__(self, make: Callable[[], Evaluator], concurrent: bool) -> None:
        self.concurrent = concurrent
        self._make = make
        self._made: Evaluator | None = None

    def begin(self, model: ModelInfo, seeds: Sequence[int]) -> None:
        """Hand it on."""
        if self._made is None:
            self._made = self._make()
        self._made.begin(model, seeds)

    def poll(self) -> Evaluation | None:
        """What the evaluator has found out."""
        return None if self._made is None else self._made.poll()

    def close(self) -> None:
        """Release what was made."""
        if self._made is not None:
            self._made.close()
