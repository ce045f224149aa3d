"""The composition root: the only place that knows which classes a run is made of."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from border_cli import parts
from border_cli.actors.in_thread import InThreadSource
from border_cli.actors.lockstep import LockstepManager
from border_cli.actors.manager import ActorManager
from border_cli.actors.sampler import ResumableSampler
from border_cli.checkpoints.contents import read_model
from border_cli.checkpoints.keeper import RunKeeper
from border_cli.config.checks import ratio_tolerance
from border_cli.config.schema import TrainConfig
from border_cli.core.errors import Interrupted
from border_cli.core.items import item_columns
from border_cli.core.progress import Progress, View
from border_cli.core.protocols import Agent, Evaluator, ExperienceSource, Recorder, ReplayBuffer
from border_cli.core.spaces import EnvSpec
from border_cli.envs.guarded import GuardedEnv, blamed
from border_cli.envs.taped import TapedEnv
from border_cli.evaluation.deferred import DeferredEvaluator
from border_cli.evaluation.episodes import EpisodeRunner
from border_cli.evaluation.inline import InlineEvaluator
from border_cli.evaluation.process_evaluator import ProcessEvaluator
from border_cli.recorders.buffered import NullRecorder
from border_cli.recorders.fanout import FanOut
from border_cli.recorders.jsonl import METRICS_FILE, JsonlRecorder
from border_cli.recorders.plain import PlainView
from border_cli.recorders.screen import ScreenView, is_live
from border_cli.recorders.silent import SilentView
from border_cli.recorders.tensorboard import EVENTS, TensorBoardRecorder
from border_cli.recorders.tolerant import TolerantRecorder
from border_cli.replay.limiter import RatioLimiter
from border_cli.runs.locate import model_directory
from border_cli.runs.resume import Resumed
from border_cli.runtime import seeding
from border_cli.runtime.signals import StopFlag
from border_cli.trainers.async_ import AsyncTrainer
from border_cli.trainers.judging import Episodes
from border_cli.trainers.lockstep import LockstepTrainer
from border_cli.trainers.loop import TrainingLoop
from border_cli.trainers.parts import Parts
from border_cli.trainers.sync import Trainer
from border_cli.trainers.telemetry import Telemetry


@dataclass(frozen=True)
class Context:
    """What the parts of a run are made from, and what they tell whom.

    saved: of the opt step of a checkpoint · crashed: of an exception that the run survives · tick: while something
    takes long · begun: once the loop has begun.
    """

    config: TrainConfig
    spec: EnvSpec
    run_dir: Path
    stop: StopFlag
    resumed: Resumed
    progress: Progress
    view: View
    saved: Callable[[int], None]
    crashed: Callable[[Exception], None]
    tick: Callable[[], None]
    begun: Callable[[], None]


def make_loop(
    context: Context, agent: Agent, buffer: ReplayBuffer, evaluator: Evaluator, recorder: Recorder
) -> TrainingLoop:
    """The training loop with all that it joins. Raises ResourceError and ActorLostError."""
    c, resumed = context.config, context.resumed
    limiter = RatioLimiter(
        c.trainer.opt_interval,
        c.trainer.warmup_period,
        ratio_tolerance(c),
        c.trainer.max_env_steps,
        c.n_actors,
        c.actor_manager.envs_per_actor,
    )
    loop_parts = Parts(
        agent=agent,
        buffer=buffer,
        source=_make_source(context, agent),
        limiter=limiter,
        evaluator=evaluator,
        episodes=Episodes(c.seed, c.evaluator),
        recorder=recorder,
        keeper=RunKeeper(context.run_dir, c, context.spec, agent, context.saved, resumed.path),
        view=context.view,
        telemetry=Telemetry(limiter, context.progress, resumed.seconds),
        should_stop=context.stop,
        batch_size=c.agent.batch_size,
        save_request=context.stop.take_save_request,
        begun=context.begun,
    )
    return _trainer_class(c)(c.trainer, loop_parts)


def _trainer_class(config: TrainConfig) -> type[TrainingLoop]:
    if config.trainer.lockstep:
        return LockstepTrainer
    return Trainer if config.trainer.type == "sync" else AsyncTrainer


def make_agent(context: Context) -> Agent:
    """The agent; where it does not go on from a checkpoint, with the weights of `init_from` if there are any."""
    agent = parts.make_agent(context.config, context.spec)
    if context.config.init_from is not None and context.resumed.state is None:
        agent.sync_model(read_model(model_directory(Path(context.config.init_from)).path).info)
    agent.train()
    return agent


def _make_source(context: Context, agent: Agent) -> ExperienceSource:
    c = context.config
    if c.trainer.type == "sync":
        return _in_thread(context, agent)
    actors, rounds = parts.actor_spec(c), parts.rounds(c)
    columns = item_columns(context.spec, c.buffer.needs_estimates())
    if rounds is not None:
        return LockstepManager(actors, rounds, columns, c.actor_manager, context.stop, context.crashed)
    return ActorManager(actors, columns, c.n_actors, c.actor_manager, context.stop, context.crashed)


def _in_thread(context: Context, agent: Agent) -> InThreadSource:
    c, who = context.config, "actor 0"
    place = parts.actor_spec(c).place(0, 0, 1)
    with blamed(who, "making the environment"):
        env = GuardedEnv(parts.actor_env(place, c, (), _between_environments(context)), who)
    processor = parts.actor_processor(place, context.spec, c)
    seed_of = partial(seeding.episode_seed, c.seed, 0, 0)
    return InThreadSource(
        ResumableSampler(TapedEnv(env), agent, processor, seed_of, who), place.n_envs, env.close
    )


def make_evaluator(context: Context, agent: Agent) -> Evaluator:
    """The evaluator, in this thread or in a process of its own. Raises ResourceError and ActorLostError."""
    if context.config.trainer.eval_interval is None:  # no environments for what may never be asked of them
        return DeferredEvaluator(
            lambda: _make_evaluator(context, agent), context.config.evaluator.type == "process"
        )
    return _make_evaluator(context, agent)


def _make_evaluator(context: Context, agent: Agent) -> Evaluator:
    c = context.config
    if c.evaluator.type == "process":
        spec, timeout_s = parts.evaluator_spec(c), c.evaluator.heartbeat_timeout_s
        return ProcessEvaluator(spec, agent.model_info(), timeout_s, c.evaluator.restarts)
    policy = parts.evaluation_policy(context.spec, c)
    env = parts.evaluation_env(_between_environments(context), c)
    return InlineEvaluator(
        EpisodeRunner(env, c.evaluator.max_episode_steps, context.stop, context.tick), policy
    )


def _between_environments(context: Context) -> Callable[[], None]:
    """What happens after one was made, which may take long: the view goes on, and the run can be stopped."""

    def made() -> None:
        context.view.show(context.progress)
        if context.stop.code is not None:
            raise Interrupted(context.stop.code)

    return made


def make_progress(config: TrainConfig) -> Progress:
    """What a view shows of a run that has not begun."""
    t = config.trainer
    return Progress(
        max_opts=t.max_opts,
        max_env_steps=t.max_env_steps,
        max_time=t.max_time,
        warmup_period=t.warmup_period,
        ratio_target=t.opt_interval,
        replay_capacity=config.buffer.capacity,
        n_actors=config.n_actors,
        asynchronous=t.type == "async",
    )


def make_view(config: TrainConfig, console: Console, title: str) -> View:
    """Screen, lines or nothing, as `recorder.console` has it."""
    wanted = config.recorder.console
    if wanted == "none":
        return SilentView()
    if wanted == "screen" or (wanted == "auto" and is_live(console)):
        return ScreenView(console, title)
    return PlainView(sys.stdout)


def make_files(context: Context) -> list[TolerantRecorder]:
    """The recorders that write files, going on behind what belongs to the checkpoint that is gone on from."""
    wanted, state, folder = context.config.recorder, context.resumed.state, context.run_dir
    written: Mapping[str, int] = {} if state is None else state.loop["records"]
    files = []
    if wanted.jsonl:
        jsonl = JsonlRecorder(folder / METRICS_FILE, int(written.get("jsonl", 0)))
        files.append(TolerantRecorder(jsonl, METRICS_FILE))
    if wanted.tensorboard:
        events = TensorBoardRecorder(folder / EVENTS, int(written.get("tensorboard", 0)))
        files.append(TolerantRecorder(events, EVENTS))
    return files


def make_recorder(files: list[TolerantRecorder], view: View, own: Recorder | None = None) -> Recorder:
    """One recorder for the files, for the user's own, and for a view that shows records too."""
    recorders: list[Recorder] = [*files, *filter(None, [own])]
    if isinstance(view, PlainView):
        recorders.append(view)
    return FanOut(recorders) if recorders else NullRecorder()
