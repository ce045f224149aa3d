"""A small complete run, made once per test session. Tests of damaged and hostile run directories copy it."""

from __future__ import annotations

import shutil
from pathlib import Path

from border_cli.cli.train import main
from tests.real_runs import in_folder

OPT_STEPS, ENV_STEPS = 40, 60
FILES = (
    *("actors.json", "actors.safetensors", "generators.json", "loop.json", "manifest.json"),
    *("model.json", "model.safetensors", "replay.json", "replay.rows-000000000.safetensors"),
    *(
        "replay.safetensors",
        "training.json",
        "training.safetensors",
        "evaluation.json",
        "evaluation.safetensors",
    ),
)
"""Of its newest checkpoint; the other one is of half as many opt steps."""
WORDS = (
    "env=cartpole",
    "preset=none",
    "trainer=sync",
    "agent.hidden=[8]",
    "agent.batch_size=8",
    "buffer.capacity=64",
    "buffer.n_step=2",
    "trainer.warmup_period=20",
    f"trainer.max_opts={OPT_STEPS}",
    "trainer.eval_interval=20",
    "trainer.save_interval=20",
    "trainer.record_interval=10",
    "evaluator.episodes=2",
    "checkpoint.replay=full",
    "recorder.console=none",
    "recorder.tensorboard=false",
)


def make(folder: Path) -> Path:
    """Train it in `folder` and remove its provenance, as if somebody else had made it."""
    run = folder / "run"
    with in_folder(folder):
        assert main([*WORDS, f"hydra.run.dir='{run}'"]) == 0
    for name in (".lock", "train.log", "provenance.json"):
        (run / name).unlink(missing_ok=True)
    shutil.rmtree(run / ".hydra", ignore_errors=True)
    return run
