"""The ratios of `make bench` over commits: a line per run of the benchmark in track.jsonl, and a picture of them."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import textwrap
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from bench.report import Figure, machine

TRACK = Path(__file__).with_name("track.jsonl")
PICTURE = Path(__file__).parents[1] / "docs" / "curves" / "speed.png"


def append(figures: Sequence[Figure], track: Path = TRACK) -> None:
    """Append median, least and greatest value of each ratio. Figures with a unit are left out: machines differ."""
    ratios = {
        figure.name: {
            "median": statistics.median(figure.values),
            "range": [min(figure.values), max(figure.values)],
            "promised": figure.target,
        }
        for figure in figures
        if not figure.unit
    }
    entry = {"commit": _commit(), "date": date.today().isoformat(), "machine": machine(), "ratios": ratios}
    with track.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def draw(track: Path = TRACK, picture: Path = PICTURE) -> None:
    """Draw each ratio over the runs of the benchmark: its median and range, and a dashed line at what is promised."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    entries: list[dict[str, Any]] = [
        json.loads(line) for line in track.read_text(encoding="utf-8").splitlines()
    ]
    names = sorted({name for entry in entries for name in entry["ratios"]})
    rows = -(-len(names) // 3)
    figure, plots = pyplot.subplots(
        rows, 3, figsize=(12, 2.6 * rows), sharex=True, squeeze=False, layout="constrained"
    )
    for plot in plots.flat[len(names) :]:
        plot.set_visible(False)
    for plot, name in zip(plots.flat, names, strict=False):
        found = [(x, entry["ratios"][name]) for x, entry in enumerate(entries) if name in entry["ratios"]]
        x, medians = [x for x, _ in found], [one["median"] for _, one in found]
        spread = [[abs(one["median"] - one["range"][end]) for _, one in found] for end in (0, 1)]
        plot.errorbar(x, medians, yerr=spread, marker="o", capsize=3)
        if promised := re.search(r"[\d.]+$", found[-1][1]["promised"]):
            plot.axhline(float(promised[0]), linestyle="--", color="grey")
        plot.set_title(textwrap.fill(name, 44), fontsize="small")
        plot.set_ylim(0, 1.1 * plot.get_ylim()[1])
        plot.grid(alpha=0.3)
        plot.set_xticks(
            range(len(entries)), [entry["commit"] for entry in entries], rotation=60, fontsize="x-small"
        )
        plot.tick_params(labelbottom=True)
    picture.parent.mkdir(exist_ok=True)
    figure.savefig(picture, dpi=80, metadata={"Software": None})
    pyplot.close(figure)


def _commit() -> str:
    """The commit that is checked out, with + if files differ from it."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
        capture_output=True,
        text=True,
        check=True,
    )
    return described.stdout.strip()
