"""Standard output with a reader that is slow, stops or leaves."""

from __future__ import annotations

import fcntl
import io
import os
import sys
import threading
from collections.abc import Iterator
from typing import IO

import pytest

from border_cli.display import stdout
from border_cli.display.stdout import NonblockingStream, SafeStream, may_block, nonblocking_stdout, printable

LINE = "x" * 1023 + "\n"


@pytest.fixture
def pipe() -> Iterator[tuple[IO[bytes], IO[str]]]:
    """A pipe: (descriptor to read, descriptor to write)."""
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as out, os.fdopen(writer, "w", encoding="utf-8") as target:
        yield out, target


def test_all_lines_arrive_in_order(pipe: tuple[IO[bytes], IO[str]]) -> None:
    out, target = pipe
    stream = NonblockingStream(target)
    for i in range(100):
        print(i, file=stream, flush=True)
    stream.close()
    stream.close()
    target.close()
    assert out.read().decode() == "".join(f"{i}\n" for i in range(100))


@pytest.mark.skipif(not hasattr(fcntl, "F_GETPIPE_SZ"), reason="how much a pipe holds is not known here")
def test_d9_a_reader_that_stops_costs_lines_but_no_time(pipe: tuple[IO[bytes], IO[str]]) -> None:
    """Nothing is read until 2,000 lines were written, more than fit. Then a line states how many are missing."""
    out, target = pipe
    stream = NonblockingStream(target)
    for n in range(2000):
        stream.write(LINE)
        stream.flush()
        if (
            n == 199
        ):  # the pipe must be full before the queue is, otherwise lines between dropped ones find room
            left = 200 * len(LINE) - fcntl.fcntl(target.fileno(), fcntl.F_GETPIPE_SZ)
            with stream._changed:
                assert stream._changed.wait_for(lambda: stream._queued <= max(left, 0), 60)  # noqa: B023
    missing = stream._missing
    assert missing > 1000
    received: list[bytes] = []
    reading = threading.Thread(target=lambda: received.extend(iter(out.readline, b"end\n")))
    reading.start()
    with stream._changed:
        assert stream._changed.wait_for(lambda: not stream._queued, 60)
    stream.write("later\nend\n")
    stream.flush()
    reading.join(60)
    stream.close()
    gap = f"... {missing} lines are missing here: the reader was too slow\n"
    assert received[-2:] == [gap.encode(), b"later\n"]
    assert len(received) - 2 + missing == 2000


def test_d9_closing_does_not_wait_for_a_reader_that_takes_nothing(
    pipe: tuple[IO[bytes], IO[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, target = pipe
    monkeypatch.setattr(stdout, "_LAST_WAIT_S", 0.01)
    stream = NonblockingStream(target)
    stream.write(LINE * 200)
    stream.flush()
    stream.close()
    assert stream.closed and stream._thread.is_alive()
    with pytest.raises(ValueError, match="closed"):
        stream.write("x")
    assert out.read(200 * 1024) == LINE.encode() * 200  # the line is complete
    stream._thread.join(60)
    os.close(stream._descriptor)


def test_after_the_reader_left_the_next_write_raises(pipe: tuple[IO[bytes], IO[str]]) -> None:
    out, target = pipe
    out.close()
    stream = NonblockingStream(target)
    stream.write("x\n")
    stream.flush()
    stream._thread.join(60)
    with pytest.raises(BrokenPipeError):
        stream.write("y\n")
    stream.close()


def test_streams_that_may_block_are_detected(pipe: tuple[IO[bytes], IO[str]], tmp_path: object) -> None:
    assert may_block(pipe[1])
    with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123
        assert not may_block(nowhere)
    nowhere.close()
    assert not may_block(nowhere)


def test_stdout_is_replaced_if_it_may_block_and_restored(
    pipe: tuple[IO[bytes], IO[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, target = pipe
    before = sys.stdout
    with nonblocking_stdout():
        assert sys.stdout is before  # the stdout of pytest, which cannot block
    monkeypatch.setattr(sys, "stdout", target)
    with nonblocking_stdout():
        outer = sys.stdout
        assert isinstance(outer, NonblockingStream)
        with nonblocking_stdout():
            assert sys.stdout is outer
        print("said")
    assert sys.stdout is target
    target.close()
    assert out.read() == b"said\n"


def broken_pipe() -> io.TextIOWrapper:
    """An unbuffered stream whose reader has left."""
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w", encoding="utf-8")


def test_after_a_broken_pipe_the_stream_stays_closed_and_close_does_not_fail() -> None:
    with broken_pipe() as stream:
        safe = SafeStream(lambda: stream)
        safe.attempt(lambda: print("x" * 100_000, file=stream, flush=True))
        assert not safe.open
        safe.attempt(lambda: pytest.fail("written although closed"))


def test_another_error_is_not_mistaken_for_a_closed_stream() -> None:
    safe = SafeStream(io.StringIO)
    with pytest.raises(ValueError, match="invalid literal"):
        safe.attempt(lambda: int("x"))
    assert safe.open


def test_the_warning_may_be_written_to_the_same_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    stream.close()
    safe = SafeStream(lambda: stream)
    warnings = []

    def warn(*message: object) -> None:
        warnings.append(message)
        safe.attempt(lambda: stream.write("again"))

    monkeypatch.setattr("border_cli.display.stdout._logger.warning", warn)
    safe.attempt(lambda: stream.write("first"))
    assert len(warnings) == 1


@pytest.mark.parametrize(
    ("text", "encoding", "result"),
    [
        ("plain\nlines", "utf-8", "plain\nlines"),
        ("a\x1b[2Jb\tc\r", "utf-8", "a [2Jb c "),
        ("ÄΩ█", "latin-1", "Ä??"),
        ("\ud800", "utf-8", " "),
    ],
)
def test_text_is_made_printable_in_the_encoding(text: str, encoding: str, result: str) -> None:
    assert printable(text, encoding) == result


def test_the_stdout_of_a_notebook_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its descriptor is that of the kernel, and what is written there never reaches the cell."""
    reader, writer = os.pipe()

    class CellStream(io.TextIOBase):
        def fileno(self) -> int:
            return writer

    cell = CellStream()
    monkeypatch.setattr(sys, "stdout", cell)
    with nonblocking_stdout():
        assert sys.stdout is cell
    os.close(reader)
    os.close(writer)
