"""The pictures of a report, by matplotlib."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from border_cli.core.metrics import SCORE
from border_cli.report.stats import Band

AXES = {"env_steps": "env steps", "seconds": "seconds"}
FEW = 5
"""With fewer runs an interval means little, and a picture shows the runs themselves."""
_MOST = 3.0
_LABELS = {SCORE: "return of evaluations", "train/episode_return": "return of training episodes"}
Curves = dict[str, dict[str, Band]]
"""By axis, then by the group's name."""


def draw(curves: Curves, envs: Mapping[str, str], metric: str, folder: Path) -> dict[Path, str]:
    """Draw the interquartile mean of each group, with its interval or with its few runs. Returns a heading by picture.

    One picture per environment and axis, and another one for groups with much smaller budgets. envs: by the group's name.
    It needs matplotlib.
    """
    written = {}
    several, label = len(set(envs.values())) > 1, _LABELS.get(metric, metric)
    for axis, bands in curves.items():
        for env in dict.fromkeys(envs[name] for name in bands):
            prefix = re.sub(r"\W+", "-", env).strip("-") + "_" if several else ""
            of_env = {name: band for name, band in bands.items() if envs[name] == env}
            labels = _labels(list(of_env))
            for i, part in enumerate(_of_like_length(of_env)):
                heading = f"{label.capitalize()} over {AXES[axis]}{f': {env}' if several else ''}"
                end = max(band.at[-1] for band in part.values())
                if i:
                    heading += f", up to {end:,.0f} {AXES[axis]}"
                path = folder / f"{prefix}{axis}{f'-{end:.0f}' if i else ''}.png"
                figure = _figure(
                    {labels[name]: band for name, band in part.items()},
                    xlabel=AXES[axis],
                    ylabel=label,
                    title=env,
                )
                path.unlink(missing_ok=True)  # a link there is not followed
                figure.savefig(path, dpi=120)
                written[path] = heading
    return written


def _of_like_length(bands: Mapping[str, Band]) -> list[dict[str, Band]]:
    """The groups in parts, the longest first: within a part the longest curve has at most _MOST times the shortest."""
    lengths = {name: float(band.at[-1]) for name, band in bands.items()}
    parts: list[list[str]] = []
    for name in sorted(bands, key=lambda name: -lengths[name]):
        if parts and lengths[parts[-1][0]] <= _MOST * lengths[name]:
            parts[-1].append(name)
        else:
            parts.append([name])
    return [{name: band for name, band in bands.items() if name in part} for part in parts]


def _labels(names: Sequence[str]) -> dict[str, str]:
    """By name, the names of groups without the words that all of them have."""
    words = [name.split() for name in names]
    shared = set.intersection(*map(set, words)) if len(names) > 1 else set()
    labels = [" ".join(word for word in name if word not in shared) or name[0] for name in words]
    return dict(zip(names, labels if len(set(labels)) == len(labels) else names, strict=True))


def _figure(bands: Mapping[str, Band], **texts: str) -> Any:
    """A figure with these bands, by label. More of them than there are colours get other line styles too."""
    from cycler import cycler
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5 + 0.2 * len(bands)), layout="constrained")
    plot, colors = figure.subplots(), rcParams["axes.prop_cycle"].by_key()["color"]
    if len(bands) > len(colors):
        plot.set_prop_cycle(cycler(linestyle=["-", "--", "-.", ":"]) * cycler(color=colors))
    for label, band in bands.items():
        marker = "o" if min(len(at) for at, _ in band.runs) <= FEW else None
        means = [interval.value for interval in band.intervals]
        every = max(1, len(means) // FEW)
        (drawn,) = plot.plot(band.at, means, marker=marker, markevery=every, label=label)
        color, style = drawn.get_color(), drawn.get_linestyle()
        if len(band.runs) >= FEW:
            low, high = ([getattr(interval, end) for interval in band.intervals] for end in ("low", "high"))
            plot.fill_between(band.at, low, high, color=color, alpha=0.2)
        elif len(band.runs) > 1:
            for at, values in band.runs:
                plot.plot(at, values, color=color, linestyle=style, alpha=0.3, linewidth=0.8)
    plot.set(**texts)
    plot.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=1, fontsize="small")
    return figure
