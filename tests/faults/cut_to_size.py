"""An environment whose observation is as wide as a file says when it is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium

from tests.counting import CountingEnv


def make(file: str) -> gymnasium.Env[Any, Any]:
    """A CountingEnv of whose four numbers the first ones are shown.

    file: path of the file that says how many.
    """
    env, width = CountingEnv(), int(Path(file).read_text(encoding="ascii"))
    whole = env.observation_space
    shown = gymnasium.spaces.Box(whole.low[:width], whole.high[:width], dtype=whole.dtype)
    return gymnasium.wrappers.TransformObservation(env, lambda obs: obs[:width], shown)
