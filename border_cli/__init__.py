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
    from border_cli.recorders import BufferedRecorder
    from border_cli.run.load import load, load_agent, save_agent

__version__ = "0.1.0"
__all__ = [
    "BufferedRecorder",
    "__version__",
    "compose",
    "load",
    "load_agent",
    "save_agent",
    "train",
    "train_async",
]

_HOMES = {
    "BufferedRecorder": "border_cli.recorders",
    "load": "border_cli.run.load",
    "load_agent": "border_cli.run.load",
    "save_agent": "border_cli.run.load",
    "compose": "border_cli.api",
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
