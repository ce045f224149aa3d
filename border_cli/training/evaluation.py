"""Evaluates models while a run trains, keeps the best one, and finds out whether the run may end early.

`best_model.BestSelector` decides which model is the best. `EvalManager` has the evaluations made that the decision needs
and applies the results in the order of the opt steps.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from border_cli.config.resolve import confirm_episodes
from border_cli.config.schema import EvaluatorConfig, TrainerConfig
from border_cli.core.errors import OutOfTime
from border_cli.core.metrics import Record
from border_cli.core.spaces import Array
from border_cli.core.state import State, check_like, joined, section_arrays
from border_cli.core.types import Evaluation, ModelInfo, shown_return
from border_cli.runtime import seeding
from border_cli.runtime.clock import Backoff
from border_cli.training.best_model import BestSelector, Comparison, Evidence

if TYPE_CHECKING:
    from border_cli.training.state import Components

_MAX_JOBS = 2
"""One job runs and one waits."""
_LONG_S = 5.0
"""Evaluations that take longer than this, and than the training between two of them, are spaced out."""
_EXTRA_TIME, _LEAST_EXTRA_S = 0.1, 10.0
"""What the evaluation of the last model may take beyond max_time: a share of it, and at least so many seconds."""
_logger = logging.getLogger(__name__)


class EvalSeeds:
    """Seeds of the evaluation episodes of a run.

    Attributes:
        regular: the same for every model.
        fresh_episodes: episodes of each model in a round of a comparison; 0: the regular evaluation decides.
    """

    def __init__(self, seed: int, config: EvaluatorConfig) -> None:
        self._seed = seed
        self.regular = [seeding.evaluation_seed(seed, i) for i in range(config.episodes)]
        self.fresh_episodes = confirm_episodes(config)

    def fresh(self, opt_steps: int, episodes: range) -> list[int]:
        """Seeds of these episodes of the comparison between the model of this opt step and the best."""
        return [seeding.confirmation_seed(self._seed, opt_steps, i) for i in episodes]


@dataclass
class EvalJob:
    """A model to evaluate.

    env_steps: count when it was submitted · comparison: with the best model, once the regular evaluation is known ·
    seconds: duration of its evaluations so far.
    """

    model: ModelInfo
    env_steps: int
    comparison: Comparison | None = None
    seconds: float = 0.0


class EvalManager:
    """Evaluates models in the order of their opt steps and keeps the best one.

    Args:
        tick: called while waiting for an evaluation.
        reproducible: the result of an evaluator beside the learner takes effect exactly when the next model is submitted;
            otherwise it does when it arrives.

    Attributes:
        selector: chooses the best model.
        last: the newest regular evaluation.
        good_enough: whether the score of the best model reaches `stop_return`.
        skipped: models that were due and not evaluated, because a newer one replaced them or evaluations take too long.
    """

    def __init__(
        self, config: TrainerConfig, parts: Components, tick: Callable[[], None], reproducible: bool
    ) -> None:
        self._config = config
        self._parts = parts
        self._tick = tick
        # So many jobs stay open until the next model is submitted, although their results may be known.
        self._keep_open = 1 if reproducible and parts.evaluator.concurrent else 0
        self._jobs: list[EvalJob] = []
        self._started_at: float | None = None  # of the evaluation that is running
        self._best_model: ModelInfo | None = None
        self.selector = BestSelector(parts.eval_seeds.fresh_episodes, config.stop_return)
        self.last: Evaluation | None = None
        self.good_enough = False
        self.skipped = 0
        self._spaces_out = not reproducible
        self._noted = False  # that evaluations take longer than the training between them
        self._took_s = 0.0  # the last evaluation with its comparison
        self._ended_at = 0.0  # in seconds of the run
        self._max_seconds = math.inf if config.max_time is None else config.max_time

    @property
    def best(self) -> Evaluation | None:
        """The score of the best model."""
        return None if self.selector.best is None else self.selector.best.score

    def submit(self, model: ModelInfo, env_steps: int) -> None:
        """Evaluate a copy of this model. env_steps: the current count.

        With an evaluator beside the learner this returns at once; if one job runs and one waits, the new one replaces
        the one that waits. Otherwise it returns when the result is known or the run is asked to stop.
        """
        copy = ModelInfo(model.version, {name: array.copy() for name, array in model.arrays.items()})
        self._advance(self._keep_open)  # finished jobs make room
        if not self._keep_open and len(self._jobs) >= _MAX_JOBS:
            self._jobs.pop()
            self.skipped += 1
            self._note_once(
                logging.INFO,
                "evaluations take longer than the training between two of them, so some models are left out",
            )
        self._jobs.append(EvalJob(copy, env_steps))
        self.poll()

    def skip_interval(self) -> bool:
        """Whether to leave out the evaluation of this interval, because the last one took longer than the training since.

        Only of an inline evaluator, whose evaluations would take more than half of the time; a reproducible run, which may
        not decide by time, only says so.
        """
        trained_s = self._parts.telemetry.seconds - self._ended_at
        if self._parts.evaluator.concurrent or self._took_s <= max(_LONG_S, trained_s):
            return False
        left_out = ", so some are left out" if self._spaces_out else ""
        self._note_once(
            logging.WARNING,
            f"an evaluation takes {self._took_s:.0f} s, longer than the training between two of them{left_out}; "
            "evaluator=process evaluates beside the training, "
            f"evaluator.episodes={max(1, len(self._parts.eval_seeds.regular) // 4)} plays fewer episodes",
        )
        self.skipped += self._spaces_out
        return self._spaces_out

    def _note_once(self, level: int, note: str) -> None:
        if not self._noted:
            _logger.log(level, "%s", note)
        self._noted = True

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
        """Evaluate the last model, unless it was submitted before, and wait for all results.

        With `max_time`, this may take a tenth of it more. What is not evaluated by then is left out.
        """
        if self._config.max_time is not None:
            now = max(self._parts.telemetry.seconds, self._config.max_time)
            self._max_seconds = now + max(_LEAST_EXTRA_S, _EXTRA_TIME * self._config.max_time)
        newest = self._jobs[-1].model.version if self._jobs else self.last and self.last.opt_steps
        if self._config.eval_interval is not None and model.version and newest != model.version:
            self.submit(model, env_steps)
        self._wait(0)
        if self._jobs and self._out_of_time:
            self._give_up()

    def save_best(self) -> None:
        best = self.selector.best
        if best is not None and self._best_model is not None:
            self._parts.checkpoints.save_best(
                self._best_model, best.score, best.regular if best.fresh else None
            )

    # -- checkpoints ----------------------------------------------------------

    def state(self) -> State:
        """The best model, the scores, and the models whose result has not taken effect yet."""
        models = {str(job.model.version): State(job.model.arrays) for job in self._jobs}
        if self._best_model is not None:
            models["best"] = State(self._best_model.arrays)
        values = {
            "selector": self.selector.state(),
            "last": None if self.last is None else self.last.to_json(),
            "pending": [{"opt_steps": job.model.version, "env_steps": job.env_steps} for job in self._jobs],
            "skipped": self.skipped,
        }
        return State(joined(models).arrays, values)

    def load_state(
        self,
        saved: State,
        model: Mapping[str, Array],
        later_best: tuple[ModelInfo, Evidence] | None = None,
    ) -> None:
        """Restore a saved state. Pending models are evaluated again from the next `poll` on.

        model: arrays of any model of this agent, for their names and shapes · later_best: the model and the evaluations in
        best/, if they are later than the saved state. Raises IncompatibleStateError.
        """
        values, owner = saved.values, "the evaluation"
        example = {"pending": [{"opt_steps": 0, "env_steps": 0}]}
        check_like(State({}, values), State({}, self.state().values | example), owner)
        self.selector.load_state(values["selector"])
        best, pending = self.selector.best, [job["opt_steps"] for job in values["pending"]]
        models = {str(step): ModelInfo(step, section_arrays(saved, str(step))) for step in pending}
        if best is not None:
            models["best"] = ModelInfo(best.regular.opt_steps, section_arrays(saved, "best"))
        expected = joined({name: State(dict(model)) for name in models}).arrays
        check_like(State(saved.arrays), State(expected), owner)
        self._jobs = [EvalJob(models[str(job["opt_steps"])], job["env_steps"]) for job in values["pending"]]
        self._best_model = models.get("best")
        if later_best is not None and later_best[0].version not in pending:  # otherwise it is compared again
            self._best_model, self.selector.best = later_best
            check_like(State(self._best_model.arrays), State(dict(model)), "the best model")
        self.last = None if values["last"] is None else Evaluation.from_json(values["last"])
        self.skipped = values["skipped"]
        self.good_enough = self.selector.goal_reached

    # -- from a job to its effect ---------------------------------------------

    def _advance(self, keep_open: int) -> None:
        """Apply the results of jobs that are done, except of the newest `keep_open`. Never waits."""
        try:
            while self._jobs and self._is_done(self._jobs[0]) and len(self._jobs) > keep_open:
                self._apply(self._jobs.pop(0))
        except OutOfTime:
            self._started_at = None  # it begins again in `evaluate_last`, and when the run is resumed

    def _wait(self, keep_open: int) -> None:
        """Wait until at most this many jobs are open, or the run is asked to stop."""
        began, backoff = monotonic(), Backoff()
        self._advance(keep_open)
        while len(self._jobs) > keep_open and not self._parts.should_stop():
            if self._out_of_time:
                break
            self._tick()
            backoff.sleep()
            self._advance(keep_open)
        if self._parts.evaluator.concurrent:
            self._parts.telemetry.excluded(monotonic() - began)

    @property
    def _out_of_time(self) -> bool:
        return self._parts.telemetry.seconds >= self._max_seconds

    def _tick_in_time(self) -> None:
        """Raises OutOfTime when the run's time is used up."""
        if self._out_of_time:
            raise OutOfTime
        self._tick()

    def _give_up(self) -> None:
        """Leave out the models that are not evaluated yet."""
        steps = ", ".join(str(job.model.version) for job in self._jobs)
        _logger.warning("trainer.max_time ended the evaluation of opt step %s: it does not count", steps)
        self._jobs.clear()

    def _is_done(self, job: EvalJob) -> bool:
        """Start the next evaluation of this job or take its result. Returns whether no evaluation is missing."""
        evaluator, all_seeds = self._parts.evaluator, self._parts.eval_seeds
        while job.comparison is None or job.comparison.next_job is not None:
            if self._started_at is None:
                self._started_at = monotonic()
                model, seeds = job.model, all_seeds.regular
                if job.comparison is not None and (needed := job.comparison.next_job) is not None:
                    seeds = all_seeds.fresh(job.model.version, needed.episodes)
                    if needed.of_best and self._best_model is not None:
                        model = self._best_model
                evaluator.begin(model, seeds, self._tick_in_time)
                if not evaluator.concurrent:
                    self._parts.telemetry.excluded(monotonic() - self._started_at)
            if (evaluation := evaluator.poll()) is None:
                return False
            job.seconds += monotonic() - self._started_at
            self._started_at = None
            if job.comparison is None:
                job.comparison = self.selector.compare(evaluation)
            else:
                job.comparison.add(evaluation)
        return True

    def _apply(self, job: EvalJob) -> None:
        """Record the result, update the best model, and find out whether the run may end."""
        assert job.comparison is not None  # the job is done
        regular, fresh = job.comparison.regular, job.comparison.fresh
        self.last = regular
        self._took_s, self._ended_at = job.seconds, self._parts.telemetry.seconds
        values = {
            "eval/return_mean": regular.mean,
            "eval/return_std": regular.std,
            "eval/return_min": min(regular.returns),
            "eval/return_max": max(regular.returns),
            "eval/length_mean": sum(regular.lengths) / len(regular.lengths),
            "time/eval_ms": 1e3 * job.seconds,
        }
        if fresh is not None:
            values |= {"eval/fresh_mean": fresh.mean, "eval/fresh_std": fresh.std}
        if self._parts.evaluator.concurrent or self.skipped:
            values["eval/skipped"] = float(self.skipped)
        self._parts.recorder.write(
            Record(values, job.model.version, job.env_steps, self._parts.telemetry.seconds)
        )
        replaced = self.selector.finish(job.comparison)
        if replaced:
            self._best_model = job.model
        if replaced or job.comparison.fresh_episodes:  # the score of the best model is more exact now
            self.save_best()
        if replaced:
            score = fresh or regular
            note = f"new best at opt step {score.opt_steps}: {score}"
            if fresh is not None:
                note += f" over {len(fresh.returns)} fresh episodes"
                note += f" (regular evaluation {shown_return(regular.mean)})"
            _logger.info("%s", note)
            self._parts.view.note(note)
        self.good_enough = self.selector.goal_reached
        self._parts.telemetry.evaluated(regular, self.best)
