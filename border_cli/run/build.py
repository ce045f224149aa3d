"""The composition root: the only place that knows which classes a run is made of."""

from __future__ import annotations

import inspect
import logging
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from contextlib import closing as closing_at_end
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from border_cli.actors.sampler import InThreadSource, Sampler
from border_cli.actors.spec import LOCKSTEP_SLOTS, ActorId, ActorSpec, Rounds
from border_cli.checkpoints.contents import read_model, read_training
from border_cli.config.budget import counts
from border_cli.config.convert import dotted, to_plain
from border_cli.config.registry import AGENTS, BUFFERS, find, import_path, import_plugins
from border_cli.config.resolve import (
    TRACKERS,
    envs_per_actor,
    is_reproducible,
    lockstep_steps,
    may_switch,
    n_actors,
    ratio_tolerance,
    steps_natively,
    trackers,
)
from border_cli.config.resources import Sizes, cores_for_actors
from border_cli.config.schema import AgentConfig, EnvConfig, TrainConfig
from border_cli.config.throughput import up_to
from border_cli.core.errors import ActorLostError, IncompatibleStateError, UsageError
from border_cli.core.progress import Progress, View
from border_cli.core.protocols import (
    ActingPolicy,
    Agent,
    Evaluator,
    ExperienceSource,
    Recorder,
    ReplayBuffer,
    StepProcessor,
    StopCheck,
)
from border_cli.core.spaces import EnvSpec
from border_cli.core.state import State, check_like
from border_cli.core.types import Column, ModelInfo, item_columns
from border_cli.display.output import Output
from border_cli.display.views import PlainView, ScreenView
from border_cli.envs.group import GymEnv, ReplayedEnv, evaluation_envs, try_env
from border_cli.recorders import RecorderGroup
from border_cli.recorders.files import CSV_FILE, METRICS_FILE, CsvRecorder, JsonlRecorder
from border_cli.recorders.recorder_process import RemoteRecorder
from border_cli.replay.n_step import NStepProcessor
from border_cli.run.directory import SWEEP_FILE
from border_cli.run.resume import Resumed
from border_cli.run.summary import read_run_id
from border_cli.runtime import seeding
from border_cli.runtime.machine import cpus, idle_s
from border_cli.runtime.signals import StopFlag
from border_cli.runtime.transport import ring_bytes, ring_rows
from border_cli.runtime.worker import Reporter
from border_cli.training.checkpointer import CheckpointManager
from border_cli.training.components import Components
from border_cli.training.evaluation import EvalSeeds
from border_cli.training.evaluators import EvaluatorSpec, InlineEvaluator, ProcessEvaluator
from border_cli.training.films import Films
from border_cli.training.loop import AsyncTrainer, LockstepTrainer, SyncTrainer, TrainingLoop
from border_cli.training.ratio_limiter import RatioLimiter, most_credit
from border_cli.training.telemetry import LONGEST_EPISODE, Telemetry

if TYPE_CHECKING:
    from border_cli.run.run import RunFiles

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class UserParts:
    """Parts given from Python in place of configured ones.

    Attributes:
        step_processor: (spec, n_envs, config) -> StepProcessor, importable by name, because actors are processes.
        evaluation_env: the environment of evaluations, where it is not that of training.
        actor_agents: the agent's configuration of each actor, such as another exploration; empty for the common one.
    """

    recorder: Recorder | None = None
    evaluator: Evaluator | None = None
    step_processor: Callable[[EnvSpec, int, TrainConfig], StepProcessor] | None = None
    evaluation_env: EnvConfig | None = None
    actor_agents: Sequence[AgentConfig] = ()


def make_loop(
    config: TrainConfig,
    spec: EnvSpec,
    run_files: RunFiles,
    stop: StopFlag,
    view: View,
    closing: list[Callable[[], None]],
    resumed: Resumed | None = None,
    user: UserParts | None = None,
) -> TrainingLoop:
    """Make the training loop and everything that it joins.

    Args:
        closing: gets what to call when the run ends, however it ends, in reverse order.

    Raises:
        ResourceError, ActorLostError.
    """
    c, resumed, user, folder = config, resumed or Resumed(), user or UserParts(), run_files.run_dir
    progress = _make_progress(c)

    def waiting() -> bool:
        """Whether to stop. Called in each wait at the start and at the end, so that the view stays alive meanwhile."""
        view.show(progress)
        return stop()

    recorders = _make_recorders(c, folder, resumed, waiting)
    shown = [view] if isinstance(view, PlainView) else []
    recorder = RecorderGroup([*recorders, *filter(None, [user.recorder]), *shown])
    closing.append(recorder.close)
    films = None
    if (interval := c.evaluator.video_interval) is not None:
        filmed = _evaluated(c, user), spec
        films = Films(interval, folder / "videos", film_model, filmed, recorders, waiting)
        closing.append(films.close)
    agent = make_agent(c, spec)
    if c.init_from is not None and resumed.state is None and (missing := init_weights(agent, c)):
        _logger.warning("init_from: best/ has the policy alone; %s start new", " and ".join(missing))
    agent.train()
    buffer = make_buffer(c, spec)

    def made() -> None:
        """After each environment, which may take long to make: update the view, stop if asked."""
        view.show(progress)
        stop.check()

    evaluator = user.evaluator or _make_evaluator(
        c, spec, user, agent, stop, made, lambda: telemetry.evaluation_limit
    )
    closing.append(evaluator.close)
    limiter = RatioLimiter(
        c.trainer.opt_interval,
        c.trainer.warmup_period,
        ratio_tolerance(c),
        c.trainer.max_env_steps,
        n_actors(c),
        envs_per_actor(c),
    )
    telemetry = Telemetry(limiter, progress, resumed.seconds, c.env.info_keys)

    def compiling() -> None:
        progress.phase = "compiling"
        progress.seconds, progress.env_steps = telemetry.seconds, limiter.env_steps
        view.show(progress)

    total = counts(c).opt_steps

    def time_left(opt_step_s: float) -> float:
        by_opt_steps = math.inf if total is None else (total - limiter.opt_steps) * opt_step_s
        return min(by_opt_steps, (c.trainer.max_time or math.inf) - telemetry.seconds)

    prepare_opt_steps(agent, c, spec, stop, closing, view.note, compiling, time_left)
    parts = Components(
        agent=agent,
        buffer=buffer,
        source=_make_source(c, spec, user, agent, run_files.crashed, waiting, made),
        limiter=limiter,
        evaluator=evaluator,
        eval_seeds=EvalSeeds(c.seed, c.evaluator.episodes),
        confirm_best=c.evaluator.confirm,
        pretrained=c.init_from is not None,
        recorder=recorder,
        lossy_recorders=recorders,
        checkpoints=CheckpointManager(folder, c, spec, agent, telemetry, run_files.saved, resumed.path),
        view=view,
        telemetry=telemetry,
        should_stop=stop,
        batch_size=c.agent.batch_size,
        save_request=stop.take_save_request,
        films=films,
    )
    if c.trainer.lockstep:
        return LockstepTrainer(c.trainer, parts)
    return SyncTrainer(c.trainer, parts) if c.trainer.type == "sync" else AsyncTrainer(c.trainer, parts)


def prepare_opt_steps(
    agent: Agent,
    c: TrainConfig,
    spec: EnvSpec,
    stop: StopFlag,
    closing: list[Callable[[], None]],
    note: Callable[[str], None] = lambda _: None,
    waiting: Callable[[], None] = lambda: None,
    time_left: Callable[[float], float] | None = None,
) -> None:
    """Have the agent's opt step compiled, or captured on a GPU, as `agent.compile` says, and choose its fastest form.

    closing: see `make_loop` · note, waiting, time_left: see `GraphCompiler`.
    """
    from border_cli.agents.agent import NetworkAgent
    from border_cli.agents.capture import capture_opt_steps
    from border_cli.agents.chooser import OptStepForms
    from border_cli.agents.compiler import GraphCompiler
    from border_cli.agents.config import NetworkConfig

    if not isinstance(agent, NetworkAgent) or not isinstance(c.agent, NetworkConfig):
        return
    how, compiler = c.agent.compile, None
    if c.device.startswith("cuda"):
        if how != "false":
            agent.compiling = partial(capture_opt_steps, agent.algorithm)
        return
    if how != "false":
        left = time_left if how == "auto" else None
        waits = is_reproducible(c)
        compiler = GraphCompiler(agent, c.agent, c.plugins, spec, waits, stop, note, waiting, left)
        agent.compiling = compiler.poll
        closing.append(compiler.close)
    if may_switch(c) and (how == "auto" or c.threads is None):
        numbers = (c.threads,) if c.threads else up_to(cpus())
        agent.compiling = OptStepForms(agent, numbers, compiler, how == "true", note, idle_s).prepare


def init_weights(agent: Agent, config: TrainConfig) -> list[str]:
    """Give a new agent the weights of `init_from`.

    Returns the networks that are not there and start new. Raises UsageError for those that do not fit.
    """
    path = Path(str(config.init_from))
    saved, own = read_model(path), agent.model_info()
    try:
        check_like(State(saved.info.arrays), State(own.arrays), "the policy")
        agent.sync_model(saved.info)
        if config.init_from_parts == "policy":
            return []
        training = read_training(path)
        return agent.load_networks({} if training is None else training.arrays)
    except IncompatibleStateError as e:
        if (other := saved.description.agent.get("type")) != config.agent.type:
            raise UsageError(
                f"init_from={path}: that run is {other}, whose networks are not those of {config.agent.type}\n"
                f"nearest: agent={other}"
            ) from e
        alone = ", or init_from_parts=policy" if "policy" not in str(e) else ""
        raise UsageError(
            f"init_from={path}: {e}\nallowed: an agent with the networks of that run{alone}"
        ) from e


def _make_source(
    c: TrainConfig,
    spec: EnvSpec,
    user: UserParts,
    agent: Agent,
    on_exception: Callable[[ActorLostError], None],
    should_stop: StopCheck,
    made: Callable[[], None],
) -> ExperienceSource:
    actors, columns = actor_spec(c, user), run_columns(c, spec, user)
    if c.trainer.type == "sync":
        actor_id = actors.actor_id(0, 0, 1)
        env = actor_env(actor_id, c, made)
        processor = actor_processor(actor_id, spec, c, user.step_processor)
        seed_of = partial(seeding.episode_seed, c.seed, 0, 0)
        sampler = Sampler(ReplayedEnv(env), agent, processor, seed_of, "actor 0")
        return InThreadSource(sampler, actors.n_envs, env.close)
    source: ExperienceSource = _factory("actor_manager", c.actor_manager.type)(
        actors, columns, n_actors(c), c.actor_manager, should_stop, on_exception
    )
    return source


def _factory(group: str, kind: str) -> Any:
    """What makes the part with this `type`; None where the functions of this module make it themselves."""
    entry = find(group, kind)
    return entry.load() if entry is not None and entry.factory else None


def _make_evaluator(
    c: TrainConfig,
    spec: EnvSpec,
    user: UserParts,
    agent: Agent,
    stop: StopFlag,
    made: Callable[[], None],
    by_training: Callable[[], int],
) -> Evaluator:
    """The configured evaluator, in this thread or in its own process. by_training: where episodes are cut by default."""
    limit = None if is_reproducible(c) or c.evaluator.max_episode_steps is not None else by_training
    evaluated = _evaluated(c, user)
    if (own := _factory("evaluator", c.evaluator.type)) is not None:
        evaluator: Evaluator = own(evaluated, spec)
        return evaluator
    if c.evaluator.type == "process":
        parts, timeout_s = _evaluator_spec(evaluated), c.evaluator.heartbeat_timeout_s
        return ProcessEvaluator(parts, agent.model_info(), timeout_s, c.evaluator.restarts, limit)
    lazy = c.trainer.eval_interval is None or not is_reproducible(c)
    return make_inline_evaluator(evaluated, spec, stop, made, lazy, limit)


def make_inline_evaluator(
    config: TrainConfig,
    spec: EnvSpec,
    should_stop: StopCheck = lambda: False,
    made: Callable[[], None] = lambda: None,
    lazy: bool = False,
    limit: Callable[[], int] | None = None,
) -> InlineEvaluator:
    """An evaluator in the caller's thread. made: called after each environment · lazy, limit: see `InlineEvaluator`."""
    parts = _evaluator_spec(config)
    return InlineEvaluator(partial(parts.runner, made, should_stop), parts.policy(spec), lazy, limit)


def _evaluator_spec(config: TrainConfig) -> EvaluatorSpec:
    return EvaluatorSpec(
        env=partial(evaluation_env, config=config),
        policy=partial(evaluation_policy, config=config),
        max_episode_steps=config.evaluator.max_episode_steps or LONGEST_EPISODE,
        info_keys=tuple(config.env.info_keys),
        seed=config.seed,
    )


def _evaluated(c: TrainConfig, user: UserParts) -> TrainConfig:
    """The configuration with the environment of evaluations."""
    return c if user.evaluation_env is None else replace(c, env=user.evaluation_env)


def _make_progress(config: TrainConfig) -> Progress:
    """The snapshot that a view shows before the run starts."""
    t = config.trainer
    return Progress(
        max_opts=t.max_opts,
        max_env_steps=t.max_env_steps,
        max_time=t.max_time,
        warmup_period=t.warmup_period,
        ratio_target=t.opt_interval,
        replay_capacity=config.buffer.capacity,
        n_actors=n_actors(config),
        asynchronous=t.type == "async",
    )


def make_view(config: TrainConfig, output: Output, console: Console, title: str) -> View:
    """Screen, lines or nothing, as `recorder.console` has it."""
    wanted = config.recorder.console
    if wanted == "none":
        return View()
    if wanted == "screen":
        return ScreenView(output, console, title, cores=cores_for_actors(config))
    return PlainView(sys.stdout)


def _make_recorders(
    config: TrainConfig, folder: Path, resumed: Resumed, should_stop: StopCheck
) -> list[Recorder]:
    """The recorders that write files, and those with a process of their own: experiment trackers and the user's own.

    On resume, files continue behind the records of the checkpoint.
    """
    wanted, recorders = config.recorder, list[Recorder]()
    if wanted.jsonl:
        recorders.append(JsonlRecorder(folder / METRICS_FILE, resumed.position("jsonl")))
    if wanted.tensorboard:
        # Its import takes a tenth of a second, and every actor imports this module.
        from border_cli.recorders.tensorboard import EVENTS, TensorBoardRecorder

        purge_step = 0 if resumed.path is None else resumed.env_steps + 1
        recorders.append(TensorBoardRecorder(folder / EVENTS, purge_step))
    if wanted.csv:
        recorders.append(CsvRecorder(folder / CSV_FILE, resumed.position("csv")))
    keep = resumed.position("jsonl") if wanted.jsonl else 0
    for kind in (*trackers(wanted), *([] if wanted.type == "default" else [wanted.type])):
        maker = partial(remote_recorder, kind, config, folder, keep)
        recorders.append(RemoteRecorder(kind, maker, wanted.finish_s, should_stop))
    return recorders


def remote_recorder(kind: str, config: TrainConfig, folder: Path, keep: int) -> Any:
    """A recorder in its own process.

    kind: an experiment tracker, or the type of the recorder · keep: lines of metrics.jsonl that are of the run so far.
    """
    from border_cli.recorders.trackers import RunInfo, make_tracker

    import_plugins(config.plugins)
    if kind not in TRACKERS:
        return _factory("recorder", kind)(config, folder)
    group = folder.parent.name if (folder.parent / SWEEP_FILE).exists() else None
    values = dotted(to_plain(config))
    run_id = read_run_id(folder) or folder.name
    info = RunInfo(run_id, folder.name, group, config.recorder.project, values, folder)
    return make_tracker(kind, info, config.recorder, keep)


def film_model(c: TrainConfig, spec: EnvSpec, model: ModelInfo, path: Path) -> bytes:
    """Film an episode of a model, in a process of its own. Returns a small version as a GIF."""
    from border_cli.run.video import film, small_gif

    import_plugins(c.plugins)
    seeding.seed_global_generators(c.seed, seeding.GLOBAL, 3, model.version)
    policy = evaluation_policy(spec, c)
    policy.sync_model(model)
    env_config = replace(c.env, out_of_bounds="warn", info_keys=[])
    with closing_at_end(GymEnv(env_config, 1, "the film", render_mode="rgb_array", quiet=True)) as env:
        seed = seeding.integer(c.seed, seeding.EVALUATION, 0)
        film(env, policy, model.version, seed, path, c.evaluator.max_episode_steps or LONGEST_EPISODE)
    return small_gif(path)


# -- parts of any process: actors and evaluators import the functions below by path in their own processes


def actor_spec(config: TrainConfig, user: UserParts | None = None) -> ActorSpec:
    """What every actor process of this run is made of."""
    user, lockstep, actors = user or UserParts(), config.trainer.lockstep, config.actor_manager
    rounds = Rounds(
        n_actors(config), envs_per_actor(config), lockstep_steps(config), config.trainer.max_env_steps
    )
    return ActorSpec(
        env=partial(resumable_env if lockstep else actor_env, config=config),
        policy=partial(actor_policy, config=config, own=tuple(user.actor_agents)),
        processor=partial(actor_processor, config=config, make=user.step_processor),
        n_envs=envs_per_actor(config),
        n_buffer=actors.n_buffer,
        credit=actor_credit(config),
        seed=config.seed,
        rounds=rounds if lockstep else None,
    )


def actor_credit(config: TrainConfig) -> int:
    """Env steps that one actor takes at most before the learner has inserted any of them."""
    if config.trainer.lockstep:
        return lockstep_steps(config) * envs_per_actor(config)
    tolerance = ratio_tolerance(config)
    return most_credit(config.trainer.opt_interval, tolerance, n_actors(config), envs_per_actor(config))


def actor_env(actor_id: ActorId, config: TrainConfig, made: Callable[[], None] = lambda: None) -> GymEnv:
    """The environments of one actor. made: called after each."""
    import_plugins(config.plugins)
    return GymEnv(
        config.env,
        actor_id.n_envs,
        f"actor {actor_id.actor}",
        made=made,
        native=steps_natively(config),
        quiet=True,
    )


def resumable_env(actor_id: ActorId, config: TrainConfig) -> ReplayedEnv:
    """The environments of one actor, such that they can be resumed in the middle of an episode."""
    return ReplayedEnv(actor_env(actor_id, config))


def actor_policy(
    actor_id: ActorId, spec: EnvSpec, config: TrainConfig, own: tuple[AgentConfig, ...] = ()
) -> ActingPolicy:
    """The policy of one actor. own: the agent's configuration by actor, where they differ."""
    policy: ActingPolicy = agent_module(config).make_policy(
        own[actor_id.actor] if own else config.agent,
        spec,
        actor_id.seed,
        actor=actor_id.actor,
        n_actors=actor_id.n_actors,
        incarnation=actor_id.incarnation,
    )
    policy.train()
    return policy


def actor_processor(
    actor_id: ActorId,
    spec: EnvSpec,
    config: TrainConfig,
    make: Callable[[EnvSpec, int, TrainConfig], StepProcessor] | None = None,
) -> StepProcessor:
    """The step processor of one actor: the user's own (`make`), or the agent's own, or the n-step one."""
    agent, buffer, module = config.agent, config.buffer, agent_module(config)
    if make is None and config.step_processor is not None:
        make = import_path(config.step_processor, "step_processor")
    make = make or getattr(module, "make_step_processor", None)
    if make is not None:
        return make(spec, actor_id.n_envs, config)
    return NStepProcessor(
        spec,
        actor_id.n_envs,
        buffer.n_step,
        agent.gamma,
        agent.reward_clip,
        buffer.with_priority(),
        extra_columns(config, spec),
        len(config.env.info_keys),
    )


def extra_columns(config: TrainConfig, spec: EnvSpec) -> tuple[Column, ...]:
    """The columns that the agent adds to rows; most agents add none."""
    declared = getattr(agent_module(config), "extra_columns", None)
    return () if declared is None else tuple(declared(config.agent, spec))


def run_columns(config: TrainConfig, spec: EnvSpec, user: UserParts | None = None) -> tuple[Column, ...]:
    """All columns of the rows that cross from actors to the replay. Raises UsageError."""
    own = config.step_processor or (user is not None and user.step_processor)
    if config.env.info_keys and (own or hasattr(agent_module(config), "make_step_processor")):
        raise UsageError(
            "env.info_keys needs the step processor of border-cli, and this run has another one\n"
            "allowed: env.info_keys=[], or no step_processor"
        )
    extra, n_info = extra_columns(config, spec), len(config.env.info_keys)
    return item_columns(spec, config.buffer.with_priority(), extra, n_info)


def evaluation_env(made: Callable[[], None], config: TrainConfig) -> GymEnv:
    """The environments of evaluations. made: called after each.

    Bounds only cause warnings: evaluations count observations from 0 in every launch, so a value that the actors have
    passed long ago would otherwise end the run.
    """
    import_plugins(config.plugins)
    env = replace(config.env, out_of_bounds="warn")
    n_envs = min(config.evaluator.n_envs, config.evaluator.episodes)
    return evaluation_envs(env, n_envs, made=made, quiet=True)


def evaluation_policy(spec: EnvSpec, config: TrainConfig) -> ActingPolicy:
    """The policy of evaluations, on the CPU. Its random numbers are the same in every process."""
    policy: ActingPolicy = agent_module(config).make_policy(config.agent, spec, config.seed)
    return policy


def agent_module(config: TrainConfig) -> Any:
    """The module of the agent, which imports torch; `border_cli.agents.agent` lists what it offers."""
    import_plugins(config.plugins)
    return AGENTS[config.agent.type].load()


def make_agent(config: TrainConfig, spec: EnvSpec) -> Agent:
    """The learner's agent."""
    agent: Agent = agent_module(config).make_agent(config.agent, spec, config.seed, config.device)
    return agent


def described_inputs(config: TrainConfig, spec: EnvSpec) -> list[str]:
    """A line for each part of an observation: what the agent's networks make of it. None for other networks."""
    from border_cli.agents.config import NetworkConfig
    from border_cli.agents.nets import described

    agent = config.agent
    if not isinstance(agent, NetworkConfig):
        return []
    return [f"input    {described(leaf, agent.channels, agent.normalize_obs)}" for leaf in spec.inputs.leaves]


def make_buffer(config: TrainConfig, spec: EnvSpec) -> ReplayBuffer:
    """The replay buffer."""
    module, extra = BUFFERS[config.buffer.type].load(), extra_columns(config, spec)
    where = {"device": config.device} if config.buffer.device == "cuda" else {}
    buffer: ReplayBuffer = module.make_buffer(config.buffer, spec, config.seed, extra, **where)
    return buffer


def has_rows_on_gpu(config: TrainConfig) -> bool:
    """Whether the kind of buffer knows `buffer.device=cuda`."""
    return "device" in inspect.signature(BUFFERS[config.buffer.type].load().make_buffer).parameters


def buffer_bytes(config: TrainConfig, spec: EnvSpec) -> int:
    """Bytes of the replay once it is full."""
    module = BUFFERS[config.buffer.type].load()
    return int(module.buffer_bytes(config.buffer, spec, extra_columns(config, spec)))


def sizes(config: TrainConfig, spec: EnvSpec) -> Sizes:
    """Bytes of a run's parts."""
    module = agent_module(config)
    if hasattr(module, "agent_bytes"):
        model, training = module.agent_bytes(config.agent, spec)
    else:
        agent = module.make_agent(config.agent, spec, config.seed, "cpu")
        model = sum(array.nbytes for array in agent.model_info().arrays.values())
        training = sum(array.nbytes for array in agent.state().arrays.values())
    columns = run_columns(config, spec)
    return Sizes(
        replay=buffer_bytes(config, spec),
        ring=ring_bytes(columns, ring_rows(actor_credit(config), envs_per_actor(config), columns)),
        channel=(LOCKSTEP_SLOTS if config.trainer.lockstep else 2) * model,
        model=model,
        training=training,
    )


def probe_env(reporter: Reporter, config: EnvConfig, plugins: Sequence[str], seed: int) -> None:
    """Try the environment in a child process. Answers with a `Probed` before the environment is closed."""
    import_plugins(plugins)
    seeding.seed_global_generators(seed, seeding.GLOBAL, 1)
    with ExitStack() as at_end:
        reporter.answer(try_env(config, at_end))
