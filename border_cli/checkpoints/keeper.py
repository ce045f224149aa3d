"""Keeps a run: its best model, and checkpoints of all that it has to go on from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from border_cli.checkpoints import store
from border_cli.checkpoints.contents import (
    BEST,
    CHECKPOINTS,
    Files,
    ModelDescription,
    best_files,
    block_file,
    encode_arrays,
    save_checkpoint,
)
from border_cli.checkpoints.manifest import FileEntry, Manifest
from border_cli.config.schema import TrainConfig
from border_cli.core.errors import CheckpointIOError
from border_cli.core.protocols import Agent, Evaluation, ModelInfo
from border_cli.core.spaces import Array, EnvSpec
from border_cli.core.state import RunState, State
from border_cli.runtime.files import replace_file

NONFINITE = "nonfinite"
_SKIPPED_KEPT = 3
_logger = logging.getLogger(__name__)


class RunKeeper:
    """Implements `trainers.saving.Keeper` in a run directory.

    A block of the replay that is sealed is written once: later checkpoints give the same file one more name.
    saved: called with the opt step of each checkpoint once it is there. before: the checkpoint that the run goes on
    from.
    """

    def __init__(
        self,
        run_dir: Path,
        config: TrainConfig,
        spec: EnvSpec,
        agent: Agent,
        saved: Callable[[int], None] = lambda _: None,
        before: Path | None = None,
    ) -> None:
        self._dir = run_dir
        self._agent = agent
        self._keep = config.checkpoint.keep
        self._with_replay = config.checkpoint.replay == "full"
        self._seed = config.seed
        self._saved = saved
        self._before = before
        self._model = ModelDescription(
            agent=asdict(config.agent), env=asdict(config.env), spec=spec, plugins=tuple(config.plugins)
        )
        self._on_disk: dict[str, tuple[Path, FileEntry]] = {}
        self._best: tuple[int, Files] | None = None

    @property
    def holds_best(self) -> bool:
        """Whether there is a best model that is not written yet."""
        return self._best is not None

    def hold_best(self, model: ModelInfo, score: Evaluation, routine: Evaluation | None) -> None:
        """Take the bytes of this model, to be written by `write_best`."""
        _logger.info("new best at opt step %d: %.1f ± %.1f", score.opt_steps, score.mean, score.std)
        self._best = (score.opt_steps, best_files(model.arrays, self._model, score, routine))

    def write_best(self) -> None:
        """Replace best/ by the model that is held, if there is one. Raises CheckpointIOError; then it stays held."""
        if self._best is not None:
            opt_steps, files = self._best
            store.write(self._dir, BEST, files, opt_steps)
            self._best = None

    def save(self, state: RunState, counters: Mapping[str, object]) -> None:
        """Write checkpoints/step-…/ and drop the oldest. Raises CheckpointIOError."""
        info = self._agent.model_info()
        state = replace(
            state,
            replay=state.replay if self._with_replay else None,
            generators={"seed": self._seed, **state.generators},
        )
        folder = self._dir / CHECKPOINTS
        # What was sealed then and is not now has lost its oldest rows since: it is written as it is.
        links = {name: self._on_disk[name] for name in _sealed(state.replay) if name in self._on_disk}
        path = save_checkpoint(folder, self._model, info, state, counters, self._keep, links)
        try:
            self._note(path, store.read_manifest(path), state.replay, links)
        except store.InvalidCheckpointError as e:  # it verified a moment ago, so the disk has begun to fail
            raise CheckpointIOError(str(e)) from e
        self._saved(info.version)

    def _note(self, path: Path, manifest: Manifest, replay: State | None, links: Container[str]) -> None:
        """From now on, blocks that are sealed in this checkpoint are not written again."""
        new = sum(entry.bytes for name, entry in manifest.files.items() if name not in links)
        total = _size(manifest.total_bytes)
        _logger.info("checkpoint at opt step %d: %s, %s of it new", manifest.opt_steps, total, _size(new))
        self._know(path, manifest, replay)

    def know_loaded(self, replay: State) -> None:
        """What is sealed in the replay that was loaded from `before` has its files there."""
        if self._before is not None and self._with_replay:
            self._know(self._before, store.read_manifest(self._before), replay)

    def _know(self, path: Path, manifest: Manifest, replay: State | None) -> None:
        files = manifest.files
        self._on_disk = {name: (path / name, files[name]) for name in _sealed(replay) if name in files}

    def save_skipped(self, opt_steps: int, batch: dict[str, Array]) -> Path | None:
        """Write nonfinite/step-….safetensors, the columns of the batch; None if the run has three, or the disk fails."""
        folder = self._dir / NONFINITE
        path = folder / f"{store.step_name(opt_steps)}.safetensors"
        try:
            folder.mkdir(exist_ok=True)
            if len(list(folder.glob("*.safetensors"))) >= _SKIPPED_KEPT:
                return None
            replace_file(path, encode_arrays(batch))
        except OSError as e:  # the run can go on without it
            _logger.warning("%s cannot be written: %s", path, e.strerror or e)
            return None
        return path


def _sealed(replay: State | None) -> list[str]:
    """Files of the blocks that are whole, and never change as long as they are."""
    return [] if replay is None else [block_file(block) for block in replay.blocks if block.sealed]


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**10:.0f} KiB" if nbytes < 2**20 else f"{nbytes / 2**20:.1f} MiB"
