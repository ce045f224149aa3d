"""Opt steps per second: complete runs against the bare update, and free-running runs against other modes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench import runs
from bench.report import Figure
from border_cli.core.protocols import Agent, ReplayBuffer

if TYPE_CHECKING:  # torch would be imported by processes that only start others
    from border_cli.agents.agent import NetworkAgent

OPT_STEPS = 20_000
BATCH, HIDDEN, WARMUP = 64, (256, 256), 1_000
ALONE_TARGET, BUSY_TARGET, LOCKSTEP_TARGET = "at least 0.95", "at least 0.9", "at least 0.85"
MODES_OPT_STEPS, ACTORS = 10_000, (1, 8)
COMMON = (
    "agent=dqn",
    "env=cartpole",
    "preset=none",
    "threads=1",
    "agent.compile=true",
    f"agent.batch_size={BATCH}",
    f"agent.hidden={list(HIDDEN)}".replace(" ", ""),
    "trainer.opt_interval=2",
    f"trainer.warmup_period={WARMUP}",
    "trainer.eval_interval=null",
    "trainer.save_interval=null",
)


def measure(folder: Path, repetitions: int) -> list[Figure]:
    """Compare runs with 1 and 8 actors with the mean of the bare updates measured before and after each run."""
    bare = [_bare_in_its_own_process()]
    whole: dict[int, list[float]] = {1: [], 8: []}
    ratio: dict[int, list[float]] = {1: [], 8: []}
    for i in range(repetitions):
        for n_actors, rates in whole.items():
            rates.append(_rate(folder / f"learning-{n_actors}-{i}", f"n_actors={n_actors}", OPT_STEPS))
            bare.append(_bare_in_its_own_process())
            ratio[n_actors].append(2 * rates[-1] / (bare[-2] + bare[-1]))
    return [
        Figure("bare update on a ready batch", bare, "opt steps/s"),
        Figure("asynchronous run, 1 actor", whole[1], "opt steps/s"),
        Figure("asynchronous run, 8 actors", whole[8], "opt steps/s"),
        Figure("run over bare update, 1 actor", ratio[1], "", ALONE_TARGET),
        Figure("run over bare update, 8 actors", ratio[8], "", BUSY_TARGET),
    ]


def bare_update_rate() -> float:
    """Return the opt steps/s of DQN's compiled update alone: one thread, always the same batch, no replay, no actors."""
    import torch

    from border_cli import compose
    from border_cli.agents.agent import NetworkAgent
    from border_cli.agents.params import BatchLoader
    from border_cli.config.schema import EnvConfig
    from border_cli.envs.group import GymEnv
    from border_cli.run import factories
    from border_cli.run.probes import made_up
    from border_cli.runtime.worker import keep_freed_memory

    torch.set_num_threads(1)
    keep_freed_memory()  # like a run
    config = compose(*COMMON)
    spec = GymEnv(EnvConfig(id="CartPole-v1")).spec
    agent, buffer = factories.make_agent(config, spec), factories.make_buffer(config, spec)
    assert isinstance(agent, NetworkAgent)
    buffer.push(made_up(spec, WARMUP, config))
    compile_steps(agent, buffer)
    algorithm, batch = agent.algorithm, BatchLoader(BATCH, torch.device("cpu")).next(buffer)

    def update(n: int) -> None:
        for i in range(1, n + 1):
            algorithm.graphs[algorithm.variant(i)](batch, algorithm.noise(BATCH), 1.0)
            algorithm.update_targets(i)

    update(OPT_STEPS // 20)
    began = time.perf_counter()
    update(OPT_STEPS)
    return OPT_STEPS / (time.perf_counter() - began)


def compile_steps(agent: NetworkAgent, buffer: ReplayBuffer) -> None:
    """Do one opt step, compiled, so that all later ones are. Ends the program where that is not possible."""
    from border_cli.agents.compiler import GraphCompiler
    from border_cli.runtime.stopping import StopFlag

    compiler = GraphCompiler(agent, [], True, StopFlag())  # type: ignore[arg-type]
    agent.compiling = compiler.poll
    agent.opt(buffer)
    compiler.close()
    if not agent.algorithm.graphs:
        raise SystemExit("the opt step could not be compiled")


def _bare_in_its_own_process() -> float:
    code = "import json; from bench.learning import bare_update_rate; print(json.dumps(bare_update_rate()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout))


def opt_rate(agent: Agent, buffer: ReplayBuffer, seconds: float) -> float:
    """Return opt steps/s, sampling included, after some that are not counted."""
    for _ in range(5):
        agent.opt(buffer)
    began, n = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < seconds:
        agent.opt(buffer)
        n += 1
    return n / passed


def opt_steps_per_s(run_dir: Path) -> float:
    """Return the opt steps/s from the record after the warm-up to the last one."""
    at = {r["opt_steps"]: r["time"] for r in runs.records(run_dir) if "throughput/samples_total" in r}
    last = max(at)
    return last / float(at[last] - at[0])


def measure_modes(folder: Path, repetitions: int) -> list[Figure]:
    """Compare each mode with the mean of the free-running runs before and after it."""
    sync: list[float] = []
    free: dict[int, list[float]] = {n: [] for n in ACTORS}
    lockstep: dict[int, list[float]] = {n: [] for n in ACTORS}
    ratio: dict[int, list[float]] = {n: [] for n in ACTORS}
    for i in range(repetitions):
        sync.append(_rate(folder / f"sync-{i}", "trainer=sync"))
        for n in ACTORS:
            before = _rate(folder / f"free-{n}-{i}", f"n_actors={n}")
            lockstep[n].append(_rate(folder / f"lockstep-{n}-{i}", f"n_actors={n} trainer.lockstep=true"))
            after = _rate(folder / f"free-{n}-{i}-after", f"n_actors={n}")
            free[n] += [before, after]
            ratio[n].append(2 * lockstep[n][-1] / (before + after))
    return [
        Figure("synchronous", sync, "opt steps/s"),
        *(Figure(f"free-running, {_actors(n)}", free[n], "opt steps/s") for n in ACTORS),
        *(Figure(f"lockstep, {_actors(n)}", lockstep[n], "opt steps/s") for n in ACTORS),
        *(Figure(f"lockstep over free-running, {_actors(n)}", ratio[n], "", LOCKSTEP_TARGET) for n in ACTORS),
    ]


def _rate(run_dir: Path, words: str, opt_steps: int = MODES_OPT_STEPS) -> float:
    """Return the opt steps/s of a run."""
    runs.train(run_dir, [*COMMON, f"trainer.max_opts={opt_steps}", *words.split()])
    return opt_steps_per_s(run_dir)


def _actors(n: int) -> str:
    return "1 actor" if n == 1 else f"{n} actors"
