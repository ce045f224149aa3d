"""What a sweep found: its runs grouped by configuration, and the best configuration of each environment as a preset."""

from __future__ import annotations

import contextlib
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from border_cli.cli.compose import Composed, Composer
from border_cli.config.convert import dotted, dump, to_plain
from border_cli.core.errors import UsageError
from border_cli.core.format import counted, number
from border_cli.core.metrics import SCORE
from border_cli.report.runs import grouped, read_run
from border_cli.report.stats import Line, line
from border_cli.run.directory import env_slug, shown
from border_cli.sweeps.jobs import DONE, Job, Sweep

_IN_PRESETS = ("agent", "env", "buffer", "actor_manager", "trainer", "evaluator", "n_actors")
_BESIDE_PRESETS = (
    "agent.type",
    "env.type",
    "env.id",
    "env.entry_point",
    "trainer.type",
    "trainer.lockstep",
    "trainer.lockstep_steps",
)
"""What is typed beside a preset: the groups, and how reproducible a run is."""
_ALSO_TYPED = ("plugins", "env.imports", "env.kwargs")
"""What is typed beside a preset, and may be in it too: without it there is no such environment."""


@dataclass(frozen=True)
class Result:
    """The finished runs of one configuration, without the seed. line: what reports say of them."""

    env: str
    jobs: Sequence[Job]
    line: Line

    @property
    def best(self) -> float:
        """Score of the best models."""
        return -math.inf if self.line.best is None else self.line.best.value

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
    groups = grouped([run for run in runs if run is not None])
    every = [Result(group.env, [by_path[run.path] for run in group.runs], line(group)) for group in groups]
    envs = list(dict.fromkeys(result.env for result in every))
    return sorted(every, key=lambda result: (envs.index(result.env), -result.best))


def write_preset(composer: Composer, composed: Composed, folder: Path, expect: str, name: str) -> str:
    """Write a configuration as the best preset of its environment. The command that uses it. Raises OSError.

    Args:
        folder: of the sweep.
        expect: what a run with the preset should reach.
        name: what distinguishes the configuration.
    """
    config, words = composed.config, _beside_preset(composed)
    has_id = any(word.startswith(("env.id=", "env.entry_point=")) for word in words)
    slug = env_slug("gym" if has_id else composed.choices["env"], config.env.name)
    path = folder / "preset" / f"best_{slug}.yaml"
    folders = composer.words_for_folders(shown(folder))
    command = shlex.join(["border-train", *folders, *words, f"preset={path.stem}"])
    usual = dotted(to_plain(composer.compose([*words, "preset=none"]).config))
    source = f"{shown(folder)}, {name}"
    preset: dict[str, Any] = {"preset": {"env_id": config.env.name, "expect": expect, "source": source}}
    for key, value in dotted(to_plain(config)).items():
        *sections, key_name = key.split(".")
        is_usual = key in usual and usual[key] == value
        if key.partition(".")[0] in _IN_PRESETS and key not in _BESIDE_PRESETS and not is_usual:
            place = preset
            for section in sections:
                place = place.setdefault(section, {})
            place[key_name] = value
    head = "\n# ".join(["# @package _global_", *command.splitlines()])
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{head}\n{dump(preset)}", encoding="utf-8")
    return command


def _beside_preset(composed: Composed) -> list[str]:
    """What is typed beside a preset with the values of this configuration."""
    env, words = composed.config.env, list[str]()
    for word in (override.lstrip("+") for override in composed.overrides):
        key = word.partition("=")[0]
        is_known = key in _BESIDE_PRESETS or f"{key}.type" in _BESIDE_PRESETS or key in _ALSO_TYPED
        if is_known or key.startswith("env.kwargs."):
            words.append(word)
    keys = {word.partition("=")[0] for word in words}
    # A group of the user's own, such as experiment=…, may have chosen agent and environment.
    chosen = [f"{group}={composed.choices[group]}" for group in ("agent", "env") if group not in keys]
    if composed.choices["env"] == "gym" and not keys & {"env.id", "env.entry_point"}:
        chosen.append(f"env.entry_point={env.entry_point}" if env.entry_point else f"env.id={env.id}")
    return chosen + words
