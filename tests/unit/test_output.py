"""Standard output with a reader that is slow, stops or leaves, and the frame below its lines."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import sys
import threading
from collections.abc import Iterator
from typing import IO

import pytest

from bench.screen_picture import Screen
from border_cli.display.output import Output, output, printable, write_line

LINE = "x" * 1023 + "\n"


@pytest.fixture
def pipe() -> Iterator[tuple[IO[bytes], IO[str]]]:
    """A pipe: (descriptor to read, descriptor to write)."""
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as out, os.fdopen(writer, "w", encoding="utf-8") as target:
        yield out, target


def test_all_lines_arrive_in_order(pipe: tuple[IO[bytes], IO[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    out, target = pipe
    monkeypatch.setattr(sys, "stdout", target)
    monkeypatch.setattr(sys, "stderr", target)
    with output() as first:
        with output() as second:
            assert first is second
        for i in range(100):
            print(i, file=sys.stderr if i % 3 else sys.stdout)
        print("a part,", end="")
        print(" the rest")
        print("no end", end="")
    assert sys.stdout is target and sys.stderr is target
    target.close()
    assert out.read().decode() == "".join(f"{i}\n" for i in range(100)) + "a part, the rest\nno end"


def test_the_finalizer_does_not_flush_a_closed_stream() -> None:
    """From Python 3.13 on it would print the error."""
    stream = io.TextIOWrapper(io.BytesIO())
    console = Output(stream, stream)
    console.close()
    stream.close()
    console.stdout.close()


@pytest.mark.skipif(not hasattr(fcntl, "F_GETPIPE_SZ"), reason="how much a pipe holds is not known here")
def test_d9_a_reader_that_stops_costs_lines_but_no_time(pipe: tuple[IO[bytes], IO[str]]) -> None:
    """Nothing is read until 2,000 lines were written, more than fit. Then a line states how many are missing."""
    out, target = pipe
    console = Output(target, io.StringIO())
    for _ in range(2000):
        console.stdout.write(LINE)
    received: list[bytes] = []

    def read() -> None:
        while b"missing" not in (line := out.readline()) and line:
            received.append(line)
        received.append(line)

    reader = threading.Thread(target=read)
    reader.start()
    while reader.is_alive():  # there is room again as soon as what was waiting is written
        console.stdout.write("later\n")
        reader.join(0.001)
    console.close()
    target.close()
    out.read()
    arrived = sum(line == LINE.encode() for line in received)
    later = sum(line == b"later\n" for line in received)
    missing = int(received[-1].split()[1])
    assert 200 < arrived < 400
    assert arrived + later + missing >= 2000


def test_a_stream_that_is_no_file_is_written_to_as_it_is() -> None:
    """Such as that of a notebook, whose descriptor is that of the kernel: what is written there never reaches the cell."""
    reader, writer = os.pipe()

    class Cell(io.StringIO):
        def fileno(self) -> int:
            return writer

    cell = Cell()
    console = Output(cell, io.StringIO())
    console.stdout.write("said\n")
    console.close()
    os.close(reader)
    os.close(writer)
    assert cell.getvalue() == "said\n"


def test_a_forked_process_has_no_thread_and_writes_by_itself(pipe: tuple[IO[bytes], IO[str]]) -> None:
    out, target = pipe
    console = Output(target, io.StringIO())
    if (pid := os.fork()) == 0:
        print("from the child", file=console.stdout, flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
    console.close()
    target.close()
    assert out.read() == b"from the child\n"


class Terminal:
    """A pseudo-terminal, and an Output on it."""

    def __init__(self) -> None:
        self.reader, writer = pty.openpty()
        self.file = os.fdopen(writer, "w", encoding="utf-8")
        self.output = Output(self.file, self.file)

    def draw(self, text: str) -> None:
        """Return when this has been drawn."""
        drawn = threading.Event()

        def frame() -> str:
            drawn.set()
            return text

        self.output.draw(frame)
        assert drawn.wait(60)

    def shown(self) -> list[str]:
        """The lines on the screen after the end."""
        self.output.close()
        os.write(self.file.fileno(), b"\0")  # the last byte
        received = b""
        while not received.endswith(b"\0"):
            received += os.read(self.reader, 65536)
        screen = Screen()
        screen.feed(received.rstrip(b"\0").decode())
        return screen.text().splitlines()


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    t = Terminal()
    yield t
    os.close(t.reader)
    t.output._thread.join(60)
    t.file.close()


def test_frames_replace_each_other_below_the_lines(terminal: Terminal) -> None:
    terminal.draw("a\nhigh\nframe\n")
    terminal.output.stdout.write("on stdout\n")
    terminal.output.stderr.write("on stderr\n")
    terminal.draw("frame 2\n")
    terminal.draw("frame 3\n")
    assert terminal.shown() == ["on stdout", "on stderr", "frame 3"]


def test_lines_survive_an_error_while_drawing(terminal: Terminal, caplog: pytest.LogCaptureFixture) -> None:
    called = threading.Event()

    def wrong() -> str:
        called.set()
        return str(1 / 0)

    terminal.output.draw(wrong)
    assert called.wait(60)
    terminal.output.stdout.write("a line\n")
    assert terminal.shown() == ["a line"]
    assert caplog.messages == ["nothing is drawn any more, training continues"]


def test_on_a_terminal_lines_break_at_words_and_commands_stay_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Narrow(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "20")
    stream, command = Narrow(), "next: border-train resume=runs/latest"
    write_line(stream, f"one two three-four five trainer.save_interval\n{command}")
    assert stream.getvalue() == f"one two three-four\nfive\ntrainer.save_interval\n{command}\n"


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
