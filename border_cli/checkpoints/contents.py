"""What a checkpoint holds, part by part, and reading it back as typed data.

| part | files | content |
| --- | --- | --- |
| model | model.safetensors, model.json | what acting needs: arrays, description of agent and environment |
| training | training.safetensors, training.json | all of the agent |
| counters | counters.json | opt steps, env steps, episodes, best score, for people |
| loop | loop.json | limiter, intervals under way, scores, positions of the recorders |
| generators | generators.json | states of the learner's generators |
| actors | actors.safetensors, actors.json | seats; under sync and lockstep also streams, environments, chunks |
| waiting | waiting.safetensors, waiting.json | models that wait for their evaluation |
| replay | replay.safetensors, replay.json, replay.rows-….safetensors | rows, in blocks that are written once when sealed |
| score | score.json | of best/: the evaluation that made it the best, and the routine one that it confirmed |

Nothing in a checkpoint depends on clock, host, path or process.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from border_cli.checkpoints import store
from border_cli.checkpoints.manifest import FileEntry, Manifest, part_of
from border_cli.core import json_text
from border_cli.core.errors import CheckpointIOError
from border_cli.core.protocols import Evaluation, ModelInfo
from border_cli.core.spaces import ActionSpec, Array, EnvSpec, ObsLeaf
from border_cli.core.state import Block, RunState, State

_logger = logging.getLogger(__name__)
BEST = "best"
CHECKPOINTS = "checkpoints"
REPLAY = "replay"
_READ = ("model", "training", "counters", "generators", "loop", "score")
_RESUMED = ("training", "waiting", "loop", "generators", "actors")
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
    training: State | None = None
    counters: Mapping[str, Any] = field(default_factory=dict)
    generators: Mapping[str, Any] = field(default_factory=dict)
    loop: Mapping[str, Any] = field(default_factory=dict)
    score: Evaluation | None = None


Files = dict[str, store.Content]

# -- writing ------------------------------------------------------------


def save_checkpoint(
    folder: Path,
    model: ModelDescription,
    info: ModelInfo,
    state: RunState,
    counters: Mapping[str, Any],
    keep: int,
    links: Mapping[str, tuple[Path, FileEntry]] = MappingProxyType({}),
) -> Path:
    """Write `folder/step-<opt step>`, then keep the newest `keep` there, as far as the disk lets us. Returns its path.

    counters: JSON values for people; a score that is not finite is written as null · links: files that an earlier
    checkpoint has, with the very content of this state. Raises CheckpointIOError when the disk fails.
    """
    files = run_files(model, info, state, counters)
    for name in files.keys() & links.keys():
        files[name] = store.LinkTo(*links[name], files[name])
    path = store.write(folder, store.step_name(info.version), files, info.version)
    try:
        store.prune(folder, keep, by_size=(REPLAY,))
    except CheckpointIOError as e:  # the checkpoint is there; an older one more is no loss
        _logger.warning("%s", e)
    return path


def run_files(
    model: ModelDescription, info: ModelInfo, state: RunState, counters: Mapping[str, Any]
) -> Files:
    """The files of a checkpoint, by name. counters: JSON values; a score that is not finite is written as null."""
    files: Files = {
        **_model_files(info, model, info.version),
        **_state_files("training", state.agent),
        **_state_files("actors", state.actors),
        **_state_files("waiting", state.waiting),
        "counters.json": json_text.encode(json_text.finite_or_null(counters)),
        "loop.json": json_text.encode(json_text.finite_or_null(state.loop)),
        "generators.json": json_text.encode(dict(state.generators)),
    }
    if state.replay is not None:
        files |= _state_files(REPLAY, state.replay)
    return files


def block_file(block: Block) -> str:
    """Name of the file of one block of the replay."""
    return f"{REPLAY}.{block.name}.safetensors"


def _state_files(part: str, state: State) -> Files:
    files: Files = {
        f"{part}.safetensors": encode_arrays(state.arrays),
        f"{part}.json": json_text.encode(json_text.finite_or_null(state.values)),
    }
    return files | {block_file(block): _block_writer(block) for block in state.blocks}


def _block_writer(block: Block) -> store.Writer:
    """Makes the block's bytes when they are written, so that a large replay is never in memory twice."""

    def write(sink: store.Sink) -> None:
        sink.write(encode_arrays(block.arrays()))

    return write


def save_best(
    run_dir: Path,
    arrays: Mapping[str, Array],
    model: ModelDescription,
    score: Evaluation,
    routine: Evaluation | None = None,
) -> Path:
    """Write or replace `run_dir/best`: the model that this evaluation judged. Returns its path.

    routine: where score is a confirmation, the evaluation that it confirmed.
    Raises CheckpointIOError when the disk fails.
    """
    return store.write(run_dir, BEST, best_files(arrays, model, score, routine), score.opt_steps)


def best_files(
    arrays: Mapping[str, Array], model: ModelDescription, score: Evaluation, routine: Evaluation | None = None
) -> Files:
    """The files of best/, as bytes that what happens to the arrays does not change any more."""
    info = ModelInfo(score.opt_steps, dict(arrays))
    return {
        **_model_files(info, model, score.opt_steps),
        "score.json": json_text.encode(json_text.finite_or_null(_best_data(score, routine))),
    }


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


def _best_data(score: Evaluation, routine: Evaluation | None) -> dict[str, Any]:
    """What counts stands at the top, the routine evaluation before a confirmation under a key of its own."""
    data = _score_data(score)
    return data if routine is None else data | {"routine": _score_data(routine)}


def _score_data(score: Evaluation) -> dict[str, Any]:
    return score.to_json() | {
        "episodes": len(score.returns),
        "mean": score.mean,
        "std": score.std,
        "min": min(score.returns),
        "max": max(score.returns),
    }


# -- reading ------------------------------------------------------------


def read_model(path: Path) -> SavedModel:
    """The model of a checkpoint or of best/. Raises InvalidCheckpointError.

    Acting needs no replay: of that, only the size is looked at.
    """
    manifest, files = store.read(path, ("model",), by_size=(REPLAY,))
    return _Reader(path, files).model(manifest.opt_steps)


def read_run_state(path: Path, with_replay: bool) -> RunState:
    """All that a run goes on from. Blocks of the replay are read, and their sums checked, when they are asked for.

    Raises InvalidCheckpointError.
    """
    manifest, files = store.read(path, _RESUMED, by_size=(REPLAY,))
    reader = _Reader(path, files)
    return RunState(
        agent=reader.state("training"),
        replay=_read_replay(path, manifest) if with_replay and REPLAY in manifest.parts else None,
        actors=reader.state("actors"),
        waiting=reader.state("waiting"),
        loop=reader.json("loop.json"),
        generators=reader.json("generators.json"),
    )


def _read_replay(path: Path, manifest: Manifest) -> State:
    head = (f"{REPLAY}.json", f"{REPLAY}.safetensors")
    missing = [name for name in head if name not in manifest.files]
    if missing:
        raise store.InvalidCheckpointError(f"{path} has no {missing[0]}")
    files = {name: store.read_file(path, name, manifest.files[name]) for name in head}
    blocks = tuple(
        Block(name.split(".")[1], True, functools.partial(_read_block, path, name, entry))
        for name, entry in sorted(manifest.files.items())
        if part_of(name) == REPLAY and name not in head
    )
    state = _Reader(path, files).state(REPLAY)
    return State(state.arrays, state.values, blocks)


def _read_block(path: Path, name: str, entry: FileEntry) -> dict[str, Array]:
    return _Reader(path, {name: store.read_file(path, name, entry)}).arrays(name)


def read_checkpoint(path: Path) -> Checkpoint:
    """Every part that is there but those that only a run going on needs. Raises InvalidCheckpointError."""
    manifest, files = store.read(path, _READ)
    reader = _Reader(path, files)
    return Checkpoint(
        path,
        manifest.opt_steps,
        reader.model(manifest.opt_steps),
        reader.state("training") if reader.has("training") else None,
        reader.json("counters.json") if reader.has("counters") else {},
        reader.json("generators.json") if reader.has("generators") else {},
        reader.json("loop.json") if reader.has("loop") else {},
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
        return SavedModel(description, ModelInfo(opt_steps, self.arrays("model.safetensors")))

    def state(self, part: str) -> State:
        """A part that is a state, but for its blocks."""
        return State(self.arrays(f"{part}.safetensors"), self.json(f"{part}.json"))

    def score(self) -> Evaluation:
        data = self.json("score.json")
        try:
            return Evaluation.from_json(data)
        except ValueError as e:
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

    def arrays(self, name: str) -> dict[str, Array]:
        """The arrays in a file."""
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
    if (
        not isinstance(leaf.stack, int)
        or leaf.stack < 1
        or (leaf.stack > 1 and leaf.shape[:1] != (leaf.stack,))
    ):
        raise ValueError(f"{leaf.name} is no stack of {leaf.stack}")
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
