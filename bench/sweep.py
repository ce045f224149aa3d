"""A sweep of twelve CartPole runs: in slots beside one after the other, and killed three times beside never.

    python -m bench.sweep [--env-steps 25000]

Prints both durations with their ratio, and whether the killed sweep ended with the scores of the other one.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WORDS = (
    "-m",
    "agent=dqn,qrdqn",
    "env=cartpole",
    "seed=1,2,3,4,5,6",
    "trainer.lockstep=true",
    "recorder.console=plain",
)
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


def killed(folder: Path, env_steps: int, whole_s: float) -> list[float]:
    """Kill a sweep at random moments, and let it end. Returns the moments [s]."""
    moments = [random.Random(i).uniform(0.1, 0.3) * whole_s for i in range(KILLS)]
    for moment in moments:
        with subprocess.Popen(command(folder, env_steps), stdout=subprocess.DEVNULL) as process:
            time.sleep(moment)
            process.kill()
    timed(folder, env_steps)
    return moments


def scores(folder: Path) -> list[Any]:
    """What the jobs have reached, and how often each was launched and has ended."""
    found = []
    for job in json.loads((folder / "sweep.json").read_text())["jobs"]:
        log = (folder / job["run"] / "train.log").read_text()
        reached = (job["state"], job["best"], job["last"], job["opt_steps"], job["env_steps"])
        found.append((reached, log.count("ended by max_env_steps")))
    return found


def main() -> None:
    """Run all three, and print what came of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env-steps", type=int, default=25_000)
    env_steps = parser.parse_args().env_steps
    with tempfile.TemporaryDirectory() as folder:
        one, slots, often = (Path(folder) / name for name in ("one", "slots", "killed"))
        one_s = timed(one, env_steps, "sweep.slots=1")
        slots_s = timed(slots, env_steps)
        print(f"one after the other {one_s:.0f} s, in slots {slots_s:.0f} s: ratio {slots_s / one_s:.3f}")
        moments = killed(often, env_steps, slots_s)
        print("killed after", ", ".join(f"{moment:.0f} s" for moment in moments))
        same = [a[0] == b[0] for a, b in zip(scores(slots), scores(often), strict=True)]
        ends = [end for _, end in scores(often)]
        print(
            f"{sum(same)} of {len(same)} jobs have the scores of the sweep that was not killed; ended {ends} times"
        )


if __name__ == "__main__":
    main()
