"""A run on anything that is not a terminal: one line per record, and a sign of life in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import IO

from border_cli.core.progress import ENDED, Progress
from border_cli.core.record import Record
from border_cli.recorders import figures
from border_cli.recorders.budget import first_to_end
from border_cli.recorders.outlet import Outlet, printable

SILENCE_S = 25.0
"""A line comes after so long without one [s]: nobody waits 30 s then, even where `show` is called late."""

_Format = Callable[[float], str]
_COLUMNS: dict[str, tuple[str, _Format]] = {
    "train/episode_return": ("return", figures.number),
    "eval/return_mean": ("eval", figures.number),
    "eval/return_std": ("eval_std", figures.number),
    "agent/loss": ("loss", figures.number),
    "throughput/opt_steps_per_sec": ("opt_steps/s", figures.rate),
    "throughput/samples_per_sec": ("samples/s", figures.rate),
    "throughput/samples_per_opt_step": ("ratio", figures.number),
    "async/actors_blocked": ("actors_blocked", figures.share),
    "async/learner_blocked": ("learner_blocked", figures.share),
    "async/policy_lag_mean": ("lag", figures.number),
}
"""The metrics worth a place in one line, in this order; all others are in metrics.jsonl."""


class PlainView:
    """A `View` and a `Recorder` that writes lines of `key=value` words to a stream, each flushed at once.

    Lines are never wrapped. A stream that is closed or broken makes it silent.
    now: a clock in seconds that never goes back.
    """

    def __init__(self, stream: IO[str], now: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._outlet = Outlet(lambda: stream)
        self._now = now
        self._progress: Progress | None = None
        self._due = now()  # the first `show` prints: it tells that the run has begun

    def show(self, progress: Progress) -> None:
        """A line on where the run stands, if nothing was printed for SILENCE_S."""
        self._progress = progress
        if self._now() < self._due:
            return
        self._words(_progress_words(progress))

    def note(self, message: str) -> None:
        """The message, each of its lines as one."""
        self._line([message])

    def write(self, record: Record) -> None:
        """One line for a record: when it was taken, then the metrics worth reading, else all it has."""
        words = [
            f"time={figures.duration(record.time)}",
            f"opt_steps={record.opt_steps}",
            f"env_steps={record.env_steps}",
        ]
        self._words(words + self._missing_words(record) + _record_words(record))

    def positions(self) -> dict[str, int]:
        """None of it lasts."""
        return {}

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Nothing to release: the stream belongs to the caller."""

    def _missing_words(self, record: Record) -> list[str]:
        """How many actors run, where that is fewer than were asked for."""
        p, alive = self._progress, record.values.get("async/actors_alive")
        return [f"actors={alive:.0f}/{p.n_actors}"] if p and alive is not None and alive < p.n_actors else []

    def _words(self, words: list[str]) -> None:
        """Figures without the commas that are for tables: a line is read by programs too."""
        self._line([word.replace(",", "") for word in words])

    def _line(self, words: list[str]) -> None:
        self._due = self._now() + SILENCE_S
        text = printable(" ".join(words), getattr(self._stream, "encoding", None) or "utf-8")
        self._outlet.attempt(lambda: self._print(text))

    def _print(self, text: str) -> None:
        self._stream.write(f"{text}\n")
        self._stream.flush()


def _record_words(record: Record) -> list[str]:
    chosen = [
        f"{short}={shown(record.values[name])}"
        for name, (short, shown) in _COLUMNS.items()
        if name in record.values
    ]
    return chosen or [f"{name}={figures.number(value)}" for name, value in record.values.items()]


def _progress_words(p: Progress) -> list[str]:
    words = [f"time={figures.duration(p.seconds)}", f"opt_steps={p.opt_steps}", f"env_steps={p.env_steps}"]
    words.append(f"phase={p.phase}")
    if p.asynchronous:
        words.append(f"actors={p.actors_alive}/{p.n_actors}")
    if p.phase == "warm-up":
        words.append(f"warmup_period={p.warmup_period}")
    for name, value in (("opt_steps/s", p.opt_steps_per_sec), ("samples/s", p.samples_per_sec)):
        if value is not None:
            words.append(f"{name}={figures.rate(value)}")
    budget = first_to_end(p)
    if budget is not None:
        words.append(f"done={figures.share(budget.fraction)}")
    if budget is not None and p.phase not in ENDED:
        words.append(f"eta={figures.duration(budget.eta_s)}")
    return words
