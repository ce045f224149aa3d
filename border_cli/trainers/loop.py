"""THE training loop. `run` is the whole of it; everything it calls is one stage.

Synchronous and asynchronous training differ only in when experience is gathered (`trainers.sync`, `trainers.async_`):
the ratio, the intervals, the records and the ways to end are the same code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic

from border_cli.config.schema import TrainerConfig
from border_cli.core.errors import CheckpointIOError, NonFiniteError
from border_cli.core.protocols import ActorStat, Evaluation
from border_cli.core.record import Record
from border_cli.core.stages import run_all
from border_cli.core.state import RunState
from border_cli.trainers.judging import Judging
from border_cli.trainers.parts import Parts
from border_cli.trainers.run_state import Position, load_state, take_state
from border_cli.trainers.saving import Saving
from border_cli.trainers.skipping import Skipping


@dataclass
class Ending:
    """How a run ended. ended_by: the name of the budget, "stop_return" or "signal"."""

    ended_by: str
    best: Evaluation | None = None
    last: Evaluation | None = None
    actors: list[ActorStat] = field(default_factory=list)


class TrainingLoop:
    """One run. Subclasses say when to gather experience and how to wait for it.

    reproducible: the same seed gives the same bits, and a run that is resumed equals one that was never interrupted.
    """

    reproducible = False

    def __init__(self, config: TrainerConfig, parts: Parts) -> None:
        self.config = config
        self.parts = parts
        self.saving = Saving(parts.keeper, parts.telemetry)
        self.judging = Judging(
            config,
            parts.episodes,
            parts.evaluator,
            self.saving,
            parts.view,
            parts.telemetry,
            parts.recorder.write,
            self.tick,
            parts.should_stop,
            reproducible=self.reproducible,
        )
        self.skipping = Skipping(parts.keeper)
        self.actors: list[ActorStat] = []
        self._stages: dict[str, Callable[[], None]] = {
            "publish": self._publish,
            "evaluate": self._evaluate,
            "record": self._record,
            "save": self._save_if_wanted,
        }
        self._position = Position()
        self._phase = "starting"
        self._final_phase = "failed"
        self._begun = False
        self._failed = False

    def run(self, resumed: RunState | None = None) -> Ending:
        """Train until a budget is used up, an evaluation is good enough, or the run is asked to stop.

        resumed: what to go on from. Raises UnfitStateError where it does not fit; then nothing of the run changes.
        However it ends otherwise, the last records are flushed and a last checkpoint is saved, before any error is raised.
        """
        p = self.parts
        try:
            self._start(resumed)
            while (ended_by := self._ended_by()) is None:
                self.judging.look()
                self._gather()
                if self.may_opt():
                    self._opt()
                    self._after_opt()
                else:
                    self._idle()
                if p.save_request():
                    self._save_now()
                self._show()
            self._require_finite()
            for stage in self._leaving():
                stage()
            if ended_by != "signal":
                self._evaluate_last()
            if p.should_stop():
                ended_by = "signal"  # perhaps one that came meanwhile: the result may not have been evaluated
            self._final_phase = "stopped" if ended_by == "signal" else "done"
        except CheckpointIOError:
            raise  # between two opt steps, with a state that is whole
        except BaseException:
            self._failed = True
            raise
        finally:
            self._finish()
        return Ending(ended_by, self.judging.best, self.judging.last, self.actors)

    def may_opt(self) -> bool:
        """Whether there is enough to learn from, by the ratio and for a batch."""
        p = self.parts
        return p.limiter.may_opt() and len(p.buffer) >= p.batch_size

    def tick(self) -> None:
        """Called by whatever takes long, so that the view goes on."""
        self._show()

    # -- stages -------------------------------------------------------------------------------------------------

    def _gather(self) -> None:
        """Bring experience into the replay, as far as it is time for it."""
        raise AssertionError("a trainer says when to gather")

    def _idle(self) -> None:
        """There is nothing to learn from yet."""

    def _ended_by(self) -> str | None:
        c, limiter = self.config, self.parts.limiter
        if self.parts.should_stop():
            return "signal"
        if self.judging.good_enough:
            return "stop_return"
        if c.max_opts is not None and limiter.opt_steps >= c.max_opts:
            return "max_opts"
        if limiter.budget_used(self.may_opt()):
            return "max_env_steps"
        if c.max_time is not None and self.parts.telemetry.seconds >= c.max_time:
            return "max_time"
        return None

    def _take_in(self) -> bool:
        """Insert what has arrived and give new credit. Whether anything had arrived."""
        p, began = self.parts, monotonic()
        arrived = self._insert()
        if arrived:
            p.source.announce(p.limiter.env_steps)
        left = p.limiter.attend(p.source.present())
        for actor in left:
            p.buffer.break_streams(actor)  # perhaps nobody comes back to go on with them
        if p.limiter.grant(max(0, p.batch_size - len(p.buffer))) or left:
            p.source.grant(p.limiter.credits)
        p.telemetry.collect_took(monotonic() - began)
        return arrived

    def _insert(self) -> bool:
        p = self.parts
        chunks = p.source.collect()
        for chunk in chunks:  # first: what was collected counts, also where it cannot be kept
            p.limiter.inserted(chunk.actor, chunk.env_steps)
        for chunk in chunks:
            if chunk.incarnation != self._position.incarnations.get(chunk.actor, 0):
                self._position.incarnations[chunk.actor] = chunk.incarnation
                p.buffer.break_streams(chunk.actor)  # no transition spans a restart
            if chunk.rows:
                p.buffer.push(chunk.items, chunk.actor)
            p.telemetry.chunk(chunk)
        return bool(chunks)

    def _opt(self) -> None:
        p, began = self.parts, monotonic()
        if self._phase in ("starting", "warm-up"):
            self._record()  # what the warm-up brought belongs to opt step 0
        self._phase = "training"
        record_due = _due(self.config.record_interval, p.limiter.opt_steps + 1)
        try:
            record = p.agent.opt(p.buffer, record=record_due)
        except Exception:
            if p.agent.opt_steps > p.limiter.opt_steps:
                p.limiter.opted()  # the agent had counted it: what is saved now has to fit together
            raise
        p.limiter.opted()
        p.telemetry.opt_took(monotonic() - began)
        self._check_skipped()
        if record is not None:
            self._check_finite(record)
            self._position.agent_values = record.values

    def _check_skipped(self) -> None:
        agent = self.parts.agent
        self.skipping.watch(agent, self.parts.limiter.opt_steps)
        if agent.skipped_in_a_row >= self.config.max_nonfinite:
            raise self._non_finite(f"the loss or gradient of {agent.skipped_in_a_row} opt steps in a row")

    def _check_finite(self, record: Record) -> None:
        bad = [name for name, value in record.values.items() if not math.isfinite(value)]
        if bad:
            raise self._non_finite(", ".join(bad))

    def _require_finite(self) -> None:
        """Before weights are judged, kept, or called the result."""
        if not self.parts.agent.check_finite():
            raise self._non_finite("a weight or moment of the agent")

    def _non_finite(self, what: str) -> NonFiniteError:
        return NonFiniteError(
            f"{what} is not a finite number at opt step {self.parts.limiter.opt_steps}\n"
            "allowed: finite rewards and observations; a smaller agent.lr or agent.max_grad_norm helps most often"
        )

    def _after_opt(self) -> None:
        """What is due at this opt step. The checkpoint comes last: it knows what was recorded before it."""
        c, n = self.config, self.parts.limiter.opt_steps
        due = {"publish": self._publish_interval(), "evaluate": c.eval_interval}
        due |= {"record": c.record_interval, "save": c.save_interval}
        self._position.to_do = [stage for stage, interval in due.items() if _due(interval, n)]
        self._work_off()

    def _work_off(self) -> None:
        """Do what is due. Once the run ends, the rest is left: to its last stages, and to a run that goes on from here."""
        while self._position.to_do and self._ended_by() is None:
            self._stages[self._position.to_do.pop(0)]()

    def _publish_interval(self) -> int | None:
        return self.config.sync_interval

    def _publish(self) -> None:
        self.parts.source.publish(self.parts.agent.model_info())

    def _evaluate(self) -> None:
        self._require_finite()
        with self._in_phase("evaluating"):
            self.judging.submit(self.parts.agent.model_info(), self.parts.limiter.env_steps)

    def _evaluate_last(self) -> None:
        with self._in_phase("evaluating"):
            self.judging.judge_last(self.parts.agent.model_info(), self.parts.limiter.env_steps)

    def _save_if_wanted(self) -> None:
        if not self.saving.leaves_out():
            self._save()

    def _save(self, last: bool = False) -> None:
        self._require_finite()
        with self._in_phase("saving"):
            self._show()
            state = take_state(
                self.parts, self.judging, self._position, reproducible=self.reproducible, failed=self._failed
            )
            self.saving.save(state, self._counters(), last)

    def _save_now(self) -> None:
        """Because somebody asked for it; nothing where the newest checkpoint is of this opt step."""
        if self.parts.limiter.opt_steps > self.saving.saved_at:
            self._save()

    @contextmanager
    def _in_phase(self, phase: str) -> Iterator[None]:
        before, self._phase = self._phase, phase
        try:
            yield
        finally:
            self._phase = before

    def _counters(self) -> dict[str, object]:
        best, last = self.judging.best, self.judging.last
        return {
            "opt_steps": self.parts.limiter.opt_steps,
            "env_steps": self.parts.limiter.env_steps,
            "episodes": self.parts.telemetry.episodes,
            "best_score": None if best is None else best.mean,
            "best_opt_steps": None if best is None else best.opt_steps,
            "last_score": None if last is None else last.mean,
        }

    def _record(self) -> None:
        """Write everything since the last record, unless that was of this very opt step: each has one at most."""
        p, at = self.parts, self._position
        if p.limiter.opt_steps == at.recorded_at or self.config.record_interval is None:
            return
        at.recorded_at = p.limiter.opt_steps
        if not at.agent_values and (last := p.agent.take_record()) is not None:
            at.agent_values = last.values  # of an interval that the end, or the warm-up, has cut short
        actors, replay = self.actors or p.source.stats(), p.buffer
        values = p.telemetry.interval_values(
            len(replay), replay.capacity, actors, _alive(actors), at.agent_values
        )
        at.agent_values = {}
        self._write(values)

    def _write(self, values: dict[str, float]) -> None:
        limiter, seconds = self.parts.limiter, self.parts.telemetry.seconds
        self.parts.recorder.write(Record(values, limiter.opt_steps, limiter.env_steps, seconds))

    # -- resuming -----------------------------------------------------------------------------------------------

    def _start(self, resumed: RunState | None) -> None:
        if resumed is None:
            self.parts.source.start(self.parts.agent.model_info())
        else:
            self._go_on_from(resumed)
        self.parts.begun()
        self._begun = True
        self.judging.look()  # models that wait are judged again
        self._work_off()

    def _go_on_from(self, state: RunState) -> None:
        p = self.parts
        load_state(state, p, self.judging, self._position, tuple(self._stages))
        p.telemetry.know_best(self.judging.best)
        self.saving.saved_at = p.limiter.opt_steps
        if p.limiter.opt_steps and state.replay is not None:
            self._phase = "training"
        p.source.start(p.agent.model_info(), state.actors)
        p.source.announce(p.limiter.env_steps)
        p.source.grant(p.limiter.credits)

    # -- ending -------------------------------------------------------------------------------------------------

    def _leaving(self) -> list[Callable[[], None]]:
        """End the actors and keep the state, to which belongs what they hand over while they leave.

        The state of a reproducible run comes first: that of actors between two env steps or rounds, not of actors that
        are gone.
        """
        stages = [self._stop_actors, self._save_last]
        return stages[::-1] if self.reproducible else stages

    def _stop_actors(self) -> None:
        if not self.actors:
            self._phase = "stopping"
            self._show()
            self.actors = self.parts.source.stop()
            self._insert()  # what the actors handed over while they left

    def _finish(self) -> None:
        """Whatever happened: no actor stays, the records are flushed, the last state is kept."""
        p = self.parts
        run_all(
            [
                *self._leaving(),
                *([self._record] if self._begun else []),
                p.recorder.flush,
                lambda: p.telemetry.refresh(self._final_phase, len(p.buffer), self.actors, 0),
            ]
        )

    def _save_last(self) -> None:
        """What a save has not kept yet. Of a run that has not begun, nothing: half of its state may be loaded."""
        if not self._begun:
            return
        if self.parts.limiter.opt_steps > self.saving.saved_at and self.parts.agent.check_finite():
            self._save(last=True)
        else:
            self.saving.save_owed_best()

    # -- showing ------------------------------------------------------------------------------------------------

    def _show(self) -> None:
        p = self.parts
        if p.telemetry.refresh_due():
            if self._phase == "starting" and p.limiter.env_steps:
                self._phase = "warm-up"
            actors = self.actors or p.source.stats()
            p.telemetry.refresh(self._phase, len(p.buffer), actors, _alive(actors))
        p.view.show(p.telemetry.progress)


def _alive(actors: Sequence[ActorStat]) -> int:
    return sum(actor.alive for actor in actors)


def _due(interval: int | None, n: int) -> bool:
    return interval is not None and n % interval == 0
