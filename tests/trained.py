"""Run directories for tests: made without training, and one small complete run that tests copy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from border_cli.agents.dqn.config import DqnConfig
from border_cli.checkpoints import store
from border_cli.checkpoints.contents import (
    BEST,
    CHECKPOINTS,
    ModelDescription,
    SavedModel,
    best_files,
    read_model,
    read_scores,
    read_training,
)
from border_cli.cli.train import main as border_train
from border_cli.config.schema import EnvConfig, TrainConfig
from border_cli.core.spaces import Array, EnvSpec
from border_cli.core.state import State
from border_cli.core.types import Evaluation, ModelInfo
from border_cli.run.directory import write_config
from border_cli.run.summary import record_launch
from tests.real_runs import in_folder

DQN = DqnConfig(hidden=[8])


def describe(env: EnvConfig, spec: EnvSpec, **changes: Any) -> ModelDescription:
    """Return the model description of a run with a small network. changes: other values of the agent's section."""
    return ModelDescription(agent=asdict(DQN) | changes, env=asdict(env), spec=spec)


@dataclass
class Checkpoint:
    """The content of a verified checkpoint. Missing parts are None or empty."""

    path: Path
    opt_steps: int
    model: SavedModel
    training: State | None
    generators: dict[str, Any]
    score: Evaluation | None


def read_checkpoint(path: Path) -> Checkpoint:
    manifest, files = store.read(path)
    generators = json.loads(files.get("generators.json", "{}"))
    score = read_scores(path)[0] if "score" in manifest.parts else None
    return Checkpoint(path, manifest.opt_steps, read_model(path), read_training(path), generators, score)


def save_best(
    folder: Path,
    arrays: Mapping[str, Array],
    model: ModelDescription,
    score: Evaluation,
    regular: Evaluation | None = None,
) -> Path:
    """Write or replaces `folder/best`."""
    files = best_files(model, ModelInfo(score.opt_steps, dict(arrays)), score, regular)
    store.write(folder, BEST, files, score.opt_steps)
    return folder / BEST


def save_model(folder: Path, model: ModelDescription, opt_steps: int) -> Path:
    """Write `folder/best` with the initial weights of a network."""
    from border_cli.agents.dqn.agent import make_policy

    arrays = make_policy(DQN, model.spec, seed=0).model_info().arrays
    return save_best(folder, arrays, model, Evaluation(opt_steps, (1.0,), (1,)))


def save_run(
    run_dir: Path, model: ModelDescription, best: int | None = 20, steps: tuple[int, ...] = ()
) -> str:
    """Write a run with a best model and checkpoints of these opt steps. Returns its id."""
    run_dir.mkdir(parents=True, exist_ok=True)
    env = EnvConfig(**model.env)
    write_config(run_dir, TrainConfig(agent=DQN, env=env))
    for step in steps:
        saved = save_model(run_dir / CHECKPOINTS, model, step)
        saved.rename(saved.with_name(f"step-{step:09d}"))
    if best is not None:
        save_model(run_dir, model, best)
    return record_launch(run_dir, ["agent=dqn"], seed=0)


OPT_STEPS = 40
FILES = (
    *("actors.json", "actors.safetensors", "evaluation.json", "evaluation.safetensors", "generators.json"),
    *("loop.json", "manifest.json", "model.json", "model.safetensors", "replay.json"),
    *(
        "replay.rows-000000000-000000000016.safetensors",
        "replay.safetensors",
        "training.json",
        "training.safetensors",
    ),
)
"""Of the newest checkpoint of `stored_run`; the other one is of half as many opt steps."""
WORDS = (
    *("env=cartpole", "preset=none", "trainer=sync", "agent.hidden=[8]", "agent.batch_size=8"),
    *("buffer.capacity=64", "buffer.n_step=2", "trainer.warmup_period=20", f"trainer.max_opts={OPT_STEPS}"),
    *("trainer.eval_interval=20", "trainer.save_interval=20", "trainer.record_interval=10"),
    *(
        "evaluator.episodes=2",
        "checkpoint.replay=full",
        "recorder.console=none",
        "recorder.tensorboard=false",
    ),
)


def make_stored_run(folder: Path) -> Path:
    """Train a small run in `folder` and remove its provenance, as if somebody else had made it."""
    run = folder / "run"
    with in_folder(folder):
        assert border_train([*WORDS, f"hydra.run.dir='{run}'"]) == 0
    for name in (".lock", "train.log", "provenance.json"):
        (run / name).unlink(missing_ok=True)
    shutil.rmtree(run / ".hydra", ignore_errors=True)
    return run
