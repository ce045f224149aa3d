"""The live view, as a terminal shows what it writes."""

from __future__ import annotations

import dataclasses
import io
import math
import os
import sys

import pytest
from rich.cells import cell_len
from rich.console import Console

from bench.screen_picture import Screen
from border_cli.core.progress import Progress
from border_cli.recorders.frame import Room, frame
from border_cli.recorders.screen import REDRAW_S, ScreenView, is_live

FULL = Progress(
    "training", 83.0, 15_000, 31_000, max_env_steps=50_000, warmup_period=1_000, opt_steps_per_sec=312.4,
    samples_per_sec=475.0, ratio_target=2.0, ratio_actual=2.003, actors_blocked=0.63, learner_blocked=0.02,
    policy_lag_mean=6.3, replay_size=31_000, replay_capacity=100_000, n_actors=8, actors_alive=8,
    recent_returns=[float(i) for i in range(100)], evaluations=[(1_000, 20.0), (14_000, 487.25)],
    best=(14_000, 487.25),
)  # fmt: skip
NAN, INF = math.nan, math.inf
EXTREMES = {
    "nothing": Progress(),
    "full": FULL,
    "sync": dataclasses.replace(FULL, asynchronous=False, actors_blocked=None, learner_blocked=None),
    "free": dataclasses.replace(FULL, ratio_target=None),
    "zero": Progress(max_opts=0, max_env_steps=0, max_time=0.0, recent_returns=[0.0], evaluations=[(0, 0.0)]),
    "not finite": Progress(
        "evaluating", INF, 1, 1, 10, 10, INF, 1, NAN, INF, NAN, INF, NAN, INF, NAN, 0, 0, 1, 1, True,
        [NAN, INF, -INF], [(1, NAN)], (1, INF),
    ),
    "huge": Progress(
        "saving", 1e12, 10**18, 10**19, 10**20, 10**21, 1e30, 10**17, 1e15, 1e15, 1e300, 1e300, 1.0, 1.0,
        1e300, 10**15, 10**15, 10**6, 10**6, True, [1e308, -1e308] * 50, [(10**18, 1e308)] * 500,
        (10**18, 1e308),
    ),
}  # fmt: skip


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Terminal:
    """A console whose output ends up on a screen."""

    def __init__(self, width: int = 80, height: int = 24) -> None:
        self.file = io.StringIO()
        self.console = Console(
            file=self.file,
            force_terminal=True,
            width=width,
            height=height,
            color_system="truecolor",
            _environ={},
        )
        self.clock = Clock()
        self.view = ScreenView(self.console, "dqn on CartPole-v1", self.clock, cores=16)

    def shown(self) -> str:
        screen = Screen()
        screen.feed(self.file.getvalue())
        return screen.text()


def drawn(progress: Progress, room: Room, colour: bool = False) -> list[str]:
    console = Console(
        file=io.StringIO(),
        width=room.width,
        height=room.height,
        force_terminal=colour,
        _environ={"TERM": "xterm"},
    )
    with console.capture() as capture:
        console.print(frame(progress, "dqn on CartPole-v1", room, cores=16))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_a_frame_as_a_whole() -> None:
    assert drawn(FULL, Room(80, 24)) == [
        "╭─ dqn on CartPole-v1 ─────────────────────────────────────────────────────────╮",
        "│ phase       training  0:01:23  31,000 env steps  15,000 opt steps            │",
        "│ budget      ━━━━━━━━━━━━━━━━━━━━━━━━━━  62% of 50,000 env steps  ETA 0:00:40 │",
        "│                                                                              │",
        "│ return        49.5  ▁▁▁▁▂▂▂▂▃▃▃▄▄▄▄▅▅▅▅▆▆▆▇▇▇▇████  mean of 100 episodes     │",
        "│ evaluation   487.2  ▁█  at opt step 14,000                                   │",
        "│ best         487.2  at opt step 14,000                                       │",
        "│                                                                              │",
        "│ speed       312 opt steps/s  475 samples/s                                   │",
        "│ ratio       2.00 env steps per opt step  target 2.00                         │",
        "│ blocked     actors 63%  learner 2%                                           │",
        "│ actors      8/8 alive  policy lag 6.30 opt steps                             │",
        "│ replay      31% full  31,000 of 100,000 rows                                 │",
        "│                                                                              │",
        "│ learner-bound: the actors wait 63% of the time; n_actors=4 would do, a       │",
        "│ larger trainer.opt_interval uses all but learns less from each               │",
        "╰──────────────────────────────────────────────────────────────────────────────╯",
    ]


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("size", [(80, 24), (60, 20), (40, 15), (200, 60), (20, 5), (7, 3), (1, 1)])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_every_frame_fits(name: str, size: tuple[int, int], encoding: str) -> None:
    lines = drawn(EXTREMES[name], Room(*size, encoding))
    assert len(lines) <= max(1, size[1] - 1)
    assert max(cell_len(line) for line in lines) <= size[0]
    "\n".join(lines).encode(encoding)


@pytest.mark.parametrize("name", EXTREMES)
def test_eighty_columns_and_24_lines_hold_everything_in_a_panel(name: str) -> None:
    lines = drawn(EXTREMES[name], Room(80, 24))
    assert lines[0].startswith("╭") and lines[-1].endswith("╯")


def test_a_low_terminal_first_loses_the_empty_lines_then_the_panel() -> None:
    dense = drawn(FULL, Room(80, 17))
    assert dense[0].startswith("╭") and not any(set(line) <= set("│ ") for line in dense)
    bare = drawn(FULL, Room(80, 14))
    assert bare[0].startswith("phase") and len(bare) == 12
    assert bare[-1].endswith("opt_interval uses all but learns less from each")


def test_a_narrow_terminal_breaks_between_fields() -> None:
    lines = drawn(FULL, Room(40, 60))
    assert "  at opt step 14,000" in "\n".join(lines)
    assert any(line.strip("│ ") == "target 2.00" for line in lines)


def test_sync_has_no_actors_to_show() -> None:
    text = "\n".join(drawn(EXTREMES["sync"], Room()))
    assert "blocked" not in text and "alive" not in text and "lag" not in text


def test_the_target_of_a_free_run_is_none_and_before_the_first_opt_step_not_known() -> None:
    assert any(
        line.endswith("target none                         │") for line in drawn(EXTREMES["free"], Room())
    )
    assert any("target -" in line for line in drawn(Progress(), Room()))


def test_a_budget_is_full_only_at_its_end() -> None:
    almost = dataclasses.replace(FULL, env_steps=49_999)
    assert any("99% of 50,000" in line for line in drawn(almost, Room()))


def test_lost_actors_and_long_waits_stand_out() -> None:
    text = "\n".join(drawn(dataclasses.replace(FULL, actors_alive=7), Room(), colour=True))
    assert "\x1b[1;31m7/8\x1b[0m" in text
    assert "\x1b[1;31m63%\x1b[0m" in text


def test_the_last_frame_counts_no_actors() -> None:
    text = "\n".join(drawn(dataclasses.replace(FULL, phase="done", actors_alive=0), Room()))
    assert "alive" not in text and "policy lag 6.30" in text


def test_it_draws_four_times_a_second_at_most() -> None:
    t = Terminal()
    t.view.show(FULL)
    first = t.file.getvalue()
    t.clock.seconds += REDRAW_S - 0.01
    t.view.show(FULL)
    assert t.file.getvalue() == first
    t.clock.seconds += 0.01
    t.view.show(FULL)
    assert t.file.getvalue() != first
    t.view.close()


def test_a_call_that_is_not_due_asks_nothing_of_the_progress() -> None:
    t = Terminal()
    t.view.show(FULL)

    class Untouchable(Progress):
        def __getattribute__(self, name: str) -> object:
            raise AssertionError(f"{name} was read")

    t.view.show(Untouchable())
    t.view.show(FULL)
    t.view.close()


def test_frames_replace_each_other_and_the_last_one_stays() -> None:
    t = Terminal()
    for env_steps in (1_111, 2_222):
        t.view.show(dataclasses.replace(FULL, env_steps=env_steps))
        t.clock.seconds += 1
    t.view.show(dataclasses.replace(FULL, env_steps=3_333))
    t.view.show(dataclasses.replace(FULL, env_steps=4_444))  # not due: only close draws it
    assert "3,333" in t.shown()
    t.view.close()
    shown = t.shown()
    assert shown.count("phase") == 1
    assert "4,444" in shown and "3,333" not in shown
    assert t.file.getvalue().endswith("\x1b[?25h")


def test_notes_stand_above_in_order() -> None:
    t = Terminal()
    t.view.note("before the first frame")
    t.view.show(FULL)
    t.view.note("new best: 500.0 [bold]not markup[/]")
    t.view.note("checkpoint step-000015000")
    t.view.close()
    lines = t.shown().splitlines()
    assert lines[:3] == [
        "before the first frame",
        "new best: 500.0 [bold]not markup[/]",
        "checkpoint step-000015000",
    ]
    assert lines[3].startswith("╭") and lines[-1].endswith("╯")


def test_what_others_print_stands_above_too(monkeypatch: pytest.MonkeyPatch) -> None:
    t = Terminal()
    monkeypatch.setattr(sys, "stdout", t.file)
    t.view.show(FULL)
    print("from an environment")
    t.view.close()
    assert sys.stdout is t.file
    assert t.shown().splitlines()[0] == "from an environment"


def test_the_cursor_is_never_left_hidden() -> None:
    t = Terminal()
    t.view.show(FULL)
    written = t.file.getvalue()
    assert written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l")
    t.view.close()


def test_closing_twice_or_before_anything_was_drawn_does_nothing() -> None:
    t = Terminal()
    t.view.close()
    assert t.file.getvalue() == ""
    t.view.show(FULL)
    t.view.close()
    once = t.file.getvalue()
    t.view.close()
    assert t.file.getvalue() == once


def test_an_error_while_drawing_still_gives_the_terminal_back(monkeypatch: pytest.MonkeyPatch) -> None:
    t = Terminal()
    monkeypatch.setattr(sys, "stdout", t.file)
    t.view.show(FULL)
    monkeypatch.setattr("border_cli.recorders.screen.frame", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        t.view.close()
    assert sys.stdout is t.file
    assert t.file.getvalue().endswith("\x1b[?25h")


def test_a_closed_file_makes_it_silent(
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


def test_a_broken_pipe_makes_it_silent(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w", encoding="utf-8") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)  # whose descriptor rich redirects
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
    assert [record.message for record in caplog.records] == [
        "nothing more is shown, the run goes on: broken pipe"
    ]


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
def test_which_consoles_can_redraw(terminal: bool, term: str, live: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, _environ={"TERM": term})
    assert is_live(console) is live
