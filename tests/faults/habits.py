"""CartPole with habits of real environments: it forks, prints, changes its process, and leaves processes behind."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

PRINTED = 1 << 20
"""Bytes that a habit prints in each reset."""


def _work(number: int) -> int:
    return number + 1


def _wait() -> None:
    threading.Event().wait()


class Cartpole(gymnasium.Wrapper[Any, Any, Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """CartPole with a habit.

    Args:
        habit: name of a method below, which is called in each reset, or when the environment is made.
        folder: where it notes the processes that it has started, one file each, and what it sees.
    """

    def __init__(self, habit: str, folder: str) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self._habit = habit
        self._folder = Path(folder)
        self._episodes = 0
        self._helper: Any = None
        if habit in ("is_strict", "wanders"):
            getattr(self, habit)()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._episodes += 1
        if self._habit not in ("is_strict", "wanders"):
            getattr(self, self._habit)()
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        if self._habit == "raises" and self._episodes == 2:
            raise ValueError("the second episode is broken")
        return super().step(action)

    def close(self) -> None:
        if self._habit == "never_closes":
            _wait()
        super().close()

    def note(self, kind: str, value: object) -> None:
        """Write a line about this process."""
        with (self._folder / f"{kind}-{multiprocessing.current_process().name}").open("a") as file:
            file.write(f"{value}\n")

    # -- habits ------------------------------------------------------------------

    def raises(self) -> None:
        """Raise at the first env step of the second episode."""

    def never_closes(self) -> None:
        """Hang in `close`."""

    def forks(self) -> None:
        """Use a pool of forked workers, and end another worker, in the first episodes."""
        if self._episodes > 2:
            return
        context = multiprocessing.get_context("fork")
        with context.Pool(2) as pool:
            assert pool.map(_work, [1, 2]) == [2, 3]
        worker = context.Process(target=_wait)
        worker.start()
        worker.terminate()
        worker.join()

    def leaves_worker(self) -> None:
        """Leave a forked worker behind, which holds every descriptor of this process."""
        if self._helper is None:
            self._helper = os.fork()
            if self._helper == 0:
                _wait()
            self.note("pid", self._helper)

    def leaves_simulator(self) -> None:
        """Leave programs behind, in sessions of their own, one of them without a parent."""
        if self._helper is None:
            self._helper = subprocess.Popen(
                ["setsid", "sh", "-c", "sleep 1000 & echo $!; exec sleep 1000"],
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            assert self._helper.stdout is not None
            self.note("pid", self._helper.stdout.readline().strip())
            self.note("pid", self._helper.pid)

    def prints(self) -> None:
        """Print a megabyte."""
        sys.stdout.write("x" * PRINTED + "\n")

    def is_strict(self) -> None:
        """Make every warning and every floating-point exception an error."""
        warnings.warn("not yet", stacklevel=1)
        with np.errstate(all="warn"):
            assert np.geterr()["over"] == "warn"
        warnings.filterwarnings("error")
        np.seterr(all="raise")

    def wanders(self) -> None:
        """Change the current folder and the handlers of signals."""
        os.chdir("/")
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: os._exit(9))

    def looks(self) -> None:
        """Note the variable BORDER_TEST, the CPUs and the folder for temporary files, and draw from global generators."""
        import torch

        if self._episodes == 1:
            self.note("variable", os.environ.get("BORDER_TEST"))
            self.note("cpus", sorted(os.sched_getaffinity(0)))
            self.note("drawn", (random.random(), np.random.rand(), float(torch.rand(1))))
