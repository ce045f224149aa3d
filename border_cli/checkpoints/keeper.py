"""Keeps a run: its best model, and checkpoints of the whole learner."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import asdict
from pathlib import Path

from border_cli.checkpoints.contents import (
    CHECKPOINTS,
    ModelDescription,
    encode_arrays,
    save_best,
    save_checkpoint,
)
from border_cli.checkpoints.store import step_name
from border_cli.config.schema import TrainConfig
from border_cli.core.protocols import Agent, Evaluation, ReplayBuffer
from border_cli.core.spaces import Array, EnvSpec

NONFINITE = "nonfinite"
_SKIPPED_KEPT = 3
_logger = logging.getLogger(__name__)


class RunKeeper:
    """Implements `trainers.loop.Keeper` in a run directory."""

    def __init__(
        self, run_dir: Path, config: TrainConfig, spec: EnvSpec, agent: Agent, buffer: ReplayBuffer
    ) -> None:
        self._dir = run_dir
        self._agent = agent
        self._buffer = buffer
        self._keep = config.checkpoint.keep
        self._seed = config.seed
        self._model = ModelDescription(
            agent=asdict(config.agent), env=asdict(config.env), spec=spec, plugins=tuple(config.plugins)
        )

    def save_best(self, agent: Agent, evaluation: Evaluation) -> None:
        """Replace best/."""
        _logger.info(
            "new best at opt step %d: %.1f ± %.1f", evaluation.opt_steps, evaluation.mean, evaluation.std
        )
        save_best(self._dir, agent.model_info().arrays, self._model, evaluation)

    def save(self, counters: dict[str, object]) -> None:
        """Write checkpoints/step-…/ and drop the oldest."""
        generators: dict[str, object] = {
            "seed": self._seed,
            "replay": self._buffer.generator_state(),
            "exploration": self._agent.generator_state(),
        }
        _logger.info("checkpoint at opt step %s", counters["opt_steps"])
        save_checkpoint(self._dir / CHECKPOINTS, self._agent, self._model, counters, generators, self._keep)

    def save_skipped(self, opt_steps: int, batch: dict[str, Array]) -> Path | None:
        """Write nonfinite/step-….safetensors, the columns of the batch; None if the run has three, or the disk fails."""
        folder = self._dir / NONFINITE
        path = folder / f"{step_name(opt_steps)}.safetensors"
        part = path.with_suffix(".part")
        try:
            folder.mkdir(exist_ok=True)
            if len(list(folder.glob("*.safetensors"))) >= _SKIPPED_KEPT:
                return None
            part.write_bytes(encode_arrays(batch))
            part.replace(path)
        except OSError as e:  # the run can go on without it
            _logger.warning("%s cannot be written: %s", path, e.strerror or e)
            with contextlib.suppress(OSError):
                part.unlink()
            return None
        return path
