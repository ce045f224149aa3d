"""A plugin: in the process of an evaluator our own code of judging raises, whatever the environment does."""

from __future__ import annotations

import multiprocessing
from typing import Any

from border_cli.evaluation.episodes import EpisodeRunner


def _raise(*_: Any) -> None:
    try:
        raise KeyError("what came first")
    except KeyError as e:
        raise RuntimeError("a defect in judging") from e


if multiprocessing.current_process().name == "evaluator":
    EpisodeRunner.evaluate = _raise  # type: ignore[assignment]
