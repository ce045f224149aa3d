"""The tables at the end of a run."""

from __future__ import annotations

import dataclasses
import io
import math

import pytest
from rich.cells import cell_len
from rich.console import Console

from border_cli.core.progress import Progress, RunResult
from border_cli.core.types import ActorStat, Evaluation
from border_cli.display.tables import print_end_tables, table_text

PROGRESS = Progress(
    "stopping", 100.0, 24_500, 50_000, ratio_target=2.0, ratio_actual=2.0, n_actors=2,
    evaluations=[(1_000, 20.0), (24_000, 487.25)], best=(20_000, 500.0),
)  # fmt: skip
ACTORS = [
    ActorStat(0, 0, 30_000, 200, 100.0, 60.0, "stopped"),
    ActorStat(1, 2, 20_000, 100, 50.0, 0.0, "stopped"),
]
RESULT = RunResult(
    "max_env_steps", best=Evaluation(20_000, (500.0,), (500,)), last=Evaluation(24_000, (487.25,), (487,)),
    best_confirmed=True, actors=ACTORS, actors_blocked=0.4, learner_blocked=0.02,
)  # fmt: skip


def printed(progress: Progress, result: RunResult, width: int | None = None, next_command: str = "") -> str:
    file = io.StringIO()
    terminal = width is not None
    console = Console(
        file=file, width=width or 80, height=24, force_terminal=terminal, color_system=None, _environ={}
    )
    print_end_tables(console, progress, result, next_command)
    return file.getvalue()


def rows(text: str) -> list[list[str]]:
    """Return the cells of every row of a plain table."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def figures(progress: Progress, result: RunResult) -> dict[str, str]:
    """Return label and value of each row of the first table."""
    return {row[0]: row[1] for row in rows(printed(progress, result)) if len(row) == 2}


def test_both_tables_and_the_lines_below_them_in_a_file() -> None:
    result = dataclasses.replace(RESULT, bound="learner-bound", expected="475 expected: reached with 500.0")
    text = printed(PROGRESS, result, next_command="border-train resume='runs/a b'")
    assert rows(text) == [
        ["", "value"],
        ["ended by", "max_env_steps"],
        ["duration", "0:01:40"],
        ["opt steps", "24,500"],
        ["env steps", "50,000"],
        ["opt steps/s", "245.0"],
        ["samples/s", "500.0"],
        ["env steps per opt step", "2.00 (target 2.00)"],
        ["actors blocked", "40%"],  # 60 s of 150 s
        ["learner blocked", "2%"],
        ["last score", "487.2 at opt step 24,000"],
        ["best score", "500.0 at opt step 20,000"],
        ["actor", "incarnation", "env steps", "episodes", "samples/s", "blocked", "state"],
        ["0", "0", "30,000", "200", "300.0", "60%", "stopped"],
        ["1", "2", "20,000", "100", "400.0", "0%", "stopped"],
    ]
    assert text.splitlines()[-3:] == [
        "bound    learner-bound",
        "expected 475 expected: reached with 500.0",
        "next     border-train resume='runs/a b'",
    ]
    assert "next" not in printed(PROGRESS, RESULT)


def test_output_to_a_file_is_ascii_without_escapes_or_markup_and_never_wrapped() -> None:
    state = "waiting for room in its ring " * 3
    text = printed(PROGRESS, RunResult("[red]no markup[/]", actors=[ActorStat(0, state=state)]))
    assert text.isascii() and "\x1b" not in text
    assert any(state.strip() in line for line in text.splitlines())
    assert "[red]no markup[/]" in text


def test_tables_of_a_run_without_steps_and_of_sync() -> None:
    found = figures(Progress(), RunResult("sigint"))
    assert found["env steps per opt step"] == "- (target none)"
    unknown = ("opt steps/s", "samples/s", "actors blocked", "learner blocked", "last score", "best score")
    assert {found[name] for name in unknown} == {"-"}
    assert not any("blocked" in name for name in figures(Progress(asynchronous=False), RunResult("max_opts")))


@pytest.mark.parametrize("width", [80, 40, 20])
def test_extreme_numbers_fit_a_terminal(width: int) -> None:
    progress = Progress(
        seconds=1e12, opt_steps=10**18, env_steps=10**18, ratio_actual=math.nan, best=(10**18, math.inf)
    )
    actors = [ActorStat(10**6, 10**6, 10**18, 10**18, 1e-9, 1e9, "x" * 100)]
    text = printed(progress, RunResult("error", actors=actors, learner_blocked=math.nan), width)
    assert max(cell_len(line) for line in text.splitlines()) <= width


def test_on_a_terminal_sentences_wrap_at_words_and_a_command_stays_in_one_piece() -> None:
    result = dataclasses.replace(RESULT, bound="the actors wait for the learner most of the time")
    text = printed(PROGRESS, result, width=40, next_command=f"border-train resume=runs/{'a' * 40}")
    assert text.splitlines()[-3:] == [
        "bound    the actors wait for the learner",
        "         most of the time",
        f"next     border-train resume=runs/{'a' * 40}",
    ]


def test_samples_per_second_are_of_this_launch() -> None:
    actor = ActorStat(0, env_steps=1500, env_steps_before=1000, seconds=2.0)
    assert rows(printed(PROGRESS, RunResult("max_opts", actors=[actor])))[-1][4] == "250.0"


def test_a_table_for_stdout_has_no_colour_codes_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b" not in table_text([["cartpole", "3"]], ["runs of", "runs"])


def test_a_narrow_terminal_breaks_no_word_of_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Console, "is_terminal", True)
    monkeypatch.setenv("COLUMNS", "80")
    label = "dqn on CartPole-v1 agent.lr=0.0003 buffer=prioritized"
    score = "15.5 (9.25 to 20.0)"
    text = table_text([[label, "1", "1,000,000", score, score, "7.62", "475: met"]])
    assert all(word in text for word in (*label.split(), "1,000,000"))
    assert max(map(len, text.splitlines())) <= 80
