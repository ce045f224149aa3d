"""Which agents and buffers exist: type name → config dataclass and the import path of its factory.

Factories are import paths, so that looking here loads nothing. A user's package adds its own through
`register_agent` and `register_buffer` when it is named in `plugins=[…]` or in the entry-point group
`border_cli.plugins`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from border_cli.agents.dqn.config import DqnConfig
from border_cli.config.schema import AgentConfig, BufferConfig


@dataclass(frozen=True)
class Entry:
    """A config dataclass and `module:function`.

    The factory of an agent is a module with `make_agent(config, spec, seed, device, env_steps…)`; see
    `border_cli.agents.dqn.agent` for the two functions a module has to offer.
    """

    config: type
    factory: str

    def load(self) -> Any:
        """Import the module of the factory."""
        return importlib.import_module(self.factory)


AGENTS: dict[str, Entry] = {"dqn": Entry(DqnConfig, "border_cli.agents.dqn.agent")}
BUFFERS: dict[str, Entry] = {"uniform": Entry(BufferConfig, "border_cli.replay.uniform")}


def register_agent(name: str, config: type[AgentConfig], module: str) -> None:
    """Make `agent.type=<name>` known. `module` offers what `border_cli.agents.dqn.agent` offers."""
    _register(AGENTS, name, Entry(config, module))


def register_buffer(name: str, config: type[BufferConfig], module: str) -> None:
    """Make `buffer.type=<name>` known. `module` offers `make_buffer(config, spec, seed)`."""
    _register(BUFFERS, name, Entry(config, module))


def _register(table: dict[str, Entry], name: str, entry: Entry) -> None:
    if table.setdefault(name, entry) != entry:
        raise ValueError(f"{name!r} is registered twice")


Factory = Callable[..., Any]
