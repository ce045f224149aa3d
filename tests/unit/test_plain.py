"""Lines for anything that is not a terminal."""

from __future__ import annotations

import io
import math

import pytest

from border_cli.core.progress import Progress, View
from border_cli.core.protocols import Recorder
from border_cli.core.record import Record
from border_cli.recorders.plain import SILENCE_S, PlainView


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def started() -> tuple[PlainView, io.StringIO, Clock]:
    stream, clock = io.StringIO(), Clock()
    return PlainView(stream, clock), stream, clock


def test_it_is_a_view_and_a_recorder() -> None:
    view: View = PlainView(io.StringIO())
    recorder: Recorder = PlainView(io.StringIO())
    view.close()
    recorder.close()


def test_one_line_per_record_with_what_is_worth_reading() -> None:
    view, stream, _ = started()
    values = {
        "async/actors_blocked": 0.634,
        "agent/q_mean": 5.0,
        "train/episode_return": 21.375,
        "agent/loss": math.nan,
        "throughput/samples_per_sec": 12_345.6,
    }
    view.write(Record(values, opt_steps=1_500, env_steps=4_000, time=83.9))
    assert stream.getvalue() == (
        "time=0:01:23 opt_steps=1500 env_steps=4000 return=21.4 loss=nan samples/s=12346 actors_blocked=63%\n"
    )


def test_a_record_of_other_things_is_shown_whole() -> None:
    view, stream, _ = started()
    view.write(Record({"time/save_ms": 12.5}))
    assert stream.getvalue() == "time=0:00:00 opt_steps=0 env_steps=0 time/save_ms=12.5\n"


def test_the_first_show_prints_then_only_silence_does() -> None:
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


@pytest.mark.parametrize("what", ["record", "note"])
def test_any_line_breaks_the_silence(what: str) -> None:
    view, stream, clock = started()
    view.show(Progress())
    clock.seconds += SILENCE_S - 1
    view.note("checkpoint saved") if what == "note" else view.write(Record({"agent/loss": 1.0}))
    clock.seconds += 1
    view.show(Progress())
    assert stream.getvalue().count("\n") == 2


@pytest.mark.parametrize(
    "phase", ["starting", "warm-up", "training", "evaluating", "saving", "stopping", "done"]
)
def test_every_phase_is_named(phase: str) -> None:
    view, stream, _ = started()
    view.show(Progress(phase=phase))
    assert f" phase={phase} " in stream.getvalue()


def test_a_progress_line_as_a_whole() -> None:
    view, stream, _ = started()
    view.show(
        Progress(
            "training", 83.0, 15_000, 31_000, max_env_steps=50_000, warmup_period=1_000,
            opt_steps_per_sec=312.4, samples_per_sec=475.0, n_actors=8, actors_alive=8,
        )
    )  # fmt: skip
    assert stream.getvalue() == (
        "time=0:01:23 opt_steps=15000 env_steps=31000 phase=training actors=8/8 "
        "opt_steps/s=312 samples/s=475 done=62% eta=0:00:40\n"
    )


def test_sync_and_warm_up_have_their_own_words() -> None:
    view, stream, _ = started()
    view.show(Progress(phase="warm-up", warmup_period=1_000, asynchronous=False))
    assert stream.getvalue() == ("time=0:00:00 opt_steps=0 env_steps=0 phase=warm-up warmup_period=1000\n")


def test_long_lines_stay_one_line() -> None:
    view, stream, _ = started()
    view.note("x" * 500)
    assert stream.getvalue() == "x" * 500 + "\n"


def test_what_the_encoding_cannot_hold_is_replaced() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", newline="\n")
    PlainView(stream).note("größer \x1b[31m")
    assert raw.getvalue() == b"gr??er  [31m\n"


def test_every_line_is_flushed() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8")
    PlainView(stream).note("here")
    assert raw.getvalue() == b"here\n"


def test_a_closed_stream_makes_it_silent_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    view, stream, _ = started()
    stream.close()
    view.note("a")
    view.write(Record({"agent/loss": 1.0}))
    view.show(Progress())
    view.close()
    assert [record.message for record in caplog.records] == [
        "nothing more is shown, the run goes on: I/O operation on closed file"
    ]


def test_a_record_says_how_many_actors_run_where_some_are_missing() -> None:
    view, stream, _ = started()
    view.show(Progress(n_actors=4, actors_alive=4))
    view.write(Record({"async/actors_alive": 4.0, "agent/loss": 1.0}))
    view.write(Record({"async/actors_alive": 3.0, "agent/loss": 1.0}))
    well, missing = stream.getvalue().splitlines()[1:]
    assert "actors=" not in well
    assert " actors=3/4 loss=1" in missing
