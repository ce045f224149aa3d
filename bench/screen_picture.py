"""The picture in the README: a real run in a terminal of its own, and its screen as SVG.

    python -m bench.screen_picture [docs/screen.svg [ARG…]]

Runs `border-train ARG…` under a pseudo-terminal, follows what it draws, and keeps the last whole picture of
the phase "training". The default arguments are those of `make train`.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH, HEIGHT = 88, 30
PATH = Path("docs/screen.svg")
ARGS = ("agent=dqn", "env=cartpole")
_PHASE = "training"
_BOTTOM = "╯"
"""The last character of a whole picture."""
_CONTROLS = re.compile(r"(\x1b\[\d*A|\x1b\[2K|\x1b\[\?25[hl]|\r|\n)")
_CUT_SHORT = re.compile(r"\x1b(\[[0-9;?]*)?\Z")


class Screen:
    """The lines of a terminal that only grows downwards, colours included.

    Knows of a terminal what a live view uses of one: new line, line start, cursor up, erase line.
    """

    def __init__(self) -> None:
        self.lines = [""]
        self._row = 0
        self._rest = ""

    def feed(self, output: str) -> None:
        """Process the next output, which may be cut anywhere."""
        output = self._rest + output
        cut = _CUT_SHORT.search(output)
        self._rest = cut[0] if cut else ""
        for piece in _CONTROLS.split(output[: len(output) - len(self._rest)]):
            self._take(piece)

    def text(self) -> str:
        """Return the lines without colours and without trailing empty lines."""
        return "\n".join(Text.from_ansi(line).plain for line in self.lines).rstrip()

    def _take(self, piece: str) -> None:
        if piece == "\n":
            self._row += 1
            if self._row == len(self.lines):
                self.lines.append("")
        elif piece == "\x1b[2K":
            self.lines[self._row] = ""
        elif piece.startswith("\x1b[") and piece.endswith("A"):
            self._row = max(0, self._row - int(piece[2:-1] or 1))
        elif not _CONTROLS.fullmatch(piece):
            self.lines[self._row] += piece


def export(lines: Sequence[str], path: Path, title: str) -> None:
    """Write the last lines of a screen, as many as the terminal has, as SVG."""
    console = Console(
        record=True, file=StringIO(), width=WIDTH, force_terminal=True, color_system="truecolor"
    )
    for line in lines[-HEIGHT:]:
        console.print(Text.from_ansi(line), soft_wrap=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A fixed id instead of a hash of the content, so that pictures differ only where the screens do.
    console.save_svg(str(path), title=title, unique_id="screen")


def picture(outputs: Iterator[str]) -> list[str]:
    """Return the lines of the last complete picture of the training phase. Raises SystemExit if there is none."""
    screen, best = Screen(), list[str]()
    for output in outputs:
        screen.feed(output)
        shown = screen.text()
        if shown.endswith(_BOTTOM) and _PHASE in shown[shown.rindex("╭") :]:
            best = [line for line in screen.lines if line]
    if not best:
        raise SystemExit(f"the run drew nothing while {_PHASE}; its output was:\n{screen.text()}")
    return best


def run_in_terminal(command: Sequence[str], folder: Path) -> Iterator[str]:
    """Run a command in a pseudo-terminal of WIDTH x HEIGHT and yield its output."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
    environ = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
    }
    environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    process = subprocess.Popen(
        command, stdin=its, stdout=its, stderr=its, cwd=folder, env=environ, start_new_session=True
    )
    os.close(its)
    try:
        yield from _decoded(ours)
    finally:
        os.close(ours)
        process.terminate()
        process.wait()


def _decoded(descriptor: int) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while True:
        try:
            data = os.read(descriptor, 65536)
        except OSError:  # on Linux EIO marks the end of a pseudo-terminal
            return
        if not data:
            return
        yield decoder.decode(data)


def main(arguments: Sequence[str]) -> None:
    """Run the command and write the picture."""
    path = Path(arguments[0] if arguments else PATH).resolve()
    args = arguments[1:] or ARGS
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "border_cli", *args]
        lines = picture(run_in_terminal(command, Path(folder)))
    export(lines, path, f"border-train {' '.join(args)}")
    print(f"wrote {path}")


if __name__ == "__main__":
    main(sys.argv[1:])
