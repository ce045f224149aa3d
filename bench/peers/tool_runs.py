"""Starts runs of border-train and of its peers, and reads their evaluations and speeds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import runs
from bench.learning import opt_steps_per_s
from bench.peers.tasks import EPISODES, Peer, Task
from border_cli.recorders.files import METRICS_FILE

PROGRAMS = Path(__file__).parent / "programs"
ENVIRONMENTS = Path(".peers")
POLL_S = 0.02


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


def our_rate(task: Task, folder: Path, seed: int) -> float:
    """Opt steps per second of border-train."""
    runs.train(folder / "run", [*_arguments(task), f"seed={seed}"])
    return opt_steps_per_s(folder / "run")


def peer_rate(task: Task, peer: Peer, seed: int) -> float:
    """Opt steps per second of a peer."""
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
    return [str(python(peer)), "-u", str(PROGRAMS / peer.program), json.dumps(asked)]


def python(peer: Peer) -> Path:
    """The interpreter of the peer's environment."""
    return ENVIRONMENTS / peer.name / "bin" / "python"


def install(peer: Peer) -> None:
    """Make the peer's environment unless it is there and complete."""
    folder = ENVIRONMENTS / peer.name
    packages = ["torch==2.13.0", "gymnasium[classic-control,box2d,mujoco]==1.4.0", *peer.packages]
    stamp = folder / "packages.json"
    if stamp.exists() and json.loads(stamp.read_text()) == packages:
        return
    print(f"installing {peer.name} into {folder}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    subprocess.run(
        [python(peer), "-m", "pip", "install", "-q", "-c", "constraints.txt", *packages], check=True
    )
    stamp.write_text(json.dumps(packages))
