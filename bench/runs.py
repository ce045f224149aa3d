"""Complete runs of the real command, for the benchmarks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from border_cli.recorders.files import METRICS_FILE, read_jsonl


def train(run_dir: Path, args: Sequence[str], resumes: bool = False) -> None:
    """`border-train ARG…` into run_dir, or, where it resumes one, as the args say.

    Raises SystemExit with its output if it fails.
    """
    _command("train", args if resumes else [*args, f"hydra.run.dir={run_dir}"])


def evaluate(run_dir: Path, args: Sequence[str]) -> None:
    """`border-eval run_dir ARG…`."""
    _command("evaluate", [str(run_dir), *args])


def records(run_dir: Path) -> list[dict[str, Any]]:
    """Return the records of metrics.jsonl, oldest first."""
    return read_jsonl(run_dir / METRICS_FILE)


def _command(entry: str, args: Sequence[str]) -> None:
    program = f"import sys; from border_cli.cli.entry import {entry}; sys.exit({entry}())"
    command = [sys.executable, "-c", program, *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(args)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
