"""Atari games with the usual preprocessing (Mnih et al., 2015), and Catch, a small game with the interface of one.

gymnasium's `AtariPreprocessing` skips frames, takes the maximum of the last two, makes them grey and small, and begins with
no-ops. A lost life does not end an episode, but the learner treats the env step as terminated (`Step.life_lost`).
"""

from __future__ import annotations

import atexit
import gc
from typing import Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from border_cli.config.registry import require_package
from border_cli.config.schema import EnvConfig
from border_cli.core.errors import UsageError


def register(env_id: str) -> None:
    """Register the environments of ALE. Raises UsageError where it is not installed."""
    require_package("ale_py", f"env.id={env_id}", "atari")
    import ale_py

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no greeting on the terminal
    gymnasium.register_envs(ale_py)  # importing it may have done that already
    # At exit ALE reports every game that is not collected yet.
    atexit.unregister(gc.collect)
    atexit.register(gc.collect)


def preprocessed(env: gymnasium.Env[Any, Any], config: EnvConfig) -> gymnasium.Env[Any, Any]:
    """The environment with the usual preprocessing. Raises UsageError if it is no Atari game."""
    if not hasattr(env.unwrapped, "ale"):
        raise UsageError(
            f"env.preprocess=atari: {config.name} is no Atari game",
            allowed="ids such as ALE/Pong-v5, or preprocess=none",
        )
    require_package("cv2", "env.preprocess=atari", "atari")
    return gymnasium.wrappers.AtariPreprocessing(
        env, noop_max=config.noop_max, frame_skip=config.frame_skip, screen_size=config.screen_size
    )


class Fire(gymnasium.Wrapper[Any, Any, Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """Presses FIRE after each reset and each lost life, in games that wait for it: a policy may never press it."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        meanings = env.unwrapped.get_action_meanings()
        self._fire = np.int64(meanings.index("FIRE")) if "FIRE" in meanings else None
        self._lives = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset and press FIRE. If that ends the game, reset again."""
        observation, info = self.env.reset(seed=seed, options=options)
        if self._fire is not None:
            observation, _, terminated, truncated, info = self.env.step(self._fire)
            if terminated or truncated:
                observation, info = self.env.reset(options=options)
        self._lives = info.get("lives", 0)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One env step, and FIRE if it cost a life but not the game. The rewards are added."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        is_lost, self._lives = info.get("lives", 0) < self._lives, info.get("lives", 0)
        if self._fire is None or not is_lost or terminated or truncated:
            return observation, reward, terminated, truncated, info
        observation, more, terminated, truncated, info = self.env.step(self._fire)
        self._lives = info.get("lives", 0)
        return observation, reward + more, terminated, truncated, info


Frame = NDArray[np.uint8]
_ONLY = np.zeros(1, np.int64)
_FULL_STRENGTH = np.ones(1, np.float32)
_MAX_SEED = 2**31
_MAX_FRAMES = 108_000  # of an episode, as registered by ALE


class NativeGame(gymnasium.Env[Frame, np.int64]):  # type: ignore[misc] # gymnasium is not checked
    """A vector environment of ALE with one game, so that games run in threads but are reset and stepped one by one.

    Observation (screen_size, screen_size) uint8, grey · reward: raw · info: `lives`.
    """

    def __init__(self, config: EnvConfig) -> None:
        env_id = config.id.rpartition(":")[2]
        register(env_id)
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
            thread_affinity_offset=-1,  # any core
            autoreset_mode="NextStep",  # has no effect: a game that has ended is reset before the next step
            frame_skip=config.frame_skip,
            maxpool=True,
            grayscale=True,
            img_height=config.screen_size,
            img_width=config.screen_size,
            stack_num=1,
            noop_max=config.noop_max + 1 if config.noop_max else 0,  # ALE stops one before it
            use_fire_reset=False,  # `Fire` does
            episodic_life=False,
            life_loss_info=False,
            reward_clipping=False,
            max_episode_steps=_MAX_FRAMES,
            repeat_action_probability=config.sticky_actions,
            full_action_space=False,
        )
        shape = (config.screen_size, config.screen_size)
        self._meanings = [action.name for action in self._game.get_action_set()]
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(self._meanings))
        self._is_sent = False

    def get_action_meanings(self) -> list[str]:
        return self._meanings

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Frame, dict[str, Any]]:
        """Start a new game; without a seed the game's generator continues."""
        super().reset(seed=seed, options=options)
        if self._is_sent:  # an env step that was never finished, because another game raised
            self._game.recv()
            self._is_sent = False
        frames, info = self._game.reset(_ONLY, np.array([-1 if seed is None else seed % _MAX_SEED]))
        return frames[0, 0].copy(), {"lives": int(info["lives"][0])}

    def send(self, action: np.int64) -> None:
        """Start an env step, which `step` finishes. Does nothing if one was started before."""
        if not self._is_sent:
            self._game.send(np.array([action]), _FULL_STRENGTH)
            self._is_sent = True

    def step(self, action: np.int64) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        """One env step, or the rest of one that `send` started."""
        self.send(action)
        frames, reward, terminated, truncated, info = self._game.recv()
        self._is_sent = False
        lives = {"lives": int(info["lives"][0])}
        return frames[0, 0].copy(), float(reward[0]), bool(terminated[0]), bool(truncated[0]), lives


_SIDE = 84
_BALL, _PADDLE = 4, 14
_FALL, _MOVE = 2, 2
"""Pixels per frame."""
_ACTIONS = ("NOOP", "RIGHT", "LEFT")


class Catch(gymnasium.Env[Frame, np.int64]):  # type: ignore[misc] # gymnasium is not checked
    """A game small enough to learn on a CPU: a ball falls from a random place, and a paddle at the bottom has to catch it.

    It tests within minutes everything between an emulator and a network. A screen (84, 84, 3) per env step; actions: stay,
    right, left; `balls` per episode. The reward is 1 for a ball that is caught and -1 for one that is missed.
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
        return list(_ACTIONS)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Frame, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._left = self._balls
        self._paddle = (_SIDE - _PADDLE) // 2
        self._drop()
        return self.render(), {"lives": 1}

    def step(self, action: np.int64) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        self._paddle += _MOVE * (0, 1, -1)[int(action)]
        self._paddle = min(max(self._paddle, 0), _SIDE - _PADDLE)
        self._y += _FALL
        reward = 0.0
        if self._y >= _SIDE - _BALL:
            caught = self._paddle - _BALL < self._x < self._paddle + _PADDLE
            reward = 1.0 if caught else -1.0
            self._left -= 1
            self._drop()
        return self.render(), reward, self._left == 0, False, {"lives": 1}

    def render(self) -> Frame:
        return np.repeat(self.grey()[:, :, None], 3, 2)

    def lives(self) -> int:
        return 1

    def getScreenGrayscale(self, into: Frame) -> None:
        into[...] = self.grey()

    def grey(self) -> Frame:
        """The screen, (84, 84)."""
        screen = np.zeros((_SIDE, _SIDE), np.uint8)
        screen[self._y : self._y + _BALL, self._x : self._x + _BALL] = 255
        screen[-_BALL:, self._paddle : self._paddle + _PADDLE] = 160
        return screen

    def _drop(self) -> None:
        self._x, self._y = int(self.np_random.integers(0, _SIDE - _BALL + 1)), 0
