"""From a run to something that acts: `border_cli.load(path).sample(observation)`.

No environment is built: the spaces are stored as data in each checkpoint.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from border_cli.checkpoints.contents import ModelDescription, SavedModel, read_model
from border_cli.config import plugins as plugin_modules
from border_cli.config.convert import ConfigError, to_config
from border_cli.config.registry import AGENTS
from border_cli.config.schema import AgentConfig, EnvConfig, TrainConfig
from border_cli.core.errors import UsageError
from border_cli.core.protocols import ActingPolicy
from border_cli.core.spaces import ACTION_MASK, Array, EnvSpec, ObsLeaf
from border_cli.envs.spaces import decode_action, leaf_value, part_of
from border_cli.runs.locate import Located, model_directory, parse_checkpoint
from border_cli.runs.provenance import read_run_id
from border_cli.runs.trust import Typed, check_plugins, code_of, is_own

_logger = logging.getLogger(__name__)
_NOT_SAID = object()


class LoadedModel:
    """A trained model that acts greedily.

    spec: the spaces of its environment · opt_steps: when it was taken · path: where it was read from.
    """

    def __init__(
        self, policy: ActingPolicy, spec: EnvSpec, opt_steps: int, path: Path, mask_in_info: bool = False
    ) -> None:
        self._mask_in_info = mask_in_info
        self.spec = spec
        self.opt_steps = opt_steps
        self.path = path
        self._policy = policy
        self._stacks: dict[str, Array] = {}

    def begin_episode(self) -> None:
        """Forget the observations before, where the model acts on stacks of them. To be called after each reset."""
        self._stacks = {}

    def sample(self, obs: Any, action_mask: Any = _NOT_SAID) -> Any:
        """The action for one observation, both as the environment has them.

        obs: an array, an int, a dict or a tuple, without a batch dimension. Where training stacked observations
        (`env.frame_stack`), a single one is stacked here; what is a stack already is taken as it is. Returns an int for a
        Discrete action space, counted from its start, and an array for a Box. action_mask: info["action_mask"], where the
        environment says in its info which actions are allowed; None: all are.
        Raises ValueError where obs is not of the space's shape, or holds a number that is not finite, where a model that
        was trained with masks in the info is given none, or another one is given one, and where nothing is allowed.
        """
        if self._mask_in_info:
            obs = {"obs": obs, ACTION_MASK: self._allowed(action_mask)}
        elif action_mask is not None and action_mask is not _NOT_SAID:
            raise ValueError(
                "action_mask: this model was trained without masks in the info of its environment"
            )
        batch = {leaf.name: self._value(leaf, obs)[np.newaxis] for leaf in self.spec.obs.leaves}
        for name, rows in batch.items():
            if not np.isfinite(rows).all():
                raise ValueError(f"observation {name!r} holds a number that is not finite")
        return decode_action(self.spec.action, self._policy.sample(batch)[0])

    def _allowed(self, action_mask: Any) -> Array:
        if action_mask is _NOT_SAID:
            raise ValueError(
                f'this model was trained with masks: give action_mask=info["{ACTION_MASK}"], or None where all is allowed'
            )
        mask = np.ones(self.spec.action.n, np.int8) if action_mask is None else np.asarray(action_mask)
        if not mask.any():
            raise ValueError("action_mask allows no action")
        return mask

    def _value(self, leaf: ObsLeaf, obs: Any) -> Array:
        if leaf.stack == 1 or np.shape(part_of(leaf, obs)) == leaf.shape:
            return leaf_value(leaf, obs)
        newest = leaf_value(replace(leaf, shape=leaf.row_shape), obs)
        before = self._stacks.get(leaf.name)
        stack = (
            np.stack([newest] * leaf.stack) if before is None else np.concatenate([before[1:], newest[None]])
        )
        self._stacks[leaf.name] = stack
        return stack


def load(
    path: str | os.PathLike[str] | None = None,
    checkpoint: str | int = "",
    *,
    plugins: Sequence[str] = (),
    seed: int = 0,
) -> LoadedModel:
    """Load the model of a run, a checkpoint directory or best/; without a path, of the latest run in ./runs.

    checkpoint: "best", "last" or an opt step of a run; by default the best, or the last where there is no
    best yet · plugins: modules to import first, where the agent is not one of ours · seed: of what an agent
    draws while it acts.
    Raises UsageError for what is not there, NoValidCheckpointError where nothing verifies.
    """
    chosen = parse_checkpoint(str(checkpoint)) if checkpoint != "" else None
    located = model_directory(None if path is None else Path(path), chosen)
    if located.note:
        _logger.warning("%s", located.note)
    saved = read_model(located.path)
    import_plugins(saved.description, Typed(plugins=plugins), is_own_code(located, saved.description))
    policy = make_policy(saved, seed)
    in_info = env_config(saved.description).action_mask == "info"
    return LoadedModel(policy, saved.description.spec, saved.info.version, located.path, in_info)


def make_policy(saved: SavedModel, seed: int) -> ActingPolicy:
    """The policy of a saved model, in eval mode. Raises UsageError where its parts do not fit."""
    config, spec = agent_config(saved.description), saved.description.spec
    factory = AGENTS[config.type].load()
    factory.check_spec(config, spec)
    policy: ActingPolicy = factory.make_policy(config, spec, seed)
    try:
        policy.sync_model(saved.info)
    except ValueError as e:
        raise UsageError(f"the weights do not fit the agent they are stored with\n{e}") from e
    policy.eval()
    return policy


def import_plugins(model: ModelDescription, typed: Typed, own: bool) -> None:
    """Import installed and typed plugins, and those that the model names, as far as they are to be trusted.

    Raises UsageError that says what to type where they are not.
    """
    check_plugins(model.plugins, typed, own)
    plugin_modules.load_installed()
    plugin_modules.load(dict.fromkeys([*typed.plugins, *model.plugins]))


def is_own_run(located: Located) -> bool:
    """Whether a model belongs to a run in the user's own list."""
    return located.run_dir is not None and is_own(read_run_id(located.run_dir))


def is_own_code(located: Located, model: ModelDescription) -> bool:
    """Whether it does, and names the code that was run when it was trained."""
    if located.run_dir is None:
        return False
    return is_own(read_run_id(located.run_dir), code_of(model.plugins, env_config(model)))


def agent_config(model: ModelDescription) -> AgentConfig:
    """The stored agent section, checked as data against the schema. Raises UsageError."""
    return _checked("agent", model.agent).agent


def env_config(model: ModelDescription) -> EnvConfig:
    """The stored env section, checked as data against the schema. Raises UsageError."""
    return _checked("env", model.env).env


def _checked(name: str, section: Mapping[str, Any]) -> TrainConfig:
    try:
        return to_config({"agent": {"type": "dqn"}, name: section})
    except ConfigError as e:
        if e.key == "agent.type":
            first = str(e).splitlines()[0]
            raise UsageError(f"{first}\nif a package brings it, add plugins=[<package>]") from e
        raise UsageError(f"the stored configuration does not fit this border-cli\n{e}") from e
