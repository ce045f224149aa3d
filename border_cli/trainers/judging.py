"""What becomes of scores: records, the best model, and whether training may end early.

A model that is to be judged is a trial. It is judged on the routine episodes, the same for all of them; a candidate for
the best is then judged again, on fresh episodes, and only that score counts. Whoever is best of many on one set of
episodes is so by luck as well: a fresh set does not know that luck. The largest of several such scores is still somewhat
too high, so `border-eval` judges on episodes of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from border_cli.config.checks import confirm_episodes
from border_cli.config.schema import EvaluatorConfig, TrainerConfig
from border_cli.core.progress import View
from border_cli.core.protocols import Evaluation, Evaluator, ModelInfo, StopCheck
from border_cli.core.record import Record
from border_cli.core.state import count, listed, require
from border_cli.runtime import seeding
from border_cli.runtime.clock import Backoff
from border_cli.trainers.saving import Saving
from border_cli.trainers.telemetry import Telemetry

_AT_ONCE = 2
"""One trial runs, one waits."""


class Episodes:
    """Seeds of the episodes that models of a run are judged on. seed: the run's.

    confirming: whether a candidate for the best model is judged again.
    """

    def __init__(self, seed: int, config: EvaluatorConfig) -> None:
        self._seed = seed
        self._routine = config.episodes
        self._fresh = confirm_episodes(config)
        self.confirming = self._fresh > 0

    def routine(self) -> list[int]:
        """The same every time."""
        return [seeding.evaluation_seed(self._seed, i) for i in range(self._routine)]

    def fresh(self, opt_steps: int) -> list[int]:
        """Those that confirm the model of this opt step, and were never seen before."""
        return [seeding.confirmation_seed(self._seed, opt_steps, i) for i in range(self._fresh)]


@dataclass
class _Trial:
    """A model, and what is known of it so far.

    env_steps: as of its opt step · settled: nothing is left to find out · seconds: that its episodes took.
    """

    model: ModelInfo
    env_steps: int
    routine: Evaluation | None = None
    confirmed: Evaluation | None = None
    settled: bool = False
    seconds: float = 0.0


class Judging:
    """Has models judged and keeps the best.

    reproducible: with an evaluator beside the learner, a result takes effect exactly when the next model is submitted, as
    determinism wants it; otherwise it does when it arrives. tick: called while waiting.
    best: the evaluation of the best model that counts, a confirmation where there are some · last: the newest routine
    evaluation · good_enough: whether one that counts has reached stop_return · skipped: trials that a newer one
    replaced before their turn.
    """

    def __init__(
        self,
        config: TrainerConfig,
        episodes: Episodes,
        evaluator: Evaluator,
        saving: Saving,
        view: View,
        telemetry: Telemetry,
        write: Callable[[Record], None],
        tick: Callable[[], None],
        should_stop: StopCheck,
        reproducible: bool,
    ) -> None:
        self._config = config
        self._episodes = episodes
        self._evaluator = evaluator
        self._saving = saving
        self._view = view
        self._telemetry = telemetry
        self._write = write
        self._tick = tick
        self._should_stop = should_stop
        # So many results wait until the next model is submitted.
        self._keep_open = 1 if reproducible and evaluator.concurrent else 0
        self._trials: list[_Trial] = []
        self._begun_at: float | None = None
        self.best: Evaluation | None = None
        self.last: Evaluation | None = None
        self.good_enough = False
        self.skipped = 0

    def submit(self, model: ModelInfo, env_steps: int) -> None:
        """Have a copy of this model judged. env_steps: as of now.

        An evaluator beside the learner does that meanwhile; where one trial runs and one waits, this one replaces the
        waiting one. Any other returns when it is done, or the run was asked to stop.
        """
        copy = ModelInfo(model.version, {name: array.copy() for name, array in model.arrays.items()})
        self._advance(self._keep_open)  # whoever has been judged meanwhile makes room
        if not self._keep_open and len(self._trials) >= _AT_ONCE:
            self._trials.pop()
            self.skipped += 1
        self._trials.append(_Trial(copy, env_steps))
        self.look()

    def look(self) -> None:
        """Let what has been found out take effect. Cheap, and waits only for what is due by now."""
        if not self._trials:
            if self._config.eval_interval is not None:
                self._evaluator.poll()  # it is looked after, too, while it has nothing to do
            return
        self._advance(self._keep_open)
        if self._keep_open and len(self._trials) > self._keep_open:
            self._wait(self._keep_open)

    def judge_last(self, model: ModelInfo, env_steps: int) -> None:
        """Judge the result of the run, unless that was done already, and wait for all that is still open."""
        if self._config.eval_interval is not None and model.version and not self._knows(model.version):
            self.submit(model, env_steps)
        self._wait(0)

    # -- for checkpoints ------------------------------------------------------

    @property
    def pending(self) -> list[ModelInfo]:
        """Models whose result has not taken effect, the newest last."""
        return [trial.model for trial in self._trials]

    def state(self) -> dict[str, Any]:
        """Everything but the arrays of `pending`, as JSON values."""
        return {
            "best": None if self.best is None else self.best.to_json(),
            "last": None if self.last is None else self.last.to_json(),
            "pending": [{"opt_steps": t.model.version, "env_steps": t.env_steps} for t in self._trials],
            "skipped": self.skipped,
        }

    def load_state(self, state: Mapping[str, Any], pending: Sequence[ModelInfo]) -> None:
        """Take over a saved state, but for a best score that does not beat the present one.

        The pending models are judged again, from the next `look` on.

        Raises ValueError where the models are not those of the state, and where it is none.
        """
        require(state, ("best", "last", "pending", "skipped"), "the scores")
        trials = listed(state["pending"], "the pending models")
        for trial in trials:
            require(trial, ("opt_steps", "env_steps"), "a pending model")
        expected = [count(trial["opt_steps"], "the opt step of a model") for trial in trials]
        if [model.version for model in pending] != expected:
            raise ValueError(
                f"models of opt steps {expected} are pending, not {[m.version for m in pending]}"
            )
        best, self.last = (
            None if data is None else Evaluation.from_json(data) for data in (state["best"], state["last"])
        )
        if best is not None and self._beats_best(best):
            self.best = best
        self.skipped = count(state["skipped"], "the number of models not judged")
        self.good_enough = self.best is not None and self._reaches_goal(self.best)
        self._trials = [
            _Trial(model, count(trial["env_steps"], "env steps"))
            for model, trial in zip(pending, trials, strict=True)
        ]

    # -- from trial to effect -------------------------------------------------

    def _advance(self, keep_open: int) -> None:
        """Bring trials forward as far as that needs no waiting; those that are settled take effect, but `keep_open`."""
        while self._trials and self._find_out(self._trials[0]) and len(self._trials) > keep_open:
            self._apply(self._trials.pop(0))

    def _wait(self, keep_open: int) -> None:
        """Until no more than so many trials are open, or the run is asked to stop."""
        began, backoff = monotonic(), Backoff()
        self._advance(keep_open)
        while len(self._trials) > keep_open and not self._should_stop():
            self._tick()
            backoff.sleep()
            self._advance(keep_open)
        if self._evaluator.concurrent:
            self._telemetry.excluded(monotonic() - began)

    def _find_out(self, trial: _Trial) -> bool:
        """Have the evaluator find out what is not known of a trial; whether all is known now."""
        while not trial.settled:
            if self._begun_at is None:
                self._begin(trial)
            evaluation = self._evaluator.poll()
            if evaluation is None:
                return False
            self._note(trial, evaluation)
        return True

    def _begin(self, trial: _Trial) -> None:
        began = self._begun_at = monotonic()
        fresh = trial.routine is not None
        seeds = self._episodes.fresh(trial.model.version) if fresh else self._episodes.routine()
        self._evaluator.begin(trial.model, seeds)
        if not self._evaluator.concurrent:
            self._telemetry.excluded(monotonic() - began)

    def _note(self, trial: _Trial, evaluation: Evaluation) -> None:
        if self._begun_at is not None:
            trial.seconds += monotonic() - self._begun_at
        self._begun_at = None
        if trial.routine is None:
            trial.routine = evaluation
            trial.settled = not (self._episodes.confirming and self._is_candidate(evaluation))
        else:
            trial.confirmed = evaluation
            trial.settled = True

    def _is_candidate(self, routine: Evaluation) -> bool:
        return self._beats_best(routine) or self._reaches_goal(routine)

    def _apply(self, trial: _Trial) -> None:
        """The result takes effect: on the records, the best model, and whether the run may end."""
        routine = trial.routine
        if routine is None:
            raise AssertionError("a trial is settled by an evaluation")
        self.last = routine
        self._record(trial, routine)
        score = trial.confirmed if self._episodes.confirming else routine
        is_best = score is not None and self._beats_best(score)
        if score is not None and is_best:
            self.best = score
            self._saving.save_best(trial.model, score, routine if trial.confirmed is not None else None)
            self._view.note(_best_note(score, trial.confirmed and routine))
        self.good_enough = self.good_enough or (score is not None and self._reaches_goal(score))
        self._telemetry.evaluated(routine, score if is_best else None)

    def _record(self, trial: _Trial, routine: Evaluation) -> None:
        values = _routine_values(routine)
        if trial.confirmed is not None:
            values |= {
                "eval/confirmed_mean": trial.confirmed.mean,
                "eval/confirmed_std": trial.confirmed.std,
            }
        values["time/eval_ms"] = 1e3 * trial.seconds
        if self._evaluator.concurrent:
            values["eval/skipped"] = float(self.skipped)
        self._write(Record(values, trial.model.version, trial.env_steps, self._telemetry.seconds))

    def _beats_best(self, evaluation: Evaluation) -> bool:
        return math.isfinite(evaluation.mean) and (self.best is None or evaluation.mean > self.best.mean)

    def _reaches_goal(self, evaluation: Evaluation) -> bool:
        wanted = self._config.stop_return
        return wanted is not None and evaluation.mean >= wanted

    def _knows(self, opt_steps: int) -> bool:
        """Whether the model of this opt step was judged or is about to be."""
        newest = self._trials[-1].model.version if self._trials else self.last and self.last.opt_steps
        return newest == opt_steps


def _routine_values(evaluation: Evaluation) -> dict[str, float]:
    return {
        "eval/return_mean": evaluation.mean,
        "eval/return_std": evaluation.std,
        "eval/return_min": min(evaluation.returns),
        "eval/return_max": max(evaluation.returns),
        "eval/length_mean": sum(evaluation.lengths) / len(evaluation.lengths),
    }


def _best_note(score: Evaluation, routine: Evaluation | None) -> str:
    note = f"new best at opt step {score.opt_steps}: {score.mean:.1f} ± {score.std:.1f}"
    if routine is None:
        return note
    return f"{note} (confirmed on {len(score.returns)} fresh episodes; routine {routine.mean:.1f})"
