"""An Atari game in a thread of ALE's own, which preprocesses in C++: the frames of `AtariPreprocessing`, for less.

Several games of an actor are sent their actions first and waited for then, so that they run at the same time. What differs
is the start: up to as many idle frames, drawn by another generator, and now and then none at all.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from border_cli.config.schema import EnvConfig
from border_cli.core.errors import UsageError
from border_cli.envs import atari

Frame = NDArray[np.uint8]
_ONLY = np.zeros(1, np.int64)
_FULL_STRENGTH = np.ones(1, np.float32)
_MAX_SEED = 2**31
_MAX_FRAMES = 108_000  # of an episode: as the ids of ALE are registered


class NativeGame(gymnasium.Env[Frame, np.int64]):  # type: ignore[misc] # gymnasium is not checked
    """One game of ALE's vector environment, which has no other: it is reset when asked to be, and can be left waiting.

    Observation (screen_size, screen_size) uint8, grey · reward: raw · info: `lives`. Raises UsageError where ALE is not
    installed.
    """

    def __init__(self, config: EnvConfig) -> None:
        env_id = config.id.rpartition(":")[
            2
        ]  # the module before it was imported when the id was looked at first
        atari.register(env_id)
        import ale_py
        from ale_py import roms

        rom = roms.get_rom_path(gymnasium.spec(env_id).kwargs["game"])
        if rom is None:
            raise UsageError(f"env.id: ALE has no game for {env_id!r}")
        self._game = ale_py.ALEVectorInterface(
            rom_path=rom,
            num_envs=1,
            num_threads=1,
            batch_size=0,  # all
            thread_affinity_offset=-1,  # wherever the system wants
            autoreset_mode="NextStep",  # never comes to it, as who has ended is reset before it is stepped
            frame_skip=config.frame_skip,
            maxpool=True,
            grayscale=True,
            img_height=config.screen_size,
            img_width=config.screen_size,
            stack_num=1,
            noop_max=config.noop_max + 1 if config.noop_max else 0,  # of ALE: one less at most
            use_fire_reset=False,  # `Fire` does
            episodic_life=False,
            life_loss_info=False,
            reward_clipping=False,
            max_episode_steps=_MAX_FRAMES,
            repeat_action_probability=config.sticky_actions,
            full_action_space=False,
        )
        side = config.screen_size
        self._meanings = [action.name for action in self._game.get_action_set()]
        self.observation_space = gymnasium.spaces.Box(0, 255, (side, side), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(self._meanings))
        self._is_sent = False

    def get_action_meanings(self) -> list[str]:
        """As of ALE's own environments."""
        return self._meanings

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Frame, dict[str, Any]]:
        """Start a new game; without a seed with the generator's next."""
        super().reset(seed=seed, options=options)
        self._take_in()
        frames, info = self._game.reset(_ONLY, np.array([-1 if seed is None else seed % _MAX_SEED]))
        return frames[0, 0].copy(), {"lives": int(info["lives"][0])}

    def send(self, action: np.int64) -> None:
        """Begin an env step, which the next `step` ends; where one was begun before, with the same action, that is it."""
        if self._is_sent:
            return
        self._game.send(np.array([action]), _FULL_STRENGTH)
        self._is_sent = True

    def step(self, action: np.int64) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        """One env step, or what is left of one that was begun with the same action."""
        self.send(action)
        frames, reward, terminated, truncated, info = self._game.recv()
        self._is_sent = False
        lives = {"lives": int(info["lives"][0])}
        return frames[0, 0].copy(), float(reward[0]), bool(terminated[0]), bool(truncated[0]), lives

    def _take_in(self) -> None:
        """What was begun and never asked for, as where another game raised in between."""
        if self._is_sent:
            self._game.recv()
            self._is_sent = False
