"""An environment that writes down how many threads torch has in the process that steps it."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import gymnasium

from border_cli.envs.counting import CountingEnv

FOLDER = "threads"


class Telling(gymnasium.Wrapper[Any, Any, Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """Writes `threads/<process name>` at its first step."""

    def __init__(self, lengths: tuple[int, ...] = (7,)) -> None:
        super().__init__(CountingEnv(lengths=lengths))
        self._told = False

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if not self._told:
            self._told = True
            import torch

            folder = Path(FOLDER)
            folder.mkdir(exist_ok=True)
            found = f"{torch.get_num_threads()} {os.environ.get('OMP_NUM_THREADS')}"
            (folder / multiprocessing.current_process().name).write_text(found)
        result: tuple[Any, Any, bool, bool, dict[str, Any]] = super().step(action)
        return result
