"""Keeps a run: its best model, and checkpoints of all that it has to go on from."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from border_cli.checkpoints import store
from border_cli.checkpoints.contents import (
    CHECKPOINTS,
    ModelDescription,
    block_file,
    encode_arrays,
    save_best,
    save_checkpoint,
)
from border_cli.checkpoints.manifest import FileEntry
from border_cli.config.schema import TrainConfig
from border_cli.core.protocols import Agent, Evaluation, ModelInfo
from border_cli.core.spaces import Array, EnvSpec
from border_cli.core.state import RunState, State

NONFINITE = "nonfinite"
_SKIPPED_KEPT = 3
_logger = logging.getLogger(__name__)


class RunKeeper:
    """Implements `trainers.saving.Keeper` in a run directory.

    A block of the replay that is sealed is written once: later checkpoints give the same file one more name.
    saved: called with the opt step of each checkpoint once it is there.
    """

    def __init__(
        self,
        run_dir: Path,
        config: TrainConfig,
        spec: EnvSpec,
        agent: Agent,
        saved: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._dir = run_dir
        self._agent = agent
        self._keep = config.checkpoint.keep
        self._with_replay = config.checkpoint.replay == "full"
        self._seed = config.seed
        self._saved = saved
        self._model = ModelDescription(
            agent=asdict(config.agent), env=asdict(config.env), spec=spec, plugins=tuple(config.plugins)
        )
        self._sealed: dict[str, tuple[Path, FileEntry]] = {}

    def save_best(self, model: ModelInfo, score: Evaluation, routine: Evaluation | None) -> None:
        """Replace best/."""
        save_best(self._dir, model.arrays, self._model, score, routine)
        _logger.info("new best at opt step %d: %.1f ± %.1f", score.opt_steps, score.mean, score.std)

    def save(self, state: RunState, counters: Mapping[str, object]) -> None:
        """Write checkpoints/step-…/ and drop the oldest."""
        info = self._agent.model_info()
        state = replace(
            state,
            replay=state.replay if self._with_replay else None,
            generators={"seed": self._seed, **state.generators},
        )
        folder, sealed = self._dir / CHECKPOINTS, self._sealed
        path = save_checkpoint(folder, self._model, info, state, counters, self._keep, sealed)
        files = store.read_manifest(path).files
        total, new = (
            sum(entry.bytes for name, entry in files.items() if not (known and name in sealed))
            for known in (False, True)
        )
        _logger.info("checkpoint at opt step %d: %s, %s of it new", info.version, _size(total), _size(new))
        self.know_sealed(path, state.replay)
        self._saved(info.version)

    def know_sealed(self, path: Path, replay: State | None) -> None:
        """From now on, blocks that are sealed in this checkpoint are not written again."""
        entries = store.read_manifest(path).files
        sealed = [] if replay is None else [block_file(block) for block in replay.blocks if block.sealed]
        self._sealed = {name: (path / name, entries[name]) for name in sealed if name in entries}

    def save_skipped(self, opt_steps: int, batch: dict[str, Array]) -> Path | None:
        """Write nonfinite/step-….safetensors, the columns of the batch; None if the run has three, or the disk fails."""
        folder = self._dir / NONFINITE
        path = folder / f"{store.step_name(opt_steps)}.safetensors"
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


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**10:.0f} KiB" if nbytes < 2**20 else f"{nbytes / 2**20:.1f} MiB"
