"""The live view, as shown by an emulated terminal."""

from __future__ import annotations

import dataclasses
import io
import math
import os
import sys
import textwrap

import pytest
from rich.cells import cell_len
from rich.console import Console

from bench.screen_picture import Screen
from border_cli.core.progress import Progress
from border_cli.display.advice import advice
from border_cli.display.views import REDRAW_S, ScreenView, frame, is_live
from tests.unit.test_plain import Clock

FULL = Progress(
    "training", 83.0, 15_000, 31_000, max_env_steps=50_000, warmup_period=1_000, opt_steps_per_sec=312.4,
    samples_per_sec=475.0, ratio_target=2.0, ratio_actual=2.003, actors_blocked=0.63, learner_blocked=0.02,
    policy_lag_mean=6.3, replay_size=31_000, replay_capacity=100_000, n_actors=8, actors_alive=8,
    recent_returns=[float(i) for i in range(100)], evaluations=[(1_000, 20.0), (14_000, 487.25)],
    best=(14_000, 487.25),
)  # fmt: skip
STATES = {
    "nothing": Progress(),
    "full": FULL,
    "sync": dataclasses.replace(FULL, asynchronous=False, actors_blocked=None, learner_blocked=None),
    "free": dataclasses.replace(FULL, ratio_target=None),
    "time": dataclasses.replace(FULL, max_env_steps=None, max_time=1e6, seconds=9e5),
    "not finite": dataclasses.replace(FULL, recent_returns=[math.nan, 1.0], evaluations=[(1, math.nan)]),
    "large": dataclasses.replace(FULL, opt_steps=10**12, env_steps=10**12, max_env_steps=10**13),
}


class Terminal:
    """A console that writes to an emulated screen."""

    def __init__(self, width: int = 80, height: int = 24) -> None:
        self.file = io.StringIO()
        console = Console(
            file=self.file,
            force_terminal=True,
            width=width,
            height=height,
            color_system="truecolor",
            _environ={},
        )
        self.clock = Clock()
        self.view = ScreenView(console, "dqn on CartPole-v1", self.clock, cores=16)

    def shown(self) -> str:
        screen = Screen()
        screen.feed(self.file.getvalue())
        return screen.text()


def drawn(
    progress: Progress, width: int = 80, *, ascii_only: bool = False, colour: bool = False
) -> list[str]:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii" if ascii_only else "utf-8")
    console = Console(file=file, width=width, force_terminal=colour, _environ={"TERM": "xterm"})
    with console.capture() as capture:
        console.print(frame(progress, "dqn on CartPole-v1", 16, ascii_only=ascii_only))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_a_complete_frame() -> None:
    assert drawn(FULL) == [
        "╭─ dqn on CartPole-v1 ─────────────────────────────────────────────────────────╮",
        "│ phase       training  0:01:23  31,000 env steps  15,000 opt steps            │",
        "│ budget      ━━━━━━━━━━━━━━━━            62% of 50,000 env steps  ETA 0:00:40 │",
        "│                                                                              │",
        "│ return        49.5  ▁▁▁▁▁▂▂▂▃▃▃▃▄▄▄▄▅▅▅▅▆▆▆▆▇▇▇▇████  mean of 100 episodes   │",
        "│ evaluation   487.2  ▁█  at opt step 14,000                                   │",
        "│ best         487.2  at opt step 14,000                                       │",
        "│                                                                              │",
        "│ speed       312 opt steps/s  475 samples/s                                   │",
        "│ ratio       2.00 env steps per opt step  target 2.00                         │",
        "│ blocked     actors 63%  learner 2%                                           │",
        "│ actors      8/8 alive  policy lag 6.30 opt steps                             │",
        "│ replay      31% full  31,000 of 100,000 rows                                 │",
        "│                                                                              │",
        *(f"│ {line.ljust(76)} │" for line in textwrap.wrap(advice(FULL, 16), 76)),
        "╰──────────────────────────────────────────────────────────────────────────────╯",
    ]


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("width", [200, 80, 40, 20])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_every_frame_fits_the_terminal(name: str, width: int, ascii_only: bool) -> None:
    lines = drawn(STATES[name], width, ascii_only=ascii_only)
    assert {cell_len(line) for line in lines} == {width}
    assert not ascii_only or "".join(lines).isascii()


@pytest.mark.parametrize(
    ("progress", "shown", "hidden"),
    [
        (STATES["sync"], [], ["blocked", "alive", "lag"]),
        (STATES["free"], ["target none"], []),
        (Progress(), ["target -"], []),
        (
            dataclasses.replace(FULL, env_steps=49_999),
            ["99% of 50,000"],
            [],
        ),  # the bar is full only at the end
        (dataclasses.replace(FULL, phase="done", actors_alive=0), ["policy lag 6.30"], ["alive", "ETA"]),
    ],
    ids=["sync", "free", "before the first opt step", "almost done", "done"],
)
def test_the_parts_of_a_frame(progress: Progress, shown: list[str], hidden: list[str]) -> None:
    text = "\n".join(drawn(progress))
    assert all(part in text for part in shown)
    assert not any(part in text for part in hidden)


def test_lost_actors_and_long_waits_are_highlighted() -> None:
    text = "\n".join(drawn(dataclasses.replace(FULL, actors_alive=7), colour=True))
    assert "\x1b[1;31m7/8\x1b[0m" in text
    assert "\x1b[1;31m63%\x1b[0m" in text


def test_it_draws_at_most_four_frames_per_second() -> None:
    class Untouchable(Progress):
        def __getattribute__(self, name: str) -> object:
            raise AssertionError(f"{name} was read")

    t = Terminal()
    t.view.show(FULL)
    first = t.file.getvalue()
    t.clock.seconds += REDRAW_S - 0.01
    t.view.show(Untouchable())
    t.view.show(FULL)
    assert t.file.getvalue() == first
    t.clock.seconds += 0.01
    t.view.show(FULL)
    assert t.file.getvalue() != first
    t.view.close()


def test_frames_replace_each_other_and_the_last_one_stays() -> None:
    t = Terminal()
    for env_steps in (1_111, 2_222):
        t.view.show(dataclasses.replace(FULL, env_steps=env_steps))
        t.clock.seconds += 1
    t.view.show(dataclasses.replace(FULL, env_steps=3_333))
    t.view.show(dataclasses.replace(FULL, env_steps=4_444))  # not due yet; close draws it
    assert "3,333" in t.shown()
    t.view.close()
    shown = t.shown()
    assert shown.count("phase") == 1
    assert "4,444" in shown and "3,333" not in shown
    assert t.file.getvalue().endswith("\x1b[?25h")


@pytest.mark.parametrize(("width", "height"), [(20, 24), (80, 5), (20, 5), (7, 3)])
@pytest.mark.parametrize("name", STATES)
def test_frames_fit_narrow_and_low_terminals(name: str, width: int, height: int) -> None:
    t = Terminal(width, height)
    for _ in range(3):
        t.view.show(STATES[name])
        t.clock.seconds += 1
        lines = t.shown().splitlines()
        assert len(lines) <= height
        assert max(map(cell_len, lines)) <= width
    t.view.close()
    assert max(map(cell_len, t.shown().splitlines())) <= width


def test_notes_are_printed_above_the_frame_in_order() -> None:
    t = Terminal()
    t.view.note("before the first frame")
    t.view.show(FULL)
    t.view.note("new best: 500.0 [bold]not markup[/]")
    t.view.note("checkpoint step-000015000")
    t.view.close()
    first, second, third, *lines = t.shown().splitlines()
    assert (first, second) == ("before the first frame", "new best: 500.0 [bold]not markup[/]")
    assert third == "checkpoint step-000015000"
    assert lines[0].startswith("╭") and lines[-1].endswith("╯")


def test_other_output_is_printed_above_the_frame_too(monkeypatch: pytest.MonkeyPatch) -> None:
    t = Terminal()
    monkeypatch.setattr(sys, "stdout", t.file)
    t.view.show(FULL)
    print("from an environment")
    t.view.close()
    assert sys.stdout is t.file
    assert t.shown().splitlines()[0] == "from an environment"


def test_the_cursor_is_shown_at_the_end_and_close_may_be_called_early_or_twice() -> None:
    t = Terminal()
    t.view.close()
    assert t.file.getvalue() == ""
    t.view.show(FULL)
    written = t.file.getvalue()
    assert written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l")
    t.view.close()
    once = t.file.getvalue()
    t.view.close()
    assert t.file.getvalue() == once


def test_an_error_while_drawing_restores_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    t = Terminal()
    monkeypatch.setattr(sys, "stdout", t.file)
    t.view.show(FULL)
    monkeypatch.setattr("border_cli.display.views.frame", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        t.view.close()
    assert sys.stdout is t.file
    assert t.file.getvalue().endswith("\x1b[?25h")


def test_a_closed_stream_stops_the_view(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = Terminal()
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    before = sys.stdout, sys.stderr
    t.view.show(FULL)
    t.file.close()
    for _ in range(3):
        t.clock.seconds += 1
        t.view.show(FULL)
        t.view.note("unheard")
    assert (sys.stdout, sys.stderr) == before
    t.view.close()
    assert len(caplog.records) == 1


def test_a_broken_pipe_stops_the_view(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w", encoding="utf-8") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)  # a stream whose descriptor rich redirects
        console = Console(force_terminal=True, width=80, height=24, _environ={})
        clock = Clock()
        view = ScreenView(console, "title", clock)
        view.show(FULL)
        os.close(reader)
        for _ in range(3):
            clock.seconds += 1
            view.show(FULL)
        view.close()
        assert sys.stdout is pipe
    assert caplog.messages == ["output stopped, training continues: broken pipe"]


def test_an_ascii_terminal_gets_ascii() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    console = Console(file=file, force_terminal=True, width=80, height=24, _environ={})
    view = ScreenView(console, "dqn on Größe-v1", Clock())
    view.show(FULL)
    view.note("→ best")
    view.close()
    file.flush()
    screen = Screen()
    screen.feed(raw.getvalue().decode("ascii"))
    lines = screen.text().splitlines()
    assert lines[0] == "? best"
    assert lines[1].startswith("+- dqn on Gr??e-v1 ---")


@pytest.mark.parametrize(
    ("terminal", "term", "live"), [(True, "xterm", True), (True, "dumb", False), (False, "xterm", False)]
)
def test_consoles_that_can_redraw_are_detected(terminal: bool, term: str, live: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, _environ={"TERM": term})
    assert is_live(console) is live
