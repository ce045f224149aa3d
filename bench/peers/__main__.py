"""Compare whole runs with those of other tools, in turn on this machine. Writes their tables in docs/performance.md.

    python -m bench.peers [--tasks TASK …] [--peers PEER …] [--rounds N] [--print-only]

Each peer has an environment of its own in .peers/, made by the first call. Every round runs each peer once and
border-train once, with another seed. Tables of tasks that were not run stay as they are.

A timed task ends at the first evaluation that reaches its target. Its time is that from the command to the evaluation,
without the time of evaluations. Every program has one torch thread, unless the task says otherwise. An earlier run has
compiled the opt step of border-train; a second row of the timed tasks is without that.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import runs
from bench.learning import opt_steps_per_s
from bench.report import machine, markdown, number, read_between_marks, write_between_marks
from border_cli.recorders.jsonl import METRICS_FILE

PROGRAMS = Path(__file__).parent / "programs"
ENVIRONMENTS = Path(".peers")
PAGE = Path("docs/performance.md")
EPISODES = 20
POLL_S = 0.02


@dataclass(frozen=True)
class Peer:
    """Another tool: its pinned packages, its program under programs/, and its gymnasium."""

    name: str
    packages: Sequence[str]
    program: str
    gymnasium: str = "gymnasium[classic-control,box2d,mujoco]==1.4.0"


PEERS = (
    Peer(
        "stable-baselines3",
        (
            "stable-baselines3==2.9.2",
            "sb3-contrib==2.9.2",
            "ale-py==0.12.0",
            "opencv-python-headless==4.13.0.92",
        ),
        "sb3.py",
    ),
    Peer("PFRL", ("pfrl==0.4.0", "packaging>=24"), "pfrl_dqn.py"),
    Peer("Tianshou", ("tianshou==2.0.1",), "tianshou_dqn.py"),
    Peer("RLlib", ("ray[rllib]==2.60.0",), "rllib.py", gymnasium="gymnasium[classic-control,mujoco]==1.2.2"),
    Peer("sheeprl", ("sheeprl==0.8.4",), "sheeprl_sac.py"),
)
OURS = "border-train"
FIRST = "border-train, nothing compiled yet"


@dataclass(frozen=True)
class Task:
    """A run of each tool. target: the greedy mean return that ends it; None measures opt steps per second.

    options: arguments of `border-train` beside agent and threads. peers: names of those that have the agent. threads: of
    torch in each program that learns.
    """

    name: str
    env_id: str
    hidden: Sequence[int]
    max_env_steps: int
    options: Sequence[str]
    peers: Sequence[str]
    target: float | None = None
    eval_interval: int = 500
    agent: str = "dqn"
    threads: int = 1


DQN_PEERS = ("stable-baselines3", "PFRL", "Tianshou", "RLlib")
SAC_PEERS = ("stable-baselines3", "RLlib", "sheeprl")
SB3 = DQN_PEERS[:1]
ZOO_CARTPOLE = (
    "env=cartpole",
    "buffer.n_step=1",
    "agent.double=false",
    "agent.batch_size=64",
    "agent.normalize_obs=false",
    "agent.dueling=false",
    "trainer.opt_interval=2.0",
    "trainer.max_env_steps=51000",
    "trainer.eval_interval=null",
)
CHEETAH = "env=halfcheetah", "trainer.max_env_steps=14000", "trainer.eval_interval=null"
PONG = (
    "env=pong",
    "agent.double=false",
    "buffer.capacity=20000",
    "trainer.warmup_period=2000",
    "trainer.max_env_steps=8000",
    "trainer.eval_interval=null",
    "trainer.record_interval=250",
)


def _rate(
    name: str, env_id: str, hidden: Sequence[int], max_env_steps: int, options: Sequence[str],
    peers: Sequence[str] = SB3, agent: str = "dqn", threads: int = 1,
) -> Task:  # fmt: skip
    """A task that measures opt steps per second, with these networks in both tools."""
    sizes = f"agent.hidden={list(hidden)}".replace(" ", "")
    return Task(name, env_id, hidden, max_env_steps, (*options, sizes), peers, agent=agent, threads=threads)


TASKS = (
    Task("CartPole to 475", "CartPole-v1", (256, 256), 50_000, ("env=cartpole",), DQN_PEERS, 475.0),
    Task("Acrobot to -85", "Acrobot-v1", (256, 256), 100_000, ("env=acrobot",), SB3, -85.0),
    Task(
        "LunarLander to 200", "LunarLander-v3", (256, 256), 100_000, ("env=lunarlander",), SB3, 200.0, 2_500
    ),
    Task(
        "HalfCheetah to 5,000, border-train in bfloat16",
        "HalfCheetah-v5",
        (256, 256),
        300_000,
        ("env=halfcheetah", "preset=sac_halfcheetah_fast", "agent.precision=bfloat16"),
        SB3,
        5_000.0,
        2_500,
        agent="sac",
    ),
    _rate("DQN 256-256", "CartPole-v1", (256, 256), 20_000, ZOO_CARTPOLE, DQN_PEERS),
    _rate("DQN 64-64", "CartPole-v1", (64, 64), 20_000, ZOO_CARTPOLE, DQN_PEERS),
    _rate(
        "QR-DQN 256-256, 200 quantiles",
        "CartPole-v1",
        (256, 256),
        12_000,
        (*ZOO_CARTPOLE, "agent.quantiles=200"),
        agent="qrdqn",
    ),
    _rate("SAC 256-256, HalfCheetah", "HalfCheetah-v5", (256, 256), 12_000, CHEETAH, SAC_PEERS, agent="sac"),
    _rate(
        "SAC 256-256, HalfCheetah, two threads",
        "HalfCheetah-v5",
        (256, 256),
        12_000,
        CHEETAH,
        agent="sac",
        threads=2,
    ),
    _rate(
        "SAC 256-256, HalfCheetah, border-train in bfloat16",
        "HalfCheetah-v5",
        (256, 256),
        12_000,
        (*CHEETAH, "agent.precision=bfloat16"),
        agent="sac",
    ),
    _rate("TD3 400-300, HalfCheetah", "HalfCheetah-v5", (400, 300), 12_000, CHEETAH, agent="td3"),
    _rate("TQC 256-256, HalfCheetah", "HalfCheetah-v5", (256, 256), 11_500, CHEETAH, agent="tqc"),
    _rate("DQN, Pong", "ALE/Pong-v5", (512,), 8_000, PONG),
    _rate("DQN, Pong, two threads", "ALE/Pong-v5", (512,), 8_000, PONG, threads=2),
)


@dataclass(frozen=True)
class Timed:
    """A run up to its target. seconds: until its end if it missed the target."""

    seconds: float
    env_steps: int | None


def main() -> None:
    """Run the tasks and write their tables."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--tasks", nargs="+", choices=[task.name for task in TASKS], metavar="TASK")
    parser.add_argument("--peers", nargs="*", choices=[peer.name for peer in PEERS], metavar="PEER")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--print-only", action="store_true")
    args = parser.parse_args()
    peers = [peer for peer in PEERS if args.peers is None or peer.name in args.peers]
    for peer in peers:
        install(peer)
    for task in TASKS:
        if args.tasks is None or task.name in args.tasks:
            table = _compare(task, [peer for peer in peers if peer.name in task.peers], args.rounds)
            print(table, flush=True)
            if not args.print_only:
                write_between_marks(PAGE, _with_table(read_between_marks(PAGE, "peers"), table), "peers")


def _with_table(section: str, table: str) -> str:
    """The section of the page with this table, in the order of the tasks and in place of an older one of its task."""
    older = [part for part in section.split("\n\n") if part.startswith("|")]
    tables = {_task_name(one): one for one in (*older, table)}
    return "\n\n".join([f"{machine()}.", *(tables[task.name] for task in TASKS if task.name in tables)])


def _task_name(table: str) -> str:
    return table.split("|")[1].strip()


def _compare(task: Task, peers: Sequence[Peer], rounds: int) -> str:
    """Run the task `rounds` times with each tool, in turn, and return its table."""
    ours = (OURS,) if task.target is None else (OURS, FIRST)
    measured: dict[str, list[Timed]] = {name: [] for name in (*ours, *(peer.name for peer in peers))}
    rates: dict[str, list[float]] = {name: [] for name in measured}
    compile_opt_step(task)
    for seed in range(1, rounds + 1):
        for name in measured:
            peer = next((peer for peer in peers if peer.name == name), None)
            with tempfile.TemporaryDirectory() as folder:
                if task.target is None:
                    rates[name].append(
                        _peer_rate(task, peer, seed) if peer else _our_rate(task, Path(folder), seed)
                    )
                else:
                    cache = Path(folder) / "cache" if name == FIRST else None
                    run_dir = Path(folder) / "run"
                    measured[name].append(_until_target(task, task.target, peer, run_dir, seed, cache))
            print(task.name, name, seed, (measured[name] or rates[name])[-1], file=sys.stderr, flush=True)
    return _rate_table(task, rates) if task.target is None else _time_table(task, measured)


def _until_target(
    task: Task, target: float, peer: Peer | None, run_dir: Path, seed: int, cache: Path | None
) -> Timed:
    """Train until an evaluation reaches the target, and end the program there. cache: of compiled opt steps."""
    began = time.monotonic()
    program, evaluations = start_evaluated(task, peer, run_dir, seed, cache)
    reached = None
    eval_s = 0.0
    for record in evaluations:
        eval_s = record["eval_s"]
        if record["return_mean"] >= target:
            reached = int(record["env_steps"])
            break
    seconds = time.monotonic() - began - eval_s
    program.terminate()
    output, _ = program.communicate()
    if reached is None and program.returncode:
        raise SystemExit(f"{program.args!r} ended with {program.returncode}:\n{output}")
    return Timed(seconds, reached)


def start_evaluated(
    task: Task, peer: Peer | None, run_dir: Path, seed: int, cache: Path | None = None
) -> tuple[subprocess.Popen[str], Iterator[dict[str, Any]]]:
    """Start a run, of border-train without a peer. Returns its program and its evaluations, as they happen.

    Each has at least `env_steps`, `return_mean`, and `eval_s`, the seconds that evaluations have taken so far.
    """
    if peer is None:
        options = (
            f"trainer.eval_interval={task.eval_interval}",
            "evaluator=inline",  # the learner waits, so that the time of evaluations can be left out
            "evaluator.confirm=false",
            f"evaluator.episodes={EPISODES}",
            f"seed={seed}",
        )
        program = _start(_border_train(task, *options, f"hydra.run.dir={run_dir}"), task.threads, cache)
        evaluations = _our_evaluations(run_dir / METRICS_FILE, program)
    else:
        program = _start(_peer_command(task, peer, seed), task.threads)
        evaluations = _peer_evaluations(program)
    return program, evaluations


def _our_evaluations(metrics: Path, program: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """Yield the evaluations of a run as they appear in metrics.jsonl, until it ends."""
    offset, eval_s = 0, 0.0
    while True:
        ended = program.poll() is not None
        if metrics.exists():
            with metrics.open() as file:
                file.seek(offset)
                text = file.read()
            complete = text[: text.rfind("\n") + 1]
            offset += len(complete.encode())
            for line in complete.splitlines():
                record = json.loads(line)
                if "eval/return_mean" in record:
                    eval_s += record["time/eval_ms"] / 1000
                    yield {**record, "return_mean": record["eval/return_mean"], "eval_s": eval_s}
        if ended:
            return
        time.sleep(POLL_S)


def _peer_evaluations(program: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert program.stdout is not None
    for line in program.stdout:
        if line.startswith("{") and "return_mean" in (record := json.loads(line)):
            yield record


def _our_rate(task: Task, folder: Path, seed: int) -> float:
    runs.train(folder / "run", [*_arguments(task), f"seed={seed}"])
    return opt_steps_per_s(folder / "run")


def _peer_rate(task: Task, peer: Peer, seed: int) -> float:
    program = _start(_peer_command(task, peer, seed), task.threads)
    output, _ = program.communicate()
    if program.returncode:
        raise SystemExit(f"{peer.name} ended with {program.returncode}:\n{output}")
    return float(json.loads(output.splitlines()[-1])["opt_steps_per_s"])


def _start(command: Sequence[str], threads: int, cache: Path | None = None) -> subprocess.Popen[str]:
    env = os.environ | {"OMP_NUM_THREADS": str(threads)}
    env |= {} if cache is None else {"XDG_CACHE_HOME": str(cache)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)


def compile_opt_step(task: Task) -> None:
    """Compile the opt step of the task, so that later runs of it use it from their start."""
    with tempfile.TemporaryDirectory() as folder:
        short = (
            "trainer=sync",
            "trainer.max_env_steps=null",
            "trainer.max_opts=1",
            "trainer.warmup_period=500",
        )
        runs.train(
            Path(folder) / "run",
            [*_arguments(task), *short, "agent.compile=true", "trainer.eval_interval=null"],
        )


def _border_train(task: Task, *options: str) -> list[str]:
    return [sys.executable, "-m", "border_cli", *_arguments(task), *options]


def _arguments(task: Task) -> list[str]:
    return [f"agent={task.agent}", *task.options, f"threads={task.threads}"]


def _peer_command(task: Task, peer: Peer, seed: int) -> list[str]:
    asked = {
        "agent": task.agent,
        "env_id": task.env_id,
        "seed": seed,
        "hidden": list(task.hidden),
        "max_env_steps": task.max_env_steps,
        "eval_interval": 0 if task.target is None else task.eval_interval,
        "episodes": EPISODES,
    }
    return [str(_python(peer)), "-u", str(PROGRAMS / peer.program), json.dumps(asked)]


def _python(peer: Peer) -> Path:
    return ENVIRONMENTS / peer.name / "bin" / "python"


def install(peer: Peer) -> None:
    """Make the peer's environment unless it is there and complete."""
    folder = ENVIRONMENTS / peer.name
    packages = ["torch==2.13.0", peer.gymnasium, *peer.packages]
    stamp = folder / "packages.json"
    if stamp.exists() and json.loads(stamp.read_text()) == packages:
        return
    print(f"installing {peer.name} into {folder}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    subprocess.run(
        [_python(peer), "-m", "pip", "install", "-q", "-c", "constraints.txt", *packages], check=True
    )
    stamp.write_text(json.dumps(packages))


def _time_table(task: Task, measured: Mapping[str, Sequence[Timed]]) -> str:
    def row(runs_of: Sequence[Timed]) -> list[str]:
        hits = [run.env_steps for run in runs_of if run.env_steps is not None]
        seconds = [run.seconds for run in runs_of]
        steps = number(statistics.median(hits)) if hits else ""
        return [f"{len(hits)} of {len(runs_of)}", steps, *_spread(seconds, "s")]

    head = [task.name, "reached", "env steps", "seconds", "range"]
    return _table(head, measured, row, lambda runs_of: statistics.median(run.seconds for run in runs_of))


def _rate_table(task: Task, rates: Mapping[str, Sequence[float]]) -> str:
    head = [task.name, "opt steps/s", "range"]
    return _table(
        head, rates, lambda values: _spread(values, ""), lambda values: 1 / statistics.median(values)
    )


def _spread(values: Sequence[float], unit: str) -> list[str]:
    space = " " if unit else ""
    return [
        f"{number(statistics.median(values))}{space}{unit}",
        f"{number(min(values))} to {number(max(values))}{space}{unit}",
    ]


def _table(
    head: Sequence[str],
    results: Mapping[str, Any],
    row: Callable[[Any], list[str]],
    cost: Callable[[Any], float],
) -> str:
    """cost: the median time of a tool's runs; the last column has it as a multiple of ours."""
    ours = cost(results[OURS])
    rows = [[name, *row(values), f"{cost(values) / ours:.2f}"] for name, values in results.items()]
    return markdown([*head, "time over border-train's"], rows)


if __name__ == "__main__":
    main()
