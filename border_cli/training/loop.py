"""The training loop of one run: the ratio, the intervals, the records and the ways to end.

Synchronous, asynchronous and lockstep training are its subclasses. They differ only in when experience is collected.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from border_cli.config.schema import TrainerConfig
from border_cli.core.errors import CheckpointIOError, Interrupted, NonFiniteError
from border_cli.core.metrics import Record
from border_cli.core.state import RunState
from border_cli.core.types import ActorStat
from border_cli.runtime.stopping import Backoff, run_all
from border_cli.training.choose_best import Candidate
from border_cli.training.components import Components, LoopState, load_state, take_state
from border_cli.training.eval_manager import EvalManager

_logger = logging.getLogger(__name__)
_COLLECT_INTERVAL_S = 0.02
"""`AsyncTrainer` collects at least this often, so that it notices an actor that died."""


class TrainingLoop(ABC):
    """One run. Subclasses say when to collect experience.

    Use it as a context manager: `with loop: loop.start(state); loop.run()`. However the block ends, the actors are stopped,
    the last records are written and a last checkpoint is saved before an error propagates.

    Attributes:
        reproducible: the same seed gives the same bits, and a resumed run equals one that was never interrupted.
        ended_by: the budget that ended the run, "stop_return" or "signal"; empty until then.
        actors: one entry per actor, once they are stopped.
    """

    reproducible = False

    def __init__(self, config: TrainerConfig, parts: Components) -> None:
        self.config = config
        self.parts = parts
        self.eval_manager = EvalManager(config, parts, self.tick, self.reproducible)
        self.actors: list[ActorStat] = []
        self.ended_by = ""
        self._has_skipped = False  # an opt step
        self._state = LoopState()
        self._backoff = Backoff()
        self._phase = "starting"
        self._started = False
        self._failed = False

    def __enter__(self) -> TrainingLoop:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A failed save happens between two opt steps: the state is whole.
        self._failed = kind is not None and not issubclass(kind, CheckpointIOError)
        interrupted = self.ended_by == "signal" or (kind is not None and issubclass(kind, Interrupted))
        phase = "stopped" if interrupted else "done" if kind is None else "failed"
        stages = [*self._shutdown(), self.parts.checkpoints.save_unwritten_best]
        if self._started:
            stages.append(self._record)
        stages.append(lambda: self.parts.telemetry.refresh(phase, self.parts.buffer.n_rows, self.actors))
        try:
            run_all(stages)
        except CheckpointIOError as e:
            if not self._failed:
                raise
            _logger.error("%s", e)  # the error that ended the run is the one to report

    def start(self, resumed: RunState | None = None, later_best: Candidate | None = None) -> None:
        """Start the actors, in a resumed run from its saved state. later_best: see `EvalManager.load_state`.

        Raises IncompatibleStateError if the saved state does not fit. The run is then unchanged.
        """
        p = self.parts
        if resumed is None:
            p.source.start(p.agent.model_info())
        else:
            load_state(resumed, p, self.eval_manager, self._state, later_best)
            p.telemetry.set_best(self.eval_manager.best)
            p.checkpoints.saved_at = p.limiter.opt_steps
            if p.limiter.opt_steps and resumed.replay is not None:
                self._phase = "training"
            p.source.start(p.agent.model_info(), resumed.actors)
            self.eval_manager.save_best()  # best/ may be later than the saved state
        self._started = True

    def run(self) -> None:
        """Train until a budget is used up, an evaluation reaches `stop_return`, or the run is asked to stop."""
        p = self.parts
        if p.pretrained and p.limiter.opt_steps == 0 and self.config.eval_interval is not None:
            with self._in_phase("evaluating"):
                self.eval_manager.submit(p.agent.model_info(), p.limiter.env_steps)
        self.eval_manager.poll()  # evaluates the models again that were waiting when the state was saved
        self._run_pending()
        while (ended_by := self._ended_by()) is None:
            self.eval_manager.poll()
            if arrived := self._collect():
                self._backoff = Backoff()
            if self.may_opt():
                self.opt()
                self._run_due()
            elif not arrived:
                began = monotonic()
                self._backoff.sleep()
                p.telemetry.blocked_s += monotonic() - began
            if p.save_request() and p.limiter.opt_steps > p.checkpoints.saved_at:
                self._save()
            self._show()
        self._require_finite()
        for stage in self._shutdown():
            stage()
        if ended_by != "signal":
            with self._in_phase("evaluating"):
                self.eval_manager.evaluate_last(p.agent.model_info(), p.limiter.env_steps)
        if p.should_stop():
            ended_by = "signal"  # a signal during the last evaluation: its result may be missing
        self.ended_by = ended_by

    def may_opt(self) -> bool:
        """Whether the ratio allows an opt step and the replay holds a batch."""
        p = self.parts
        return p.limiter.may_opt() and len(p.buffer) >= p.batch_size

    def tick(self) -> None:
        """Update the view. Long operations call this regularly."""
        self._show()

    def _ended_by(self) -> str | None:
        c, limiter = self.config, self.parts.limiter
        if self.parts.should_stop():
            return "signal"
        if self.eval_manager.good_enough:
            return "stop_return"
        if c.max_opts is not None and limiter.opt_steps >= c.max_opts:
            return "max_opts"
        if limiter.budget_used(self.may_opt()):
            return "max_env_steps"
        if c.max_time is not None and self.parts.telemetry.seconds >= c.max_time:
            return "max_time"
        return None

    # -- experience ---------------------------------------------------------------------------------------------

    @abstractmethod
    def _collect(self) -> bool:
        """Bring experience into the replay, if it is time for it. Returns whether anything had arrived."""

    def ingest(self) -> bool:
        """Insert what has arrived and grant new credit. Returns whether anything had arrived."""
        p = self.parts
        arrived = self.insert()
        for actor in p.limiter.set_present(p.source.present()):
            p.buffer.break_streams(actor)  # it may never come back to continue them
        p.limiter.grant(max(0, p.batch_size - len(p.buffer)))
        # also without new credit: a restarted actor has none
        p.source.grant(p.limiter.credits, p.limiter.env_steps)
        return arrived

    def insert(self) -> bool:
        """Insert what has arrived, without new credit. Returns whether anything had arrived."""
        p, began, incarnations = self.parts, monotonic(), self._state.incarnations
        chunks = p.source.collect()
        for chunk in chunks:  # first: what was collected counts, even if inserting it fails
            p.limiter.inserted(chunk.actor, chunk.env_steps)
        for chunk in chunks:
            if chunk.incarnation != incarnations.get(chunk.actor, 0):
                incarnations[chunk.actor] = chunk.incarnation
                p.buffer.break_streams(chunk.actor)  # no transition spans a restart
            if chunk.rows:
                p.buffer.push(chunk.items, chunk.actor)
            p.telemetry.chunk(chunk)
        if chunks:
            p.telemetry.took("time/collect_ms", monotonic() - began)
        return bool(chunks)

    # -- learning -----------------------------------------------------------------------------------------------

    def opt(self) -> None:
        """One opt step. Raises NonFiniteError if too many in a row were skipped."""
        p, began = self.parts, monotonic()
        if self._phase in ("starting", "warm-up"):
            self._record()  # the metrics of the warm-up belong to opt step 0
        self._phase = "training"
        try:
            record = p.agent.opt(p.buffer, record=_due(self.config.record_interval, p.limiter.opt_steps + 1))
        except Exception:
            if p.agent.opt_steps > p.limiter.opt_steps:
                p.limiter.count_opt()  # the agent has counted it: the state that is saved now must agree
            raise
        p.limiter.count_opt()
        p.telemetry.took("time/opt_ms", monotonic() - began)
        if p.agent.skipped_in_a_row and not self._has_skipped:
            self._has_skipped = True
            _logger.warning(
                "opt step %d was skipped: its loss or gradient is not finite; agent/skipped_steps counts others",
                p.limiter.opt_steps,
            )
        if p.agent.skipped_in_a_row >= self.config.max_nonfinite:
            raise self._non_finite_error(
                f"the loss or gradient of {p.agent.skipped_in_a_row} opt steps in a row"
            )
        if record is not None:
            if bad := [name for name, value in record.values.items() if not math.isfinite(value)]:
                raise self._non_finite_error(", ".join(bad))
            self._state.agent_values = record.values

    def _require_finite(self) -> None:
        """Check the weights before they are evaluated or saved."""
        if not self.parts.agent.check_finite():
            raise self._non_finite_error("a weight or moment of the agent")

    def _non_finite_error(self, what: str) -> NonFiniteError:
        return NonFiniteError(
            f"{what} is not a finite number at opt step {self.parts.limiter.opt_steps}\n"
            "allowed: finite rewards and observations; a smaller agent.lr or agent.max_grad_norm helps most often"
        )

    # -- stages that are due at intervals of opt steps ------------------------------------------------------------

    def _run_due(self) -> None:
        """Run the stages of this opt step. The checkpoint comes last: it contains the number of records so far."""
        c = self.config
        intervals = {
            "publish": None if c.lockstep else c.sync_interval,  # by round
            "evaluate": c.eval_interval,
            "film": None if self.parts.films is None else self.parts.films.interval,
            "record": c.record_interval,
            "save": c.save_interval,
        }
        n = self.parts.limiter.opt_steps
        self._state.pending = [stage for stage, interval in intervals.items() if _due(interval, n)]
        self._run_pending()

    def _run_pending(self) -> None:
        """Run the pending stages. If the run ends before all are done, the launch that resumes it runs the rest."""
        p = self.parts
        while self._state.pending and self._ended_by() is None:
            match self._state.pending.pop(0):
                case "publish":
                    p.source.publish(p.agent.model_info())
                case "evaluate":
                    self._require_finite()
                    with self._in_phase("evaluating"):
                        self.eval_manager.submit(p.agent.model_info(), p.limiter.env_steps)
                case "film" if p.films is not None:
                    p.films.film(p.agent.model_info(), p.limiter.env_steps)
                case "record":
                    self._record()
                case "save":
                    self._save()

    def _record(self) -> None:
        """Write the metrics since the last record, at most once per opt step."""
        p, state = self.parts, self._state
        if p.films is not None:
            p.films.poll()
        if p.limiter.opt_steps == state.recorded_at or self.config.record_interval is None:
            return
        state.recorded_at = p.limiter.opt_steps
        if not state.agent_values and (last := p.agent.take_record()) is not None:
            state.agent_values = last.values  # the end or the warm-up cut this interval short
        actors, replay = self.actors or p.source.stats(), p.buffer
        values = p.telemetry.interval_values(replay.n_rows, replay.capacity, actors, state.agent_values)
        state.agent_values = {}
        p.recorder.write(Record(values, p.limiter.opt_steps, p.limiter.env_steps, p.telemetry.seconds))

    def _save(self, last: bool = False) -> None:
        self._require_finite()
        if not (self.reproducible or self._failed):
            self.insert()  # what actors have handed over so far
        with self._in_phase("saving"):
            self._show()
            state = take_state(self.parts, self.eval_manager, self._state, self.reproducible, self._failed)
            self.parts.checkpoints.save(state, last)

    # -- ending -------------------------------------------------------------------------------------------------

    def _shutdown(self) -> list[Callable[[], None]]:
        """Stop the actors, insert the experience that they still hand over, and save the state with it.

        A reproducible run saves first: its state contains the actors between two env steps or rounds, before they stop.
        """
        stages = [self._stop_actors, self._save_last]
        return stages[::-1] if self.reproducible else stages

    def _stop_actors(self) -> None:
        if not self.actors:
            self._phase = "stopping"
            self._show()
            self.actors = self.parts.source.stop()
            self.insert()

    def _save_last(self) -> None:
        """Save what no checkpoint contains yet, unless the state may have been loaded only in part."""
        p = self.parts
        if self._started and p.limiter.opt_steps > p.checkpoints.saved_at and p.agent.check_finite():
            self._save(last=True)

    # -- view ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _in_phase(self, phase: str) -> Iterator[None]:
        before, self._phase = self._phase, phase
        try:
            yield
        finally:
            self._phase = before

    def _show(self) -> None:
        p = self.parts
        if p.telemetry.refresh_due():
            if self._phase == "starting" and p.limiter.env_steps:
                self._phase = "warm-up"
            p.telemetry.refresh(self._phase, p.buffer.n_rows, self.actors or p.source.stats())
        p.view.show(p.telemetry.progress)


class SyncTrainer(TrainingLoop):
    """Collects only when the ratio does not allow an opt step."""

    reproducible = True

    def _collect(self) -> bool:
        return not self.may_opt() and self.ingest()


class AsyncTrainer(TrainingLoop):
    """Collects what has arrived between opt steps: when it cannot learn, or when there is new credit to grant.

    It does not collect at every opt step, because that takes a tenth of the time of a small one.
    """

    def __init__(self, config: TrainerConfig, parts: Components) -> None:
        super().__init__(config, parts)
        # It is time to collect at the first of these two.
        self._collect_at_s = 0.0  # of the monotonic clock
        self._collect_at_opt_step = 0

    def start(self, resumed: RunState | None = None, later_best: Candidate | None = None) -> None:
        """As `TrainingLoop.start`, and give credit to the actors: they act while the evaluator is made."""
        super().start(resumed, later_best)
        self.ingest()

    def tick(self) -> None:
        """Also insert what has arrived, without new credit: an actor that died is noticed at once."""
        self.insert()
        super().tick()

    def _collect(self) -> bool:
        limiter = self.parts.limiter
        due = monotonic() >= self._collect_at_s or limiter.opt_steps >= self._collect_at_opt_step
        if limiter.may_opt() and not due:
            return False
        arrived = self.ingest()
        self._collect_at_s = monotonic() + _COLLECT_INTERVAL_S
        self._collect_at_opt_step = limiter.opt_steps + limiter.opt_steps_until_grant()
        return arrived


class LockstepTrainer(TrainingLoop):
    """Deterministic parallel training. `parts.source` is an `actors.lockstep.LockstepSource`.

    While the actors take the env steps of a round, the learner inserts those of the round before and does every opt step
    that the ratio then allows. Nothing depends on which of them is faster.
    """

    reproducible = True

    def _collect(self) -> bool:
        if self.may_opt():
            return False
        source: Any = self.parts.source
        if source.model_due:
            source.publish(self.parts.agent.model_info())
        return self.insert()


def _due(interval: int | None, n: int) -> bool:
    return interval is not None and n % interval == 0
