"""`border-report`: statistics against values by hand, groups, curves of unequal length, and the command itself."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from border_cli.agents.dqn.config import DqnConfig
from border_cli.agents.sac.config import SacConfig
from border_cli.cli.report import main
from border_cli.config.convert import to_plain
from border_cli.config.schema import EnvConfig, PresetConfig, TrainConfig
from border_cli.core.metrics import SCORE, mean_interval, t975
from border_cli.report.page import Report, differences, few_runs, html_page, table, write_curves
from border_cli.report.runs import find_runs, grouped, read_run
from border_cli.report.stats import (
    band,
    bootstrap,
    improvements,
    interquartile_mean,
    line,
    probability_of_improvement,
)
from border_cli.run.summary import record_launch
from border_cli.sweeps.jobs import Sweep


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 2.0, 9.0], 4.0),  # a quarter of three runs is none
        ([4.0, 1.0, 3.0, 100.0], 3.5),
        ([0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 50.0, 60.0], 2.5),
    ],
)
def test_interquartile_mean_by_hand(values: list[float], expected: float) -> None:
    assert interquartile_mean(np.array(values)) == expected


def test_the_interval_of_three_runs_spans_their_resamples_and_fewer_runs_have_none() -> None:
    """All three of a resample are 0, or 1.5, with probability 1/27 each: more than the 2.5% beyond each end."""
    three, equal, single = (
        bootstrap(np.array([runs]))[0] for runs in ([0.0, 0.3, 1.5], [3.0, 3.0, 3.0], [7.0])
    )
    assert (three.low, three.value, three.high) == pytest.approx((0.0, 0.6, 1.5))
    assert (single.low, single.value, single.high) == (7.0, 7.0, 7.0)
    assert equal.low == 3.0


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [
        *((1, 12.7062), (2, 4.3027), (10, 2.2281), (20, 2.0860)),
        *((21, 2.0796), (60, 2.0003), (1000, 1.9623), (10**9, 1.9600)),
    ],
)
def test_quantiles_of_students_t(freedom: int, quantile: float) -> None:
    assert t975(freedom) == pytest.approx(quantile, abs=6e-5)


def test_the_interval_by_hand() -> None:
    # mean 3, sample variance (4 + 1 + 0 + 1 + 4) / 4 = 2.5, half = 2.7764 · sqrt(2.5 / 5)
    half = 2.7764 * math.sqrt(0.5)
    assert mean_interval((1.0, 2.0, 3.0, 4.0, 5.0)) == pytest.approx((3 - half, 3 + half))
    assert mean_interval((500.0,) * 100) == (500.0, 500.0)
    assert mean_interval((500.0,)) is None


def write_run(
    folder: Path, points: list[tuple[int, float, float]], status: str = "done", **changes: Any
) -> None:
    """Write a run. points: env steps, seconds and score of each evaluation. changes: lr, seed and other values."""
    config = TrainConfig(
        agent=DqnConfig(lr=changes.get("lr", 1e-3), **changes.get("agent", {})),
        env=EnvConfig(id=changes.get("env", "CartPole-v1")),
        preset=PresetConfig(
            "p", expect_return=changes.get("expected"), expect_env_steps=changes.get("after")
        ),
        seed=changes.get("seed", 0),
    )
    plain = to_plain(config)
    for key, value in changes.get("values", {}).items():
        *sections, name = key.split(".")
        functools.reduce(dict.__getitem__, sections, plain)[name] = value
    folder.mkdir(parents=True)
    env_steps, _, score = points[-1]
    summary = {
        "status": status,
        "best_score": {"opt_steps": 1, "mean": max(point[2] for point in points)},
        "last_score": {"opt_steps": 1, "mean": score},
        "counters": {"env_steps": changes.get("total", env_steps)},
        "seconds": changes.get("seconds"),
        "config": plain,
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    if "command" in changes:
        record_launch(folder, changes["command"].split(), config.seed)
    lines = [
        json.dumps({"opt_steps": n, "env_steps": n, "time": t, "eval/return_mean": value})
        for n, t, value in points
    ]
    other = json.dumps({"opt_steps": 0, "env_steps": 0, "time": 0.0, "train/episodes": 1})
    (folder / "metrics.jsonl").write_text("\n".join([other, *lines]) + "\n")


def groups_in(folder: Path) -> list[Any]:
    return grouped([read_run(path) for path in find_runs([folder])])


def test_runs_are_grouped_by_everything_but_the_seed_and_named_by_their_differences(tmp_path: Path) -> None:
    cartpole, acrobot = "CartPole-v1", "Acrobot-v1"
    runs = [(cartpole, 1e-3, 1), (cartpole, 5e-4, 1), (acrobot, 2e-3, 1), (cartpole, 1e-3, 2)]
    for i, (env, lr, seed) in enumerate(runs):
        write_run(tmp_path / f"{i}", [(10, 1.0, 0.0), (20, 2.0, 1.0)], lr=lr, env=env, seed=seed)
    assert [(group.name, group.env, len(group.runs)) for group in groups_in(tmp_path)] == [
        ("dqn on CartPole-v1 agent.lr=0.001", "CartPole-v1", 2),
        ("dqn on CartPole-v1 agent.lr=0.0005", "CartPole-v1", 1),
        ("dqn on Acrobot-v1", "Acrobot-v1", 1),
    ]


def test_a_group_is_named_by_what_was_typed_and_else_by_what_differs(
    tmp_path: Path,
) -> None:
    clipping = "-m env=cartpole agent.lr=5e-4,1e-3 agent.reward_clip=null"
    runs: list[tuple[str, dict[str, Any]]] = [
        (clipping, {"reward_clip": None, "loss": "mse"}),
        ("env=cartpole +agent.double=false agent.lr=5e-4", {"double": False}),
        *(("", {"lr_schedule": schedule}) for schedule in ("linear", "cosine")),
    ]
    for i, (command, agent) in enumerate(runs):
        write_run(tmp_path / f"{i}", [(10, 1.0, 0.0)], agent={"reward_clip": 1.0} | agent, command=command)
    assert [group.name for group in groups_in(tmp_path)] == [
        "dqn on CartPole-v1 agent.reward_clip=null",
        "dqn on CartPole-v1 agent.double=false",
        "dqn on CartPole-v1 agent.lr_schedule=linear",
        "dqn on CartPole-v1 agent.lr_schedule=cosine",
    ]


@pytest.mark.parametrize(
    ("key", "values", "command", "n_groups"),
    [
        ("evaluator.type", ("inline", "process"), "evaluator=auto", 1),
        ("evaluator.type", ("inline", "success"), "plugins=[my]", 2),
        ("threads", (1, 2), "", 1),
        ("threads", (1, 2), "-m threads=1,2", 2),
        ("n_actors", (1, 2), "", 2),  # of presets, or a file
    ],
)
def test_what_auto_has_chosen_does_not_divide_runs(
    tmp_path: Path, key: str, values: tuple[Any, Any], command: str, n_groups: int
) -> None:
    for value in values:
        write_run(tmp_path / str(value), [(1, 1.0, 1.0)], command=command, values={key: value})
    assert len(groups_in(tmp_path)) == n_groups


def test_curves_end_with_the_shortest_run_in_env_steps_and_the_longest_in_seconds(
    tmp_path: Path,
) -> None:
    write_run(tmp_path / "a", [(0, 0.0, 0.0), (100, 10.0, 100.0)], seed=1)
    write_run(tmp_path / "b", [(20, 1.0, 20.0), (40, 2.0, 80.0), (60, 3.0, 80.0)], seed=2)
    (group,) = groups_in(tmp_path)
    curve = band(group, SCORE, "env_steps")
    assert curve is not None
    assert (curve.at[0], curve.at[-1]) == (20.0, 60.0)
    at = dict(zip(curve.at.tolist(), curve.intervals, strict=True))
    assert at[60.0].value == (60.0 + 80.0) / 2
    assert at[20.0].value == 20.0
    nearest = min(at, key=lambda place: abs(place - 30.0))
    assert at[nearest].value == pytest.approx((nearest + 20 + 3 * (nearest - 20)) / 2)
    over_seconds = band(group, SCORE, "seconds")
    assert over_seconds is not None and band(group, SCORE, "cpu_seconds") is None  # which was not recorded
    assert (over_seconds.at[-1], over_seconds.intervals[-1].value) == (10.0, (100.0 + 80.0) / 2)


def test_runs_with_one_record_at_the_same_place_have_one_point(tmp_path: Path) -> None:
    for seed in (1, 2):
        write_run(tmp_path / f"{seed}", [(100, 10.0, seed)], seed=seed)
    curve = band(groups_in(tmp_path)[0], SCORE, "env_steps")
    assert curve is not None
    assert curve.at.tolist() == [100.0] and [interval.value for interval in curve.intervals] == [1.5]


def test_keys_that_one_agent_lacks_are_no_difference_unless_they_were_typed(tmp_path: Path) -> None:
    for i, config in enumerate((DqnConfig(lr=0.5), SacConfig())):
        values = {"agent": to_plain(config)}
        write_run(tmp_path / f"{i}", [(1, 1.0, 1.0)], values=values, command="agent=x agent.critics=2")
    keys = [row[0] for row in differences(groups_in(tmp_path))]
    assert {"agent.type", "agent.lr", "agent.critics"} < set(keys)
    assert not {"agent.double", "agent.entropy_coef"} & set(keys)


def test_the_warning_about_few_runs_is_for_intervals_that_are_shown(tmp_path: Path) -> None:
    for n, is_warned in ((1, False), (2, False), (3, True), (4, True), (5, False)):
        write_run(tmp_path / f"{n}", [(1, 1.0, 1.0)], seed=n)
        assert bool(few_runs([line(group) for group in groups_in(tmp_path)])) == is_warned


def test_the_line_of_a_group(tmp_path: Path) -> None:
    for seed, (best, last) in enumerate([(10.0, 1.0), (20.0, 2.0), (30.0, 3.0), (40.0, 40.0)]):
        points, status = [(50, 1.0, best), (100, 2.0, last)], "done" if seed else "stopped"
        write_run(tmp_path / str(seed), points, seed=seed, expected=25.0, after=100, status=status)
    scores = line(groups_in(tmp_path)[0])
    assert scores.best is not None and scores.last is not None
    assert (scores.best.value, scores.last.value, scores.expected, scores.meets) == (25.0, 2.5, 25.0, True)
    assert (scores.runs, scores.env_steps, scores.unfinished) == (4, 100, 1)
    # runs are compared with the preset only if all are long enough, in env steps of the run, not of its last record
    write_run(tmp_path / "short", [(50, 1.0, 40.0)], seed=9, expected=25.0, after=100, total=70, seconds=3.5)
    scores = line(groups_in(tmp_path)[0])
    assert (scores.expected, scores.meets) == (None, None)
    assert "expected" not in table([scores])[0]
    (short,) = (run for run in groups_in(tmp_path)[0].runs if run.path.name == "short")
    assert (short.env_steps, short.seconds) == (70, 3.5)


def test_the_table_counts_repeated_seeds_and_runs_without_a_score(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_run(tmp_path / name, [(10, 1.0, 4.0)], seed=seed)
    path = tmp_path / "c" / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"status": "running", "best_score": None}))
    scores = line(groups_in(tmp_path)[0])
    assert (scores.runs, scores.seeds, scores.scored, scores.unfinished) == (3, 2, 2, 1)
    assert scores.best is not None and scores.best.value == 4.0
    assert table([scores])[1][1] == "3 (2 seeds, 1 unfinished, 1 without a score)"


def test_each_launch_counts_its_cpu_seconds_anew(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [(10, 1.5, 5.0), (20, 3.0, 6.0)])
    counted = [
        (1.0, 2.0),
        (2.0, 6.0),
        (3.0, 1.0),
    ]  # (seconds, CPU-seconds); the run was resumed after the second
    with (tmp_path / "a" / "metrics.jsonl").open("a") as file:
        for seconds, cpu in counted:
            record = {"opt_steps": 0, "env_steps": 0, "time": seconds, "time/cpu_s": cpu}
            file.write(json.dumps(record) + "\n")
    (group,) = groups_in(tmp_path)
    curve = band(group, SCORE, "cpu_seconds")
    assert curve is not None and curve.at.tolist() == [4.0, 7.0]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs, and a library that draws nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pytest.importorskip("plotly.offline"), "get_plotlyjs", lambda: "// plotly")
    for seed in (1, 2, 3):
        points = [(10, 1.0, 5.0), (20, 2.0, seed)]
        write_run(Path("runs") / f"{seed}", points, seed=seed, expected=9.0, after=20)
    return Path("runs")


def test_the_page_has_tables_and_every_curve(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = {"lr": 5e-4, "agent": {"double": False}}
    write_run(runs / "other", [(10, 1.0, -5.0), (20, 2.0, -4.0)], env="my_envs:<b>", **other)
    assert main([]) == 0
    assert {path.name for path in (runs / "report").iterdir()} == {"report.html", "curves.csv"}
    page = (runs / "report" / "report.html").read_text()
    assert "<h1>dqn on CartPole-v1, my_envs:&lt;b&gt;</h1>" in page and "<b>" not in page
    cells = ("dqn on CartPole-v1", "3", "20", "5.00", "2.00 (1.00 to 3.00)", "2.00", "9.00: not met")
    assert all(f">{cell}</td>" in page for cell in cells)
    assert "<td class=text>agent.double</td><td class=text>true</td><td class=text>false</td>" in page
    assert "fewer than 5 runs" in page
    data = json.loads(page.partition("const DATA = ")[2].partition(";</script>")[0])
    assert (data["envs"], list(data["metrics"])) == (
        ["CartPole-v1", "my_envs:<b>"],
        ["eval/return_mean", "train/episodes"],
    )
    three, single = data["groups"]
    assert (three["label"], single["label"]) == ("dqn", "dqn")
    assert three["runs"] == ["seed 1", "seed 2", "seed 3"] and "low" not in three["curves"][SCORE]["seconds"]
    assert single["curves"][SCORE]["env_steps"] == {
        "at": [10, 20],
        "mean": [-5, -4],
        "runs": [[[10, 20], [-5, -4]]],
    }
    assert "written: runs/report/report.html" in capsys.readouterr().out


def test_long_curves_are_averaged(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [(n, n, 2.0 * n) for n in range(1, 301)])
    page = html_page(Report(groups_in(tmp_path), SCORE))
    data = json.loads(page.partition("const DATA = ")[2].partition(";</script>")[0])
    curve = data["groups"][0]["curves"][SCORE]["env_steps"]
    assert (len(curve["at"]), curve["at"][:2], curve["mean"][:2]) == (150, [1.5, 3.5], [3, 7])


def test_json_has_everything_and_writes_no_file(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "runs"]) == 0
    data = json.loads(capsys.readouterr().out)
    (group,) = data["groups"]
    assert (group["runs"], group["meets_expectation"], group["last"]["value"]) == (3, False, 2.0)
    assert len(data["curves"]["env_steps"]["dqn on CartPole-v1"]["at"]) == 100
    assert data["improvements"] == []
    assert not Path("runs/report").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nowhere"], "nowhere: there is no such folder"),
        ([".", "metric=eval/mean"], "nearest: metric=eval/return_mean"),
        (["outt=x"], "nearest: out="),
        (["out="], "out=: the value is missing"),
    ],
)
def test_mistakes_are_refused(
    runs: Path, capsys: pytest.CaptureFixture[str], args: list[str], message: str
) -> None:
    assert main(args) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) <= 3


def test_no_runs_and_a_damaged_run_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main([str(tmp_path / "empty")]) == 2
    assert "there is no run at or below it" in capsys.readouterr().err
    write_run(tmp_path / "broken", [(1, 1.0, 1.0)])
    (tmp_path / "broken" / "summary.json").write_text("{")
    assert main([str(tmp_path / "broken")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_the_probability_of_improvement_by_hand() -> None:
    """1 and 2 beside 0 and 1.5: three of four pairs; 5 beside 5: a half. Runs that are all higher: 1, without doubt."""
    x, y = [np.array([1.0, 2.0]), np.array([5.0])], [np.array([0.0, 1.5]), np.array([5.0])]
    p = probability_of_improvement(x, y)
    assert p.value == (3 / 4 + 1 / 2) / 2
    assert 0.25 <= p.low < p.value < p.high <= 0.75
    assert probability_of_improvement(y, x).value == 1 - p.value
    sure = probability_of_improvement([np.array([3.0, 4.0])], [np.array([1.0, 2.0])])
    assert (sure.low, sure.value, sure.high) == (1.0, 1.0, 1.0)


def test_runs_of_one_seed_stay_apart_in_the_curves(tmp_path: Path) -> None:
    for name, values in (("a", (1.0, 2.0)), ("b", (100.0, 200.0))):
        write_run(tmp_path / name, [(10, 1.0, values[0]), (20, 2.0, values[1])], seed=1)
    write_curves(tmp_path / "curves.csv", groups_in(tmp_path), SCORE)
    rows = [line.split(",") for line in (tmp_path / "curves.csv").read_text().splitlines()[1:]]
    assert [(seed, value) for _, _, seed, _, _, value in rows] == [
        *(("1", "1.0"), ("1", "2.0"), ("1-2", "100.0"), ("1-2", "200.0")),
    ]


def test_a_sweep_says_which_of_its_jobs_have_no_result(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = Sweep(runs, ["seed=1,2"])
    job = sweep.add(["seed=9"], lambda number: runs / str(number))
    job.state, job.error = "failed", "no memory"
    sweep.save()
    assert main(["runs"]) == 0
    assert "note: job 0 (seed=9) is failed: no memory" in capsys.readouterr().out


def test_fewer_than_three_runs_have_neither_interval_nor_probability(tmp_path: Path) -> None:
    """The algorithm that is more often higher comes first."""
    for lr, seeds in ((1e-3, 3), (5e-4, 3), (2e-4, 2)):
        for seed in range(seeds):
            write_run(tmp_path / f"{lr}-{seed}", [(10, 1.0, lr * 1e4 + seed)], lr=lr, seed=seed)
    groups = groups_in(tmp_path)
    (pair,) = improvements(groups)
    assert pair.x == "dqn agent.lr=0.001" and pair.y == "dqn agent.lr=0.0005"
    assert pair.probability.value == 1.0
    of_two = next(row for row in map(line, groups) if row.runs == 2)
    assert of_two.last is not None and "to" not in str(of_two.last)
