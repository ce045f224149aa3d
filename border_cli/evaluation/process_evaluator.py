"""Judging in a process of its own, as the learner sees it: started, given models, watched, started again, ended.

The learner never waits for that process. A model goes through shared memory, and with it one message so small that its
pipe always has room for it: there is at most one that was not read. The result comes through shared memory too.
"""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from time import monotonic

from border_cli.actors.messages import Failed, LogLine
from border_cli.actors.model_channel import ModelChannel, model_layout
from border_cli.core.errors import ActorLostError
from border_cli.core.protocols import Evaluation, ModelInfo
from border_cli.evaluation.board import EvaluatorBoard
from border_cli.evaluation.process import EvaluatorLinks, EvaluatorSpec, Order, Task, evaluator_main
from border_cli.runtime import forkserver
from border_cli.runtime.clock import Deadline
from border_cli.runtime.memory import resource_error

_NEWS_INTERVAL_S = 0.05
_MESSAGES_AT_ONCE = 64  # one that never stops logging must not keep the learner from its work
_START_TIMEOUT_S = 120.0
"""As long as the making of one environment may take, where heartbeat_timeout_s is not longer."""
_LEAVE_S = 2.0
"""So long has it to leave after it was asked to; then it is killed."""
_LONGEST_BACKOFF_S = 30.0
_LONGEST_LOOK_S = 1.0
"""Silence counts as no longer than this from one look to the next: whoever does not look hears nothing."""
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
        self._pipe: Connection | None = None
        self._process: BaseProcess | None = None
        self._task: Task | None = None
        self._tasks = 0
        self._failed: Failed | None = None
        self._failures = 0
        self._start_due: Deadline | None = Deadline(0.0)
        self._news_due = Deadline(0.0)
        self._silence = _Silence()

    def begin(self, model: ModelInfo, seeds: Sequence[int]) -> None:
        """Have a copy of this model judged."""
        if self._task is not None:
            raise RuntimeError(f"the model of opt step {self._task.opt_steps} is still being judged")
        self._models.publish(model)
        self._board.set_seeds(seeds)
        self._tasks += 1
        self._task = Task(self._tasks, model.version, len(seeds))
        self._silence.broken()
        self._send(self._task)

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
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """Ask the process to leave, kill it if it does not, and release everything."""
        self._start_due = None
        self._board.request_stop()
        self._end_process(_LEAVE_S)
        self._board.close()
        self._models.close()

    def _look_after(self) -> None:
        if self._process is None:
            if self._start_due is not None and self._start_due.passed:
                self._start()
            return
        self._listen()
        lost = self._lost()
        if lost is not None:
            self._replace(lost)

    def _start(self) -> None:
        """Start a process; what was being judged it judges again."""
        self._start_due = None
        self._failed = None
        self._board.renew()
        self._silence.broken()
        self._pipe, theirs = _pipe()
        try:
            links = EvaluatorLinks(self._models, self._board, theirs)
            self._process = forkserver.start_process(evaluator_main, (links,), "evaluator")
        finally:
            theirs.close()
        self._send(Order(self._spec, logging.getLogger().getEffectiveLevel()))
        if self._task is not None:
            self._send(self._task)

    def _send(self, message: Order | Task) -> None:
        if self._pipe is None:
            return  # no process at present: the next one gets it
        try:
            self._pipe.send(message)
        except (BrokenPipeError, ConnectionResetError):
            return  # it died, which `_lost` will tell

    def _listen(self) -> None:
        """Take in what it has said, without waiting."""
        try:
            for _ in range(_MESSAGES_AT_ONCE):
                if self._pipe is None or not self._pipe.poll():
                    return
                message = self._pipe.recv()
                if isinstance(message, LogLine):
                    logging.getLogger(message.logger).log(message.level, "%s", message.text)
                elif isinstance(message, Failed):
                    self._failed = message
        except (EOFError, ConnectionResetError, BrokenPipeError):
            return  # it is leaving, which `_lost` will tell

    def _lost(self) -> ActorLostError | None:
        """Why the process cannot go on; None while it can."""
        if self._gone():
            self._listen()  # its last words may have come since the last look
        if self._failed is not None:
            return ActorLostError(self._failed.raised.error, self._failed.raised.traceback)
        if self._process is not None and self._gone():
            end = forkserver.describe_exit(self._process.exitcode)
            return ActorLostError(f"the evaluator {end} (it was {self._doing})")
        return self._hanging()

    def _hanging(self) -> ActorLostError | None:
        ready = self._board.ready
        if ready and self._task is None:
            self._silence.broken()
            return None
        limit = self._heartbeat_timeout_s if ready else max(self._heartbeat_timeout_s, _START_TIMEOUT_S)
        if self._silence.seconds(self._board.heartbeat) < limit:
            return None
        return ActorLostError(f"the evaluator gave no sign of life for {limit:g} s (it was {self._doing})")

    @property
    def _doing(self) -> str:
        if not self._board.ready:
            return "making its environments"
        return "waiting for a model" if self._task is None else f"judging opt step {self._task.opt_steps}"

    def _gone(self) -> bool:
        """Whether there is no process: its end was reported and its id is free."""
        if self._process is None:
            return True
        pid = self._process.pid
        # An end that is reported because the forkserver went away says nothing yet about the process itself.
        return self._process.exitcode is not None and (pid is None or forkserver.pid_gone(pid))

    def _replace(self, lost: ActorLostError) -> None:
        """End the process and have another one started. Raises `lost` when that was done too often."""
        self._end_process(0.0)
        self._failures += 1
        if self._failures > self._restarts:
            raise lost
        backoff_s = min(2.0 ** (self._failures - 1), _LONGEST_BACKOFF_S)
        self._start_due = Deadline(backoff_s)
        _logger.warning(
            "%s; it is started again in %g s (%d of %d)", lost, backoff_s, self._failures, self._restarts
        )
        if lost.details:
            _logger.info("the evaluator's own traceback:\n%s", lost.details)

    def _end_process(self, grace_s: float) -> None:
        self._listen()
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if self._process is not None:
            forkserver.end_process(self._process, grace_s)
            self._process = None


class _Silence:
    """How long a count has not grown, as far as somebody looked."""

    def __init__(self) -> None:
        self._count = -1
        self._seconds = 0.0
        self._looked_at = 0.0

    def broken(self) -> None:
        """Begin anew."""
        self._seconds, self._looked_at = 0.0, monotonic()

    def seconds(self, count: int) -> float:
        """Look at the count; the seconds since it has changed, or since `broken`."""
        now = monotonic()
        if count != self._count:
            self._count = count
            self.broken()
        self._seconds += min(now - self._looked_at, _LONGEST_LOOK_S)
        self._looked_at = now
        return self._seconds


def _pipe() -> tuple[Connection, Connection]:
    try:
        return multiprocessing.Pipe(duplex=True)
    except OSError as error:
        raise resource_error(error, "the evaluator's pipe") from error
