"""Curves as the tidy CSV that papers publish: `exp_name,env_name,seed,metric,env_step,value`, a line per value."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from border_cli.report.runs import Group

COLUMNS = ("exp_name", "env_name", "seed", "metric", "env_step", "value")


def write_tidy(path: Path, groups: Iterable[Group], metric: str) -> None:
    """Write the curves of all runs. Further runs of the same seed are written as seeds "1-2", "1-3". Raises OSError."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(COLUMNS)
        for group in groups:
            repeats = Counter[int | None]()
            for run in group.runs:
                seed = "" if run.seed is None else str(run.seed)
                repeats[run.seed] += 1
                if repeats[run.seed] > 1:
                    seed += f"-{repeats[run.seed]}"
                for step, value in zip(run.curve.env_steps.tolist(), run.curve.values.tolist(), strict=True):
                    rows.writerow([group.algorithm, group.env, seed, metric, int(step), repr(value)])
