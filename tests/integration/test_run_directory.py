"""What a run leaves: its directory (contract C4) and its metrics (contract C5), synchronous and asynchronous."""

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
from border_cli.cli.train import main
from border_cli.config.convert import to_config, to_plain
from border_cli.config.resolve import resolve
from border_cli.core.metrics import METRICS
from border_cli.runs import trust
from tests.real_runs import Run, in_folder, tiny, train
from tests.trained import read_checkpoint

MAX_OPTS, EVAL, SAVE, RECORD, KEEP, WARMUP = 100, 40, 30, 20, 2, 50
WORDS = (
    f"trainer.max_opts={MAX_OPTS}",
    f"trainer.eval_interval={EVAL}",
    f"trainer.save_interval={SAVE}",
    f"trainer.record_interval={RECORD}",
    f"checkpoint.keep={KEEP}",
    "recorder.tensorboard=true",
    "seed=3",
)
TRAINERS = {"sync": ("trainer=sync",), "async": ("trainer=async", "n_actors=2")}
EVALUATED = [40, 80, 100]
SAVED = [30, 60, 90, 100]
RECORDED = [0, 20, 40, 60, 80, 100]


@pytest.fixture(scope="module", params=list(TRAINERS))
def trainer(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def words(trainer: str) -> list[str]:
    return tiny(*WORDS, *TRAINERS[trainer])


@pytest.fixture(scope="module")
def run(words: list[str], tmp_path_factory: pytest.TempPathFactory, full_forkserver: None) -> Iterator[Run]:
    """One run that most tests of this file read."""
    with in_folder(tmp_path_factory.mktemp("run")):
        yield train(*words)


# -- the directory ------------------------------------------------------


def test_its_name_says_when_and_what_and_it_holds_what_the_page_names(run: Run) -> None:
    root = Path("runs").resolve()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d/\d\d-\d\d-\d\d\.\d{3}_dqn_cartpole", str(run.path.relative_to(root))
    )
    assert (root / "latest").is_symlink()
    assert (root / "latest").resolve() == run.path
    folders = {".hydra", "tensorboard", "checkpoints", "best"}
    files = {".lock", "config.yaml", "provenance.json", "metrics.jsonl", "train.log", "summary.json"}
    assert {entry.name for entry in run.path.iterdir()} == folders | files


def test_config_yaml_is_what_the_command_line_resolves_to(
    run: Run, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--cfg", "job"]) == 0
    composed = yaml.safe_load(capsys.readouterr().out)
    assert composed["checkpoint"]["replay"] == composed["env"]["action_mask"] == "auto"
    resolved = resolve(
        to_config(composed), action_mask="none", replay_fits=True, screen=False, init_from=None
    )
    assert to_plain(resolved) == to_plain(run.config)
    assert "auto" not in str(to_plain(run.config))
    assert (run.config.trainer.max_opts, run.config.trainer.max_env_steps) == (MAX_OPTS, None)


def test_hydras_files_are_those_of_this_launch(run: Run, words: list[str]) -> None:
    hydra = run.path / ".hydra"
    overrides = yaml.safe_load((hydra / "overrides.yaml").read_text(encoding="utf-8"))
    assert sorted(word.lstrip("+") for word in overrides) == sorted(words)
    composed = yaml.safe_load((hydra / "config.yaml").read_text(encoding="utf-8"))
    assert composed["agent"]["hidden"] == [16]
    output = yaml.safe_load((hydra / "hydra.yaml").read_text(encoding="utf-8"))["hydra"]["runtime"][
        "output_dir"
    ]
    assert Path(output) == run.path


def test_provenance_tells_where_the_run_came_from(run: Run) -> None:
    data = run.json("provenance.json")
    assert data["seeds"] == {"root": 3}
    assert data["versions"]["border_cli"] == border_cli.__version__
    assert {"python", "torch", "numpy", "gymnasium", "hydra", "safetensors"} <= data["versions"].keys()
    assert data["git"] is None  # it was started outside any repository
    assert {"name", "platform", "cpu_count"} <= data["host"].keys()
    (launch,) = data["launches"]
    assert launch["command"].startswith("border-train preset=none")
    assert "seed=3" in launch["command"].split()
    assert launch["cwd"] == str(Path.cwd())
    assert datetime.fromisoformat(launch["time"]).tzinfo is not None
    assert run.summary["run_id"] == data["run_id"]
    assert trust.is_own(data["run_id"])


def test_checkpoints_are_named_by_their_opt_steps_and_the_newest_are_kept(run: Run) -> None:
    assert run.checkpoints == ["step-000000090", "step-000000100"]
    for name, opt_steps in zip(run.checkpoints, SAVED[-KEEP:], strict=True):
        checkpoint = read_checkpoint(run.path / "checkpoints" / name)
        assert checkpoint.opt_steps == opt_steps
        assert checkpoint.counters["opt_steps"] == opt_steps
        assert checkpoint.training is not None
        assert checkpoint.training.values["opt_steps"] == opt_steps
        assert checkpoint.generators["seed"] == 3


def test_the_last_checkpoint_has_the_model_the_counts_and_the_scores_before_the_last_evaluation(
    run: Run,
) -> None:
    last = read_checkpoint(run.path / "checkpoints" / run.checkpoints[-1])
    counts = run.summary["counters"]
    assert {name: last.counters[name] for name in counts} == counts
    _, (before, last_score), (result, _) = run.series("eval/return_mean")
    assert (before, result) == (80, MAX_OPTS)
    assert last.counters["last_score"] == last_score
    compared = [step for step, _ in run.series("eval/holdout_mean") if step < result]
    assert last.counters["best_opt_steps"] in compared
    assert last.training is not None
    for name, weights in last.model.info.arrays.items():
        np.testing.assert_array_equal(weights, last.training.arrays[f"online.params.{name}"])


def test_best_has_the_fresh_episodes_of_its_comparisons_and_is_in_the_summary(run: Run) -> None:
    regular, holdout = run.series("eval/return_mean"), run.series("eval/holdout_mean")
    kept = read_checkpoint(run.path / "best")
    assert kept.score is not None
    assert kept.opt_steps == kept.score.opt_steps
    assert kept.opt_steps in dict(holdout)  # no model becomes the best without fresh episodes
    assert len(kept.score.returns) in range(
        2, 2 * 2 * len(regular) + 1, 2
    )  # at most two rounds in a comparison
    assert run.json("best/score.json")["regular"]["mean"] == dict(regular)[kept.opt_steps]
    assert run.summary["best_score"] == {"opt_steps": kept.opt_steps, "mean": kept.score.mean}
    assert run.summary["last_score"] == {"opt_steps": regular[-1][0], "mean": regular[-1][1]}


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
    # What an actor took between the last opt step and the stop is no part of the run.
    assert sum(actor["env_steps"] for actor in actors) >= summary["counters"]["env_steps"]


def test_the_summary_says_running_from_the_first_env_step_and_the_log_names_who_logged(
    workplace: Path, trainer: str
) -> None:
    """The environments look at the summary of their run. Afterwards logging is as it was."""
    root, package = logging.getLogger(), logging.getLogger("border_cli")
    before = (list(root.handlers), root.level, list(package.handlers), package.level)
    entry_point = ["env=gym", "env.entry_point=tests.envs:Onlooker", "env.kwargs.summary=run/summary.json"]
    folder = ["env.kwargs.seen=seen.json", "hydra.run.dir=run"]
    assert main(tiny(*entry_point, *folder, "trainer.max_opts=10", *TRAINERS[trainer])) == 0
    assert (list(root.handlers), root.level, list(package.handlers), package.level) == before
    run = Run(workplace / "run")
    seen: dict[str, Any] = json.loads(Path("seen.json").read_text(encoding="utf-8"))
    final = run.summary
    assert seen.keys() == final.keys()
    assert (seen["status"], seen["ended_by"], seen["exit_code"]) == ("running", None, None)
    assert (final["status"], final["run_id"]) == ("done", seen["run_id"])
    log = (run.path / "train.log").read_text(encoding="utf-8")
    logged = set(re.findall(r" WARNING (\S+) tests.envs: (.*)", log))
    expected = {("MainProcess", "an onlooker was made")}
    if trainer == "async":
        expected |= {(f"actor-{ix}", f"actor {ix}: an onlooker was made") for ix in range(2)}
    assert logged == expected


def test_train_log_tells_what_ran_what_was_kept_and_how_it_ended(run: Run) -> None:
    log = (run.path / "train.log").read_text(encoding="utf-8")
    assert " INFO MainProcess border_cli: border-cli " in log.splitlines()[0]
    assert log.count(": checkpoint at opt step ") >= len(list((run.path / "checkpoints").glob("step-*")))
    assert (": new best at opt step " in log) == (run.path / "best").is_dir()
    assert f": ended by {run.summary['ended_by']}: " in log.splitlines()[-1]


# -- the metrics --------------------------------------------------------


def test_every_metric_is_declared_and_every_line_has_its_steps_and_time(run: Run) -> None:
    for record in run.records:
        head = {"opt_steps", "env_steps", "time"}
        assert head < record.keys()
        assert record.keys() - head <= METRICS.keys()
        assert all(value is None or np.isfinite(value) for value in record.values())


def test_the_agents_and_the_runs_figures_are_all_there(run: Run, trainer: str) -> None:
    found = {name for record in run.records for name in record}
    expected = {"agent/loss", "agent/q_mean", "agent/target_mean", "agent/grad_norm"}
    expected |= {"train/episode_return", "train/episode_length", "replay/size", "replay/fill"}
    expected |= {f"throughput/{name}_per_sec" for name in ("samples", "opt_steps")}
    expected |= {"throughput/samples_total", "throughput/samples_per_opt_step"}
    expected |= {f"time/{name}_ms" for name in ("opt", "collect", "eval", "save")}
    assert expected <= found
    asynchronous = {name for name in METRICS if name.startswith("async/")}
    assert asynchronous & found == (set() if trainer == "sync" else asynchronous)


def test_no_metric_goes_back_in_steps_or_time(run: Run) -> None:
    for name in {name for record in run.records for name in record}:
        places = [(r["opt_steps"], r["env_steps"], r["time"]) for r in run.records if name in r]
        for before, after in pairwise(places):
            assert all(a <= b for a, b in zip(before, after, strict=True)), name


def test_evaluations_saves_and_records_come_at_their_intervals_and_at_the_end(run: Run) -> None:
    assert run.steps("eval/return_mean") == EVALUATED
    assert run.saves == SAVED
    assert run.steps("throughput/samples_total") == RECORDED
    assert run.steps("agent/loss") == RECORDED[1:]


def test_counts_and_ratio_of_the_records_follow_from_their_steps(run: Run) -> None:
    """The first record is the warm-up. Every episode is recorded once."""
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
    assert_same_scalars(run, "env_steps")


def test_the_axis_of_tensorboard_can_be_opt_steps(workplace: Path) -> None:
    assert_same_scalars(train(*WORDS, *TRAINERS["sync"], "recorder.tensorboard_step=opt_steps"), "opt_steps")


def assert_same_scalars(run: Run, step: str) -> None:
    """At the steps of the axis that is configured, the other count as a scalar."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.path / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    tags = set(events.Tags()["scalars"])
    assert tags == {name for record in run.records for name in record} - {step, "time"}
    for tag in tags:
        found = [(event.step, event.value) for event in events.Scalars(tag)]
        expected = [(record[step], float(np.float32(record[tag]))) for record in run.records if tag in record]
        assert found == expected, tag
