"""Evaluators: they run the evaluation episodes of a model in the learner's thread, or in a process of their own.

The learner never waits for the process. It sends a model through shared memory, and one message through a pipe that always
has room for it: the message is small and at most one is unread.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from statistics import fmean

from border_cli.core.protocols import ActingPolicy, Env, StopCheck
from border_cli.core.spaces import EnvSpec
from border_cli.core.types import Evaluation, ModelInfo
from border_cli.runtime import seeding
from border_cli.runtime.child import Child
from border_cli.runtime.stopping import Deadline
from border_cli.runtime.supervision import Condition, Limits, SupervisedProcess
from border_cli.runtime.transport import WORD, ModelChannel, SharedBlock, model_layout
from border_cli.runtime.worker import Ready, Reporter

_START_TIMEOUT_S = 120.0
"""Time for making one environment, unless heartbeat_timeout_s is longer."""
_STOP_TIMEOUT_S = 2.0
_RESTART_DELAY_S = 1.0
_POLL_INTERVAL_S = 0.05
_NO_END_S = 60.0
"""If no episode of an evaluation has ended after this time, a warning says how to limit episodes [s]."""
_STOP, _BEATS = 0, 1
"""Words of the memory that the learner and the evaluator's process share: the stop request, and the heartbeat."""
_logger = logging.getLogger(__name__)


class EpisodeRunner:
    """Runs evaluation episodes, as many at once as there are environments.

    Args:
        max_episode_steps: an episode that takes this many env steps is cut and counts with its return so far.
        should_stop: polled before every env step.
        info_keys: names of the values in `Step.infos`.

    Attributes:
        ended: episodes of this evaluation that have ended.
    """

    def __init__(
        self, env: Env, max_episode_steps: int, should_stop: StopCheck, info_keys: Sequence[str] = ()
    ) -> None:
        self.env = env
        self.max_episode_steps = max_episode_steps
        self._should_stop = should_stop
        self._info_keys = info_keys
        self._warned = set[str]()
        self.ended = 0
        self._lengths: list[int] = []
        self._running: dict[int, int] = {}  # environment → its episode

    @property
    def longest(self) -> int:
        """Env steps so far of the longest episode that is running."""
        return max((self._lengths[episode] for episode in self._running.values()), default=0)

    def evaluate(
        self,
        policy: ActingPolicy,
        opt_steps: int,
        seeds: Sequence[int],
        tick: Callable[[], None] = lambda: None,
    ) -> Evaluation | None:
        """Run one episode per seed. Afterwards, and after an exception, the policy is in train mode.

        Args:
            tick: called before every reset and env step.

        Returns:
            Raw returns and lengths in the order of the seeds; None if asked to stop meanwhile.
        """
        env, episodes = self.env, iter(range(len(seeds)))
        returns, lengths, cut = [0.0] * len(seeds), [0] * len(seeds), 0
        self.ended, self._lengths, self._running = 0, lengths, {}
        infos: list[list[float]] = []  # of each episode that has ended
        running, no_end = self._running, Deadline(_NO_END_S)

        def start_next(env_ix: int) -> None:
            self.ended += running.pop(env_ix, None) is not None
            if (episode := next(episodes, None)) is not None:
                running[env_ix] = episode
                policy.begin_episode(env_ix)
                tick()
                env.reset(env_ix, seed=seeds[episode])

        policy.eval()
        try:
            for env_ix in range(env.n_envs):
                start_next(env_ix)
            while running:
                if self._should_stop():
                    return None
                tick()
                self._warn_if(
                    not self.ended and no_end.passed,
                    "no episode of an evaluation has ended after a minute, and each is cut at",
                )
                env_ixs = sorted(running)
                step = env.step(env_ixs, policy.sample(env.observe(env_ixs), env_ix=env_ixs))
                infos += [] if step.infos is None else step.infos[step.over].tolist()
                # Single numbers of arrays take longer than those of lists.
                over, rewards = step.over.tolist(), step.reward.tolist()
                for row, env_ix in enumerate(env_ixs):
                    episode = running[env_ix]
                    returns[episode] += rewards[row]
                    lengths[episode] += 1
                    if over[row] or lengths[episode] >= self.max_episode_steps:
                        cut += not over[row]
                        start_next(env_ix)
        finally:
            policy.train()
        self._warn_if(
            cut == len(seeds), f"none of the {cut} episodes of an evaluation has ended, and all were cut at"
        )
        return Evaluation(opt_steps, tuple(returns), tuple(lengths), self._means(infos))

    def _means(self, infos: Sequence[Sequence[float]]) -> dict[str, float]:
        """The mean of each value in the last infos of the episodes, over those that have it."""
        numbers = {
            key: [row[i] for row in infos if not math.isnan(row[i])] for i, key in enumerate(self._info_keys)
        }
        return {key: fmean(column) for key, column in numbers.items() if column}

    def _warn_if(self, condition: bool, what: str) -> None:
        """Warn once, with the limit and how to change it."""
        if condition and what not in self._warned:
            self._warned.add(what)
            limit = f"{self.max_episode_steps:,} env steps"
            _logger.warning("%s %s: env.max_episode_steps=<n> ends them, in training too", what, limit)

    def close(self) -> None:
        self.env.close()


@dataclass(eq=False)
class InlineEvaluator:
    """Implements `core.protocols.Evaluator` in this thread. An environment that hangs here hangs the run.

    Args:
        make_runner: makes the environments; may take long. Called at the first `begin` or `poll`: the actors act already
            then, and a run with `trainer.eval_interval=null`, which polls nothing, may never need them.
        policy: the evaluator's own, so that an evaluation changes nothing of the agent.
        limit: env steps at which the episodes of the next evaluation are cut; None for that of the runner.
    """

    make_runner: Callable[[], EpisodeRunner]
    policy: ActingPolicy
    limit: Callable[[], int] | None = None
    concurrent = False
    _runner: EpisodeRunner | None = field(default=None, init=False)
    _evaluation: Evaluation | None = field(default=None, init=False)

    def begin(self, model: ModelInfo, seeds: Sequence[int], tick: Callable[[], None] = lambda: None) -> None:
        runner = self._lazy_runner()
        if self.limit is not None:
            runner.max_episode_steps = self.limit()
        self.policy.sync_model(model)
        self._evaluation = runner.evaluate(self.policy, model.version, seeds, tick)

    def poll(self) -> Evaluation | None:
        self._lazy_runner()
        evaluation, self._evaluation = self._evaluation, None
        return evaluation

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()

    def _lazy_runner(self) -> EpisodeRunner:
        self._runner = self._runner or self.make_runner()
        return self._runner


@dataclass(frozen=True)
class EvaluatorSpec:
    """What an evaluator is made of. It can be sent to a process.

    Args:
        env: env(tick) makes the environments, and calls `tick` after each, because making many takes long.
        policy: makes the policy for their spaces.
        max_episode_steps: env steps at which an episode is cut.
        info_keys: see `EpisodeRunner`.
    """

    env: Callable[[Callable[[], None]], Env]
    policy: Callable[[EnvSpec], ActingPolicy]
    max_episode_steps: int
    info_keys: tuple[str, ...] = ()
    seed: int = 0

    def runner(self, tick: Callable[[], None], should_stop: StopCheck) -> EpisodeRunner:
        """Make the environments, and what runs episodes in them."""
        return EpisodeRunner(self.env(tick), self.max_episode_steps, should_stop, self.info_keys)


@dataclass(frozen=True)
class Task:
    """Evaluate the newest model of the channel on episodes of these seeds. The answer is an `Evaluation`."""

    opt_steps: int
    seeds: tuple[int, ...]
    max_episode_steps: int


def evaluator_main(
    reporter: Reporter, models: ModelChannel, shared: SharedBlock, spec: EvaluatorSpec, incarnation: int
) -> None:
    """What the process runs (see `border_cli.runtime.child.Child`)."""
    words = shared.words(0, 2)

    def beat() -> None:
        words[_BEATS] += 1

    seeding.seed_global_generators(spec.seed, seeding.GLOBAL, 2, incarnation)
    with closing(spec.runner(beat, lambda: bool(words[_STOP]))) as runner:
        policy = spec.policy(runner.env.spec)
        reporter.send(Ready())
        while True:
            try:
                task: Task = reporter.pipe.recv()
            except (EOFError, ConnectionResetError):
                return
            if (model := models.poll()) is None:
                raise RuntimeError(f"there is no model for the evaluation of opt step {task.opt_steps}")
            policy.sync_model(model)
            runner.max_episode_steps = task.max_episode_steps
            evaluation = runner.evaluate(policy, task.opt_steps, task.seeds, beat)
            if evaluation is None:
                return
            reporter.send(evaluation)


class ProcessEvaluator(SupervisedProcess):
    """Implements `core.protocols.Evaluator`. The first `poll` starts the process.

    Args:
        model: any model, for the shapes of its arrays.
        heartbeat_timeout_s: the process is killed if one env step, one reset or making one environment takes longer [s].
        limit: as that of `InlineEvaluator`.
        restarts: allowed in a row without an evaluation between them, after 1, 2, 4, … seconds. The new process evaluates
            the same model again.

    Raises ResourceError.
    """

    concurrent = True

    def __init__(
        self,
        spec: EvaluatorSpec,
        model: ModelInfo,
        heartbeat_timeout_s: float,
        restarts: int,
        limit: Callable[[], int] | None = None,
    ) -> None:
        start_s = max(heartbeat_timeout_s, _START_TIMEOUT_S)
        limits = Limits(start_s, heartbeat_timeout_s, _STOP_TIMEOUT_S, restarts, math.inf, _RESTART_DELAY_S)
        super().__init__("evaluator", limits)
        self._spec = spec
        self._limit = limit or (lambda: spec.max_episode_steps)
        self._models = ModelChannel(model_layout(model))
        self._shared = SharedBlock(2 * WORD, "the evaluator's status")
        self._words = self._shared.words(0, 2)
        self._task: Task | None = None
        self._answer: Evaluation | None = None
        self._poll_due = Deadline(0.0)

    def begin(self, model: ModelInfo, seeds: Sequence[int], tick: Callable[[], None] = lambda: None) -> None:
        """Start the evaluation of a copy of this model and return at once. `tick` is not needed."""
        self._models.publish(model)
        self._task = Task(model.version, tuple(seeds), self._limit())
        self.send(self._task)

    def poll(self) -> Evaluation | None:
        """The result, if it has arrived. Cheap: most calls only read the clock."""
        if self._poll_due.passed:
            self._poll_due = Deadline(_POLL_INTERVAL_S)
            if self.condition is Condition.NOT_STARTED:
                self.start()
            self.receive()
            if (loss := self.supervise()) is not None:
                if loss.restart is None:
                    raise loss.cause
                restart = f"{loss.restart} of {self._limits.restarts}"
                _logger.warning("%s; it is started again in %g s (%s)", loss.cause, loss.delay_s, restart)
                if loss.cause.details:
                    _logger.info("the evaluator's own traceback:\n%s", loss.cause.details)
        evaluation, self._answer = self._answer, None
        if evaluation is not None:
            self._task = None
            self._budget.spent.clear()
        return evaluation

    def handle(self, message: object) -> None:
        if isinstance(message, Evaluation):
            self._answer = message

    def close(self) -> None:
        """Ask the process to stop, kill it if it does not, and release everything."""
        self.condition = Condition.GIVEN_UP
        self._words[_STOP] = 1
        self.end(_STOP_TIMEOUT_S)
        self._shared.close()
        self._models.close()

    def spawn(self) -> Child:
        args = (self._models, self._shared, self._spec, self.losses)
        process = Child(self.name, evaluator_main, args)
        if self._task is not None:
            process.send(self._task)
        return process

    @property
    def heartbeat(self) -> int:
        return int(self._words[_BEATS])

    @property
    def is_watched(self) -> bool:
        return self.condition is Condition.STARTING or self._task is not None

    @property
    def doing(self) -> str:
        if self.condition is not Condition.READY:
            return "making its environments"
        return "waiting for a model" if self._task is None else f"evaluating opt step {self._task.opt_steps}"
