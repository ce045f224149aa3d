"""The track of the benchmark: ratios alone, one line per run, in the order of the runs."""

from __future__ import annotations

import json
from pathlib import Path

from bench import track
from bench.report import Figure


def test_a_run_of_the_benchmark_appends_its_ratios(tmp_path: Path) -> None:
    file, picture = tmp_path / "track.jsonl", tmp_path / "curves" / "speed.png"
    track.append(
        [
            Figure("a ratio", [0.9, 0.7, 0.8], "", "at least 0.75"),
            Figure("a speed", [100.0], "opt steps/s"),
        ],
        file,
    )
    track.append([Figure("another ratio", [2.0], "")], file)
    first, second = (json.loads(line) for line in file.read_text().splitlines())
    assert first["ratios"] == {"a ratio": {"median": 0.8, "range": [0.7, 0.9], "promised": "at least 0.75"}}
    assert second["ratios"] == {"another ratio": {"median": 2.0, "range": [2.0, 2.0], "promised": ""}}
    assert first["commit"] and first["machine"]
    track.draw(file, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
