"""Whole runs of the real command, stopped, killed and failing in each of their phases.

However a run ends, its exit code is the one that was promised, what it has left on disk verifies, and five seconds
later no process of its session lives. The phase is known from a trap (`tests.faults.trap`) that tells when it is
reached, and lasts until the test goes on.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGSTOP, SIGTERM, SIGUSR1

import pytest

from tests.faults.amounts import times
from tests.faults.asked import ASKED_AT
from tests.faults.commands import (
    TOLERANCE,
    WARMUP,
    Command,
    border_train,
    resuming,
    two_border_trains,
    verified_checkpoints,
    what_is_kept,
)
from tests.faults.processes import ROOT
from tests.real_runs import Run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

SIGNALS = {SIGINT: 130, SIGTERM: 143}
OTHERS = {SIGINT: "group", SIGTERM: "all"}
"""Whom else than the main process it reaches: a terminal interrupts a group, a scheduler terminates all there is."""
WITHIN_S = {SIGINT: 10.0, SIGTERM: 20.0}
AT_ONCE_S = 5.0
"""How long a run may take to end after a signal, and after a second SIGINT."""
swapped = pytest.mark.parametrize("swapped", [False, True][: times(1, 2)])
INTERVAL = 20
"""Opt steps between evaluations, and between checkpoints, where there are any."""
LAST = 90
"""The budget in opt steps of runs that are to end by themselves: no multiple of INTERVAL."""
LEARNT = 100
"""An actor that takes its env step of this number proves that there were opt steps: the ratio allows no other way."""
assert LEARNT > WARMUP + TOLERANCE + 1
EVALUATED = f"trainer.eval_interval={INTERVAL}"
ENDLESS = ("env.kwargs.lengths=[1000000000]", "evaluator.max_episode_steps=1000000000")
ENDLESS_WARMUP = ("trainer.warmup_period=900000", "buffer.capacity=1000000")
NO_RESTART = ("actor_manager.restarts=0", "actor_manager.min_actors=2")
"""Both actors are needed, and the first loss of one is for good."""
STOP_ON_ERROR = "actor_manager.on_env_error=stop"
SYNC = ("trainer=sync", "n_actors=1")
SWEEP = ("-m",)
MARKS = ROOT / "tests" / "faults" / "marks.py"


def trap(place: str, at: str, then: str = "pass", step: int = 1) -> tuple[str, ...]:
    words = {"place": place, "at": at, "then": then, "step": step}
    return tuple(f"env.kwargs.{key}={value}" for key, value in words.items())


@dataclass(frozen=True)
class Phase:
    """How to bring a run into a phase, and how many opt steps it has done then: None if that is open, but some.

    held_save: the checkpoint that is held up · loses_actor: whoever is in the trap is killed.
    """

    words: tuple[str, ...]
    opt_steps: int | None
    held_save: int = 0
    loses_actor: bool = False


PHASES = {
    "start-up": Phase((*trap("actor", "make", "hang"), "actor_manager.stop_timeout_s=0.2"), 0),
    "warm-up": Phase((*trap("actor", "step", step=50), *ENDLESS_WARMUP), 0),
    "training": Phase(trap("actor", "step", step=LEARNT), None),
    "evaluation": Phase((*trap("MainProcess", "step", step=50), *ENDLESS, EVALUATED), INTERVAL),
    "saving": Phase(
        (
            *trap("nowhere", "make"),
            "plugins=[tests.faults.held_save]",
            f"trainer.save_interval={INTERVAL}",
        ),
        2 * INTERVAL,
        held_save=2,
    ),
}
LAST_PHASES = {
    "back-off": Phase(
        (*trap("actor", "step", "hang", LEARNT), "n_actors=1", "actor_manager.restart_delay_s=30"),
        None,
        loses_actor=True,
    ),
    "shutdown": Phase(
        (
            *trap("actor-1", "close", "wait"),
            f"trainer.max_opts={INTERVAL}",
            "trainer.eval_interval=1000",
            "actor_manager.stop_timeout_s=1000",
        ),
        INTERVAL,
    ),
}
"""The only actor is lost and not yet back; all is done, and the actors are asked to leave, but one takes its time."""


def assert_stopped(run: Run, number: signal.Signals, lost: int = 0) -> int:
    """Summary and the last checkpoint agree on how and where it stopped: the opt steps.

    lost: actors that are gone for another reason. The signal costs none, and none was started again.
    """
    summary = run.summary
    assert (run.path / "train.log").read_text().count(": restart ") == lost
    assert {actor["restarts"] for actor in summary["actors"]} == {0}
    assert not (run.path / "crash.json").exists()
    said = (summary["status"], summary["ended_by"], summary["exit_code"], summary["error"])
    assert said == ("stopped", number.name.lower(), SIGNALS[number], None)
    return assert_last_state_is_kept(run)


def assert_failed(run: Run, error: str) -> int:
    """Summary and log say what went wrong; the opt steps that were done."""
    summary = run.summary
    assert (summary["status"], summary["ended_by"], summary["exit_code"]) == ("failed", "error", 5)
    assert re.fullmatch(error, summary["error"])
    assert summary["error"] in (run.path / "train.log").read_text()
    return assert_last_state_is_kept(run)


def assert_last_state_is_kept(run: Run) -> int:
    """The newest checkpoint is that of the last opt step, if there was one, and nothing half-written lies beside it."""
    opt_steps: int = run.summary["counters"].get("opt_steps", 0)
    checkpoints = verified_checkpoints(run)
    assert [checkpoint.opt_steps for checkpoint in checkpoints[:1]] == ([opt_steps] if opt_steps else [])
    assert run.checkpoints == sorted(checkpoint.path.name for checkpoint in checkpoints)
    return opt_steps


def one_signal_each(commands: dict[str, Command]) -> list[tuple[Command, signal.Signals]]:
    """Interrupt the one, terminate the other; who got what."""
    numbers = numbers_of(commands)
    for to, command in commands.items():
        command.send(numbers[to], to)
    return [(command, numbers[to]) for to, command in commands.items()]


def others_of(swapped: bool) -> str:
    """Whom the second of two runs has its signal sent to."""
    return OTHERS[SIGINT if swapped else SIGTERM]


def numbers_of(commands: dict[str, Command]) -> dict[str, signal.Signals]:
    """The signal of each: what comes to others than the main process as well decides."""
    main, others = (SIGINT, SIGTERM) if OTHERS[SIGTERM] in commands else (SIGTERM, SIGINT)
    return {"main": main, OTHERS[others]: others}


# -- told to stop -------------------------------------------------------


def assert_stops(commands: dict[str, Command], at: Phase, numbers: dict[str, signal.Signals]) -> None:
    """Each of these runs, which are in this phase, gets its signal and ends by it."""
    for to, command in commands.items():
        if at.loses_actor:
            command.wait_for_back_off(command.wait_for_trap())
        command.send(numbers[to], to)
        command.wait_for_handling()
        command.let_go()
    for to, command in commands.items():
        assert command.end(WITHIN_S[numbers[to]]) == SIGNALS[numbers[to]]
        assert command.errors == ""
        opt_steps = assert_stopped(command.run, numbers[to], lost=int(at.loses_actor))
        assert opt_steps == at.opt_steps if at.opt_steps is not None else opt_steps > 0


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
@pytest.mark.parametrize("phase", PHASES)
def test_d1_d3_a_signal_stops_a_run_in_any_phase(tmp_path: Path, phase: str, number: signal.Signals) -> None:
    """Sent to one run's main process, and to others as well in another."""
    at, others = PHASES[phase], OTHERS[number]
    with two_border_trains(tmp_path, *at.words, others=others, held_save=at.held_save) as commands:
        assert_stops(commands, at, {"main": number, others: number})


@swapped
@pytest.mark.parametrize("phase", LAST_PHASES)
def test_d1_d3_a_signal_stops_a_run_that_waits_for_an_actor(
    tmp_path: Path, phase: str, swapped: bool
) -> None:
    at = LAST_PHASES[phase]
    with two_border_trains(tmp_path, *at.words, others=others_of(swapped)) as commands:
        assert_stops(commands, at, numbers_of(commands))
        for command in commands.values():
            assert {actor["incarnation"] for actor in command.run.summary["actors"]} == {0}  # not awaited


def test_d3_a_frozen_actor_does_not_keep_a_run_from_its_end(tmp_path: Path) -> None:
    words = [*trap("actor-1", "step", step=LEARNT), "actor_manager.stop_timeout_s=0.5"]
    with border_train(tmp_path, *words) as command:
        os.kill(command.wait_for_trap(), SIGSTOP)
        command.send(SIGTERM, "all")
        assert command.end(WITHIN_S[SIGTERM]) == 143
        assert assert_stopped(command.run, SIGTERM) > 0
        assert "actor 1 did not leave" in (command.run.path / "train.log").read_text()
        assert [actor["state"] for actor in command.run.summary["actors"]] == ["done", "killed"]


BEFORE = {
    "composing": ("plugins=[tests.faults.held_import]",),
    "trying the environment": trap("probe_env", "make", "hang"),
}


@swapped
@pytest.mark.parametrize("moment", BEFORE)
def test_d1_d3_a_signal_ends_a_command_that_has_no_run_yet(
    tmp_path: Path, moment: str, swapped: bool
) -> None:
    with two_border_trains(tmp_path, *BEFORE[moment], others=others_of(swapped)) as commands:
        for command, number in one_signal_each(commands):
            assert command.end(WITHIN_S[number]) == SIGNALS[number]
            assert command.errors == ""
            assert not command.made_a_run


def test_d1_d3_a_signal_stops_a_synchronous_run(tmp_path: Path) -> None:
    words = (*SYNC, *trap("MainProcess", "step", step=LEARNT))
    with two_border_trains(tmp_path, *words, others=OTHERS[SIGTERM]) as commands:
        for command, number in one_signal_each(commands):
            assert command.end(WITHIN_S[number]) == SIGNALS[number]
            assert command.errors == ""
            assert assert_stopped(command.run, number) > 0


SLOW_TO_STOP = {
    "start-up": Phase((*trap("actor", "make", "hang"), "actor_manager.stop_timeout_s=1000"), 0),
    "evaluation": Phase(
        (*trap("MainProcess", "step", "hang"), EVALUATED, f"trainer.save_interval={INTERVAL // 2}"), INTERVAL
    ),
    "saving": PHASES["saving"],
}


@pytest.mark.parametrize(
    ("phase", "to", "kept"),
    [("start-up", "main", []), ("evaluation", "group", [INTERVAL // 2]), ("saving", "main", [INTERVAL])],
)
def test_d2_a_second_sigint_ends_a_run_at_once(tmp_path: Path, phase: str, to: str, kept: list[int]) -> None:
    """Where the first would have to wait for something that takes longer than the test may."""
    at = SLOW_TO_STOP[phase]
    with border_train(tmp_path, *at.words, held_save=at.held_save) as command:
        command.wait_for_trap()
        command.send(SIGINT, to)
        command.wait_for_handling()
        command.send(SIGINT, to)
        assert command.end(AT_ONCE_S) == 130
        assert command.run.summary["status"] == "running"
        assert [checkpoint.opt_steps for checkpoint in verified_checkpoints(command.run)] == kept


# -- told to save -------------------------------------------------------


def test_d4_sigusr1_saves_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent to all processes while a checkpoint is half written, and four times to the learner between opt steps.

    What was asked for during a save is what was being saved; each of the others gets a checkpoint of its own.
    """
    asked_at = [33, 47, 58, 71]
    monkeypatch.setenv(ASKED_AT, ",".join(map(str, asked_at)))
    words = (
        *trap("nowhere", "make"),
        "plugins=[tests.faults.held_save,tests.faults.asked_to_save]",
        *(f"trainer.save_interval={INTERVAL}", f"trainer.max_opts={LAST}", "checkpoint.keep=99"),
    )
    with border_train(tmp_path, *words, held_save=1) as command:
        command.wait_for_trap()
        assert command.undefended(SIGUSR1) == []
        command.send(SIGUSR1, "all")
        command.let_go()
        assert command.end() == 0
        assert command.errors == ""
    run = command.run
    assert [step for step in run.saves if step % INTERVAL and step != LAST] == asked_at
    assert [checkpoint.opt_steps for checkpoint in reversed(verified_checkpoints(run))] == run.saves
    assert (run.summary["status"], run.counts[0]) == ("done", LAST)
    assert [(actor["state"], actor["restarts"]) for actor in run.summary["actors"]] == [("done", 0)] * 2


# -- started twice ------------------------------------------------------


def test_c8_a_second_process_is_refused_as_long_as_the_first_one_lives(tmp_path: Path) -> None:
    """And the lock that a killed one has left holds nobody up."""
    at = PHASES["saving"]
    with border_train(tmp_path, *at.words, held_save=at.held_save) as first:
        first.wait_for_trap()
        before = all_but_the_lock(first.run)
        with resuming(first) as second:
            assert second.end() == 2
            assert f"is being trained by another process (pid {first.pid})" in second.errors
        assert all_but_the_lock(first.run) == before
        first.send(SIGKILL)
        assert first.end() == 137
    with resuming(first, f"trainer.max_opts={LAST}") as third:
        assert third.end() == 0
        assert third.errors == ""
    run = first.run
    assert f"resumed  step-{INTERVAL:09d}: " in (run.path / "train.log").read_text()
    assert (run.summary["status"], assert_last_state_is_kept(run)) == ("done", LAST)


def all_but_the_lock(run: Run) -> dict[str, bytes]:
    return {name: content for name, content in run.files(".").items() if name != ".lock"}


# -- killed -------------------------------------------------------------


@pytest.mark.parametrize("phase", PHASES)
def test_d6_nothing_outlives_a_killed_run(tmp_path: Path, phase: str) -> None:
    """Neither of a run whose main process alone is killed nor of its group; and the checkpoints that count verify."""
    at = PHASES[phase]
    words = () if at.held_save else (f"trainer.save_interval={INTERVAL // 2}",)
    with two_border_trains(tmp_path, *at.words, *words, held_save=at.held_save) as commands:
        for to, command in commands.items():
            command.send(SIGKILL, to)
        for command in commands.values():
            assert command.end() == 137
            assert command.run.summary["status"] == "running"
            kept = verified_checkpoints(command.run)
            assert bool(kept) == (at.opt_steps != 0)
            if phase == "saving":
                assert [checkpoint.opt_steps for checkpoint in kept] == [INTERVAL]
                assert (
                    len(command.run.checkpoints) == 2
                )  # what was half written is there, under no name that counts


def test_d6_a_killed_synchronous_run_leaves_what_verifies(tmp_path: Path) -> None:
    words = [*SYNC, *trap("MainProcess", "step", step=LEARNT), f"trainer.save_interval={INTERVAL}"]
    with border_train(tmp_path, *words) as command:
        command.wait_for_trap()
        command.send(SIGKILL)
        assert command.end() == 137
        assert verified_checkpoints(command.run)


@pytest.mark.parametrize("phase", ["warm-up", "training"])
def test_a4_a_killed_actor_ends_the_run(tmp_path: Path, phase: str) -> None:
    with border_train(tmp_path, *PHASES[phase].words, *NO_RESTART) as command:
        os.kill(command.wait_for_trap(), SIGKILL)
        assert command.end() == 5
        opt_steps = assert_failed(command.run, r"actor [01] was killed by SIGKILL \(it was .*\)")
        told = [f"error: {command.run.summary['error']}"]
        told += [what_is_kept(command.run, tmp_path)] if phase == "training" else []
        assert command.errors.splitlines() == told
    assert bool(opt_steps) == (phase == "training")


# -- environments that raise --------------------------------------------


@pytest.mark.parametrize("moment", ["make", "reset"])
def test_an_environment_that_raises_when_it_is_tried_makes_no_run(tmp_path: Path, moment: str) -> None:
    with border_train(tmp_path, *trap("probe_env", moment, "raise")) as command:
        assert command.end() == 2
        assert not command.made_a_run
        first, *others = command.errors.splitlines()
        assert first.endswith("it was made or reset: RuntimeError: the trap was sprung")
        assert len(others) <= 2


@pytest.mark.parametrize(
    ("words", "error", "learnt"),
    [
        (trap("actor-1", "make", "raise"), "actor 1 failed while making the environment", False),
        (trap("actor-1", "reset", "raise"), "actor 1 failed while resetting", False),
        (
            (*trap("actor-1", "step", "raise", 1), *ENDLESS_WARMUP),
            "actor 1 failed while stepping, after 0 env steps",
            False,
        ),
        (trap("actor-1", "step", "raise", 500), "actor 1 failed while stepping, after 499 env steps", True),
        (
            (*trap("MainProcess", "reset", "raise"), EVALUATED),
            "the evaluation failed while resetting",
            True,
        ),
        (
            (*trap("MainProcess", "make", "raise"), EVALUATED),
            "the evaluation failed while making the environment",
            False,
        ),
        (
            (*SYNC, *trap("MainProcess", "step", "raise", 500)),
            "actor 0 failed while stepping, after 499 env steps",
            True,
        ),
    ],
    ids=["make", "reset", "step 1", "step 500", "evaluation", "evaluation's make", "sync"],
)
def test_a6_an_environment_that_raises_ends_the_run(
    tmp_path: Path, words: tuple[str, ...], error: str, learnt: bool
) -> None:
    with border_train(tmp_path, *words, STOP_ON_ERROR) as command:
        assert command.end() == 5
        opt_steps = assert_failed(command.run, f"{error}: RuntimeError: the trap was sprung")
        log = (command.run.path / "train.log").read_text()
        for text in (command.errors, log):
            assert text.count("Traceback (most recent call last)") == 1
            assert f'File "{MARKS}"' in text
        told = [f"error: {command.run.summary['error']}"]
        told += [what_is_kept(command.run, tmp_path)] if learnt else []
        assert command.errors.splitlines()[-len(told) :] == told
        assert str(MARKS) in (command.run.path / "crash.json").read_text()
    assert bool(opt_steps) == learnt


# -- sweeps -------------------------------------------------------------


def jobs_of(command: Command) -> list[Run]:
    """The jobs that were begun, in order."""
    return [Run(path.parent) for path in sorted(command.folder.glob("runs/sweeps/*/*/*/summary.json"))]


def test_d1_d3_a_signal_ends_the_whole_sweep(tmp_path: Path) -> None:
    words = [*trap("actor", "step", step=LEARNT), "seed=1,2"]
    with two_border_trains(tmp_path, *words, others=OTHERS[SIGTERM], flags=SWEEP) as commands:
        for command, number in one_signal_each(commands):
            assert command.end(WITHIN_S[number]) == SIGNALS[number]
            assert command.errors == ""
            (stopped,) = jobs_of(command)
            assert assert_stopped(stopped, number) > 0


def test_a_job_that_loses_an_actor_does_not_stop_the_next_one(tmp_path: Path) -> None:
    """The trap is sprung once: the second job never meets it."""
    words = [*trap("actor-1", "make", "hang"), "trainer.max_opts=30", "seed=1,2", *NO_RESTART]
    with border_train(tmp_path, *words, flags=SWEEP) as command:
        os.kill(command.wait_for_trap(), SIGKILL)
        assert command.end() == 5
        lost, well = jobs_of(command)
        assert assert_failed(lost, r"actor 1 was killed by SIGKILL \(it was making environment\)") == 0
        assert (well.summary["status"], well.summary["exit_code"]) == ("done", 0)
        assert assert_last_state_is_kept(well) == 30
        (line,) = command.errors.splitlines()
        assert line.startswith("job 0 (")
        assert line.endswith(f"error: {lost.summary['error']}")
