"""From configuration to parts, for whichever process needs them: environment, policy, step processor, buffer, agent.

The functions named `actor_*` are imported by path inside an actor's own process, those named `evaluation_*` inside an
evaluator's.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from border_cli.actors.place import ActorSpec, Place
from border_cli.actors.rounds import LOCKSTEP_SLOTS, Rounds
from border_cli.config.checks import confirm_episodes, lockstep_steps, steps_natively
from border_cli.config.plan import AgentBytes, Sizes
from border_cli.config.registry import AGENTS, BUFFERS
from border_cli.config.schema import AgentConfig, EnvConfig, TrainConfig
from border_cli.core.items import item_columns
from border_cli.core.protocols import ActingPolicy, Agent, ReplayBuffer
from border_cli.core.spaces import EnvSpec
from border_cli.envs.guarded import GuardedEnv, blamed
from border_cli.envs.gym_env import GymEnv
from border_cli.envs.taped import TapedEnv
from border_cli.evaluation.process import EvaluatorSpec
from border_cli.replay.step_processor import NStepProcessor, reward_limit
from border_cli.runtime.factory import Factory
from border_cli.transport.model_channel import channel_bytes, model_layout
from border_cli.transport.ring import ring_bytes


def actor_spec(config: TrainConfig) -> ActorSpec:
    """What every actor process of this run is made of."""
    plugins = tuple(config.plugins)
    return ActorSpec(
        env=Factory(
            f"border_cli.parts:{'resumable_env' if config.trainer.lockstep else 'actor_env'}",
            (config, plugins),
        ),
        policy=Factory("border_cli.parts:actor_policy", (config.agent, plugins)),
        processor=Factory("border_cli.parts:actor_processor", (config,)),
        n_envs=config.actor_manager.envs_per_actor,
        n_buffer=config.actor_manager.n_buffer,
        seed=config.seed,
        rounds=rounds(config),
    )


def rounds(config: TrainConfig) -> Rounds | None:
    """The rounds of a run in lockstep, None for one that runs free."""
    if not config.trainer.lockstep:
        return None
    n_envs, budget = config.actor_manager.envs_per_actor, config.trainer.max_env_steps
    return Rounds(config.n_actors, n_envs, lockstep_steps(config), budget)


def actor_env(
    place: Place, config: TrainConfig, plugins: tuple[str, ...], made: Callable[[], None] = lambda: None
) -> GymEnv:
    """The environments of one actor. made: called after each."""
    _import_all(plugins)
    limit = reward_limit(config.buffer.n_step, config.agent.gamma, config.agent.reward_clip)
    native = steps_natively(config)
    return GymEnv(config.env, place.n_envs, made=made, reward_limit=limit, native=native)


def resumable_env(place: Place, config: TrainConfig, plugins: tuple[str, ...]) -> TapedEnv:
    """The environments of one actor, such that they can be resumed in the middle of an episode."""
    return TapedEnv(actor_env(place, config, plugins))


def actor_policy(place: Place, spec: EnvSpec, config: AgentConfig, plugins: tuple[str, ...]) -> ActingPolicy:
    """The policy of one actor, on one torch thread."""
    import torch

    torch.set_num_threads(1)
    _import_all(plugins)
    policy: ActingPolicy = (
        AGENTS[config.type]
        .load()
        .make_policy(
            config,
            spec,
            place.seed,
            actor=place.actor,
            n_actors=place.n_actors,
            incarnation=place.incarnation,
        )
    )
    policy.train()
    return policy


def actor_processor(place: Place, spec: EnvSpec, config: TrainConfig) -> NStepProcessor:
    """The step processor of one actor."""
    agent = config.agent
    buffer = config.buffer
    return NStepProcessor(
        spec, place.n_envs, buffer.n_step, agent.gamma, agent.reward_clip, buffer.needs_estimates()
    )


def evaluator_spec(config: TrainConfig) -> EvaluatorSpec:
    """What an evaluator with a process of its own is made of."""
    return EvaluatorSpec(
        env=Factory("border_cli.parts:evaluation_env", (config,)),
        policy=Factory("border_cli.parts:evaluation_policy", (config,)),
        max_episode_steps=config.evaluator.max_episode_steps,
        max_episodes=_most_episodes(config),
    )


def evaluation_env(made: Callable[[], None], config: TrainConfig) -> GuardedEnv:
    """The environments that models are judged in. made: called after each.

    What leaves its space in their first env steps is told and no error, as it is later: they count anew in every launch,
    and who judges must not end a run that its actors go on with.
    """
    _import_all(tuple(config.plugins))
    judged = replace(config.env, out_of_bounds="warn")
    n_envs = min(config.evaluator.n_envs, _most_episodes(config))
    with blamed("the evaluation", "making the environment"):
        env = GymEnv(judged, n_envs, made=made)
    return GuardedEnv(env, "the evaluation")


def evaluation_policy(spec: EnvSpec, config: TrainConfig) -> ActingPolicy:
    """The policy that models are judged with, on the CPU. It draws the same in whichever process it acts."""
    _import_all(tuple(config.plugins))
    policy: ActingPolicy = AGENTS[config.agent.type].load().make_policy(config.agent, spec, config.seed)
    return policy


def _most_episodes(config: TrainConfig) -> int:
    """Episodes of the longest evaluation."""
    return max(config.evaluator.episodes, confirm_episodes(config.evaluator))


def make_agent(config: TrainConfig, spec: EnvSpec) -> Agent:
    """The learner's agent."""
    agent: Agent = AGENTS[config.agent.type].load().make_agent(config.agent, spec, config.seed, config.device)
    return agent


def import_agent(config: TrainConfig) -> None:
    """Import the agent's module, and torch with it. Only to have it done at a convenient time."""
    AGENTS[config.agent.type].load()


def check_spec(config: TrainConfig, spec: EnvSpec) -> None:
    """Raise UsageError where the environment's spaces are not for the agent."""
    AGENTS[config.agent.type].load().check_spec(config.agent, spec)


def make_buffer(config: TrainConfig, spec: EnvSpec) -> ReplayBuffer:
    """The replay buffer."""
    buffer: ReplayBuffer = BUFFERS[config.buffer.type].load().make_buffer(config.buffer, spec, config.seed)
    return buffer


def buffer_bytes(config: TrainConfig, spec: EnvSpec) -> int:
    """Bytes of the replay once it is full."""
    return int(BUFFERS[config.buffer.type].load().buffer_bytes(config.buffer, spec))


def sizes(config: TrainConfig, spec: EnvSpec) -> Sizes:
    """Bytes of a run's parts. The agent is built for it, and gone again."""
    agent = AGENTS[config.agent.type].load().make_agent(config.agent, spec, config.seed, "cpu")
    model = agent.model_info()
    training = sum(array.nbytes for array in agent.state().arrays.values())
    return Sizes(
        replay=buffer_bytes(config, spec),
        ring=ring_bytes(item_columns(spec, config.buffer.needs_estimates()), config.actor_manager.ring_rows),
        channel=channel_bytes(model_layout(model), LOCKSTEP_SLOTS if config.trainer.lockstep else 2),
        agent=AgentBytes(sum(array.nbytes for array in model.arrays.values()), training),
    )


def probe_env(config: EnvConfig, plugins: tuple[str, ...]) -> dict[str, Any]:
    """Make the environment once, reset it, and describe its spaces and where a mask of its actions is. Run in a child."""
    _import_all(plugins)
    env = GymEnv(config)
    try:
        env.reset(0, seed=0)
        mask = config.action_mask
        if mask == "auto":
            mask = "info" if env.gives_mask else "none"
        return {"spec": env.spec.to_json(), "action_mask": mask}
    finally:
        env.close()


def _import_all(modules: tuple[str, ...]) -> None:
    for module in modules:
        importlib.import_module(module)
