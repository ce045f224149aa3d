"""Experiment trackers, written offline by real runs and read back by their own libraries."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from border_cli.cli.train import main
from border_cli.config.schema import RecorderConfig
from border_cli.core.metrics import SCORE, Record
from border_cli.recorders import trackers
from border_cli.recorders.trackers import MlflowRecorder, RunInfo, leveldb_records, make_tracker
from tests.faults.commands import Command
from tests.faults.processes import wait_until
from tests.real_runs import Run, tiny, train

SHORT = (
    "trainer.max_opts=40",
    "trainer.eval_interval=20",
    "trainer.record_interval=10",
    "trainer.save_interval=20",
)

pytestmark = pytest.mark.usefixtures("workplace")


def evaluations(run: Run) -> list[tuple[int, float]]:
    """Env steps and scores in metrics.jsonl."""
    return [(row["env_steps"], row[SCORE]) for row in run.records if SCORE in row]


def resumed(run: Run, *args: str) -> Run:
    """Let the run do twice as many opt steps, from the checkpoint before its last one: it repeats 20 opt steps."""
    shutil.rmtree(run.path / "checkpoints" / "step-000000040")
    assert main([f"resume={run.path}", "trust=true", "trainer.max_opts=80", *args]) == 0
    return Run(run.path)


# -- Weights & Biases -------------------------------------------------------


def wandb_items(run: Run) -> list[Any]:
    """The records of all offline files of a run, decoded by the messages of Weights & Biases."""
    pb = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    items = []
    for path in sorted(run.path.glob("wandb/offline-run-*/*.wandb")):
        for data in leveldb_records(path.read_bytes()):
            item = pb.Record()
            item.ParseFromString(data)
            items.append(item)
    return items


def wandb_rows(items: list[Any]) -> list[dict[str, float]]:
    """The values of each call of `log`."""
    return [
        {value.key or "/".join(value.nested_key): json.loads(value.value_json) for value in item.history.item}
        for item in items
        if item.HasField("history")
    ]


def wandb_history(items: list[Any]) -> list[tuple[int, float]]:
    return [(row["env_steps"], row[SCORE]) for row in wandb_rows(items) if SCORE in row]


def test_weights_and_biases_has_the_records_the_configuration_and_the_best_score(workplace: Path) -> None:
    pytest.importorskip("wandb")
    (workplace / "a_sweep").mkdir()
    (workplace / "a_sweep" / "sweep.jsonl").touch()
    words = ("trainer=sync", "recorder.wandb=offline", "recorder.project=mine", "hydra.run.dir=a_sweep/0")
    assert main(tiny(*SHORT, *words)) == 0
    run = Run(workplace / "a_sweep" / "0")
    items = wandb_items(run)
    assert wandb_history(items) == evaluations(run)
    (start,) = [item.run for item in items if item.HasField("run") and item.run.project]
    assert (start.project, start.display_name, start.run_group) == ("mine", "0", "a_sweep")
    config = {item.key: json.loads(item.value_json) for item in start.config.update}
    assert (config["agent.lr"], config["seed"]) == (run.config.agent.lr, 0)
    summary = {value.key: value.value_json for item in items for value in item.summary.update}
    assert json.loads(summary["best/return_mean"]) == run.summary["best_score"]["mean"]

    again = resumed(run)
    items = wandb_items(again)
    assert {item.run.run_id for item in items if item.HasField("run")} == {start.run_id}
    assert wandb_history(items) == evaluations(again)
    assert again.summary["records_dropped"] == {}


@pytest.mark.parametrize("blocks", [0, 3])
def test_after_a_kill_weights_and_biases_gets_what_it_had_not_stored(workplace: Path, blocks: int) -> None:
    """Killed before the library is ready, and while it holds back records of its last block of 32 KiB."""
    pytest.importorskip("wandb")

    def stored_bytes() -> int:
        return sum(path.stat().st_size for path in (workplace / "run").glob("wandb/offline-run-*/*.wandb"))

    words = ("trainer=sync", "evaluator=inline", "recorder.wandb=offline", "hydra.run.dir=run")
    steps = ("trainer.max_opts=4000", "trainer.record_interval=10", "trainer.save_interval=1000")
    with Command(workplace, *tiny(*words, *steps)) as command:
        wait_until((workplace / "run" / "checkpoints").exists, "the first checkpoint")
        wait_until(lambda: stored_bytes() >= blocks * 32 * 1024, "the tracker")
        command.send(signal.SIGKILL)
        command.wait()
    run = Run(workplace / "run")
    assert main([f"resume={run.path}"]) == 0
    again = Run(run.path)
    rows = wandb_rows(wandb_items(again))
    stored, expected = (
        Counter(
            (row["opt_steps"], name)
            for row in kept
            for name in row
            if name.startswith(("agent/", "eval/", "train/"))
        )
        for kept in (rows, again.records)
    )
    assert stored == expected
    assert again.summary["records_dropped"] == {}


# -- MLflow -------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # of sqlalchemy, by the reader
def test_mlflow_has_the_records_the_parameters_and_the_best_model(workplace: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{workplace}/mlflow.db"
    run = train(*SHORT, "trainer=sync", f"recorder.mlflow={uri}", "recorder.project=mine")
    client = mlflow.MlflowClient(tracking_uri=uri)

    def stored_experiment() -> str:
        return str(client.get_experiment_by_name("mine").experiment_id)

    def stored() -> Any:
        (tracked,) = client.search_runs([stored_experiment()])
        return tracked

    def history(run_id: str) -> list[tuple[int, float]]:
        points = client.get_metric_history(run_id, "eval/return_mean")
        return sorted((point.step, point.value) for point in points)

    tracked = stored()
    assert (tracked.info.run_name, tracked.info.status) == (run.path.name, "FINISHED")
    assert history(tracked.info.run_id) == evaluations(run)
    assert tracked.data.params["agent.lr"] == str(run.config.agent.lr)
    assert tracked.data.metrics["best_return_mean"] == run.summary["best_score"]["mean"]
    artifacts = {artifact.path for artifact in client.list_artifacts(tracked.info.run_id)}
    assert artifacts >= {"best", "config.yaml"}
    assert tracked.data.params["trainer.max_opts"] == "40"
    again = resumed(run)
    assert stored().info.run_id == tracked.info.run_id
    assert history(tracked.info.run_id) == evaluations(again)
    assert stored().data.tags["trainer.max_opts"] == "80"
    recorder = MlflowRecorder(RunInfo("other", "name", None, "mine", {}, run.path), uri)
    recorder.mark_failed()
    recorder.close()
    failed, ended = client.search_runs([stored_experiment()])
    assert (failed.info.status, ended.info.status) == ("FAILED", "FINISHED")


@pytest.mark.filterwarnings("ignore")  # of sqlalchemy, by the reader
def test_mlflow_takes_any_name_and_a_run_ends_without_artifacts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    recorder = MlflowRecorder(RunInfo("id", "name", None, "mine", {"env.kwargs.a[0]": 1}, tmp_path), uri)
    recorder.write(Record({"env/score[0]": 1.5, "eval/return_mean": 2.5}, opt_steps=1, env_steps=10))

    def no_server(*_: object) -> None:
        raise ConnectionError("no artifact store")

    monkeypatch.setattr(mlflow.MlflowClient, "log_artifact", no_server)
    with pytest.raises(ConnectionError):
        recorder.close()
    client = mlflow.MlflowClient(tracking_uri=uri)
    (tracked,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert tracked.info.status == "FINISHED"
    assert tracked.data.params == {"env.kwargs.a_0_": "1"}
    assert (tracked.data.metrics["env/score_0_"], tracked.data.metrics["eval/return_mean"]) == (1.5, 2.5)


def test_runs_that_begin_together_make_the_tables_of_mlflow_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow itself fails then: "table runs already exists"."""
    held = list[bool]()

    def make(*_: object) -> None:
        with (tmp_path / "mlflow.db.lock").open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.append(True)

    monkeypatch.setattr(trackers, "MlflowRecorder", make)
    settings = RecorderConfig(mlflow=f"sqlite:///{tmp_path}/mlflow.db?timeout=9")
    make_tracker("mlflow", RunInfo("id", "name", None, "mine", {}, tmp_path), settings, 0)
    assert held == [True]
    with (tmp_path / "mlflow.db.lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_tracker_that_is_not_installed_is_named_before_the_run(
    workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "wandb" else original(name))
    assert main(tiny("recorder.wandb=offline")) == 2
    assert "allowed: pip install 'border-cli[wandb]'" in capsys.readouterr().err
    assert not (workplace / "runs").exists()
