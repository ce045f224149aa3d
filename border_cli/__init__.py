"""border-cli: off-policy reinforcement learning from the command line, and from Python.

import border_cli
model = border_cli.load("runs/latest")
action = model.sample(observation)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from border_cli.api import compose, train, train_async
    from border_cli.config.registry import register
    from border_cli.core.errors import BorderError, UsageError
    from border_cli.core.metrics import Record
    from border_cli.core.progress import RunResult
    from border_cli.core.protocols import Evaluator, Recorder
    from border_cli.recorders import BufferedRecorder
    from border_cli.run.load import LoadedModel, load, load_agent, save_agent

__version__ = "0.1.0"
__all__ = [
    "BorderError",
    "BufferedRecorder",
    "Evaluator",
    "LoadedModel",
    "Record",
    "Recorder",
    "RunResult",
    "UsageError",
    "__version__",
    "compose",
    "load",
    "load_agent",
    "register",
    "save_agent",
    "train",
    "train_async",
]

_HOMES = {
    "BorderError": "border_cli.core.errors",
    "BufferedRecorder": "border_cli.recorders",
    "Evaluator": "border_cli.core.protocols",
    "LoadedModel": "border_cli.run.load",
    "Record": "border_cli.core.metrics",
    "Recorder": "border_cli.core.protocols",
    "RunResult": "border_cli.core.progress",
    "UsageError": "border_cli.core.errors",
    "compose": "border_cli.api",
    "load": "border_cli.run.load",
    "load_agent": "border_cli.run.load",
    "register": "border_cli.config.registry",
    "save_agent": "border_cli.run.load",
    "train": "border_cli.api",
    "train_async": "border_cli.api",
}
"""Where the names live that are imported at their first use, so that this package itself is light."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
