"""Atari games as the field trains on them (Mnih et al., 2015): what stands between the emulator and the agent.

Frame skip with the maximum of the last two frames, grey, made smaller, no-op starts: gymnasium's `AtariPreprocessing`.
Ours is what it does not have: pressing FIRE where a game waits for it. A lost life ends no episode: the step is told to
the learner as one after which nothing counts (`Step.boundary`), and the return stays that of the whole game.
"""

from __future__ import annotations

import atexit
import functools
import gc
from typing import Any

import gymnasium
import numpy as np

from border_cli.config.schema import EnvConfig
from border_cli.core.errors import UsageError
from border_cli.envs.extras import install_hint


def register(env_id: str) -> None:
    """Make the ids of ALE known. Raises UsageError where it is not installed."""
    try:
        import ale_py
    except ModuleNotFoundError as e:
        raise UsageError(
            f"env.id: {env_id!r} needs a package that is not installed{install_hint(env_id)}"
        ) from e
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no greeting in the middle of the screen
    gymnasium.register_envs(ale_py)  # which importing it may have done already
    _collect_at_exit()


@functools.cache
def _collect_at_exit() -> None:
    """Once: ALE looks for what is left of it before Python's last collection, and fills the screen with what it finds."""
    atexit.register(gc.collect)


def game_arguments(config: EnvConfig) -> dict[str, Any]:
    """Arguments of a game that is to be preprocessed: every frame, and only the actions that it knows."""
    if config.entry_point is not None:  # what its class takes is its own affair
        return {}
    return {
        "frameskip": 1,
        "repeat_action_probability": config.sticky_actions,
        "full_action_space": False,
    }


def preprocessed(env: gymnasium.Env[Any, Any], config: EnvConfig) -> gymnasium.Env[Any, Any]:
    """With the standard preprocessing. Raises UsageError for one that is no Atari game."""
    if not hasattr(env.unwrapped, "ale"):
        raise UsageError(
            f"env.preprocess=atari: {config.name} is no Atari game\nallowed: ids such as ALE/Pong-v5, or preprocess=none"
        )
    try:
        return gymnasium.wrappers.AtariPreprocessing(
            env, noop_max=config.noop_max, frame_skip=config.frame_skip, screen_size=config.screen_size
        )
    except gymnasium.error.DependencyNotInstalled as e:
        raise UsageError(f"env.preprocess=atari needs opencv{install_hint('ALE/', e)}") from e


class Fire(gymnasium.Wrapper[Any, Any, Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """Presses FIRE after each reset and each lost life, in games that wait for it before anything happens.

    A policy that never presses it would wait for ever after the first life.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        meanings = env.unwrapped.get_action_meanings()
        self._fire = np.int64(meanings.index("FIRE")) if "FIRE" in meanings else None
        self._lives = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """As the environment's own, one FIRE later. Where that ends the game, it is reset again."""
        observation, info = self.env.reset(seed=seed, options=options)
        if self._fire is not None:
            observation, _, terminated, truncated, info = self.env.step(self._fire)
            if terminated or truncated:
                observation, info = self.env.reset(options=options)
        self._lives = info.get("lives", 0)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the environment's own, and one FIRE later where that cost a life and not the game: what both bring."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        is_lost, self._lives = info.get("lives", 0) < self._lives, info.get("lives", 0)
        if self._fire is None or not is_lost or terminated or truncated:
            return observation, reward, terminated, truncated, info
        observation, more, terminated, truncated, info = self.env.step(self._fire)
        self._lives = info.get("lives", 0)
        return observation, reward + more, terminated, truncated, info
