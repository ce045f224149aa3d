"""Evaluates models while a run trains, keeps the best ones, and finds out whether the run may end early.

`choose_best` has the rules. `EvalManager` runs the evaluations that they need, and applies the results in the order of
the opt steps.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from time import monotonic

from border_cli.config.schema import TrainerConfig
from border_cli.core import format
from border_cli.core.errors import OutOfTime
from border_cli.core.metrics import Record
from border_cli.core.progress import View
from border_cli.core.protocols import Evaluator, Recorder, StopCheck
from border_cli.core.spaces import Array
from border_cli.core.state import State, check_like, section_arrays
from border_cli.core.state import joined as joined_states
from border_cli.core.types import Evaluation, ModelInfo
from border_cli.runtime.stopping import Backoff
from border_cli.training.checkpointer import CheckpointManager
from border_cli.training.choose_best import (
    Candidate,
    EvalSeeds,
    choose,
    fresh_rounds,
    joined,
    least_mean,
    with_candidate,
)
from border_cli.training.telemetry import Telemetry

_MAX_JOBS = 2
"""One job runs and one waits."""
_EXTRA_TIME, _LEAST_EXTRA_S = 0.1, 10.0
"""What the evaluations after the training may take beyond max_time: a share of it, but at least this many seconds."""
_logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class EvaluationParts:
    """What evaluations need of a run. confirm_best: compare the best models on fresh episodes when the run ends."""

    evaluator: Evaluator
    eval_seeds: EvalSeeds
    recorder: Recorder
    checkpoints: CheckpointManager
    view: View
    telemetry: Telemetry
    should_stop: StopCheck
    confirm_best: bool = True


@dataclass
class EvalJob:
    """A model to evaluate.

    env_steps: count when it was submitted · regular: the result, None until it is there · fresh: where that reaches
    `stop_return`, the result on fresh episodes · seconds: duration of both.
    """

    model: ModelInfo
    env_steps: int
    regular: Evaluation | None = None
    fresh: Evaluation | None = None
    seconds: float = 0.0


class EvalManager:
    """Evaluates models in the order of their opt steps and finds the best one.

    Args:
        tick: called while waiting for an evaluation.
        reproducible: the result of an evaluator beside the learner takes effect exactly when the next model is submitted;
            otherwise it does when it arrives.

    Attributes:
        candidates: for the best model, the highest regular score first.
        best: the score of the best model; its regular evaluation until the candidates were compared.
        confirmed: whether the candidates were compared.
        last: the newest evaluation of the last model, on the same episodes as `best`.
        good_enough: whether a model surely reaches `stop_return`.
        skipped: models that were due and not evaluated, because a newer one replaced them.
    """

    def __init__(
        self, config: TrainerConfig, parts: EvaluationParts, tick: Callable[[], None], reproducible: bool
    ) -> None:
        self._config = config
        self._parts = parts
        self._tick = tick
        # So many jobs stay open until the next model is submitted, although their results may be known.
        self._keep_open = 1 if reproducible and parts.evaluator.concurrent else 0
        self._jobs: list[EvalJob] = []
        self._started_at: float | None = None  # of the evaluation that is running
        self._evaluations = 0  # regular ones so far
        self._reached = -math.inf  # the highest mean return that a model surely has
        self.candidates: list[Candidate] = []
        self.best: Evaluation | None = None
        self.confirmed = False
        self.last: Evaluation | None = None
        self.skipped = 0
        self._deadline = math.inf  # of the evaluations after the training, in seconds of the run

    @property
    def good_enough(self) -> bool:
        return self._config.stop_return is not None and self._reached >= self._config.stop_return

    def submit(self, model: ModelInfo, env_steps: int) -> None:
        """Evaluate a copy of this model. env_steps: the current count.

        With an evaluator beside the learner this returns at once; if one job runs and one waits, the new one replaces
        the one that waits. Otherwise it returns when the result is known or the run is asked to stop.
        """
        copy = ModelInfo(model.version, {name: array.copy() for name, array in model.arrays.items()})
        self._advance(self._keep_open)  # finished jobs make room
        if not self._keep_open and len(self._jobs) >= _MAX_JOBS:
            self._jobs.pop()
            if not self.skipped:
                _logger.info(
                    "evaluations take longer than the training between two of them, so some models are not evaluated"
                )
            self.skipped += 1
        self._jobs.append(EvalJob(copy, env_steps))
        self.poll()

    def poll(self) -> None:
        """Apply the results that have arrived. Waits only for those that must have taken effect by now."""
        if not self._jobs:
            if self._config.eval_interval is not None:
                self._parts.evaluator.poll()  # an idle process is supervised too
            return
        self._advance(self._keep_open)
        if self._keep_open and len(self._jobs) > self._keep_open:
            self._wait(self._keep_open)

    def evaluate_last(self, model: ModelInfo, env_steps: int) -> None:
        """Evaluate the last model, unless it was submitted before, wait for all results, and compare the candidates.

        With `max_time`, this may take another tenth of it. What is not evaluated by then is skipped.
        """
        if self._config.max_time is not None:
            now = max(self._parts.telemetry.seconds, self._config.max_time)
            self._deadline = now + max(_LEAST_EXTRA_S, _EXTRA_TIME * self._config.max_time)
        newest = self._jobs[-1].model.version if self._jobs else self.last and self.last.opt_steps
        try:
            if self._config.eval_interval is not None and model.version and newest != model.version:
                self.submit(model, env_steps)
            self._wait(0)
            if self.candidates and self._parts.confirm_best and not self._jobs:
                self._confirm(model)
        except OutOfTime:
            missing = "the comparison of the candidates: best/ has the highest regular score, unconfirmed"
            if self._jobs:
                steps = ", ".join(str(job.model.version) for job in self._jobs)
                missing = f"the evaluation of opt step {steps}: it does not count"
            if not self._parts.should_stop():
                _logger.warning("trainer.max_time ended %s", missing)
                self._jobs.clear()

    def save_best(self) -> None:
        """Write the best model to best/, if there is one."""
        if self.candidates and self.best is not None:
            best = self.candidates[0]
            self._parts.checkpoints.save_best(best.model, self.best, best.regular if self.confirmed else None)

    # -- at the end of the run ------------------------------------------------

    def _confirm(self, last: ModelInfo) -> None:
        """Compare the candidates on fresh episodes. The winner and the last model then play other episodes, for their
        scores.

        Raises OutOfTime.
        """
        play = partial(self._play, last.version)
        best = choose(self.candidates, self._evaluations, play)
        first, more, scores = fresh_rounds(self._evaluations)
        scoring = range(first + more, first + more + scores)
        score = play(best.model, scoring)
        if self.last is not None and self.last.opt_steps == last.version:
            is_best = best.model.version == last.version
            self.last = score if is_best else play(last, scoring)
        self.candidates = [best, *(c for c in self.candidates if c is not best)]
        self.best, self.confirmed = score, True
        self.save_best()
        self._note(
            f"best model: opt step {score.opt_steps}, {score} over {len(score.returns)} fresh episodes "
            f"(regular evaluation {format.number(best.regular.mean)})"
        )
        self._parts.telemetry.set_best(score, confirmed=True)

    def _play(self, opt_steps: int, model: ModelInfo, rounds: range) -> Evaluation:
        """Evaluate a model on fresh episodes, see `EvalSeeds.fresh`. Raises OutOfTime, also if the run is to stop."""
        parts, backoff = [], Backoff()
        for number in rounds:
            seeds = self._parts.eval_seeds.fresh(opt_steps, 1 + number)  # 0 is for `stop_return`
            while (evaluation := self._evaluation(model, seeds)) is None:
                if self._parts.should_stop():
                    raise OutOfTime
                self._tick_in_time()
                backoff.sleep()
            parts.append(evaluation)
        return joined(parts)

    # -- checkpoints ----------------------------------------------------------

    def state(self) -> State:
        """The candidates, the scores, and the models whose result has not taken effect yet."""
        models = {f"pending{i}": State(job.model.arrays) for i, job in enumerate(self._jobs)}
        models |= {f"candidate{i}": State(c.model.arrays) for i, c in enumerate(self.candidates)}
        values = {
            "candidates": [candidate.regular.to_json() for candidate in self.candidates],
            "last": None if self.last is None else self.last.to_json(),
            "pending": [{"opt_steps": job.model.version, "env_steps": job.env_steps} for job in self._jobs],
            "evaluations": self._evaluations,
            "reached": self._reached,
            "skipped": self.skipped,
        }
        return State(joined_states(models).arrays, values)

    def load_state(
        self, saved: State, model: Mapping[str, Array], later_best: Candidate | None = None
    ) -> None:
        """Restore a saved state. Pending models are evaluated again from the next `poll` on.

        model: arrays of any model of this agent, for their names and shapes · later_best: the model in best/, if it may be
        later than the saved state. Raises IncompatibleStateError.
        """
        values, owner = saved.values, "the evaluation"
        example = {"pending": [{"opt_steps": 0, "env_steps": 0}]}
        check_like(State({}, values), State({}, self.state().values | example), owner)
        regular, pending = [Evaluation.from_json(data) for data in values["candidates"]], values["pending"]
        steps = {f"candidate{i}": evaluation.opt_steps for i, evaluation in enumerate(regular)}
        steps |= {f"pending{i}": job["opt_steps"] for i, job in enumerate(pending)}
        expected = joined_states({name: State(dict(model)) for name in steps}).arrays
        check_like(State(saved.arrays), State(expected), owner)
        models = {name: ModelInfo(step, section_arrays(saved, name)) for name, step in steps.items()}
        self._jobs = [EvalJob(models[f"pending{i}"], job["env_steps"]) for i, job in enumerate(pending)]
        self.candidates = [Candidate(models[f"candidate{i}"], e) for i, e in enumerate(regular)]
        if later_best is not None:
            check_like(State(later_best.model.arrays), State(dict(model)), "the best model")
            self.candidates = with_candidate(self.candidates, later_best)
        self.best = self.candidates[0].regular if self.candidates else None
        self.last = None if values["last"] is None else Evaluation.from_json(values["last"])
        self._evaluations, self.skipped = values["evaluations"], values["skipped"]
        self._reached = -math.inf if values["reached"] is None else float(values["reached"])

    # -- from a job to its effect ---------------------------------------------

    def _advance(self, keep_open: int) -> None:
        """Apply the results of jobs that are done, except of the newest `keep_open`. Never waits."""
        while self._jobs and self._is_done(self._jobs[0]) and len(self._jobs) > keep_open:
            self._apply(self._jobs.pop(0))

    def _wait(self, keep_open: int) -> None:
        """Wait until at most this many jobs are open, or the run is asked to stop. Raises OutOfTime."""
        began, backoff = monotonic(), Backoff()
        try:
            self._advance(keep_open)
            while len(self._jobs) > keep_open and not self._parts.should_stop():
                self._tick_in_time()
                backoff.sleep()
                self._advance(keep_open)
        finally:
            if self._parts.evaluator.concurrent:
                self._parts.telemetry.excluded_s += monotonic() - began

    def _tick_in_time(self) -> None:
        """Raises OutOfTime when the time for evaluations after the training is over."""
        if self._parts.telemetry.seconds >= self._deadline:
            raise OutOfTime
        self._tick()

    def _is_done(self, job: EvalJob) -> bool:
        """Start the next evaluation of this job or take its result. Returns whether no evaluation is missing."""
        seeds, goal = self._parts.eval_seeds, self._config.stop_return
        while True:
            if job.regular is None:
                episodes = seeds.regular
            elif job.fresh is None and goal is not None and least_mean(job.regular) >= goal:
                episodes = seeds.fresh(job.model.version, 0)
            else:
                return True
            began = self._started_at or monotonic()
            if (evaluation := self._evaluation(job.model, episodes)) is None:
                return False
            job.seconds += monotonic() - began
            if job.regular is None:
                job.regular = evaluation
            else:
                job.fresh = evaluation

    def _evaluation(self, model: ModelInfo, seeds: list[int]) -> Evaluation | None:
        """The result of this evaluation, None until it is there. Starts it if none is running. Raises OutOfTime."""
        evaluator = self._parts.evaluator
        if self._started_at is None:
            self._started_at = monotonic()
            try:
                evaluator.begin(model, seeds, self._tick_in_time)
            finally:
                if not evaluator.concurrent:
                    self._parts.telemetry.excluded_s += monotonic() - self._started_at
        if (evaluation := evaluator.poll()) is not None:
            self._started_at = None
        return evaluation

    def _apply(self, job: EvalJob) -> None:
        """Record the result, update the candidates, and find out whether the run may end."""
        regular = job.regular
        assert regular is not None  # the job is done
        self.last = regular
        self._evaluations += 1
        values = {
            "eval/return_mean": regular.mean,
            "eval/return_std": regular.std,
            "eval/return_min": min(regular.returns),
            "eval/return_max": max(regular.returns),
            "eval/length_mean": sum(regular.lengths) / len(regular.lengths),
            "time/eval_ms": 1e3 * job.seconds,
        }
        values |= {f"eval/{key}": mean for key, mean in regular.infos.items()}
        if self._parts.evaluator.concurrent:
            values["eval/skipped"] = float(self.skipped)
        self._parts.recorder.write(
            Record(values, job.model.version, job.env_steps, self._parts.telemetry.seconds)
        )
        if job.fresh is not None:
            self._reached = max(self._reached, min(least_mean(regular), least_mean(job.fresh)))
        self.candidates = with_candidate(self.candidates, Candidate(job.model, regular))
        if self.candidates and self.candidates[0].regular is regular:
            self.best = regular
            self.save_best()
            self._note(f"new best at opt step {regular.opt_steps}: {regular}")
        self._parts.telemetry.evaluated(regular, self.best)

    def _note(self, note: str) -> None:
        _logger.info("%s", note)
        self._parts.view.note(note)
