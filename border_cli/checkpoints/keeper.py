"""Keeps a run: its best model, and checkpoints of the whole learner."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path

from border_cli.checkpoints.contents import CHECKPOINTS, ModelDescription, save_best, save_checkpoint
from border_cli.config.schema import TrainConfig
from border_cli.core.protocols import Agent, Evaluation, ModelInfo, ReplayBuffer
from border_cli.core.spaces import EnvSpec

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

    def save_best(self, model: ModelInfo, score: Evaluation, routine: Evaluation | None) -> None:
        """Replace best/."""
        save_best(self._dir, model.arrays, self._model, score, routine)
        _logger.info("new best at opt step %d: %.1f ± %.1f", score.opt_steps, score.mean, score.std)

    def save(self, counters: dict[str, object]) -> None:
        """Write checkpoints/step-…/ and drop the oldest."""
        generators: dict[str, object] = {
            "seed": self._seed,
            "replay": self._buffer.generator_state(),
            "exploration": self._agent.generator_state(),
        }
        _logger.info("checkpoint at opt step %s", counters["opt_steps"])
        save_checkpoint(self._dir / CHECKPOINTS, self._agent, self._model, counters, generators, self._keep)
