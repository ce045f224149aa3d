"""Complete runs that are stopped, killed or fail in each of their phases.

After each end the exit code must be the documented one, the files must verify, and after five seconds no process of the
session may live. A trap (`tests.faults.trap`) signals when a phase is reached and holds it until the test releases it.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM, SIGUSR1

import pytest

from border_cli.cli.train import main
from tests.faults import trap as trap_module
from tests.faults.amounts import sampled
from tests.faults.commands import TOLERANCE, WARMUP, border_train, resume_hint, run_here, saved_steps, trap
from tests.real_runs import Run, in_folder

SIGNALS = {SIGINT: 130, SIGTERM: 143}
OTHERS = {SIGINT: "group", SIGTERM: "all"}
"""Besides the main process alone: a terminal interrupts a group, a scheduler terminates all there is."""
INTERVAL = 20
"""Opt steps between evaluations, and between checkpoints, where there are any."""
LAST = 90
"""The budget in opt steps of runs that end by themselves: no multiple of INTERVAL."""
LEARNT = 100
"""An actor that takes its env step of this number proves that there were opt steps: the ratio allows no other way."""
assert LEARNT > WARMUP + TOLERANCE + 1
EVALUATED = f"trainer.eval_interval={INTERVAL}"
INLINE = ("evaluator=inline", EVALUATED)
ENDLESS = ("env.kwargs.lengths=[1000000000]", "evaluator.max_episode_steps=1000000000")
ENDLESS_WARMUP = ("trainer.warmup_period=900000", "buffer.capacity=1000000")
NO_RESTART = ("actor_manager.restarts=0", "actor_manager.min_actors=2")
TRAP_FILE = str(trap_module.__file__)


@dataclass(frozen=True)
class Phase:
    """How to bring a run into a phase.

    opt_steps: number of opt steps done in this phase, None if unknown, -1 if there is no run yet · log: the phase begins
    when the log contains this text, by default when the trap was sprung.
    """

    args: tuple[str, ...]
    opt_steps: int | None = None
    faults: str = ""
    log: str = ""


EVALUATOR_HANGS = (
    *("evaluator=process", "actor_manager.heartbeat_timeout_s=1000", EVALUATED),
    *trap("evaluator", "step", "hang"),
)
PHASES = {
    "composing": Phase((), -1, "hang"),
    "trying the environment": Phase(trap("trial", "make", "hang"), -1),
    "start-up": Phase((*trap("actor", "make", "hang"), "actor_manager.stop_timeout_s=0.2"), 0),
    "warm-up": Phase((*trap("actor", "step", step=50), *ENDLESS_WARMUP), 0),
    "compiling": Phase(("trainer=sync", "agent.compile=true"), 0, log="compiling the opt step"),
    "training": Phase(trap("actor", "step", step=LEARNT)),
    "synchronous training": Phase(("trainer=sync", *trap("MainProcess", "step", step=LEARNT))),
    "evaluation": Phase((*trap("MainProcess", "step", step=50), *ENDLESS, *INLINE), INTERVAL),
    "evaluation in a process": Phase(EVALUATOR_HANGS),
    "saving": Phase((f"trainer.save_interval={INTERVAL}",), 2 * INTERVAL, "hold_save:2"),
    "back-off of the only actor": Phase(
        (*trap("actor", "step", "kill", LEARNT), "n_actors=1", "actor_manager.restart_delay_s=1000"),
        faults="delay_restarts:1000",
        log=": restart 1 of ",
    ),
    "shutdown, with an actor that takes its time": Phase(
        (
            *trap("actor-1", "close", "wait"),
            f"trainer.max_opts={INTERVAL}",
            "trainer.eval_interval=1000",
            "actor_manager.stop_timeout_s=1000",
        ),
        INTERVAL,
    ),
}
KILLED = [name for name, phase in PHASES.items() if phase.opt_steps != -1 and not phase.log][:-1]


def assert_stopped(run: Run, number: signal.Signals, restarts: int = 0) -> int:
    """Check that summary and last checkpoint agree about the stop. Returns the opt steps.

    restarts: expected restarts with another cause. The signal itself must not cost an actor.
    """
    summary = run.summary
    assert (run.path / "train.log").read_text().count(": restart ") == restarts
    assert {actor["restarts"] + actor["incarnation"] for actor in summary["actors"]} == {0}
    assert not (run.path / "crash.json").exists()
    ending = (summary["status"], summary["ended_by"], summary["exit_code"], summary["error"])
    assert ending == ("stopped", number.name.lower(), SIGNALS[number], None)
    return assert_last_state_is_kept(run)


def assert_failed(run: Run, error: str) -> int:
    """Check that summary and log have the error. Returns the opt steps."""
    summary = run.summary
    assert (summary["status"], summary["ended_by"], summary["exit_code"]) == ("failed", "error", 5)
    assert re.fullmatch(error, summary["error"])
    assert summary["error"] in (run.path / "train.log").read_text()
    return assert_last_state_is_kept(run)


def assert_last_state_is_kept(run: Run) -> int:
    """Check that the newest checkpoint is that of the last opt step, if any, without half-written files beside it."""
    opt_steps: int = run.summary["counters"].get("opt_steps", 0)
    saved = saved_steps(run)
    assert saved[:1] == ([opt_steps] if opt_steps else [])
    assert run.checkpoints == [f"step-{step:09d}" for step in reversed(saved)]
    return opt_steps


# -- asked to stop ------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "number", "others"), sampled([*product(PHASES, SIGNALS, [False, True])], 8)
)
def test_d1_d3_a_signal_stops_a_run_in_any_phase(
    tmp_path: Path, phase: str, number: signal.Signals, others: bool
) -> None:
    at = PHASES[phase]
    with border_train(tmp_path, *at.args, faults=at.faults) as command:
        if at.log:
            command.wait_for_log(at.log)
        else:
            command.wait_for_trap()
        command.send(number, OTHERS[number] if others else "main")
        command.wait_for_handling()
        command.release()
        assert command.end() == SIGNALS[number]
        assert command.errors == ""
        if at.opt_steps == -1:
            assert not command.made_a_run
            return
        opt_steps = assert_stopped(command.run, number, restarts=at.log.count("restart"))
        assert opt_steps == at.opt_steps if at.opt_steps is not None else opt_steps > 0


def test_d1_a_run_that_is_stopped_in_its_warm_up_says_so_in_place_of_tables(tmp_path: Path) -> None:
    with border_train(tmp_path, *PHASES["warm-up"].args, "recorder.console=plain") as command:
        command.wait_for_trap()
        command.send(SIGTERM)
        assert command.end() == 143
    shown = (tmp_path / "output").read_text()
    assert "stopped before the first opt step: nothing was learned or saved\n" in shown
    assert "not measured yet" not in shown and "| " not in shown


def test_d3_a_frozen_actor_does_not_prevent_the_end_of_a_run(tmp_path: Path) -> None:
    args = [*trap("actor-1", "step", "stop", LEARNT), "actor_manager.stop_timeout_s=5"]
    with border_train(tmp_path, *args) as command:
        command.wait_for_trap()
        command.send(SIGTERM, "all")
        assert command.end() == 143
    assert assert_stopped(command.run, SIGTERM) > 0
    assert "actor 1 did not exit" in command.log
    assert [actor["state"] for actor in command.run.summary["actors"]] == ["done", "killed"]


def test_d1_d3_a_signal_ends_the_whole_sweep(tmp_path: Path) -> None:
    with border_train(
        tmp_path, "-m", *trap("actor", "step", step=LEARNT), "seed=1,2", "sweep.slots=1"
    ) as command:
        command.wait_for_trap()
        command.send(SIGTERM, "all")
        assert command.end() == 143
        assert command.errors == ""
    (stopped,) = jobs(tmp_path)
    assert assert_stopped(stopped, SIGTERM) > 0


def jobs(folder: Path) -> list[Run]:
    """Return the started jobs of a sweep in order."""
    return [Run(path.parent) for path in sorted(folder.glob("runs/sweeps/*/*/*/summary.json"))]


FOR_EVER = "actor_manager.stop_timeout_s=1000"
SLOW_TO_STOP: list[tuple[Phase, str, list[int]]] = [
    (Phase((*trap("actor", "step", "hang", LEARNT), FOR_EVER)), "group", []),
    (PHASES["saving"], "main", [INTERVAL]),
    (
        Phase(
            (
                *trap("MainProcess", "step", "hang"),
                *INLINE,
                f"trainer.save_interval={INTERVAL // 2}",
            )
        ),
        "group",
        [INTERVAL // 2],
    ),
    (Phase((*trap("actor", "make", "hang"), FOR_EVER)), "main", []),
]


@pytest.mark.parametrize(
    ("at", "to", "kept"),
    sampled(SLOW_TO_STOP, 4),
    ids=sampled(["training", "saving", "evaluation", "start-up"], 4),
)
def test_d2_a_second_sigint_ends_a_run_at_once(tmp_path: Path, at: Phase, to: str, kept: list[int]) -> None:
    """After the first SIGINT the run waits for something that takes longer than the limit of the test."""
    with border_train(tmp_path, *at.args, faults=at.faults) as command:
        command.wait_for_trap()
        command.send(SIGINT, to)
        command.wait_for_handling()
        command.send(SIGINT, to)
        assert command.end() == 130
    assert command.run.summary["status"] == "running"
    assert saved_steps(command.run) == kept


# -- asked to save ------------------------------------------------------


def test_d4_sigusr1_saves_and_the_run_continues(tmp_path: Path) -> None:
    """The signal is sent to all processes during a save, and four times to the learner between opt steps.

    The save in progress answers the first request. Each later request gets its own checkpoint.
    """
    asked_at = [33, 47, 58, 71]
    faults = "hold_save:1 save_at:" + ",".join(map(str, asked_at))
    args = (f"trainer.save_interval={INTERVAL}", f"trainer.max_opts={LAST}", "checkpoint.keep=99")
    with border_train(tmp_path, *args, faults=faults) as command:
        command.wait_for_trap()
        assert command.undefended(SIGUSR1) == []
        command.send(SIGUSR1, "all")
        command.release()
        assert (command.end(), command.errors) == (0, "")
    run = command.run
    assert [step for step in run.saves if step % INTERVAL and step != LAST] == asked_at
    assert saved_steps(run)[::-1] == run.saves
    assert (run.summary["status"], run.counts[0]) == ("done", LAST)
    assert [(actor["state"], actor["restarts"]) for actor in run.summary["actors"]] == [("done", 0)] * 2


# -- started twice ------------------------------------------------------


def test_c8_a_second_process_is_refused_while_the_first_one_lives(
    tmp_path: Path, full_forkserver: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lock of a killed process is free."""
    at = PHASES["saving"]
    with border_train(tmp_path, *at.args, faults=at.faults) as first:
        first.wait_for_trap()
        run = first.run
        before = all_but_the_lock(run)
        with in_folder(tmp_path):
            assert main([f"resume={run.path}", "trust=true"]) == 2
            assert f"is being trained by another process (pid {first.pid})" in capsys.readouterr().err
            assert all_but_the_lock(run) == before
            first.send(SIGKILL)
            assert first.end() == 137
            assert main([f"resume={run.path}", "trust=true", f"trainer.max_opts={LAST}"]) == 0
    assert f"resumed  step-{INTERVAL:09d}: " in first.log
    assert (run.summary["status"], assert_last_state_is_kept(run)) == ("done", LAST)


def all_but_the_lock(run: Run) -> dict[str, bytes]:
    return {name: content for name, content in run.files(".").items() if name != ".lock"}


# -- killed -------------------------------------------------------------


@pytest.mark.parametrize(("phase", "to"), sampled([*product(KILLED, ["main", "group"])], 10))
def test_d6_no_process_outlives_a_killed_run(tmp_path: Path, phase: str, to: str) -> None:
    """The checkpoints of the killed run must verify."""
    at = PHASES[phase]
    args = () if phase == "saving" else (f"trainer.save_interval={INTERVAL // 2}",)
    with border_train(tmp_path, *at.args, *args, faults=at.faults) as command:
        command.wait_for_trap()
        command.send(SIGKILL, to)
        assert command.end() == 137
    assert command.run.summary["status"] == "running"
    kept = saved_steps(command.run)
    assert bool(kept) == (at.opt_steps != 0)
    if phase == "saving":
        assert kept == [INTERVAL]
        assert len(command.run.checkpoints) == 2  # the half-written checkpoint has a temporary name


# -- environments that raise, and actors without restarts left ---------------


@pytest.mark.parametrize(("moment", "done"), [("step", "stepped"), ("make", "made"), ("reset", "reset")])
def test_an_environment_that_raises_in_the_preflight_makes_no_run(
    workplace: Path, capsys: pytest.CaptureFixture[str], moment: str, done: str
) -> None:
    run_here(2, *trap("trial", moment, "raise"))
    assert not (workplace / "runs").exists()
    first, *others = capsys.readouterr().err.splitlines()
    assert first.endswith(f"it was {done}: RuntimeError: the trap was sprung")
    assert len(others) <= 2


FAILING = {
    "make": (trap("actor-1", "make", "raise"), "actor 1 failed while making the environment"),
    "reset": (trap("actor-1", "reset", "raise"), "actor 1 failed while resetting"),
    "step 1": (
        (*trap("actor-1", "step", "raise"), *ENDLESS_WARMUP),
        "actor 1 failed while stepping, after 0 env steps",
    ),
    "step 500": (
        trap("actor-1", "step", "raise", 500),
        "actor 1 failed while stepping, after 499 env steps",
    ),
    "evaluation": (
        (*trap("MainProcess", "reset", "raise"), *INLINE),
        "the evaluation failed while resetting",
    ),
    "evaluation's make": (
        (*trap("MainProcess", "make", "raise"), *INLINE),
        "the evaluation failed while making the environment",
    ),
    "evaluation in a process": (
        (*trap("evaluator", "step", "raise"), EVALUATED, "evaluator=process", "actor_manager.restarts=0"),
        "the evaluation failed while stepping, after 0 env steps",
    ),
    "sync": (
        ("trainer=sync", *trap("MainProcess", "step", "raise", 500)),
        "actor 0 failed while stepping, after 499 env steps",
    ),
}
WITHOUT_OPT_STEPS = ("make", "reset", "step 1", "evaluation's make")


@pytest.mark.parametrize("moment", sampled([*FAILING], 2))
def test_a6_an_environment_that_raises_ends_the_run(
    workplace: Path, capsys: pytest.CaptureFixture[str], moment: str
) -> None:
    args, error = FAILING[moment]
    run = run_here(5, *args, *(() if moment == "sync" else NO_RESTART))
    opt_steps = assert_failed(run, f"{error}: RuntimeError: the trap was sprung")
    errors = capsys.readouterr().err
    for text in (errors, (run.path / "train.log").read_text()):
        assert text.count("Traceback (most recent call last)") == 1
        assert f'File "{TRAP_FILE}"' in text
    crash = run.json("crash.json")
    assert TRAP_FILE in "".join(crash["traceback"])
    if moment == "step 500":
        context = {"actor": 1, "incarnation": 0, "who": "actor 1", "phase": "step", "env": 0}
        assert crash["context"].items() >= (context | {"episode": 1 + 499 // 7, "step": 499 % 7}).items()
    assert bool(opt_steps) == (moment not in WITHOUT_OPT_STEPS)
    kept = resume_hint(run, workplace) if opt_steps else "nothing is saved: there was no opt step yet"
    last = [f"error: {run.summary['error']}", kept]
    assert errors.splitlines()[-len(last) :] == last
