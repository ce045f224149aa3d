"""`make results`: CartPole by DQN with its preset, ten seeds of each way to train, judged on new episodes.

    python -m bench.cartpole_seeds [--seeds 10] [--folder runs/cartpole_seeds] [--page docs/results.md]

About forty minutes on two cores. A run that is already in the folder is not done again, so that an interrupted call can
go on. Writes the table between the marks of the page, and ends with 1 where a way falls short of what is promised.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import runs
from bench.report import machine, markdown, write_between_marks
from border_cli.evaluation.statistics import mean_interval

WAYS = {
    "n_actors=8": ["n_actors=8"],
    "n_actors=1": ["n_actors=1"],
    "lockstep": ["n_actors=8", "trainer.lockstep=true"],
    "trainer=sync": ["trainer=sync"],
}
EPISODES = 100
ENOUGH, ALL = 475.0, 500.0
PAGE = Path(__file__).parents[1] / "docs" / "results.md"


@dataclass(frozen=True)
class Cell:
    """One run. mean: of `best/` over the new episodes · last: score of the run's last evaluation."""

    mean: float
    best_opt_steps: int
    last: float
    env_steps: int


def main() -> None:
    """Run what is missing, judge, write the page."""
    parser = argparse.ArgumentParser(prog="make results", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10, help="seeds 1 to this")
    parser.add_argument("--folder", type=Path, default=Path("runs/cartpole_seeds"))
    parser.add_argument("--page", type=Path, default=PAGE)
    chosen = parser.parse_args()
    seeds = range(1, chosen.seeds + 1)
    table: dict[str, dict[int, Cell]] = {way: {} for way in WAYS}
    for seed in seeds:
        for way in WAYS:
            table[way][seed] = cell = _cell(chosen.folder / f"{way.replace('=', '-')}_seed{seed}", way, seed)
            print(f"{way} seed={seed}: {cell.mean:.1f}", flush=True)
    text = f"{_by_seed(table)}\n\n{_in_all(table)}"
    print(text)
    write_between_marks(chosen.page, f"\n{machine()}.\n\n{text}\n")
    if not all(_holds(list(cells.values())) for cells in table.values()):
        raise SystemExit(1)


def _cell(run_dir: Path, way: str, seed: int) -> Cell:
    if not _is_done(run_dir):
        shutil.rmtree(run_dir, ignore_errors=True)  # what an interrupted call left
        runs.train(run_dir, ["agent=dqn", "env=cartpole", f"seed={seed}", *WAYS[way]])
    runs.judge(run_dir, [f"episodes={EPISODES}"])
    summary = _json(run_dir / "summary.json")
    (judged,) = (run_dir / "eval").glob("best-*.json")
    evaluation = _json(judged)
    return Cell(
        mean=evaluation["mean"],
        best_opt_steps=evaluation["opt_steps"],
        last=summary["last_score"]["mean"],
        env_steps=summary["counters"]["env_steps"],
    )


def _is_done(run_dir: Path) -> bool:
    summary = run_dir / "summary.json"
    return summary.exists() and bool(_json(summary)["status"] == "done")


def _by_seed(table: dict[str, dict[int, Cell]]) -> str:
    head = ["seed", *(f"{way}: {what}" for way in table for what in ("best over 100", "at opt step", "last"))]
    rows = []
    for seed in next(iter(table.values())):
        row = [str(seed)]
        for cells in table.values():
            cell = cells[seed]
            row += [f"{cell.mean:.1f}", f"{cell.best_opt_steps:,}", f"{cell.last:.1f}"]
        rows.append(row)
    return markdown(head, rows)


def _in_all(table: dict[str, dict[int, Cell]]) -> str:
    head = [
        "",
        f"seeds with at least {ENOUGH:.0f}",
        "median",
        "least",
        "last, mean and 95% interval",
        "env steps",
    ]
    rows = []
    for way, cells in table.items():
        means = [cell.mean for cell in cells.values()]
        rows.append(
            [
                way,
                f"{_enough(means)} of {len(means)}",
                f"{statistics.median(means):.1f}",
                f"{min(means):.1f}",
                _with_interval([cell.last for cell in cells.values()]),
                f"{max(cell.env_steps for cell in cells.values()):,}",
            ]
        )
    return markdown(head, rows)


def _with_interval(values: list[float]) -> str:
    interval = mean_interval(tuple(values))
    mean = f"{statistics.fmean(values):.0f}"
    return mean if interval is None else f"{mean} ({interval[0]:.0f} to {interval[1]:.0f})"


def _holds(cells: list[Cell]) -> bool:
    """At least nine of ten seeds reach 475, and the median is 500."""
    means = [cell.mean for cell in cells]
    return _enough(means) >= 0.9 * len(means) and statistics.median(means) == ALL


def _enough(means: list[float]) -> int:
    return sum(mean >= ENOUGH for mean in means)


def _json(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


if __name__ == "__main__":
    main()
