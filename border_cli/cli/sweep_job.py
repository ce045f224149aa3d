"""What runs a job of a sweep: in its own process, or wherever a launcher of Hydra's plugins calls it.

A job resumes the run that its directory holds.
"""

from __future__ import annotations

import io
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from pathlib import Path

from hydra._internal.callbacks import Callbacks
from hydra.core.hydra_config import HydraConfig
from hydra.types import HydraContext
from omegaconf import DictConfig

from border_cli.cli.command import report, tracebacks
from border_cli.cli.compose import Composed, check_composed
from border_cli.cli.overrides import override_values, parse_overrides
from border_cli.cli.start import continue_run, start_run
from border_cli.config import registry
from border_cli.config.resolve import changes, check_changes, inherit, reopen
from border_cli.config.schema import TrainConfig
from border_cli.core.errors import ExitCode, Interrupted
from border_cli.core.progress import View
from border_cli.display.output import write_line
from border_cli.run.directory import CONFIG_FILE, Launch, read_config
from border_cli.run.resume import DONE
from border_cli.run.summary import mean_score, read_summary
from border_cli.sweeps.job_process import JobView


@dataclass(frozen=True)
class SlotTask:
    """What the process of a job does. config: checked · hydra_config: what it came from · label: for messages."""

    config: TrainConfig
    hydra_config: DictConfig
    launch: Launch
    label: str

    def __call__(self, view: JobView, run_dir: Path) -> int:
        registry.import_installed_plugins()
        context = HydraContext(None, Callbacks(self.hydra_config))
        composed = Composed(self.config, self.hydra_config, context, run_dir)
        with _errors(self.label) as ended, tracebacks(self.config.debug):
            registry.import_plugins(self.config.plugins)  # the stored configuration names what they register
            _train_or_resume(composed, self.launch, view)
        if ended.text:
            view.fail(ended.text)
        return ended.code


class JobScore(float):
    """The best score of a job as a number for a sweeper, NaN where there is none, with what became of the job.

    error: what is to be printed about it.
    """

    number: int
    overrides: tuple[str, ...]
    run_dir: Path
    exit_code: int
    error: str


_stopped_by: ExitCode | None = None
"""How the job of another launcher was stopped in this process, which then runs no more jobs."""


@dataclass
class SweepTask:
    """What another launcher calls with each composed job, in this process or, pickled, in another one.

    argv: the command line of the sweep · presets: those that exist · scores: of the jobs that ran in this process ·
    pid: process of the sweep, which prints the errors of jobs elsewhere.
    """

    argv: list[str]
    presets: list[str]
    scores: list[JobScore] = field(default_factory=list)
    pid: int = field(default_factory=os.getpid)

    def __call__(self, composed: DictConfig) -> float:
        """Train, or resume the run in the job's directory. Raises no Exception, so that the sweep continues."""
        global _stopped_by
        registry.import_installed_plugins()
        state = HydraConfig.get()
        overrides = tuple(state.overrides.task)
        run_dir = Path(state.runtime.output_dir)
        label = f"job {state.job.num} ({' '.join(word.lstrip('+') for word in overrides)}): "
        with _errors(label, is_printed=os.getpid() == self.pid) as ended:
            if _stopped_by is not None:
                raise Interrupted(_stopped_by)
            typed = override_values(parse_overrides(overrides))
            config = check_composed(composed, state.runtime.choices, typed, self.presets)
            with tracebacks(config.debug):
                _train_or_resume(Composed(config, composed, None, run_dir), Launch(self.argv, typed))
        if ended.code in (ExitCode.SIGINT, ExitCode.SIGTERM):
            if os.getpid() == self.pid:
                raise Interrupted(ExitCode(ended.code))
            # A pool of processes kills the others when one of them raises, even while they save a checkpoint.
            _stopped_by = ExitCode(ended.code)
        mean = mean_score(read_summary(run_dir), "best_score")
        score = JobScore(math.nan if mean is None else mean)
        score.number, score.overrides, score.run_dir = state.job.num, overrides, run_dir
        score.exit_code, score.error = ended.code, ended.text
        self.scores.append(score)
        return score


def _train_or_resume(composed: Composed, launch: Launch, view: View | None = None) -> None:
    """Do what is left of the run in the directory of a job. Raises BorderError or Interrupted."""
    run_dir = composed.run_dir
    if run_dir is None or not (run_dir / CONFIG_FILE).exists():
        start_run(composed, launch, view)
        return
    if read_summary(run_dir).get("status") == DONE:
        # The sweeper of a plugin may draw other values when it is continued, and its launcher chooses the directory.
        stored = reopen(read_config(run_dir))
        check_changes(stored, changes(stored, reopen(inherit(composed.config, stored))))
    else:
        continue_run(run_dir, composed.config, launch, view)


@dataclass
class _End:
    """How a job ended: its exit code, and what an error had printed."""

    code: int = int(ExitCode.DONE)
    text: str = ""


@contextmanager
def _errors(label: str, is_printed: bool = True) -> Iterator[_End]:
    """Turn what a job raises into an exit code and the text of its error, which may be printed on stderr."""
    end, text = _End(), io.StringIO()
    try:
        yield end
    except Interrupted as e:
        end.code = int(e.code)
    except KeyboardInterrupt:
        end.code = int(ExitCode.SIGINT)
    except (Exception, SystemExit) as e:  # noqa: BLE001 - a failed job must not end the sweep
        with redirect_stderr(text):
            end.code = report(e, job=label)
        end.text = text.getvalue().rstrip()
        if is_printed:
            write_line(sys.stderr, end.text)
