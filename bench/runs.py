"""Whole runs by the real command, for the benchmarks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from border_cli.recorders.jsonl import METRICS_FILE, read_jsonl


def train(run_dir: Path, words: Sequence[str], resumes: bool = False) -> None:
    """`border-train WORD…` into run_dir, or, where it resumes one, as the words say.

    Raises SystemExit with its output if it fails.
    """
    _command("border_cli.cli.train", words if resumes else [*words, f"hydra.run.dir={run_dir}"])


def judge(run_dir: Path, words: Sequence[str]) -> None:
    """`border-eval run_dir WORD…`."""
    _command("border_cli.cli.eval", [str(run_dir), *words])


def records(run_dir: Path) -> list[dict[str, Any]]:
    """The records of metrics.jsonl, oldest first."""
    return read_jsonl(run_dir / METRICS_FILE)


def _command(module: str, words: Sequence[str]) -> None:
    command = [sys.executable, "-c", f"import sys; from {module} import main; sys.exit(main())", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
