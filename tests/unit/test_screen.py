"""The live view, as shown by an emulated terminal."""

from __future__ import annotations

import dataclasses
import io
import math
import textwrap
from typing import cast

import pytest
from rich.cells import cell_len
from rich.console import Console

from border_cli.core.progress import Progress
from border_cli.display.advice import advice
from border_cli.display.output import Output
from border_cli.display.views import ScreenView, frame, is_live
from tests.fakes import Paper

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


def screen_view(width: int = 80, height: int = 24, encoding: str = "utf-8") -> tuple[ScreenView, Paper]:
    """A view, and what it draws on a terminal of this size."""
    paper, file = Paper(), io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(
        file=file,
        force_terminal=True,
        width=width,
        height=height,
        color_system="truecolor",
        _environ={},
    )
    return ScreenView(cast(Output, paper), console, "dqn on Größe-v1", cores=16), paper


def drawn(progress: Progress, width: int = 80, *, colour: bool = False) -> list[str]:
    file = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    console = Console(file=file, width=width, force_terminal=colour, _environ={"TERM": "xterm"})
    with console.capture() as capture:
        console.print(frame(progress, "dqn on CartPole-v1", 16))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_a_complete_frame() -> None:
    assert drawn(FULL) == [
        "╭─ dqn on CartPole-v1 ─────────────────────────────────────────────────────────╮",
        "│ phase       training  0:01:23  31,000 env steps  15,000 opt steps            │",
        "│ budget      ━━━━━━━━━━━━━━━━            62% of 50,000 env steps  ETA 0:00:40 │",
        "│                                                                              │",
        "│ return        49.5  ▁▁▁▁▁▂▂▂▃▃▃▃▄▄▄▄▅▅▅▅▆▆▆▆▇▇▇▇████  mean of 100 episodes   │",
        "│ evaluation   487.2  ▁█  at opt step 14,000                                   │",
        "│ best         487.2  at opt step 14,000, unconfirmed                          │",
        "│                                                                              │",
        "│ speed       312.4 opt steps/s  475.0 samples/s                               │",
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
def test_every_frame_fits_the_terminal(name: str, width: int) -> None:
    lines = drawn(STATES[name], width)
    assert {cell_len(line) for line in lines} == {width}


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


@pytest.mark.parametrize(("width", "height"), [(20, 24), (80, 5), (20, 5), (7, 3)])
@pytest.mark.parametrize("name", STATES)
def test_frames_fit_narrow_and_low_terminals(name: str, width: int, height: int) -> None:
    view, paper = screen_view(width, height)
    view.show(STATES[name])
    lines = paper.shown()
    assert len(lines) < height  # the cursor is below the frame
    assert max(map(cell_len, lines)) <= width


def test_the_frame_is_that_of_the_newest_state_and_the_last_one_stays_below_the_messages() -> None:
    view, paper = screen_view()
    view.close()
    assert paper.shown() == []
    progress = dataclasses.replace(FULL)
    view.note("new best: 500.0 [bold]not markup[/]")
    view.show(progress)
    progress.env_steps = 44_444  # changed in place, as in a run
    view.note("checkpoint step-000015000")
    assert any("44,444" in line for line in paper.shown())
    for _ in range(2):
        view.close()
        assert paper.frame is None
        first, second, *lines = paper.shown()
        assert (first, second) == ("new best: 500.0 [bold]not markup[/]", "checkpoint step-000015000")
        assert lines[0].startswith("╭") and lines[-1].endswith("╯")
        assert [line for line in lines if line.startswith("╭")] == lines[:1]


@pytest.mark.parametrize(
    ("terminal", "term", "encoding", "live"),
    [
        (True, "xterm", "utf-8", True),
        (True, "dumb", "utf-8", False),
        (False, "xterm", "utf-8", False),
        (True, "xterm", "ascii", False),
    ],
)
def test_consoles_that_can_redraw_are_detected(terminal: bool, term: str, encoding: str, live: bool) -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, force_terminal=terminal, _environ={"TERM": term})
    assert is_live(console) is live
