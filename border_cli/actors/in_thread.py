"""Acting in the learner's own thread: the source of experience of the synchronous trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

from border_cli.actors.sampler import ResumableSampler
from border_cli.core.errors import UnfitStateError
from border_cli.core.items import Chunk, finished_episodes
from border_cli.core.protocols import ActorStat, ModelInfo
from border_cli.core.state import State, count, joined, require, section


class InThreadSource:
    """One actor without a process. Each `collect` takes one env step in each environment that has credit for it.

    sampler: acts with the learner's own agent, so that there is no model to publish. close: releases the environments.
    """

    def __init__(self, sampler: ResumableSampler, n_envs: int, close: Callable[[], None]) -> None:
        self._sampler = sampler
        self._close = close
        self._n_envs = n_envs
        self._credit = 0
        self._taken = 0
        self._announced = 0
        self._cursor = 0
        self._sequence = 0
        self._started = monotonic()
        self._version = 0
        self._stat = ActorStat(0, state="ready")

    def start(self, model: ModelInfo, state: State | None = None) -> None:
        """Reset the environments, or bring them to where they were. Raises ValueError for a state that does not fit."""
        self._version = model.version
        self._started = monotonic()
        if state is None:
            self._sampler.begin()
        else:
            self._load(state)

    def state(self, whole: bool = True) -> State:
        """Counts and, if it is whole, streams and environments."""
        counts = {
            "taken": self._taken,
            "cursor": self._cursor,
            "sequence": self._sequence,
            "version": self._version,
            "episodes": self._stat.episodes,
        }
        own = {"source": State({}, counts)}
        return joined(own | {"sampler": self._sampler.state()} if whole else own)

    def _load(self, state: State) -> None:
        saved, names = section(state, "source").values, ("taken", "cursor", "sequence", "version", "episodes")
        require(saved, names, "the actor")
        counts = {name: count(saved[name], name) for name in names}
        if "sampler" in state.values:
            self._sampler.begin_from(section(state, "sampler"))
        else:
            self._sampler.begin(first_episode=counts["episodes"] + 1)
        self._taken, self._cursor = counts["taken"], counts["cursor"] % self._n_envs
        self._sequence, self._version = counts["sequence"], counts["version"]
        self._stat.env_steps_before = counts["taken"]
        self._stat.episodes, self._stat.exact = counts["episodes"], self._sampler.exact

    def collect(self) -> list[Chunk]:
        """The rows of one round of env steps; nothing without credit, or after `stop`."""
        k = 0 if self._stat.state == "done" else min(self._n_envs, self._credit - self._taken)
        if k <= 0:
            return []
        env_ix = [(self._cursor + i) % self._n_envs for i in range(k)]
        self._cursor = (self._cursor + k) % self._n_envs
        dropped = self._sampler.dropped
        items = self._sampler.sample(env_ix, self._announced)
        k -= self._sampler.dropped - dropped
        self._taken += k
        self._stat.episodes += len(finished_episodes(items))
        chunk = Chunk(0, 0, self._sequence, k, self._version, items)
        self._sequence += 1
        return [chunk]

    def present(self) -> list[bool]:
        """It never leaves."""
        return [True]

    def grant(self, credits: Sequence[int]) -> None:
        """Env steps that may have been taken in all. Raises UnfitStateError where more have been."""
        (self._credit,) = credits
        if self._credit < self._taken:
            raise UnfitStateError(
                f"the actor has taken {self._taken} env steps, and {self._credit} are known of"
            )

    def announce(self, env_steps: int) -> None:
        """The count that exploration follows."""
        self._announced = env_steps

    def publish(self, model: ModelInfo) -> None:
        """Note the model's version."""
        self._version = model.version

    def stats(self) -> list[ActorStat]:
        """The one entry."""
        self._stat.env_steps = self._taken
        self._stat.dropped = self._sampler.dropped
        self._stat.seconds = monotonic() - self._started
        return [self._stat]

    def stop(self) -> list[ActorStat]:
        """Close the environments."""
        if self._stat.state != "done":
            self.stats()
            self._stat.state = "done"
            self._close()
        return [self._stat]
