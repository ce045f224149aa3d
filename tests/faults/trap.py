"""An environment with a trap in it: in one kind of process, at one moment, something happens, once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from typing import Any

import gymnasium

from border_cli.envs.counting import CountingEnv
from tests.faults.marks import spring


def make(
    place: str, at: str, then: str = "pass", step: int = 1, lengths: Sequence[int] = (7,)
) -> gymnasium.Env[Any, Any]:
    """A CountingEnv that is trapped in processes whose name begins with `place`.

    place: "actor", or "actor-1" for one of them, "MainProcess" for the learner, "probe_env" for the child that tries
    the environment out. at: "make", "reset", "close" or "step" (then the trap is in step number `step`, counted from 1
    over all episodes). then: "pass", "raise", "hang", or "wait" for the test. Whoever comes first springs it; for all
    others it is not there.
    """
    trapped = multiprocessing.current_process().name.startswith(place)
    if trapped and at == "make":
        spring(then)
    env = CountingEnv(lengths=lengths)
    return Trapped(env, at, then, step) if trapped else env


class Trapped(gymnasium.Wrapper[Any, Any, Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """Springs the trap at a reset, in a step or when it is closed."""

    def __init__(self, env: gymnasium.Env[Any, Any], at: str, then: str, step: int) -> None:
        super().__init__(env)
        self._at, self._then, self._steps_left = at, then, step

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        if self._at == "reset":
            spring(self._then)
        first: tuple[Any, dict[str, Any]] = super().reset(**options)
        return first

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._steps_left -= 1
        if self._at == "step" and self._steps_left == 0:
            spring(self._then)
        result: tuple[Any, Any, bool, bool, dict[str, Any]] = super().step(action)
        return result

    def close(self) -> None:
        if self._at == "close":
            spring(self._then)
        super().close()
