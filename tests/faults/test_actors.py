"""What happens to actors, and to the learner, when something dies, raises, hangs or is told to stop.

After every test no child is left and no descriptor is open that was not open before.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from border_cli.actors.manager import ActorManager
from border_cli.config.schema import ActorManagerConfig
from border_cli.core.errors import ActorLostError
from border_cli.core.items import Chunk
from border_cli.runs.summary import write_crash
from border_cli.runtime import forkserver
from tests.fakes import COUNTING_COLUMNS, counting_actors, model
from tests.faults.actors import act, audit, env_steps_by_actor, running  # noqa: F401 - audit is a fixture
from tests.faults.processes import ROOT, TIMEOUT_S, assert_session_ends, processes, wait_gone, wait_until

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
    pytest.mark.usefixtures("audit"),
]


def test_a1_a_killed_actor_is_named_after_its_rows_were_returned() -> None:
    with running(counting_actors(), n_actors=3) as manager:
        act(manager, 100)
        victim = manager.pids()[1]
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        wait_gone(victim)
        wait_until(lambda: manager.stats()[1].state == "lost", "the news of its death")
        assert env_steps_by_actor(manager.collect()) == {0: 100, 1: 100, 2: 100}
        with pytest.raises(ActorLostError, match="actor 1 was killed by SIGKILL"):
            manager.collect()
        stats = manager.stop()
    assert [stat.state for stat in stats] == ["done", "lost", "done"]
    assert [stat.env_steps for stat in stats] == [100, 100, 100]


def test_a1_a_killed_actor_is_noticed_while_it_has_nothing_to_hand_over() -> None:
    with running(counting_actors()) as manager:
        victim = manager.pids()[0]
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(ActorLostError, match="actor 0 was killed by SIGKILL"):
            wait_until(lambda: bool(manager.collect()), "the loss")


@pytest.mark.parametrize(
    ("fault_at", "message", "context"),
    [
        ("make", "actor 1 failed while making the environment", {"phase": "making the environment"}),
        (
            "reset",
            "actor 1 failed while resetting",
            {"phase": "reset", "env": 0, "episode": 0, "step": 0, "action": None},
        ),
    ],
)
def test_a6_an_environment_that_raises_before_the_first_step(
    fault_at: str, message: str, context: dict[str, Any], tmp_path: Path
) -> None:
    spec = counting_actors(fault="raise", fault_at=fault_at, fault_actor=1)
    with running(spec, start=False) as manager:
        with pytest.raises(ActorLostError, match=message) as lost:
            manager.start(model())
        assert f"RuntimeError: CountingEnv was told to raise at {fault_at}" in str(lost.value)
        assert "Traceback" in lost.value.details
        assert "counting.py" in lost.value.details
        assert manager.pids() == [None, None]
        assert context_in_crash_file(tmp_path, lost.value) == {"actor": 1, "incarnation": 0, **context}


def context_in_crash_file(folder: Path, error: ActorLostError) -> dict[str, Any]:
    """What crash.json says on where it was."""
    context: dict[str, Any] = json.loads(write_crash(folder, error).read_text())["context"]
    return context


@pytest.mark.parametrize("step", [1, 500])
def test_a6_an_environment_that_raises_at_a_step(step: int, tmp_path: Path) -> None:
    spec = counting_actors(fault="raise", fault_step=step, fault_actor=0, lengths=[1000])
    with running(spec, n_buffer=10) as manager:
        manager.grant([step, step])
        with pytest.raises(ActorLostError) as lost:
            wait_until(lambda: manager.collect() is None, "the loss")
        assert str(lost.value) == (
            f"actor 0 failed while stepping, after {step - 1} env steps: "
            "RuntimeError: CountingEnv was told to raise at step"
        )
        assert "counting.py" in lost.value.details
        assert context_in_crash_file(tmp_path, lost.value) == {
            "actor": 0, "incarnation": 0, "phase": "step", "env": 0, "episode": 0, "step": step - 1, "action": 0,
        }  # fmt: skip
        assert manager.stop()[0].state == "failed"


def test_a9_a_process_that_just_exits() -> None:
    spec = counting_actors(make_env="make_env_that_exits")
    ending = r"actor 0 exited with code 3 \(it was making environment\)"
    with running(spec, n_actors=1, start=False) as manager, pytest.raises(ActorLostError, match=ending):
        manager.start(model())


def test_a7_an_environment_that_hangs_at_reset_is_named_after_the_timeout() -> None:
    spec = counting_actors(fault="hang", fault_at="reset", fault_actor=1)
    with running(spec, start=False, start_timeout_s=3.0, stop_timeout_s=0.5) as manager:
        with pytest.raises(ActorLostError, match=r"not ready after 3 s: actor 1 \(resetting\)"):
            manager.start(model())
        assert [stat.state for stat in manager.stats()] == ["done", "killed"]


def test_a7_stop_kills_an_actor_that_hangs(caplog: pytest.LogCaptureFixture) -> None:
    spec = counting_actors(fault="hang", fault_step=3, fault_actor=0, n_buffer=2)
    with running(spec, stop_timeout_s=0.5) as manager:
        manager.grant([5, 5])
        chunks: list[Chunk] = []

        def arrived() -> bool:
            chunks.extend(manager.collect())
            return env_steps_by_actor(chunks) == {0: 2, 1: 5}

        wait_until(arrived, "the chunks")
        assert [(s.state, s.env_steps) for s in manager.stop()] == [("killed", 2), ("done", 5)]
    assert "actor 0 did not leave (acting) and is killed" in caplog.text


def test_a5_a_stopped_process_cannot_block_the_others() -> None:
    with running(counting_actors(), stop_timeout_s=0.5) as manager:
        frozen = manager.pids()[0]
        assert frozen is not None
        os.kill(frozen, signal.SIGSTOP)
        manager.grant([64, 64])
        chunks: list[Chunk] = []

        def arrived() -> bool:
            chunks.extend(manager.collect())
            return env_steps_by_actor(chunks) == {1: 64}

        wait_until(arrived, "the other actor's chunk")
        assert [stat.state for stat in manager.stop()] == ["killed", "done"]


def test_a10_a_full_ring_makes_actors_wait_and_stop_brings_the_rest() -> None:
    with running(counting_actors(n_buffer=8, lengths=[1000]), ring_rows=16) as manager:
        manager.grant([40, 40])
        wait_until(
            lambda: all(s.state == "waiting for room" and s.blocked_seconds > 0 for s in manager.stats()),
            "the rings to be full",
        )
        stats = manager.stop()
        chunks = manager.collect()
        assert [stat.state for stat in stats] == ["done", "done"]
        # two chunks of 8 were in the ring, a third waited for room: the stop came before the rest was acted
        assert env_steps_by_actor(chunks) == {stat.actor: stat.env_steps for stat in stats}
        assert [stat.env_steps for stat in stats] == [24, 24]


def test_d3_sigterm_and_sigint_are_no_crash() -> None:
    with running(counting_actors()) as manager:
        server = forkserver.forkserver_pid()
        for pid in [*manager.pids(), server]:
            assert pid is not None
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGINT)
        act(manager, 100)
        assert env_steps_by_actor(manager.collect()) == {0: 100, 1: 100}
        assert [stat.state for stat in manager.stop()] == ["done", "done"]
    assert forkserver.forkserver_pid() == server


def test_death_of_the_forkserver_ends_its_actors_and_the_next_run_starts_anew() -> None:
    with running(counting_actors()) as manager:
        server = forkserver.forkserver_pid()
        assert server is not None
        os.kill(server, signal.SIGKILL)
        with pytest.raises(ActorLostError, match=r"actor [01] exited with code 255"):
            wait_until(lambda: manager.collect() is None, "the loss")
    with running(counting_actors()) as manager:
        act(manager, 10)
        assert env_steps_by_actor(manager.collect()) == {0: 10, 1: 10}
        assert forkserver.forkserver_pid() != server


def test_d1_d3_being_asked_to_stop_ends_the_start() -> None:
    spec = counting_actors(fault="hang", fault_at="make")
    config = ActorManagerConfig(stop_timeout_s=0.2)
    polls = iter([False] * 4)
    manager = ActorManager(spec, COUNTING_COLUMNS, 2, config, lambda: next(polls, True))
    manager.start(model())
    assert [stat.state for stat in manager.stop()] == ["killed", "killed"]


def test_serial_init_makes_one_environment_after_the_other() -> None:
    spec = counting_actors(fault="raise", fault_at="make", fault_actor=1)
    with running(spec, n_actors=3, start=False, serial_init=True) as manager:
        with pytest.raises(ActorLostError, match="actor 1 failed"):
            manager.start(model())
        assert [stat.state for stat in manager.stats()] == ["done", "failed", "starting"]


def test_what_actors_log_is_logged_by_the_learner(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), running(counting_actors(make_env="make_env_that_logs")):
        assert {(r.name, r.getMessage()) for r in caplog.records} == {
            ("tests.env", "actor 0: made 0 of 2"),
            ("tests.env", "actor 1: made 1 of 2"),
        }


def send(number: signal.Signals, learner: int, to: str) -> None:
    """A signal to the learner, or to its process group, or to every process of its session, actors first."""
    if to == "group":
        os.killpg(learner, number)
        return
    everyone = sorted(processes(session=learner), reverse=True)
    assert learner in everyone
    assert len(everyone) >= 4  # the learner, the forkserver and two actors
    for pid in everyone if to == "everyone" else [learner]:
        os.kill(pid, number)


@contextlib.contextmanager
def learner_process() -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A learner with two actors in a session of its own, and what it said of itself."""
    command = [sys.executable, "-c", "from tests.fakes import learner; learner()"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("whole_group", [False, True])
def test_d6_nothing_outlives_a_killed_learner(whole_group: bool) -> None:
    with learner_process() as (process, said):
        members = processes(session=process.pid)
        assert len(members) >= 4  # the learner, the forkserver and two actors
        assert said["forkserver"] in members
        (os.killpg if whole_group else os.kill)(process.pid, signal.SIGKILL)
        assert_session_ends(process.pid)


def test_a_learner_that_forgets_its_actors_still_ends() -> None:
    command = [sys.executable, "-c", "from tests.fakes import forgetful_learner; forgetful_learner()"]
    with subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        _, errors = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 1
        assert errors.endswith("RuntimeError: the learner has a defect\n")
        wait_until(lambda: processes(session=process.pid) == [], "its helpers to leave")


@pytest.mark.parametrize("to", ["learner", "group", "everyone"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_d1_d3_a_signal_stops_a_learner_cleanly(number: signal.Signals, code: int, to: str) -> None:
    """To its group, as a terminal sends it: each actor leads another one. To everyone, as some schedulers do: no actor
    leaves by itself, or is started again.
    """
    with learner_process() as (process, _):
        send(number, process.pid, to)
        said, warned = process.communicate(timeout=TIMEOUT_S)
        assert json.loads(said) == {"error": "", "states": ["done", "done"]}
        assert warned == ""
        assert process.returncode == code
        wait_until(lambda: processes(session=process.pid) == [], "its helpers to leave")
