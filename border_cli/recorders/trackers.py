"""Experiment trackers: Weights & Biases, trackio and MLflow. Each runs in the process of a `RemoteRecorder`.

A resumed run continues the tracker's run of the same id, without the records that were sent before.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from border_cli.config.schema import RecorderConfig
from border_cli.core.metrics import Record
from border_cli.runtime import child
from border_cli.runtime.files import replace_file


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


def start_trackio(info: RunInfo) -> Any:
    """A run of trackio, whose interface is that of Weights & Biases; its files are where TRACKIO_DIR says.

    trackio knows runs by their name alone, and continues one that it has.
    """
    trackio: Any = importlib.import_module("trackio")
    name = f"{info.name}-{info.run_id[:8]}"
    return trackio.init(
        project=info.project, name=name, group=info.group, config=dict(info.config), resume="allow"
    )


class WandbRecorder:
    """Passes records to a run of Weights & Biases or trackio."""

    def __init__(self, info: RunInfo, run: Any, is_wandb: bool) -> None:
        self._info = info
        self._run = run
        self._is_wandb = is_wandb
        self._exit_code = 0

    def write(self, record: Record) -> None:
        """Log the values."""
        self._run.log(record_values(record))

    def video(self, path: Path, opt_steps: int, env_steps: int) -> None:
        """Log a film; of trackio nothing: it converts films with a program that need not be there."""
        if self._is_wandb:
            wandb: Any = importlib.import_module("wandb")
            self._run.log(
                {"video/episode": wandb.Video(str(path)), "env_steps": env_steps, "opt_steps": opt_steps}
            )

    def mark_failed(self) -> None:
        """Have `close` end the run as a failed one; trackio knows no such state."""
        self._exit_code = 1

    def close(self) -> None:
        """Write the best score into the summary, and send what is left."""
        best = self._info.best
        if hasattr(self._run, "summary"):
            self._run.summary.update(best)
        elif best:
            self._run.log(best)
        self._run.finish(**({"exit_code": self._exit_code} if self._is_wandb else {}))


class MlflowRecorder:
    """MLflow; uri: of the tracking store. The best model and the configuration are artifacts."""

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
        if found:
            self._run_id = found[0].info.run_id
            self._client.set_terminated(self._run_id, status="RUNNING")
        else:
            tags = {tag: info.run_id} | ({"border.sweep": info.group} if info.group else {})
            run = self._client.create_run(experiment_id, run_name=info.name, tags=tags)
            self._run_id = run.info.run_id
            params = [
                self._entities.Param(_allowed(key), str(value)[:500]) for key, value in info.config.items()
            ]
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


class OnceRecorder:
    """Passes on what a tracker has not got yet: a resumed run repeats the records after its checkpoint.

    path: a file with the newest opt step of each metric that was passed on.
    """

    def __init__(self, recorder: WandbRecorder | MlflowRecorder, path: Path) -> None:
        self._recorder = recorder
        self._path = path
        self._newest: dict[str, int] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self._before = dict(self._newest)

    def write(self, record: Record) -> None:
        """Pass on the values that are newer than those of earlier launches."""
        at = record.opt_steps
        values = {name: value for name, value in record.values.items() if at > self._before.get(name, -1)}
        if values:
            self._recorder.write(replace(record, values=values))
            self._passed_on(dict.fromkeys(values, at))

    def video(self, path: Path, opt_steps: int, env_steps: int) -> None:
        """Pass on a film of a new opt step."""
        if opt_steps > self._before.get("video/episode", -1):
            self._recorder.video(path, opt_steps, env_steps)
            self._passed_on({"video/episode": opt_steps})

    def _passed_on(self, newest: dict[str, int]) -> None:
        self._newest |= newest
        replace_file(self._path, json.dumps(self._newest).encode("ascii"))

    def mark_failed(self) -> None:
        """Pass it on."""
        self._recorder.mark_failed()

    def close(self) -> None:
        """Close the recorder."""
        self._recorder.close()


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


def make_tracker(kind: str, info: RunInfo, recorder: RecorderConfig) -> OnceRecorder:
    """The recorder for one of `border_cli.config.resolve.TRACKERS`. Raises what the tracker's package raises.

    What the package prints goes to `<kind>.log` in the run directory: a live view may own the terminal.
    """
    child.redirect_output(info.run_dir / f"{kind}.log")
    made: WandbRecorder | MlflowRecorder
    if kind == "mlflow":
        with _alone(str(recorder.mlflow)):
            made = MlflowRecorder(info, str(recorder.mlflow))
    else:
        run = start_wandb(info, recorder.wandb) if kind == "wandb" else start_trackio(info)
        made = WandbRecorder(info, run, kind == "wandb")
    return OnceRecorder(made, info.run_dir / f".{kind}.json")
