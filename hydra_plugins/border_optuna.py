"""Hydra's sweeper `border_optuna`: tuning with Optuna, in the slots of `border-train -m`.

Hydra finds sweepers in packages named `hydra_plugins` alone, and imports them in every command: nothing heavy is here.
"""

from __future__ import annotations

from typing import Any

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class OptunaSweeper(Sweeper):
    """Passes on to the task, which is a `border_cli.cli.sweep.SweepRun`. settings: keys of `TuningSettings`."""

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self._run: Any = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._run = task_function

    def sweep(self, arguments: list[str]) -> None:
        self._run.request_tuning(arguments, self._settings)
