"""Makes tests/data/format-1: a small complete run whose checkpoints have format_version 1.

It is made once, by the version that wrote this format, and every later version has to read it:
`python -m tests.data.make_format_1`, in the root of the repository.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from border_cli.cli.train import main
from tests.real_runs import in_folder

FORMAT_1 = Path(__file__).parent / "format-1"
OPT_STEPS, ENV_STEPS = 40, 60
_WORDS = (
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
_OF_THE_MACHINE = (".hydra", ".lock", "train.log", "provenance.json")
"""What says where and when it was made."""


def make(folder: Path) -> None:
    """The run, without what belongs to the machine."""
    with tempfile.TemporaryDirectory() as temporary, in_folder(Path(temporary)):
        run = Path(temporary) / "run"
        if main([*_WORDS, f"hydra.run.dir='{run}'"]):
            raise SystemExit("the run has failed")
        for name in _OF_THE_MACHINE:
            path = run / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(run, folder)


if __name__ == "__main__":
    make(FORMAT_1)
