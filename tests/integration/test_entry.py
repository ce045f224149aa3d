"""Signals that arrive while Python still imports the command."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from border_cli.core.errors import ExitCode

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


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_d1_interrupted_while_it_is_imported(command: str) -> None:
    done = run_with_signal(command, signal.SIG_DFL)
    assert (done.returncode, done.stdout, done.stderr) == (ExitCode.SIGINT, "", "")


def test_an_ignored_sigint_stays_ignored() -> None:
    done = run_with_signal("train", signal.SIG_IGN)
    assert done.returncode == 0
    assert done.stdout.startswith("border-cli ")


def test_d4_sigusr1_while_it_is_imported_is_ignored() -> None:
    done = run_with_signal("train", signal.SIG_DFL, signal.SIGUSR1)
    assert done.returncode == 0
    assert done.stdout.startswith("border-cli ")


def run_with_signal(
    command: str, disposition: signal.Handlers, number: signal.Signals = signal.SIGINT
) -> subprocess.CompletedProcess[str]:
    """Run the command, which gets a signal during its imports. disposition: of SIGINT, inherited from the parent."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(command=command, number=int(number))],
        preexec_fn=lambda: signal.signal(signal.SIGINT, disposition),
        capture_output=True,
        text=True,
        check=False,
    )
