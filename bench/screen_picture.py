"""The moving picture in the README: a real run in a terminal of its own, as an animated SVG in real time.

    python -m bench.screen_picture [docs/screen.svg [ARG…]]

Runs `border-train ARG…` under a pseudo-terminal, in a folder with a copy of bench/slow_sim.py, and keeps its screen
twice a second. The machine should have nothing else to do, because the screen shows speeds and who waits for whom.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH, HEIGHT = 88, 32
PATH = Path("docs/screen.svg")
SIMULATOR = Path("bench/slow_sim.py")
ARGS = (
    *("agent=dqn", "env=cartpole", "env.wrappers=[slow_sim:Wait]", "n_actors=8", "trainer.lockstep=true"),
    *("trainer.opt_interval=1", "trainer.max_env_steps=40000", "trainer.eval_interval=null"),
)
INTERVAL_S = 0.5
HOLD_S = 6.0
"""How long the last screen is shown before the picture starts again."""
_CONTROLS = re.compile(r"(\x1b\[\d*A|\x1b\[2K|\x1b\[\?25[hl]|\r|\n)")
_CUT_SHORT = re.compile(r"\x1b(\[[0-9;?]*)?\Z")
_SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{title}">
<style>
text {{ font-family: "Fira Code", Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 20px; white-space: pre }}
{styles}
.film {{ animation: film {seconds:.1f}s step-end infinite }}
@media (prefers-reduced-motion: reduce) {{ .film {{ animation: none }} }}
@keyframes film {{
{keyframes}
}}
</style>
<clipPath id="terminal"><rect width="{width:.0f}" height="{clip:.0f}"/></clipPath>
<rect width="{width:.0f}" height="{height:.0f}" rx="8" fill="#292929"/>
<circle cx="22" cy="21" r="7" fill="#ff5f57"/>
<circle cx="44" cy="21" r="7" fill="#febc2e"/>
<circle cx="66" cy="21" r="7" fill="#28c840"/>
<text x="50%" y="27" text-anchor="middle" fill="#c5c8c6">{title}</text>
<g transform="translate(8 42)" clip-path="url(#terminal)">
<g class="film" transform="translate(0 -{last:.0f})">
{drawing}
</g>
</g>
</svg>
"""


@dataclass(frozen=True)
class Frame:
    """What a terminal shows from a time on, in seconds since the command."""

    seconds: float
    lines: Sequence[str]


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

    def is_whole(self) -> bool:
        """Whether no line and no box is half drawn."""
        text = self.text()
        return not self.lines[self._row] and text.count("╭") == text.count("╯")

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


def film(outputs: Iterator[str], command: str) -> list[Frame]:
    """Return the command and the view of the run below it, at each interval in which there is a view.

    Start-up, the lines above the view and the tables after the end are left out.
    """
    screen, began = Screen(), time.monotonic()
    typed = textwrap.wrap(command, WIDTH - 6, break_on_hyphens=False, subsequent_indent="    ")
    top = ("\x1b[1;32m$\x1b[0m " + " \\\n".join(typed)).splitlines()
    frames: list[Frame] = []
    for output in outputs:
        screen.feed(output)
        if not frames:
            began = time.monotonic()
        seconds = time.monotonic() - began
        is_view = screen.is_whole() and screen.text().endswith("╯")
        if is_view and (not frames or seconds - frames[-1].seconds >= INTERVAL_S):
            view = max(i for i, line in enumerate(screen.lines) if "╭" in line)
            frames.append(Frame(seconds, [*top, *filter(None, screen.lines[view:])]))
    return frames


def export(frames: Sequence[Frame], path: Path, title: str) -> None:
    """Write an SVG in which the frames lie below each other and move through a window of one frame."""
    console = Console(
        record=True, file=StringIO(), width=WIDTH, force_terminal=True, color_system="truecolor"
    )
    height = max(len(frame.lines) for frame in frames)
    for frame in frames:
        for line in [*frame.lines, *[""] * (height - len(frame.lines))]:
            console.print(Text.from_ansi(line), soft_wrap=True)
    pieces = "{char_width}\0{line_height}\0{styles}\0{backgrounds}{matrix}"
    exported = console.export_svg(code_format=pieces, unique_id="s", title="").split("\0")
    char_width, line_height = (float(number) for number in exported[:2])
    seconds = frames[-1].seconds + HOLD_S
    keyframes = [
        f"{100 * frame.seconds / seconds:.2f}% {{ transform: translateY(-{i * height * line_height:.0f}px) }}"
        for i, frame in enumerate(frames)
    ]
    text = _SVG.format(
        width=WIDTH * char_width + 16,
        height=height * line_height + 50,
        clip=height * line_height,
        title=escape(title),
        seconds=seconds,
        styles=exported[2],
        keyframes="\n".join(keyframes),
        last=(len(frames) - 1) * height * line_height,
        drawing=re.sub(r' clip-path="[^"]*"', "", exported[3]).replace("</text>", "</text>\n"),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


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
    command = f"border-train {' '.join(args)}"
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(SIMULATOR, folder)
        frames = film(run_in_terminal([sys.executable, "-m", "border_cli", *args], Path(folder)), command)
    export(frames, path, "border-train")
    print(f"wrote {path}: {len(frames)} frames, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
