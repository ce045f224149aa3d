"""Whose fault an exception is: an environment that raises in the learner's own process is told apart from a defect."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from border_cli.core.errors import ActorLostError, BorderError
from border_cli.core.protocols import Step, StepError
from border_cli.core.spaces import Array, Obs
from border_cli.core.state import count, listed, require
from border_cli.envs.guard import JudgedEnv

_logger = logging.getLogger(__name__)


@contextmanager
def blamed(
    owner: str, doing: str, where: Callable[[BaseException], Mapping[str, Any]] = lambda _: {}
) -> Iterator[None]:
    """Turn what an environment raises into ActorLostError.

    owner: who acts in it · doing: what, for the message · where: of what was raised, to the context of the error.
    """
    try:
        yield
    except BorderError:
        raise
    except StepError as e:
        raised = e.__cause__ or e
        raise _lost(owner, doing, raised, where(e)) from raised
    except (Exception, SystemExit) as e:
        raise _lost(owner, doing, e, where(e)) from e


def _lost(owner: str, doing: str, raised: BaseException, where: Mapping[str, Any]) -> ActorLostError:
    message = f"{owner} failed while {doing}: {type(raised).__name__}: {raised}"
    return ActorLostError(message, "".join(traceback.format_exception(raised)), {"who": owner, **where})


class GuardedEnv:
    """Implements `envs.guard.JudgedEnv` by another one, whose exceptions become ActorLostError with their traceback.

    owner: who acts in it, as messages call it. Their context names the environment, the number of its episode from 0,
    the env steps it had in that, and the action.
    """

    def __init__(self, env: JudgedEnv, owner: str) -> None:
        self._env = env
        self._owner = owner
        self._env_steps = 0
        self._episodes = [-1] * env.n_envs
        self._times = [0] * env.n_envs
        self.n_envs = env.n_envs
        self.spec = env.spec

    def reset(self, env_ix: int, seed: int | None = None) -> None:
        """As the environment's own."""
        self._episodes[env_ix] += 1
        self._times[env_ix] = 0
        with blamed(self._owner, "resetting", lambda _: self._at("reset", env_ix)):
            self._env.reset(env_ix, seed)

    def observe(self, env_ix: Sequence[int]) -> Obs:
        """As the environment's own."""
        return self._env.observe(env_ix)

    def step(self, env_ix: Sequence[int], action: Array) -> Step:
        """As the environment's own."""

        def where(error: BaseException) -> dict[str, Any]:
            if not isinstance(error, StepError):
                return {"phase": "step"}
            return self._at("step", error.env_ix) | {
                "action": action[list(env_ix).index(error.env_ix)].tolist()
            }

        with blamed(self._owner, f"stepping, after {self._env_steps} env steps", where):
            step = self._env.step(env_ix, action)
        self._env_steps += len(env_ix)
        for i in env_ix:
            self._times[i] += 1
        return step

    def remake(self, env_ix: int) -> None:
        """As the environment's own."""
        with blamed(self._owner, "making the environment"):
            self._env.remake(env_ix)

    def judged(self) -> dict[str, object]:
        """As the environment's own, with the counts that messages name."""
        own = {"env_steps": self._env_steps, "episodes_begun": [n + 1 for n in self._episodes]}
        return self._env.judged() | own

    @contextmanager
    def judged_before(self, saved: Mapping[str, Any]) -> Iterator[None]:
        """As the environment's own."""
        require(saved, ("env_steps", "episodes_begun"), "what was judged")
        env_steps = count(saved["env_steps"], "env_steps")
        episodes = listed(saved["episodes_begun"], "episodes_begun", self.n_envs)
        begun = [count(n, "episodes_begun") for n in episodes]
        with self._env.judged_before(saved):
            yield
        self._env_steps, self._episodes = env_steps, [n - 1 for n in begun]

    def close(self) -> None:
        """As the environment's own; a failure of that is logged and changes nothing any more."""
        try:
            self._env.close()
        except Exception:
            _logger.exception("%s: closing the environments failed", self._owner)

    def _at(self, phase: str, env_ix: int) -> dict[str, Any]:
        return {
            "phase": phase,
            "env": env_ix,
            "episode": self._episodes[env_ix],
            "step": self._times[env_ix],
        }
