"""From configuration to parts, for whichever process needs them: environment, policy, step processor, buffer, agent.

The functions named `actor_*` are imported by path inside an actor's own process.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from border_cli.actors.model_channel import channel_bytes, model_layout
from border_cli.actors.place import ActorSpec, Factory, Place
from border_cli.actors.ring import ring_bytes
from border_cli.config.plan import AgentBytes, Sizes
from border_cli.config.registry import AGENTS, BUFFERS
from border_cli.config.schema import AgentConfig, EnvConfig, TrainConfig
from border_cli.core.items import item_columns
from border_cli.core.protocols import ActingPolicy, Agent, ReplayBuffer
from border_cli.core.spaces import EnvSpec
from border_cli.envs.gym_env import GymEnv
from border_cli.replay.step_processor import NStepProcessor


def actor_spec(config: TrainConfig) -> ActorSpec:
    """What every actor process of this run is made of."""
    plugins = tuple(config.plugins)
    return ActorSpec(
        env=Factory("border_cli.parts:actor_env", (config.env, plugins)),
        policy=Factory("border_cli.parts:actor_policy", (config.agent, plugins)),
        processor=Factory("border_cli.parts:actor_processor", (config,)),
        n_envs=config.actor_manager.envs_per_actor,
        n_buffer=config.actor_manager.n_buffer,
        seed=config.seed,
    )


def actor_env(
    place: Place, config: EnvConfig, plugins: tuple[str, ...], made: Callable[[], None] = lambda: None
) -> GymEnv:
    """The environments of one actor. made: called after each."""
    _import_all(plugins)
    return GymEnv(config, place.n_envs, made=made)


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
    return NStepProcessor(spec, place.n_envs, config.buffer.n_step, agent.gamma, agent.reward_clip)


def make_agent(config: TrainConfig, spec: EnvSpec) -> Agent:
    """The learner's agent."""
    agent: Agent = AGENTS[config.agent.type].load().make_agent(config.agent, spec, config.seed, config.device)
    return agent


def import_agent(config: TrainConfig) -> None:
    """Import the agent's module, and torch with it. Only to have it done at a convenient time."""
    AGENTS[config.agent.type].load()


def check_spec(config: TrainConfig, spec: EnvSpec) -> None:
    """Raise UsageError where the environment's spaces are not for the agent."""
    AGENTS[config.agent.type].load().check_spec(spec)


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
    training = sum(array.nbytes for array in agent.state().tensors.values())
    return Sizes(
        replay=buffer_bytes(config, spec),
        ring=ring_bytes(item_columns(spec), config.actor_manager.ring_rows),
        channel=channel_bytes(model_layout(model)),
        agent=AgentBytes(sum(array.nbytes for array in model.arrays.values()), training),
    )


def probe_env(config: EnvConfig, plugins: tuple[str, ...]) -> dict[str, Any]:
    """Make the environment once, reset it, and describe its spaces. Run in a child."""
    _import_all(plugins)
    env = GymEnv(config)
    try:
        env.reset(0, seed=0)
        return env.spec.to_json()
    finally:
        env.close()


def _import_all(modules: tuple[str, ...]) -> None:
    for module in modules:
        importlib.import_module(module)
