"""The loop of an actor in lockstep: rounds of a fixed number of env steps, each with the model that it is due.

Whatever the timing, the same seed gives the same rows: nothing here looks at a clock to decide anything.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from border_cli.actors.actor import ActorLoop
from border_cli.actors.board import ActorLine, ActorState
from border_cli.actors.place import Place
from border_cli.actors.proxy import ReplayBufferProxy
from border_cli.actors.rounds import Rounds, model_number
from border_cli.actors.sampler import ResumableSampler
from border_cli.actors.waiting import Waiter
from border_cli.core.protocols import ActingPolicy, ActorStat
from border_cli.core.state import State, count, joined, require, section
from border_cli.runtime.clock import SYSTEM_CLOCK, Clock
from border_cli.transport.model_channel import ModelChannel


class StateRequests(Protocol):
    """How the learner asks an actor for its state."""

    def wanted(self) -> bool:
        """Whether it does now."""

    def answer(self, state: State) -> None:
        """Hand the state over."""


class LockstepActor(ActorLoop):
    """Acts in rounds, each with the model that it is due. requests: how the learner asks for its state."""

    _sampler: ResumableSampler
    _policy: ActingPolicy

    def __init__(
        self,
        place: Place,
        rounds: Rounds,
        sampler: ResumableSampler,
        policy: ActingPolicy,
        models: ModelChannel,
        proxy: ReplayBufferProxy,
        line: ActorLine,
        waiter: Waiter,
        requests: StateRequests,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(place, sampler, policy, proxy, line, waiter, clock=clock)
        self._rounds = rounds
        self._models = models
        self._requests = requests
        self._round = 0
        self._held = 0

    def begin(self, state: State | None) -> None:
        """Reset the environments, or go on from a saved state. Raises ValueError for one that does not fit."""
        if state is None:
            self._sampler.begin()
            return
        saved, names = section(state, "counts").values, ("round", "env_steps", "episodes")
        require(saved, names, f"actor {self._place.actor}")
        self._round, self.env_steps, self._episodes = (count(saved[name], name) for name in names)
        if "sampler" not in state.values:  # it was lost in the middle of something
            self._sampler.begin()
            return
        self._policy.load_generator_state(section(state, "policy").values)
        self._sampler.begin_from(section(state, "sampler"))

    def run(self) -> ActorStat:
        """Act round by round until the learner asks to stop."""
        self._line.state = ActorState.ACTING
        while self._wait_for_model():
            self._act()
            self._round += 1
        self._line.state = ActorState.STOPPING
        return self._stat()

    def state(self) -> State:
        """Between two rounds: all that the next one depends on."""
        counts = {
            "round": self._round,
            "incarnation": self._place.incarnation,
            "env_steps": self.env_steps,
            "episodes": self._episodes,
        }
        return joined(
            {
                "counts": State({}, counts),
                "policy": State({}, self._policy.generator_state()),
                "sampler": self._sampler.state(),
            }
        )

    def _wait_for_model(self) -> bool:
        """Hold the model that this round is due. False once the learner asks to stop."""
        number = model_number(self._round)

        def there() -> bool:
            if self._line.stop_requested or self._models.publications >= number:
                return True
            if self._requests.wanted():  # only now: no round that may begin is left to be done
                self._requests.answer(self.state())
            return False

        self._waiter.until(there, ActorState.WAITING_FOR_MODEL)
        if self._line.stop_requested:
            return False
        if number != self._held:
            self._hold(self._models.take(number))
            self._held = number
        return True

    def _act(self) -> None:
        """One round: its rows leave as a whole, and stand for all of its env steps."""
        per_env = self._rounds.env_steps(self._round, self._place.actor)
        nominal = self._rounds.before(self._round)
        streams = self._rounds.n_actors * self._rounds.envs_per_actor
        for step in range(max(per_env)):
            if self._line.stop_requested:
                return  # nobody waits for this round any more
            self._line.beat()
            env_ix = [i for i, n in enumerate(per_env) if step < n]
            self._step(env_ix, nominal + step * streams)
        self._proxy.flush()

    @property
    def exact(self) -> bool:
        """Whether every environment came out of a saved state as it had been."""
        return self._sampler.exact

    def _stat(self) -> ActorStat:
        return replace(super()._stat(), exact=self.exact)
