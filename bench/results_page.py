"""Writes the pages of docs/results/ from the results of finished runs."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.budgets import NAMES
from bench.peers.budgets import RUNS as PEER_RUNS
from bench.report import machine, markdown, write_between_marks
from bench.table_of_runs import ROWS, Row
from border_cli.core.metrics import SCORE, mean_interval
from border_cli.report.runs import Curve, Group, RunRecord
from border_cli.report.stats import band

FOLDER = Path(__file__).parents[1] / "docs" / "results"
CURVES = FOLDER / "curves"
FAMILIES = {
    "cartpole": ("cartpole",),
    "classic-control": ("acrobot", "mountaincar", "mountaincarcontinuous", "pendulum"),
    "box2d": ("bipedalwalker", "lunarlander"),
    "mujoco": ("halfcheetah", "hopper", "walker2d", "ant", "humanoid"),
    "images": ("catch", "pong", "breakout", "qbert"),
}
"""The environments of each page."""
BUDGETS = {"mujoco": (2, 5, 10, 20, 40, 70, 120)}
"""CPU-minutes at which a page shows the returns, by page."""
OLDER = "Rows with † were measured with an older configuration ([what that means](index.md#older-rows))."
Results = dict[str, list[dict[str, Any]]]


def write_pages(results: Results) -> bool:
    """Write the tables of what was run between the marks of each page. Returns whether every finished row meets its bar."""
    stored = [row for row in ROWS if results[row.name]]
    modes = [row for row in stored if row.table == "parity"]
    bars = [row for row in stored if row not in modes]
    pages = {name: [row for row in bars if row.env in envs] for name, envs in FAMILIES.items()}
    for name, rows in pages.items():
        budgets = [_budgets(rows, results, BUDGETS[name])] if name in BUDGETS else []
        _write(name, rows, results, _bars(rows, results), *budgets, *_pictures(rows, results))
    _write("modes", modes, results, _parity(modes, results))
    links = {row.name: f"[{row.env}]({name}.md)" for name, rows in pages.items() for row in rows}
    _write_between("index", [_summary(bars, results, links)])
    return all(_holds(row, results[row.name]) is not False for row in bars)


def _write(name: str, rows: Sequence[Row], results: Results, *parts: str) -> None:
    """Write a page: these parts, the commands, and a line for each run."""
    older = [OLDER] if any(run["older"] for row in rows for run in results[row.name]) else []
    commands = ["## Commands", f"```\n{_commands(rows)}\n```"]
    _write_between(name, [parts[0], *older, *parts[1:], *commands, "## Each run", _each(rows, results)])


def _write_between(name: str, parts: Sequence[str]) -> None:
    text = "\n\n".join([f"{machine()}.", *parts])
    write_between_marks(FOLDER / f"{name}.md", f"\n{text}\n")


def _commands(rows: Sequence[Row]) -> str:
    """The command of the first run of each row, and which other seeds there are."""
    lines = []
    for row in rows:
        words = ["border-train", f"agent={row.agent}", f"env={row.env}", *row.args]
        others = f"  # also seed={row.seeds[1]} to {row.seeds[-1]}" if len(row.seeds) > 1 else ""
        lines.append(shlex.join([*words, f"seed={row.seeds[0]}"]) + others)
    return "\n".join(lines)


def _summary(rows: Sequence[Row], results: Results, links: dict[str, str]) -> str:
    head = ["environment", "agent", "seeds", "env steps", "mean of the best", "target", "met"]
    lines = []
    for row in rows:
        runs = results[row.name]
        steps, mean = (f"{runs[0]['env_steps']:,}", _with_interval(_means(runs))) if runs else ("–", "–")
        cells = [_seeds(row, runs), steps, mean, str(row.bar), _verdict(row, runs)]
        lines.append([_marked(links[row.name], runs), row.label, *cells])
    return markdown(head, lines)


def _marked(env: str, runs: list[dict[str, Any]]) -> str:
    """Return the environment, marked where the results are of an older configuration."""
    return f"{env} †" if any(run["older"] for run in runs) else env


def _seeds(row: Row, runs: list[dict[str, Any]]) -> str:
    return f"{len(runs)} of {len(row.seeds)}"


def _cpu_minutes(runs: list[dict[str, Any]]) -> str:
    return f"{statistics.median(run['cpu_minutes'] for run in runs):.1f}"


def _means(runs: list[dict[str, Any]]) -> list[float]:
    return [run["evaluation"]["mean"] for run in runs]


def _holds(row: Row, runs: list[dict[str, Any]]) -> bool | None:
    """Whether the row meets its bar; None while a seed is missing."""
    if row.bar is None or len(runs) < len(row.seeds):
        return None
    return row.bar.holds(_means(runs), [run["rise"] for run in runs])


def _verdict(row: Row, runs: list[dict[str, Any]]) -> str:
    missing = "seeds missing" if runs else "not yet run"
    return {True: "yes", False: "**no**", None: missing}[_holds(row, runs)]


def _bars(rows: list[Row], results: Results) -> str:
    head = ["environment", "agent", "seeds", "env steps", "mean of the best", "least", "mean of the last"]
    head += ["CPU-minutes", "target", "met", "published"]
    lines = []
    for row in rows:
        runs = results[row.name]
        cells = ["–", "–", "–", "–", "–"]
        if runs:
            means, last = _means(runs), statistics.fmean(run["last"] for run in runs)
            numbers = [_with_interval(means), f"{min(means):.1f}", f"{last:.1f}", _cpu_minutes(runs)]
            cells = [f"{runs[0]['env_steps']:,}", *numbers]
        published = row.bar.published if row.bar else ""
        ends = [str(row.bar), _verdict(row, runs), published]
        lines.append([_marked(row.env, runs), row.label, _seeds(row, runs), *cells, *ends])
    return markdown(head, lines)


def _budgets(rows: list[Row], results: Results, budgets: Sequence[int]) -> str:
    """Returns by CPU-minutes: the last evaluation before, as the mean over the seeds; – once a run has ended."""
    lines = []
    for env in dict.fromkeys(row.env for row in rows):
        curves = {row.label: [run["curve"] for run in results[row.name]] for row in rows if row.env == env}
        for run in PEER_RUNS:
            if run.env == env and not run.is_missing:
                curves.setdefault(f"{run.agent} of {NAMES[run.agent]}", []).append(run.curve)
        for agent, found in curves.items():
            cells = [_at_budget(found, 60.0 * minutes) for minutes in budgets]
            lines.append([env, agent, str(len(found)), *cells])
    head = ["environment", "agent", "seeds", *(f"{minutes} CPU-minutes" for minutes in budgets)]
    return markdown(head, lines)


def _at_budget(curves: Sequence[Sequence[Sequence[float]]], seconds: float) -> str:
    """The mean return at this time of each run. curves: rows of `bench.results`."""
    if any(curve[-1][2] < seconds or curve[0][2] > seconds for curve in curves):
        return "–"
    returns = [[mean for _, _, at, mean in curve if at <= seconds][-1] for curve in curves]
    return f"{statistics.fmean(returns):,.0f}"


def _parity(rows: list[Row], results: Results) -> str:
    half, last = "second half of the curve, mean and 95% interval", "last, mean and 95% interval"
    head = ["environment", "agent", "training mode", "seeds", "mean of the best", half, last, "CPU-minutes"]
    lines = []
    for row in rows:
        runs = results[row.name]
        cells = ["–", "–", "–", "–"]
        if runs:
            cells = [
                _with_interval(_means(runs)),
                _with_interval([second_half(run["curve"]) for run in runs]),
                _with_interval([run["last"] for run in runs]),
                _cpu_minutes(runs),
            ]
        lines.append([_marked(row.env, runs), row.agent, row.way, _seeds(row, runs), *cells])
    return markdown(head, lines)


def second_half(curve: Sequence[Sequence[float]]) -> float:
    """Return the mean return over the second half of the evaluations. curve: rows of `bench.results`."""
    return statistics.fmean(mean for *_, mean in curve[len(curve) // 2 :])


def _each(rows: Sequence[Row], results: Results) -> str:
    head = ["run", "best over new episodes", "at opt step", "last", "CPU-minutes", "commit"]
    lines = [
        [
            run["cell"],
            f"{run['evaluation']['mean']:.1f} ± {run['evaluation']['std']:.1f} ({run['evaluation']['episodes']:,})",
            f"{run['best_opt_steps']:,} of {run['opt_steps']:,}",
            f"{run['last']:.1f}" + (f" ({run['last_episodes']:,})" if "last_episodes" in run else ""),
            f"{run['cpu_minutes']:.1f}",
            run["commit"] + ("+" if run["dirty"] else ""),
        ]
        for row in rows
        for run in results[row.name]
    ]
    return markdown(head, lines)


def _pictures(rows: list[Row], results: Results) -> list[str]:
    """Draw a picture per environment: evaluation returns over env steps, a line per agent. Returns the pages' images."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    CURVES.mkdir(exist_ok=True)
    images = []
    for env in dict.fromkeys(row.env for row in rows if results[row.name]):
        figure, plot = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
        for row in rows:
            if row.env == env and results[row.name]:
                curve = band(Group(row.name, [_record(run) for run in results[row.name]]), SCORE, "env_steps")
                assert curve is not None
                (line,) = plot.plot(
                    curve.at, [interval.value for interval in curve.intervals], label=row.label
                )
                ends = ([getattr(interval, end) for interval in curve.intervals] for end in ("low", "high"))
                plot.fill_between(curve.at, *ends, color=line.get_color(), alpha=0.2)
        plot.set(title=env, xlabel="env steps", ylabel="mean return of an evaluation")
        plot.grid(alpha=0.3)
        plot.legend(fontsize="small")
        path = CURVES / f"{env}.png"
        figure.savefig(path, dpi=80, metadata={"Software": None})
        pyplot.close(figure)
        images.append(f"![Returns on {env} over env steps]({path.relative_to(FOLDER)})")
    return images


def _record(run: dict[str, Any]) -> RunRecord:
    env_steps, seconds, cpu_seconds, values = np.array(run["curve"], np.float64).T
    return RunRecord(Path(run["cell"]), {}, {}, {SCORE: Curve(env_steps, seconds, cpu_seconds, values)})


def _with_interval(values: list[float]) -> str:
    interval = mean_interval(tuple(values))
    mean = f"{statistics.fmean(values):.1f}"
    return mean if interval is None else f"{mean} ({interval[0]:.1f} to {interval[1]:.1f})"
