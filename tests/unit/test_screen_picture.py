"""The emulated terminal of the README's picture, and the picture."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from bench.screen_picture import HEIGHT, WIDTH, Screen, export, picture, run_in_terminal

UP_AND_ERASE = "\x1b[1A\x1b[2K"


def test_the_last_complete_picture_of_the_training_phase_is_used() -> None:
    def drawn(text: str) -> str:
        return f"╭─╮\r\n{text}\r\n╰─╯"

    erased = "\r\x1b[2K" + 2 * UP_AND_ERASE
    first, second, last = drawn("training 1"), drawn("training 2"), drawn("saving")
    lines = picture(iter(["training soon\r\n", first, erased, second[:8], second[8:], erased, last, "\r\n"]))
    assert lines == ["training soon", "╭─╮", "training 2", "╰─╯"]


def test_the_error_of_a_run_without_a_picture_has_its_output() -> None:
    with pytest.raises(SystemExit, match="no such agent"):
        picture(iter(["error: no such agent\r\n"]))


def test_the_command_gets_a_terminal_of_the_size_of_the_picture(tmp_path: Path) -> None:
    program = "import os, sys; print(sys.stdout.isatty(), *os.get_terminal_size(), os.getcwd())"
    screen = Screen()
    for output in run_in_terminal([sys.executable, "-c", program], tmp_path):
        screen.feed(output)
    assert screen.text().replace("\n", "") == f"True {WIDTH} {HEIGHT} {tmp_path}"


def test_the_picture_is_svg_that_contains_the_text(tmp_path: Path) -> None:
    written = []
    for _ in range(2):
        export(["above", "\x1b[1;32mtraining\x1b[0m"], tmp_path / "docs" / "screen.svg", "border-train")
        written.append((tmp_path / "docs" / "screen.svg").read_text(encoding="utf-8"))
    assert written[0] == written[1]
    assert {"above", "training"} <= {element.text for element in ET.fromstring(written[0]).iter()}
