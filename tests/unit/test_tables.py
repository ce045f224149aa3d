"""The tables at the end."""

from __future__ import annotations

import dataclasses
import io
import math

import pytest
from rich.cells import cell_len
from rich.console import Console

from border_cli.core.progress import Progress
from border_cli.core.protocols import ActorStat
from border_cli.recorders.tables import RunEnd, print_end_tables

PROGRESS = Progress(
    "stopping", 100.0, 24_500, 50_000, ratio_target=2.0, ratio_actual=2.0, n_actors=2,
    evaluations=[(1_000, 20.0), (24_000, 487.25)], best=(20_000, 500.0),
)  # fmt: skip
ACTORS = [
    ActorStat(0, 0, 30_000, 200, 100.0, 60.0, "stopped"),
    ActorStat(1, 2, 20_000, 100, 50.0, 0.0, "stopped"),
]


def printed(progress: Progress, actors: list[ActorStat], end: RunEnd, width: int | None = None) -> str:
    file = io.StringIO()
    console = Console(
        file=file,
        width=width or 80,
        height=24,
        force_terminal=width is not None,
        color_system=None,
        _environ={},
    )
    print_end_tables(console, progress, actors, end)
    return file.getvalue()


def rows(text: str) -> list[list[str]]:
    """Cells of every row of a plain table."""
    return [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")
    ]


def test_both_tables_to_a_file() -> None:
    assert rows(printed(PROGRESS, ACTORS, RunEnd("max_env_steps", 0.02))) == [
        ["", "value"],
        ["ended by", "max_env_steps"],
        ["duration", "0:01:40"],
        ["opt steps", "24,500"],
        ["env steps", "50,000"],
        ["opt steps/s", "245"],
        ["samples/s", "500"],
        ["env steps per opt step", "2.00 (target 2.00)"],
        ["actors blocked", "40%"],  # 60 s of 150 s
        ["learner blocked", "2%"],
        ["last score", "487.2 at opt step 24,000"],
        ["best score", "500.0 at opt step 20,000"],
        ["actor", "incarnation", "env steps", "episodes", "samples/s", "blocked", "state"],
        ["0", "0", "30,000", "200", "300", "60%", "stopped"],
        ["1", "2", "20,000", "100", "400", "0%", "stopped"],
        ["all", "", "50,000", "300", "700", "40%", ""],
    ]


def test_output_to_a_file_is_ascii_without_escapes_and_never_wrapped() -> None:
    text = printed(PROGRESS, [ActorStat(0, state="waiting for room in its ring " * 3)], RunEnd("sigterm"))
    assert text.isascii() and "\x1b" not in text
    assert any(("waiting for room in its ring " * 3).strip() in line for line in text.splitlines())


def test_before_anything_happened() -> None:
    table = rows(printed(Progress(), [], RunEnd("sigint")))
    assert table[5:] == [
        ["opt steps/s", "-"],
        ["samples/s", "-"],
        ["env steps per opt step", "- (target none)"],
        ["actors blocked", "-"],
        ["learner blocked", "-"],
        ["last score", "-"],
        ["best score", "-"],
    ]


def test_sync_has_no_blocked_shares() -> None:
    names = [row[0] for row in rows(printed(Progress(asynchronous=False), [], RunEnd("max_opts")))]
    assert not any("blocked" in name for name in names)


def test_one_actor_needs_no_sum() -> None:
    table = rows(printed(PROGRESS, ACTORS[:1], RunEnd("max_opts")))
    assert table[-1][0] == "0"


def test_brackets_are_text() -> None:
    assert "[red]no markup[/]" in printed(PROGRESS, [], RunEnd("[red]no markup[/]"))


@pytest.mark.parametrize("width", [80, 40, 20])
def test_extremes_fit_a_terminal(width: int) -> None:
    progress = Progress(
        seconds=1e12, opt_steps=10**18, env_steps=10**18, ratio_actual=math.nan, best=(10**18, math.inf)
    )
    actors = [ActorStat(10**6, 10**6, 10**18, 10**18, 1e-9, 1e9, "x" * 100)]
    text = printed(progress, actors, RunEnd("error", math.nan), width)
    assert max(cell_len(line) for line in text.splitlines()) <= width


def test_a_console_that_is_gone_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    file = io.StringIO()
    file.close()
    print_end_tables(Console(file=file, _environ={}), PROGRESS, ACTORS, RunEnd("max_opts"))
    assert len(caplog.records) == 1


def test_what_may_be_typed_next_stands_last() -> None:
    text = printed(PROGRESS, ACTORS, RunEnd("sigint", next_command="border-train resume='runs/a b'"))
    assert text.rstrip().splitlines()[-1] == "next     border-train resume='runs/a b'"
    assert "next" not in printed(PROGRESS, ACTORS, RunEnd("sigint"))


def test_samples_per_second_are_those_of_this_launch() -> None:
    actor = ActorStat(0, env_steps=1500, env_steps_before=1000, seconds=2.0)
    assert actor.samples_per_sec == 250
    text = printed(PROGRESS, [actor, dataclasses.replace(actor, actor=1)], RunEnd("max_opts"))
    assert {row[0]: row[4] for row in rows(text) if row[0] in ("0", "1", "all")} == {
        "0": "250",
        "1": "250",
        "all": "500",
    }
