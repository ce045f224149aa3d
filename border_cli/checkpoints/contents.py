"""What a checkpoint contains, part by part, and how each part is written and read.

| part | files | content |
| --- | --- | --- |
| model | model.safetensors, model.json | what acting needs: weights, agent, environment, spaces |
| training | training.safetensors, training.json | the whole agent: networks, targets, optimisers, schedules |
| loop | loop.json | limiter, pending stages, scores, positions of the recorders |
| generators | generators.json | states of the learner's random generators |
| actors | actors.safetensors, actors.json | counts per actor; under sync and lockstep also streams, environments, chunks |
| evaluation | evaluation.safetensors, evaluation.json | scores, the best model, models that wait for their evaluation |
| replay | replay.safetensors, replay.json, replay.rows-….safetensors | rows, in blocks that are written once when full |
| score | score.json | only in best/: the evaluation that made the model the best |

Nothing in a checkpoint depends on the clock, the host, a path or a process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from safetensors import numpy as safetensors

from border_cli.checkpoints import store
from border_cli.core.spaces import Array, EnvSpec
from border_cli.core.state import Block, RunState, State, from_json, to_json
from border_cli.core.types import Evaluation, ModelInfo

BEST = "best"
CHECKPOINTS = "checkpoints"
REPLAY = "replay"

Files = dict[str, store.Content]


@dataclass(frozen=True)
class ModelDescription:
    """What is needed to act with a model's arrays.

    agent, env: those sections of the configuration, as plain data · spec: the spaces · plugins: modules that register
    the agent; empty for border-cli's own agents.
    """

    agent: Mapping[str, Any]
    env: Mapping[str, Any]
    spec: EnvSpec
    plugins: tuple[str, ...] = ()


@dataclass(frozen=True)
class SavedModel:
    """A model with its description. The version of `info` is the opt step at which it was taken."""

    description: ModelDescription
    info: ModelInfo


# -- writing ------------------------------------------------------------


def checkpoint_files(model: ModelDescription, info: ModelInfo, state: RunState) -> Files:
    """The files of a checkpoint, by name."""
    files = agent_files(model, info, state.agent)
    files |= _state_files("actors", state.actors) | _state_files("evaluation", state.evaluation)
    if state.replay is not None:
        files |= _state_files(REPLAY, state.replay)
    files["loop.json"] = to_json(state.loop)
    files["generators.json"] = to_json(state.generators)
    return files


def agent_files(model: ModelDescription, info: ModelInfo, training: State) -> Files:
    """The files of an agent: its model, and all of its state."""
    return _model_files(model, info) | _state_files("training", training)


def best_files(
    model: ModelDescription, info: ModelInfo, score: Evaluation, regular: Evaluation | None = None
) -> Files:
    """The files of best/, as bytes: later changes of the arrays do not affect them.

    score: the evaluation that counts · regular: if that is of fresh episodes, which confirm the model, the evaluation on
    the regular seeds.
    """
    data = score_data(score) | {"confirmed": regular is not None}
    if regular is not None:
        data["regular"] = score_data(regular)
    return _model_files(model, info) | {"score.json": to_json(data)}


def _model_files(model: ModelDescription, info: ModelInfo) -> Files:
    description = {
        "agent": dict(model.agent),
        "env": dict(model.env),
        "spec": model.spec.to_json(),
        "plugins": list(model.plugins),
        "opt_steps": info.version,
    }
    return {"model.safetensors": encode_arrays(info.arrays), "model.json": to_json(description)}


def encode_arrays(arrays: Mapping[str, Array]) -> bytes:
    """The content of a safetensors file."""
    # No metadata: its order in the file is not fixed. np.asarray keeps arrays without dimensions.
    return cast(bytes, safetensors.save({name: np.asarray(a, order="C") for name, a in arrays.items()}))


def block_file(block: Block) -> str:
    """Name of the file of one block of the replay."""
    return f"{REPLAY}.{block.name}.safetensors"


def _state_files(part: str, state: State) -> Files:
    files: Files = {
        f"{part}.safetensors": encode_arrays(state.arrays),
        f"{part}.json": to_json(state.values),
    }
    return files | {
        block_file(block): lambda block=block: encode_arrays(block.arrays()) for block in state.blocks
    }


def score_data(score: Evaluation) -> dict[str, Any]:
    """An evaluation as plain data, with its statistics first."""
    statistics = {"episodes": len(score.returns), "mean": score.mean, "std": score.std}
    return statistics | {"min": min(score.returns), "max": max(score.returns)} | score.to_json()


# -- reading ------------------------------------------------------------


def read_model(path: Path) -> SavedModel:
    """The model of a checkpoint, or of best/. The replay is not verified. Raises InvalidCheckpointError."""
    manifest, files = store.read(path, ("model",), by_size=(REPLAY,))
    with store.verifying(path / "model.json"):
        data = _json(path, files, "model.json")
        if data["opt_steps"] != manifest.opt_steps:
            raise ValueError(f"it is of opt step {data['opt_steps']}, its manifest of {manifest.opt_steps}")
        agent, env, plugins = dict(data["agent"]), dict(data["env"]), tuple(map(str, data["plugins"]))
        description = ModelDescription(agent, env, EnvSpec.from_json(data["spec"]), plugins)
    arrays = _arrays(path, files, "model.safetensors")
    return SavedModel(description, ModelInfo(manifest.opt_steps, arrays))


def read_training(path: Path) -> State | None:
    """The whole agent of a checkpoint, None where there is only a model. Raises InvalidCheckpointError."""
    manifest, files = store.read(path, ("training",), by_size=(REPLAY,))
    return _state(path, files, "training") if "training" in manifest.parts else None


def read_scores(path: Path) -> tuple[Evaluation, Evaluation | None]:
    """Score and regular evaluation of the model in best/, as `best_files` got them. Raises InvalidCheckpointError."""
    _, files = store.read(path, ("score",))
    with store.verifying(path / "score.json"):
        data = _json(path, files, "score.json")
        regular = Evaluation.from_json(data["regular"]) if "regular" in data else None
        return Evaluation.from_json(data), regular


def read_run_state(path: Path, with_replay: bool) -> RunState:
    """Everything that a resumed run needs. Blocks of the replay are read, and verified again, when they are used.

    Raises InvalidCheckpointError.
    """
    manifest, files = store.read(path, ("training", "evaluation", "loop", "generators", "actors"), (REPLAY,))
    replay = None
    if with_replay and REPLAY in manifest.parts:
        entries = {name: entry for name, entry in manifest.files.items() if store.part_of(name) == REPLAY}
        names = (f"{REPLAY}.json", f"{REPLAY}.safetensors")
        heads = {name: store.read_file(path, name, entries.pop(name)) for name in names if name in entries}

        def read_block(name: str) -> dict[str, Array]:
            return _arrays(path, {name: store.read_file(path, name, entries[name])}, name)

        blocks = (Block(name.split(".")[1], True, partial(read_block, name)) for name in sorted(entries))
        replay = replace(_state(path, heads, REPLAY), blocks=tuple(blocks))
    agent, actors, evaluation = (_state(path, files, part) for part in ("training", "actors", "evaluation"))
    loop, generators = _json(path, files, "loop.json"), _json(path, files, "generators.json")
    return RunState(agent, replay, actors, evaluation, loop, generators)


def _state(path: Path, files: Mapping[str, bytes], part: str) -> State:
    return State(_arrays(path, files, f"{part}.safetensors"), _json(path, files, f"{part}.json"))


def _json(path: Path, files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """The object in a file of the checkpoint. Raises InvalidCheckpointError."""
    with store.verifying(path / name):
        data = from_json(files[name])
        if not isinstance(data, dict):
            raise ValueError("it does not contain an object")
        return data


def _arrays(path: Path, files: Mapping[str, bytes], name: str) -> dict[str, Array]:
    """The arrays in a file of the checkpoint, as copies that can be written to. Raises InvalidCheckpointError."""
    with store.verifying(path / name):
        return {key: array.copy() for key, array in safetensors.load(files[name]).items()}
