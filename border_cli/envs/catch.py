"""Catch: a game small enough to learn on a CPU, with the interface of an Atari game.

A ball falls from a random place, and a paddle at the bottom has to catch it. It tests within minutes everything between an
emulator and a network: frame skip, grey, stacks, frame storage, convolutions.
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

Screen = NDArray[np.uint8]

_SIDE = 84
_BALL, _PADDLE = 4, 14
_FALL, _MOVE = 2, 2
"""Pixels per frame."""
_ACTIONS = ("NOOP", "RIGHT", "LEFT")


class Catch(gymnasium.Env[Screen, np.int64]):  # type: ignore[misc] # gymnasium is not checked
    """A screen (84, 84, 3) per env step; actions: stay, right, left; `balls` per episode, each of which can be caught.

    The reward is 1 for a ball that is caught and -1 for one that is missed.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 60}

    def __init__(self, balls: int = 5, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(0, 255, (_SIDE, _SIDE, 3), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(_ACTIONS))
        self.ale = self  # the part of an emulator that `AtariPreprocessing` uses
        self._balls = balls
        self._frameskip = 1  # `AtariPreprocessing` asks for it
        self._paddle = self._x = self._y = self._left = 0

    def get_action_meanings(self) -> list[str]:
        """Names of the actions."""
        return list(_ACTIONS)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Screen, dict[str, Any]]:
        """Start a new game with the paddle in the middle."""
        super().reset(seed=seed, options=options)
        self._left = self._balls
        self._paddle = (_SIDE - _PADDLE) // 2
        self._drop()
        return self._colour(), {"lives": 1}

    def step(self, action: np.int64) -> tuple[Screen, float, bool, bool, dict[str, Any]]:
        """One frame."""
        self._paddle += _MOVE * (0, 1, -1)[int(action)]
        self._paddle = min(max(self._paddle, 0), _SIDE - _PADDLE)
        self._y += _FALL
        reward = 0.0
        if self._y >= _SIDE - _BALL:
            caught = self._paddle - _BALL < self._x < self._paddle + _PADDLE
            reward = 1.0 if caught else -1.0
            self._left -= 1
            self._drop()
        return self._colour(), reward, self._left == 0, False, {"lives": 1}

    def render(self) -> Screen:
        """The screen, (84, 84, 3)."""
        return self._colour()

    def lives(self) -> int:
        """One."""
        return 1

    def getScreenGrayscale(self, into: Screen) -> None:
        """Copy the current screen."""
        into[...] = self.grey()

    def grey(self) -> Screen:
        """The screen, (84, 84)."""
        screen = np.zeros((_SIDE, _SIDE), np.uint8)
        screen[self._y : self._y + _BALL, self._x : self._x + _BALL] = 255
        screen[-_BALL:, self._paddle : self._paddle + _PADDLE] = 160
        return screen

    def _drop(self) -> None:
        self._x, self._y = int(self.np_random.integers(0, _SIDE - _BALL + 1)), 0

    def _colour(self) -> Screen:
        return np.repeat(self.grey()[:, :, None], 3, 2)
