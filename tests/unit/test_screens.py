"""What a person sees of a run: banner, live view, plain lines, tables at the end, plan and bench."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from rich.cells import cell_len
from rich.console import Console

from border_cli.agents.dqn.config import DqnConfig
from border_cli.config.resource_checks import Sizes
from border_cli.config.schema import EnvConfig, PresetConfig, TrainConfig
from border_cli.config.throughput import Measured
from border_cli.core import format
from border_cli.core.format import BLOCKS, sparkline
from border_cli.core.metrics import Record
from border_cli.core.progress import Progress, RunResult
from border_cli.core.types import ActorStat, Evaluation
from border_cli.display.output import Output
from border_cli.display.text import (
    add_row,
    banner,
    make_table,
    named_line,
    preset_note,
    print_end_tables,
    print_plan,
    print_tables,
)
from border_cli.display.views import SILENCE_S, PlainView, ScreenView, frame, is_live
from border_cli.runtime import machine
from tests.fakes import Paper

SCREENS = dict(
    section.split("\n", 1)
    for section in Path(__file__).with_name("screens.txt").read_text(encoding="utf-8").split("== ")[1:]
)
"""Whole texts by name."""
FULL = Progress(
    "training", 83.0, 15_000, 31_000, max_env_steps=50_000, warmup_period=1_000, opt_steps_per_sec=312.4,
    samples_per_sec=12_345.6, ratio_target=2.0, ratio_actual=2.003, actors_blocked=0.63, learner_blocked=0.02,
    policy_lag_mean=6.3, replay_size=31_000, replay_capacity=100_000, n_actors=8, actors_alive=7,
    recent_returns=[float(i) for i in range(100)], evaluations=[(1_000, 20.0), (14_000, 487.25)],
    eval_infos={"is_success": 0.25}, best=(14_000, 487.25),
)  # fmt: skip
STATES = {
    "nothing": Progress(),
    "full": FULL,
    "not finite": replace(FULL, recent_returns=[math.nan, 1.0], evaluations=[(1, math.nan)]),
    "large": replace(FULL, opt_steps=10**12, env_steps=10**12, max_env_steps=10**13),
}


# -- the live view ----------------------------------------------------------


def drawn(progress: Progress, width: int = 80, *, colour: bool = False) -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    console = Console(file=file, width=width, force_terminal=colour, _environ={"TERM": "xterm"})
    with console.capture() as capture:
        console.print(frame(progress, "dqn on CartPole-v1", 16))
    return capture.get()


def test_frames() -> None:
    assert drawn(FULL) == SCREENS["the live view while it trains"]
    # sync has no actors that wait
    assert drawn(Progress(asynchronous=False)) == SCREENS["the live view at the start"]
    assert "target none" in drawn(replace(FULL, ratio_target=None))
    assert "99% of 50,000" in drawn(replace(FULL, env_steps=49_999))  # the bar is full only at the end
    done = drawn(replace(FULL, phase="done", actors_alive=0))
    assert "policy lag 6.30" in done and "alive" not in done and "ETA" not in done
    coloured = drawn(FULL, colour=True)  # lost actors and long waits are red
    assert "\x1b[1;31m7/8\x1b[0m" in coloured and "\x1b[1;31m63%\x1b[0m" in coloured


def screen_view(width: int = 80, height: int = 24) -> tuple[ScreenView, Paper]:
    """A view, and what it draws on a terminal of this size."""
    paper, file = Paper(), io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    options: dict[str, Any] = {"color_system": "truecolor", "_environ": {}}
    console = Console(file=file, force_terminal=True, width=width, height=height, **options)
    return ScreenView(cast(Output, paper), console, "dqn on Größe-v1", cores=16), paper


@pytest.mark.parametrize(("width", "height"), [(200, 50), (80, 5), (20, 24), (7, 3)])
@pytest.mark.parametrize("name", STATES)
def test_frames_fit_narrow_and_low_terminals(name: str, width: int, height: int) -> None:
    view, paper = screen_view(width, height)
    view.show(STATES[name])
    lines = paper.shown()
    assert len(lines) < height  # the cursor is below the frame
    assert max(map(cell_len, lines)) <= width


def test_the_frame_is_that_of_the_newest_state_and_the_last_one_stays_below_the_messages() -> None:
    view, paper = screen_view()
    progress = replace(FULL)
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
        assert [i for i, line in enumerate(lines) if line.startswith("╭")] == [0]


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
    assert is_live(Console(file=file, force_terminal=terminal, _environ={"TERM": term})) is live


@pytest.mark.parametrize(
    ("values", "width", "line"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], 8, BLOCKS),
        ([0, 2, 4, 6, 8, 10], 3, "▁▅█"),  # groups of two, with means 1, 5, 9
        ([math.nan, 0, math.inf, 1], 4, " ▁ █"),  # a gap
        ([], 10, ""),
    ],
)
def test_sparklines(values: list[float], width: int, line: str) -> None:
    assert sparkline(values, width) == line


# -- plain lines --------------------------------------------------------------


class StoppedClock:
    """A clock that the test advances."""

    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_a_plain_line_is_written_at_first_per_record_and_after_a_silence() -> None:
    stream, clock = io.StringIO(), StoppedClock()
    view = PlainView(stream, clock)

    def written() -> str:
        text = stream.getvalue()
        stream.seek(0), stream.truncate()
        return text

    warm = Progress(phase="warm-up", warmup_period=1_000, asynchronous=False)
    view.show(warm)
    assert written() == (
        "time=0:00:00 opt_steps=0 env_steps=0 phase=warm-up warmup_period=1000 opt_steps/s=- samples/s=-\n"
    )
    view.show(FULL)
    assert written() == ""
    view.write(Record({"agent/loss": math.nan}, opt_steps=1_500, env_steps=4_000, time=83.9))
    assert written() == (
        "time=0:01:23 opt_steps=1500 env_steps=4000 phase=training actors=7/8 return=49.5 eval=487.2 "
        "eval/is_success=0.25 loss=nan opt_steps/s=312.4 samples/s=12346 done=62% eta=0:00:01\n"
    )
    view.note("saved")  # any line begins a new silence
    clock.seconds += SILENCE_S - 0.01
    view.show(FULL)
    assert written() == "saved\n"
    clock.seconds += 0.01
    view.show(FULL)
    assert written().count("\n") == 1
    assert SILENCE_S < 30


# -- the banner -----------------------------------------------------------------


def config(**changes: object) -> TrainConfig:
    values: dict[str, object] = {"agent": DqnConfig(), "env": EnvConfig(id="CartPole-v1")}
    return TrainConfig(**(values | changes))  # type: ignore[arg-type]


def banner_of(c: TrainConfig, typed: dict[str, str] | None = None) -> str:
    lines = banner(c, typed or {}, 4_000_000, Path("runs/2026-11-21/10-15-00.123_dqn_cartpole"))
    return "\n".join(map(named_line, lines)).partition(": ")[2]  # without the version


def test_the_complete_banner() -> None:
    c = config(n_actors=8, preset=PresetConfig("dqn_cartpole", "CartPole-v1", "mean return of at least 475"))
    c.agent = DqnConfig(lr=2.3e-3, atoms=21)
    c.trainer.opt_interval, c.actor_manager.envs_per_actor = 2.0, 4
    typed = {"agent": "dqn", "env": "cartpole", "n_actors": "8", "actor_manager.envs_per_actor": "4"}
    assert f"{banner_of(c, typed)}\n" == SCREENS["a banner"]


@pytest.mark.parametrize(
    ("trainer", "text"),
    [
        ({"max_time": 3_600.0, "stop_return": 475.0}, "or 1:00:00 after the start or a mean return of 475.0"),
        ({"opt_interval": None}, "budget   50,000 env steps; ratio not enforced after"),
        ({"lockstep": True}, "async with 1 actor, device cpu, seed 0\n"),
        ({"type": "async"}, "seed 0, not reproducible\n"),
    ],
)
def test_g4_the_banner_says_what_ends_a_run_and_if_it_repeats(trainer: dict[str, object], text: str) -> None:
    c = config()
    for name, value in trainer.items():
        setattr(c.trainer, name, value)
    assert text in banner_of(c)


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"preset": PresetConfig("mine", "CartPole-v1")}, "mine"),
        ({}, "none in use; preset=dqn_cartpole was tuned for CartPole-v1"),
        (
            {"env": EnvConfig(id="ALE/Pong-v5")},
            "none in use; env=pong has a preset and Atari's preprocessing",
        ),
        ({"env": EnvConfig(entry_point="mine:Maze")}, "none for dqn on mine:Maze: the defaults stand"),
    ],
)
def test_the_preset_in_use_or_an_available_one_is_shown(changes: dict[str, object], note: str) -> None:
    assert preset_note(config(**changes)) == note


# -- tables -------------------------------------------------------------------------

RESULT = RunResult(
    "max_env_steps", best=Evaluation(20_000, (500.0,), (500,)), last=Evaluation(24_000, (487.25,), (487,)),
    best_confirmed=True, seconds=100.0, opt_steps=24_500, env_steps=50_000, samples_per_opt_step=2.0,
    actors=(
        ActorStat(0, 0, 30_000, 200, 100.0, 60.0, "stopped"),
        ActorStat(1, 2, 20_000, 100, 50.0, 0.0, "stopped", env_steps_before=5_000),
    ),
    actors_blocked=0.4, learner_blocked=0.02, bound="the actors wait for the learner most of the time",
    expected="475 expected: reached with 500.0",
)  # fmt: skip


def end_tables(
    result: RunResult, progress: Progress = FULL, width: int | None = None, command: str = ""
) -> str:
    file = io.StringIO()
    terminal: dict[str, Any] = {"force_terminal": width is not None, "color_system": None, "_environ": {}}
    print_end_tables(Console(file=file, width=width or 80, height=24, **terminal), progress, result, command)
    return file.getvalue()


def stripped(text: str) -> str:
    """Titles are filled with spaces."""
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def test_the_tables_at_the_end_and_the_lines_below_them_in_a_file() -> None:
    """Samples per second are of this launch, and shares of waiting too."""
    text = stripped(end_tables(RESULT, command="border-train resume='runs/a b'"))
    assert text == SCREENS["the tables at the end"]
    assert "next" not in end_tables(RESULT)
    assert "blocked" not in end_tables(RunResult("max_opts"), Progress(asynchronous=False))


def test_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cpus", lambda: 2)
    for name in ("available_memory", "free_disk"):
        monkeypatch.setattr(machine, name, lambda *_: 2**33)
    sizes = Sizes(replay=1_000_000, ring=2_000, channel=300, model=400, training=1_600)
    acting, learning = {1: 1_000.0, 16: 4_000.0}, {("eager", 1): 100.0, ("compiled", 1): 250.0}
    measured, c, file = Measured(acting, learning, 250.0, "compiled"), config(n_actors=4), io.StringIO()
    c.trainer.max_env_steps, c.trainer.max_opts, c.trainer.stop_return = None, 500, 500.0
    print_plan(Console(file=file), c, sizes, measured, Path())
    assert stripped(file.getvalue()) == SCREENS["a plan"]
    c.trainer.max_opts, c.trainer.max_time = None, 90.0
    print_plan(Console(file=file), c, sizes, measured, Path())
    assert file.getvalue().count("known at the end") == 4


# -- numbers as short text -------------------------------------------------


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("shown", "texts"),
    [
        (format.count, {None: "-", NAN: "-", 0: "0", 12_345_678.0: "12,345,678"}),
        (
            format.number,
            {None: "-", NAN: "nan", 0: "0.00", 0.00123: "0.0012", 487.25: "487.2", 1e300: "1e+300"},
        ),
        (format.share, {None: "-", NAN: "-", 0.0: "0%", 0.634: "63%", 1.0: "100%"}),
        (format.duration, {None: "-", INF: "-", 3_723.0: "1:02:03", 183_845.0: "2d 03:04:05"}),
        (format.size, {0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 4_000_000: "3.8 MiB"}),
        (lambda n: format.counted(n, "actor"), {0: "0 actors", 1: "1 actor", 8: "8 actors"}),
    ],
    ids=["count", "number", "share", "duration", "size", "counted"],
)
def test_a_number_as_text(shown: Callable[[object], str], texts: Mapping[object, str]) -> None:
    assert {value: shown(value) for value in texts} == texts


def test_a_table_wraps_between_words_and_becomes_lines_where_it_is_too_narrow() -> None:
    def shown(width: int) -> list[str]:
        out = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
        table = make_table("", "runs of", "best score")
        add_row(table, "dqn on CartPole-v1", "495.3 [480.1, 500.0]")
        with out.capture() as capture:
            print_tables(out, [table])
        return [line.rstrip() for line in capture.get().splitlines()]

    assert shown(45)[3] == "│ dqn on CartPole-v1 │ 495.3 [480.1, 500.0] │"
    assert [line.split("│")[1].strip() for line in shown(44)[3:5]] == ["dqn on", "CartPole-v1"]
    assert shown(20) == ["dqn on CartPole-v1", "  best score: 495.3", "[480.1, 500.0]"]
