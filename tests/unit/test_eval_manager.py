"""EvalManager: the best model, stop_return, waiting models, and when a result takes effect.

The rule that decides which model is the best has its own tests (test_choose_best.py). Here a scripted evaluator gives the
model of each opt step its regular and its fresh score, when the test lets it.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from border_cli.config.schema import TrainerConfig
from border_cli.core.metrics import Record
from border_cli.core.progress import Progress
from border_cli.core.state import State
from border_cli.core.types import Evaluation, ModelInfo
from border_cli.runtime import seeding
from border_cli.training.choose_best import Candidate, EvalSeeds
from border_cli.training.eval_manager import EvalManager
from border_cli.training.ratio_limiter import RatioLimiter
from border_cli.training.telemetry import Telemetry

SEED = 5
ARRAYS = {"weight": np.zeros(2, np.float32)}
"""Of any model."""
Score = float | tuple[float, float]
"""Regular and fresh mean; one number for both."""


class Script:
    """A scripted evaluator. answers: number of results that it still returns at once."""

    def __init__(self, scores: Mapping[int, Score], concurrent: bool, answers: float) -> None:
        self.concurrent = concurrent
        self.answers = answers if concurrent else math.inf
        self.evaluated: list[tuple[int, str]] = []
        self.seeds: list[list[int]] = []
        self.polls = 0
        self.during: Callable[[], None] | None = None  # what happens while it evaluates
        self.spread = 0.0
        self._scores = scores
        self._open: Evaluation | None = None

    def begin(self, model: ModelInfo, seeds: Sequence[int], tick: Callable[[], None] = lambda: None) -> None:
        assert self._open is None
        if self.during is not None:
            self.during()
            if not self.concurrent:
                tick()
        step, pair = model.version, self._scores[model.version]
        # a copy, because the weights of the agent change
        assert model.arrays["weight"].tolist() == [step, step]
        regular = list(seeds) == [seeding.integer(SEED, seeding.EVALUATION, i) for i in range(len(seeds))]
        self.evaluated.append((step, "regular" if regular else "fresh"))
        self.seeds.append(list(seeds))
        mean = pair[0 if regular else 1] if isinstance(pair, tuple) else pair
        returns = (mean - self.spread, *(mean,) * (len(seeds) - 2), mean + self.spread)
        self._open = Evaluation(step, returns, (step,) * len(seeds))

    def poll(self) -> Evaluation | None:
        self.polls += 1
        if self.answers <= 0 or self._open is None:
            return None
        self.answers -= 1
        evaluation, self._open = self._open, None
        return evaluation

    def close(self) -> None:
        """Nothing to release."""


class Setup:
    """An `EvalManager` with its dependencies. It also acts as checkpoint manager and view."""

    def __init__(
        self,
        scores: Mapping[int, Score],
        concurrent: bool = False,
        reproducible: bool = False,
        stop_return: float | None = None,
        answers: float = 0.0,
        max_time: float | None = None,
        confirm: bool = False,
        eval_interval: int | None = 10,
    ) -> None:
        self.saved: list[tuple[ModelInfo, Evaluation, Evaluation | None]] = []
        self.notes: list[str] = []
        self.records: list[Record] = []
        self.ticks = 0
        self.stopping = False
        self.done_after_ticks = 10**9
        self.evaluator = Script(scores, concurrent, answers)
        self.weight = np.zeros(2, np.float32)
        self.telemetry = Telemetry(RatioLimiter(1.0, 0, 1, None, 1, 1), Progress())
        self.progress = self.telemetry.progress
        parts: Any = SimpleNamespace(
            eval_seeds=EvalSeeds(SEED, 3),
            confirm_best=confirm,
            evaluator=self.evaluator,
            checkpoints=self,
            view=self,
            telemetry=self.telemetry,
            recorder=SimpleNamespace(write=self.records.append),
            should_stop=lambda: self.stopping,
        )
        config = TrainerConfig(eval_interval=eval_interval, stop_return=stop_return, max_time=max_time)
        self.manager = EvalManager(config, parts, self.tick, reproducible)

    def submit(self, *opt_steps: int) -> None:
        for step in opt_steps:
            self.manager.submit(self.model(step), 2 * step)

    def model(self, opt_steps: int) -> ModelInfo:
        """Return the model like an agent does: a view of arrays that change."""
        self.weight[...] = opt_steps
        return ModelInfo(opt_steps, {"weight": self.weight})

    def finish(self) -> None:
        """Let the evaluator finish all evaluations."""
        self.evaluator.answers = math.inf
        self.manager.poll()

    def tick(self) -> None:
        self.ticks += 1
        if self.ticks == self.done_after_ticks:
            self.evaluator.answers = math.inf

    def save_best(self, model: ModelInfo, score: Evaluation, regular: Evaluation | None) -> None:
        assert float(model.arrays["weight"][0]) == model.version == score.opt_steps
        self.saved.append((model, score, regular))

    def note(self, message: str) -> None:
        self.notes.append(message)

    @property
    def bests(self) -> list[tuple[int, float]]:
        """Opt step and score of each new best model, and of each best model whose score was updated."""
        return [(score.opt_steps, score.mean) for _, score, _ in self.saved]

    @property
    def pending(self) -> list[int]:
        return [job["opt_steps"] for job in self.manager.state().values["pending"]]

    def series(self, name: str) -> list[tuple[int, float]]:
        return [(record.opt_steps, record.values[name]) for record in self.records if name in record.values]


def stored(manager: EvalManager) -> State:
    """Return its state as read back from a checkpoint."""
    state = deepcopy(manager.state())
    return State(state.arrays, json.loads(json.dumps(state.values)))


def resumed(first: Setup, scores: Mapping[int, Score], **options: Any) -> Setup:
    second = Setup(scores, **options)
    second.manager.load_state(stored(first.manager), ARRAYS)
    return second


class FakeClock:
    """The time of the run, which only a test moves on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(Telemetry, "seconds", property(lambda _: self.now))
        monkeypatch.setattr("border_cli.training.eval_manager.monotonic", lambda: self.now)

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    return FakeClock(monkeypatch)


places = pytest.mark.parametrize("concurrent", [False, True], ids=["inline", "beside"])


@pytest.mark.parametrize(("eval_interval", "polls"), [(10, 1), (None, 0)])
def test_a_run_without_evaluations_never_needs_the_environments_of_its_evaluator(
    eval_interval: int | None, polls: int
) -> None:
    setup = Setup({}, eval_interval=eval_interval)
    setup.manager.poll()
    assert setup.evaluator.polls == polls


def test_c11_a_nan_or_equal_score_is_never_the_best_before_a_resume_or_after_it() -> None:
    scores: dict[int, Score] = {5: math.nan, 10: 3.0, 20: 3.0, 30: 3.5, 40: 3.5, 50: math.nan, 60: 4.0}
    first = Setup(scores)
    first.submit(5, 10, 20, 30)
    second = resumed(first, scores)
    assert second.manager.best == first.manager.best
    second.submit(40, 50)
    assert (first.bests, second.bests) == ([(10, 3.0), (30, 3.5)], [])
    assert second.progress.best == (30, 3.5)
    assert second.manager.last is not None and math.isnan(second.manager.last.mean)
    second.submit(60)
    assert second.bests == [(60, 4.0)] and second.notes == ["new best at opt step 60: 4.00 ± 0.00"]


@places
def test_at_the_end_candidates_play_the_same_fresh_episodes_and_the_winner_others(
    concurrent: bool,
) -> None:
    """Model 10 was lucky on the regular episodes. The last model is no candidate; its score is on the same episodes."""
    scores: dict[int, Score] = {10: (9.0, 2.0), 20: (8.0, 7.0), 30: (math.nan, 1.0)}
    setup = Setup(scores, concurrent, answers=math.inf, confirm=True)
    setup.submit(10, 20, 30)
    assert setup.bests == [(10, 9.0)] and setup.progress.best == (10, 9.0)
    assert not (setup.manager.confirmed or setup.progress.best_confirmed)
    setup.manager.evaluate_last(setup.model(30), 60)
    regular, fresh = [(10, "regular"), (20, "regular"), (30, "regular")], [(10, "fresh"), (20, "fresh")]
    assert setup.evaluator.evaluated == [*regular, *fresh, (20, "fresh"), (30, "fresh")]
    deciding, scoring = setup.evaluator.seeds[3], setup.evaluator.seeds[5]
    assert setup.evaluator.seeds[3:] == [deciding, deciding, scoring, scoring]
    used = [*setup.evaluator.seeds[0], *deciding, *scoring]
    assert len({*used, *(seeding.integer(SEED, seeding.EVAL_COMMAND, i) for i in range(100))}) == 9 + 100
    model, score, of_regular = setup.saved[-1]
    assert (model.version, score.mean, of_regular and of_regular.mean) == (20, 7.0, 8.0)
    assert setup.manager.best is score and setup.manager.confirmed
    assert setup.progress.best == (20, 7.0) and setup.progress.best_confirmed
    assert setup.manager.last is not None and setup.manager.last.mean == 1.0
    assert setup.notes == [
        "new best at opt step 10: 9.00 ± 0.00",
        "best model: opt step 20, 7.00 ± 0.00 over 3 fresh episodes (regular evaluation 8.00)",
    ]
    assert [record.env_steps for record in setup.records] == [20, 40, 60]
    assert setup.series("eval/skipped") == ([(10, 0.0), (20, 0.0), (30, 0.0)] if concurrent else [])


@places
def test_a_run_that_is_stopped_or_out_of_time_keeps_the_highest_regular_score(
    clock: FakeClock, caplog: pytest.LogCaptureFixture, concurrent: bool
) -> None:
    for stopped in (True, False):
        setup = Setup(
            {10: (9.0, 2.0), 20: (8.0, 7.0)}, concurrent, answers=math.inf, max_time=50.0, confirm=True
        )
        setup.submit(10, 20)

        def interrupt(setup: Setup = setup, stopped: bool = stopped) -> None:
            setup.stopping = stopped
            clock.advance(0.0 if stopped else 100.0)
            setup.evaluator.answers = 0

        setup.evaluator.during = interrupt
        setup.manager.evaluate_last(setup.model(20), 40)
        assert (setup.bests, setup.manager.confirmed) == ([(10, 9.0)], False)
        assert setup.manager.last is not None and setup.manager.last.mean == 8.0
    assert caplog.text.count("trainer.max_time ended the comparison of the candidates") == 1


@pytest.mark.parametrize(
    ("score", "spread", "played", "expected"),
    [
        ((9.0, 8.0), 0.0, 2, True),
        ((7.9, 9.0), 0.0, 1, False),
        (math.nan, 0.0, 1, False),
        (8.4, 0.2, 1, False),  # 8.4 ± 4.303·0.2/√3 begins below 8
        (8.6, 0.2, 2, True),
    ],
)
def test_stop_return_must_be_reached_twice(score: Score, spread: float, played: int, expected: bool) -> None:
    setup = Setup({10: score}, stop_return=8.0)
    setup.evaluator.spread = spread
    setup.submit(10)
    assert setup.manager.good_enough is expected
    assert setup.evaluator.evaluated == [(10, "regular"), (10, "fresh")][:played]
    assert resumed(setup, {}, stop_return=8.0).manager.good_enough is expected
    assert not resumed(setup, {}, stop_return=8.7).manager.good_enough


def test_one_model_is_evaluated_one_waits_and_a_newer_replaces_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    setup = Setup({10: 1.0, 20: 2.0, 30: 3.0, 40: 4.0, 50: 5.0}, concurrent=True)
    setup.manager.poll()
    assert setup.evaluator.polls == 1  # an idle evaluator is polled too
    setup.submit(10, 20, 30, 40)
    assert setup.pending == [10, 40]
    assert setup.records == [] and setup.ticks == 0  # the learner continued
    setup.finish()
    assert setup.pending == []
    assert setup.series("eval/skipped") == [(10, 2.0), (40, 2.0)]
    assert setup.progress.evaluations == [(10, 1.0), (40, 4.0)]
    assert caplog.text.count("so some models are not evaluated") == 1


def test_a_model_that_may_end_the_run_is_not_replaced() -> None:
    setup = Setup({10: 1.0, 20: 2.0, 30: 3.0}, concurrent=True, stop_return=1.0)
    setup.submit(10)
    setup.evaluator.answers = 1
    setup.submit(20, 30)
    assert setup.evaluator.evaluated == [(10, "regular"), (10, "fresh")]
    assert setup.pending == [10, 30]
    setup.finish()
    assert [step for step, _ in setup.bests] == [10, 30]


@places
def test_at_the_end_the_last_model_is_evaluated_once_and_all_results_are_awaited(concurrent: bool) -> None:
    setup = Setup({10: 1.0, 20: 2.0, 25: 3.0}, concurrent)
    setup.submit(10, 20)
    setup.done_after_ticks = 3
    setup.manager.evaluate_last(setup.model(25), 50)
    setup.manager.evaluate_last(setup.model(25), 50)
    steps = [step for step, _ in setup.series("eval/return_mean")]
    assert steps == ([10, 25] if concurrent else [10, 20, 25])
    assert setup.ticks == (3 if concurrent else 0)
    asked_to_stop = Setup({10: 1.0}, concurrent=True)
    asked_to_stop.stopping = True
    asked_to_stop.manager.evaluate_last(asked_to_stop.model(10), 20)
    assert asked_to_stop.pending == [10]


@pytest.mark.parametrize("early", [True, False], ids=["result at once", "result late"])
def test_exact_results_take_effect_when_the_next_model_is_submitted(early: bool) -> None:
    setup = Setup({10: 1.0, 20: 2.0, 30: 3.0}, concurrent=True, reproducible=True, stop_return=2.0)
    setup.submit(10)
    setup.evaluator.answers = math.inf if early else 0.0
    setup.done_after_ticks = 4
    for _ in range(5):
        setup.manager.poll()
    assert (setup.records, setup.manager.best, setup.ticks) == ([], None, 0)
    setup.submit(20)
    assert setup.series("eval/return_mean") == [(10, 1.0)]
    assert setup.pending == [20]
    assert setup.ticks == (0 if early else 4)
    assert not setup.manager.good_enough  # although the evaluator already has the result of opt step 20
    setup.manager.evaluate_last(setup.model(20), 40)
    assert setup.manager.good_enough
    assert setup.manager.skipped == 0


@pytest.mark.parametrize("exact", [False, True])
def test_pending_models_are_evaluated_again_after_a_resume(exact: bool) -> None:
    scores: dict[int, Score] = {10: 1.0, 20: 2.0, 30: 1.5}
    options: Any = {"concurrent": True, "reproducible": exact}
    first = Setup(scores, **options)
    first.stopping = True  # so that an exact run does not wait for 10
    first.submit(10, 20)
    state = stored(first.manager).values
    assert state["pending"] == [{"opt_steps": 10, "env_steps": 20}, {"opt_steps": 20, "env_steps": 40}]
    second = resumed(first, scores, **options)
    second.evaluator.answers = math.inf
    second.manager.poll()
    assert second.bests == ([(10, 1.0)] if exact else [(10, 1.0), (20, 2.0)])
    assert [record.env_steps for record in second.records] == ([20] if exact else [20, 40])
    second.submit(30)
    assert second.bests == [(10, 1.0), (20, 2.0)]


def test_a_resumed_run_writes_the_best_of_its_state_or_of_a_later_best() -> None:
    first = Setup({10: 1.0, 20: 2.0}, concurrent=True, answers=1)
    first.submit(10, 20)
    later = Candidate(ModelInfo(20, {"weight": np.full(2, 20.0, np.float32)}), Evaluation(20, (2.0,), (1,)))
    for in_best, expected in ((None, [(10, 1.0)]), (later, [(20, 2.0)])):
        second = Setup({20: 2.0})
        second.manager.load_state(stored(first.manager), ARRAYS, in_best)
        second.manager.save_best()
        assert second.bests == expected
    second.manager.poll()  # it was pending, is evaluated again, and counts once
    assert [candidate.model.version for candidate in second.manager.candidates] == [20, 10]


@places
@pytest.mark.parametrize(("takes", "counts"), [(9.0, True), (11.0, False)])
def test_the_last_model_has_more_time(clock: FakeClock, takes: float, counts: bool, concurrent: bool) -> None:
    setup = Setup({10: 1.0}, max_time=50.0, concurrent=concurrent)
    clock.advance(50.0)
    setup.evaluator.during = lambda: clock.advance(takes)
    setup.done_after_ticks = 1
    setup.manager.evaluate_last(setup.model(10), 20)
    assert (setup.manager.last is not None) == counts
    assert setup.pending == []
    if not concurrent:
        assert setup.telemetry.excluded_s == takes  # it is no time of the training


def test_waiting_for_the_last_evaluation_is_no_time_of_the_training(clock: FakeClock) -> None:
    setup = Setup({10: 1.0}, max_time=50.0, concurrent=True)
    clock.advance(50.0)
    setup.manager._tick = lambda: clock.advance(4.0)
    setup.manager.evaluate_last(setup.model(10), 20)
    assert (setup.manager.last, setup.telemetry.excluded_s) == (None, 12.0)
