"""`border-report`: statistics against values by hand, groups, curves of unequal length, and the command itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from border_cli.agents.dqn.config import DqnConfig
from border_cli.cli.report import main
from border_cli.config.convert import to_plain
from border_cli.config.schema import EnvConfig, PresetConfig, TrainConfig
from border_cli.report.collect import find_runs, grouped, read_run
from border_cli.report.compare import band, line
from border_cli.report.statistics import bootstrap, interquartile_mean
from border_cli.report.write import table

# -- statistics ---------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([5.0], 5.0),
        ([1.0, 3.0], 2.0),
        ([1.0, 2.0, 9.0], 4.0),  # a quarter of three is none
        ([4.0, 1.0, 3.0, 100.0], 3.5),
        ([1.0, 2.0, 3.0, 4.0, 100.0], 3.0),
        ([0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 50.0, 60.0], 2.5),
    ],
)
def test_interquartile_mean_by_hand(values: list[float], expected: float) -> None:
    assert interquartile_mean(np.array(values)) == expected


def test_the_interval_of_two_runs_is_what_can_be_drawn_from_them() -> None:
    """Of two runs 0 and 1 the mean of a resample is 0, 0.5 or 1, with the probabilities 1/4, 1/2, 1/4."""
    (found,) = bootstrap(np.array([[0.0, 1.0]]))
    assert (found.value, found.low, found.high) == (0.5, 0.0, 1.0)


def test_the_interval_of_many_runs_is_that_of_their_trimmed_mean() -> None:
    """Of normal values the standard deviation of the interquartile mean is about 1.09/sqrt(n)."""
    values = np.random.default_rng(0).normal(size=(200, 100))
    found = bootstrap(values, resamples=1000)
    covered = np.mean([one.low <= 0 <= one.high for one in found])
    assert 0.9 <= covered <= 0.99
    half = np.mean([(one.high - one.low) / 2 for one in found])
    assert half == pytest.approx(1.96 * 1.09 / 10, rel=0.1)


def test_one_run_has_no_interval_and_the_same_runs_have_the_same() -> None:
    (one,) = bootstrap(np.array([[7.0]]))
    assert (one.low, one.value, one.high) == (7.0, 7.0, 7.0)
    values = np.random.default_rng(1).normal(size=(3, 5))
    assert bootstrap(values) == bootstrap(values)
    assert bootstrap(np.array([[3.0, 3.0, 3.0]]))[0].low == 3.0


# -- runs ---------------------------------------------------------------


def write_run(
    folder: Path, points: list[tuple[int, float, float]], status: str = "done", **changes: Any
) -> None:
    """points: env steps, seconds and score of each evaluation. changes: lr, seed, and the preset's expectation."""
    config = TrainConfig(
        agent=DqnConfig(lr=changes.get("lr", 1e-3)),
        env=EnvConfig(id=changes.get("env", "CartPole-v1")),
        preset=PresetConfig(
            "p", expect_return=changes.get("expected"), expect_env_steps=changes.get("after")
        ),
        seed=changes.get("seed", 0),
    )
    folder.mkdir(parents=True)
    env_steps, _, score = points[-1]
    summary = {
        "status": status,
        "best_score": {"opt_steps": 1, "mean": max(point[2] for point in points)},
        "last_score": {"opt_steps": 1, "mean": score},
        "counters": {"env_steps": env_steps},
        "config": to_plain(config),
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    lines = [
        json.dumps({"opt_steps": n, "env_steps": n, "time": t, "eval/return_mean": value})
        for n, t, value in points
    ]
    other = json.dumps({"opt_steps": 0, "env_steps": 0, "time": 0.0, "train/episodes": 1})
    (folder / "metrics.jsonl").write_text("\n".join([other, *lines]) + "\n")


def groups_in(folder: Path) -> list[Any]:
    runs = [read_run(path, "eval/return_mean") for path in find_runs([folder])]
    return grouped([run for run in runs if run is not None])


def test_a_preset_is_judged_where_every_run_went_far_enough(tmp_path: Path) -> None:
    for folder, lengths in (("far", (100, 120)), ("short", (100, 5))):
        for seed, env_steps in enumerate(lengths):
            points = [(1, 0.0, 3.0), (env_steps, 1.0, 3.0)]
            write_run(tmp_path / folder / f"{seed}", points, seed=seed, expected=2.0, after=100)
        (group,) = groups_in(tmp_path / folder)
        assert (line(group).expected, line(group).meets) == ((2.0, True) if folder == "far" else (None, None))


def test_runs_are_grouped_by_all_but_their_seed(tmp_path: Path) -> None:
    for seed in (1, 2):
        for lr in (1e-3, 5e-4):
            write_run(tmp_path / f"{lr}" / f"{seed}", [(10, 1.0, 0.0), (20, 2.0, 1.0)], lr=lr, seed=seed)
    groups = groups_in(tmp_path)
    assert [(group.name, sorted(run.seed for run in group.runs)) for group in groups] == [
        ("dqn on CartPole-v1 agent.lr=0.0005", [1, 2]),
        ("dqn on CartPole-v1 agent.lr=0.001", [1, 2]),
    ]


def test_what_differs_is_named_among_runs_of_one_agent_in_one_environment(tmp_path: Path) -> None:
    for i, (env, lr) in enumerate((("CartPole-v1", 1e-3), ("CartPole-v1", 5e-4), ("Acrobot-v1", 2e-3))):
        write_run(tmp_path / f"{i}", [(10, 1.0, 0.0)], lr=lr, env=env)
    assert [(group.name, group.env) for group in groups_in(tmp_path)] == [
        ("dqn on CartPole-v1 agent.lr=0.001", "CartPole-v1"),
        ("dqn on CartPole-v1 agent.lr=0.0005", "CartPole-v1"),
        ("dqn on Acrobot-v1", "Acrobot-v1"),
    ]


def test_a_run_that_does_not_say_how_it_was_configured_is_a_group_of_its_own(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_run(tmp_path / name, [(10, 1.0, 0.0)])
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        del summary["config"]
        (tmp_path / name / "summary.json").write_text(json.dumps(summary))
    assert sorted(group.name for group in groups_in(tmp_path)) == ["one", "two"]


def test_groups_never_have_the_same_name(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write_run(tmp_path / folder / "0", [(10, 1.0, 0.0)])
        summary = json.loads((tmp_path / folder / "0" / "summary.json").read_text())
        del summary["config"]
        (tmp_path / folder / "0" / "summary.json").write_text(json.dumps(summary))
    assert sorted(group.name for group in groups_in(tmp_path)) == ["0", "0 (2)"]


def test_curves_of_unequal_length_go_as_far_as_the_shortest(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [(0, 0.0, 0.0), (100, 10.0, 100.0)], seed=1)
    write_run(tmp_path / "b", [(20, 1.0, 20.0), (40, 2.0, 80.0), (60, 3.0, 80.0)], seed=2)
    (group,) = groups_in(tmp_path)
    found = band(group, "env_steps")
    assert (found.at[0], found.at[-1]) == (20.0, 60.0)
    at = dict(zip(found.at.tolist(), found.intervals, strict=True))
    assert at[60.0].value == (60.0 + 80.0) / 2
    assert at[20.0].value == 20.0
    nearest = min(at, key=lambda place: abs(place - 30.0))
    assert at[nearest].value == pytest.approx((nearest + 20 + 3 * (nearest - 20)) / 2)
    assert band(group, "seconds").at[-1] == 3.0


def test_the_final_line(tmp_path: Path) -> None:
    for seed, (best, last) in enumerate([(10.0, 1.0), (20.0, 2.0), (30.0, 3.0), (40.0, 40.0)]):
        points = [(50, 1.0, best), (100, 2.0, last)]
        write_run(
            tmp_path / str(seed),
            points,
            seed=seed,
            expected=25.0,
            after=100,
            status="done" if seed else "stopped",
        )
    found = line(groups_in(tmp_path)[0])
    assert found.best is not None and found.last is not None
    assert (found.best.value, found.last.value) == (25.0, 2.5)
    assert (found.runs, found.env_steps, found.unfinished, found.expected, found.meets) == (
        4,
        100,
        1,
        25.0,
        True,
    )


def test_repeats_of_a_seed_and_runs_without_a_score_are_told(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_run(tmp_path / name, [(10, 1.0, 4.0)], seed=seed)
    summary = json.loads((tmp_path / "c" / "summary.json").read_text())
    summary |= {"status": "running", "best_score": None}
    (tmp_path / "c" / "summary.json").write_text(json.dumps(summary))
    found = line(groups_in(tmp_path)[0])
    assert (found.runs, found.seeds, found.scored, found.unfinished) == (3, 2, 2, 1)
    assert found.best is not None and found.best.value == 4.0
    assert table([found])[1][1] == "3 (2 seeds, 1 unfinished, 1 without a score)"


def test_nothing_is_expected_of_a_run_that_was_shorter(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [(50, 1.0, 1.0)], expected=25.0, after=100)
    found = line(groups_in(tmp_path)[0])
    assert (found.expected, found.meets) == (None, None)


# -- the command --------------------------------------------------------


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for seed in (1, 2, 3):
        write_run(
            Path("runs") / f"{seed}", [(10, 1.0, 5.0), (20, 2.0, seed)], seed=seed, expected=9.0, after=20
        )
    return Path("runs")


def test_it_writes_a_page_and_pictures(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="extra report is not installed")
    assert main([]) == 0
    page = Path("report/report.md").read_text()
    assert "| dqn on CartPole-v1 | 3 | 20 | 5.00 | 2.00 (1.00 to 3.00) |" in page
    assert "9.00: not met" in page
    for name in ("env_steps.png", "seconds.png"):
        assert (Path("report") / name).read_bytes().startswith(b"\x89PNG")
        assert f"({name})" in page
    assert "written: report/report.md" in capsys.readouterr().out


def test_every_environment_has_pictures_of_its_own(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="extra report is not installed")
    write_run(runs / "other", [(10, 1.0, -5.0), (20, 2.0, -4.0)], env="my_envs:Corridor")
    assert main([]) == 0
    names = {path.name for path in Path("report").iterdir()}
    ends = ("env_steps.png", "seconds.png")
    assert names == {"report.md"} | {
        f"{env}_{end}" for env in ("CartPole-v1", "my_envs-Corridor") for end in ends
    }


def test_few_runs_are_said_to_be_few(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "fewer than 5 runs" in capsys.readouterr().out
    assert "fewer than 5 runs" in Path("report/report.md").read_text()
    for seed in (4, 5):
        write_run(runs / f"{seed}", [(10, 1.0, 5.0), (20, 2.0, seed)], seed=seed, expected=9.0, after=20)
    assert main([]) == 0
    assert "fewer than" not in capsys.readouterr().out + Path("report/report.md").read_text()


def test_json_holds_everything_and_writes_nothing(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "runs"]) == 0
    data = json.loads(capsys.readouterr().out)
    (group,) = data["groups"]
    assert (group["runs"], group["meets_expectation"], group["last"]["value"]) == (3, False, 2.0)
    assert len(data["curves"]["env_steps"]["dqn on CartPole-v1"]["at"]) == 100
    assert not Path("report").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nowhere: there is no such folder"),
        (["."], "none of 3 runs has a record of eval/mean"),
        (["."], "nearest: eval/return_mean"),
        (["--jsn"], "nearest: --json"),
        (["outt=x"], "nearest: out="),
        (["out="], "out=: has no value"),
    ],
)
def test_mistakes_get_a_line(
    runs: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    extra = ["metric=eval/mean"] if words == ["."] else []
    assert main([*words, *extra]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) <= 3


def test_a_folder_without_runs_and_a_broken_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main([str(tmp_path / "empty")]) == 2
    assert "there is no run at or below it" in capsys.readouterr().err
    write_run(tmp_path / "broken", [(1, 1.0, 1.0)])
    (tmp_path / "broken" / "summary.json").write_text("{")
    assert main([str(tmp_path / "broken")]) == 2
    assert "cannot be read" in capsys.readouterr().err
