"""Runs `border-train` as a process in its own session, and checks its files."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from border_cli.checkpoints.contents import CHECKPOINTS
from border_cli.checkpoints.store import list_steps, newest_valid, step_name
from border_cli.cli.train import main
from border_cli.config.convert import to_plain
from border_cli.run.directory import code_names
from tests.faults.processes import PAUSE_S, START_S, assert_session_ends, handles, processes, wait_until
from tests.faults.trap import GO, MARK
from tests.real_runs import Run, tiny
from tests.trained import Checkpoint, read_checkpoint
from tests.warm import CommandProcess

WARMUP, TOLERANCE = 20, 64
_QUIET = (
    "env=gym",
    "env.entry_point=tests.faults.trap:make",
    "agent.compile=false",  # an endless run would compile its opt step
    f"trainer.warmup_period={WARMUP}",
    f"trainer.ratio_tolerance={TOLERANCE}",
    "trainer.max_opts=1000000000",
    "trainer.eval_interval=null",
    "trainer.save_interval=null",
    "evaluator.episodes=1",
)
_TWO_ACTORS = ("n_actors=2", "actor_manager.stop_timeout_s=2")


class Command(CommandProcess):
    """`border-train` with the given arguments, started in `folder`.

    Args:
        faults: faults for `tests.faults.plugin` to inject.
        stdout: a descriptor, by default of the file `output`.
        variables, others: see `CommandProcess`.
    """

    def __init__(
        self,
        folder: Path,
        *args: str,
        faults: str = "",
        stdout: int | None = None,
        variables: Mapping[str, str] | None = None,
        **others: Any,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        variables = {"FAULTS": faults, "XDG_CACHE_HOME": str(folder / "cache"), **(variables or {})}
        plugins = ["plugins=[tests.faults.plugin]"] if faults else []
        with (folder / "errors").open("wb") as errors, (folder / "output").open("wb") as output:
            super().__init__(
                "border-train",
                *args,
                *plugins,
                folder=folder,
                stdout=output if stdout is None else stdout,
                stderr=errors,
                variables=variables,
                **others,
            )

    def __repr__(self) -> str:
        return f"border-train in {self.folder}"

    def wait_for_trap(self) -> int:
        """Wait until the trap was sprung. Returns the id of the process that did it."""
        mark = self.folder / MARK
        wait_until(
            lambda: self._ended or (mark.exists() and mark.read_text().endswith("\n")),
            "the trap",
            START_S,
            PAUSE_S,
        )
        assert not self._ended, f"it ended before the trap was sprung: {self.errors}"
        return int(mark.read_text())

    def send(self, number: signal.Signals, to: str = "main") -> None:
        """Send a signal to the main process, to its process group (like a terminal) or to all processes (like a scheduler).

        Actors and evaluator have their own process groups, so only "all" reaches them.
        """
        if to == "all":
            for pid in sorted(processes(session=self.pid), reverse=True):  # the main process comes last
                with contextlib.suppress(ProcessLookupError):  # an earlier signal may have ended it
                    os.kill(pid, number)
        else:
            (os.killpg if to == "group" else os.kill)(self.pid, number)

    def undefended(self, number: signal.Signals) -> list[int]:
        """Return the processes of its session that this signal would end."""
        masks = ("SigBlk", "SigIgn", "SigCgt")
        return [pid for pid in processes(session=self.pid) if handles(pid, number, masks) is False]

    def wait_for_handling(self) -> None:
        """Wait until it has handled a first signal. After that SIGINT has no handler."""
        wait_until(lambda: self._ended or not handles(self.pid, signal.SIGINT), "the signal to be handled")

    def wait_for_log(self, text: str, times: int = 1) -> None:
        """Wait until its log contains the text this many times."""
        log = self.folder / "runs" / "latest" / "train.log"
        wait_until(
            lambda: self._ended or (log.exists() and log.read_text().count(text) >= times),
            text,
            START_S,
            PAUSE_S,
        )

    def release(self) -> None:
        """Let the waiting process continue, which is in a trap or in the middle of a save."""
        (self.folder / GO).touch()

    def end(self) -> int:
        """Wait until no process of its session is left. Returns the exit code as a shell shows it."""
        code = self.wait(START_S)
        assert_session_ends(self.pid)
        return 128 - code if code < 0 else code

    @property
    def _ended(self) -> bool:
        return self.poll() is not None

    @property
    def errors(self) -> str:
        """Its stderr, without the warning about `CountingEnv`, whose observations have the number of the environment."""
        lines = (self.folder / "errors").read_text().splitlines(keepends=True)
        return "".join(line for line in lines if "two environments that were made alike" not in line)

    @property
    def made_a_run(self) -> bool:
        return (self.folder / "runs").exists()

    @property
    def run(self) -> Run:
        return Run((self.folder / "runs" / "latest").resolve())

    @property
    def log(self) -> str:
        return (self.run.path / "train.log").read_text()


def border_train(folder: Path, *args: str, **named: Any) -> Command:
    """Start a tiny endless run with the given arguments, with two actors unless trainer=sync."""
    return Command(folder, *endless(*args), **named)


def run_here(code: int, *args: str) -> Run:
    """Run the same in this process and the current folder. It must exit with `code`."""
    assert main(endless(*args)) == code
    return Run(Path("runs/latest").resolve())


def trap(place: str, at: str, then: str = "pass", step: int = 1) -> tuple[str, ...]:
    args = {"place": place, "at": at, "then": then, "step": step}
    return tuple(f"env.kwargs.{key}={value}" for key, value in args.items())


def endless(*args: str) -> list[str]:
    typed = {arg.partition("=")[0] for arg in args}
    if "trainer.lockstep=true" in args:
        typed.add("trainer.ratio_tolerance")  # has no effect with sync
    quiet = _QUIET if "trainer=sync" in args else (*_QUIET, *_TWO_ACTORS)
    return tiny(*(arg for arg in quiet if arg.partition("=")[0] not in typed), *args)


def verified_checkpoints(run: Run) -> list[Checkpoint]:
    """Read all checkpoints of a run completely, newest first. Raises if one does not verify."""
    folder = run.path / CHECKPOINTS
    checkpoints = [read_checkpoint(path) for path in list_steps(folder)]
    newest = newest_valid(folder)
    assert newest == (checkpoints[0].path if checkpoints else None), (
        f"{newest} is taken for the newest of {checkpoints}"
    )
    return checkpoints


def saved_steps(run: Run) -> list[int]:
    """Return the opt steps of all checkpoints of a run, newest first. Each must verify."""
    return [checkpoint.opt_steps for checkpoint in verified_checkpoints(run)]


def assert_saved(run: Run, steps: list[int]) -> None:
    """Check that these checkpoints verify and that there are no other files beside them."""
    assert saved_steps(run)[::-1] == steps
    assert sorted(path.name for path in (run.path / CHECKPOINTS).iterdir()) == [step_name(n) for n in steps]
    assert not [path for path in run.path.iterdir() if ".checkpoint" in path.name or "aside" in path.name]


def resume_hint(run: Run, folder: Path) -> str:
    """Return the message of a failed run in this folder about its newest checkpoint."""
    newest = saved_steps(run)[0]
    words = f"{run.path.relative_to(folder)}{' trust=true' if code_names(to_plain(run.config)) else ''}"
    return f"the state of opt step {newest} is saved: border-train resume={words}"
