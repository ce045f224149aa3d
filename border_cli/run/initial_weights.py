"""`init_from`: the weights that a new run takes from another run or from a stored agent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from border_cli.checkpoints import store
from border_cli.checkpoints.contents import (
    BEST,
    CHECKPOINTS,
    REPLAY,
    SavedModel,
    read_model,
    read_training,
)
from border_cli.config.schema import TrainConfig
from border_cli.core.errors import IncompatibleStateError, UsageError
from border_cli.core.protocols import Agent
from border_cli.core.spaces import EnvSpec, ObsSpec
from border_cli.core.state import State, check_like
from border_cli.envs.gym_spaces import part_name
from border_cli.envs.try_env import Probed
from border_cli.run.factories import make_agent
from border_cli.run.find import model_directory


def weights_directory(config: TrainConfig) -> Path:
    """Where `init_from` finds the first weights: the model to load (see `find.model_directory`).

    For the whole agent, the checkpoint of the same opt step is preferred to best/, which has only a model.
    """
    path = model_directory(Path(str(config.init_from))).path
    if config.init_from_parts == "all" and path.name == BEST:
        step = path.parent / CHECKPOINTS / store.step_name(store.read_manifest(path).opt_steps)
        if store.verifies(step, (REPLAY,)):
            return step
    return path


def with_saved_spec(saved: SavedModel, config: TrainConfig, probed: Probed) -> Probed:
    """The result of the trial, with the saved categories if `env.categories` is `auto`: the trial may show others.

    Raises UsageError where the spaces of the weights are not those of the environment.
    """
    saved_spec, spec = saved.description.spec, probed.spec
    if config.env.categories is None and _without_categories(saved_spec) == _without_categories(spec):
        root = ("obs",) if probed.action_mask == "info" else ()
        images = [leaf for leaf in saved_spec.obs.leaves if leaf.kind == "box" and leaf.categories]
        categories = {part_name(leaf.path, root): list(leaf.categories) for leaf in images}
        return replace(probed, spec=replace(spec, obs=saved_spec.obs), categories=categories)
    if saved_spec != spec:
        problem = saved_spec.difference(spec)
        raise UsageError(
            f"init_from={config.init_from}: its spaces are not those of this environment: {problem}",
            allowed="the environment of the weights; env.categories=auto takes their categories",
        )
    return probed


def with_saved_sizes(saved: SavedModel, config: TrainConfig) -> TrainConfig:
    """The configuration with the saved range of returns, number of atoms and widths where they are left open."""
    stored = saved.description.agent
    names = [name for name in ("v_min", "v_max", "atoms") if getattr(config.agent, name, 0) is None]
    ends: Any = {name: stored.get(name) for name in names}
    for name, value in vars(config.agent.on_device(config.device)).items():
        if value != getattr(config.agent, name) and stored.get("type") == config.agent.type:
            ends[name] = stored.get(name, value)  # left open
    config = replace(config, agent=replace(config.agent, **ends))
    config.agent.validate()
    return config


def resolved_init_from(config: TrainConfig, spec: EnvSpec, path: Path) -> str:
    """The directory whose weights a new run takes. A name such as runs/latest may later mean another run.

    For a run it is the best model, with the other networks from the checkpoint of its opt step. Where that checkpoint is
    gone, best/ lacks the critics, and the newest checkpoint is taken instead.
    """
    named, agent = Path(str(config.init_from)), make_agent(config, spec)
    missing = load_weights(agent, replace(config, init_from=str(path)))
    lacks_critics = missing and path.name == BEST and named.resolve() != path.resolve()
    if lacks_critics and (newest := store.newest_valid(path.parent / CHECKPOINTS)) is not None:
        path = newest
        load_weights(agent, replace(config, init_from=str(path)))
    return str(path.resolve())


def load_weights(agent: Agent, config: TrainConfig) -> list[str]:
    """Give a new agent the weights of `init_from`.

    Returns the networks that `init_from` lacks, which start new. Raises UsageError for those that do not fit.
    """
    path = Path(str(config.init_from))
    saved, fresh = read_model(path), agent.model_info()
    try:
        check_like(State(saved.info.arrays), State(fresh.arrays), "the policy")
        agent.sync_model(saved.info)
        if config.init_from_parts == "policy":
            return []
        training = read_training(path)
        return agent.load_networks({} if training is None else training.arrays)
    except IncompatibleStateError as e:
        if (other := saved.description.agent.get("type")) != config.agent.type:
            raise UsageError(
                f"init_from={path}: that run is {other}, whose networks are not those of {config.agent.type}",
                nearest=f"agent={other}",
            ) from e
        raise UsageError(f"init_from={path}: {e}", allowed="an agent with the networks of that run") from e


def _without_categories(spec: EnvSpec) -> EnvSpec:
    leaves = (replace(leaf, categories=()) if leaf.kind == "box" else leaf for leaf in spec.obs.leaves)
    return replace(spec, obs=ObsSpec(tuple(leaves)))
