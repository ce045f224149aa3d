"""A pipe whose reader is slow, stops, or leaves."""

from __future__ import annotations

import fcntl
import os
import sys
import threading
from collections.abc import Iterator
from typing import IO

import pytest

from border_cli.recorders import queued
from border_cli.recorders.queued import QueuedStream, may_block, queued_stdout

LINE = "x" * 1023 + "\n"


@pytest.fixture
def pipe() -> Iterator[tuple[IO[bytes], IO[str]]]:
    """Its two ends: (to read from, to write to)."""
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as out, os.fdopen(writer, "w", encoding="utf-8") as target:
        yield out, target


def test_everything_arrives_in_order(pipe: tuple[IO[bytes], IO[str]]) -> None:
    out, target = pipe
    stream = QueuedStream(target)
    for i in range(100):
        print(i, file=stream, flush=True)
    stream.close()
    stream.close()
    target.close()
    assert out.read().decode() == "".join(f"{i}\n" for i in range(100))


@pytest.mark.skipif(not hasattr(fcntl, "F_GETPIPE_SZ"), reason="how much a pipe holds is not known here")
def test_d9_a_reader_that_stops_costs_lines_and_no_time(pipe: tuple[IO[bytes], IO[str]]) -> None:
    """Nothing is read until 2000 lines were written, many more than fit; then a line says how many are missing."""
    out, target = pipe
    stream = QueuedStream(target)
    for n in range(2000):
        stream.write(LINE)
        stream.flush()
        if (
            n == 199
        ):  # the pipe is to be full before the queue is: else room appears between lines that are dropped
            left = 200 * len(LINE) - fcntl.fcntl(target.fileno(), fcntl.F_GETPIPE_SZ)
            with stream._changed:
                assert stream._changed.wait_for(lambda: stream._queued <= max(left, 0), 60)  # noqa: B023
    assert stream._missing > 1000
    missing = stream._missing
    received: list[bytes] = []
    reading = threading.Thread(target=lambda: received.extend(iter(out.readline, b"end\n")))
    reading.start()
    with stream._changed:
        assert stream._changed.wait_for(lambda: not stream._queued, 60)
    stream.write("later\nend\n")
    stream.flush()
    reading.join(60)
    stream.close()
    assert received[-2:] == [
        f"... {missing} lines are missing here: nobody read them in time\n".encode(),
        b"later\n",
    ]
    assert len(received) - 2 + missing == 2000


def test_d9_closing_does_not_wait_for_a_reader_that_takes_nothing(
    pipe: tuple[IO[bytes], IO[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, target = pipe
    monkeypatch.setattr(queued, "_LAST_WAIT_S", 0.01)
    stream = QueuedStream(target)
    stream.write(LINE * 200)
    stream.flush()
    stream.close()
    assert stream.closed and stream._thread.is_alive()
    with pytest.raises(ValueError, match="closed"):
        stream.write("x")
    assert out.read(200 * 1024) == LINE.encode() * 200  # it was not cut short either
    stream._thread.join(60)
    os.close(stream._descriptor)


def test_a_reader_that_left_is_told_by_the_next_write(pipe: tuple[IO[bytes], IO[str]]) -> None:
    out, target = pipe
    out.close()
    stream = QueuedStream(target)
    stream.write("x\n")
    stream.flush()
    stream._thread.join(60)
    with pytest.raises(BrokenPipeError):
        stream.write("y\n")
    stream.close()


def test_what_may_block(pipe: tuple[IO[bytes], IO[str]], tmp_path: object) -> None:
    assert may_block(pipe[1])
    with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123
        assert not may_block(nowhere)
    nowhere.close()
    assert not may_block(nowhere)


def test_stdout_is_replaced_where_it_may_block_and_put_back(
    pipe: tuple[IO[bytes], IO[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, target = pipe
    monkeypatch.setattr(sys, "stdout", target)
    with queued_stdout():
        outer = sys.stdout
        assert isinstance(outer, QueuedStream)
        with queued_stdout():
            assert sys.stdout is outer
        print("said")
    assert sys.stdout is target
    target.close()
    assert out.read() == b"said\n"


def test_a_stdout_that_cannot_block_stays(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout
    with queued_stdout():
        assert sys.stdout is before
