"""The plain output, for anything that is not a terminal."""

from __future__ import annotations

import io
import math

from border_cli.core.metrics import Record
from border_cli.core.progress import Progress
from border_cli.display.views import SILENCE_S, PlainView


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def started() -> tuple[PlainView, io.StringIO, Clock]:
    stream, clock = io.StringIO(), Clock()
    return PlainView(stream, clock), stream, clock


FULL = Progress(
    "training", 83.0, 15_000, 31_000, max_env_steps=50_000, warmup_period=1_000, opt_steps_per_sec=312.4,
    samples_per_sec=12_345.6, n_actors=8, actors_alive=7, recent_returns=[21.0, 22.0],
    evaluations=[(14_000, 487.25)], eval_infos={"is_success": 0.25},
)  # fmt: skip


def test_a_record_is_one_line_of_when_it_was_taken() -> None:
    view, stream, _ = started()
    view.write(Record({"time/save_ms": 12.5}))
    view.show(FULL)
    stream.truncate(0), stream.seek(0)
    view.write(Record({"agent/loss": math.nan}, opt_steps=1_500, env_steps=4_000, time=83.9))
    assert stream.getvalue() == (
        "time=0:01:23 opt_steps=1500 env_steps=4000 phase=training actors=7/8 return=21.5 eval=487.2 "
        "eval/is_success=0.25 loss=nan opt_steps/s=312.4 samples/s=12346 done=62% eta=0:00:01\n"
    )


def test_progress_is_printed_at_first_and_then_after_a_silence() -> None:
    view, stream, clock = started()
    for _ in range(3):
        view.show(Progress(phase="warm-up"))
    assert stream.getvalue().count("\n") == 1
    clock.seconds += SILENCE_S - 0.01
    view.show(Progress(phase="training"))
    assert "training" not in stream.getvalue()
    clock.seconds += 0.01
    view.show(Progress(phase="training"))
    assert stream.getvalue().count("\n") == 2
    assert SILENCE_S < 30
    # any line restarts the interval
    for line, write in enumerate(
        (lambda: view.note("saved"), lambda: view.write(Record({"agent/loss": 1.0}))), 3
    ):
        clock.seconds += SILENCE_S - 1
        write()
        clock.seconds += SILENCE_S - 1
        view.show(Progress())
        assert stream.getvalue().count("\n") == line


def test_sync_and_warm_up_have_their_own_fields() -> None:
    view, stream, _ = started()
    view.show(Progress(phase="warm-up", warmup_period=1_000, asynchronous=False))
    assert stream.getvalue() == (
        "time=0:00:00 opt_steps=0 env_steps=0 phase=warm-up warmup_period=1000 opt_steps/s=- samples/s=-\n"
    )


def test_a_note_is_one_line_in_the_encoding_of_the_stream_and_flushed() -> None:
    raw = io.BytesIO()
    view = PlainView(io.TextIOWrapper(io.BufferedWriter(raw), encoding="ascii", newline="\n"))
    view.note("größer \x1b[31m" + "x" * 500)
    assert raw.getvalue() == b"gr??er  [31m" + b"x" * 500 + b"\n"
