"""Judging in a process of its own, as the learner sees it: started, given models, watched, started again, ended.

The learner never waits for that process. A model goes through shared memory, and with it one message so small that its
pipe always has room for it: there is at most one that was not read. The result comes through shared memory too.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from multiprocessing.connection import Connection

from border_cli.core.errors import ActorLostError
from border_cli.core.protocols import Evaluation, ModelInfo
from border_cli.evaluation.board import EvaluatorBoard
from border_cli.evaluation.process import EvaluatorLinks, EvaluatorSpec, Failed, Order, Task, evaluator_main
from border_cli.runtime.clock import Deadline
from border_cli.runtime.parcel import Parcel
from border_cli.runtime.pulse import Pulse
from border_cli.runtime.restarts import restart_delay_s
from border_cli.runtime.worker import Worker
from border_cli.transport.model_channel import ModelChannel, model_layout

_NEWS_INTERVAL_S = 0.05
_START_TIMEOUT_S = 120.0
"""As long as the making of one environment may take, where heartbeat_timeout_s is not longer."""
_LEAVE_S = 2.0
"""So long has it to leave after it was asked to; then it is killed."""
_RESTART_DELAY_S = 1.0
"""Before the first restart in a row."""
_logger = logging.getLogger(__name__)


class ProcessEvaluator:
    """Implements `core.protocols.Evaluator`. The process is started when it is looked after for the first time.

    model: any one, for the shape of its arrays · heartbeat_timeout_s: without an env step, a reset or an environment
    made for so long, it is killed · restarts: so often in a row, with no evaluation between, it is started again, after
    1, 2, 4, … seconds, and judges the same model. Raises ResourceError if memory or descriptors are too few.
    """

    concurrent = True

    def __init__(
        self, spec: EvaluatorSpec, model: ModelInfo, heartbeat_timeout_s: float, restarts: int
    ) -> None:
        self._spec = spec
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._restarts = restarts
        self._models = ModelChannel(model_layout(model))
        self._board = EvaluatorBoard(spec.max_episodes)
        self._worker: Worker | None = None
        self._task: Task | None = None
        self._tasks = 0
        self._failed: Failed | None = None
        self._failures = 0
        self._start_due: Deadline | None = Deadline(0.0)
        self._news_due = Deadline(0.0)
        self._pulse = Pulse()

    def begin(self, model: ModelInfo, seeds: Sequence[int]) -> None:
        """Have a copy of this model judged."""
        if self._task is not None:
            raise RuntimeError(f"the model of opt step {self._task.opt_steps} is still being judged")
        self._models.publish(model)
        self._board.set_seeds(seeds)
        self._tasks += 1
        self._task = Task(self._tasks, model.version, len(seeds))
        self._pulse = Pulse()
        if self._worker is not None:
            self._worker.send(self._task)

    def poll(self) -> Evaluation | None:
        """The result, if it has arrived. Most calls cost a look at one word and at the clock."""
        if self._task is not None and self._board.answered == self._task.number:
            self._task, self._failures = None, 0
            return self._board.evaluation()
        if self._news_due.passed:
            self._look_after()
            self._news_due = Deadline(_NEWS_INTERVAL_S)
        return None

    @property
    def pid(self) -> int | None:
        """Process id, None while there is no process."""
        return None if self._worker is None else self._worker.pid

    def close(self) -> None:
        """Ask the process to leave, kill it if it does not, and release everything."""
        self._start_due = None
        self._board.request_stop()
        self._end_worker(_LEAVE_S)
        self._board.close()
        self._models.close()

    def _look_after(self) -> None:
        if self._worker is None:
            if self._start_due is not None and self._start_due.passed:
                self._worker = self._start()
            return
        self._listen(self._worker)
        lost = self._lost(self._worker)
        if lost is not None:
            self._replace(lost)

    def _start(self) -> Worker:
        """Start a process; what was being judged it judges again."""
        self._start_due = None
        self._failed = None
        self._board.renew()
        self._pulse = Pulse()
        order = Order(self._spec, logging.getLogger().getEffectiveLevel())
        worker = Worker("evaluator", evaluator_main, self._links, order)
        if self._task is not None:
            worker.send(self._task)
        return worker

    def _links(self, pipe: Connection, order: Parcel) -> EvaluatorLinks:
        return EvaluatorLinks(self._models, self._board, pipe, order)

    def _listen(self, worker: Worker, last: bool = False) -> None:
        for message in worker.heard(last):
            if isinstance(message, Failed):
                self._failed = message

    def _lost(self, worker: Worker) -> ActorLostError | None:
        """Why the process cannot go on; None while it can."""
        gone = worker.gone()
        if gone:
            self._listen(worker, last=True)
        if self._failed is not None:
            return ActorLostError(self._failed.error, self._failed.traceback)
        if gone:
            return ActorLostError(f"the evaluator {worker.end_words} (it was {self._doing})")
        return self._hanging()

    def _hanging(self) -> ActorLostError | None:
        ready = self._board.ready
        if ready and self._task is None:
            self._pulse = Pulse()
            return None
        limit = self._heartbeat_timeout_s if ready else max(self._heartbeat_timeout_s, _START_TIMEOUT_S)
        if not self._pulse.silent(self._board.heartbeat, limit):
            return None
        return ActorLostError(f"the evaluator gave no sign of life for {limit:g} s (it was {self._doing})")

    @property
    def _doing(self) -> str:
        if not self._board.ready:
            return "making its environments"
        return "waiting for a model" if self._task is None else f"judging opt step {self._task.opt_steps}"

    def _replace(self, lost: ActorLostError) -> None:
        """End the process and have another one started. Raises `lost` when that was done too often."""
        self._end_worker(0.0)
        self._failures += 1
        if self._failures > self._restarts:
            raise lost
        delay_s = restart_delay_s(_RESTART_DELAY_S, self._failures)
        self._start_due = Deadline(delay_s)
        _logger.warning(
            "%s; it is started again in %g s (%d of %d)", lost, delay_s, self._failures, self._restarts
        )
        if lost.details:
            _logger.info("the evaluator's own traceback:\n%s", lost.details)

    def _end_worker(self, grace_s: float) -> None:
        if self._worker is not None:
            self._listen(self._worker, last=True)
            self._worker.end(grace_s)
            self._worker = None
