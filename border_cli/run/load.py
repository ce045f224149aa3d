"""Loads a model that acts, `border_cli.load(path).sample(observation)`; saves and loads agents without a run.

No environment is built: the spaces are stored as data in each checkpoint.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from border_cli.checkpoints import contents, store
from border_cli.config import registry
from border_cli.config.convert import to_config
from border_cli.config.registry import AGENTS
from border_cli.config.schema import AgentConfig, EnvConfig, TrainConfig
from border_cli.core.errors import UsageError, first_line
from border_cli.core.protocols import ActingPolicy, Agent
from border_cli.core.spaces import ACTION_MASK, Array, EnvSpec, Obs, ObsLeaf, decode_actions, encode
from border_cli.core.types import AFTER_TRAINING
from border_cli.run.directory import check_code
from border_cli.run.find import model_directory

_logger = logging.getLogger(__name__)
_NOT_GIVEN = object()


class LoadedModel:
    """A trained model that acts.

    spec: the spaces of its environment, without `agent.privileged_obs` · opt_steps: at which it was taken · path: the
    directory it was read from.
    """

    def __init__(
        self, policy: ActingPolicy, spec: EnvSpec, opt_steps: int, path: Path, mask_in_info: bool = False
    ) -> None:
        self.spec = spec
        self.opt_steps = opt_steps
        self.path = path
        self._policy = policy  # in eval mode
        self._deterministic = True
        self._mask_in_info = mask_in_info
        self._stacks: dict[tuple[str, int], Array] = {}

    def begin_episode(self, env_ix: int = 0) -> None:
        """Forget the episode so far: stacked observations, and the policy's state. Call it after each reset.

        env_ix: the environment, where several take turns (see `sample`).
        """
        self._stacks = {key: stack for key, stack in self._stacks.items() if key[1] != env_ix}
        self._policy.begin_episode(env_ix)

    def sample(
        self,
        obs: Any,
        action_mask: Any = _NOT_GIVEN,
        *,
        deterministic: bool = True,
        env_ix: int | Sequence[int] | None = None,
    ) -> Any:
        """The action for an observation, or the actions for a batch, as the environment takes them.

        Args:
            obs: one observation as the environment gives it (an array, an int, a dict or a tuple), or a batch: the same
                with one more dimension in front of each array. If training stacked observations (`env.frame_stack`), a
                single observation is stacked here with those before it; an array with the shape of a stack is one.
            action_mask: `info["action_mask"]`, if the environment says in its info which actions are allowed; None: all
                are. (n,), or (B, n) for a batch.
            deterministic: act as in evaluations; False: explore as at the end of training.
            env_ix: the environments of the observations, if the model keeps something during an episode: one index, or
                B of them for a batch. By default 0, or 0 to B - 1.

        Returns:
            For a Discrete action space an np.int64, counted from its start, or (B,) int64; for a Box an array, or (B, ...).

        Raises:
            ValueError: for an observation outside its space, for a mask that is missing or not expected, and where no
                action is allowed.
        """
        batch, is_batch, envs = self._encode(obs, action_mask, env_ix)
        if deterministic != self._deterministic:
            self._deterministic = deterministic
            (self._policy.eval if deterministic else self._policy.train)()
        stored = self._policy.sample(batch, 0 if deterministic else AFTER_TRAINING, envs)
        actions = decode_actions(self.spec.action, stored)
        return np.array(actions) if is_batch else actions[0]

    def values(self, obs: Any, action_mask: Any = _NOT_GIVEN) -> Array:
        """Expected return of each action, (n,) or (B, n); -inf for an action that is not allowed. Arguments: see `sample`.

        Raises ValueError for an agent whose model has no values of actions, and as `sample` does.
        """
        return self._estimate("action_values", obs, action_mask)

    def quantiles(self, obs: Any, action_mask: Any = _NOT_GIVEN) -> Array:
        """Quantiles of the return of each action, (n, k) or (B, n, k). Arguments: see `sample`.

        Raises ValueError for an agent whose model has no quantiles, and as `sample` does.
        """
        return self._estimate("action_quantiles", obs, action_mask)

    def _estimate(self, method: str, obs: Any, action_mask: Any) -> Array:
        if not hasattr(self._policy, method):
            raise ValueError(f"the model of this agent has no {method.replace('_', ' ')}")
        stacks = dict(self._stacks)  # an observation that is only looked at is not part of the episode
        try:
            batch, is_batch, envs = self._encode(obs, action_mask, None)
        finally:
            self._stacks = stacks
        remembering = {"env_ix": envs} if getattr(self._policy, "memory_units", None) else {}
        estimates: Array = getattr(self._policy, method)(batch, **remembering)
        return estimates if is_batch else estimates[0]

    def _encode(
        self, obs: Any, action_mask: Any, env_ix: int | Sequence[int] | None
    ) -> tuple[Obs, bool, list[int]]:
        """Rows as stored, whether they are a batch, and the environment of each row. Raises ValueError."""
        if self._mask_in_info and action_mask is _NOT_GIVEN:
            raise ValueError(
                f'this model was trained with masks: give action_mask=info["{ACTION_MASK}"], or None where all is allowed'
            )
        if not self._mask_in_info and action_mask is not _NOT_GIVEN and action_mask is not None:
            raise ValueError("action_mask: this model was trained without masks in its environment's info")
        leaves = {leaf.name: leaf for leaf in self.spec.obs.leaves}
        if self._mask_in_info:
            obs = {"obs": obs, ACTION_MASK: action_mask}
            if action_mask is None:
                leaves.pop(str(self.spec.mask))
        read = {name: _rows(leaf, obs) for name, leaf in leaves.items()}
        if len({(len(rows), is_batch) for rows, is_batch in read.values()}) > 1:
            raise ValueError("the parts of the observation are not a batch of one size, nor one observation")
        rows, is_batch = next(iter(read.values()))
        envs = list(range(len(rows))) if env_ix is None else list(np.atleast_1d(env_ix))
        if len(envs) != len(rows):
            raise ValueError(f"env_ix has {len(envs)} environments, the observation {len(rows)}")
        batch = {name: self._stacked(leaf, read[name][0], envs) for name, leaf in leaves.items()}
        mask = self.spec.mask
        if mask is not None:
            batch.setdefault(mask, np.ones((len(envs), self.spec.action.n), np.uint8))
            if not batch[mask].any(1).all():
                raise ValueError("action_mask allows no action")
        return batch, is_batch, envs

    def _stacked(self, leaf: ObsLeaf, rows: Array, envs: Sequence[int]) -> Array:
        """Rows (B, ...) of one leaf, each stacked with those before it where training stacked them."""
        if leaf.stack == 1 or rows.shape[1:] == leaf.shape:
            return rows
        stacks = []
        for env, newest in zip(envs, rows, strict=True):
            before = self._stacks.get((leaf.name, env), np.stack([newest] * leaf.stack))
            stack = self._stacks[leaf.name, env] = np.concatenate([before[1:], newest[None]])
            stacks.append(stack)
        return np.stack(stacks)


def _rows(leaf: ObsLeaf, obs: Any) -> tuple[Array, bool]:
    """(B, ...) the part of an observation that a leaf is about, as training stored it; and whether it is a batch.

    Raises ValueError for what is missing or outside the leaf's space.
    """
    for key in leaf.path:
        keys = obs if isinstance(obs, Mapping) else range(len(obs)) if isinstance(obs, tuple | list) else ()
        if key not in keys:
            raise ValueError(f"observation {leaf.name!r} is missing: {key!r} is not in what was given")
        obs = obs[key]
    array, shapes = np.asarray(obs), (leaf.shape, leaf.row_shape)
    is_batch = array.shape not in shapes
    rows = array if is_batch else array[None]
    if array.dtype.kind not in "biuf":
        raise ValueError(f"observation {leaf.name!r} is not made of numbers")
    if rows.shape[1:] not in shapes or not rows.size:
        raise ValueError(f"observation {leaf.name!r} has shape {array.shape}, its space says {leaf.shape}")
    if not np.isfinite(rows).all():
        raise ValueError(f"observation {leaf.name!r} holds a number that is not finite")
    stored = encode(leaf, rows)
    if stored.dtype.kind != "f":
        low: Any = -np.inf if leaf.low is None else leaf.low
        high: Any = np.inf if leaf.high is None else leaf.high
        if leaf.categories and leaf.kind != "box":
            low, high = 0, np.reshape(leaf.categories, leaf.shape) - 1
        start = np.reshape(leaf.start, leaf.shape) if leaf.start else 0
        if ((stored < low) | (stored > high) | (stored + start != rows)).any():
            raise ValueError(f"observation {leaf.name!r} holds a number that is not in its space")
    return stored, is_batch


def load(
    path: str | os.PathLike[str] | None = None,
    checkpoint: str | int = "",
    *,
    plugins: Sequence[str] = (),
    trust: bool = False,
    seed: int = 0,
) -> LoadedModel:
    """Load the model of a run, a checkpoint directory or best/.

    Args:
        path: of one of these; None for the latest run in ./runs.
        checkpoint: "best", "last" or an opt step of a run; by default the best, or the last where there is no best yet.
        plugins: modules to import first, for an agent that is not one of border-cli's own.
        trust: import the plugins and the encoder that the run names, too.
        seed: of the random numbers that the agent draws while it acts.

    Raises:
        UsageError: for what is not there.
        NoValidCheckpointError: where nothing verifies.
    """
    located = model_directory(None if path is None else Path(path), None if checkpoint == "" else checkpoint)
    if located.note:
        _logger.warning("%s", located.note)
    saved = contents.read_model(located.path)
    import_plugins(saved.description, plugins, trust)
    policy = make_policy(saved, seed)
    in_info = stored_config(saved.description).env.action_mask == "info"
    spec = getattr(policy, "seen", saved.description.spec)
    return LoadedModel(policy, spec, saved.info.version, located.path, in_info)


def save_agent(
    agent: Agent,
    path: str | os.PathLike[str],
    config: AgentConfig,
    spec: EnvSpec,
    *,
    env: EnvConfig | None = None,
    plugins: Sequence[str] = (),
) -> Path:
    """Write a bare agent, without a run: weights, optimisers, configuration and spaces.

    `load_agent` gives the agent back, `load` something that acts, and `init_from=<path>` starts a run from it.

    Args:
        agent: the agent.
        path: the directory to write, or to replace.
        config: the agent's configuration.
        spec: the spaces that the agent was made for.
        env: the environment's configuration, if it matters for acting.
        plugins: modules that register the agent, for one that is not border-cli's own.

    Raises:
        CheckpointIOError: when the disk fails; what was there is unchanged.
    """
    path = Path(path).absolute()
    model = contents.ModelDescription(asdict(config), asdict(env or EnvConfig()), spec, tuple(plugins))
    info = agent.model_info()
    store.write(path.parent, path.name, contents.agent_files(model, info, agent.state()), info.version)
    return path


def load_agent(
    path: str | os.PathLike[str],
    *,
    device: str = "cpu",
    plugins: Sequence[str] = (),
    trust: bool = False,
    seed: int = 0,
) -> Agent:
    """The agent in a directory of `save_agent`, or in a checkpoint of a run.

    Args:
        path: the directory, a run or a checkpoint; of a run the last checkpoint, because best/ has only a model.
        device: where the agent computes, such as "cpu" or "cuda".
        plugins: modules to import first, for an agent that is not one of border-cli's own.
        trust: import the plugins and the encoder that the run names, too.
        seed: of the random numbers that the agent draws.

    Raises:
        UsageError: the path does not exist, or has only a model.
        NoValidCheckpointError: where nothing verifies.
    """
    path = Path(path)
    is_single = (path / store.MANIFEST_FILE).exists()
    located = model_directory(path, None if is_single else "last")
    saved, training = contents.read_model(located.path), contents.read_training(located.path)
    if training is None:
        raise UsageError(f"{located.path} has only a model", allowed="a checkpoint, or border_cli.load")
    model = saved.description
    import_plugins(model, plugins, trust)
    config = stored_config(model).agent
    agent: Agent = AGENTS[config.type].load().make_agent(config, model.spec, seed, device)
    try:
        agent.load_state(training)
    except ValueError as e:
        raise UsageError(f"{located.path}: its weights do not fit the agent they are stored with\n{e}") from e
    return agent


def make_policy(saved: contents.SavedModel, seed: int) -> ActingPolicy:
    """The policy of a saved model, in eval mode. Raises UsageError where its parts do not fit."""
    config, spec = stored_config(saved.description).agent, saved.description.spec
    module = AGENTS[config.type].load()
    module.check_spec(config, spec)
    policy: ActingPolicy = module.make_policy(config, spec, seed)
    try:
        policy.sync_model(saved.info)
    except ValueError as e:
        raise UsageError(f"the weights do not fit the agent they are stored with\n{e}") from e
    policy.eval()
    return policy


def import_plugins(model: contents.ModelDescription, typed: Sequence[str], trusted: bool) -> None:
    """Import the installed and the typed plugins, and those that the model names.

    Raises UsageError where one of them, or the agent's encoder, is not trusted.
    """
    check_code({"plugins": list(model.plugins), "agent": model.agent}, {"plugins": typed}, trusted)
    registry.import_installed_plugins()
    registry.import_plugins(dict.fromkeys([*typed, *model.plugins]))


def stored_config(model: contents.ModelDescription) -> TrainConfig:
    """A configuration with the stored sections agent and env, checked against the schema. Raises UsageError."""
    try:
        return to_config({"agent": dict(model.agent), "env": dict(model.env)})
    except UsageError as e:
        if str(e).startswith(("agent.type: ", "env.type: ")):
            raise UsageError(f"{first_line(e)}\nif a package brings it, add plugins=[<package>]") from e
        raise UsageError(f"the stored configuration does not fit this border-cli\n{e}") from e
