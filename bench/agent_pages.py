"""The tables of docs/agents/: the presets of each agent, what was measured here, and what other projects publish."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import yaml

from bench.report import markdown, write_between_marks
from bench.table_of_runs import ROWS, Row
from border_cli.config.presets import shipped, tuned_for
from border_cli.config.registry import AGENTS
from border_cli.core.metrics import mean_interval

PAGES = Path(__file__).parents[1] / "docs" / "agents"
PUBLISHED = Path(__file__).with_name("published.yaml")
Results = dict[str, list[dict[str, Any]]]


def write_pages(results: Results) -> None:
    """Write the tables between the marks of the pages. results: of each row of `bench/table_of_runs.py`, by its name."""
    published = read_published()
    for agent in AGENTS:
        write_between_marks(
            PAGES / f"{agent}.md", f"\n{_figures(agent, results, published.get(agent, {}))}\n"
        )
    write_between_marks(PAGES / "index.md", f"\n{_overview(results, published)}\n")


def read_published() -> dict[str, dict[str, str]]:
    """Return what other projects publish, by agent and environment."""
    published: dict[str, dict[str, str]] = yaml.safe_load(PUBLISHED.read_text(encoding="utf-8"))
    return published


def _figures(agent: str, results: Results, published: dict[str, str]) -> str:
    """The table of an agent, and the commands of its measured rows."""
    rows = {row.env: row for row in ROWS if row.agent == agent and row.table == "bars"}
    tuned = [env for env, agents in tuned_for().items() if agent in agents]
    lines = []
    for env in [*rows, *(env for env in tuned if env not in rows)]:
        row = rows.get(env)
        runs = results.get(row.name, []) if row else []
        values = shipped().get(f"{agent}_{env}", {})
        budget = values["trainer"]["max_env_steps"] if values else None
        status = _status(row, runs, env in published, budget)
        shown = "no preset" if budget is None else f"{budget:,}"
        lines.append([f"`{env}`", shown, _measured(runs), published.get(env, "none"), status])
    head = ["`env=`", "env steps of the preset", "measured here", "published by others", "status"]
    commands = "\n".join(_command(row) for row in rows.values())
    return f"{markdown(head, lines)}\n\n```\n{commands}\n```" if rows else markdown(head, lines)


def _overview(results: Results, published: dict[str, dict[str, str]]) -> str:
    """A table of environments and agents with the status of each preset."""
    known = statuses(results, published)
    lines = [[f"`{env}`", *(known.get((env, agent), "") for agent in AGENTS)] for env in tuned_for()]
    return markdown(["`env=`", *(f"[{agent}]({agent}.md)" for agent in AGENTS)], lines)


def statuses(results: Results, published: dict[str, dict[str, str]]) -> dict[tuple[str, str], str]:
    """Return what is known about the preset of each (environment, agent)."""
    rows = {(row.env, row.agent): row for row in ROWS if row.table == "bars"}
    known = {}
    for env, agents in tuned_for().items():
        for agent in agents:
            row = rows.get((env, agent))
            runs = results.get(row.name, []) if row else []
            budget = shipped()[f"{agent}_{env}"]["trainer"]["max_env_steps"]
            known[env, agent] = _status(row, runs, env in published.get(agent, {}), budget)
    return known


def _status(row: Row | None, runs: list[dict[str, Any]], is_published: bool, budget: int | None) -> str:
    """What is known about a preset. budget: its env steps, None without a preset."""
    if row is None or row.bar is None or len(runs) < len(row.seeds):
        return "published elsewhere" if is_published else "no figure"
    means, rises = [run["evaluation"]["mean"] for run in runs], [run["rise"] for run in runs]
    if not row.bar.holds(means, rises):
        return "target missed here"
    if any(run["older"] for run in runs):
        return "measured with older values"
    is_whole = budget is not None and runs[0]["env_steps"] >= budget
    return "reproduced here" if is_published and is_whole else "measured here"


def _measured(runs: list[dict[str, Any]]) -> str:
    """The mean of the best models over the seeds, with its 95% interval."""
    if not runs:
        return "not yet"
    means = [run["evaluation"]["mean"] for run in runs]
    interval = mean_interval(tuple(means))
    spread = "" if interval is None else f" ({interval[0]:.1f} to {interval[1]:.1f})"
    seeds = f"{len(runs)} seed{'s' * (len(runs) != 1)}"
    return f"{statistics.fmean(means):.1f}{spread} after {runs[0]['env_steps']:,}, {seeds}"


def _command(row: Row) -> str:
    seeds = ",".join(map(str, row.seeds))
    many = "-m " if len(row.seeds) > 1 else ""
    return f"border-train {many}agent={row.agent} env={row.env} seed={seeds} {' '.join(row.args)}"
