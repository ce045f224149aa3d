"""The pictures of a report, by matplotlib."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from border_cli.report.stats import Band

AXES = {"env_steps": "env steps", "seconds": "seconds"}
FEW = 5
"""With fewer runs an interval means little, and a picture shows the runs themselves."""
_FEW_POINTS = 3
Curves = dict[str, dict[str, Band]]
"""By axis, then by the group's name."""


def draw(curves: Curves, envs: Mapping[str, str], metric: str, folder: Path) -> list[Path]:
    """One picture per environment and axis: the interquartile mean of each group, with its interval or with its few runs.

    envs: by the group's name. Raises ModuleNotFoundError where matplotlib is not installed.
    """
    written = []
    several = len(set(envs.values())) > 1
    for axis, bands in curves.items():
        for env in dict.fromkeys(envs[name] for name in bands):
            prefix = re.sub(r"\W+", "-", env).strip("-") + "_" if several else ""
            written.append(folder / f"{prefix}{axis}.png")
            own = {name: band for name, band in bands.items() if envs[name] == env}
            figure, plot = _axes(len(own))
            for name, band in own.items():
                # Of a few evaluations, the line may be too short to be seen.
                marker = "o" if max(len(at) for at, _ in band.runs) <= _FEW_POINTS else None
                means = [one.value for one in band.intervals]
                (drawn,) = plot.plot(band.at, means, marker=marker, label=name)
                color, style = drawn.get_color(), drawn.get_linestyle()
                if len(band.runs) >= FEW:
                    low, high = ([getattr(one, end) for one in band.intervals] for end in ("low", "high"))
                    plot.fill_between(band.at, low, high, color=color, alpha=0.2)
                elif len(band.runs) > 1:
                    for at, values in band.runs:
                        plot.plot(at, values, color=color, linestyle=style, alpha=0.3, linewidth=0.8)
            plot.set(xlabel=AXES[axis], ylabel=metric, title=env)
            _save(figure, plot, written[-1])
    return written


def _axes(n_groups: int) -> tuple[Any, Any]:
    """A figure and its axes. More groups than there are colours get other line styles too."""
    from cycler import cycler
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5 + 0.2 * n_groups), layout="constrained")
    plot, colors = figure.subplots(), rcParams["axes.prop_cycle"].by_key()["color"]
    if n_groups > len(colors):
        plot.set_prop_cycle(cycler(linestyle=["-", "--", "-.", ":"]) * cycler(color=colors))
    return figure, plot


def _save(figure: Any, plot: Any, path: Path) -> None:
    """Add grid and legend, and write the file."""
    plot.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=1, fontsize="small")
    path.unlink(missing_ok=True)  # a link there is not followed
    figure.savefig(path, dpi=120)
