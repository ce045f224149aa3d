"""`make bench`: the speed of the program compared with the bare work.

    python -m bench.speed [--repetitions 5] [--only startup,learning,modes,acting,replay,transport] [--write]

Everything compared is measured in turn within this one run; figures are medians, with least and greatest. `--write`
puts them into docs/performance/parts.md. About fifteen minutes on two cores.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench import acting, learning, replay, startup, transport
from bench.report import Figure, machine, markdown, write_between_marks

PAGE = Path(__file__).parents[1] / "docs" / "performance" / "parts.md"
HEAD = ("", "median", "least to greatest", "unit", "promised")

_PARTS: dict[str, Callable[[Path, int], list[Figure]]] = {
    "startup": startup.measure,
    "learning": learning.measure,
    "modes": learning.measure_modes,
    "acting": lambda _, repetitions: acting.measure(repetitions),
    "replay": lambda _, repetitions: replay.measure(repetitions),
    "transport": lambda _, repetitions: transport.measure(repetitions),
}


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(prog="make bench", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--only", default=",".join(_PARTS), help="of: %(default)s")
    parser.add_argument("--write", action="store_true", help=f"put the figures into {PAGE.name}")
    chosen = parser.parse_args()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.only.split(","):
            measured = _PARTS[name](Path(folder), chosen.repetitions)
            print(markdown(HEAD, [figure.cells() for figure in measured]), flush=True)
            figures += measured
    if chosen.write:
        table = markdown(HEAD, [figure.cells() for figure in figures])
        write_between_marks(PAGE, f"\n{chosen.repetitions} repetitions on {machine()}.\n\n{table}\n")


if __name__ == "__main__":
    main()
