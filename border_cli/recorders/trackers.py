"""Experiment trackers: Weights & Biases and MLflow. Each runs in the process of a `RemoteRecorder`.

A resumed run continues the tracker's run of the same id. The tracker gets the records of metrics.jsonl that it lacks.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import math
import os
import re
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from border_cli.config.schema import RecorderConfig
from border_cli.core.metrics import Record
from border_cli.recorders.files import METRICS_FILE, read_jsonl


@dataclass(frozen=True)
class RunInfo:
    """What a tracker needs to know about a run.

    run_id: the same after a resume · group: name of the sweep, None outside of one · config: by dotted keys.
    """

    run_id: str
    name: str
    group: str | None
    project: str
    config: Mapping[str, Any]
    run_dir: Path

    @property
    def best(self) -> dict[str, float]:
        """Score of the best model and its opt step, for the summary; empty where there is none."""
        with contextlib.suppress(OSError, ValueError):
            score = json.loads((self.run_dir / "best" / "score.json").read_text(encoding="utf-8"))
            return {"best/return_mean": score["mean"], "best/opt_steps": score["opt_steps"]}
        return {}


Newest = dict[str, tuple[int, int]]
"""By metric: (opt steps, env steps) of its newest value."""


class Tracker(ABC):
    """A run in a tracker. A resumed run repeats the records after its checkpoint: what is stored is not logged again.

    stored: by metric, (opt steps, env steps) of the newest value that the tracker has of earlier launches.
    """

    def __init__(self, info: RunInfo) -> None:
        self._info = info
        self._failed = False
        self.stored: Newest = {}

    def write(self, record: Record) -> None:
        """Log the values that the tracker lacks, with the counts of the record."""
        at = record.opt_steps, record.env_steps
        named = {_allowed(name): value for name, value in record.values.items()}
        values = {name: value for name, value in named.items() if self._lacks(name, at)}
        if values:
            counts = {"env_steps": record.env_steps, "opt_steps": record.opt_steps, "time": record.time}
            self.log(values | counts, record.env_steps)

    @abstractmethod
    def log(self, values: Mapping[str, float], env_steps: int) -> None:
        """Log values at an env step."""

    def _lacks(self, name: str, at: tuple[int, int]) -> bool:
        return at > self.stored.get(name, (-1, 0))

    def mark_failed(self) -> None:
        """Let `close` end the run as failed."""
        self._failed = True


_FILM = "video/episode"


class WandbRecorder(Tracker):
    """A run of Weights & Biases; its files are in `wandb/` of the run directory. mode: online or offline."""

    def __init__(self, info: RunInfo, mode: str) -> None:
        super().__init__(info)
        self._wandb: Any = importlib.import_module("wandb")
        self.stored = wandb_stored(info.run_dir)
        self._run = self._wandb.init(
            project=info.project,
            name=info.name,
            id=info.run_id.replace("-", ""),
            group=info.group,
            config=dict(info.config),
            dir=str(info.run_dir),
            mode=mode,
            resume="allow",
            settings=self._wandb.Settings(console="off", silent=True, x_disable_stats=True),
        )
        self._run.define_metric("*", step_metric="env_steps")  # the axis of all charts

    def log(self, values: Mapping[str, float], env_steps: int) -> None:
        self._run.log(dict(values))

    def video(self, path: Path, opt_steps: int, env_steps: int) -> None:
        if self._lacks(_FILM, (opt_steps, env_steps)):
            film = self._wandb.Video(str(path))
            self._run.log({_FILM: film, "env_steps": env_steps, "opt_steps": opt_steps})

    def close(self) -> None:
        """Write the best score into the summary, and send what is left."""
        self._run.summary.update(self._info.best)
        self._run.finish(exit_code=int(self._failed))


def wandb_stored(folder: Path) -> Newest:
    """What the files of Weights & Biases in a run directory hold.

    The library writes blocks of 32 KiB: a process that is killed leaves up to one block unwritten.
    """
    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    newest: Newest = {}
    for path in folder.glob("wandb/*run-*/*.wandb"):
        for data in leveldb_records(path.read_bytes()):
            row = messages.Record.FromString(data).history.item  # empty in a record of another kind
            values = {item.key or item.nested_key[0]: item.value_json for item in row}
            at = int(values.get("opt_steps", -1)), int(values.get("env_steps", 0))
            newest |= {name: max(at, newest.get(name, at)) for name in values}
    return newest


def leveldb_records(data: bytes) -> Iterator[bytes]:
    """The records of a log of LevelDB that are whole.

    It has blocks of fragments, each behind its checksum (4 bytes), length and kind (1 or 4: the last of a record). The
    first 7 bytes are a header.
    """
    block, at, record = 32 * 1024, 7, b""
    while at + 7 <= len(data):
        if block - at % block < 7:  # no room for another fragment
            at += block - at % block
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4) and at <= len(data):
            yield record
            record = b""


class MlflowRecorder(Tracker):
    """MLflow; uri: of the tracking store. The best model and the configuration are artifacts.

    A resumed run stores the values of the configuration that have changed as tags: MLflow's parameters are constant.
    """

    def __init__(self, info: RunInfo, uri: str) -> None:
        super().__init__(info)
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        mlflow: Any = importlib.import_module("mlflow")
        self._entities: Any = importlib.import_module("mlflow.entities")
        mlflow.set_tracking_uri(uri)
        self._client = mlflow.MlflowClient()
        experiment_id = mlflow.set_experiment(info.project).experiment_id
        tag = "border.run_id"
        runs = self._client.search_runs([experiment_id], f"tags.`{tag}` = '{info.run_id}'")
        config = {_allowed(key): str(value)[:500] for key, value in info.config.items()}
        if runs:
            self._run_id = runs[0].info.run_id
            self._client.set_terminated(self._run_id, status="RUNNING")
            before = runs[0].data.params | runs[0].data.tags
            for key, value in config.items():
                if before.get(key) != value:  # a parameter cannot change
                    self._client.set_tag(self._run_id, key, value)
            self.stored = self._newest(runs[0].data.metrics)
        else:
            tags = {tag: info.run_id} | ({"border.sweep": info.group} if info.group else {})
            run = self._client.create_run(experiment_id, run_name=info.name, tags=tags)
            self._run_id = run.info.run_id
            params = [self._entities.Param(key, value) for key, value in config.items()]
            for start in range(0, len(params), 100):  # the most that one call takes
                self._client.log_batch(self._run_id, params=params[start : start + 100])

    def _newest(self, names: Iterable[str]) -> Newest:
        """What is stored of these metrics. The values of a record have one time stamp."""
        points = {name: self._client.get_metric_history(self._run_id, name) for name in {"opt_steps", *names}}
        opt_steps = {(point.timestamp, point.step): int(point.value) for point in points["opt_steps"]}
        return {
            name: max((opt_steps.get((point.timestamp, point.step), -1), point.step) for point in history)
            for name, history in points.items()
            if history
        }

    def log(self, values: Mapping[str, float], env_steps: int) -> None:
        stamp, finite = int(1000 * time.time()), {k: v for k, v in values.items() if math.isfinite(v)}
        metrics = [self._entities.Metric(k, v, stamp, env_steps) for k, v in finite.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def video(self, path: Path, opt_steps: int, env_steps: int) -> None:
        self._client.log_artifact(self._run_id, str(path), "videos")

    def close(self) -> None:
        """Store the artifacts and the best score, and end the run, even if the server takes no artifacts."""
        try:
            for name, value in self._info.best.items():
                self._client.log_metric(self._run_id, name.replace("/", "_"), value)
            self._client.log_artifact(self._run_id, str(self._info.run_dir / "config.yaml"))
            if (self._info.run_dir / "best").exists():
                self._client.log_artifacts(self._run_id, str(self._info.run_dir / "best"), "best")
        finally:
            self._client.set_terminated(self._run_id, status="FAILED" if self._failed else "FINISHED")


def _allowed(name: str) -> str:
    """The name of a metric or parameter, without characters that MLflow refuses."""
    return re.sub(r"[^\w .:/-]", "_", name)


def make_tracker(kind: str, info: RunInfo, recorder: RecorderConfig, keep: int) -> Tracker:
    """The recorder for one of `border_cli.config.resolve.TRACKERS`. Raises what the tracker's package raises.

    Args:
        keep: lines of metrics.jsonl that belong to the run so far; the tracker gets those that it lacks.
    """
    tracker: Tracker
    if kind == "mlflow":
        uri = str(recorder.mlflow)
        with contextlib.ExitStack() as held:
            if uri.startswith("sqlite:///"):
                # MLflow creates its tables without a lock, and jobs start together.
                path = Path(uri.removeprefix("sqlite:///").partition("?")[0])
                lock = path.with_name(f"{path.name}.lock").open("w", encoding="ascii")
                fcntl.flock(held.enter_context(lock), fcntl.LOCK_EX)
            tracker = MlflowRecorder(info, uri)
    else:
        tracker = WandbRecorder(info, recorder.wandb)
    if keep:
        for line in read_jsonl(info.run_dir / METRICS_FILE, keep):
            counts = (line.pop(name) for name in ("opt_steps", "env_steps", "time"))
            values = {name: value for name, value in line.items() if value is not None}
            tracker.write(Record(values, *counts))
    return tracker
