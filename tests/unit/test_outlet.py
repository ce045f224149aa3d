"""Streams that go away."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from border_cli.recorders.outlet import Outlet, printable


def broken_pipe() -> io.TextIOWrapper:
    """A stream whose reader has left; nothing is buffered."""
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w", encoding="utf-8")


def test_a_broken_pipe_closes_it_for_good_and_closing_the_stream_does_not_fail() -> None:
    with broken_pipe() as stream:
        outlet = Outlet(lambda: stream)

        def write() -> None:
            stream.write("x" * 100_000)
            stream.flush()

        outlet.attempt(write)
        assert not outlet.open
        outlet.attempt(lambda: pytest.fail("written although closed"))


def test_the_exit_code_survives_a_reader_that_leaves() -> None:
    program = (
        "import sys\n"
        "from border_cli.recorders.plain import PlainView\n"
        "view = PlainView(sys.stdout)\n"
        "sys.stdin.read()\n"  # until the reader of stdout has left
        "for _ in range(3): view.note('x' * 10_000)\n"
        "sys.exit(5)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdout.close()
        process.stdin.close()
        errors = process.stderr.read()
        assert process.wait(timeout=60) == 5
    assert errors.count(b"nothing more is shown") == 1
    assert b"Traceback" not in errors


def test_a_defect_is_not_mistaken_for_a_closed_stream() -> None:
    outlet = Outlet(io.StringIO)
    with pytest.raises(ValueError, match="invalid literal"):
        outlet.attempt(lambda: int("x"))
    assert outlet.open


def test_the_warning_may_come_back_to_the_same_outlet(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    stream.close()
    outlet = Outlet(lambda: stream)
    warnings = []

    def warn(*message: object) -> None:
        warnings.append(message)
        outlet.attempt(lambda: stream.write("again"))

    monkeypatch.setattr("border_cli.recorders.outlet._logger.warning", warn)
    outlet.attempt(lambda: stream.write("first"))
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
def test_printable(text: str, encoding: str, result: str) -> None:
    assert printable(text, encoding) == result
