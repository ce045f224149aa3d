"""An environment that reads the width of its observations from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium

from tests.counting import CountingEnv


def make(file: str) -> gymnasium.Env[Any, Any]:
    """Make a CountingEnv that shows only the first of its four numbers.

    file: path of a file with the number.
    """
    env, width = CountingEnv(env=0), int(Path(file).read_text(encoding="ascii"))
    whole = env.observation_space
    shown = gymnasium.spaces.Box(whole.low[:width], whole.high[:width], dtype=whole.dtype)
    return gymnasium.wrappers.TransformObservation(env, lambda obs: obs[:width], shown)
