"""The loop of an actor: act on credit, hand over rows, take the newest model between chunks.

Knows nothing of processes; a test runs it as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from border_cli.actors.board import ActorLine, ActorState
from border_cli.actors.place import Place
from border_cli.actors.proxy import ReplayBufferProxy
from border_cli.actors.sampler import Sampler
from border_cli.actors.waiting import Waiter
from border_cli.core.items import count_episodes
from border_cli.core.protocols import ActorStat, ModelInfo, SyncModel
from border_cli.runtime.clock import SYSTEM_CLOCK, Clock


class ModelSource(Protocol):
    """Where new models come from."""

    def poll(self) -> ModelInfo | None:
        """The newest model if there is a new one. Never waits."""


class ActorLoop:
    """What an actor counts and hands over, whenever it may act. env_steps: taken so far, those of earlier incarnations
    included, as credit is. version: of the model that `policy` already holds.
    """

    def __init__(
        self,
        place: Place,
        sampler: Sampler,
        policy: SyncModel,
        proxy: ReplayBufferProxy,
        line: ActorLine,
        waiter: Waiter,
        version: int = 0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._place = place
        self._sampler = sampler
        self._policy = policy
        self._proxy = proxy
        self._line = line
        self._waiter = waiter
        self._clock = clock
        self._version = version
        self._episodes = 0
        self.env_steps = place.taken

    def _step(self, env_ix: Sequence[int], known: int) -> None:
        """One env step in each of these environments; its rows go to the proxy. known: env steps of all actors."""
        if not self._line.first_step_ns:
            self._line.first_step_ns = self._clock.monotonic_ns()
        before = self._sampler.env_steps
        self._proxy.begin_step()
        items = self._sampler.sample(env_ix, known)
        taken = self._sampler.env_steps - before  # fewer where an environment raised and was mended
        self.env_steps += taken
        self._episodes += count_episodes(items)
        self._proxy.push(items, taken, self._version)

    @property
    def exact(self) -> bool:
        """Whether every environment came out of a saved state as it had been."""
        return True

    def _hold(self, model: ModelInfo) -> None:
        self._policy.sync_model(model)
        self._version = model.version

    def _stat(self) -> ActorStat:
        first = self._line.first_step_ns
        return ActorStat(
            actor=self._place.actor,
            incarnation=self._place.incarnation,
            env_steps=self.env_steps,
            episodes=self._episodes,
            seconds=(self._clock.monotonic_ns() - first) / 1e9 if first else 0.0,
            blocked_seconds=self._line.blocked_ns / 1e9,
            dropped=self._sampler.dropped,
            state=ActorState.DONE.words,
        )


class Actor(ActorLoop):
    """Acts whenever it has credit, with the newest model. models: where that comes from."""

    def __init__(
        self,
        place: Place,
        sampler: Sampler,
        policy: SyncModel,
        models: ModelSource,
        proxy: ReplayBufferProxy,
        line: ActorLine,
        waiter: Waiter,
        version: int = 0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(place, sampler, policy, proxy, line, waiter, version, clock)
        self._models = models
        self._cursor = 0

    def run(self) -> ActorStat:
        """Act until the learner asks to stop; everything taken is handed over by then."""
        self._line.state = ActorState.ACTING
        while not self._line.stop_requested:
            self._line.beat()
            credit = self._line.credit - self.env_steps
            if credit > 0:
                self._act(min(self._place.n_envs, credit))
            else:
                self._wait_for_credit()
        self._line.state = ActorState.STOPPING
        self._proxy.flush()
        return self._stat()

    def _act(self, k: int) -> None:
        """One env step in each of the next k environments, in turn: credit is used to the last step."""
        env_ix = [(self._cursor + i) % self._place.n_envs for i in range(k)]
        self._cursor = (self._cursor + k) % self._place.n_envs
        self._step(env_ix, self._line.global_env_steps + self._proxy.pending_env_steps)
        if self._proxy.publish_if_due():
            self._take_model()

    def _wait_for_credit(self) -> None:
        self._proxy.flush()
        self._waiter.until(
            lambda: self._line.stop_requested or self._line.credit > self.env_steps,
            ActorState.WAITING_FOR_CREDIT,
        )
        self._take_model()

    def _take_model(self) -> None:
        """Only between chunks, so that all of a chunk was chosen by one model."""
        model = self._models.poll()
        if model is not None:
            self._hold(model)
