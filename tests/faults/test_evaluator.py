"""What happens when the process of an evaluator dies, hangs, raises or is told to stop.

It is started again and judges the same model, until it has failed too often in a row; and nothing of it is left.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from border_cli.core.errors import ActorLostError
from border_cli.core.protocols import Evaluation
from border_cli.evaluation import process_evaluator
from border_cli.evaluation.process_evaluator import ProcessEvaluator
from border_cli.runtime import forkserver
from tests.evaluators import CLOSED, await_result, beside, expected, model, put_marks, spec_of
from tests.fakes import LIGHT_PRELOAD
from tests.faults.audited import nothing_left
from tests.faults.commands import border_train, verified_checkpoints, what_is_kept
from tests.faults.processes import wait_gone, wait_until
from tests.faults.test_runs import EVALUATED, INTERVAL, MARKS, trap

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

SEEDS = [10 * i + 3 for i in range(9)]
SILENT_S = 1.0
"""Long enough for an env step on a busy machine; where it was not, one more restart does no harm."""


@pytest.fixture(autouse=True)
def audit() -> Iterator[None]:
    forkserver.start_early(LIGHT_PRELOAD)
    with nothing_left():
        yield


def judge(evaluator: ProcessEvaluator, weight: int = 1, version: int = 10) -> Evaluation:
    evaluator.begin(model(weight, version), SEEDS)
    return await_result(evaluator)


def lost(evaluator: ProcessEvaluator) -> ActorLostError:
    with pytest.raises(ActorLostError) as error:
        judge(evaluator)
    return error.value


@pytest.mark.parametrize(
    ("fault", "news"),
    [
        ("die", "the evaluator was killed by SIGKILL (it was judging opt step 10)"),
        ("stop", "the evaluator gave no sign of life for 1 s (it was judging opt step 10)"),
        ("hang", "the evaluator gave no sign of life for 1 s (it was judging opt step 10)"),
        ("raise", "the evaluator failed: RuntimeError: the evaluation's environment has a fault"),
        ("lose", "the evaluation failed while stepping"),
        ("exit", "the evaluator failed: SystemExit: 7"),
    ],
)
def test_the_model_is_judged_again_by_the_next_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str, news: str
) -> None:
    put_marks(tmp_path, 1)
    with beside(spec_of("make_faulty_env", 2, tmp_path, fault), SILENT_S, restarts=5) as evaluator:
        assert judge(evaluator) == expected(1, 10, SEEDS)
        assert judge(evaluator, 2, 20) == expected(2, 20, SEEDS)
    assert f"{news}; it is started again in 1 s (1 of 5)" in caplog.messages


def test_after_its_restarts_it_is_lost_with_its_own_traceback(tmp_path: Path) -> None:
    put_marks(tmp_path, 2)
    with beside(spec_of("make_faulty_env", 2, tmp_path, "raise"), restarts=1) as evaluator:
        error = lost(evaluator)
    assert str(error) == "the evaluator failed: RuntimeError: the evaluation's environment has a fault"
    assert error.details.startswith("Traceback") and "tests/evaluators.py" in error.details
    assert error.code == 5


def test_an_evaluation_gives_all_restarts_back(tmp_path: Path) -> None:
    with beside(spec_of("make_faulty_env", 1, tmp_path, "die"), restarts=1) as evaluator:
        for version in (10, 20, 30):
            put_marks(tmp_path, 1)
            assert judge(evaluator, 1, version) == expected(1, version, SEEDS)


def test_killed_while_it_has_nothing_to_do_it_is_there_for_the_next_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with beside(spec_of("make_faulty_env", 1, tmp_path, "none"), restarts=1) as evaluator:
        judge(evaluator)
        victim = evaluator.pid
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        wait_gone(victim)
        wait_until(lambda: evaluator.poll() is None and bool(caplog.messages), "the news of its death")
        assert "was killed by SIGKILL (it was waiting for a model)" in caplog.text
        assert judge(evaluator, 4, 20) == expected(4, 20, SEEDS)


@pytest.mark.parametrize("fault", ["raise", "hang", "die"])
def test_a_fault_while_the_environments_are_made_is_told_before_there_is_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(process_evaluator, "_START_TIMEOUT_S", SILENT_S)
    put_marks(tmp_path, 1)
    with (
        beside(spec_of("make_env_that_strikes", tmp_path, fault), SILENT_S) as evaluator,
        pytest.raises(ActorLostError) as error,
    ):
        wait_until(lambda: evaluator.poll() is not None, "the loss")
    assert ("making its environments" in str(error.value)) == (fault != "raise")


def test_d3_signals_of_a_group_are_left_to_the_learner(tmp_path: Path) -> None:
    with beside(spec_of("make_faulty_env", 1, tmp_path, "none")) as evaluator:
        judge(evaluator)
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(evaluator.pid or 0, number)
        assert judge(evaluator, 2, 20) == expected(2, 20, SEEDS)


def test_asked_to_leave_it_closes_its_environments(tmp_path: Path) -> None:
    with beside(spec_of("make_faulty_env", 1, tmp_path, "none")) as evaluator:
        judge(evaluator)
        assert not (tmp_path / CLOSED).exists()
    assert (tmp_path / CLOSED).exists()


def test_a8_what_its_environments_have_started_goes_with_it(caplog: pytest.LogCaptureFixture) -> None:
    with beside(spec_of("make_env_with_helper")) as evaluator:
        wait_until(lambda: evaluator.poll() is None and "helper" in caplog.text, "the helper")
        (helper,) = (int(found) for found in re.findall(r"helper (\d+)", caplog.text))
        os.kill(helper, 0)
    wait_gone(helper)


@pytest.mark.parametrize("fault", ["hang", "stop"])
def test_one_that_hangs_is_killed_when_it_shall_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(process_evaluator, "_LEAVE_S", 0.2)
    put_marks(tmp_path, 1)
    with beside(spec_of("make_faulty_env", 1, tmp_path, fault)) as evaluator:
        evaluator.begin(model(1), SEEDS)
        wait_until(lambda: evaluator.poll() is None and not list(tmp_path.glob("mark-*")), "the hang")
        pid = evaluator.pid
    assert pid is not None
    wait_gone(pid)


def test_the_learner_never_waits_for_one_that_does_not_read(tmp_path: Path) -> None:
    """A model larger than any pipe's buffer, given to a process that is stopped."""
    big = model(1)
    big.arrays["weight"] = big.arrays["weight"].repeat(1 << 20)
    with beside(spec_of("make_faulty_env", 1, tmp_path, "none"), first=big) as evaluator:
        wait_until(lambda: evaluator.poll() is None and evaluator.pid is not None, "its start")
        os.kill(evaluator.pid or 0, signal.SIGSTOP)
        evaluator.begin(big, SEEDS)
        assert evaluator.poll() is None
        os.kill(evaluator.pid or 0, signal.SIGCONT)


# -- whole runs ---------------------------------------------------------

PROCESS = ("evaluator=process", EVALUATED, "n_actors=1")
PATIENT = "evaluator.heartbeat_timeout_s=1000"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a12_a_run_goes_on_while_its_evaluator_hangs_and_stops_when_told_to(
    tmp_path: Path, number: signal.Signals
) -> None:
    """The learner gets to its tenth evaluation; none has a result, and one of them alone waits its turn."""
    words = [*PROCESS, PATIENT, *trap("evaluator", "step", "hang"), f"trainer.save_interval={INTERVAL}"]
    with border_train(tmp_path, *words) as command:
        command.wait_for_trap()
        wait_until(lambda: command.run.saves[-1:] >= [10 * INTERVAL], "ten intervals of opt steps")
        command.send(number, "group")
        assert command.end() == {signal.SIGINT: 130, signal.SIGTERM: 143}[number]
        assert command.errors == ""
        assert command.run.summary["status"] == "stopped"
        assert command.run.summary["counters"]["opt_steps"] >= 10 * INTERVAL
        assert command.run.steps("eval/return_mean") == []
        assert verified_checkpoints(command.run)


@pytest.mark.parametrize("trainer", ["async", "sync"])
def test_a_killed_evaluator_is_replaced_and_the_run_ends_as_it_should(tmp_path: Path, trainer: str) -> None:
    words = [
        *PROCESS,
        f"trainer={trainer}",
        *trap("evaluator", "step", "hang"),
        f"trainer.max_opts={3 * INTERVAL}",
    ]
    with border_train(tmp_path, *words, PATIENT, "trainer.record_interval=1") as command:
        os.kill(command.wait_for_trap(), signal.SIGKILL)
        assert command.end() == 0
        evaluated = command.run.steps("eval/return_mean")
        assert evaluated[0] == INTERVAL and evaluated[-1] == 3 * INTERVAL
        assert "the evaluator was killed by SIGKILL" in (command.run.path / "train.log").read_text()
        assert command.run.summary["last_score"]["opt_steps"] == 3 * INTERVAL


def test_an_evaluator_that_raises_too_often_ends_the_run(tmp_path: Path) -> None:
    words = [*PROCESS, *trap("evaluator", "step", "raise"), "evaluator.restarts=0"]
    with border_train(tmp_path, *words) as command:
        assert command.end() == 5
        error = "the evaluation failed while stepping, after 0 env steps: RuntimeError: the trap was sprung"
        assert command.run.summary["error"] == error
        told, kept = command.errors.splitlines()[-2:]
        assert told == f"error: {error}"
        assert kept == what_is_kept(command.run, tmp_path)
        for text in (command.errors, (command.run.path / "train.log").read_text()):
            assert text.count("Traceback (most recent call last)") == 1
            assert f'File "{MARKS}"' in text
        assert verified_checkpoints(command.run)


def test_d6_nothing_of_an_evaluator_outlives_a_killed_run(tmp_path: Path) -> None:
    with border_train(tmp_path, *PROCESS, PATIENT, *trap("evaluator", "step", "hang")) as command:
        command.wait_for_trap()
        command.send(signal.SIGKILL)
        assert command.end() == 137
