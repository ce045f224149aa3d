"""The commands as a shell starts them. A Ctrl-C during their imports ends them with the documented exit code."""

from __future__ import annotations

import importlib
import os
import signal


def train() -> int:
    """`border-train`. Returns the exit code."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until there is a run to save
    return _run("border_cli.cli.train")


def evaluate() -> int:
    """`border-eval`. Returns the exit code."""
    return _run("border_cli.cli.eval")


def report() -> int:
    """`border-report`. Returns the exit code."""
    return _run("border_cli.cli.report")


def _run(module: str) -> int:
    # A parent process may have had SIGINT ignored, as `nohup` does for SIGHUP: that stays.
    by_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if by_default:  # 130 is core.errors.ExitCode.SIGINT, which is not imported yet
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    main = importlib.import_module(module).main
    if by_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return int(main())
