"""Figures with their spread, and the tables they are shown in."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from border_cli.runtime.machine import cpus


@dataclass(frozen=True)
class Figure:
    """Repetitions of one measurement. `target` is what the project promises, where it does."""

    name: str
    values: Sequence[float]
    unit: str
    target: str = ""

    def cells(self) -> list[str]:
        """Return name, median, range, unit and target."""
        low, high = min(self.values), max(self.values)
        return [
            self.name,
            number(statistics.median(self.values)),
            f"{number(low)} to {number(high)}",
            self.unit,
            self.target,
        ]


def number(value: float) -> str:
    """Format with three significant digits and thousands separators."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table with aligned source columns."""
    lines = [list(head), *[list(row) for row in rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |"
        for line in lines
    )


def machine() -> str:
    """Describe the machine of the measurement."""
    return (
        f"{cpus()} cores ({_processor()}), {platform.system()}, Python {platform.python_version()}, "
        f"torch {version('torch')}, gymnasium {version('gymnasium')}"
    )


def write_between_marks(path: Path, text: str, name: str = "figures") -> None:
    """Replace the text between the two marks of a document that have this name.

    Raises ValueError if the marks are missing.
    """
    before, _, after = _around_marks(path, name)
    path.write_text(f"{before}\n{text}\n{after}", encoding="utf-8")


def read_between_marks(path: Path, name: str = "figures") -> str:
    """Return the text between the two marks of a document that have this name. Raises ValueError if they are missing."""
    return _around_marks(path, name)[1].strip("\n")


def _around_marks(path: Path, name: str) -> tuple[str, str, str]:
    """The text up to the end of the first mark, the text between both, and that from the second mark on."""
    begin, end = f"<!-- {name}: written by the benchmark -->", f"<!-- end of {name} -->"
    before, found, rest = path.read_text(encoding="utf-8").partition(begin)
    between, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{path} has no place for {name}: {begin} … {end}")
    return before + begin, between, end + after


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "?")
