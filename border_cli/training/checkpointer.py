"""Writes the checkpoints of a run and its best model, and copes with a disk that fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic

from rich.filesize import decimal

from border_cli.checkpoints import contents, store
from border_cli.checkpoints.contents import BEST, CHECKPOINTS, REPLAY, ModelDescription
from border_cli.config.schema import TrainConfig
from border_cli.core.errors import CheckpointIOError, first_line
from border_cli.core.protocols import Agent
from border_cli.core.spaces import EnvSpec
from border_cli.core.state import RunState, State
from border_cli.core.types import Evaluation, ModelInfo
from border_cli.training.telemetry import Telemetry

MAX_FAILURES = 3
"""This many failed saves in a row end the run."""
_logger = logging.getLogger(__name__)


@dataclass(eq=False)
class CheckpointManager:
    """Saves checkpoints/step-…/ and best/ of one run.

    Each write is tried twice. After a failed checkpoint training continues; the third failure in a row, or a failure of the
    last write of the run, raises CheckpointIOError. A best model that cannot be written is a warning until the run ends. A
    block of the replay that is full is written once: later checkpoints hard-link its file.

    Args:
        on_saved: called with the opt step of each new checkpoint.
        resumed_from: the checkpoint to resume from.

    Attributes:
        saved_at: opt step of the newest checkpoint, 0 before the first.
    """

    run_dir: Path
    config: TrainConfig
    spec: EnvSpec
    agent: Agent
    telemetry: Telemetry
    on_saved: Callable[[int], None] = lambda _: None
    resumed_from: Path | None = None

    def __post_init__(self) -> None:
        c = self.config
        self._with_replay = c.checkpoint.replay == "full"
        self._model = ModelDescription(asdict(c.agent), asdict(c.env), self.spec, tuple(c.plugins))
        self._written_blocks: dict[str, store.Link] = {}
        self._unwritten_best: Callable[[], object] | None = None
        self._failures = 0  # in a row
        self.saved_at = 0

    def save_best(self, model: ModelInfo, score: Evaluation, regular: Evaluation | None = None) -> None:
        """Replace best/ by this model. score, regular: see `contents.best_files`; regular: given when the run ends."""
        files = contents.best_files(self._model, model, score, regular)
        self._unwritten_best = partial(store.write, self.run_dir, BEST, files, score.opt_steps)
        if regular is not None:
            self.save_unwritten_best()
            return
        try:
            self._twice(self._unwritten_best)
            self._unwritten_best = None
        except CheckpointIOError as e:
            _logger.warning("%s; the next best model, or the end of the run, replaces it", first_line(e))

    def save_unwritten_best(self) -> None:
        """At the end of a run: write the best model if that has failed so far. Raises CheckpointIOError."""
        write, self._unwritten_best = self._unwritten_best, None
        if write is not None:
            self._attempt(write, last=True)

    def save(self, state: RunState, last: bool = False) -> None:
        """Write a checkpoint of this state. last: no save follows."""
        began = monotonic()
        if self._attempt(partial(self._write_checkpoint, state), last):
            self.saved_at = int(state.loop["limiter"]["opt_steps"])
            self.telemetry.took("time/save_ms", monotonic() - began)

    def _attempt(self, write: Callable[[], object], last: bool) -> bool:
        """Write, and return whether that succeeded. Raises CheckpointIOError, see the class."""
        try:
            self._twice(write)
        except CheckpointIOError as e:
            self._failures += 1
            if not last and self._failures < MAX_FAILURES:
                _logger.warning("%s; training continues", first_line(e))
                return False
            why = "it was the last save of the run" if last else f"{MAX_FAILURES} saves in a row have failed"
            raise CheckpointIOError(
                f"{first_line(e)}\n{why}; the checkpoints before it are unchanged\n"
                "allowed: a disk that has room and can be written to; then resume=<run> continues from the newest"
            ) from e
        self._failures = 0
        return True

    def _twice(self, write: Callable[[], object]) -> None:
        """Write, and once more if that fails."""
        began = monotonic()
        try:
            try:
                write()
            except CheckpointIOError:
                write()
        except CheckpointIOError:
            self.telemetry.failed_saves += 1
            raise
        finally:
            self.telemetry.excluded_s += monotonic() - began

    def replay_loaded(self, replay: State) -> None:
        """Note that this replay was loaded from `resumed_from`: its full blocks are on the disk already."""
        if self.resumed_from is not None and self._with_replay:
            self._note_blocks(self.resumed_from, store.read_manifest(self.resumed_from), replay)

    def _write_checkpoint(self, state: RunState) -> None:
        info = self.agent.model_info()
        replay = state.replay if self._with_replay else None
        state = replace(state, replay=replay, generators={"seed": self.config.seed, **state.generators})
        files = contents.checkpoint_files(self._model, info, state)
        # A block that was full and has lost its oldest rows since is not full now: it is written again.
        links = {name: self._written_blocks[name] for name in _full(replay) if name in self._written_blocks}
        path = self.run_dir / CHECKPOINTS / store.step_name(info.version)
        manifest = store.write(path.parent, path.name, files, info.version, links)
        try:
            store.prune(path.parent, self.config.checkpoint.keep, by_size=(REPLAY,))
        except CheckpointIOError as e:  # the new checkpoint is there; one more old one does no harm
            _logger.warning("%s", e)
        self._note_blocks(path, manifest, replay)
        total = sum(entry.bytes for entry in manifest.files.values())
        new = total - sum(manifest.files[name].bytes for name in links)
        _logger.info(
            "checkpoint at opt step %d: %s, %s of it new", info.version, decimal(total), decimal(new)
        )
        self.on_saved(info.version)

    def _note_blocks(self, path: Path, manifest: store.Manifest, replay: State | None) -> None:
        """Later checkpoints link the full blocks of this one instead of writing them again."""
        files = manifest.files
        self._written_blocks = {name: (path / name, files[name]) for name in _full(replay) if name in files}


def _full(replay: State | None) -> list[str]:
    """Files of the blocks that are full, and never change as long as they are."""
    return [] if replay is None else [contents.block_file(block) for block in replay.blocks if block.sealed]
