"""Opt steps per second with a recorder that fails, beside a run without it.

    python -m bench.recorders [--rounds 7]

Each round runs, in turn: no further recorder, one that raises with each record, one that blocks for a minute with each
record, and Weights & Biases without a network (where it is installed). Prints the ratio of each to the first run of its
round, and what became of the records.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from bench import runs
from border_cli.config.schema import TrainConfig
from border_cli.core.metrics import Record

COMMON = (
    *("agent=dqn", "env=cartpole", "preset=none", "agent.hidden=[64,64]", "agent.compile=false"),
    *(
        "trainer=sync",
        "trainer.max_env_steps=30000",
        "trainer.eval_interval=null",
        "trainer.save_interval=null",
    ),
    *("trainer.record_interval=250", "checkpoint.replay=none", "recorder.finish_s=1"),
)
NOWHERE = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "0" * 40, "WANDB_SILENT": "true"}


class Raising:
    """Raises with each record."""

    def __init__(self, config: TrainConfig, run_dir: Path) -> None: ...

    def write(self, record: Record) -> None:
        raise OSError("the disk of the tracker is full")

    def close(self) -> None: ...


class Blocking(Raising):
    """Takes a minute for each record."""

    def write(self, record: Record) -> None:
        time.sleep(60.0)


CASES = {
    "without": (),
    "raises": ("recorder.type=bench.recorders:Raising",),
    "blocks for a minute": ("recorder.type=bench.recorders:Blocking",),
    "no network": ("recorder.wandb=online",),
}


def measured(folder: Path, words: tuple[str, ...]) -> tuple[float, str]:
    """Opt steps per second after the first fifth of the run, and the summary's word on dropped records."""
    runs.train(folder, [*COMMON, *words])
    records = [one for one in runs.records(folder) if "opt_steps" in one]
    first, last = records[len(records) // 5], records[-1]
    rate = (last["opt_steps"] - first["opt_steps"]) / (last["time"] - first["time"])
    return rate, str(json.loads((folder / "summary.json").read_text())["records_dropped"])


def main() -> None:
    """Run the rounds, and print the ratios."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.recorders", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    os.environ.update(NOWHERE)
    cases = dict(CASES)
    if importlib.util.find_spec("wandb") is None:
        del cases["no network"]
    ratios: dict[str, list[float]] = {name: [] for name in cases}
    for i in range(rounds):
        base = 0.0
        for name, words in cases.items():
            with tempfile.TemporaryDirectory() as folder:
                rate, dropped = measured(Path(folder) / "run", words)
            base = base or rate
            ratios[name].append(rate / base)
            print(f"round {i}: {name}: {rate:,.0f} opt steps/s, dropped: {dropped}", flush=True)
    for name, values in ratios.items():
        print(f"{name}: median {statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})")


if __name__ == "__main__":
    main()
