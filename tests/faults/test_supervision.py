"""Actors that are lost while others act: replaced within a budget, and nothing of the others is touched.

The learner's part is played by the limiter and an oracle, which knows every row that must come out. The letters and
numbers in the names are those of the fault table.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from signal import SIGCONT, SIGINT, SIGKILL, SIGSTOP
from typing import Any

import numpy as np
import pytest

from border_cli.actors.manager import ActorManager
from border_cli.actors.supervisor import Supervisor
from border_cli.cli.train import main
from border_cli.core.errors import ActorLostError
from border_cli.core.items import Chunk
from border_cli.recorders.jsonl import read_jsonl
from border_cli.replay.limiter import RatioLimiter
from border_cli.runtime import forkserver, seeding
from border_cli.runtime.factory import Factory
from tests.fakes import COUNTING_COLUMNS, counting_actors, model
from tests.faults.actors import audit, running  # noqa: F401 - audit is a fixture
from tests.faults.amounts import seeded, times
from tests.faults.commands import START_S, WARMUP, border_train, verified_checkpoints, what_is_kept
from tests.faults.deadly import (
    actors_that_die_in_a_push,
    actors_with_diaries,
    deadly_actors,
    read_diary,
    slow_to_make_actors,
)
from tests.faults.naive import put, shared_queue
from tests.faults.processes import TIMEOUT_S, wait_gone, wait_until
from tests.real_runs import Run, tiny

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
    pytest.mark.usefixtures("audit"),
]
LENGTHS = (7, 1, 2, 30, 3)
WAIT_S = 0.5
HEARTBEAT_S = 0.4
REPLACED_S, ENDED_S = 5.0, 15.0
"""Bounds for what takes 0.9 s and 2.4 s on a busy machine: a silent actor is replaced, a run ends after its actors were
started again in vain.
"""
PATIENCE_S = 1.0
"""How long what never comes is waited for."""
QUICK = {"restart_delay_s": 0.01, "restarts": 20, "min_actors": 1}


class Learner:
    """Takes in what comes and gives credit, as the training loop does, and keeps every chunk."""

    def __init__(self, manager: ActorManager, n_actors: int, tolerance: int = 512) -> None:
        self.manager = manager
        self.limiter = RatioLimiter(1.0, 0, tolerance, None, n_actors, 1)
        self.chunks: list[Chunk] = []
        self.longest_pause_s = 0.0  # between two opt steps
        self._last_opt_step: float | None = None
        self._first_s: dict[tuple[int, int], float] = {}  # when a chunk of (actor, incarnation) came
        self._last_s: dict[tuple[int, int], float] = {}

    def turn(self) -> None:
        limiter = self.limiter
        for chunk in self.manager.collect():
            self.chunks.append(chunk)
            self._last_s[chunk.actor, chunk.incarnation] = now = time.monotonic()
            self._first_s.setdefault((chunk.actor, chunk.incarnation), now)
            limiter.inserted(chunk.actor, chunk.env_steps)
        assert limiter.env_steps <= limiter.allowance
        while limiter.may_opt():
            self._opt()
        left = limiter.attend(self.manager.present())
        if limiter.grant() or left:
            self.manager.grant(limiter.credits)

    def _opt(self) -> None:
        self.limiter.opted()
        now = time.monotonic()
        if self._last_opt_step is not None:
            self.longest_pause_s = max(self.longest_pause_s, now - self._last_opt_step)
        self._last_opt_step = now

    def until(self, env_steps: int) -> None:
        wait_until(lambda: self.turn() or self.limiter.env_steps >= env_steps, f"{env_steps} env steps")

    def until_back(self, actor: int, incarnation: int) -> None:
        """Until something has come of this incarnation."""

        def back() -> bool:
            self.turn()
            return any((c.actor, c.incarnation) == (actor, incarnation) for c in self.chunks)

        wait_until(back, f"incarnation {incarnation} of actor {actor}")

    def stop(self) -> None:
        self.manager.stop()
        self.chunks += self.manager.collect()

    def gap_s(self, actor: int, incarnation: int) -> float:
        """Between the last that came of this incarnation and the first of the next [s]."""
        return self._first_s[actor, incarnation + 1] - self._last_s[actor, incarnation]

    def arrived(self) -> dict[tuple[int, int], int]:
        """Env steps of each (actor, incarnation)."""
        counts: dict[tuple[int, int], int] = defaultdict(int)
        for chunk in self.chunks:
            counts[chunk.actor, chunk.incarnation] += chunk.env_steps
        return dict(counts)


class Outage:
    """One actor killed from outside once so many more env steps have arrived, and what follows until it acts again.

    victim: actor and incarnation · noticed_s, back_s: from the kill until there is no process of it any more, and until
    something of the next incarnation has arrived [s].
    """

    def __init__(self, learner: Learner, actor: int, env_steps: int) -> None:
        learner.until(learner.limiter.env_steps + env_steps)
        self.victim = actor, learner.manager.stats()[actor].incarnation
        pid = pid_of(learner.manager, actor)
        began = time.monotonic()
        os.kill(pid, SIGKILL)
        wait_until(lambda: learner.turn() or learner.manager.pids()[actor] != pid, "its end")
        self.noticed_s = time.monotonic() - began
        learner.until_back(actor, self.victim[1] + 1)
        self.back_s = time.monotonic() - began

    def __repr__(self) -> str:
        return f"{self.victim}: noticed after {self.noticed_s:.3f} s, back after {self.back_s:.3f} s"


def expected_rows(env_steps: int) -> Iterator[tuple[int, int, int]]:
    """(episode, time, span) of every row that an environment completes in so many env steps."""
    episode = 0
    while env_steps > 0:
        length = LENGTHS[episode % len(LENGTHS)]
        yield from ((episode, t, 1) for t in range(min(env_steps, length)))
        if env_steps >= length:
            yield episode, length, 0
        env_steps -= length
        episode += 1


def check(learner: Learner) -> None:
    """Each incarnation's chunks are all there, in order, and hold what its env steps made; the newest comes last."""
    for (actor, incarnation), env_steps in learner.arrived().items():
        mine = [c for c in learner.chunks if (c.actor, c.incarnation) == (actor, incarnation)]
        assert [chunk.sequence for chunk in mine] == list(range(len(mine)))
        obs = np.concatenate([chunk.items["obs"] for chunk in mine])
        span = np.concatenate([chunk.items["span"] for chunk in mine])
        expected = np.array(list(expected_rows(env_steps)), np.int64)
        np.testing.assert_array_equal(np.column_stack([obs[:, 2], obs[:, 3], span]), expected)
        assert (obs[:, 0] == actor).all()
    order: dict[int, list[int]] = defaultdict(list)
    for chunk in learner.chunks:
        order[chunk.actor].append(chunk.incarnation)
    assert all(incarnations == sorted(incarnations) for incarnations in order.values())


def pid_of(manager: ActorManager, actor: int) -> int:
    pid = manager.pids()[actor]
    assert pid is not None
    return pid


def tracebacks(caplog: pytest.LogCaptureFixture) -> int:
    return caplog.text.count("Traceback (most recent call last)")


# -- died ---------------------------------------------------------------


def test_a1_nothing_of_others_is_lost_when_actors_are_killed(caplog: pytest.LogCaptureFixture) -> None:
    """Three of four actors die in env steps that are known; what is lost is what they had not yet handed over."""
    draw, deaths_each, n_buffer = random.Random(1), times(3, 4), 16
    deaths = tuple(
        (actor, incarnation, draw.randint(1, 400))
        for actor in (1, 2, 3)
        for incarnation in range(deaths_each)
    )
    spec = deadly_actors(deaths, n_buffer=n_buffer, lengths=LENGTHS)
    with running(spec, n_actors=4, **QUICK) as manager:
        learner = Learner(manager, 4)
        for actor in (1, 2, 3):
            learner.until_back(actor, deaths_each)
        learner.until(learner.limiter.env_steps + 500)
        learner.stop()
        stats = manager.stats()
    check(learner)
    arrived = learner.arrived()
    for actor, incarnation, at in deaths:
        assert at - 1 - n_buffer <= arrived.get((actor, incarnation), 0) <= at - 1
    for stat in stats:
        died = 0 if stat.actor == 0 else deaths_each
        assert (stat.incarnation, stat.restarts, stat.state) == (died, died, "done")
        assert stat.env_steps == sum(n for (actor, _), n in arrived.items() if actor == stat.actor)
    told = re.findall(
        r"actor [123] was killed by SIGKILL \(it was acting\): restart [1-4] of 20", caplog.text
    )
    assert len(told) == len(deaths)


def test_a1_whoever_is_killed_from_outside_is_back_soon_and_has_lost_little(tmp_path: Path) -> None:
    """At random moments of the run, whatever the actor was doing: its environment knows how far it had come."""
    draw, kills, n_buffer = seeded("a1"), times(3, 10), 16
    spec = actors_with_diaries(tmp_path, n_buffer=n_buffer, lengths=LENGTHS)
    with running(spec, n_actors=4, **QUICK) as manager:
        learner = Learner(manager, 4)
        outages = [Outage(learner, draw.randrange(4), draw.randint(1, 1000)) for _ in range(kills)]
        learner.until(kills * 1000)
        learner.stop()
        stats = manager.stats()
    check(learner)
    arrived = learner.arrived()
    for outage in outages:
        _, taken = read_diary(tmp_path, *outage.victim)
        assert 0 <= taken - arrived.get(outage.victim, 0) <= n_buffer
    lives = [(stat.actor, n) for stat in stats for n in range(stat.incarnation + 1)]
    seeds = [read_diary(tmp_path, *life)[0] for life in lives]
    assert seeds == [seeding.env_seed(0, *life, 0) for life in lives]
    assert len(set(seeds)) == len(lives) == 4 + kills
    for stat in stats:
        killed = sum(outage.victim[0] == stat.actor for outage in outages)
        assert (stat.incarnation, stat.restarts, stat.state) == (killed, killed, "done")
        assert stat.env_steps == sum(n for (actor, _), n in arrived.items() if actor == stat.actor)
    assert max(outage.noticed_s for outage in outages) <= 1.0, outages
    assert max(outage.back_s for outage in outages) <= 5.0, outages
    assert learner.longest_pause_s <= 2.0


IN_EACH_COLUMN = [column + 0.5 for column in range(len(COUNTING_COLUMNS))]
BEFORE_THE_LAST_WORD = float(len(COUNTING_COLUMNS))
DRAW = seeded("a2")
ANYWHERE = [DRAW.uniform(0, BEFORE_THE_LAST_WORD) for _ in range(times(0, 50))]


@pytest.mark.parametrize("moment", [*IN_EACH_COLUMN, BEFORE_THE_LAST_WORD, *ANYWHERE])
def test_a2_a_push_that_breaks_off_is_as_if_it_had_never_begun(moment: float) -> None:
    spec = actors_that_die_in_a_push(moment, n_buffer=2000, lengths=LENGTHS)
    with running(spec, n_actors=1, ring_rows=8192, **QUICK) as manager:
        manager.grant([4000])
        chunks: list[Chunk] = []

        def died() -> bool:
            chunks.extend(manager.collect())
            return manager.present() == [False]

        wait_until(died, "the death")
        learner = Learner(manager, 1, tolerance=8000)
        learner.chunks = chunks
        learner.limiter.inserted(0, sum(chunk.env_steps for chunk in chunks))
        learner.until_back(0, 1)
        learner.until(6000)
        learner.stop()
    check(learner)
    first = [chunk.env_steps for chunk in learner.chunks if chunk.incarnation == 0]
    assert len(first) == 1  # the first push, however large it was when its 50 ms were over
    assert first[0] <= 2000


def test_a2_a_queue_that_is_shared_does_not_survive_that() -> None:
    """The negative control: whoever dies in the middle of a put takes the lock along, and nobody puts any more."""
    queue = shared_queue()
    with putting(queue, 8 * 2**20) as (victim, _):
        wait_until(lambda: not queue.empty(), "the first bytes")  # more do not fit: it has the lock
        os.kill(victim, SIGKILL)
        wait_gone(victim)
    with putting(queue, 2) as (sibling, told):
        read_all(queue)  # so there is room for two bytes, and still
        assert not queue._wlock.acquire(timeout=PATIENCE_S)  # type: ignore[attr-defined]
        assert not told.poll()
        os.kill(sibling, 0)
    queue.close()


@contextmanager
def putting(queue: SimpleQueue[bytes], nbytes: int) -> Iterator[tuple[int, Connection]]:
    """A child that has begun to put so many bytes: its process id, and where it says that it has put them."""
    told, theirs = multiprocessing.Pipe()
    with told, theirs:
        process = forkserver.start_process(put, (queue, nbytes, theirs), "naive")
        try:
            assert told.poll(TIMEOUT_S)
            assert told.recv() == "putting"
            assert process.pid is not None
            yield process.pid, told
        finally:
            forkserver.end_process(process)


def read_all(queue: SimpleQueue[bytes]) -> None:
    """Take out what the dead one had put in: less than a message, which is why `get` would wait for ever."""
    descriptor = queue._reader.fileno()  # type: ignore[attr-defined]
    while not queue.empty():
        assert os.read(descriptor, 2**16)


def test_a3_all_die_at_once_and_come_back() -> None:
    with running(counting_actors(lengths=LENGTHS), n_actors=3, **QUICK) as manager:
        learner = Learner(manager, 3)
        learner.until(300)
        for actor in range(3):
            learner.until_back(actor, 0)  # else one that has not been heard of may die with the others
        for pid in manager.pids():
            assert pid is not None
            os.kill(pid, SIGKILL)
        for actor in range(3):
            learner.until_back(actor, 1)
        assert max(learner.gap_s(actor, 0) for actor in range(3)) <= 5.0
        learner.stop()
    check(learner)


def test_a3_a_run_whose_actors_all_die_again_and_again_ends_with_the_cause(tmp_path: Path) -> None:
    words = [
        "env.entry_point=tests.faults.deadly:make_for_a_run",
        "env.kwargs.step=150",
        "actor_manager.restarts=1",
        "actor_manager.restart_delay_s=0.01",
    ]
    with border_train(tmp_path, *words) as command:
        log = tmp_path / "runs" / "latest" / "train.log"
        wait_until(
            lambda: log.exists() and log.read_text().count("restart 1 of 1") == 2, "two restarts", START_S
        )
        began = time.monotonic()
        assert command.end() == 5
        assert time.monotonic() - began <= ENDED_S
        first, second, kept = command.errors.splitlines()
        assert re.fullmatch(r"error: actor [01] was killed by SIGKILL \(it was acting\)", first)
        assert second.endswith(
            "it was restarted 1 times within 600 s, and fewer than actor_manager.min_actors=1 are left"
        )
        assert kept == what_is_kept(command.run, tmp_path)
        summary = command.run.summary
        assert summary["exit_code"] == 5
        assert [(actor["incarnation"], actor["state"]) for actor in summary["actors"]] == [(1, "lost")] * 2
        (newest, *_) = verified_checkpoints(command.run)
        assert newest.opt_steps == summary["counters"]["opt_steps"] > 0


def test_a4_an_actor_that_cannot_be_made_is_given_up_and_the_others_go_on(
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
    check(learner)
    assert [stat.state for stat in stats] == ["done", "done", "failed", "done"]
    assert [stat.restarts for stat in stats] == [0, 0, 5, 0]
    waits = re.findall(r"restart (\d) of 5 in (\S+) s", caplog.text)
    assert waits == [("1", "0.001"), ("2", "0.002"), ("3", "0.004"), ("4", "0.008"), ("5", "0.016")]
    assert "raise at make: given up after 5 restarts, 3 of 4 actors left" in caplog.text
    assert tracebacks(caplog) == 1


def test_a4_where_no_actor_comes_up_nothing_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    spec = counting_actors(fault="raise", fault_at="make")
    with running(spec, n_actors=3, start=False, restarts=5, min_actors=1) as manager:
        with pytest.raises(
            ActorLostError, match="failed while making the environment: RuntimeError: Count"
        ) as lost:
            manager.start(model())
        assert lost.value.logged
        assert tracebacks(caplog) == 1
        assert [stat.restarts for stat in manager.stats()] == [0, 0, 0]


def test_a4_nobody_is_busy_while_the_only_actor_waits_for_its_restart(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPU seconds of the learner, all threads of it, between the loss and the next start."""
    spent = list[float]()
    for name in ("_end", "_start_again"):
        monkeypatch.setattr(Supervisor, name, timed(getattr(Supervisor, name), spent))
    dying = ("env.entry_point=tests.faults.deadly:make_for_a_run", "env.kwargs.step=150", "n_actors=1")
    restarts = ("actor_manager.restarts=1", f"actor_manager.restart_delay_s={WAIT_S}")
    assert main(tiny("env=gym", *dying, *restarts)) == 5
    loss, start, *_ = spent
    assert (
        start - loss < 0.2 * WAIT_S
    )  # measured: 0.03, on a busy machine; who does not sleep takes all of it


def timed(method: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    """The method; each call notes the CPU seconds of this process before it."""
    return lambda *given: (spent.append(time.process_time()), method(*given))[1]


def test_a4_fewer_than_min_actors_end_the_run() -> None:
    with running(counting_actors(), n_actors=3, restarts=0, min_actors=2) as manager:
        learner = Learner(manager, 3)
        learner.until(100)
        os.kill(pid_of(manager, 0), SIGKILL)
        wait_until(lambda: learner.turn() or manager.pids()[0] is None, "the first to be given up")
        os.kill(pid_of(manager, 2), SIGKILL)
        with pytest.raises(ActorLostError, match=r"^actor 2 was killed by SIGKILL \(it was .*\)$"):
            wait_until(lambda: learner.turn() is not None, "the end")


# -- alive and silent ---------------------------------------------------


def test_a5_a_stopped_actor_is_replaced_for_good(caplog: pytest.LogCaptureFixture) -> None:
    spec = deadly_actors(((1, 0, 500),), "stop", lengths=LENGTHS)
    with running(spec, heartbeat_timeout_s=HEARTBEAT_S, **QUICK) as manager:
        learner = Learner(manager, 2)
        learner.until(100)
        frozen = pid_of(manager, 1)
        learner.until_back(1, 1)
        with pytest.raises(ProcessLookupError):
            os.kill(frozen, SIGCONT)
        assert learner.gap_s(1, 0) <= REPLACED_S
        learner.stop()
    check(learner)
    assert "actor 1 gave no sign of life for 0.4 s (it was acting): restart 1 of 20" in caplog.text


def test_a7_an_env_step_that_never_ends_costs_its_actor_and_nobody_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    spec = deadly_actors(((0, 0, 100), (0, 1, 50)), "hang", n_buffer=8, lengths=LENGTHS)
    with running(spec, heartbeat_timeout_s=HEARTBEAT_S, **QUICK) as manager:
        learner = Learner(manager, 2)
        learner.until_back(0, 2)
        assert max(learner.gap_s(0, 0), learner.gap_s(0, 1)) <= REPLACED_S
        learner.stop()
    check(learner)
    assert learner.arrived()[0, 0] <= 99
    assert learner.arrived()[0, 1] <= 49
    for n in (1, 2):
        assert f"actor 0 gave no sign of life for 0.4 s (it was acting): restart {n} of 20" in caplog.text


def test_making_an_environment_may_take_longer_than_the_heartbeat_allows() -> None:
    """At the start, and when it is made anew in place."""
    with running(slow_to_make_actors(), n_actors=1, heartbeat_timeout_s=HEARTBEAT_S, **QUICK) as manager:
        learner = Learner(manager, 1)
        wait_until(lambda: learner.turn() or manager.stats()[0].restarts == 2, "two restarts")
        assert manager.stats()[0].incarnation == 0
        learner.stop()


# -- environments that raise --------------------------------------------


@pytest.mark.parametrize("n_envs", [1, 3])
def test_a6_an_environment_that_raises_is_made_anew_in_place(
    n_envs: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    spec = counting_actors(n_envs=n_envs, fault="raise", fault_step=57, fault_actor=1, lengths=[10])
    reported: list[ActorLostError] = []
    with running(spec, restarts=1000, min_actors=1) as manager:
        manager._on_exception = reported.append
        pids = manager.pids()
        learner = Learner(manager, 2)
        wait_until(lambda: learner.turn() or manager.stats()[1].restarts >= 4, "four restarts in place")
        assert manager.pids() == pids
        learner.stop()
        stats = manager.stats()
    assert [stat.incarnation for stat in stats] == [0, 0]
    assert tracebacks(caplog) == len(reported) == 1
    assert reported[0].context == {
        "actor": 1, "incarnation": 0, "phase": "step", "env": 0, "episode": 5, "step": 6, "action": 0,
    }  # fmt: skip
    assert "actor 1: environment 0 raised in env step 7 of episode 6: RuntimeError" in caplog.text
    for env in range(n_envs):
        mine = [c.items for c in learner.chunks if c.actor == 1]
        rows = {
            name: np.concatenate([items[name][items["env"] == env] for items in mine])
            for name in ("obs", "span", "episode_length")
        }
        check_lives(rows["obs"], rows["span"])
        assert set(rows["episode_length"].tolist()) <= {0, 10}


def check_lives(obs: np.ndarray, span: np.ndarray) -> None:
    """Every transition leads to the next observation of the same environment's same episode; 56 steps make a life."""
    for row in np.flatnonzero(span[:-1]):
        assert (obs[row + 1, :3] == obs[row, :3]).all()
        assert obs[row + 1, 3] == obs[row, 3] + 1
    for life in list(dict.fromkeys(obs[:, 1].tolist()))[:-1]:
        assert np.count_nonzero(span[obs[:, 1] == life]) == 56


def test_a6_an_environment_that_always_raises_ends_in_finite_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    spec = counting_actors(fault="raise", fault_step=1)
    with running(spec, n_actors=1, restarts=2, restart_delay_s=0.001, min_actors=1) as manager:
        learner = Learner(manager, 1)
        with pytest.raises(ActorLostError) as lost:
            wait_until(lambda: learner.turn() is not None, "the end")
    first, second = str(lost.value).splitlines()
    assert (
        first
        == "actor 0 failed while stepping, after 0 env steps: RuntimeError: CountingEnv was told to raise at step"
    )
    assert second.startswith("it was restarted 2 times within 600 s")
    assert "counting.py" in lost.value.details
    assert lost.value.logged
    assert tracebacks(caplog) == 1
    assert caplog.text.count("made anew, 1 of 2") == caplog.text.count("made anew, 2 of 2") == 3
    assert learner.limiter.env_steps == 0


def test_a6_a_close_that_raises_is_logged_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with running(counting_actors(fault="raise", fault_at="close"), n_actors=1) as manager:
        learner = Learner(manager, 1)
        learner.until(100)
        learner.stop()
        assert manager.stats()[0].state == "done"
    assert "actor 0: closing the environments failed" in caplog.text


def test_a6_stop_ends_the_run_at_the_first_exception() -> None:
    spec = counting_actors(fault="raise", fault_step=57, fault_actor=1, lengths=[100])
    with running(spec, restarts=5, min_actors=1, on_env_error="stop") as manager:
        learner = Learner(manager, 2)
        with pytest.raises(ActorLostError, match="actor 1 failed while stepping, after 56 env steps") as lost:
            wait_until(lambda: learner.turn() is not None, "the end")
    assert (lost.value.context["episode"], lost.value.context["step"]) == (0, 56)
    assert not lost.value.logged


def test_a6_a_real_run_goes_on_and_keeps_the_context(tmp_path: Path) -> None:
    words = [
        "env.entry_point=border_cli.envs.counting:CountingEnv",
        "env.kwargs.fault=raise",
        "env.kwargs.fault_step=57",
        "env.kwargs.fault_actor=0",
        "env.kwargs.lengths=[10]",
        "actor_manager.restarts=1000",
        "evaluator.max_episode_steps=20",
        "trainer.max_opts=200",
        "n_actors=1",
        "recorder.console=plain",
    ]
    with border_train(tmp_path, *words) as command:
        assert command.end() == 0
        crash = command.run.json("crash.json")
        assert crash["context"] == {
            "actor": 0, "incarnation": 0, "phase": "step", "env": 0, "episode": 5, "step": 6,
            "action": crash["context"]["action"],
        }  # fmt: skip
        assert crash["context"]["action"] in (0, 1)
        assert 'counting.py", line' in "".join(crash["traceback"])
        log = (command.run.path / "train.log").read_text()
        assert log.count("Traceback (most recent call last)") == 1
        (actor,) = command.run.summary["actors"]
        assert (actor["incarnation"], actor["state"]) == (0, "done")
        assert actor["restarts"] == log.count("made anew") >= 3
        assert command.run.series("async/restarts")[-1][1] >= 3
        assert "warning: actor 0: environment 0 raised in env step 7" in (tmp_path / "output").read_text()


# -- what an actor takes with it ----------------------------------------


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_a8_what_an_environment_has_started_goes_with_its_actor(
    end: str, caplog: pytest.LogCaptureFixture
) -> None:
    spec = counting_actors()
    spec = replace(spec, env=Factory("tests.faults.deadly:make_env_with_helpers", spec.env.args))
    with running(spec, n_actors=1, **QUICK) as manager:
        (helper,) = (int(found) for found in re.findall(r"helper (\d+)", caplog.text))
        os.kill(helper, 0)
        if end == "killed":
            os.kill(pid_of(manager, 0), SIGKILL)
            Learner(manager, 1).until_back(0, 1)
        else:
            manager.stop()
        wait_gone(helper)


@pytest.mark.parametrize(
    ("way", "cause"), [("segfault", "was killed by SIGSEGV"), ("exit", "exited with code 3")]
)
def test_a9_a_native_crash_is_a_death_with_its_name(
    way: str, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    with running(deadly_actors(((0, 0, 20),), way, lengths=LENGTHS), n_actors=1, **QUICK) as manager:
        learner = Learner(manager, 1)
        learner.until_back(0, 1)
        learner.stop()
    check(learner)
    assert f"actor 0 {cause} (it was acting): restart 1 of 20" in caplog.text


def test_a10_restarts_take_no_more_memory_and_no_more_descriptors() -> None:
    def held() -> tuple[int, int]:
        maps = Path("/proc/self/maps").read_text().count("border-cli")
        return maps, len(list(Path("/proc/self/fd").iterdir()))

    deaths = tuple((0, incarnation, 5) for incarnation in range(8))
    with running(deadly_actors(deaths, lengths=LENGTHS, n_buffer=2), n_actors=1, **QUICK) as manager:
        learner = Learner(manager, 1)
        learner.until_back(0, 1)
        before = held()
        learner.until_back(0, 8)
        assert held() == before
        learner.stop()
    check(learner)


def test_f2_actors_go_before_the_learner_when_memory_ends() -> None:
    own = int(Path("/proc/self/oom_score_adj").read_text())
    with running(counting_actors()) as manager:
        for pid in manager.pids():
            assert int(Path(f"/proc/{pid}/oom_score_adj").read_text()) > own


# -- the credit of the absent -------------------------------------------


def test_one_that_is_back_waits_for_credit_until_its_absence_was_told() -> None:
    """The learner evaluates and only takes in: what the dead one held unused must not be used by its successor."""
    with running(counting_actors(lengths=LENGTHS), n_actors=1, **QUICK) as manager:
        manager.grant([10])
        wait_until(lambda: sum(c.env_steps for c in manager.collect()) == 10, "its env steps")
        manager.grant([10])
        victim = pid_of(manager, 0)
        os.kill(victim, SIGSTOP)
        manager.grant([500])
        os.kill(victim, SIGKILL)

        def replaced() -> bool:
            assert manager.collect() == []
            return manager.pids()[0] not in (None, victim) and manager._slots[0].ready

        wait_until(replaced, "its successor")
        assert manager.present() == [False]
        assert manager.stats()[0].env_steps == 10
        manager.grant([10])
        wait_until(lambda: manager.collect() == [] and manager.present() == [True], "its presence")
        manager.grant([15])
        chunks: list[Chunk] = []
        wait_until(
            lambda: chunks.extend(manager.collect()) or sum(c.env_steps for c in chunks) == 5, "five more"
        )
        assert {chunk.incarnation for chunk in chunks} == {1}


@pytest.mark.parametrize("restarts", [0, 5])
def test_b3_the_learner_waits_and_its_only_actor_dies(tmp_path: Path, restarts: int) -> None:
    """The actor hangs in env step 200, having handed over all before: when each opt step that these allow is done,
    the learner has nothing left to do but to wait.
    """
    words = [
        "env.kwargs.place=actor",
        "env.kwargs.at=step",
        "env.kwargs.then=hang",
        "env.kwargs.step=200",
        "actor_manager.n_buffer=1",
        "n_actors=1",
        "trainer.max_opts=400",
        f"actor_manager.restarts={restarts}",
        "actor_manager.restart_delay_s=0.01",
        "recorder.console=plain",
        "trainer.record_interval=1",
    ]
    cause = "actor 0 was killed by SIGKILL (it was acting)"
    with border_train(tmp_path, *words) as command:
        actor_pid = command.wait_for_trap()
        allowed = 199 - WARMUP
        wait_until(lambda: last_opt_step(command.run) == allowed, "the learner to wait")
        began = time.monotonic()
        os.kill(actor_pid, SIGKILL)
        wait_until(lambda: cause in (command.run.path / "train.log").read_text(), "the cause to be told")
        assert time.monotonic() - began <= 5.0
        assert command.end() == (0 if restarts else 5)
        (actor,) = command.run.summary["actors"]
        assert actor["restarts"] == actor["incarnation"] == (1 if restarts else 0)
        assert actor["state"] == ("done" if restarts else "lost")
        assert actor["env_steps"] == command.run.counts[1]
        if restarts:
            said = f"{cause}: restart 1 of 5 in 0.01 s"
            assert said in (command.run.path / "train.log").read_text()
            assert f"warning: {said}" in (tmp_path / "output").read_text()
            assert command.run.series("async/restarts")[-1][1] == 1
        else:
            assert command.errors.splitlines() == [f"error: {cause}", what_is_kept(command.run, tmp_path)]
            assert command.run.summary["error"] == cause
            assert command.run.counts == (allowed, 199)


def last_opt_step(run: Run) -> int:
    """The last that a running run has recorded."""
    path = run.path / "metrics.jsonl"
    return max((record["opt_steps"] for record in read_jsonl(path)), default=0) if path.exists() else 0


def test_d2_a_second_sigint_ends_a_run_whose_actor_hangs(tmp_path: Path) -> None:
    words = ["env.kwargs.place=actor", "env.kwargs.at=step", "env.kwargs.then=hang", "env.kwargs.step=100"]
    with border_train(tmp_path, *words, "actor_manager.stop_timeout_s=1000") as command:
        command.wait_for_trap()
        command.send(SIGINT, "group")
        command.wait_for_handling()
        command.send(SIGINT, "group")
        assert command.end() == 130
