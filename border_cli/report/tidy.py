"""Curves as the tidy CSV that papers publish: `exp_name,env_name,seed,metric,env_step,value`, a line per value."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from border_cli.core.errors import UsageError
from border_cli.report.runs import Curve, Group, RunRecord, short_names

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


def read_tidy(path: Path, metric: str, own: Sequence[Group]) -> list[Group]:
    """The curves of others in a file, those of one metric, and of the environments of our own groups if any are there.

    Names that our own groups have, too, are marked.
    Raises UsageError for a file without the columns, or without the metric.
    """
    curves: dict[tuple[str, str, str], list[tuple[int, float]]] = {}
    others = set[str]()
    try:
        # utf-8-sig reads a file with the byte order mark that Excel writes, and one without it.
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise UsageError(
                    f"{path} has no column {missing[0]}\nallowed: a file with {','.join(COLUMNS)}"
                )
            for row in reader:
                if None in row.values():
                    raise UsageError(f"{path}, line {reader.line_num}: a value is missing")
                if row["metric"] != metric:
                    others.add(row["metric"])
                    continue
                value = float(row["value"]) if row["value"] else math.nan
                step = int(float(row["env_step"]))
                if math.isfinite(value):
                    key = row["exp_name"], row["env_name"], row["seed"]
                    curves.setdefault(key, []).append((step, value))
    except (OSError, ValueError, OverflowError, csv.Error) as e:
        raise UsageError(f"with={path} cannot be read: {getattr(e, 'strerror', None) or e}") from e
    if not curves:
        raise UsageError(
            f"{path} has no {metric}\nallowed: metric=<one of {', '.join(sorted(others)) or 'its metrics'}>"
        )
    groups: dict[tuple[str, str], list[RunRecord]] = {}
    shared = {env for _, env, _ in curves} & {group.env for group in own}
    names = {group.algorithm for group in own}
    for (name, env, seed), points in curves.items():
        if not shared or env in shared:
            groups.setdefault((name, env), []).append(_run(path, env, seed, points))
    algorithms = [f"{name} ({path.name})" if name in names else name for name, _ in groups]
    shown = short_names([f"{name} on {env}" for name, (_, env) in zip(algorithms, groups, strict=True)])
    return [Group(*of) for of in zip(shown, algorithms, groups.values(), strict=True)]


def _run(path: Path, env: str, seed: str, points: Sequence[tuple[int, float]]) -> RunRecord:
    """A run of which the curve alone is known; its last value is its last score."""
    steps, values = np.array(sorted(points), np.float64).T
    config = {"env.id": env, "agent.type": "", "seed": int(seed) if seed.isdigit() else seed}
    score = {"mean": float(values[-1])}
    summary = {"status": "done", "last_score": score, "counters": {"env_steps": int(steps[-1])}}
    nowhere = np.full(len(steps), np.nan)
    return RunRecord(path, config, summary, Curve(steps, nowhere, values))
