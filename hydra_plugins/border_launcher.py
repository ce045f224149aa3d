"""Hydra's launchers `border` and `border_ray`, with which other sweepers run their jobs as `border-train -m` does.

Hydra finds launchers in packages named `hydra_plugins` alone, and imports them in every command: nothing heavy is here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class BorderLauncher(Launcher):
    """Hands each batch of jobs that a sweeper asks for to the task, a `border_cli.cli.sweep_run.SweepRun`."""

    def __init__(self, **_settings: Any) -> None:
        self._run: Any = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._run = task_function

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        jobs = self._run.launch(job_overrides)
        return [
            JobReturn(overrides=list(job.overrides), status=JobStatus.COMPLETED, _return_value=score)
            for job, score in jobs
        ]
