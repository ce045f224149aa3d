"""The command as a shell starts it: a whole run, and signals that arrive while Python still imports it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from border_cli.core.errors import ExitCode
from tests.faults.processes import TIMEOUT_S, assert_session_ends
from tests.real_runs import Run, tiny

PROGRAM = """
import os, signal, sys
from border_cli.cli import entry

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "border_cli.core.errors":
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Interrupt())
sys.argv = ["command", "--version"]
sys.exit(getattr(entry, {command!r})())
"""


PROCESS_1 = ("unshare", "-rpf", "--mount-proc")


@pytest.mark.parametrize(("command", "number"), [("train", signal.SIGINT), ("evaluate", signal.SIGTERM)])
def test_d1_interrupted_while_it_is_imported(command: str, number: signal.Signals) -> None:
    done = run_with_signal(command, signal.SIG_DFL, number)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", "")


def test_d10_process_1_of_a_container_is_interrupted_while_it_is_imported() -> None:
    """The kernel drops a signal to process 1 that has no handler."""
    if subprocess.run([*PROCESS_1, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("ROW D10 IS NOT SHOWN HERE: no user namespace with processes (`unshare -rp`)")
    done = run_with_signal("train", signal.SIG_DFL, signal.SIGTERM, PROCESS_1)
    assert (done.returncode, done.stdout, done.stderr) == (ExitCode.SIGTERM, "", "")


@pytest.mark.parametrize(
    ("disposition", "number"),
    [(signal.SIG_IGN, signal.SIGINT), (signal.SIG_DFL, signal.SIGUSR1)],
    ids=["SIGINT that the parent process ignores", "SIGUSR1"],
)
def test_d4_a_signal_that_is_ignored_while_it_is_imported(
    disposition: signal.Handlers, number: signal.Signals
) -> None:
    done = run_with_signal("train", disposition, number)
    assert done.returncode == 0
    assert done.stdout.startswith("border-cli ")


STARTS = """
import sys
from border_cli.runtime import forkserver
from border_cli.cli import entry
sys.argv = ["command", *sys.argv[1:]]
try:
    sys.exit(entry.train())
finally:
    print(forkserver.forkserver_pid() is not None)
"""


@pytest.mark.parametrize(("arg", "code", "early"), [("--version", 0, "False"), ("agent=nonsense", 2, "True")])
def test_the_forkserver_starts_with_the_command_and_ends_with_it(
    tmp_path: Path, arg: str, code: int, early: str
) -> None:
    """It never completes its imports here. It is not started where flags only show something."""
    (tmp_path / "torch.py").write_text("import threading\nthreading.Event().wait()\n")
    started = subprocess.Popen(
        [sys.executable, "-c", STARTS, arg],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    output = started.communicate(timeout=TIMEOUT_S)[0]
    assert (started.returncode, output.splitlines()[-1]) == (code, early)
    assert_session_ends(started.pid)


def test_a_run_of_the_installed_command(tmp_path: Path) -> None:
    """With the real fork server, which tests/warm.py replaces in other tests: two actors, and evaluations in a process."""
    words = tiny("n_actors=2", "evaluator=process", "trainer.max_opts=100", "trainer.eval_interval=50")
    started = subprocess.Popen(
        [Path(sys.executable).with_name("border-train"), *words, "hydra.run.dir=run"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=tmp_path,
    )
    _, errors = started.communicate(timeout=TIMEOUT_S)
    assert (started.returncode, errors) == (0, "")
    assert_session_ends(started.pid)
    summary = Run(tmp_path / "run").summary
    assert (summary["status"], len(summary["actors"]), summary["counters"]["opt_steps"]) == ("done", 2, 100)


def run_with_signal(
    command: str,
    disposition: signal.Handlers,
    number: signal.Signals = signal.SIGINT,
    before: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    """Run the command, which gets a signal during its imports. disposition: of SIGINT, inherited from the parent ·
    before: a command that runs it.
    """
    return subprocess.run(
        [*before, sys.executable, "-c", PROGRAM.format(command=command, number=int(number))],
        preexec_fn=lambda: signal.signal(signal.SIGINT, disposition),
        capture_output=True,
        text=True,
        check=False,
    )
