"""A sweep of twelve CartPole runs: in slots beside one after the other, and killed three times beside never.

    python -m bench.sweep [--env-steps 8000] [--rounds 3]
    python -m bench.sweep --start

With --start: how long eight jobs of 1,100 env steps take beside their training, each. Otherwise the durations with their
ratio, and the median of the rounds, for jobs that use one CPU each. (A job that has two to itself evaluates on the second
one, unless evaluator=inline.) Then whether a killed sweep, in lockstep, ended with the scores of one that was not killed.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from border_cli.recorders.files import read_jsonl

WORDS = ("-m", "agent=dqn,iqn", "env=cartpole", "seed=1,2,3,4,5,6", "recorder.console=plain")
ONE_CPU = ("trainer=sync", "evaluator=inline")
LOCKSTEP = "trainer.lockstep=true"
KILLS = 3


def command(folder: Path, env_steps: int, *words: str) -> list[str]:
    """The command line of the sweep."""
    train = str(Path(sys.executable).with_name("border-train"))
    return [train, *WORDS, f"trainer.max_env_steps={env_steps}", f"hydra.sweep.dir={folder}", *words]


def timed(folder: Path, env_steps: int, *words: str) -> float:
    """Seconds that a whole sweep takes."""
    began = time.monotonic()
    subprocess.run(command(folder, env_steps, *words), check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def started(folder: Path) -> float:
    """Seconds that each of eight short jobs, one after the other, takes beside its training."""
    words = (
        "-m",
        "agent=dqn",
        "env=cartpole",
        "seed=range(1,9)",
        "trainer.max_env_steps=1100",
        "sweep.slots=1",
    )
    train = str(Path(sys.executable).with_name("border-train"))
    began = time.monotonic()
    subprocess.run([train, *words, f"hydra.sweep.dir={folder}"], check=True, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - began
    summaries = [json.loads(path.read_text()) for path in folder.glob("*/summary.json")]
    return (seconds - math.fsum(summary["seconds"] for summary in summaries)) / len(summaries)


def killed(folder: Path, env_steps: int, whole_s: float) -> list[float]:
    """Kill a sweep at random moments, and let it end. Returns the moments [s]."""
    moments = [random.Random(i).uniform(0.1, 0.3) * whole_s for i in range(KILLS)]
    for moment in moments:
        with subprocess.Popen(command(folder, env_steps, LOCKSTEP), stdout=subprocess.DEVNULL) as process:
            time.sleep(moment)
            process.kill()
    timed(folder, env_steps, LOCKSTEP)
    return moments


def scores(folder: Path) -> list[Any]:
    """What the jobs have reached, and how often each was launched and has ended."""
    reached_by_job, lines = [], read_jsonl(folder / "sweep.jsonl")
    for job in {line["number"]: line for line in lines if "number" in line}.values():
        log = (folder / job["run"] / "train.log").read_text()
        reached = (job["state"], job["best"], job["last"], job["opt_steps"], job["env_steps"])
        reached_by_job.append((reached, log.count("ended by max_env_steps")))
    return reached_by_job


def main() -> None:
    """Run all, and print the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env-steps", type=int, default=8_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--start", action="store_true")
    args = parser.parse_args()
    env_steps, ratios = args.env_steps, []
    with tempfile.TemporaryDirectory() as name:
        if args.start:
            each = [started(Path(name) / str(i)) for i in range(args.rounds)]
            print(
                f"each job takes {statistics.median(each):.2f} s beside its training, median of {args.rounds} sweeps"
            )
            return
        folder = Path(name)
        for i in range(args.rounds):
            one_s = timed(folder / f"one_{i}", env_steps, *ONE_CPU, "sweep.slots=1")
            slots_s = timed(folder / f"slots_{i}", env_steps, *ONE_CPU)
            ratios.append(slots_s / one_s)
            print(
                f"one after the other {one_s:.0f} s, in slots {slots_s:.0f} s: {ratios[-1]:.3f}", flush=True
            )
        print(f"median of {args.rounds} rounds: {statistics.median(ratios):.3f}", flush=True)
        moments = killed(folder / "killed", env_steps, timed(folder / "lockstep_slots", env_steps, LOCKSTEP))
        print("killed after", ", ".join(f"{moment:.0f} s" for moment in moments))
        whole, often = scores(folder / "lockstep_slots"), scores(folder / "killed")
        same = sum(a[0] == b[0] for a, b in zip(whole, often, strict=True))
        print(f"{same} of {len(whole)} jobs have the scores of the sweep that was not killed; they ended")
        print(", ".join(str(ends) for _, ends in often), "times")


if __name__ == "__main__":
    main()
