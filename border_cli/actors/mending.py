"""Environments that raise, inside an actor's process: made anew in place as long as that does not happen too often."""

from __future__ import annotations

import traceback
from typing import Any

from border_cli.actors.board import ActorLine, ActorState
from border_cli.actors.messages import Mended, Raised
from border_cli.actors.place import Place
from border_cli.actors.sampler import EnvFault
from border_cli.core.protocols import Env
from border_cli.core.spaces import Array
from border_cli.runtime import seeding
from border_cli.runtime.pipe import Reporter, clipped
from border_cli.runtime.restarts import RestartBudget

_ERROR_BYTES = 1_000
_ACTION_NUMBERS = 100


class EnvGivenUp(Exception):
    """An environment raised once more than may be mended. raised: what it was this time."""

    def __init__(self, raised: Raised) -> None:
        super().__init__(raised.error)
        self.raised = raised


class InPlaceMender:
    """Implements `actors.sampler.Mender` for one actor.

    What raises while an environment is made anew, or in its first reset, is no longer mended here: it ends the
    process, and a new process may do better.
    """

    def __init__(
        self, env: Env, place: Place, budget: RestartBudget, line: ActorLine, reporter: Reporter
    ) -> None:
        self._env = env
        self._place = place
        self._budget = budget
        self._line = line
        self._reporter = reporter
        self._times = 0

    def mend(self, fault: EnvFault) -> int:
        """Report, make the environment anew; the seed of its first reset. Raises EnvGivenUp when the budget is spent."""
        raised = describe_fault(fault, self._place)
        if not self._budget.spend():
            raise EnvGivenUp(raised)
        self._reporter.send(Mended(raised, self._budget.spent))
        self._times += 1
        self._line.state = ActorState.MAKING_ENVIRONMENT
        self._line.beat()  # what may take long begins here
        self._env.remake(fault.env)
        self._line.state = ActorState.ACTING
        self._line.beat()
        place = self._place
        return seeding.remade_env_seed(place.seed, place.actor, place.incarnation, fault.env, self._times)


def describe(error: BaseException, phase: str, place: Place | None, **where: Any) -> Raised:
    """An exception as a message: small enough for the pipe, and plain text."""
    who = {} if place is None else {"actor": place.actor, "incarnation": place.incarnation}
    return Raised(
        phase,
        clipped(f"{type(error).__name__}: {error}".rstrip(": "), _ERROR_BYTES),
        clipped("".join(traceback.format_exception(error))),
        {**who, "phase": phase, **where},
    )


def describe_fault(fault: EnvFault, place: Place | None) -> Raised:
    """What an environment raised, and where, as a message."""
    return describe(
        fault.error,
        fault.phase,
        place,
        env=fault.env,
        episode=fault.episode,
        step=fault.step,
        action=None if fault.action is None else _plain(fault.action),
    )


def _plain(action: Array) -> Any:
    """As JSON values; a very large one as text that leaves out its middle."""
    return action.tolist() if action.size <= _ACTION_NUMBERS else clipped(str(action), _ERROR_BYTES)
