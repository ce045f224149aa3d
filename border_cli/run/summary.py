"""The JSON files of a run: provenance.json (its launches), summary.json (how it ended) and crash.json (a defect)."""

from __future__ import annotations

import logging
import os
import platform
import shlex
import shutil
import subprocess
import traceback
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from border_cli.checkpoints.contents import BEST
from border_cli.checkpoints.store import InvalidCheckpointError
from border_cli.config import resource_checks
from border_cli.config.convert import to_plain
from border_cli.config.resolve import Change, is_reproducible
from border_cli.config.schema import TrainConfig
from border_cli.core.errors import ActorLostError, BorderError, ExitCode, Interrupted, add_note
from border_cli.core.format import number
from border_cli.core.progress import RunResult
from border_cli.core.state import MAX_JSON_BYTES, RunState, from_json, to_json
from border_cli.core.types import Evaluation
from border_cli.display.views import advice
from border_cli.run.directory import REPORTED, Launch, typed, write_config
from border_cli.runtime.files import open_plain, replace_file
from border_cli.runtime.stopping import StopFlag
from border_cli.training.choose_best import Candidate

if TYPE_CHECKING:
    from border_cli.training.loop import TrainingLoop

SUMMARY_FILE, PROVENANCE_FILE, CRASH_FILE = "summary.json", "provenance.json", "crash.json"
_PACKAGES = ("border-cli", "torch", "numpy", "gymnasium", "hydra-core", "safetensors")
_STATUS = {
    **dict.fromkeys(("max_opts", "max_env_steps", "max_time", "stop_return"), "done"),
    **{"sigint": "stopped", "sigterm": "stopped", "error": "failed"},
}
"""Status by what ended the run; until then, and for ever if the process was killed, it is "running"."""
_log = logging.getLogger("border_cli")


def write_json(path: Path, data: Any) -> None:
    """Replace `path` by this data, numbers that are not finite as null. Raises OSError; then `path` is as it was."""
    replace_file(path, to_json(data))


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file. Raises OSError when it cannot be read, ValueError when it is no JSON object."""
    with open_plain(path) as file:
        data = from_json(file.read(MAX_JSON_BYTES + 1))
    if not isinstance(data, dict):
        raise ValueError(f"{path} does not contain an object")
    return data


def read_or_empty(path: Path) -> dict[str, Any]:
    """A JSON file of a run, such as summary.json; empty where it cannot be read."""
    try:
        return read_json(path)
    except (OSError, ValueError):
        return {}


def mean_score(summary: Mapping[str, Any], key: str) -> float | None:
    """The mean return in `best_score` or `last_score` of a summary.json; None where there is none."""
    mean = (summary.get(key) or {}).get("mean")
    return float(mean) if isinstance(mean, int | float) else None


def record_launch(run_dir: Path, argv: Sequence[str], seed: int, command: str = "border-train") -> str:
    """Write provenance.json, or add a launch to the existing one. Returns the run's id.

    argv: the words after the command's name · seed: the root of every random stream of the run.
    A damaged one is replaced. Raises OSError if it cannot be written.
    """
    data = read_or_empty(run_dir / PROVENANCE_FILE)
    run_id, launches = data.get("run_id"), data.get("launches")
    if not isinstance(run_id, str) or not isinstance(launches, list):  # a new run, or a damaged file
        run_id, launches = str(uuid.uuid4()), []
        commit = _git("rev-parse", "HEAD")
        changes = None if commit is None else _git("status", "--porcelain")
        data = {
            "run_id": run_id,
            "versions": versions(),
            "git": commit and {"commit": commit, "dirty": None if changes is None else bool(changes)},
            "host": {"name": platform.node(), "platform": platform.platform(), "cpu_count": os.cpu_count()},
            "seeds": {"root": seed},
        }
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    launch = {"command": shlex.join([command, *argv]), "time": now, "cwd": str(Path.cwd())}
    data["launches"] = [*launches, launch]
    write_json(run_dir / PROVENANCE_FILE, data)
    return run_id


def read_run_id(run_dir: Path) -> str | None:
    """The id of a run; None where there is none that can be read."""
    run_id = read_or_empty(run_dir / PROVENANCE_FILE).get("run_id")
    return run_id if isinstance(run_id, str) else None


def typed_values(run_dir: Path) -> dict[str, str]:
    """By key or group, the last value that the commands of a run named; empty where they cannot be read."""
    try:
        launches = read_json(run_dir / PROVENANCE_FILE)["launches"]
        words = [word for launch in launches for word in shlex.split(launch["command"])]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    pairs = (word.lstrip("+").partition("=") for word in words)
    return {key: value for key, equals, value in pairs if equals}


def versions() -> dict[str, str]:
    """Versions of Python, border-cli and the packages that matter."""
    packages = {name.removesuffix("-core").replace("-", "_"): metadata.version(name) for name in _PACKAGES}
    return {"python": platform.python_version()} | packages


def _git(*words: str) -> str | None:
    """What git answers, None where there is no git, no repository, or no answer in time."""
    # Neither a lock nor a hook of the repository: this only looks.
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *words]
    try:
        answer = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=5.0, check=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return answer.stdout.strip()


@dataclass(frozen=True)
class Resumed:
    """What a run continues from, and what changes in its configuration.

    path: the checkpoint; None where there is none yet, and the run starts over in the same directory · seconds: duration
    of the run until then, as far as it is known · exact: whether a reproducible run gives the bits of an uninterrupted
    one · best: the model of best/, which may be newer than the checkpoint; None for a reproducible run.
    """

    path: Path | None = None
    state: RunState | None = None
    opt_steps: int = 0
    env_steps: int = 0
    seconds: float = 0.0
    changes: tuple[Change, ...] = ()
    exact: bool = True
    best: Candidate | None = None

    def position(self, recorder: str) -> int:
        """Lines that a recorder's file had at the checkpoint."""
        return 0 if self.state is None else int(self.state.loop["records"].get(recorder, 0))


class RunFiles:
    """The files in which a run says what it is and how it ends: provenance.json, summary.json and crash.json.

    summary.json exists from the start with status "running". On resume, only the log is modified until the saved state has
    been loaded.
    """

    def __init__(self, config: TrainConfig, run_dir: Path, launch: Launch, resumed: Resumed | None) -> None:
        self.run_dir = run_dir
        self._config = config
        self._launch = launch
        self._resumed = resumed
        self._run_id = ""  # until the run is started
        self._saved: dict[str, Any] | None = None
        self.loop: TrainingLoop | None = None  # where totals and scores come from, once it is made

    def start(self) -> None:
        """Record this launch and write the summary with status "running", once."""
        if self._run_id:
            return
        before = self._resumed
        if before is not None:
            write_config(self.run_dir, self._config)
            if before.path is not None:
                self._saved = {"opt_steps": before.opt_steps, "seconds": before.seconds}
            elif (self.run_dir / BEST).exists():  # of a launch that saved no checkpoint
                shutil.rmtree(self.run_dir / BEST)
        launch = self._launch
        self._run_id = record_launch(self.run_dir, launch.argv, self._config.seed, launch.command)
        self._write()

    def saved(self, opt_steps: int) -> None:
        """Note a new checkpoint in the summary. If the summary cannot be written, this is logged."""
        if self.loop is None or not self._run_id:
            return
        self._saved = {"opt_steps": opt_steps, "seconds": self.loop.parts.telemetry.seconds}
        try:
            self._write()
        except OSError as e:
            _log.warning("%s cannot be written: %s", self.run_dir / SUMMARY_FILE, e.strerror)

    def finished(self, stop: StopFlag) -> RunResult:
        """Write how the run ended, by itself or by a signal."""
        assert self.loop is not None
        if self.loop.ended_by == "signal" and stop.code is not None:
            result = self._result(stop.code.name.lower(), stop.code)
        else:
            result = self._result(self.loop.ended_by)
        self._write(result)
        ended = f"ended by {result.ended_by}: {result.opt_steps} opt steps, {result.env_steps} env steps"
        for line in filter(None, (result.bound, result.expected, ended)):
            _log.info("%s", line)
        return result

    def failed(self, error: BaseException) -> None:
        """Write how the run failed: summary.json, the log, and crash.json for a defect."""
        interrupted = isinstance(error, Interrupted)
        code = error.code if isinstance(error, BorderError | Interrupted) else ExitCode.DEFECT
        saved_at = 0 if self.loop is None else self.loop.parts.checkpoints.saved_at
        learned = self.loop is not None and self.loop.parts.limiter.opt_steps > 0
        kept = 0 if self._resumed is None or self._resumed.path is None else self._resumed.opt_steps
        try:
            # On resume, the summary stays that of the earlier launch until the saved state has been loaded.
            if (saved_at or not kept) and not isinstance(error, InvalidCheckpointError):
                self.start()
            if self._run_id:
                ended = (code.name.lower(), code) if interrupted else ("error", code, str(error))
                self._write(self._result(*ended))
        except OSError as e:  # such as the full disk that ended the run; the first error counts
            _log.error("%s: %s", e.filename or self.run_dir, e.strerror)
        if interrupted:
            what = f"opt step {kept} is kept" if kept else "nothing is saved"
            _log.warning("stopped by %s before the first opt step: %s", code.name, what)
            return
        reported = not isinstance(error, ActorLostError) or not error.details or error.logged
        if isinstance(error, Exception) and (code == ExitCode.DEFECT or not reported):
            write_crash(self.run_dir, error)
        # As text: a log handler must not keep the error, whose frames hold the memory of the run.
        trace = traceback.format_exception(error) if code == ExitCode.DEFECT or self._config.debug else []
        _log.error("the run failed: %s", "".join([f"{error}\n", *trace]).rstrip(), extra=REPORTED)
        if isinstance(error, ActorLostError) and not reported:
            _log.error("the actor's own traceback:\n%s", error.details, extra=REPORTED)
        if saved_at:
            again = f"border-train resume={typed(self.run_dir, self._config)}"
            add_note(error, f"the state of opt step {saved_at} is saved: {again}")
        elif not (kept or learned) and str(error).count("\n") < 2:  # three lines at most
            add_note(error, "nothing is saved: there was no opt step yet")

    def _write(self, result: RunResult | None = None) -> None:
        """Replace summary.json. result: None while the run is running: the keys are the same, without values.

        Raises OSError.
        """
        end, rates = result or RunResult(""), ("opt_steps_per_sec", "samples_per_sec", "samples_per_opt_step")
        counters = ("opt_steps", "env_steps", "episodes") if result else ()
        data = {
            "run_id": self._run_id,
            "status": _STATUS.get(end.ended_by, "running"),
            "saved": self._saved,
            "ended_by": end.ended_by or None,
            "exit_code": int(end.code) if result else None,
            "error": end.error,
            "last_score": _score(end.last),
            "best_score": _score(end.best),
            "best_confirmed": end.best_confirmed,
            "start_score": None if end.start is None else {"opt_steps": 0, "mean": end.start},
            "seconds": end.seconds or None,
            "counters": {name: getattr(end, name) for name in counters},
            "throughput": {name: getattr(end, name) for name in rates if end.seconds},
            "bound": end.bound,
            "expected": end.expected,
            "actors": [asdict(actor) | {"samples_per_sec": actor.samples_per_sec} for actor in end.actors],
            # known while the run is running, and kept when it fails
            "exact": False if self._exact() is False else end.exact,
            "records_dropped": dict(end.dropped),
            "config": to_plain(self._config),
        }
        write_json(self.run_dir / SUMMARY_FILE, data)

    def _exact(self) -> bool | None:
        """Whether this is what an uninterrupted run would have given; None where no run can be repeated."""
        if not is_reproducible(self._config):
            return None
        actors = [] if self.loop is None else self.loop.actors or self.loop.parts.source.stats()
        return (self._resumed is None or self._resumed.exact) and all(actor.exact for actor in actors)

    def _result(self, ended_by: str, code: ExitCode = ExitCode.DONE, error: str | None = None) -> RunResult:
        loop = self.loop
        if loop is None:
            return RunResult(ended_by, code, error)
        parts, best = loop.parts, loop.eval_manager.best
        limiter, telemetry = parts.limiter, parts.telemetry
        actors, learner = telemetry.blocked
        whole = replace(telemetry.progress, phase="training", actors_blocked=actors, learner_blocked=learner)
        return RunResult(
            ended_by,
            code,
            error,
            best=best,
            last=loop.eval_manager.last,
            best_confirmed=loop.eval_manager.confirmed,
            start=dict(telemetry.progress.evaluations).get(0),
            opt_steps=limiter.opt_steps,
            env_steps=limiter.env_steps,
            episodes=telemetry.episodes,
            seconds=telemetry.seconds,
            samples_per_opt_step=limiter.ratio,
            actors=tuple(loop.actors),
            actors_blocked=actors,
            learner_blocked=learner,
            bound=advice(whole, resource_checks.cores_for_actors(self._config)),
            expected=_expected(self._config, None if best is None else best.mean, limiter.env_steps),
            exact=self._exact(),
            dropped={r.name: r.dropped for r in parts.lossy_recorders if r.dropped},
        )


def _score(evaluation: Evaluation | None) -> dict[str, Any] | None:
    return None if evaluation is None else {"opt_steps": evaluation.opt_steps, "mean": evaluation.mean}


def _expected(config: TrainConfig, best: float | None, env_steps: int) -> str:
    """What the preset promises, and whether the best model of the run reached it; empty for a run too short to tell."""
    promise = config.preset.expect_return
    if promise is None or best is None or config.evaluator.type not in ("inline", "process"):
        return ""
    if best < promise and env_steps < (config.preset.expect_env_steps or 0):
        return ""
    expect, verdict = config.preset.expect, "reached" if best >= promise else "not reached"
    if " about " in expect:  # figures of other projects; those of our own runs are lower limits
        verdict = verdict if best >= promise else "not reproduced"
        return f"published elsewhere: {expect}; {verdict} here, with {number(best)}"
    return f"{expect} by the preset {config.preset.name}: {verdict}, with {number(best)}"


def write_crash(run_dir: Path, error: BaseException) -> Path:
    """Write crash.json: the traceback, where the error happened, and the versions. Returns its path.

    Of an exception in an actor it has the actor's traceback, and environment, episode, step and action as `context`. If
    the disk fails, this is logged: it must not end a run that continues.
    """
    context, lines = dict[str, Any](), traceback.format_exception(error)
    if isinstance(error, ActorLostError):
        context, lines = dict(error.context), error.details.splitlines(keepends=True)
    path = run_dir / CRASH_FILE
    crash = {"error": type(error).__name__, "message": str(error), "context": context, "traceback": lines}
    try:
        write_json(path, crash | {"versions": versions()})
    except OSError as e:
        _log.error("%s: %s", e.filename or path, e.strerror)
    return path
