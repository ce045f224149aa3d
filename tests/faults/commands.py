"""`border-train` as a person runs it: a process in a session of its own, and what it leaves on disk."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

from border_cli.checkpoints.contents import CHECKPOINTS, Checkpoint, read_checkpoint
from border_cli.checkpoints.store import list_steps, newest_valid
from tests.faults.marks import GO, HELD_SAVE, MARK
from tests.faults.processes import ROOT, TIMEOUT_S, assert_session_ends, handles, processes, wait_until
from tests.real_runs import Run, tiny

COMMAND = Path(sys.executable).with_name("border-train")
START_S = 60.0
"""Two processes have to import torch, on a machine that may be busy."""
WARMUP, TOLERANCE = 20, 64
_QUIET = (
    "env=gym",
    "env.entry_point=tests.faults.trap:make",
    "n_actors=2",
    f"trainer.warmup_period={WARMUP}",
    f"trainer.ratio_tolerance={TOLERANCE}",
    "trainer.max_opts=1000000000",
    "trainer.eval_interval=null",
    "trainer.save_interval=null",
    "evaluator.episodes=1",
)
_IMPATIENT = ("actor_manager.stop_timeout_s=2",)


class Command:
    """A running `border-train`, started in `folder`."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self.pid = process.pid
        self._process = process
        self._since = monotonic()

    def __repr__(self) -> str:
        return f"border-train in {self.folder}"

    def wait_for_trap(self) -> int:
        """Return when the trap has been sprung: the id of the process that did."""
        mark = self.folder / MARK
        wait_until(
            lambda: self._ended or (mark.exists() and mark.read_text().endswith("\n")), "the trap", START_S
        )
        assert not self._ended, f"it ended before the trap was sprung: {self.errors}"
        return int(mark.read_text())

    def send(self, number: signal.Signals, to: str = "main") -> None:
        """Send a signal to the main process, to its group as a terminal does, or to all processes as a scheduler may.

        The actors and the evaluator lead groups of their own: "all" alone reaches them.
        """
        self._since = monotonic()
        if to == "all":
            for pid in sorted(processes(session=self.pid), reverse=True):  # the main process last
                with contextlib.suppress(
                    ProcessLookupError
                ):  # one that was signalled before may have ended it
                    os.kill(pid, number)
        else:
            (os.killpg if to == "group" else os.kill)(self.pid, number)

    def undefended(self, number: signal.Signals) -> list[str]:
        """The command lines of its processes that this signal would end."""
        masks = ("SigBlk", "SigIgn", "SigCgt")
        found = []
        for pid in processes(session=self.pid):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            mask = sum(
                int(line.split()[1], 16) >> (number - 1) & 1 for line in lines if line.startswith(masks)
            )
            found += [] if mask else [Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")]
        return found

    def wait_for_handling(self) -> None:
        """Return when it has taken notice of a first signal: then the next SIGINT finds no handler."""
        wait_until(lambda: self._ended or not handles(self.pid, signal.SIGINT), "the signal to be handled")

    def wait_for_back_off(self, actor: int) -> None:
        """Kill this one; return when the learner waits for its next incarnation."""
        os.kill(actor, signal.SIGKILL)
        log = self.run.path / "train.log"
        wait_until(lambda: self._ended or ": restart 1 of " in log.read_text(), "the back-off")

    def let_go(self) -> None:
        """Whoever waits in the trap, or with half a checkpoint, goes on."""
        (self.folder / GO).touch()

    def end(self, within_s: float | None = None) -> int:
        """Its exit code, as a shell sees it, once nothing of it lives any more.

        within_s: how long it may take from the last signal it was sent, or from its start; None: that is no promise.
        """
        code = self._process.wait(START_S)
        took_s = monotonic() - self._since
        assert_session_ends(self.pid)
        assert within_s is None or took_s <= within_s, f"it took {took_s:.1f} s"
        return 128 - code if code < 0 else code

    @property
    def _ended(self) -> bool:
        return self._process.poll() is not None

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


def _as_from_a_terminal() -> None:
    """What a shell starts in the background ignores SIGINT, and so do its children: such as these tests, then."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def border_train(
    folder: Path, *words: str, flags: tuple[str, ...] = (), held_save: int = 0
) -> Iterator[Command]:
    """`border-train` with these words beside those of a tiny run without end; no trace of it stays.

    held_save: which checkpoint `tests.faults.held_save` holds up, if the words name it among the plugins.
    """
    quiet = _QUIET if "trainer=sync" in words else (*_QUIET, *_IMPATIENT)
    arguments = [*flags, *tiny(*_unless_typed(quiet, words), *words)]
    with _started(folder, arguments, folder / "state", held_save) as command:
        yield command


@contextlib.contextmanager
def resuming(first: Command, *words: str) -> Iterator[Command]:
    """`border-train resume=` of this command's run with these words, in a folder of its own, by the same user."""
    arguments = [f"resume={first.run.path}", *words]
    with _started(first.folder / "again", arguments, first.folder / "state") as command:
        yield command


@contextlib.contextmanager
def _started(folder: Path, arguments: list[str], state: Path, held_save: int = 0) -> Iterator[Command]:
    """state: the folder with the user's list of runs."""
    folder.mkdir(exist_ok=True)
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "XDG_STATE_HOME": str(state),
        HELD_SAVE: str(held_save),
    }
    with (folder / "errors").open("wb") as errors, (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [str(COMMAND), *arguments],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=errors,
            start_new_session=True,
            preexec_fn=_as_from_a_terminal,  # noqa: PLW1509 - there are no other threads here
        )
    try:
        yield Command(folder, process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(TIMEOUT_S)


@contextlib.contextmanager
def two_border_trains(
    folder: Path, *words: str, others: str = "group", flags: tuple[str, ...] = (), held_save: int = 0
) -> Iterator[dict[str, Command]]:
    """Two such runs at once, both in the trap, by whom a signal is to be sent to: "main" and `others`.

    One after the other would take longer.
    """
    with (
        border_train(folder / "main", *words, flags=flags, held_save=held_save) as main,
        border_train(folder / others, *words, flags=flags, held_save=held_save) as second,
    ):
        main.wait_for_trap()
        second.wait_for_trap()
        yield {"main": main, others: second}


def _unless_typed(words: tuple[str, ...], typed: tuple[str, ...]) -> list[str]:
    keys = {word.partition("=")[0] for word in typed}
    return [word for word in words if word.partition("=")[0] not in keys]


def verified_checkpoints(run: Run) -> list[Checkpoint]:
    """All of a run's checkpoints, newest first, read whole: raises if any does not verify."""
    folder = run.path / CHECKPOINTS
    found = [read_checkpoint(path) for path in list_steps(folder)]
    newest = newest_valid(folder)
    assert newest == (found[0].path if found else None), f"{newest} is taken for the newest of {found}"
    return found


def what_is_kept(run: Run, folder: Path) -> str:
    """What a run that failed says of its newest checkpoint, started in this folder."""
    newest = verified_checkpoints(run)[0].opt_steps
    return f"the state of opt step {newest} is kept: border-train resume={run.path.relative_to(folder)}"
