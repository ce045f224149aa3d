"""Writes the checkpoints of a run and its best model, and copes with a disk that fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic

from rich.filesize import decimal

from border_cli.checkpoints import contents, store
from border_cli.checkpoints.contents import BEST, CHECKPOINTS, REPLAY, Files, ModelDescription
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


class CheckpointManager:
    """Saves checkpoints/step-…/ and best/ of one run.

    Each write is tried twice. After a failed save training continues, and as many of the following saves are skipped as
    saves have failed in a row; the third failure in a row raises. A best model that cannot be written is kept in memory
    and written with the next checkpoint. A block of the replay that is full is written once: later checkpoints hard-link
    its file.

    Attributes:
        saved_at: opt step of the newest checkpoint, 0 before the first.
    """

    def __init__(
        self,
        run_dir: Path,
        config: TrainConfig,
        spec: EnvSpec,
        agent: Agent,
        telemetry: Telemetry,
        on_saved: Callable[[int], None] = lambda _: None,
        resumed_from: Path | None = None,
    ) -> None:
        """on_saved: called with the opt step of each new checkpoint · resumed_from: the checkpoint to resume from."""
        self._dir = run_dir
        self._agent = agent
        self._telemetry = telemetry
        self._keep = config.checkpoint.keep
        self._with_replay = config.checkpoint.replay == "full"
        self._seed = config.seed
        self._on_saved = on_saved
        self._resumed_from = resumed_from
        self._model = ModelDescription(
            agent=asdict(config.agent), env=asdict(config.env), spec=spec, plugins=tuple(config.plugins)
        )
        self._written_blocks: dict[str, tuple[Path, store.FileEntry]] = {}
        self._pending_best: tuple[int, Files] | None = None
        self._failures = 0  # in a row
        self._skips = 0  # intervals still to be skipped
        self.saved_at = 0

    def skip_interval(self) -> bool:
        """Whether to skip the save of this interval, because of failures before it. To be asked once per interval."""
        skip = self._skips > 0
        self._skips -= skip
        return skip

    def save_best(self, model: ModelInfo, score: Evaluation, regular: Evaluation | None = None) -> None:
        """Replace best/ by this model: now or, if the disk fails, with the next checkpoint.

        score, regular: see `contents.best_files`. The arrays are copied.
        """
        began = monotonic()
        self._pending_best = (score.opt_steps, contents.best_files(self._model, model, score, regular))
        try:
            _twice(self._write_best)
        except CheckpointIOError as e:
            self._telemetry.failed_saves += 1
            _logger.warning("%s; the model is kept in memory for the next checkpoint", first_line(e))
        self._telemetry.excluded_s += monotonic() - began

    def save(self, state: RunState, last: bool = False) -> None:
        """Write a checkpoint of this state, after the best model if that is still pending.

        last: no save follows. Raises CheckpointIOError where the run has to end.
        """
        began = monotonic()

        def write() -> None:
            self._write_best()  # first: no checkpoint mentions a best model that is not on the disk
            self._write_checkpoint(state)

        try:
            _twice(write)
        except CheckpointIOError as e:
            self._count_failure(e, last)
        else:
            self.saved_at = int(state.loop["limiter"]["opt_steps"])
            self._failures = self._skips = 0
            self._telemetry.took("time/save_ms", monotonic() - began)
        finally:
            self._telemetry.excluded_s += monotonic() - began

    def save_pending_best(self) -> None:
        """At the end of a run: write the best model if that is still pending. Raises CheckpointIOError."""
        try:
            _twice(self._write_best)
        except CheckpointIOError as e:
            self._count_failure(e, last=True)

    def replay_loaded(self, replay: State) -> None:
        """Note that this replay was loaded from `resumed_from`: its full blocks are on the disk already."""
        if self._resumed_from is not None and self._with_replay:
            self._note_blocks(self._resumed_from, store.read_manifest(self._resumed_from), replay)

    def _write_best(self) -> None:
        if self._pending_best is not None:
            opt_steps, files = self._pending_best
            store.write(self._dir, BEST, files, opt_steps)
            self._pending_best = None

    def _write_checkpoint(self, state: RunState) -> None:
        info = self._agent.model_info()
        replay = state.replay if self._with_replay else None
        state = replace(state, replay=replay, generators={"seed": self._seed, **state.generators})
        files = contents.checkpoint_files(self._model, info, state)
        # A block that was full and has lost its oldest rows since is not full now: it is written again.
        links = {name: self._written_blocks[name] for name in _full(replay) if name in self._written_blocks}
        for name, link in links.items():
            files[name] = store.LinkTo(*link, files[name])
        folder = self._dir / CHECKPOINTS
        path = store.write(folder, store.step_name(info.version), files, info.version)
        try:
            store.prune(folder, self._keep, by_size=(REPLAY,))
        except CheckpointIOError as e:  # the new checkpoint is there; one more old one does no harm
            _logger.warning("%s", e)
        try:
            manifest = store.read_manifest(path)
        except store.InvalidCheckpointError as e:  # it verified a moment ago, so the disk fails now
            raise CheckpointIOError(str(e)) from e
        self._note_blocks(path, manifest, replay)
        sizes = {name: entry.bytes for name, entry in manifest.files.items()}
        total, new = sum(sizes.values()), sum(sizes[name] for name in sizes.keys() - links.keys())
        _logger.info(
            "checkpoint at opt step %d: %s, %s of it new", info.version, decimal(total), decimal(new)
        )
        self._on_saved(info.version)

    def _note_blocks(self, path: Path, manifest: store.Manifest, replay: State | None) -> None:
        """Later checkpoints link the full blocks of this one instead of writing them again."""
        files = manifest.files
        self._written_blocks = {name: (path / name, files[name]) for name in _full(replay) if name in files}

    def _count_failure(self, error: CheckpointIOError, last: bool) -> None:
        self._telemetry.failed_saves += 1
        self._failures += 1
        if last or self._failures >= MAX_FAILURES:
            why = "it was the last save of the run" if last else f"{MAX_FAILURES} saves in a row have failed"
            raise CheckpointIOError(
                f"{first_line(error)}\n{why}; the checkpoints before it are unchanged\n"
                "allowed: a disk that has room and can be written to; then resume=<run> continues from the newest"
            ) from error
        self._skips = self._failures
        skipped = "next save is" if self._skips == 1 else f"next {self._skips} saves are"
        _logger.warning("%s; training continues, and the %s skipped", first_line(error), skipped)


def _twice(write: Callable[[], None]) -> None:
    try:
        write()
    except CheckpointIOError:
        write()


def _full(replay: State | None) -> list[str]:
    """Files of the blocks that are full, and never change as long as they are."""
    return [] if replay is None else [contents.block_file(block) for block in replay.blocks if block.sealed]
