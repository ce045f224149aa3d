"""The process of one actor: build what it is made of, act until asked to stop, say what happened.

The steps of its life are those of `ActorState`. Whatever raises reaches the learner as a message with the
traceback, and the process exits with code 1.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import cast

from border_cli.actors.actor import Actor
from border_cli.actors.board import ActorLine, ActorState, Board
from border_cli.actors.lockstep_actor import LockstepActor
from border_cli.actors.mending import EnvGivenUp, InPlaceMender, describe, describe_fault
from border_cli.actors.messages import Failed, Finished, PipedRequests, Ready
from border_cli.actors.place import ActorSpec, Place
from border_cli.actors.proxy import ReplayBufferProxy
from border_cli.actors.rounds import Rounds
from border_cli.actors.sampler import ResumableEnv, ResumableSampler, Sampler
from border_cli.actors.waiting import Waiter
from border_cli.core.errors import UnfitStateError
from border_cli.core.protocols import ActingPolicy, ActorStat, Env, ModelInfo, StepProcessor
from border_cli.core.state import State
from border_cli.runtime import child, seeding
from border_cli.runtime.parcel import Parcel
from border_cli.runtime.pipe import Reporter, log_through
from border_cli.runtime.restarts import RestartBudget
from border_cli.transport.model_channel import ModelChannel
from border_cli.transport.ring import Ring

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ActorLinks:
    """What connects an actor with the learner; handed over while its process is started. order: holds an `Order`."""

    ring: Ring
    models: ModelChannel
    board: Board
    pipe: Connection
    order: Parcel


@dataclass(frozen=True)
class Order:
    """What to run, opened by the process itself: importing it may already fail.

    env_restarts: how often environments that raise are made anew within restart_window_s. state: what to go on
    from, in lockstep.
    """

    spec: ActorSpec
    place: Place
    log_level: int
    env_restarts: int
    restart_window_s: float
    state: State | None = None


def actor_main(links: ActorLinks) -> None:
    """Entry point of the process (see `border_cli.runtime.forkserver.start_process`)."""
    child.stand_back()
    reporter = Reporter(links.pipe)
    life = _Life(links, reporter)
    try:
        stat = life.run()
    except BaseException as error:  # also SystemExit and KeyboardInterrupt, which an environment may raise
        reporter.send(life.failure(error))
        raise SystemExit(1) from error
    else:
        reporter.send(Finished(stat))
    finally:
        life.close()


class _Life:
    """One actor from its orders to its last env step."""

    def __init__(self, links: ActorLinks, reporter: Reporter) -> None:
        self._links = links
        self._reporter = reporter
        self._phase = "reading its orders"
        self._place: Place | None = None
        self._env: Env | None = None
        self._sampler: Sampler | None = None
        self._actor: Actor | LockstepActor | None = None

    def run(self) -> ActorStat:
        """Build, report ready, act; what the actor did."""
        order: Order = self._links.order.open()
        place, line = order.place, self._links.board.line(order.place.actor)
        self._place = place
        log_through(self._reporter, f"actor {place.actor}", order.log_level)
        waiter = Waiter(line)
        env, policy, processor = self._build(order, line)
        model = self._first_model(line, waiter)
        if model is None:
            return ActorStat(place.actor, place.incarnation, state=ActorState.DONE.words)
        policy.sync_model(model)
        policy.train()
        line.state, self._phase = ActorState.RESETTING, "reset"
        if order.spec.rounds is None:
            self._actor = self._running_free(order, env, policy, processor, waiter, model.version)
        else:
            self._actor = self._in_rounds(order, order.spec.rounds, env, policy, processor, waiter)
        self._reporter.send(Ready(self._actor.exact))
        stat = self._actor.run()
        line.state = ActorState.DONE
        return stat

    def _running_free(
        self,
        order: Order,
        env: Env,
        policy: ActingPolicy,
        processor: StepProcessor,
        waiter: Waiter,
        version: int,
    ) -> Actor:
        links, place = self._links, order.place
        line = links.board.line(place.actor)
        budget = RestartBudget(order.env_restarts, order.restart_window_s)
        mender = InPlaceMender(env, place, budget, line, self._reporter)
        self._sampler = Sampler(env, policy, processor, _reset_seeds(place), mender)
        self._sampler.begin()
        proxy = ReplayBufferProxy(links.ring, place, order.spec.n_buffer, waiter)
        return Actor(place, self._sampler, policy, links.models, proxy, line, waiter, version)

    def _in_rounds(
        self,
        order: Order,
        rounds: Rounds,
        env: Env,
        policy: ActingPolicy,
        processor: StepProcessor,
        waiter: Waiter,
    ) -> LockstepActor:
        links, place = self._links, order.place
        seed_of = partial(seeding.episode_seed, place.seed, place.actor, place.incarnation)
        resumable = cast("ResumableEnv", env)
        sampler = ResumableSampler(resumable, policy, processor, seed_of, f"actor {place.actor}")
        self._sampler = sampler
        proxy = ReplayBufferProxy(links.ring, place, order.spec.n_buffer, waiter)
        requests = PipedRequests(links.pipe, self._reporter)
        line = links.board.line(place.actor)
        actor = LockstepActor(place, rounds, sampler, policy, links.models, proxy, line, waiter, requests)
        actor.begin(order.state)
        return actor

    def failure(self, error: BaseException) -> Failed:
        """What the learner has to know of an exception."""
        env_steps = 0 if self._actor is None else self._actor.env_steps
        if isinstance(error, EnvGivenUp):
            return Failed(error.raised, env_steps)
        if self._sampler is not None and self._sampler.fault is not None:
            return Failed(describe_fault(self._sampler.fault, self._place), env_steps)
        phase = self._phase if self._sampler is None else self._sampler.phase
        raised = describe(error, phase, self._place)
        return Failed(raised, env_steps, unfit=isinstance(error, UnfitStateError))

    def close(self) -> None:
        """Release the environments; a failure of that is logged and changes nothing any more."""
        try:
            if self._env is not None:
                self._env.close()
        except Exception:
            _logger.exception("closing the environments failed")

    def _build(self, order: Order, line: ActorLine) -> tuple[Env, ActingPolicy, StepProcessor]:
        spec, place = order.spec, order.place
        line.state, self._phase = ActorState.MAKING_ENVIRONMENT, "making the environment"
        env: Env = spec.env.load()(place, *spec.env.args)
        self._env = env
        self._phase = "making the policy"
        processor: StepProcessor = spec.processor.load()(place, env.spec, *spec.processor.args)
        make_policy = spec.policy.load()
        child.one_torch_thread()  # after the import that may bring torch, before the first tensor
        policy: ActingPolicy = make_policy(place, env.spec, *spec.policy.args)
        return env, policy, processor

    def _first_model(self, line: ActorLine, waiter: Waiter) -> ModelInfo | None:
        """The model to begin with; None if the run was stopped before there was one."""
        self._phase = "waiting for the first model"
        found: list[ModelInfo | None] = [None]

        def arrived() -> bool:
            found[0] = self._links.models.poll()
            return found[0] is not None or line.stop_requested

        waiter.until(arrived, ActorState.WAITING_FOR_MODEL)
        return found[0]


def _reset_seeds(place: Place) -> list[int]:
    return [seeding.env_seed(place.seed, place.actor, place.incarnation, i) for i in range(place.n_envs)]
