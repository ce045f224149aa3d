"""What a checkpoint holds, part by part, and reading it back as typed data.

| part | files | content |
| --- | --- | --- |
| model | model.safetensors, model.json | what acting needs: arrays, description of agent and environment |
| training | training.safetensors, training.json | all of the agent |
| counters | counters.json | opt steps, env steps, episodes, best score |
| generators | generators.json | states of the learner's generators |
| score | score.json | of best/: the evaluation that made it the best |

Nothing in a checkpoint depends on clock, host, path or process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from border_cli.checkpoints import store
from border_cli.checkpoints.manifest import part_of
from border_cli.core import json_text
from border_cli.core.protocols import Agent, AgentState, Evaluation, ModelInfo
from border_cli.core.spaces import ActionSpec, Array, EnvSpec, ObsLeaf

BEST = "best"
CHECKPOINTS = "checkpoints"
_KINDS = ("box", "discrete", "multi_discrete", "multi_binary")


@dataclass(frozen=True)
class ModelDescription:
    """What has to be known to act with a model's arrays.

    agent, env: those sections of the configuration, as plain data · spec: the spaces · plugins: modules that
    registered the agent, empty for those of ours.
    """

    agent: Mapping[str, Any]
    env: Mapping[str, Any]
    spec: EnvSpec
    plugins: tuple[str, ...] = ()


@dataclass(frozen=True)
class SavedModel:
    """A model and what has to be known to act with it. The version of `info` is its opt step."""

    description: ModelDescription
    info: ModelInfo


@dataclass(frozen=True)
class Checkpoint:
    """All of a checkpoint that verified; None or empty where it has no such part."""

    path: Path
    opt_steps: int
    model: SavedModel
    training: AgentState | None = None
    counters: Mapping[str, Any] = field(default_factory=dict)
    generators: Mapping[str, Any] = field(default_factory=dict)
    score: Evaluation | None = None


# -- writing ------------------------------------------------------------


def save_checkpoint(
    folder: Path,
    agent: Agent,
    model: ModelDescription,
    counters: Mapping[str, Any],
    generators: Mapping[str, Any],
    keep: int,
) -> Path:
    """Write `folder/step-<opt step>`, then keep the newest `keep` there. Returns its path.

    counters, generators: JSON values; a score that is not finite is written as null. Raises CheckpointIOError when
    the disk fails.
    """
    state = agent.state()
    files: dict[str, bytes | store.Writer] = {
        **_model_files(agent.model_info(), model, agent.opt_steps),
        "training.safetensors": encode_arrays(state.tensors),
        "training.json": json_text.encode(state.values),
        "counters.json": json_text.encode(json_text.finite_or_null(counters)),
        "generators.json": json_text.encode(dict(generators)),
    }
    path = store.write(folder, store.step_name(agent.opt_steps), files, agent.opt_steps)
    store.prune(folder, keep)
    return path


def save_best(run_dir: Path, arrays: Mapping[str, Array], model: ModelDescription, score: Evaluation) -> Path:
    """Write or replace `run_dir/best`: the model that this evaluation judged. Returns its path.

    Raises CheckpointIOError when the disk fails.
    """
    info = ModelInfo(score.opt_steps, dict(arrays))
    files: dict[str, bytes | store.Writer] = {
        **_model_files(info, model, score.opt_steps),
        "score.json": json_text.encode(json_text.finite_or_null(_score_data(score))),
    }
    return store.write(run_dir, BEST, files, score.opt_steps)


def _model_files(info: ModelInfo, model: ModelDescription, opt_steps: int) -> dict[str, bytes]:
    description = {
        "agent": dict(model.agent),
        "env": dict(model.env),
        "spec": model.spec.to_json(),
        "plugins": list(model.plugins),
        "opt_steps": opt_steps,
    }
    return {"model.safetensors": encode_arrays(info.arrays), "model.json": json_text.encode(description)}


def encode_arrays(arrays: Mapping[str, Array]) -> bytes:
    """The content of a safetensors file."""
    # No metadata: its order in the file is not fixed. asarray keeps arrays without dimensions as they are.
    encoded: bytes = safetensors.save({name: np.asarray(a, order="C") for name, a in arrays.items()})
    return encoded


def _score_data(score: Evaluation) -> dict[str, Any]:
    return {
        "opt_steps": score.opt_steps,
        "episodes": len(score.returns),
        "mean": score.mean,
        "std": score.std,
        "min": min(score.returns),
        "max": max(score.returns),
        "returns": list(score.returns),
        "lengths": list(score.lengths),
    }


# -- reading ------------------------------------------------------------


def read_model(path: Path) -> SavedModel:
    """The model of a checkpoint or of best/. Raises InvalidCheckpointError."""
    manifest, files = store.read(path, ("model",))
    return _Reader(path, files).model(manifest.opt_steps)


def load_training_state(path: Path) -> AgentState:
    """All of the agent, for `Agent.load_state`. Raises InvalidCheckpointError; best/ has no such part."""
    _, files = store.read(path, ("training",))
    return _Reader(path, files).training()


def read_checkpoint(path: Path) -> Checkpoint:
    """Every part that is there. Raises InvalidCheckpointError."""
    manifest, files = store.read(path)
    reader = _Reader(path, files)
    return Checkpoint(
        path,
        manifest.opt_steps,
        reader.model(manifest.opt_steps),
        reader.training() if reader.has("training") else None,
        reader.json("counters.json") if reader.has("counters") else {},
        reader.json("generators.json") if reader.has("generators") else {},
        reader.score() if reader.has("score") else None,
    )


class _Reader:
    """Files of one checkpoint as typed data. Their checksums fit; what they say may still be nonsense."""

    def __init__(self, path: Path, files: Mapping[str, bytes]) -> None:
        self._path = path
        self._files = files
        self._parts = {part_of(name) for name in files}

    def has(self, part: str) -> bool:
        """Whether the checkpoint has this part."""
        return part in self._parts

    def model(self, opt_steps: int) -> SavedModel:
        data = self.json("model.json")
        try:
            description = _description(data)
            if data["opt_steps"] != opt_steps:
                raise ValueError(f"it is of opt step {data['opt_steps']}, its manifest of {opt_steps}")
        except (KeyError, TypeError, ValueError) as e:
            raise self._invalid("model.json", e) from e
        return SavedModel(description, ModelInfo(opt_steps, self._arrays("model.safetensors")))

    def training(self) -> AgentState:
        return AgentState(self._arrays("training.safetensors"), self.json("training.json"))

    def score(self) -> Evaluation:
        data = self.json("score.json")
        try:
            returns = tuple(math.nan if value is None else float(value) for value in data["returns"])
            return Evaluation(int(data["opt_steps"]), returns, tuple(int(n) for n in data["lengths"]))
        except (KeyError, TypeError, ValueError) as e:
            raise self._invalid("score.json", e) from e

    def json(self, name: str) -> dict[str, Any]:
        """The object in a file."""
        try:
            data = json_text.decode(self._content(name))
        except ValueError as e:
            raise self._invalid(name, e) from e
        if not isinstance(data, dict):
            raise self._invalid(name, ValueError("it holds no JSON object"))
        return data

    def _arrays(self, name: str) -> dict[str, Array]:
        try:
            # Copies: the arrays are views of the file's bytes, which cannot be written to.
            return {key: array.copy() for key, array in safetensors.load(self._content(name)).items()}
        except (SafetensorError, KeyError, TypeError, ValueError) as e:
            raise self._invalid(name, e) from e

    def _content(self, name: str) -> bytes:
        if name not in self._files:
            raise store.InvalidCheckpointError(f"{self._path} has no {name}")
        return self._files[name]

    def _invalid(self, name: str, error: Exception) -> store.InvalidCheckpointError:
        detail = (str(error).splitlines() or [type(error).__name__])[0]
        return store.InvalidCheckpointError(f"{self._path / name} cannot be read: {detail}")


def _description(data: Mapping[str, Any]) -> ModelDescription:
    """Raises KeyError, TypeError or ValueError for what is no description."""
    agent, env, plugins = data["agent"], data["env"], data["plugins"]
    if not isinstance(agent, dict) or not isinstance(env, dict):
        raise ValueError("agent and env are no sections")
    if not isinstance(plugins, list) or not all(isinstance(name, str) for name in plugins):
        raise ValueError("plugins is no list of names")
    spec = EnvSpec.from_json(data["spec"])
    for leaf in spec.obs.leaves:
        _check_leaf(leaf)
    _check_action(spec.action)
    return ModelDescription(agent, env, spec, tuple(plugins))


def _check_leaf(leaf: ObsLeaf) -> None:
    _check_shape(leaf.shape)
    _check_dtype(leaf.dtype)
    if leaf.kind not in _KINDS or not isinstance(leaf.name, str):
        raise ValueError(f"there is no observation of kind {leaf.kind!r}")
    if not all(isinstance(key, str | int) for key in leaf.path):
        raise ValueError(f"the path of {leaf.name} is none")
    if not all(isinstance(n, int) for n in (*leaf.categories, *leaf.start)):
        raise ValueError(f"the categories of {leaf.name} are no counts")


def _check_action(action: ActionSpec) -> None:
    _check_shape(action.shape)
    _check_dtype(action.dtype)
    if (
        action.kind not in ("discrete", "box")
        or not isinstance(action.n, int)
        or not isinstance(action.start, int)
    ):
        raise ValueError(f"there is no action of kind {action.kind!r}")
    if not all(isinstance(bound, int | float) for bound in (*action.low, *action.high)):
        raise ValueError("the bounds of the action are no numbers")


def _check_shape(shape: tuple[int, ...]) -> None:
    if not all(isinstance(n, int) and n >= 0 for n in shape):
        raise ValueError(f"{shape} is no shape")


def _check_dtype(name: str) -> None:
    if not isinstance(name, str) or np.dtype(name).kind not in "biuf":
        raise ValueError(f"{name!r} is no dtype of numbers")
