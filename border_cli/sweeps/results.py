"""What a sweep found: its runs grouped by configuration, and the best configuration of each environment as a preset."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from border_cli.config.convert import dotted, dump, to_plain
from border_cli.config.schema import TrainConfig
from border_cli.core.errors import UsageError
from border_cli.core.format import counted, number
from border_cli.core.metrics import SCORE
from border_cli.report.runs import grouped, read_run
from border_cli.report.stats import Line, line
from border_cli.sweeps.jobs import DONE, Job, Sweep

_IN_PRESETS = ("agent", "env", "buffer", "actor_manager", "trainer", "evaluator", "n_actors")
BESIDE_PRESETS = (
    "agent.type",
    "env.type",
    "env.id",
    "env.entry_point",
    "trainer.type",
    "trainer.lockstep",
    "trainer.lockstep_steps",
)
"""What is typed beside a preset: the groups, and how reproducible a run is."""


@dataclass(frozen=True)
class Result:
    """The finished runs of one configuration, without the seed. line: what reports say of them."""

    env: str
    jobs: Sequence[Job]
    line: Line

    @property
    def best(self) -> float:
        """Score of the best models."""
        return math.nan if self.line.best is None else self.line.best.value

    @property
    def expect(self) -> str:
        """What a run of this configuration should reach, for its preset."""
        return f"mean return of {number(self.best)} with the best models of {counted(len(self.jobs), 'run')}"


def results(sweep: Sweep) -> list[Result]:
    """A result for each configuration that has a run with scores, the best first within each environment."""
    done = [job for job in sweep.jobs if job.state == DONE and None not in (job.best, job.last)]
    by_path = {job.run_dir.resolve(): job for job in done}
    runs = []
    for path in by_path:
        with contextlib.suppress(UsageError):  # a file that cannot be read; the table of jobs has the run
            runs.append(read_run(path, SCORE))
    by_env: dict[str, list[Result]] = {}
    for group in grouped([run for run in runs if run is not None]):
        jobs = [by_path[run.path] for run in group.runs]
        by_env.setdefault(group.env, []).append(Result(group.env, jobs, line(group)))
    return [result for of_env in by_env.values() for result in sorted(of_env, key=lambda r: -r.best)]


def winners(best_first: Sequence[Result]) -> list[Result]:
    """The configuration with the best mean score of each environment."""
    best: dict[str, Result] = {}
    for result in best_first:
        best.setdefault(result.env, result)
    return list(best.values())


def write_preset(
    path: Path, config: TrainConfig, base: TrainConfig, expect: str, source: str, command: str
) -> None:
    """Write what a configuration has and `base`, the same groups without a preset, has not. Raises OSError.

    expect, source: what a run with the preset should reach, and where its values come from · command: one that uses it.
    """
    usual = dotted(to_plain(base))
    preset: dict[str, Any] = {"preset": {"env_id": config.env.name, "expect": expect, "source": source}}
    for key, value in dotted(to_plain(config)).items():
        *sections, name = key.split(".")
        is_usual = key in usual and usual[key] == value
        if key.partition(".")[0] in _IN_PRESETS and key not in BESIDE_PRESETS and not is_usual:
            place = preset
            for section in sections:
                place = place.setdefault(section, {})
            place[name] = value
    head = "\n# ".join(["# @package _global_", *command.splitlines()])
    path.write_text(f"{head}\n{dump(preset)}", encoding="utf-8")
