"""From scores to effects: candidates and their confirmation, the best, stop_return, what waits, and what takes effect when.

A scripted evaluator gives each opt step its routine and its confirmed score, and is done when the test says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from border_cli.config.schema import EvaluatorConfig, TrainerConfig
from border_cli.core.progress import Progress
from border_cli.core.protocols import Evaluation, ModelInfo
from border_cli.core.record import Record
from border_cli.replay.limiter import RatioLimiter
from border_cli.runtime import seeding
from border_cli.trainers.judging import Episodes, Judging
from border_cli.trainers.telemetry import Telemetry

SEED = 5
Score = float | tuple[float, float]
"""Routine and confirmed mean; one number for both."""


class Script:
    """Implements `core.protocols.Evaluator`. answers: how many more results it gives before it takes its time."""

    def __init__(self, scores: Mapping[int, Score], concurrent: bool) -> None:
        self.concurrent = concurrent
        self.answers = 0.0 if concurrent else math.inf
        self.begun: list[tuple[int, str, float]] = []
        self.seeds: list[list[int]] = []
        self.polls = 0
        self._scores = scores
        self._open: Evaluation | None = None

    def begin(self, model: ModelInfo, seeds: Sequence[int]) -> None:
        assert self._open is None
        step, pair = model.version, self._scores[model.version]
        routine = list(seeds) == [seeding.evaluation_seed(SEED, i) for i in range(len(seeds))]
        self.begun.append((step, "routine" if routine else "fresh", float(model.arrays["weight"][0])))
        self.seeds.append(list(seeds))
        mean = pair[0 if routine else 1] if isinstance(pair, tuple) else pair
        self._open = Evaluation(step, (mean,) * len(seeds), (step,) * len(seeds))

    def poll(self) -> Evaluation | None:
        self.polls += 1
        if self.answers <= 0 or self._open is None:
            return None
        self.answers -= 1
        evaluation, self._open = self._open, None
        return evaluation

    def close(self) -> None:
        """Nothing to release."""


class Desk:
    """A `Judging` with everything around it noted down. It is also keeper and view."""

    def __init__(
        self,
        scores: Mapping[int, Score],
        concurrent: bool = False,
        reproducible: bool = False,
        stop_return: float | None = None,
        **evaluator: Any,
    ) -> None:
        self.kept: list[tuple[ModelInfo, Evaluation, Evaluation | None]] = []
        self.notes: list[str] = []
        self.records: list[Record] = []
        self.ticks = 0
        self.stopping = False
        self.done_after_ticks = 10**9
        self.evaluator = Script(scores, concurrent)
        self.weight = np.zeros(2, np.float32)
        self.telemetry = Telemetry(RatioLimiter(1.0, 0, 1, None, 1, 1), Progress())
        self.progress = self.telemetry.progress
        config = EvaluatorConfig(**{"episodes": 3, "confirm_episodes": 2, **evaluator})
        self.judging = Judging(
            TrainerConfig(eval_interval=10, stop_return=stop_return),
            Episodes(SEED, config),
            self.evaluator,
            self,
            self,  # type: ignore[arg-type] # a view only takes notes here
            self.telemetry,
            self.records.append,
            self.tick,
            lambda: self.stopping,
            reproducible,
        )

    def submit(self, *opt_steps: int) -> None:
        for step in opt_steps:
            self.judging.submit(self.model(step), 2 * step)

    def model(self, opt_steps: int) -> ModelInfo:
        """As an agent gives it: a view of what goes on changing."""
        self.weight[...] = opt_steps
        return ModelInfo(opt_steps, {"weight": self.weight})

    def finish(self) -> None:
        """Let the evaluator be done with whatever it has begun, and with what follows."""
        self.evaluator.answers = math.inf
        self.judging.look()

    def tick(self) -> None:
        self.ticks += 1
        if self.ticks == self.done_after_ticks:
            self.evaluator.answers = math.inf

    def save_best(self, model: ModelInfo, score: Evaluation, routine: Evaluation | None) -> None:
        self.kept.append((model, score, routine))

    def note(self, message: str) -> None:
        self.notes.append(message)

    @property
    def bests(self) -> list[tuple[int, float]]:
        return [(score.opt_steps, score.mean) for _, score, _ in self.kept]

    def series(self, name: str) -> list[tuple[int, float]]:
        return [(record.opt_steps, record.values[name]) for record in self.records if name in record.values]


both = pytest.mark.parametrize("concurrent", [False, True], ids=["inline", "beside"])


# -- the best -----------------------------------------------------------


def test_c11_a_score_that_is_no_number_is_never_the_best_and_the_best_survives_a_resume() -> None:
    first = Desk({10: 1.0, 20: math.nan, 30: 0.5})
    first.submit(10, 20, 30)
    state = json.loads(json.dumps(first.judging.state()))
    second = Desk({40: 0.9})
    second.telemetry.load_state(json.loads(json.dumps(first.telemetry.state(reproducible=False))))
    second.judging.load_state(state, [])
    second.submit(40)
    assert (first.bests, second.bests) == ([(10, 1.0)], [])
    assert second.judging.best == Evaluation(10, (1.0, 1.0), (10, 10))
    assert second.progress.best == (10, 1.0)
    assert second.judging.last is not None and second.judging.last.mean == 0.9


def test_c11_a_first_score_that_is_no_number_is_never_the_best() -> None:
    desk = Desk({10: math.nan, 20: (7.0, math.nan), 30: math.inf, 40: -5.0})
    desk.submit(10, 20, 30, 40)
    assert desk.bests == [(40, -5.0)]


@pytest.mark.parametrize("confirm", [True, False])
def test_c11_an_equal_score_does_not_replace_the_best_before_a_resume_or_after_it(confirm: bool) -> None:
    words = {"confirm": confirm, "confirm_episodes": 2 if confirm else None}
    first = Desk({10: 3.0, 20: 3.0, 30: 3.5}, **words)
    first.submit(10, 20, 30)
    assert first.bests == [(10, 3.0), (30, 3.5)]
    second = Desk({40: 3.5, 50: 4.0}, **words)
    second.judging.load_state(json.loads(json.dumps(first.judging.state())), [])
    second.submit(40, 50)
    assert second.bests == [(50, 4.0)]


@both
def test_a_candidate_is_confirmed_on_fresh_episodes_before_it_replaces_the_best(concurrent: bool) -> None:
    scores: dict[int, Score] = {10: (5.0, 2.0), 20: (3.0, 2.5), 30: (2.4, 9.0), 40: (4.0, 1.0)}
    desk = Desk(scores, concurrent)
    for step in scores:
        desk.submit(step)
        desk.finish()
        desk.evaluator.answers = 0.0 if concurrent else math.inf
    assert [begun[:2] for begun in desk.evaluator.begun] == [
        (10, "routine"),
        (10, "fresh"),
        (20, "routine"),  # 3.0 is no better than 10's routine 5.0, but than what was confirmed of it
        (20, "fresh"),
        (30, "routine"),  # no candidate: what its fresh episodes would have brought is not asked
        (40, "routine"),
        (40, "fresh"),
    ]
    assert desk.bests == [(10, 2.0), (20, 2.5)]
    assert desk.series("eval/return_mean") == [(10, 5.0), (20, 3.0), (30, 2.4), (40, 4.0)]
    assert desk.series("eval/confirmed_mean") == [(10, 2.0), (20, 2.5), (40, 1.0)]
    assert desk.series("eval/confirmed_std") == [(10, 0.0), (20, 0.0), (40, 0.0)]
    assert [record.env_steps for record in desk.records] == [20, 40, 60, 80]


def test_fresh_episodes_are_seen_once_and_never_again() -> None:
    desk = Desk({step: float(step) for step in range(10, 60, 10)}, confirm_episodes=4)
    desk.submit(10, 20, 30, 40, 50)
    routine, fresh = desk.evaluator.seeds[0::2], desk.evaluator.seeds[1::2]
    assert {tuple(seeds) for seeds in routine} == {tuple(routine[0])}
    seen = [seed for seeds in fresh for seed in seeds]
    judgement = [seeding.judgement_seed(SEED, i) for i in range(100)]
    assert len(seen) == 5 * 4 == len(set(seen) - set(routine[0]) - set(judgement))


def test_as_many_fresh_episodes_as_routine_ones_unless_another_number_is_wanted() -> None:
    for wanted, expected in ((None, 3), (7, 7)):
        desk = Desk({10: 1.0}, confirm_episodes=wanted)
        desk.submit(10)
        assert [len(seeds) for seeds in desk.evaluator.seeds] == [3, expected]


def test_without_confirmation_the_routine_score_counts() -> None:
    desk = Desk({10: (5.0, 0.0), 20: (4.0, 9.0), 30: (6.0, 0.0)}, confirm=False, confirm_episodes=None)
    desk.submit(10, 20, 30)
    assert desk.bests == [(10, 5.0), (30, 6.0)]
    assert [routine for _, _, routine in desk.kept] == [None, None]
    assert desk.series("eval/confirmed_mean") == []
    assert desk.notes[0] == "new best at opt step 10: 5.0 ± 0.0"


def test_what_is_kept_is_the_model_that_was_judged_with_both_scores() -> None:
    desk = Desk({10: (500.0, 495.3), 20: 0.0}, concurrent=True)
    desk.submit(10, 20)  # the agent has gone on meanwhile
    desk.finish()
    ((model, score, routine),) = desk.kept
    assert model.version == 10 and model.arrays["weight"].tolist() == [10.0, 10.0]
    assert (score.mean, routine and routine.mean) == (495.3, 500.0)
    assert desk.evaluator.begun == [(10, "routine", 10.0), (10, "fresh", 10.0), (20, "routine", 20.0)]
    assert desk.notes == [
        "new best at opt step 10: 495.3 ± 0.0 (confirmed on 2 fresh episodes; routine 500.0)"
    ]


# -- stop_return --------------------------------------------------------


def test_stop_return_looks_at_the_confirmed_mean() -> None:
    desk = Desk({10: (9.0, 7.9), 20: (9.0, 8.0)}, stop_return=8.0)
    desk.submit(10)
    assert not desk.judging.good_enough
    desk.submit(20)
    assert desk.judging.good_enough


def test_without_confirmation_stop_return_looks_at_the_routine_mean() -> None:
    desk = Desk({10: (8.0, 0.0)}, stop_return=8.0, confirm=False, confirm_episodes=None)
    desk.submit(10)
    assert desk.judging.good_enough


def test_who_reaches_stop_return_is_confirmed_though_the_best_is_better() -> None:
    """A resumed run may have a best that is better than its new stop_return."""
    desk = Desk({20: (8.5, 8.1)}, stop_return=8.0)
    state = Desk({}).judging.state() | {"best": Evaluation(10, (9.0,), (1,)).to_json()}
    desk.judging.load_state(state, [])
    desk.submit(20)
    assert desk.judging.good_enough
    assert desk.bests == []


def test_a_score_that_is_no_number_is_not_good_enough() -> None:
    desk = Desk({10: math.nan}, stop_return=-1e9)
    desk.submit(10)
    assert not desk.judging.good_enough


# -- beside the learner -------------------------------------------------


def test_one_runs_and_one_waits_and_a_newer_one_replaces_the_waiting_one() -> None:
    desk = Desk({10: 1.0, 20: 2.0, 30: 3.0, 40: 4.0, 50: 5.0}, concurrent=True)
    desk.submit(10, 20, 30, 40)
    assert [model.version for model in desk.judging.pending] == [10, 40]
    assert desk.records == [] and desk.ticks == 0  # the learner went on
    desk.finish()
    assert desk.judging.pending == []
    assert desk.series("eval/skipped") == [(10, 2.0), (40, 2.0)]
    assert desk.progress.evaluations == [(10, 1.0), (40, 4.0)]


def test_a_candidate_being_confirmed_is_not_replaced() -> None:
    desk = Desk({10: 1.0, 20: 2.0, 30: 3.0}, concurrent=True)
    desk.submit(10)
    desk.evaluator.answers = 1
    desk.submit(20, 30)
    assert [begun[:2] for begun in desk.evaluator.begun] == [(10, "routine"), (10, "fresh")]
    assert [model.version for model in desk.judging.pending] == [10, 30]
    desk.finish()
    assert desk.bests == [(10, 1.0), (30, 3.0)]


def test_what_has_been_judged_meanwhile_makes_room_for_the_next() -> None:
    desk = Desk({10: 1.0, 20: 2.0, 30: 3.0}, concurrent=True)
    desk.submit(10, 20)
    desk.evaluator.answers = 2
    desk.submit(30)
    assert desk.judging.skipped == 0
    assert [model.version for model in desk.judging.pending] == [20, 30]


def test_inline_nothing_is_said_of_what_waits() -> None:
    desk = Desk({10: 1.0})
    desk.submit(10)
    assert desk.series("eval/skipped") == []


def test_while_there_is_nothing_to_judge_the_evaluator_is_looked_after() -> None:
    desk = Desk({}, concurrent=True)
    desk.judging.look()
    assert desk.evaluator.polls == 1


@both
def test_at_the_end_the_result_is_judged_once_and_all_that_is_open_is_awaited(concurrent: bool) -> None:
    desk = Desk({10: 1.0, 20: 2.0, 25: 3.0}, concurrent)
    desk.submit(10, 20)
    desk.done_after_ticks = 3
    desk.judging.judge_last(desk.model(25), 50)
    desk.judging.judge_last(desk.model(25), 50)
    assert [step for step, _ in desk.series("eval/return_mean")] == ([10, 25] if concurrent else [10, 20, 25])
    assert desk.ticks == (3 if concurrent else 0)


def test_who_is_asked_to_stop_does_not_wait() -> None:
    desk = Desk({10: 1.0}, concurrent=True)
    desk.stopping = True
    desk.judging.judge_last(desk.model(10), 20)
    assert [model.version for model in desk.judging.pending] == [10]


# -- exactly ------------------------------------------------------------


@pytest.mark.parametrize("early", [True, False], ids=["result at once", "result late"])
def test_exact_results_take_effect_when_the_next_model_is_submitted(early: bool) -> None:
    desk = Desk({10: 1.0, 20: 2.0, 30: 3.0}, concurrent=True, reproducible=True, stop_return=2.0)
    desk.submit(10)
    desk.evaluator.answers = math.inf if early else 0.0
    desk.done_after_ticks = 4
    for _ in range(5):
        desk.judging.look()
    assert (desk.records, desk.judging.best, desk.ticks) == ([], None, 0)
    desk.submit(20)
    assert desk.series("eval/confirmed_mean") == [(10, 1.0)]
    assert [model.version for model in desk.judging.pending] == [20]
    assert desk.ticks == (0 if early else 4)
    assert not desk.judging.good_enough  # though the evaluator knows by now that opt step 20 is
    desk.judging.judge_last(desk.model(20), 40)
    assert desk.judging.good_enough
    assert desk.judging.skipped == 0


def test_exact_a_candidate_is_one_by_the_best_of_its_own_time() -> None:
    """Whether 20 is confirmed depends on 10, whose result takes effect first, however early 20 was judged."""
    desk = Desk({10: 5.0, 20: 3.0, 30: 1.0}, concurrent=True, reproducible=True)
    desk.evaluator.answers = math.inf
    desk.submit(10, 20, 30)
    assert [begun[:2] for begun in desk.evaluator.begun][:3] == [
        (10, "routine"),
        (10, "fresh"),
        (20, "routine"),
    ]
    assert desk.series("eval/confirmed_mean") == [(10, 5.0)]


def test_exact_inline_takes_effect_at_once() -> None:
    desk = Desk({10: 1.0}, reproducible=True)
    desk.submit(10)
    assert desk.bests == [(10, 1.0)]


# -- checkpoints --------------------------------------------------------


@pytest.mark.parametrize("exact", [False, True])
def test_what_is_open_is_judged_again_after_a_resume(exact: bool) -> None:
    scores: dict[int, Score] = {10: 1.0, 20: 2.0, 30: 1.5}
    first = Desk(scores, concurrent=True, reproducible=exact)
    first.stopping = True  # so that an exact one does not wait for 10
    first.submit(10, 20)
    state = json.loads(json.dumps(first.judging.state()))
    assert state["pending"] == [{"opt_steps": 10, "env_steps": 20}, {"opt_steps": 20, "env_steps": 40}]
    second = Desk(scores, concurrent=True, reproducible=exact)
    second.judging.load_state(state, first.judging.pending)
    second.evaluator.answers = math.inf
    second.judging.look()
    assert second.bests == ([(10, 1.0)] if exact else [(10, 1.0), (20, 2.0)])
    assert [record.env_steps for record in second.records] == ([20] if exact else [20, 40])
    second.submit(30)
    assert second.bests == [(10, 1.0), (20, 2.0)]


def test_an_exact_result_that_has_not_taken_effect_is_still_open() -> None:
    desk = Desk({10: 1.0}, concurrent=True, reproducible=True)
    desk.evaluator.answers = math.inf
    desk.submit(10)
    assert [trial["opt_steps"] for trial in desk.judging.state()["pending"]] == [10]


def test_models_that_are_not_those_of_the_state_are_refused() -> None:
    first = Desk({10: 1.0}, concurrent=True)
    first.submit(10)
    with pytest.raises(ValueError, match=r"models of opt steps \[10\] are pending, not \[\]"):
        Desk({}).judging.load_state(first.judging.state(), [])
