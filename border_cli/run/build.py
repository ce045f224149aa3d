"""The composition root: the only place that knows which classes a run is made of."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

from border_cli.actors.sampler import InThreadSource, Sampler
from border_cli.config import resolve
from border_cli.config.convert import as_typed, dotted, to_plain
from border_cli.config.schema import TrainConfig
from border_cli.config.throughput import up_to
from border_cli.core.progress import Progress, View
from border_cli.core.protocols import Agent, Evaluator, ExperienceSource, Recorder
from border_cli.core.spaces import EnvSpec
from border_cli.display.views import PlainView
from border_cli.recorders import RecorderGroup
from border_cli.recorders.files import CSV_FILE, METRICS_FILE, CsvRecorder, JsonlRecorder
from border_cli.recorders.recorder_process import RemoteRecorder
from border_cli.recorders.tensorboard import EVENTS, TensorBoardRecorder
from border_cli.run import factories
from border_cli.run.initial_weights import load_weights
from border_cli.run.summary import Resumed, RunFiles, typed_values, write_crash
from border_cli.runtime import seeding
from border_cli.runtime.machine import cpus, idle_s
from border_cli.runtime.stopping import StopFlag
from border_cli.training.checkpointer import CheckpointManager
from border_cli.training.choose_best import EvalSeeds
from border_cli.training.components import Components
from border_cli.training.evaluators import EvaluatorSpec, InlineEvaluator, ProcessEvaluator
from border_cli.training.loop import AsyncTrainer, LockstepTrainer, SyncTrainer, TrainingLoop
from border_cli.training.ratio_limiter import RatioLimiter
from border_cli.training.telemetry import LONGEST_EPISODE, Telemetry
from border_cli.training.videos import Films

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunSetup:
    """What the parts of a run are made from. closing: what to call when the run ends, however it ends, in reverse order."""

    config: TrainConfig
    spec: EnvSpec
    files: RunFiles
    stop: StopFlag
    view: View
    resumed: Resumed = field(default_factory=Resumed)
    user: factories.UserParts = field(default_factory=factories.UserParts)
    closing: list[Callable[[], None]] = field(default_factory=list)

    @cached_property
    def progress(self) -> Progress:
        """What the view shows."""
        c, t = self.config, self.config.trainer
        return Progress(
            max_opts=t.max_opts,
            max_env_steps=t.max_env_steps,
            max_time=t.max_time,
            warmup_period=t.warmup_period,
            ratio_target=t.opt_interval,
            replay_capacity=c.buffer.capacity,
            n_actors=resolve.n_actors(c),
            asynchronous=t.type == "async",
        )

    def should_stop(self) -> bool:
        """Whether to stop. Each wait at the start and at the end calls it, so that the view stays up to date."""
        self.view.show(self.progress)
        return self.stop()

    def tick(self) -> None:
        """`should_stop` as an error: called after each environment, which may take long to make. Raises Interrupted."""
        self.should_stop()
        self.stop.check()


def make_loop(setup: RunSetup) -> TrainingLoop:
    """Make the training loop and everything that it joins. Raises ResourceError, ActorLostError."""
    c, t, spec, resumed = setup.config, setup.config.trainer, setup.spec, setup.resumed
    recorders = _make_recorders(setup)
    shown = [setup.view] if isinstance(setup.view, PlainView) else []
    recorder = RecorderGroup([*recorders, *filter(None, [setup.user.recorder]), *shown])
    setup.closing.append(recorder.close)
    films = None
    if (interval := c.evaluator.video_interval) is not None:
        folder, filmed = setup.files.run_dir / "videos", (c, spec)
        films = Films(interval, folder, factories.film_model, filmed, recorders, setup.should_stop)
        setup.closing.append(films.close)
    agent = factories.make_agent(c, spec)
    if c.init_from is not None and resumed.state is None and (missing := load_weights(agent, c)):
        _logger.warning("init_from: best/ has only the policy; %s start untrained", " and ".join(missing))
    agent.train()
    buffer = factories.make_buffer(c, spec)
    evaluator = setup.user.evaluator or _make_evaluator(setup, agent, lambda: telemetry.evaluation_limit)
    setup.closing.append(evaluator.close)
    ratio = t.opt_interval, t.warmup_period, resolve.ratio_tolerance(c), t.max_env_steps
    n_envs = resolve.envs_per_actor(c)
    least = n_envs if resolve.steps_as_one(c) or t.type == "device" else 1
    limiter = RatioLimiter(*ratio, resolve.n_actors(c), n_envs, least)
    telemetry = Telemetry(limiter, setup.progress, resumed.seconds, c.env.info_keys)
    _prepare_opt_steps(setup, agent, telemetry)
    parts = Components(
        agent=agent,
        buffer=buffer,
        source=_make_source(setup, agent),
        limiter=limiter,
        evaluator=evaluator,
        eval_seeds=EvalSeeds(c.seed, c.evaluator.episodes),
        confirm_best=c.evaluator.confirm,
        pretrained=c.init_from is not None,
        recorder=recorder,
        lossy_recorders=recorders,
        checkpoints=CheckpointManager(
            setup.files.run_dir, c, spec, agent, telemetry, setup.files.saved, resumed.path
        ),
        view=setup.view,
        telemetry=telemetry,
        should_stop=setup.stop,
        batch_size=c.agent.batch_size,
        save_request=setup.stop.take_save_request,
        films=films,
    )
    if t.lockstep:
        return LockstepTrainer(t, parts)
    return AsyncTrainer(t, parts) if t.type == "async" else SyncTrainer(t, parts)


def _prepare_opt_steps(setup: RunSetup, agent: Agent, telemetry: Telemetry) -> None:
    """Have the agent's opt step compiled, or captured on a GPU, as `agent.compile` says, and choose its fastest form."""
    from border_cli.agents.agent import NetworkAgent
    from border_cli.agents.chooser import OptStepForms
    from border_cli.agents.compiler import GraphCompiler
    from border_cli.agents.config import NetworkConfig

    c, stop, note, limiter = setup.config, setup.stop, setup.view.note, telemetry.limiter
    if c.device.startswith("cuda"):
        factories.capture_on_gpu(agent, c)
        return
    if not isinstance(agent, NetworkAgent) or not isinstance(c.agent, NetworkConfig):
        return
    total, how, compiler = resolve.counts(c).opt_steps, c.agent.compile, None

    def compiling() -> None:
        progress = setup.progress
        progress.phase = "compiling"
        progress.seconds, progress.env_steps = telemetry.seconds, limiter.env_steps
        setup.view.show(progress)

    def time_left(opt_step_s: float) -> float:
        by_opt_steps = math.inf if total is None else (total - limiter.opt_steps) * opt_step_s
        return min(by_opt_steps, (c.trainer.max_time or math.inf) - telemetry.seconds)

    if how != "false":
        left = time_left if how == "auto" else None
        waits = resolve.is_reproducible(c)
        compiler = GraphCompiler(agent, c.plugins, waits, stop, note, compiling, left)
        agent.compiling = compiler.poll
        setup.closing.append(compiler.close)
    if resolve.may_switch(c) and (how == "auto" or c.threads is None):
        numbers = (c.threads,) if c.threads else up_to(cpus())
        agent.compiling = OptStepForms(agent, numbers, compiler, how == "true", note, idle_s).prepare


def _make_source(setup: RunSetup, agent: Agent) -> ExperienceSource:
    c = setup.config
    actors, columns = factories.actor_spec(c), factories.run_columns(c, setup.spec)
    if c.trainer.type == "device":
        from border_cli.actors.simulator_sampler import SimulatorSampler  # imports torch

        simulator, learner, on_device = factories.simulator(c), cast(Any, agent), c.buffer.device == "cuda"
        setup.closing.append(simulator.close)  # not with the actors: the last evaluation may need it
        seed_of = partial(seeding.episode_seed, c.seed, 0, 0, 0)
        extra = factories.extra_columns(c, setup.spec)
        acting = SimulatorSampler(simulator, learner.policy, seed_of, on_device, extra)
        return InThreadSource(acting, actors.n_envs, lambda: None)
    if c.trainer.type == "sync":
        actor_id = actors.actor_id(0, 0, 1)
        env = factories.actor_env(actor_id, c, setup.tick, resumable=True)
        processor = factories.actor_processor(actor_id, setup.spec, c)
        seed_of = partial(seeding.episode_seed, c.seed, 0, 0)
        sampler = Sampler(env, agent, processor, seed_of, "actor 0")
        return InThreadSource(sampler, actors.n_envs, env.close)
    make_source = factories.plugin_factory("actor_manager", c.actor_manager.type)
    crashed = partial(write_crash, setup.files.run_dir)
    args = actors, columns, resolve.n_actors(c), c.actor_manager, setup.should_stop, crashed
    return cast(ExperienceSource, make_source(*args))


def _make_evaluator(setup: RunSetup, agent: Agent, by_training: Callable[[], int]) -> Evaluator:
    """The configured evaluator, in this thread or in its own process. by_training: where episodes are cut by default."""
    c, e = setup.config, setup.config.evaluator
    if (factory := factories.plugin_factory("evaluator", e.type)) is not None:
        return cast(Evaluator, factory(c, setup.spec))
    parts = _evaluator_spec(c)
    limit = None if resolve.is_reproducible(c) or e.max_episode_steps is not None else by_training
    if e.type == "process":
        limits = c.actor_manager.heartbeat_timeout_s, c.actor_manager.restarts
        return ProcessEvaluator(parts, agent.model_info(), *limits, limit)
    return InlineEvaluator(partial(parts.runner, setup.tick, setup.stop), parts.policy(setup.spec), limit)


def make_inline_evaluator(config: TrainConfig, spec: EnvSpec) -> InlineEvaluator:
    """The usual evaluator in the learner's thread, for an evaluator of the user that changes its results."""
    parts = _evaluator_spec(config)
    return InlineEvaluator(partial(parts.runner, lambda: None, lambda: False), parts.policy(spec))


def _evaluator_spec(config: TrainConfig) -> EvaluatorSpec:
    return EvaluatorSpec(
        env=partial(factories.evaluation_env, config=config),
        policy=partial(factories.evaluation_policy, config=config),
        max_episode_steps=config.evaluator.max_episode_steps or LONGEST_EPISODE,
        info_keys=tuple(config.env.info_keys),
        seed=config.seed,
    )


def _make_recorders(setup: RunSetup) -> list[Recorder]:
    """The recorders that write files, and those with a process of their own: experiment trackers and the user's own.

    On resume, files continue behind the records of the checkpoint.
    """
    config, folder, resumed = setup.config, setup.files.run_dir, setup.resumed
    wanted, recorders = config.recorder, list[Recorder]()
    if wanted.jsonl:
        recorders.append(JsonlRecorder(folder / METRICS_FILE, resumed.position("jsonl")))
    if wanted.tensorboard:
        purge_step = 0 if resumed.path is None else resumed.env_steps + 1
        recorders.append(TensorBoardRecorder(folder / EVENTS, purge_step, _typed(config, folder)))
    if wanted.csv:
        recorders.append(CsvRecorder(folder / CSV_FILE, resumed.position("csv")))
    keep = resumed.position("jsonl") if wanted.jsonl else 0
    for kind in (*resolve.trackers(wanted), *([] if wanted.type == "default" else [wanted.type])):
        maker = partial(factories.remote_recorder, kind, config, folder, keep)
        recorders.append(RemoteRecorder(kind, maker, wanted.finish_s, setup.should_stop))
    return recorders


def _typed(config: TrainConfig, run_dir: Path) -> dict[str, str | float]:
    """The values of what the commands of a run named. The command of a sweep names those of all its jobs."""
    values, typed = dotted(to_plain(config)), dict[str, str | float](typed_values(run_dir))
    for key in typed:
        named = [values[k] for k in (key, f"{key}.id", f"{key}.type") if values.get(k) is not None]
        if named:
            typed[key] = named[0] if type(named[0]) in (int, float) else as_typed(named[0])
    # without how a sweep runs its jobs
    return {key: word for key, word in typed.items() if not key.startswith(("hydra", "sweep."))}
