"""Whole runs on a GPU beside stable-baselines3's. Writes the table of whole runs in docs/performance/gpu.md.

    python -m bench.gpu_evidence [--only TEXT] [--wheels FOLDER] [--page-only]

It takes about nine minutes. Each measurement is stored in bench/results/gpu/ when it ends, and is not repeated. Runs of
stable-baselines3 need its packages: from FOLDER, which has their wheels, or else from PyPI; without them they are skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench import runs
from bench.learning import opt_steps_per_s
from bench.report import markdown, number, write_between_marks
from border_cli.runtime.machine import cpus

KEPT = Path(__file__).parent / "results" / "gpu"
RUNS = Path("runs/gpu")
PAGE = Path("docs/performance/gpu.md")
PEER = Path(".peers/gpu")
PEER_PROGRAM = Path(__file__).parent / "peers" / "programs" / "sb3.py"
PEER_PACKAGES = (
    "stable-baselines3==2.9.2",
    "sb3-contrib==2.9.2",
    "cloudpickle",
    "pandas",
    "python-dateutil",
    "six",
)
N_ACTORS = min(max(cpus() - 2, 8), 14)
SEED = 1
SAMPLE_MS = 500
_ATARI = (
    *(f"n_actors={N_ACTORS}", "buffer.n_step=3", "agent.dueling=true"),
    *(
        "agent.lr=2.5e-4",
        "agent.adam_eps=1.5e-4",
        "agent.epsilon_final=0.02",
        "agent.epsilon_env_steps=50000",
    ),
    *("trainer.warmup_period=10000", "trainer.eval_interval=20000", "trainer.save_interval=null"),
)
_SAC = ("n_actors=8", "trainer.save_interval=null")


@dataclass(frozen=True)
class Measurement:
    """A run. ours: arguments of border-train; without them stable-baselines3 trains `peer`, a task of its program."""

    name: str
    seconds: float
    ours: tuple[str, ...] = ()
    peer: dict[str, Any] = field(default_factory=dict)


def _peer(agent: str, env_id: str, hidden: list[int]) -> dict[str, Any]:
    unused = {"eval_interval": 0, "episodes": 1}
    return {"agent": agent, "env_id": env_id, "hidden": hidden, "seed": SEED, "max_env_steps": 10**6} | unused


MEASUREMENTS = (
    Measurement("pong_dqn", 150, ours=("agent=dqn", "env=pong", *_ATARI)),
    Measurement("halfcheetah_sac", 60, ours=("agent=sac", "env=halfcheetah", *_SAC)),
    Measurement("halfcheetah_sac_sb3", 25, peer=_peer("sac", "HalfCheetah-v5", [256, 256])),
    Measurement("pong_dqn_sb3", 25, peer=_peer("dqn", "ALE/Pong-v5", [512])),
    Measurement("breakout_dqn", 90, ours=("agent=dqn", "env=breakout", *_ATARI)),
    Measurement("breakout_dqn_sb3", 25, peer=_peer("dqn", "ALE/Breakout-v5", [512])),
)


def main() -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu_evidence", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--only", default="", help="measurements whose names contain this")
    parser.add_argument("--wheels", type=Path, help="a folder with wheels of what stable-baselines3 needs")
    parser.add_argument("--page-only", action="store_true", help="write the table from what is there")
    parser.add_argument("--try-on-cpu", type=float, metavar="SECONDS", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.page_only:
        return write_page()
    if args.try_on_cpu is None and (gpu := gpu_name()) is None:
        raise SystemExit("there is no GPU that torch can use")
    peer_env = None
    for measurement in MEASUREMENTS:
        path = KEPT / f"{measurement.name}.json"
        if args.only not in measurement.name or path.exists():
            continue
        if measurement.peer and peer_env is None:
            peer_env = peer_environment(args.wheels)
        if measurement.peer and not peer_env:
            continue
        print(f"{measurement.name}: about {measurement.seconds:.0f} s", flush=True)
        if args.try_on_cpu is not None:
            print(measure(measurement, "cpu", args.try_on_cpu, peer_env), flush=True)
            continue
        result = measure(measurement, "cuda", measurement.seconds, peer_env) | {"gpu": gpu} | _provenance()
        KEPT.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(f"{measurement.name}: {number(result['opt_steps_per_s'])} opt steps/s", flush=True)
        write_page()
    return None


def gpu_name() -> str | None:
    """Name of the GPU; None without one. In a process of its own, so that this one has no CUDA context."""
    code = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def peer_environment(wheels: Path | None) -> dict[str, str]:
    """Environment variables with which this Python has stable-baselines3, installed if need be; {} if it cannot be had."""
    folders = [str(PEER), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(folders)}
    if _has_peer(env):
        return env
    source = [str(path) for path in sorted(wheels.glob("*.whl"))] if wheels else list(PEER_PACKAGES)
    options = ["--no-index"] if wheels else []
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--upgrade", "--target", str(PEER)]
    done = subprocess.run([*command, *options, *source], capture_output=True, text=True, check=False)
    if done.returncode == 0 and _has_peer(env):
        return env
    reason = (done.stderr.strip().splitlines() or ["its packages are not complete"])[-1]
    print(f"stable-baselines3 is skipped, because it cannot be installed: {reason}", flush=True)
    return {}


def _has_peer(env: dict[str, str]) -> bool:
    command = [sys.executable, "-c", "import stable_baselines3, sb3_contrib, ale_py"]
    return subprocess.run(command, env=env, capture_output=True, check=False).returncode == 0


def measure(
    measurement: Measurement, device: str, seconds: float, peer_env: dict[str, str] | None
) -> dict[str, Any]:
    """Run a measurement for some seconds of training, and return what is stored of it."""
    began = time.monotonic()
    with gpu_samples() as samples:
        if measurement.ours:
            result = _ours(measurement, device, seconds)
        else:
            assert peer_env
            result = _theirs(measurement, device, seconds, peer_env)
    middle = samples[
        len(samples) // 4 : 3 * len(samples) // 4
    ]  # training in any case, not the start or the end
    for i, name in enumerate(("gpu_percent", "gpu_mib")):
        result[name] = round(statistics.fmean(sample[i] for sample in middle), 1) if middle else None
    return result | {"name": measurement.name, "wall_s": round(time.monotonic() - began, 1), "seed": SEED}


def _ours(measurement: Measurement, device: str, seconds: float) -> dict[str, Any]:
    run_dir = RUNS / measurement.name
    shutil.rmtree(run_dir, ignore_errors=True)
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    args = [*measurement.ours, f"device={device}", f"seed={SEED}", f"trainer.max_time={seconds:g}"]
    args += [f"buffer.device={device}", "evaluator.confirm=false", "evaluator.episodes=10"]
    runs.train(run_dir, args)
    records = runs.records(run_dir)
    curve = [
        [r["env_steps"], round(r["time"], 1), round(r["eval/return_mean"], 2)]
        for r in records
        if "eval/return_mean" in r
    ]
    counted = {name: max(r[name] for r in records) for name in ("opt_steps", "env_steps")}
    return {
        "tool": "border-train",
        "args": args,
        "opt_steps_per_s": opt_steps_per_s(run_dir),
        "curve": curve,
    } | counted


def _theirs(measurement: Measurement, device: str, seconds: float, env: dict[str, str]) -> dict[str, Any]:
    task = measurement.peer | {"device": device, "max_seconds": seconds}
    command = [sys.executable, str(PEER_PROGRAM), json.dumps(task)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"stable-baselines3 ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    rate = json.loads(done.stdout.splitlines()[-1])["opt_steps_per_s"]
    return {"tool": "stable-baselines3", "args": task, "opt_steps_per_s": rate}


@contextmanager
def gpu_samples() -> Iterator[list[list[float]]]:
    """Sample the GPU while the block runs: the list has [utilisation in %, memory in MiB] of each sample after it."""
    samples: list[list[float]] = []
    command = ["nvidia-smi", "--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits"]
    if shutil.which(command[0]) is None:
        yield samples
        return
    with tempfile.TemporaryFile("w+") as file:
        sampler = subprocess.Popen([*command, "--id=0", f"--loop-ms={SAMPLE_MS}"], stdout=file)
        try:
            yield samples
        finally:
            sampler.terminate()
            sampler.wait()
        file.seek(0)
        lines = file.read().splitlines()
    samples += [[float(value) for value in line.split(",")] for line in lines if line.count(",") == 1]


def _provenance() -> dict[str, Any]:
    head = ["git", "rev-parse", "--short", "HEAD"]
    git = (
        subprocess.run(head, capture_output=True, text=True, check=False).stdout
        if shutil.which("git")
        else ""
    )
    software = {name: version(name) for name in ("torch", "gymnasium", "numpy")}
    software["python"] = platform.python_version()
    return {"commit": git.strip() or "unknown", "cpus": cpus(), "versions": software}


def write_page() -> None:
    """Write the table of the stored results into the page."""
    results = [
        json.loads(path.read_text(encoding="utf-8"))
        for measurement in MEASUREMENTS
        if (path := KEPT / f"{measurement.name}.json").exists()
    ]
    if not results:
        return write_between_marks(PAGE, "\nWhole runs have not been measured on a GPU yet.\n", "whole runs")
    head = [
        "task",
        "tool",
        "opt steps/s",
        "GPU utilisation",
        "GPU memory",
        "env steps",
        "best evaluation",
        "seconds",
    ]
    rows = [_row(result) for result in results]
    first = results[0]
    machine = f"{first['gpu']}, {first['cpus']} CPU cores, torch {first['versions']['torch']}"
    return write_between_marks(
        PAGE, f"\n{machine}, commit {first['commit']}.\n\n{markdown(head, rows)}\n", "whole runs"
    )


def _row(result: dict[str, Any]) -> list[str]:
    env, agent = result["name"].split("_")[:2]
    steps = f"{result['env_steps']:,}" if "env_steps" in result else "–"
    best = max((point[2] for point in result.get("curve", ())), default=None)
    return [
        f"{agent}, {env}",
        result["tool"],
        number(result["opt_steps_per_s"]),
        "–" if result["gpu_percent"] is None else f"{result['gpu_percent']:.0f}%",
        "–" if result["gpu_mib"] is None else f"{result['gpu_mib']:,.0f} MiB",
        steps,
        "–" if best is None else f"{best:.1f}",
        f"{result['wall_s']:.0f}",
    ]


if __name__ == "__main__":
    main()
