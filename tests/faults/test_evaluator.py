"""An evaluator process dies, hangs or raises. It is restarted within its budget and evaluates the same model again."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from signal import SIGINT, SIGTERM

import pytest

from border_cli.core.errors import ActorLostError
from border_cli.core.types import Evaluation
from border_cli.training import evaluators as evaluator_process
from border_cli.training.evaluators import ProcessEvaluator
from tests.evaluators import (
    CLOSED,
    await_result,
    beside,
    expected,
    make_env_that_strikes,
    make_env_with_helper,
    make_faulty_env,
    model,
    put_marks,
    spec_of,
)
from tests.faults.commands import run_here, saved_steps
from tests.faults.processes import wait_gone, wait_until
from tests.faults.test_runs import EVALUATED, EVALUATOR_HANGS, INTERVAL, trap
from tests.interrupted import signal_at

pytestmark = pytest.mark.usefixtures("light_forkserver")

SEEDS = [10 * i + 3 for i in range(9)]
SILENT_S = 1.0
"""Long enough for an env step on a busy machine; where it was not, one more restart does no harm."""


def evaluate(evaluator: ProcessEvaluator, weight: int = 1, version: int = 10) -> Evaluation:
    evaluator.begin(model(weight, version), SEEDS)
    return await_result(evaluator)


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("die", "evaluator was killed by SIGKILL (it was evaluating opt step 10)"),
        ("hang", "evaluator gave no sign of life for 1 s (it was evaluating opt step 10)"),
        ("raise", "evaluator failed: RuntimeError: the evaluation's environment has a fault"),
        ("lose", "the evaluation failed while stepping"),
    ],
)
def test_the_next_process_evaluates_the_model_again_and_restarts_are_refilled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str, cause: str
) -> None:
    silent_s = SILENT_S if fault == "hang" else 60.0
    with beside(spec_of(make_faulty_env, 2, tmp_path, fault), silent_s, restarts=5) as evaluator:
        for version in (10, 20) if fault == "die" else (10,):
            put_marks(tmp_path, 1)
            assert evaluate(evaluator, 1, version) == expected(1, version, SEEDS)
        assert evaluate(evaluator, 2, 30) == expected(2, 30, SEEDS)
    assert f"{cause}; it is started again in 1 s (1 of 5)" in caplog.messages
    assert "(2 of 5)" not in caplog.text or fault == "hang"


def test_d8_without_restarts_left_the_error_has_the_traceback_and_the_cause(tmp_path: Path) -> None:
    put_marks(tmp_path, 2)
    with (
        beside(spec_of(make_faulty_env, 2, tmp_path, "raise"), restarts=1) as evaluator,
        pytest.raises(ActorLostError) as lost,
    ):
        evaluate(evaluator)
    assert str(lost.value) == "evaluator failed: RuntimeError: the evaluation's environment has a fault"
    assert lost.value.details.startswith("KeyError: 'what came first'")
    assert "tests/evaluators.py" in lost.value.details
    assert lost.value.code == 5


def test_a_process_killed_while_idle_is_restarted_for_the_next_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with beside(spec_of(make_faulty_env, 1, tmp_path, "none"), restarts=1) as evaluator:
        evaluate(evaluator)
        victim = evaluator.pid
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        wait_gone(victim)
        wait_until(lambda: evaluator.poll() is None and bool(caplog.messages), "its death to be noticed")
        assert "was killed by SIGKILL (it was waiting for a model)" in caplog.text
        assert evaluate(evaluator, 4, 20) == expected(4, 20, SEEDS)


@pytest.mark.parametrize("fault", ["raise", "hang"])
def test_a_fault_while_environments_are_made_is_reported_before_the_first_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    silent_s = SILENT_S if fault == "hang" else 60.0
    monkeypatch.setattr(evaluator_process, "_START_TIMEOUT_S", silent_s)
    put_marks(tmp_path, 1)
    with (
        beside(spec_of(make_env_that_strikes, tmp_path, fault), silent_s) as evaluator,
        pytest.raises(ActorLostError) as error,
    ):
        wait_until(lambda: evaluator.poll() is not None, "the loss")
    assert ("making its environments" in str(error.value)) == (fault != "raise")


def test_d3_it_ignores_signals_and_closes_its_environments_at_its_stop(tmp_path: Path) -> None:
    with beside(spec_of(make_faulty_env, 1, tmp_path, "none")) as evaluator:
        evaluate(evaluator)
        for number in (SIGINT, SIGTERM):
            os.kill(evaluator.pid or 0, number)
        assert evaluate(evaluator, 2, 20) == expected(2, 20, SEEDS)
        assert not (tmp_path / CLOSED).exists()
    assert (tmp_path / CLOSED).exists()


def test_a8_programs_started_by_its_environments_end_with_it(caplog: pytest.LogCaptureFixture) -> None:
    with beside(spec_of(make_env_with_helper)) as evaluator:
        wait_until(lambda: evaluator.poll() is None and "helper" in caplog.text, "the helper")
        (helper,) = (int(number) for number in re.findall(r"helper (\d+)", caplog.text))
        os.kill(helper, 0)
    wait_gone(helper)


def test_a_stopped_evaluator_is_killed_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator_process, "_STOP_TIMEOUT_S", 0.2)
    put_marks(tmp_path, 1)
    with beside(spec_of(make_faulty_env, 1, tmp_path, "stop")) as evaluator:
        evaluator.begin(model(1), SEEDS)
        wait_until(lambda: evaluator.poll() is None and not list(tmp_path.glob("mark-*")), "the stop")
        pid = evaluator.pid
    assert pid is not None
    wait_gone(pid)


def test_the_learner_never_waits_for_an_evaluator_that_does_not_read(tmp_path: Path) -> None:
    """The process is stopped, and the model is larger than the buffer of a pipe."""
    big = model(1)
    big.arrays["weight"] = big.arrays["weight"].repeat(1 << 20)
    with beside(spec_of(make_faulty_env, 1, tmp_path, "none"), first=big) as evaluator:
        wait_until(lambda: evaluator.poll() is None and evaluator.pid is not None, "its start")
        os.kill(evaluator.pid or 0, signal.SIGSTOP)
        evaluator.begin(big, SEEDS)
        assert evaluator.poll() is None
        os.kill(evaluator.pid or 0, signal.SIGCONT)


# -- complete runs (see also `test_runs`) ------------------------------------


def test_a12_a_run_continues_while_its_evaluator_hangs_and_stops_when_asked_to(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The learner reaches its tenth evaluation without a result, and only one model waits."""
    with signal_at(10 * INTERVAL, SIGTERM):
        run = run_here(143, *EVALUATOR_HANGS, "n_actors=1")
    assert capsys.readouterr().err == ""
    assert run.summary["status"] == "stopped"
    assert run.counts[0] == 10 * INTERVAL
    assert run.steps("eval/return_mean") == []
    assert saved_steps(run) == [10 * INTERVAL]


def test_a_killed_evaluator_is_replaced_and_the_run_completes(workplace: Path) -> None:
    evaluations = (EVALUATED, "evaluator=process", f"trainer.max_opts={3 * INTERVAL}")
    run = run_here(0, "trainer=sync", *trap("evaluator", "step", "kill"), *evaluations)
    evaluated = run.steps("eval/return_mean")
    assert evaluated[0] == INTERVAL and evaluated[-1] == 3 * INTERVAL
    assert "evaluator was killed by SIGKILL" in (run.path / "train.log").read_text()
    assert run.summary["last_score"]["opt_steps"] == 3 * INTERVAL
