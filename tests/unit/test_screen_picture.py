"""Following a terminal's output, and the picture made of it."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from bench.screen_picture import HEIGHT, WIDTH, Screen, export, picture, run_in_terminal

UP_AND_ERASE = "\x1b[1A\x1b[2K"


def screen_of(*outputs: str) -> Screen:
    screen = Screen()
    for output in outputs:
        screen.feed(output)
    return screen


def test_lines_and_erased_lines() -> None:
    assert screen_of("one\r\ntwo\r\nthree\r\x1b[2K", UP_AND_ERASE, "new").text() == "one\nnew"


def test_output_may_be_cut_anywhere() -> None:
    whole = f"\x1b[?25la\r\n\x1b[1;31mb\x1b[0m\r\x1b[2K{UP_AND_ERASE}c\x1b[?25h"
    assert screen_of(*whole).lines == screen_of(whole).lines == ["c", ""]


def test_the_first_line_is_the_end_of_the_way_up() -> None:
    assert screen_of("a\x1b[9Ab").text() == "ab"


def test_colours_stay_in_the_lines() -> None:
    screen = screen_of("\x1b[1mbold\x1b[0m")
    assert screen.lines == ["\x1b[1mbold\x1b[0m"]
    assert screen.text() == "bold"


def test_the_last_whole_picture_of_the_training_phase_is_kept() -> None:
    def drawn(text: str) -> str:
        return f"╭─╮\r\n{text}\r\n╰─╯"

    erased = "\r\x1b[2K" + 2 * UP_AND_ERASE
    first, second, last = drawn("training 1"), drawn("training 2"), drawn("saving")
    lines = picture(iter(["training soon\r\n", first, erased, second[:8], second[8:], erased, last, "\r\n"]))
    assert lines == ["training soon", "╭─╮", "training 2", "╰─╯"]


def test_a_run_that_draws_nothing_says_what_it_said() -> None:
    with pytest.raises(SystemExit, match="no such agent"):
        picture(iter(["error: no such agent\r\n"]))


def test_a_command_sees_a_terminal_of_the_size_of_the_picture(tmp_path: Path) -> None:
    program = "import os, sys; print(sys.stdout.isatty(), *os.get_terminal_size(), os.getcwd())"
    screen = screen_of(*run_in_terminal([sys.executable, "-c", program], tmp_path))
    assert screen.text().replace("\n", "") == f"True {WIDTH} {HEIGHT} {tmp_path}"


def test_the_picture_is_svg_with_the_text_in_it(tmp_path: Path) -> None:
    path = tmp_path / "docs" / "screen.svg"
    export(["above", "\x1b[1;32mtraining\x1b[0m"], path, "border-train agent=dqn")
    again = path.read_text(encoding="utf-8")
    texts = [text for element in ET.fromstring(again).iter() if (text := element.text)]
    assert {"above", "training"} <= set(texts)
    export(["above", "\x1b[1;32mtraining\x1b[0m"], path, "border-train agent=dqn")
    assert path.read_text(encoding="utf-8") == again
