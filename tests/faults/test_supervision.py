"""Actors that are lost are replaced within a budget, and the other actors lose nothing.

The test acts as the learner, with a limiter, and knows every row that must arrive.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any

import pytest

from border_cli.actors.manager import ActorHandle, ActorManager
from border_cli.config.schema import ActorManagerConfig
from border_cli.core.errors import ActorLostError
from border_cli.core.types import Chunk
from border_cli.recorders.files import read_jsonl
from border_cli.runtime import forkserver, seeding
from tests.fakes import COUNTING_COLUMNS, counting_actors, model
from tests.faults.actors import (
    LENGTHS,
    Learner,
    Outage,
    actors_that_die_in_a_push,
    actors_with_diaries,
    failing_actors,
    make_with_helpers,
    pid_of,
    pids,
    read_diary,
    running,
)
from tests.faults.amounts import sampled, seeded, times
from tests.faults.commands import WARMUP, border_train, resume_hint, run_here, trap
from tests.faults.processes import PAUSE_S, named_memory, wait_gone, wait_until

pytestmark = pytest.mark.usefixtures("light_forkserver")

WAIT_S = 0.5
HEARTBEAT_S = 1.0
QUICK = {"restart_delay_s": 0.01, "restarts": 20, "min_actors": 1}


def tracebacks(text: str) -> int:
    return text.count("Traceback (most recent call last)")


# -- died ---------------------------------------------------------------


def test_a1_a_killed_actor_is_replaced_and_the_others_lose_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Kills happen at random moments. The diary of the environment tells how many env steps it did."""
    draw, kills, n_buffer, most = seeded("a1"), times(2, 10), 16, times(300, 1000)
    spec = actors_with_diaries(tmp_path, n_buffer=n_buffer, lengths=LENGTHS)
    with running(spec, n_actors=4, **QUICK) as manager:
        learner = Learner(manager, 4)
        outages = [Outage(learner, draw.randrange(4), draw.randint(1, most)) for _ in range(kills)]
        learner.until(kills * most)
        learner.stop()
        stats = manager.stats()
    arrived = learner.arrived()
    for outage in outages:
        _, taken = read_diary(tmp_path, *outage.victim)
        assert 0 <= taken - arrived.get(outage.victim, 0) <= n_buffer
    lives = [(stat.actor, n) for stat in stats for n in range(stat.incarnation + 1)]
    seeds = [read_diary(tmp_path, *life)[0] for life in lives]
    assert seeds == [seeding.first_seed(0, *life, 0, 0) for life in lives]
    assert len(set(seeds)) == len(lives) == 4 + kills
    for stat in stats:
        killed = sum(outage.victim[0] == stat.actor for outage in outages)
        assert (stat.incarnation, stat.restarts, stat.state) == (killed, killed, "done")
        assert stat.env_steps == sum(n for (actor, _), n in arrived.items() if actor == stat.actor)
    logged = re.findall(r"actor \d was killed by SIGKILL \(it was .*\): restart \d+ of 20", caplog.text)
    assert len(logged) == kills
    assert all(outage.others > 0 for outage in outages)  # the learner continues with their rows


IN_EACH_COLUMN = [column + 0.5 for column in range(len(COUNTING_COLUMNS))]
BEFORE_THE_LAST_WORD = float(len(COUNTING_COLUMNS))
DRAW = seeded("a2")
ANYWHERE = [DRAW.uniform(0, BEFORE_THE_LAST_WORD) for _ in range(times(0, 50))]


@pytest.mark.parametrize("moment", [*sampled(IN_EACH_COLUMN, 3), BEFORE_THE_LAST_WORD, *ANYWHERE])
def test_a2_an_interrupted_push_is_discarded_completely(moment: float) -> None:
    spec = actors_that_die_in_a_push(moment, n_buffer=2000, credit=2000, lengths=LENGTHS)
    with running(spec, n_actors=1, **QUICK) as manager:
        manager.grant([4000], 0)
        learner = Learner(manager, 1, tolerance=8000)

        def died() -> bool:
            learner.chunks.extend(chunk.copy() for chunk in manager.collect())
            return manager.present() == [False]

        wait_until(died, "the death")
        learner.limiter.inserted(0, sum(chunk.env_steps for chunk in learner.chunks))
        learner.until_back(0, 1)
        learner.until(6000)
        learner.stop()
    first = [chunk.env_steps for chunk in learner.chunks if chunk.incarnation == 0]
    assert len(first) == 1  # the first push, whose size depends on its 50 ms
    assert first[0] <= 2000


def test_a3_all_actors_die_at_once_and_are_replaced() -> None:
    with running(counting_actors(lengths=LENGTHS), n_actors=3, **QUICK) as manager:
        learner = Learner(manager, 3)
        for actor in range(3):
            learner.until_back(actor, 0)
        for actor in range(3):
            os.kill(pid_of(manager, actor), SIGKILL)
        for actor in range(3):
            learner.until_back(actor, 1)
        learner.stop()


def test_a4_an_actor_that_cannot_be_made_is_given_up_and_the_others_continue(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    spec = counting_actors(fault="raise", fault_at="make", fault_actor=2, lengths=LENGTHS)
    with running(spec, n_actors=4, restarts=5, restart_delay_s=0.001, min_actors=1) as manager:
        learner = Learner(manager, 4)
        wait_until(lambda: learner.turn() or "given up" in caplog.text, "the end of its budget")
        learner.until(learner.limiter.env_steps + 1000)
        learner.stop()
        stats = manager.stats()
    assert [stat.state for stat in stats] == ["done", "done", "failed", "done"]
    assert [stat.restarts for stat in stats] == [0, 0, 5, 0]
    waits = re.findall(r"restart (\d) of 5 in (\S+) s", caplog.text)
    assert waits == [("1", "0.001"), ("2", "0.002"), ("3", "0.004"), ("4", "0.008"), ("5", "0.016")]
    assert "raises at make: given up after 5 restarts, 3 of 4 actors left" in caplog.text
    assert tracebacks(caplog.text) == 1


def test_a4_if_no_actor_can_start_none_is_restarted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    spec = counting_actors(fault="raise", fault_at="make")
    with running(spec, start=False, restarts=5, min_actors=1) as manager:
        with pytest.raises(ActorLostError, match="making the environment: RuntimeError: Count") as lost:
            manager.start(model())
        assert lost.value.logged
        assert tracebacks(caplog.text) == 1
        assert [stat.restarts for stat in manager.stats()] == [0, 0]


def test_a3_a4_a_run_whose_actor_dies_repeatedly_sleeps_during_the_delay_and_ends_with_the_cause(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compares the CPU seconds of the learner between the loss and the restart, when few opt steps are left to do."""
    spent = list[float]()
    for name in ("_lose", "start"):
        monkeypatch.setattr(ActorHandle, name, timed(getattr(ActorHandle, name), spent))
    dying = (
        "env.entry_point=tests.counting:CountingEnv",
        "env.kwargs.fault=kill",
        "env.kwargs.fault_step=150",
    )
    restarts = ("actor_manager.restarts=1", f"actor_manager.restart_delay_s={WAIT_S}")
    run = run_here(5, *dying, "n_actors=1", "trainer.opt_interval=50", *restarts)
    _, loss, start, *_ = spent  # element 0 is the first start
    assert (
        start - loss < 0.2 * WAIT_S
    )  # 0.03 on a busy machine; a learner that does not sleep uses all the time
    cause = "error: actor 0 was killed by SIGKILL (it was acting)\nafter 1 restart within 600 s, fewer than"
    assert f"{cause} actor_manager.min_actors=1 are left\n" in capsys.readouterr().err
    assert [(actor["incarnation"], actor["state"]) for actor in run.summary["actors"]] == [(1, "lost")]


def timed(method: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    """Wrap a method so that each call records the CPU seconds of this process."""
    return lambda *values: (spent.append(time.process_time()), method(*values))[1]


def test_a4_fewer_than_min_actors_end_the_run() -> None:
    with running(counting_actors(), n_actors=3, min_actors=2) as manager:
        learner = Learner(manager, 3)
        learner.until(100)
        os.kill(pid_of(manager, 0), SIGKILL)
        wait_until(lambda: learner.turn() or pids(manager)[0] is None, "the first to be given up")
        os.kill(pid_of(manager, 2), SIGKILL)
        with pytest.raises(ActorLostError, match=r"^actor 2 was killed by SIGKILL \(it was .*\)$"):
            wait_until(lambda: learner.turn() is not None, "the end")


def test_a4_rows_of_the_remaining_actors_do_not_delay_the_end() -> None:
    with running(counting_actors(), n_actors=2, min_actors=2) as manager:
        manager.grant([10**6, 10**6], 0)
        wait_until(lambda: any(chunk.actor == 1 for chunk in manager.collect()), "rows of the second")
        os.kill(pid_of(manager, 0), SIGKILL)
        wait_until(lambda: (manager.collect(), pids(manager)[0] is None)[1], "the loss")
        with pytest.raises(ActorLostError, match="actor 0 was killed by SIGKILL"):
            manager.collect()


# -- alive and silent ---------------------------------------------------


@pytest.mark.parametrize("fault", ["stop", "hang"])
def test_a5_a7_an_actor_that_is_stopped_or_hangs_is_killed_and_replaced(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    spec = failing_actors((0, 0, 100), fault=fault, n_buffer=8, lengths=LENGTHS)
    with running(spec, n_actors=1, heartbeat_timeout_s=HEARTBEAT_S, **QUICK) as manager:
        learner = Learner(manager, 1)
        silent = pid_of(manager, 0)
        learner.until_back(0, 1)
        with pytest.raises(ProcessLookupError):
            os.kill(silent, SIGCONT)
        learner.stop()
    assert 99 - 8 <= learner.arrived()[0, 0] <= 99
    assert "actor 0 gave no sign of life for 1 s (it was acting): restart 1 of 20" in caplog.text


def test_making_an_environment_may_take_longer_than_the_heartbeat_timeout() -> None:
    with running(counting_actors(make_s=1.2), n_actors=1, heartbeat_timeout_s=HEARTBEAT_S) as manager:
        Learner(manager, 1).until(100)


# -- environments that raise --------------------------------------------


def test_a6_an_environment_that_raises_costs_only_its_incarnation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    steps = 57, 58, 56
    failures = [(1, incarnation, step) for incarnation, step in enumerate(steps)]
    spec = failing_actors(*failures, fault="raise", n_envs=3, n_buffer=8, lengths=LENGTHS)
    reported: list[ActorLostError] = []
    with running(spec, on_exception=reported.append, **QUICK) as manager:
        learner = Learner(manager, 2, tolerance=1024)
        learner.until_back(1, 3)
        learner.stop()
        stats = manager.stats()
    assert stats[0].incarnation == stats[0].restarts == 0
    assert stats[1].incarnation == stats[1].restarts == 3
    assert tracebacks(caplog.text) == len(reported) == 1
    assert reported[0].context == {
        "actor": 1, "incarnation": 0, "who": "actor 1", "phase": "step",
        "env": 0, "episode": 9, "step": 3, "action": 0,
    }  # fmt: skip
    assert "raises at step: restart 1 of 20 in 0.01 s" in caplog.text
    arrived = learner.arrived()
    for incarnation, step in enumerate(steps):
        # All pushed chunks arrived. The last chunk, of at most n_buffer + n_envs env steps, is lost.
        assert 0 <= (step - 1) * 3 - arrived[1, incarnation] <= 8 + 3
    assert arrived[0, 0] == stats[0].env_steps


# -- programs and memory of a lost actor ----------------------------------------


def test_a8_programs_started_by_an_environment_end_with_its_actor(caplog: pytest.LogCaptureFixture) -> None:
    with running(counting_actors(make_env=make_with_helpers), n_actors=1, **QUICK) as manager:
        (helper,) = (int(pid) for pid in re.findall(r"actor 0: helper (\d+)", caplog.text))
        os.kill(helper, 0)
        os.kill(pid_of(manager, 0), SIGKILL)
        Learner(manager, 1).until_back(0, 1)
        wait_gone(helper)


def test_a9_a_native_crash_is_reported_with_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    spec = failing_actors((0, 0, 20), fault="segfault", lengths=LENGTHS)
    with running(spec, n_actors=1, **QUICK) as manager:
        learner = Learner(manager, 1)
        learner.until_back(0, 1)
        learner.stop()
    assert "actor 0 was killed by SIGSEGV (it was acting): restart 1 of 20" in caplog.text


def test_a10_restarts_do_not_leak_memory_or_descriptors() -> None:
    def held() -> tuple[int, int]:
        maps = Path("/proc/self/maps").read_text().count("border-cli")
        return maps, len(list(Path("/proc/self/fd").iterdir()))

    spec, before = counting_actors(lengths=LENGTHS, n_buffer=2), (0, 0)
    with running(spec, n_actors=1, **{**QUICK, "restart_delay_s": 0.001}) as manager:
        learner = Learner(manager, 1)
        learner.until_back(0, 0)
        for incarnation in range(1, 9):
            # On a busy machine it may have been killed again meanwhile, for its silence.
            wait_until(lambda: learner.turn() or pids(manager)[0] is not None, "a process of actor 0")
            os.kill(pid_of(manager, 0), SIGKILL)
            learner.until_back(0, incarnation)
            before = before if incarnation > 1 else held()
        wait_until(lambda: learner.turn() or held() == before, "what the lost actors held to be closed")
        learner.stop()


def test_f2_the_kernel_kills_actors_before_the_learner_if_memory_ends() -> None:
    of_learner = int(Path("/proc/self/oom_score_adj").read_text())
    with running(counting_actors()) as manager:
        for pid in pids(manager):
            assert int(Path(f"/proc/{pid}/oom_score_adj").read_text()) > of_learner


# -- the credit of lost actors -------------------------------------------


def test_a_restarted_actor_has_no_credit_before_the_next_grant() -> None:
    """The learner evaluates and does not grant. Meanwhile the unused credit of the dead actor may go to others."""
    with running(counting_actors(lengths=LENGTHS), n_actors=1, **QUICK) as manager:
        manager.grant([10], 0)
        wait_until(lambda: sum(c.env_steps for c in manager.collect()) == 10, "its env steps")
        manager.grant([10], 0)
        victim = pid_of(manager, 0)
        os.kill(victim, SIGSTOP)
        manager.grant([500], 0)
        os.kill(victim, SIGKILL)

        def replaced() -> bool:
            assert manager.collect() == []
            waits = manager.stats()[0].state == "waiting for credit"
            return pids(manager)[0] not in (None, victim) and waits

        wait_until(replaced, "its successor")
        wait_until(lambda: manager.collect() == [] and manager.present() == [True], "its presence")
        assert manager.stats()[0].env_steps == 10
        manager.grant([15], 0)
        arrived: list[tuple[int, int]] = []
        wait_until(
            lambda: (
                arrived.extend((c.incarnation, c.env_steps) for c in manager.collect())
                or sum(env_steps for _, env_steps in arrived) == 5
            ),
            "five more",
        )
        assert {incarnation for incarnation, _ in arrived} == {1}


def test_b3_the_only_actor_dies_while_the_learner_waits(tmp_path: Path) -> None:
    """The actor hangs in env step 200, having handed over all before: when each opt step that these allow is done,
    the learner can only wait.
    """
    args = ("actor_manager.n_buffer=1", "n_actors=1", "actor_manager.restarts=0", "trainer.record_interval=1")
    cause, allowed = "actor 0 was killed by SIGKILL (it was acting)", 199 - WARMUP
    with border_train(tmp_path, *trap("actor", "step", "hang", 200), *args) as command:
        actor_pid = command.wait_for_trap()
        metrics = tmp_path / "runs/latest/metrics.jsonl"
        wait_until(
            lambda: metrics.exists() and any(line["opt_steps"] == allowed for line in read_jsonl(metrics)),
            "the learner to wait",
            longest_pause_s=PAUSE_S,
        )
        os.kill(actor_pid, SIGKILL)
        assert command.end() == 5
    run = command.run
    (actor,) = run.summary["actors"]
    assert (actor["state"], actor["env_steps"]) == ("lost", 199)
    assert command.errors.splitlines() == [f"error: {cause}", resume_hint(run, tmp_path)]
    assert run.summary["error"] == cause
    assert run.counts == (allowed, 199)


# -- the start and the stop -----------------------------------------------


def act(manager: ActorManager, credit: int) -> None:
    """Let every actor use its first credit. The rows stay in the rings."""
    manager.grant([credit] * len(pids(manager)), 0)
    wait_until(
        lambda: all(s.seconds > 0 and s.state == "waiting for credit" for s in manager.stats()),
        "the credit to be used",
    )


def env_steps_by_actor(chunks: list[Chunk]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for chunk in chunks:
        counts[chunk.actor] = counts.get(chunk.actor, 0) + chunk.env_steps
    return counts


def test_a7_an_actor_that_never_becomes_ready_is_reported_at_the_start() -> None:
    spec = counting_actors(fault="hang", fault_at="reset", fault_actor=1)
    with running(spec, start=False, start_timeout_s=5.0) as manager:
        with pytest.raises(ActorLostError, match=r"actor 1 was not ready after 5 s \(it was resetting\)"):
            manager.start(model())
        assert [stat.state for stat in manager.stats()] == ["done", "killed"]


def test_a5_a7_hanging_and_frozen_actors_block_no_other_and_are_killed_at_the_stop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    spec = counting_actors(fault="hang", fault_step=3, fault_actor=0, n_buffer=2)
    with running(spec, n_actors=3, stop_timeout_s=5.0) as manager:
        os.kill(pid_of(manager, 1), SIGSTOP)
        manager.grant([5, 5, 5], 0)
        chunks: list[Chunk] = []

        def arrived() -> bool:
            chunks.extend(chunk.copy() for chunk in manager.collect())
            return env_steps_by_actor(chunks) == {0: 2, 2: 5}

        wait_until(arrived, "the chunks")
        ends = [(stat.state, stat.env_steps) for stat in manager.stop()]
    assert ends == [("killed", 2), ("killed", 0), ("done", 5)]
    assert "actor 0 did not exit (acting) and is killed" in caplog.text


def test_death_of_the_forkserver_ends_its_actors_and_the_next_run_starts_another() -> None:
    with running(counting_actors()) as manager:
        server = forkserver.forkserver_pid()
        assert server is not None
        os.kill(server, SIGKILL)
        with pytest.raises(ActorLostError, match=r"actor [01] was killed by SIGKILL"):
            wait_until(lambda: manager.collect() is None, "the loss")
    with running(counting_actors()) as manager:
        act(manager, 10)
        assert env_steps_by_actor(manager.collect()) == {0: 10, 1: 10}
        assert forkserver.forkserver_pid() != server


def test_d1_d3_a_stop_request_ends_the_start_of_actors() -> None:
    spec = counting_actors(fault="hang", fault_at="make")
    config = ActorManagerConfig(stop_timeout_s=0.2)
    polls = iter([False] * 4)
    manager = ActorManager(spec, COUNTING_COLUMNS, 2, config, lambda: next(polls, True))
    manager.start(model())
    assert [stat.state for stat in manager.stop()] == ["killed", "killed"]


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no folder for shared memory")
def test_f1_shared_memory_of_actors_has_no_name() -> None:
    with running(counting_actors()) as manager, tempfile.NamedTemporaryFile(dir="/dev/shm") as named:
        act(manager, 10)
        assert named_memory([os.getpid(), *pids(manager)]) == {named.name}


def test_serial_init_makes_one_environment_after_the_other() -> None:
    spec = counting_actors(fault="raise", fault_at="make", fault_actor=1)
    with running(spec, n_actors=3, start=False, serial_init=True) as manager:
        with pytest.raises(ActorLostError, match="actor 1 failed"):
            manager.start(model())
        assert [stat.state for stat in manager.stats()] == ["done", "failed", "starting"]
