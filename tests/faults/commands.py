"""`border-train` as a person runs it: a process in a session of its own, and what it leaves on disk."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic

from border_cli.checkpoints.contents import CHECKPOINTS
from border_cli.checkpoints.store import list_steps, newest_valid, step_name
from border_cli.cli.train import main
from tests.faults.processes import ROOT, TIMEOUT_S, assert_session_ends, handles, processes, wait_until
from tests.faults.trap import GO, MARK
from tests.real_runs import Run, tiny
from tests.trained import Checkpoint, read_checkpoint

START_S = 60.0
"""Two processes have to import torch, on a machine that may be busy."""
WARMUP, TOLERANCE = 20, 64
_QUIET = (
    "env=gym",
    "env.entry_point=tests.faults.trap:make",
    f"trainer.warmup_period={WARMUP}",
    f"trainer.ratio_tolerance={TOLERANCE}",
    "trainer.max_opts=1000000000",
    "trainer.eval_interval=null",
    "trainer.save_interval=null",
    "evaluator.episodes=1",
)
_TWO_ACTORS = ("n_actors=2", "actor_manager.stop_timeout_s=2")


class Command:
    """`border-train` with these words, started in `folder`.

    Args:
        faults: what `tests.faults.plugin` injects.
        before: words in front of the command.
        stdout: a descriptor, by default that of the file `output`.
    """

    def __init__(
        self,
        folder: Path,
        *words: str,
        faults: str = "",
        before: tuple[str, ...] = (),
        stdout: int | None = None,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        settings = {"PYTHONPATH": ROOT, "XDG_STATE_HOME": folder / "state", "FAULTS": faults}
        plugins = ["plugins=[tests.faults.plugin]"] if faults else []
        command = Path(sys.executable).with_name("border-train")
        with (folder / "errors").open("wb") as errors, (folder / "output").open("wb") as output:
            self.process = subprocess.Popen(
                [*before, str(command), *words, *plugins],
                cwd=folder,
                env=os.environ | {name: str(value) for name, value in settings.items()},
                stdout=output if stdout is None else stdout,
                stderr=errors,
                start_new_session=True,
                preexec_fn=_as_from_a_terminal,  # noqa: PLW1509 - there are no other threads here
            )
        self.pid = self.process.pid
        self._since = monotonic()

    def __repr__(self) -> str:
        return f"border-train in {self.folder}"

    def wait_for_trap(self) -> int:
        """Return when the trap was sprung: the id of the process that did it."""
        mark = self.folder / MARK
        wait_until(
            lambda: self._ended or (mark.exists() and mark.read_text().endswith("\n")), "the trap", START_S
        )
        assert not self._ended, f"it ended before the trap was sprung: {self.errors}"
        return int(mark.read_text())

    def send(self, number: signal.Signals, to: str = "main") -> None:
        """Send a signal to the main process, to its group as a terminal does, or to all processes as a scheduler may.

        The actors and the evaluator lead groups of their own: only "all" reaches them.
        """
        self._since = monotonic()
        if to == "all":
            for pid in sorted(processes(session=self.pid), reverse=True):  # the main process last
                with contextlib.suppress(ProcessLookupError):  # the signal before may have ended it
                    os.kill(pid, number)
        else:
            (os.killpg if to == "group" else os.kill)(self.pid, number)

    def undefended(self, number: signal.Signals) -> list[int]:
        """Its processes that this signal would end."""
        masks = ("SigBlk", "SigIgn", "SigCgt")
        return [pid for pid in processes(session=self.pid) if not handles(pid, number, masks)]

    def wait_for_handling(self) -> None:
        """Return when it has handled a first signal: then the next SIGINT finds no handler."""
        wait_until(lambda: self._ended or not handles(self.pid, signal.SIGINT), "the signal to be handled")

    def wait_for_log(self, text: str, times: int = 1) -> None:
        """Return when its log has this text so many times."""
        log = self.folder / "runs" / "latest" / "train.log"
        wait_until(
            lambda: self._ended or (log.exists() and log.read_text().count(text) >= times), text, START_S
        )

    def release(self) -> None:
        """Let the process that waits continue, in a trap or with half a checkpoint."""
        (self.folder / GO).touch()

    def end(self, within_s: float | None = None) -> int:
        """Its exit code, as a shell sees it, once no process of its session is left.

        within_s: how long it may take from the last signal, or from its start; None if nothing is promised.
        """
        code = self.process.wait(START_S)
        took_s = monotonic() - self._since
        assert_session_ends(self.pid)
        assert within_s is None or took_s <= within_s, f"it took {took_s:.1f} s"
        return 128 - code if code < 0 else code

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(TIMEOUT_S)

    @property
    def _ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def errors(self) -> str:
        """What it wrote to stderr."""
        return (self.folder / "errors").read_text()

    @property
    def made_a_run(self) -> bool:
        return (self.folder / "runs").exists()

    @property
    def run(self) -> Run:
        return Run((self.folder / "runs" / "latest").resolve())

    @property
    def log(self) -> str:
        return (self.run.path / "train.log").read_text()


def _as_from_a_terminal() -> None:
    """What a shell starts in the background ignores SIGINT, and so do its children, such as these tests."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def border_train(
    folder: Path, *words: str, faults: str = "", before: tuple[str, ...] = (), stdout: int | None = None
) -> Command:
    """`border-train` with these words beside those of a tiny endless run, with two actors unless trainer=sync."""
    return Command(folder, *endless(*words), faults=faults, before=before, stdout=stdout)


def run_here(code: int, *words: str) -> Run:
    """The same in this process and folder; it must end with this code."""
    assert main(endless(*words)) == code
    return Run(Path("runs/latest").resolve())


def endless(*words: str) -> list[str]:
    typed = {word.partition("=")[0] for word in words}
    if "trainer.lockstep=true" in words:
        typed.add("trainer.ratio_tolerance")  # which has no effect there
    quiet = _QUIET if "trainer=sync" in words else (*_QUIET, *_TWO_ACTORS)
    return tiny(*(word for word in quiet if word.partition("=")[0] not in typed), *words)


def verified_checkpoints(run: Run) -> list[Checkpoint]:
    """All of a run's checkpoints, newest first, read whole: raises if any does not verify."""
    folder = run.path / CHECKPOINTS
    found = [read_checkpoint(path) for path in list_steps(folder)]
    newest = newest_valid(folder)
    assert newest == (found[0].path if found else None), f"{newest} is taken for the newest of {found}"
    return found


def saved_steps(run: Run) -> list[int]:
    """Opt steps of all of a run's checkpoints, newest first; each verifies."""
    return [checkpoint.opt_steps for checkpoint in verified_checkpoints(run)]


def assert_saved(run: Run, steps: list[int]) -> None:
    """These checkpoints verify, and nothing else lies beside them, hidden or not."""
    assert saved_steps(run)[::-1] == steps
    assert sorted(path.name for path in (run.path / CHECKPOINTS).iterdir()) == [step_name(n) for n in steps]
    assert not [path for path in run.path.iterdir() if ".checkpoint" in path.name or "aside" in path.name]


def resume_hint(run: Run, folder: Path) -> str:
    """What a failed run that was started in this folder says of its newest checkpoint."""
    newest = saved_steps(run)[0]
    return f"the state of opt step {newest} is saved: border-train resume={run.path.relative_to(folder)}"
