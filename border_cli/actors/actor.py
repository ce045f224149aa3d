"""The loop of an actor: act on credit, hand over chunks, take the newest model between chunks.

An actor shares an `ActorStatus` (credit, stop, counters, heartbeat), a `Ring` and a `ModelChannel` with the learner.
They work between processes and between threads. On another machine they connect two threads of
`border_cli.actors.ray_actors.RemoteActor`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic_ns
from typing import TypeVar

from border_cli.actors.sampler import Sampler
from border_cli.actors.spec import ActorId, ActorSpec, ActorState, ActorStatus, Rounds, model_number
from border_cli.core.protocols import ActingPolicy
from border_cli.core.state import State, check_like, joined, section
from border_cli.core.types import Chunk, Items, count_env_steps
from border_cli.runtime import seeding
from border_cli.runtime.transport import ModelChannel, Ring
from border_cli.runtime.worker import Ready, Reporter

MAX_AGE_NS = 50_000_000
"""A chunk leaves after 50 ms at the latest, so that the steps of a slow environment are not held back."""

_BEAT_S = 0.25
"""Time between two heartbeats of an actor that waits [s]."""

T = TypeVar("T")


def wait_until(poll: Callable[[], T], state: ActorState, status: ActorStatus) -> T:
    """Call `poll` until it returns a true value, and return this value. In between, sleep until the learner changes
    something.

    Meanwhile the status shows `state`, and the heartbeat grows. After the first env step, the time counts as blocked.
    """
    if result := poll():
        return result
    before, status.state = status.state, state
    since = monotonic_ns()
    while not (result := poll()):
        status.changed.wait(_BEAT_S)
        now = monotonic_ns()
        if status.first_step_ns:
            status.blocked_ns += now - since
        status.heartbeat += 1
        since = now
    status.state = before
    return result


@dataclass(eq=False)
class Actor:
    """Acts whenever it has credit, with the newest model.

    Args:
        policy: holds the model of this version already.
        n_buffer: env steps after which a chunk leaves.
    """

    id: ActorId
    sampler: Sampler
    policy: ActingPolicy
    models: ModelChannel
    ring: Ring
    status: ActorStatus
    n_buffer: int = 1
    version: int = 0

    def __post_init__(self) -> None:
        self.env_steps = self.id.env_steps
        self._pending = 0  # env steps that were taken and not handed over yet
        self._began_ns = 0  # when the first of them began
        self._sequence = 0  # of the next chunk

    def run(self) -> None:
        """Act until the learner asks to stop, and hand over all env steps that were taken."""
        status = self.status
        least = self.sampler.least_credit
        status.state = ActorState.ACTING
        while not status.stop_requested:
            status.heartbeat += 1
            # One env step in each environment; in fewer of them where that is all the credit left.
            k = min(self.id.n_envs, status.credit - self.env_steps)
            if k >= least:
                self._step(self.sampler.next_envs(k), status.global_env_steps + self._pending)
                age_ns = monotonic_ns() - self._began_ns if self._pending else 0
                if self._pending < self.n_buffer and age_ns < MAX_AGE_NS:
                    continue
                self._hand_over()
            else:
                self._hand_over()
                wait_until(
                    lambda: status.stop_requested or status.credit >= self.env_steps + least,
                    ActorState.WAITING_FOR_CREDIT,
                    status,
                )
            # Only between chunks, so that one model chose all actions of a chunk.
            if (model := self.models.poll()) is not None:
                self.policy.sync_model(model)
                self.version = model.version
        status.state = ActorState.STOPPING
        self._hand_over()

    def _step(self, env_ix: list[int], global_env_steps: int) -> None:
        if not self.status.first_step_ns:
            self.status.first_step_ns = monotonic_ns()
        if self._pending == 0:
            self._began_ns = monotonic_ns()
        taken = self.sampler.step(env_ix, global_env_steps)
        self.env_steps += taken
        self._pending += taken

    def _hand_over(self) -> None:
        """Hand over all rows, in chunks. Waits while the ring is full, also when the run is stopping: the learner then
        empties the rings until every actor has ended.
        """
        processor = self.sampler.processor
        while self._pending:
            reserve = partial(self.ring.reserve, processor.n_rows)
            items = processor.take(wait_until(reserve, ActorState.WAITING_FOR_ROOM, self.status))
            env_steps = self._part_steps(items) if processor.n_rows else self._pending
            actor, incarnation = self.id.actor, self.id.incarnation
            self.ring.push(Chunk(actor, incarnation, self._sequence, env_steps, self.version, items))
            self._sequence += 1
            self._pending -= env_steps

    def _part_steps(self, items: Items) -> int:
        """Env steps of a part of a split chunk, before the last one: those of its rows."""
        return min(count_env_steps(items), self._pending - 1)  # one is left for the last part


@dataclass(eq=False, kw_only=True)
class LockstepActor(Actor):
    """Acts in rounds, each with the model that is due in it. For its other arguments see `run_actor`."""

    rounds: Rounds
    send: Callable[[object], None]
    state_wanted: Callable[[], bool]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._round = 0
        self._held = 0  # number of the publication whose model the policy has

    def begin(self, state: State | None) -> None:
        """Reset the environments, or continue from a saved state. Raises ValueError if it does not fit."""
        if state is not None:
            check_like(saved := section(state, "own"), self._own_state(), f"actor {self.id.actor}")
            self._round = saved.values["round"]
        # Without the state of its sampler, the run failed in the middle of a round.
        if state is None or "sampler" not in state.values:
            self.sampler.begin()
            return
        self.policy.load_generator_state(section(state, "policy").values)
        self.sampler.begin_from(section(state, "sampler"))

    def run(self) -> None:
        self.status.state = ActorState.ACTING
        while self._wait_for_model():
            per_env = self.rounds.env_steps(self._round, self.id.actor)
            before = self.rounds.before(self._round)
            for step in range(max(per_env)):
                if self.status.stop_requested:
                    break
                self.status.heartbeat += 1
                # The nominal count of env steps: as if all environments of the run took them in turn.
                global_env_steps = before + step * self.rounds.streams
                self._step([i for i, n in enumerate(per_env) if step < n], global_env_steps)
            else:
                self._hand_over()  # the rows of a round leave together
            self._round += 1
        self.status.state = ActorState.STOPPING

    def _part_steps(self, items: Items) -> int:
        return 0  # the learner takes a round as a whole, with its last part

    def _own_state(self) -> State:
        return State({}, {"round": self._round, "incarnation": self.id.incarnation})

    def _wait_for_model(self) -> bool:
        """Hold the model that is due in this round. False once the learner asks to stop."""
        number = model_number(self._round)

        def is_due() -> bool:
            if self.status.stop_requested or self.models.publications >= number:
                return True
            if self.state_wanted():  # only now: every round that may have started is complete
                policy = State({}, self.policy.generator_state())
                parts = {"own": self._own_state(), "policy": policy, "sampler": self.sampler.state()}
                self.send(joined(parts))
            return False

        wait_until(is_due, ActorState.WAITING_FOR_MODEL, self.status)
        if self.status.stop_requested:
            return False
        if number != self._held:
            model = self.models.take(number)
            self.policy.sync_model(model)
            self.version, self._held = model.version, number
        return True


def run_actor(
    spec: ActorSpec,
    actor_id: ActorId,
    models: ModelChannel,
    ring: Ring,
    status: ActorStatus,
    send: Callable[[object], None],
    state_wanted: Callable[[], bool] = lambda: False,
    state: State | None = None,
) -> None:
    """One incarnation of an actor, from making its environments to closing them.

    Args:
        status: its state is DONE once everything is handed over; closing the environments may then take long.
        send: gets `Ready` once the environments are reset and the first model is held.
        state_wanted: in lockstep, whether the learner asks for the actor's state; `send` then gets it.
        state: in lockstep, the saved state to continue from.
    """
    # Environments may draw from the global generators.
    seeding.seed_global_generators(actor_id.seed, seeding.ACTOR, actor_id.actor, actor_id.incarnation, 2)
    status.state = ActorState.MAKING_ENVIRONMENT
    with contextlib.closing(spec.env(actor_id)) as env:
        processor, policy = spec.processor(actor_id, env.spec), spec.policy(actor_id, env.spec)
        model = wait_until(
            lambda: models.poll() or status.stop_requested, ActorState.WAITING_FOR_MODEL, status
        )
        if isinstance(model, bool):  # the run was stopped before there was a model
            status.state = ActorState.DONE
            return
        policy.sync_model(model)
        policy.train()
        status.state = ActorState.RESETTING
        seed_of = partial(
            seeding.first_seed if spec.rounds is None else seeding.episode_seed,
            *(actor_id.seed, actor_id.actor, actor_id.incarnation),
        )
        sampler = Sampler(env, policy, processor, seed_of, f"actor {actor_id.actor}")
        parts = actor_id, sampler, policy, models, ring, status
        if spec.rounds is None:
            run = Actor(*parts, spec.n_buffer, model.version).run
            sampler.begin()
        else:
            lockstep = LockstepActor(*parts, rounds=spec.rounds, send=send, state_wanted=state_wanted)
            lockstep.begin(state)
            run = lockstep.run
        send(Ready(sampler.exact))
        run()
        status.state = ActorState.DONE


def actor_main(
    reporter: Reporter,
    ring: Ring,
    models: ModelChannel,
    status: ActorStatus,
    spec: ActorSpec,
    actor_id: ActorId,
    state: State | None,
) -> None:
    """What the process of an actor runs (see `border_cli.runtime.child.Child`)."""

    def state_wanted() -> bool:
        with contextlib.suppress(EOFError, ConnectionResetError):
            return reporter.pipe.poll() and bool(reporter.pipe.recv())
        return False  # the learner died, and this process ends with it

    run_actor(spec, actor_id, models, ring, status, reporter.send, state_wanted, state)
