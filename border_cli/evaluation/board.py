"""What learner and evaluator read of each other in shared memory: seeds the one way, results and signs of life the other.

Each word and array has one writer, and each is written only while the other side does not read it: the seeds before a
task is sent, the results before its number is written to `answered`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from border_cli.core.protocols import Evaluation
from border_cli.runtime.memory import WORD, Block, Layout, fence

_HEARTBEAT, _READY, _ANSWERED, _OPT_STEPS, _EPISODES = range(5)


class EvaluatorBoard:
    """Made by the learner and passed to the evaluator's process. Raises ResourceError if there is no memory.

    max_episodes: as many as an evaluation can have.
    """

    def __init__(self, max_episodes: int, block: Block | None = None) -> None:
        self._max_episodes = max_episodes
        layout = Layout()
        stop, own = layout.reserve(WORD), layout.reserve(5 * WORD)
        seeds, returns, lengths = (layout.reserve(max_episodes * WORD) for _ in range(3))
        self._block = block or Block(layout.size, "the evaluator's board")
        self._stop = self._block.words(stop, 1)
        self._own = self._block.words(own, 5)
        self._seeds = self._block.array(seeds, (max_episodes,), "int64")
        self._returns = self._block.array(returns, (max_episodes,), "float64")
        self._lengths = self._block.array(lengths, (max_episodes,), "int64")

    def __reduce__(self) -> tuple[Callable[..., EvaluatorBoard], tuple[Any, ...]]:
        return EvaluatorBoard, (self._max_episodes, self._block)

    # -- the learner's ------------------------------------------------------

    def set_seeds(self, seeds: Sequence[int]) -> None:
        """Seeds of the next task. Raises ValueError for more than there is room for."""
        if len(seeds) > self._max_episodes:
            raise ValueError(f"{len(seeds)} episodes, and room for {self._max_episodes}")
        self._seeds[: len(seeds)] = seeds

    def request_stop(self) -> None:
        """Ask the evaluator to leave."""
        self._stop[0] = 1

    def renew(self) -> None:
        """Before another process is started: none is ready."""
        self._own[_READY] = 0

    @property
    def answered(self) -> int:
        """Number of the last task whose result is here, 0 before the first."""
        return int(self._own[_ANSWERED])

    def evaluation(self) -> Evaluation:
        """The result of the task `answered`."""
        fence()
        n = int(self._own[_EPISODES])
        returns, lengths = self._returns[:n].tolist(), self._lengths[:n].tolist()
        return Evaluation(int(self._own[_OPT_STEPS]), tuple(returns), tuple(lengths))

    @property
    def heartbeat(self) -> int:
        """A count that grows while the evaluator gets on."""
        return int(self._own[_HEARTBEAT])

    @property
    def ready(self) -> bool:
        """Whether the present process has its environments and its policy."""
        return bool(self._own[_READY])

    # -- the evaluator's ----------------------------------------------------

    def seeds(self, n: int) -> list[int]:
        """Seeds of the n episodes of the present task."""
        seeds: list[int] = self._seeds[:n].tolist()
        return seeds

    def stop_requested(self) -> bool:
        """Whether the learner wants the evaluator to leave."""
        return bool(self._stop[0])

    def beat(self) -> None:
        """Show a sign of life."""
        self._own[_HEARTBEAT] += 1

    def set_ready(self) -> None:
        """Say that environments and policy are made."""
        self._own[_READY] = 1

    def answer(self, task: int, evaluation: Evaluation) -> None:
        """Leave the result of this task."""
        n = len(evaluation.returns)
        self._returns[:n], self._lengths[:n] = evaluation.returns, evaluation.lengths
        self._own[_OPT_STEPS], self._own[_EPISODES] = evaluation.opt_steps, n
        fence()
        self._own[_ANSWERED] = task

    def close(self) -> None:
        """Give the descriptor back; what is here stays readable."""
        self._block.close()
