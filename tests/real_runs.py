"""Tiny real runs, and access to the files that they write."""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from border_cli.cli.train import main
from border_cli.config.convert import known_keys, to_config
from border_cli.config.registry import AGENTS
from border_cli.config.schema import TrainConfig
from border_cli.config.validate import unused
from border_cli.recorders.files import read_jsonl
from border_cli.run.directory import read_config

TINY = (
    "preset=none",
    "agent.hidden=[16]",
    "agent.batch_size=16",
    "buffer.n_step=1",
    "trainer.warmup_period=50",
    "evaluator.episodes=2",
    "recorder.console=none",
    "recorder.tensorboard=false",
)
"""Makes a run tiny. The arguments of a test replace these, and keys that an agent lacks are left out."""


@contextlib.contextmanager
def in_folder(folder: Path) -> Iterator[Path]:
    """Change into the folder, with its own cache of compiled opt steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.chdir(folder)
        yield folder


def tiny(*args: str) -> list[str]:
    """Add the arguments of TINY whose keys are not given. Omits those of evaluations if the run has none."""
    typed = dict(arg.split("=", 1) for arg in args if "=" in arg)
    default = (arg for arg in TINY if arg.partition("=")[0] not in typed)
    words = [*known_to(typed.get("agent", "dqn"), *default), *args]
    if typed.get("trainer.eval_interval") == "null":
        words = [arg for arg in words if not arg.startswith("evaluator.")]
    return words


def known_to(agent: str, *args: str) -> list[str]:
    """Return the arguments that are groups, or whose key this agent has and uses."""
    is_registered = agent in AGENTS  # the agent of a plugin may be registered later
    known = known_keys({"agent": {"type": agent}} if is_registered else {}).keys()
    if is_registered:
        known -= {
            key for key, reason, _ in unused(to_config({"agent": {"type": agent}})) if "with agent." in reason
        }
    return [arg for arg in args if "." not in (key := arg.partition("=")[0]) or key in known]


def train(*args: str) -> Run:
    """Run `border-train` in this process with the arguments of `tiny`. It must succeed."""
    assert main(tiny(*args)) == 0
    return Run(Path("runs/latest").resolve())


class Run:
    """The files of a run directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def json(self, name: str) -> Any:
        """Read a JSON file of the directory."""
        return json.loads((self.path / name).read_text(encoding="utf-8"))

    @property
    def summary(self) -> dict[str, Any]:
        data: dict[str, Any] = self.json("summary.json")
        return data

    @property
    def counts(self) -> tuple[int, int]:
        """Opt steps and env steps at the end."""
        counters = self.summary["counters"]
        return counters["opt_steps"], counters["env_steps"]

    @functools.cached_property
    def config(self) -> TrainConfig:
        return read_config(self.path)

    @functools.cached_property
    def records(self) -> list[dict[str, Any]]:
        return read_jsonl(self.path / "metrics.jsonl")

    @property
    def checkpoints(self) -> list[str]:
        """Names below checkpoints/, in order."""
        return sorted(entry.name for entry in (self.path / "checkpoints").glob("*"))

    @property
    def saves(self) -> list[int]:
        """Opt steps at which a checkpoint was written, from the log."""
        log = (self.path / "train.log").read_text(encoding="utf-8")
        return [int(step) for step in re.findall(r"checkpoint at opt step (\d+)", log)]

    def series(self, name: str) -> list[tuple[int, float]]:
        """Opt step and value of one metric, in the order of the file."""
        return [(record["opt_steps"], record[name]) for record in self.records if name in record]

    def steps(self, name: str) -> list[int]:
        """Opt steps at which one metric was recorded."""
        return [opt_steps for opt_steps, _ in self.series(name)]

    def files(self, *folders: str) -> dict[str, bytes]:
        """Return the content of every file below these folders, by its path in the run directory."""
        paths = [path for folder in folders for path in (self.path / folder).rglob("*") if path.is_file()]
        return {str(path.relative_to(self.path)): path.read_bytes() for path in paths}
