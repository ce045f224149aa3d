"""The process of an evaluator: make environments and policy, judge one model after the other until told to leave.

Whatever raises reaches the learner as a message with the traceback, and the process exits with code 1.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

from border_cli.core.errors import ActorLostError
from border_cli.core.protocols import ActingPolicy, Env, Step
from border_cli.core.spaces import Array, Obs
from border_cli.evaluation.board import EvaluatorBoard
from border_cli.evaluation.episodes import EpisodeRunner
from border_cli.runtime import child
from border_cli.runtime.factory import Factory
from border_cli.runtime.parcel import Parcel
from border_cli.runtime.pipe import Reporter, clipped, log_through
from border_cli.transport.model_channel import ModelChannel

_ERROR_BYTES = 1_000


@dataclass(frozen=True)
class EvaluatorSpec:
    """What an evaluator is made of. Plain data that travels to its process.

    env: (made, *args) → Env, `made` to be called after each environment that takes long to make ·
    policy: (spec, *args) → ActingPolicy · max_episode_steps: an episode is cut there [env steps] ·
    max_episodes: as many as an evaluation can have.
    """

    env: Factory
    policy: Factory
    max_episode_steps: int
    max_episodes: int


@dataclass(frozen=True)
class EvaluatorLinks:
    """What connects an evaluator with the learner; handed over while its process is started. order: holds an `Order`."""

    models: ModelChannel
    board: EvaluatorBoard
    pipe: Connection
    order: Parcel


@dataclass(frozen=True)
class Order:
    """What to run, opened by the process itself: importing it may already fail."""

    spec: EvaluatorSpec
    log_level: int


@dataclass(frozen=True)
class Task:
    """Judge the model in the channel on the seeds on the board. number: from 1 · episodes: of these there are."""

    number: int
    opt_steps: int
    episodes: int


@dataclass(frozen=True)
class Failed:
    """The evaluator is about to leave because something raised. traceback: its own."""

    error: str
    traceback: str


def evaluator_main(links: EvaluatorLinks) -> None:
    """Entry point of the process (see `border_cli.runtime.forkserver.start_process`)."""
    child.stand_back()
    reporter = Reporter(links.pipe)
    try:
        _live(links, reporter)
    except BaseException as error:  # also SystemExit and KeyboardInterrupt, which an environment may raise
        reporter.send(_failure(error))
        raise SystemExit(1) from error


def _live(links: EvaluatorLinks, reporter: Reporter) -> None:
    order: Order = links.order.open()
    log_through(reporter, "evaluator", order.log_level)
    spec, board = order.spec, links.board
    board.beat()
    env: Env = spec.env.load()(board.beat, *spec.env.args)
    try:
        make_policy = spec.policy.load()
        child.one_torch_thread()  # after the import that may bring torch, before the first tensor
        policy: ActingPolicy = make_policy(env.spec, *spec.policy.args)
        runner = EpisodeRunner(_Beating(env, board), spec.max_episode_steps, board.stop_requested, _nothing)
        board.set_ready()
        board.beat()
        while _judge_next(links, runner, policy):
            pass
    finally:
        env.close()


def _judge_next(links: EvaluatorLinks, runner: EpisodeRunner, policy: ActingPolicy) -> bool:
    """Wait for a task and do it; False when there will be no more."""
    try:
        task: Task = links.pipe.recv()
    except (EOFError, ConnectionResetError):
        return False
    model = links.models.poll()
    if model is None:
        raise RuntimeError(f"there is no model for the evaluation of opt step {task.opt_steps}")
    policy.sync_model(model)
    evaluation = runner.evaluate(policy, task.opt_steps, links.board.seeds(task.episodes))
    if evaluation is None:
        return False
    links.board.answer(task.number, evaluation)
    return True


class _Beating:
    """An `Env` that shows a sign of life before every reset and env step."""

    def __init__(self, env: Env, board: EvaluatorBoard) -> None:
        self._env = env
        self._board = board
        self.n_envs = env.n_envs
        self.spec = env.spec

    def reset(self, env_ix: int, seed: int | None = None) -> None:
        self._board.beat()
        self._env.reset(env_ix, seed)

    def observe(self, env_ix: Sequence[int]) -> Obs:
        return self._env.observe(env_ix)

    def step(self, env_ix: Sequence[int], action: Array) -> Step:
        self._board.beat()
        return self._env.step(env_ix, action)

    def remake(self, env_ix: int) -> None:
        self._board.beat()
        self._env.remake(env_ix)

    def close(self) -> None:
        self._env.close()


def _nothing() -> None:
    """There is nobody who watches in this process."""


def _failure(error: BaseException) -> Failed:
    """What the learner has to know of an exception; one of the environment has been named already."""
    if isinstance(error, ActorLostError):
        message, trace = str(error), error.details
    else:
        message = f"the evaluator failed: {type(error).__name__}: {error}".rstrip(": ")
        trace = "".join(traceback.format_exception(error))
    return Failed(clipped(message, _ERROR_BYTES), clipped(trace))
