"""Writes docs/results.md from the results of finished runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.report import machine, markdown, write_between_marks
from bench.table_of_runs import ROWS, Row
from border_cli.core.metrics import SCORE, mean_interval
from border_cli.report.runs import Curve, Group, RunRecord
from border_cli.report.stats import band

PAGE = Path(__file__).parents[1] / "docs" / "results.md"
CURVES = PAGE.parent / "curves"
Results = dict[str, list[dict[str, Any]]]


def write_page(results: Results) -> bool:
    """Write the tables between the marks of the page. Returns whether every finished row meets its bar."""
    bars, defaults = ([row for row in ROWS if row.table == table] for table in ("bars", "defaults"))
    parts = [
        f"{machine()}.",
        "### Targets",
        _bars(bars, results),
        "### Without a preset",
        _bars(defaults, results),
        "### Training modes compared",
        _parity(results),
        "### Curves",
        *(f"![{path.stem}]({path.relative_to(PAGE.parent)})" for path in _pictures(bars, results)),
        "### Each run",
        _each(results),
    ]
    write_between_marks(PAGE, "\n" + "\n\n".join(parts) + "\n")
    return all(_holds(row, results[row.name]) is not False for row in bars + defaults)


def _env(row: Row, runs: list[dict[str, Any]]) -> str:
    """Return the environment, marked where the results are of an older configuration."""
    return f"{row.env} †" if any(run["older"] for run in runs) else row.env


def _means(runs: list[dict[str, Any]]) -> list[float]:
    return [run["evaluation"]["mean"] for run in runs]


def _holds(row: Row, runs: list[dict[str, Any]]) -> bool | None:
    """Whether the row meets its bar; None while a seed is missing."""
    if row.bar is None or len(runs) < len(row.seeds):
        return None
    return row.bar.holds(_means(runs), [run["rise"] for run in runs])


def _bars(rows: list[Row], results: Results) -> str:
    head = ["environment", "agent", "seeds", "env steps", "mean of the best", "least", "mean of the last"]
    head += ["target", "met", "published"]
    lines = []
    for row in rows:
        runs = results[row.name]
        cells = ["–", "–", "–", "–"]
        if runs:
            means, last = _means(runs), statistics.fmean(run["last"] for run in runs)
            cells = [f"{runs[0]['env_steps']:,}", _with_interval(means), f"{min(means):.1f}", f"{last:.1f}"]
        verdict = {True: "yes", False: "**no**", None: "not yet run" if not runs else "seeds missing"}[
            _holds(row, runs)
        ]
        seeds, published = f"{len(runs)} of {len(row.seeds)}", row.bar.published if row.bar else ""
        lines.append([_env(row, runs), row.agent, seeds, *cells, str(row.bar), verdict, published])
    return markdown(head, lines)


def _parity(results: Results) -> str:
    half, last = "second half of the curve, mean and 95% interval", "last, mean and 95% interval"
    head = ["environment", "agent", "training mode", "seeds", "mean of the best", half, last, "minutes"]
    lines = []
    for row in (row for row in ROWS if row.table == "parity"):
        runs = results[row.name]
        cells = ["–", "–", "–", "–"]
        if runs:
            minutes = statistics.median(run["minutes"] for run in runs)
            cells = [
                _with_interval(_means(runs)),
                _with_interval([second_half(run["curve"]) for run in runs]),
                _with_interval([run["last"] for run in runs]),
                f"{minutes:.1f}",
            ]
        lines.append([_env(row, runs), row.agent, row.way, f"{len(runs)} of {len(row.seeds)}", *cells])
    return markdown(head, lines)


def second_half(curve: Sequence[tuple[float, float, float]]) -> float:
    """Return the mean return over the second half of the evaluations. curve: (env steps, seconds, mean return)."""
    return statistics.fmean(mean for _, _, mean in curve[len(curve) // 2 :])


def _each(results: Results) -> str:
    head = ["run", "best over new episodes", "at opt step", "last", "minutes", "commit"]
    lines = [
        [
            run["cell"],
            f"{run['evaluation']['mean']:.1f} ± {run['evaluation']['std']:.1f} ({run['evaluation']['episodes']:,})",
            f"{run['best_opt_steps']:,} of {run['opt_steps']:,}",
            f"{run['last']:.1f}" + (f" ({run['last_episodes']:,})" if "last_episodes" in run else ""),
            f"{run['minutes']:.1f}",
            run["commit"] + ("+" if run["dirty"] else ""),
        ]
        for runs in results.values()
        for run in runs
    ]
    return markdown(head, lines)


def _pictures(rows: list[Row], results: Results) -> list[Path]:
    """Draw a picture per environment: evaluation returns over env steps, run line per agent."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    CURVES.mkdir(exist_ok=True)
    written = []
    for env in dict.fromkeys(row.env for row in rows if results[row.name]):
        figure, plot = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
        for row in rows:
            if row.env == env and results[row.name]:
                curve = band(Group(row.name, [_record(run) for run in results[row.name]]), SCORE, "env_steps")
                assert curve is not None
                (line,) = plot.plot(
                    curve.at, [interval.value for interval in curve.intervals], label=row.agent
                )
                ends = ([getattr(interval, end) for interval in curve.intervals] for end in ("low", "high"))
                plot.fill_between(curve.at, *ends, color=line.get_color(), alpha=0.2)
        plot.set(title=env, xlabel="env steps", ylabel="mean return of an evaluation")
        plot.grid(alpha=0.3)
        plot.legend(fontsize="small")
        written.append(CURVES / f"{env}.png")
        figure.savefig(written[-1], dpi=80, metadata={"Software": None})
        pyplot.close(figure)
    return written


def _record(run: dict[str, Any]) -> RunRecord:
    env_steps, seconds, values = (np.array(column, np.float64) for column in zip(*run["curve"], strict=True))
    return RunRecord(
        Path(run["cell"]), {}, {}, {SCORE: Curve(env_steps, seconds, np.full(len(values), np.nan), values)}
    )


def _with_interval(values: list[float]) -> str:
    interval = mean_interval(tuple(values))
    mean = f"{statistics.fmean(values):.1f}"
    return mean if interval is None else f"{mean} ({interval[0]:.1f} to {interval[1]:.1f})"
