"""Experiment trackers, written offline by real runs and read back by their own libraries."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import shutil
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from border_cli.cli.train import main
from border_cli.config.schema import RecorderConfig
from border_cli.core.metrics import Record
from border_cli.recorders import trackers
from border_cli.recorders.recorder_process import RemoteRecorder
from border_cli.recorders.trackers import MlflowRecorder, RunInfo, make_tracker
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
    return [
        (record["env_steps"], record["eval/return_mean"])
        for record in run.records
        if "eval/return_mean" in record
    ]


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


def leveldb_records(data: bytes) -> Iterator[bytes]:
    """The records of a log of LevelDB: blocks of 32 KiB with fragments, each behind checksum, length and type.

    The package has no reader in Python since 0.20; `wandb sync` reads the file in Go. The first 7 bytes are a header.
    """
    block, at, whole = 32 * 1024, 7, b""
    while at + 7 <= len(data):
        if block - at % block < 7:  # no room for a header: the rest of the block is empty
            at += block - at % block
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or its last fragment
            yield whole
            whole = b""


def wandb_rows(items: list[Any]) -> list[dict[str, float]]:
    """The values of each call of `log`."""
    return [
        {one.key or "/".join(one.nested_key): json.loads(one.value_json) for one in item.history.item}
        for item in items
        if item.HasField("history")
    ]


def wandb_history(items: list[Any]) -> list[tuple[int, float]]:
    return [
        (values["env_steps"], values["eval/return_mean"])
        for values in wandb_rows(items)
        if "eval/return_mean" in values
    ]


def test_weights_and_biases_has_the_records_the_configuration_and_the_best_score(workplace: Path) -> None:
    pytest.importorskip("wandb")
    run = train(*SHORT, "trainer=sync", "recorder.wandb=offline", "recorder.project=mine")
    items = wandb_items(run)
    assert wandb_history(items) == evaluations(run)
    (start,) = [item.run for item in items if item.HasField("run") and item.run.project]
    assert (start.project, start.display_name) == ("mine", run.path.name)
    config = {one.key: json.loads(one.value_json) for one in start.config.update}
    assert (config["agent.lr"], config["seed"]) == (run.config.agent.lr, 0)
    summary = {one.key: one.value_json for item in items for one in item.summary.update}
    assert json.loads(summary["best/return_mean"]) == run.summary["best_score"]["mean"]

    again = resumed(run)
    items = wandb_items(again)
    assert {item.run.run_id for item in items if item.HasField("run")} == {start.run_id}
    assert wandb_history(items) == evaluations(again)
    assert again.summary["records_dropped"] == {}


def test_the_runs_of_a_sweep_are_a_group(workplace: Path) -> None:
    pytest.importorskip("wandb")
    assert (
        main(
            [
                "-m",
                *tiny(*SHORT, "trainer=sync", "seed=1,2", "recorder.wandb=offline", "hydra/launcher=basic"),
            ]
        )
        == 0
    )
    runs = [Run(path.parent) for path in sorted(workplace.glob("runs/sweeps/*/*/*/summary.json"))]
    starts = [
        item.run for run in runs for item in wandb_items(run) if item.HasField("run") and item.run.project
    ]
    assert len({start.run_id for start in starts}) == 2
    assert {start.run_group for start in starts} == {runs[0].path.parent.name}


@pytest.mark.parametrize("blocks", [0, 3])
def test_after_a_kill_weights_and_biases_gets_what_it_had_not_stored(workplace: Path, blocks: int) -> None:
    """Killed before the library is ready, and while it holds back records of its last block of 32 KiB."""
    pytest.importorskip("wandb")

    def stored_bytes() -> int:
        return sum(path.stat().st_size for path in (workplace / "run").glob("wandb/offline-run-*/*.wandb"))

    words = tiny(
        "trainer=sync",
        "evaluator=inline",
        "recorder.wandb=offline",
        "trainer.max_opts=4000",
        "trainer.record_interval=10",
        "trainer.save_interval=1000",
        "hydra.run.dir=run",
    )
    train_command = str(Path(sys.executable).with_name("border-train"))
    with subprocess.Popen([train_command, *words], stdout=subprocess.DEVNULL) as process:
        wait_until((workplace / "run" / "checkpoints").exists, "the first checkpoint")
        wait_until(lambda: stored_bytes() >= blocks * 32 * 1024, "the tracker")
        process.kill()
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
        (found,) = client.search_runs([stored_experiment()])
        return found

    def history(run_id: str) -> list[tuple[int, float]]:
        points = client.get_metric_history(run_id, "eval/return_mean")
        return sorted((point.step, point.value) for point in points)

    found = stored()
    assert (found.info.run_name, found.info.status) == (run.path.name, "FINISHED")
    assert history(found.info.run_id) == evaluations(run)
    assert found.data.params["agent.lr"] == str(run.config.agent.lr)
    assert found.data.metrics["best_return_mean"] == run.summary["best_score"]["mean"]
    artifacts = {one.path for one in client.list_artifacts(found.info.run_id)}
    assert artifacts >= {"best", "config.yaml"}
    assert found.data.params["trainer.max_opts"] == "40"
    again = resumed(run)
    assert stored().info.run_id == found.info.run_id
    assert history(found.info.run_id) == evaluations(again)
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
    (found,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params == {"env.kwargs.a_0_": "1"}
    assert (found.data.metrics["env/score_0_"], found.data.metrics["eval/return_mean"]) == (1.5, 2.5)


def test_a_film_is_passed_on_once(workplace: Path) -> None:
    """Also if no record follows it before the run ends."""
    pytest.importorskip("wandb")
    run = train(*SHORT, "trainer=sync", "recorder.wandb=offline")
    (run.path / "film.mp4").touch()
    info = RunInfo(run.path.name, "name", None, "mine", {}, run.path)
    settings = RecorderConfig(wandb="offline")
    for opt_steps in (50, 50, 60):
        recorder = RemoteRecorder("wandb", partial(make_tracker, "wandb", info, settings, 0), 60.0)
        recorder.video(run.path / "film.mp4", opt_steps, 2 * opt_steps)
        recorder.close()
        assert recorder.dropped == 0
    films = [row["opt_steps"] for row in wandb_rows(wandb_items(run)) if "video/episode/path" in row]
    assert sorted(films) == [50, 60]


@pytest.mark.parametrize("uri", ["sqlite:///{0}/mlflow.db", "sqlite:///{0}/mlflow.db?timeout=9"])
def test_runs_that_begin_together_make_the_tables_of_mlflow_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    """MLflow itself fails then: "table runs already exists"."""
    held = list[bool]()

    def make(*_: object) -> None:
        with (tmp_path / "mlflow.db.lock").open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.append(True)

    monkeypatch.setattr(trackers, "MlflowRecorder", make)
    settings = RecorderConfig(mlflow=uri.format(tmp_path))
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
