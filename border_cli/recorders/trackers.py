"""Experiment trackers: Weights & Biases and MLflow. Each runs in the process of a `RemoteRecorder`.

A resumed run continues the tracker's run of the same id: it is sent what metrics.jsonl has and the tracker has not.
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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from border_cli.config.schema import RecorderConfig
from border_cli.core.metrics import Record
from border_cli.recorders.files import METRICS_FILE, AppendedFile, read_jsonl


@dataclass(frozen=True)
class RunInfo:
    """What a tracker is told of a run.

    Attributes:
        run_id: the same after a resume.
        group: name of the sweep, None outside of one.
        config: by dotted keys.
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
        try:
            score = json.loads((self.run_dir / "best" / "score.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return {"best/return_mean": score["mean"], "best/opt_steps": score["opt_steps"]}


def record_values(record: Record) -> dict[str, float]:
    """The values with the counts of the record."""
    counts = {"env_steps": record.env_steps, "opt_steps": record.opt_steps, "time": record.time}
    return record.values | counts


def start_wandb(info: RunInfo, mode: str) -> Any:
    """A run of Weights & Biases; its files are in `wandb/` of the run directory. mode: online or offline."""
    wandb: Any = importlib.import_module("wandb")
    run = wandb.init(
        project=info.project,
        name=info.name,
        id=info.run_id.replace("-", ""),
        group=info.group,
        config=dict(info.config),
        dir=str(info.run_dir),
        mode=mode,
        resume="allow",
        settings=wandb.Settings(console="off", silent=True, x_disable_stats=True),
    )
    run.define_metric("*", step_metric="env_steps")  # the axis of all charts
    return run


class WandbRecorder:
    """Passes records to a run of Weights & Biases."""

    def __init__(self, info: RunInfo, run: Any) -> None:
        self._info = info
        self._run = run
        self._exit_code = 0

    def write(self, record: Record) -> None:
        """Log the values."""
        self._run.log(record_values(record))

    def video(self, path: Path, opt_steps: int, env_steps: int) -> None:
        """Log a film."""
        wandb: Any = importlib.import_module("wandb")
        self._run.log(
            {"video/episode": wandb.Video(str(path)), "env_steps": env_steps, "opt_steps": opt_steps}
        )

    def mark_failed(self) -> None:
        """Have `close` end the run as a failed one."""
        self._exit_code = 1

    def close(self) -> None:
        """Write the best score into the summary, and send what is left."""
        self._run.summary.update(self._info.best)
        self._run.finish(exit_code=self._exit_code)


def wandb_stored(folder: Path) -> int:
    """How many calls of `log` the newest file of Weights & Biases in a run directory holds.

    The library writes blocks of 32 KiB: a process that is killed leaves up to one block unwritten. The file is a log of
    LevelDB: blocks of fragments, each behind its checksum (4 bytes), length and kind (1 or 4: the last of a record). The
    first 7 bytes are a header.
    """
    block, at, stored, record = 32 * 1024, 7, 0, b""
    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    files = sorted(
        folder.glob("wandb/*run-*/*.wandb"), key=lambda path: path.parent.name.partition("run-")[2]
    )
    data = files[-1].read_bytes() if files else b""
    while at + 7 <= len(data):
        if block - at % block < 7:  # no room for another fragment
            at += block - at % block
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4) and at <= len(data):
            stored += messages.Record.FromString(record).HasField("history")
            record = b""
    return stored


class MlflowRecorder:
    """MLflow; uri: of the tracking store. The best model and the configuration are artifacts.

    A resumed run stores the values of the configuration that have changed as tags: MLflow's parameters are constant.
    """

    def __init__(self, info: RunInfo, uri: str) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        mlflow: Any = importlib.import_module("mlflow")
        self._entities: Any = importlib.import_module("mlflow.entities")
        self._info = info
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        self._status = "FINISHED"
        experiment_id = self._experiment_id(mlflow.MlflowException)
        tag = "border.run_id"
        found = self._client.search_runs([experiment_id], f"tags.`{tag}` = '{info.run_id}'")
        config = {_allowed(key): str(value)[:500] for key, value in info.config.items()}
        if found:
            self._run_id = found[0].info.run_id
            self._client.set_terminated(self._run_id, status="RUNNING")
            before = found[0].data.params | found[0].data.tags
            for key, value in config.items():
                if before.get(key) != value:  # a parameter cannot change
                    self._client.set_tag(self._run_id, key, value)
        else:
            tags = {tag: info.run_id} | ({"border.sweep": info.group} if info.group else {})
            run = self._client.create_run(experiment_id, run_name=info.name, tags=tags)
            self._run_id = run.info.run_id
            params = [self._entities.Param(key, value) for key, value in config.items()]
            for start in range(0, len(params), 100):  # the most that one call takes
                self._client.log_batch(self._run_id, params=params[start : start + 100])

    def _experiment_id(self, error: type[Exception]) -> Any:
        """That of the project, which is created if it is not there."""
        name = self._info.project
        if (experiment := self._client.get_experiment_by_name(name)) is None:
            try:
                return self._client.create_experiment(name)
            except error:  # another run has created it meanwhile
                if (experiment := self._client.get_experiment_by_name(name)) is None:
                    raise
        return experiment.experiment_id

    def write(self, record: Record) -> None:
        """Log the finite values at the record's env step."""
        stamp = int(1000 * time.time())
        self._client.log_batch(
            self._run_id,
            metrics=[
                self._entities.Metric(_allowed(name), value, stamp, record.env_steps)
                for name, value in record_values(record).items()
                if math.isfinite(value)
            ],
        )

    def video(self, path: Path, opt_steps: int, env_steps: int) -> None:
        """Store the film as an artifact."""
        self._client.log_artifact(self._run_id, str(path), "videos")

    def mark_failed(self) -> None:
        """Have `close` end the run as a failed one."""
        self._status = "FAILED"

    def close(self) -> None:
        """Store the artifacts and the best score, and end the run, even if the server takes no artifacts."""
        try:
            for name, value in self._info.best.items():
                self._client.log_metric(self._run_id, name.replace("/", "_"), value)
            self._client.log_artifact(self._run_id, str(self._info.run_dir / "config.yaml"))
            if (self._info.run_dir / "best").exists():
                self._client.log_artifacts(self._run_id, str(self._info.run_dir / "best"), "best")
        finally:
            self._client.set_terminated(self._run_id, status=self._status)


def _allowed(name: str) -> str:
    """The name of a metric or parameter, without characters that MLflow refuses."""
    return re.sub(r"[^\w .:/-]", "_", name)


_END = b"[]\n"


class OnceRecorder:
    """Passes on what a tracker has not stored yet: a resumed run repeats the records after its checkpoint.

    Args:
        path: a file with a line for each record that was passed on, and one for each launch that has ended.
        stored: how many records the tracker has of the last launch, if that was killed; None: all that were passed on.
    """

    def __init__(
        self, recorder: WandbRecorder | MlflowRecorder, path: Path, stored: int | None = None
    ) -> None:
        self._recorder = recorder
        self._stored: dict[str, tuple[int, int]] = {}  # by metric, the newest (opt_steps, env_steps)
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        if lines and not lines[-1].endswith(b"\n"):  # torn
            lines.pop()
        ended = len(lines) - next((i for i, line in enumerate(lines[::-1]) if line == _END), len(lines))
        kept = lines if stored is None else lines[: ended + stored]
        for line in kept:
            if line != _END:
                opt_steps, env_steps, *names = json.loads(line)
                self._stored |= dict.fromkeys(names, (opt_steps, env_steps))
        self._file = AppendedFile(path, sum(map(len, kept)))
        if len(kept) > ended:
            self._file.append(_END)

    def write(self, record: Record) -> None:
        """Pass on the values that are newer than those of earlier launches."""
        at = record.opt_steps, record.env_steps
        values = {
            name: value for name, value in record.values.items() if at > self._stored.get(name, (-1, 0))
        }
        if values:
            self._recorder.write(replace(record, values=values))
            self._passed_on(at, values)

    def video(self, path: Path, opt_steps: int, env_steps: int) -> None:
        """Pass on a film of a new opt step."""
        at = opt_steps, env_steps
        if at > self._stored.get("video/episode", (-1, 0)):
            self._recorder.video(path, opt_steps, env_steps)
            self._passed_on(at, ["video/episode"])

    def _passed_on(self, at: tuple[int, int], names: Iterable[str]) -> None:
        self._file.append(f"{json.dumps([*at, *names])}\n".encode("ascii"))

    def mark_failed(self) -> None:
        """Pass it on."""
        self._recorder.mark_failed()

    def close(self) -> None:
        """Close the recorder, which then has stored everything."""
        self._recorder.close()
        self._file.append(_END)
        self._file.close()


@contextlib.contextmanager
def _alone(uri: str) -> Iterator[None]:
    """Hold a lock beside a sqlite file: MLflow creates its tables without one, and jobs of a sweep start together."""
    if not uri.startswith("sqlite:///"):
        yield
        return
    path = Path(uri.removeprefix("sqlite:///").partition("?")[0])
    with path.with_name(f"{path.name}.lock").open("w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make_tracker(kind: str, info: RunInfo, recorder: RecorderConfig, keep: int) -> OnceRecorder:
    """The recorder for one of `border_cli.config.resolve.TRACKERS`. Raises what the tracker's package raises.

    Args:
        keep: lines that metrics.jsonl has of the run so far; the tracker gets what it lacks of them.
    """
    path = info.run_dir / f".{kind}.jsonl"
    if kind == "mlflow":
        with _alone(str(recorder.mlflow)):
            tracker = OnceRecorder(MlflowRecorder(info, str(recorder.mlflow)), path)
    else:
        stored = wandb_stored(info.run_dir)  # before this launch has a file
        tracker = OnceRecorder(WandbRecorder(info, start_wandb(info, recorder.wandb)), path, stored)
    if keep:
        for line in read_jsonl(info.run_dir / METRICS_FILE, keep):
            counts = (line.pop(name) for name in ("opt_steps", "env_steps", "time"))
            values = {name: value for name, value in line.items() if value is not None}
            tracker.write(Record(values, *counts))
    return tracker
