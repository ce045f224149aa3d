"""The run directory and the metrics of a synchronous and an asynchronous run."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import border_cli
from border_cli.checkpoints.contents import read_run_state
from border_cli.cli.eval import main as evaluate_main
from border_cli.cli.train import main
from border_cli.config.convert import dotted, to_config, to_plain
from border_cli.config.resolve import resolve, with_env_facts
from border_cli.core.metrics import METRICS
from border_cli.core.types import Evaluation
from border_cli.runtime import machine
from tests.real_runs import Run, in_folder, tiny, train
from tests.trained import read_checkpoint

MAX_OPTS, EVAL, SAVE, RECORD, KEEP, WARMUP = 100, 40, 30, 20, 2, 50
ARGS = (
    f"trainer.max_opts={MAX_OPTS}",
    f"trainer.eval_interval={EVAL}",
    f"trainer.save_interval={SAVE}",
    f"trainer.record_interval={RECORD}",
    f"checkpoint.keep={KEEP}",
    "recorder.tensorboard=true",
    "recorder.csv=true",
    "seed=3",
)
TRAINERS = {
    "sync": ("trainer=sync",),
    # Evaluated inline, so that each score is known at the next checkpoint.
    "async": ("trainer=async", "n_actors=2", "evaluator=inline"),
}
EVALUATED = [40, 80, 100]
SAVED = [30, 60, 90, 100]
RECORDED = [0, 20, 40, 60, 80, 100]


@pytest.fixture(scope="module", params=list(TRAINERS))
def trainer(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def args(trainer: str) -> list[str]:
    return tiny(*ARGS, *TRAINERS[trainer])


@pytest.fixture(scope="module")
def run(args: list[str], tmp_path_factory: pytest.TempPathFactory, full_forkserver: None) -> Iterator[Run]:
    """A finished run, which most tests of this file read."""
    with in_folder(tmp_path_factory.mktemp("run")):
        yield train(*args)


# -- the directory ------------------------------------------------------


def test_the_directory_has_the_documented_name_and_files(run: Run) -> None:
    root = Path("runs").resolve()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d/\d\d-\d\d-\d\d\.\d{3}_dqn_cartpole", str(run.path.relative_to(root))
    )
    assert (root / "latest").is_symlink()
    assert (root / "latest").resolve() == run.path
    folders = {".hydra", "tensorboard", "checkpoints", "best"}
    files = {
        ".lock",
        "config.yaml",
        "provenance.json",
        "metrics.jsonl",
        "metrics.csv",
        "train.log",
        "summary.json",
    }
    assert {entry.name for entry in run.path.iterdir()} == folders | files


def test_config_yaml_is_the_resolved_configuration(
    run: Run, args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*args, "--cfg", "job"]) == 0
    composed = yaml.safe_load(capsys.readouterr().out)
    assert composed["checkpoint"]["replay"] == composed["env"]["action_mask"] == "auto"
    facts = {"replay_fits": True, "screen": False, "init_from": None, "cpus": machine.cpus()}
    resolved = resolve(with_env_facts(to_config(composed), "none", {}), **facts)
    assert to_plain(resolved) == to_plain(run.config)
    # a free-running run chooses the form of its opt steps, and the number of threads, again and again while it trains
    is_async = run.config.trainer.type == "async"
    chosen = ["agent.compile"] if is_async else []
    assert [key for key, value in dotted(to_plain(run.config)).items() if value == "auto"] == chosen
    assert run.config.threads == (None if is_async else 1)
    assert (run.config.trainer.max_opts, run.config.trainer.max_env_steps) == (MAX_OPTS, None)


def test_hydras_files_and_the_provenance_describe_the_launch(run: Run, args: list[str]) -> None:
    hydra = run.path / ".hydra"
    overrides = yaml.safe_load((hydra / "overrides.yaml").read_text(encoding="utf-8"))
    assert sorted(word.lstrip("+") for word in overrides) == sorted(args)
    composed = yaml.safe_load((hydra / "config.yaml").read_text(encoding="utf-8"))
    assert composed["agent"]["hidden"] == [16]
    output = yaml.safe_load((hydra / "hydra.yaml").read_text(encoding="utf-8"))["hydra"]["runtime"]
    assert Path(output["output_dir"]) == run.path
    data = run.json("provenance.json")
    assert (data["seeds"], data["run_id"]) == ({"root": 3}, run.summary["run_id"])
    assert data["versions"]["border_cli"] == border_cli.__version__
    assert {"python", "torch", "numpy", "gymnasium", "hydra", "safetensors"} <= data["versions"].keys()
    assert data["git"] is None  # the run was started outside any repository
    assert {"name", "platform", "cpu_count"} <= data["host"].keys()
    (launch,) = data["launches"]
    assert launch["command"].startswith("border-train preset=none")
    assert "seed=3" in launch["command"].split()
    assert launch["cwd"] == str(Path.cwd())
    assert datetime.fromisoformat(launch["time"]).tzinfo is not None


def test_checkpoints_are_named_by_their_opt_steps_and_the_newest_are_kept(run: Run) -> None:
    assert run.checkpoints == ["step-000000090", "step-000000100"]
    for name, opt_steps in zip(run.checkpoints, SAVED[-KEEP:], strict=True):
        checkpoint = read_checkpoint(run.path / "checkpoints" / name)
        assert checkpoint.opt_steps == opt_steps
        assert checkpoint.training is not None
        assert checkpoint.training.values["opt_steps"] == opt_steps
        assert checkpoint.generators["seed"] == 3


def test_the_last_checkpoint_has_the_model_the_counts_and_the_last_but_one_score(
    run: Run,
) -> None:
    path = run.path / "checkpoints" / run.checkpoints[-1]
    last, state, counts = read_checkpoint(path), read_run_state(path, False), run.summary["counters"]
    assert [state.loop["limiter"][name] for name in ("opt_steps", "env_steps")] == list(run.counts)
    assert state.loop["telemetry"]["episodes"] == counts["episodes"]
    _, (before, last_score), (result, _) = run.series("eval/return_mean")
    assert (before, result) == (80, MAX_OPTS)
    assert Evaluation.from_json(state.evaluation.values["last"]).mean == last_score
    assert last.training is not None
    for name, weights in last.model.info.arrays.items():
        np.testing.assert_array_equal(weights, last.training.arrays[f"online.params.{name}"])


def test_the_score_of_best_is_from_fresh_episodes_and_in_the_summary(run: Run) -> None:
    regular = run.series("eval/return_mean")
    kept = read_checkpoint(run.path / "best")
    assert kept.score is not None
    assert kept.opt_steps == kept.score.opt_steps
    assert len(kept.score.returns) == 2
    score = run.json("best/score.json")
    assert (score["regular"]["mean"], score["confirmed"]) == (dict(regular)[kept.opt_steps], True)
    assert run.summary["best_score"] == {"opt_steps": kept.opt_steps, "mean": kept.score.mean}
    assert run.summary["best_confirmed"] is True
    assert run.summary["last_score"]["opt_steps"] == regular[-1][0]


def test_the_summary_says_how_the_run_ended(run: Run, trainer: str) -> None:
    summary = run.summary
    assert (summary["status"], summary["ended_by"], summary["exit_code"]) == ("done", "max_opts", 0)
    assert summary["error"] is None
    assert summary["counters"]["opt_steps"] == MAX_OPTS
    assert summary["seconds"] > 0
    assert summary["throughput"]["opt_steps_per_sec"] == pytest.approx(MAX_OPTS / summary["seconds"])
    actors = summary["actors"]
    assert [actor["actor"] for actor in actors] == ([0] if trainer == "sync" else [0, 1])
    assert {actor["state"] for actor in actors} == {"done"}
    # Env steps between the last opt step and the stop do not count for the run.
    assert sum(actor["env_steps"] for actor in actors) >= summary["counters"]["env_steps"]


def test_the_summary_says_running_during_training_and_the_log_names_the_process(
    workplace: Path,
) -> None:
    """The environments copy the summary of their run. After the run logging is configured as before."""
    root, package = logging.getLogger(), logging.getLogger("border_cli")
    before = (list(root.handlers), root.level, list(package.handlers), package.level)
    entry_point = ["env=gym", "env.entry_point=tests.envs:Onlooker", "env.kwargs.summary=run/summary.json"]
    folder = ["env.kwargs.seen=seen.json", "hydra.run.dir=run", "evaluator=inline"]
    assert main(tiny(*entry_point, *folder, "trainer.max_opts=10", "n_actors=2")) == 0
    assert (list(root.handlers), root.level, list(package.handlers), package.level) == before
    run = Run(workplace / "run")
    seen: dict[str, Any] = json.loads(Path("seen.json").read_text(encoding="utf-8"))
    final = run.summary
    assert seen.keys() == final.keys()
    assert (seen["status"], seen["ended_by"], seen["exit_code"]) == ("running", None, None)
    assert (final["status"], final["run_id"]) == ("done", seen["run_id"])
    log = (run.path / "train.log").read_text(encoding="utf-8")
    logged = set(re.findall(r" WARNING (\S+) tests.envs: (.*)", log))
    of_actors = {(f"actor-{ix}", f"actor {ix}: an onlooker was made") for ix in range(2)}
    assert logged == {("MainProcess", "an onlooker was made")} | of_actors


def test_train_log_has_the_version_the_saves_and_the_end(run: Run) -> None:
    log = (run.path / "train.log").read_text(encoding="utf-8")
    assert " INFO MainProcess border_cli: border-cli " in log.splitlines()[0]
    assert log.count(": checkpoint at opt step ") == len(SAVED)
    assert ": new best at opt step " in log
    assert f": ended by {run.summary['ended_by']}: " in log.splitlines()[-1]


# -- the metrics --------------------------------------------------------


def test_every_metric_is_declared_and_steps_and_times_never_decrease(run: Run) -> None:
    head = {"opt_steps", "env_steps", "time"}
    for record in run.records:
        assert head < record.keys()
        assert record.keys() - head <= METRICS.keys()
        assert all(value is None or np.isfinite(value) for value in record.values())
    for name in {name for record in run.records for name in record} - head:
        places = [(r["opt_steps"], r["env_steps"], r["time"]) for r in run.records if name in r]
        for before, after in pairwise(places):
            assert all(a <= b for a, b in zip(before, after, strict=True)), name


def test_all_metrics_of_the_agent_and_the_run_are_recorded(run: Run, trainer: str) -> None:
    recorded = {name for record in run.records for name in record}
    expected = {"agent/loss", "agent/q_mean", "agent/target_mean", "agent/grad_norm"}
    expected |= {"train/episode_return", "train/episode_length", "replay/size", "replay/fill"}
    expected |= {f"throughput/{name}_per_sec" for name in ("samples", "opt_steps")}
    expected |= {"throughput/samples_total", "throughput/samples_per_opt_step"}
    expected |= {f"time/{name}_ms" for name in ("opt", "collect", "eval", "save")}
    assert expected <= recorded
    asynchronous = {name for name in METRICS if name.startswith("async/")}
    assert asynchronous & recorded == (set() if trainer == "sync" else asynchronous)


def test_evaluations_saves_and_records_happen_at_their_intervals_and_at_the_end(run: Run) -> None:
    assert run.steps("eval/return_mean") == EVALUATED
    assert run.saves == SAVED
    assert run.steps("throughput/samples_total") == RECORDED
    assert run.steps("agent/loss") == RECORDED[1:]


def test_counts_and_ratio_of_the_records_agree_with_their_steps(run: Run) -> None:
    """The first record ends the warm-up. Every episode is counted in one record."""
    first = run.records[0]
    assert first["opt_steps"] == 0
    assert first["env_steps"] == first["throughput/samples_total"] > WARMUP
    assert "throughput/samples_per_opt_step" not in first
    episodes = [count for _, count in run.series("train/episodes")]
    assert sum(episodes) == run.summary["counters"]["episodes"] > 0
    for record in run.records:
        if "throughput/samples_total" in record:
            assert record["throughput/samples_total"] == record["env_steps"]
        if "throughput/samples_per_opt_step" in record:
            ratio = (record["env_steps"] - WARMUP) / record["opt_steps"]
            assert record["throughput/samples_per_opt_step"] == ratio
        if "replay/size" in record:
            assert record["replay/fill"] == record["replay/size"] / run.config.buffer.capacity


def test_tensorboard_holds_the_same_scalars(run: Run) -> None:
    """At their env steps. The count of opt steps is a scalar too."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.path / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    tags = set(events.Tags()["scalars"])
    assert tags == {name for record in run.records for name in record} - {"env_steps", "time"}
    for tag in tags:
        recorded = [(event.step, event.value) for event in events.Scalars(tag)]
        expected = [
            (record["env_steps"], float(np.float32(record[tag]))) for record in run.records if tag in record
        ]
        if tag == "opt_steps":  # not of late evaluations, whose steps would go back
            expected = [point for i, point in enumerate(expected) if point >= max(expected[: i + 1])]
        assert recorded == expected, tag


def test_a_csv_file_has_a_line_for_each_value(run: Run) -> None:
    head, *lines = (run.path / "metrics.csv").read_text().splitlines()
    assert head == "opt_steps,env_steps,time,metric,value"
    rows = [line.split(",") for line in lines]
    scores = [(int(row[0]), float(row[4])) for row in rows if row[3] == "eval/return_mean"]
    assert scores == run.series("eval/return_mean")


def test_numbers_of_the_info_at_the_end_of_episodes_are_recorded(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In training, in evaluations, on the screen and in border-eval. Every second episode of an environment is even."""
    run = train(
        *("env=gym", "env.entry_point=tests.envs:Reporting", "trainer=sync", "evaluator=process"),
        *("env.info_keys=[is_even,label,missing]", "trainer.max_opts=50", "trainer.record_interval=50"),
        *(
            "trainer.eval_interval=50",
            "evaluator.episodes=20",
            "evaluator.n_envs=10",
            "recorder.console=plain",
        ),
    )
    assert run.series("env/is_even")[-1][1] == 0.5
    assert run.series("eval/is_even") == [(50, 0.5)]
    assert {name for record in run.records for name in record if name.startswith("env/")} == {"env/is_even"}
    assert " eval/is_even=0.5" in capsys.readouterr().out
    log = (run.path / "train.log").read_text()
    assert log.count("env.info_keys: label: the info at the end of an episode has no number") >= 1
    assert "env.info_keys: missing: the info at the end of an episode has none; it has is_even, label" in log
    assert evaluate_main([str(run.path), "episodes=10", "trust=true"]) == 0
    assert re.search(r"\| mean is_even +\| +0\.00 \|", capsys.readouterr().out)
