"""Factories of the parts of a run, in any process: actors and evaluators import these functions by their paths."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from border_cli.actors.sampler import RowProcessor
from border_cli.actors.spec import LOCKSTEP_SLOTS, ActorId, ActorSpec, Rounds
from border_cli.config import resolve
from border_cli.config.convert import dotted, to_plain
from border_cli.config.registry import AGENTS, BUFFERS, find, import_path, import_plugins
from border_cli.config.resolve import envs_per_actor, n_actors
from border_cli.config.resource_checks import Sizes
from border_cli.config.schema import EnvConfig, TrainConfig
from border_cli.core.errors import UsageError
from border_cli.core.protocols import ActingPolicy, Agent, Evaluator, Recorder, ReplayBuffer
from border_cli.core.spaces import EnvSpec
from border_cli.core.types import Column, ModelInfo, item_columns
from border_cli.envs.atari import NativeGame
from border_cli.envs.goals import GoalOutcome
from border_cli.envs.group import GymEnv, ReplayedEnv, VectorGroup, evaluation_envs
from border_cli.envs.try_env import try_env
from border_cli.replay.buffer import Returns
from border_cli.run.directory import SWEEP_FILE
from border_cli.run.summary import read_run_id
from border_cli.runtime import seeding
from border_cli.runtime.transport import ring_bytes, ring_rows
from border_cli.runtime.worker import Reporter
from border_cli.training.ratio_limiter import most_credit
from border_cli.training.telemetry import LONGEST_EPISODE


@dataclass(frozen=True)
class UserParts:
    """Parts given from Python beside the configured recorders, and in place of the configured evaluator."""

    recorder: Recorder | None = None
    evaluator: Evaluator | None = None


def actor_spec(config: TrainConfig) -> ActorSpec:
    """What every actor process of this run is made of."""
    lockstep, actors = config.trainer.lockstep, config.actor_manager
    steps, most = resolve.lockstep_steps(config), config.trainer.max_env_steps
    rounds = Rounds(n_actors(config), envs_per_actor(config), steps, most)
    return ActorSpec(
        env=partial(actor_env, config=config, resumable=lockstep),
        policy=partial(actor_policy, config=config),
        processor=partial(actor_processor, config=config),
        n_envs=envs_per_actor(config),
        n_buffer=actors.n_buffer,
        credit=actor_credit(config),
        seed=config.seed,
        rounds=rounds if lockstep else None,
    )


def actor_credit(config: TrainConfig) -> int:
    """Env steps that one actor takes at most before the learner has inserted any of them."""
    if config.trainer.lockstep:
        return resolve.lockstep_steps(config) * envs_per_actor(config)
    tolerance = resolve.ratio_tolerance(config)
    return most_credit(config.trainer.opt_interval, tolerance, n_actors(config), envs_per_actor(config))


def actor_env(
    actor_id: ActorId, config: TrainConfig, tick: Callable[[], None] = lambda: None, resumable: bool = False
) -> GymEnv:
    """The environments of one actor. tick: called after each · resumable: in the middle of an episode."""
    import_plugins(config.plugins)
    kind = ReplayedEnv if resumable else VectorGroup if resolve.steps_as_one(config) else GymEnv
    games = (NativeGame(config.env) for _ in range(actor_id.n_envs))
    bases = games if resolve.steps_natively(config) else None
    return kind(config.env, actor_id.n_envs, f"actor {actor_id.actor}", tick=tick, bases=bases, quiet=True)


_simulators: dict[str, Any] = {}


def simulator(config: TrainConfig) -> Any:
    """The simulator of `trainer=device`. Some allow one per process: a run takes what `preflight` has made."""
    from border_cli.envs.simulator import Simulator  # imports torch

    import_plugins(config.plugins)
    n_envs, env = envs_per_actor(config), config.env
    key = repr((env.entry_point, env.kwargs, env.obs_keys, n_envs, config.device))
    if key not in _simulators or not _simulators[key].is_open:
        for other in _simulators.values():
            other.close()
        _simulators.clear()
        seeding.seed_global_generators(config.seed, seeding.GLOBAL, 1)
        _simulators[key] = Simulator(env, n_envs, "the training", config.device)
    return _simulators[key]


def actor_policy(actor_id: ActorId, spec: EnvSpec, config: TrainConfig) -> ActingPolicy:
    """The policy of one actor."""
    ids = {"actor": actor_id.actor, "n_actors": actor_id.n_actors, "incarnation": actor_id.incarnation}
    policy: ActingPolicy = agent_module(config).make_policy(config.agent, spec, actor_id.seed, **ids)
    policy.train()
    return policy


def actor_processor(actor_id: ActorId, spec: EnvSpec, config: TrainConfig) -> RowProcessor:
    """The step processor of one actor: the configured one, or border-cli's own."""
    if config.step_processor is not None:
        make: Callable[..., RowProcessor] = import_path(config.step_processor, "step_processor")
        return make(spec, actor_id.n_envs, config)
    return RowProcessor(spec, actor_id.n_envs, extra_columns(config, spec), len(config.env.info_keys))


def extra_columns(config: TrainConfig, spec: EnvSpec) -> tuple[Column, ...]:
    """The columns that the agent adds to rows; most agents add none."""
    declared = getattr(agent_module(config), "extra_columns", None)
    return () if declared is None else tuple(declared(config.agent, spec))


def run_columns(config: TrainConfig, spec: EnvSpec) -> tuple[Column, ...]:
    """All columns of the rows that cross from actors to the replay. Raises UsageError."""
    if config.env.info_keys and config.step_processor is not None:
        raise UsageError(
            "env.info_keys needs the step processor of border-cli, and this run has another one",
            allowed="env.info_keys=[], or no step_processor",
        )
    return item_columns(spec, extra_columns(config, spec), len(config.env.info_keys))


def evaluation_env(tick: Callable[[], None], config: TrainConfig) -> Any:
    """The environments of evaluations, as `core.protocols.Env`. tick: called after each."""
    import_plugins(config.plugins)
    n_envs = min(config.evaluator.n_envs, config.evaluator.episodes)
    if config.env.type == "simulator":
        n_envs = config.evaluator.episodes
    if config.evaluator.type == "shared":
        from border_cli.envs.simulator import SimulatorEpisodes  # imports torch

        return SimulatorEpisodes(simulator(config), n_envs)
    return evaluation_envs(config.env, n_envs, tick=tick, quiet=True)


def evaluation_policy(spec: EnvSpec, config: TrainConfig) -> ActingPolicy:
    """The policy of evaluations, on the CPU. Its random numbers are the same in every process."""
    return cast(ActingPolicy, agent_module(config).make_policy(config.agent, spec, config.seed))


def agent_module(config: TrainConfig) -> Any:
    """The module of the agent, which imports torch; `border_cli.agents.agent` lists what it offers."""
    import_plugins(config.plugins)
    return AGENTS[config.agent.type].load()


def make_agent(config: TrainConfig, spec: EnvSpec) -> Agent:
    """The learner's agent."""
    return cast(Agent, agent_module(config).make_agent(config.agent, spec, config.seed, config.device))


def capture_on_gpu(agent: Agent, config: TrainConfig) -> None:
    """Have opt steps on a GPU captured before the first one, unless `agent.compile=false`."""
    from border_cli.agents.agent import NetworkAgent
    from border_cli.agents.capture import capture_opt_steps

    if isinstance(agent, NetworkAgent) and getattr(config.agent, "compile", "false") != "false":
        agent.compiling = partial(capture_opt_steps, agent.algorithm)


def described_inputs(config: TrainConfig, spec: EnvSpec) -> list[str]:
    """A line for each part of an observation: what the agent's networks make of it. None for other networks."""
    from border_cli.agents.config import NetworkConfig
    from border_cli.agents.nets import described

    agent = config.agent
    if not isinstance(agent, NetworkConfig):
        return []
    return [f"input    {described(leaf, agent)}" for leaf in spec.inputs.leaves]


def make_buffer(config: TrainConfig, spec: EnvSpec) -> ReplayBuffer:
    """The replay buffer."""
    module, extra = BUFFERS[config.buffer.type].load(), extra_columns(config, spec)
    returns = Returns(config.agent.gamma, config.agent.reward_clip)
    options: dict[str, Any] = {"device": config.device} if config.buffer.device == "cuda" else {}
    if config.buffer.her != "none":
        options["outcome"] = GoalOutcome(config.env, spec)
    if (sequences := getattr(config.agent, "sequences", None)) is not None:
        options["sequences"] = sequences
    return cast(ReplayBuffer, module.make_buffer(config.buffer, spec, config.seed, extra, returns, **options))


def buffer_knows(argument: str, config: TrainConfig) -> bool:
    """Whether the kind of buffer knows an argument, such as `device` for buffer.device=cuda."""
    return argument in inspect.signature(BUFFERS[config.buffer.type].load().make_buffer).parameters


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


def plugin_factory(group: str, kind: str) -> Any:
    """What makes the part with this `type`; None where `border_cli.run.build` makes it itself."""
    entry = find(group, kind)
    return entry.load() if entry is not None and entry.factory else None


def remote_recorder(kind: str, config: TrainConfig, folder: Path, keep: int) -> Any:
    """A recorder in its own process.

    kind: an experiment tracker, or the type of the recorder · keep: lines of metrics.jsonl that are of the run so far.
    """
    from border_cli.recorders.trackers import RunInfo, make_tracker

    import_plugins(config.plugins)
    if kind not in resolve.TRACKERS:
        return plugin_factory("recorder", kind)(config, folder)
    group = folder.parent.name if (folder.parent / SWEEP_FILE).exists() else None
    values = dotted(to_plain(config))
    run_id = read_run_id(folder) or folder.name
    info = RunInfo(run_id, folder.name, group, config.recorder.project, values, folder)
    return make_tracker(kind, info, config.recorder, keep)


def film_model(c: TrainConfig, spec: EnvSpec, model: ModelInfo, path: Path) -> None:
    """Film an episode of a model, in a process of its own."""
    from border_cli.training.videos import film_episode

    import_plugins(c.plugins)
    seeding.seed_global_generators(c.seed, seeding.GLOBAL, 3, model.version)
    policy = evaluation_policy(spec, c)
    policy.sync_model(model)
    env_config = replace(c.env, info_keys=[])
    with closing(GymEnv(env_config, 1, "the film", render_mode="rgb_array", quiet=True)) as env:
        seed = seeding.integer(c.seed, seeding.EVALUATION, 0)
        film_episode(env, policy, model.version, seed, path, c.evaluator.max_episode_steps or LONGEST_EPISODE)


def probe_env(reporter: Reporter, config: EnvConfig, plugins: Sequence[str], seed: int) -> None:
    """Try the environment in a child process. Answers with a `Probed` before the environment is closed."""
    import_plugins(plugins)
    seeding.seed_global_generators(seed, seeding.GLOBAL, 1)
    with ExitStack() as at_end:
        reporter.answer(try_env(config, at_end))
