"""Which agents and buffers exist: type name → config dataclass and the import path of its factory.

Factories are import paths, so that looking here loads nothing. A user's package adds its own through
`register_agent` and `register_buffer` when it is named in `plugins=[…]` or in the entry-point group
`border_cli.plugins`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from border_cli.agents.dqn.config import C51Config, DqnConfig, IqnConfig, QrDqnConfig, RainbowConfig
from border_cli.agents.sac.config import SacConfig, Td3Config, TqcConfig
from border_cli.config.schema import AgentConfig, BufferConfig
from border_cli.replay.config import PrioritizedConfig


@dataclass(frozen=True)
class Entry:
    """A config dataclass, and the import path of the module that makes what it configures.

    See `border_cli.agents.dqn.agent` for the functions an agent's module offers (check_spec, make_policy, make_agent),
    and `border_cli.replay.uniform` for a buffer's (make_buffer, buffer_bytes).
    """

    config: type
    factory: str

    def load(self) -> Any:
        """Import the module of the factory."""
        return importlib.import_module(self.factory)


_VALUE_BASED = "border_cli.agents.dqn.agent"
_ACTOR_CRITIC = "border_cli.agents.sac.agent"
AGENTS: dict[str, Entry] = {
    "dqn": Entry(DqnConfig, _VALUE_BASED),
    "c51": Entry(C51Config, _VALUE_BASED),
    "qrdqn": Entry(QrDqnConfig, _VALUE_BASED),
    "iqn": Entry(IqnConfig, _VALUE_BASED),
    "rainbow": Entry(RainbowConfig, _VALUE_BASED),
    "sac": Entry(SacConfig, _ACTOR_CRITIC),
    "td3": Entry(Td3Config, _ACTOR_CRITIC),
    "tqc": Entry(TqcConfig, _ACTOR_CRITIC),
}
BUFFERS: dict[str, Entry] = {
    "uniform": Entry(BufferConfig, "border_cli.replay.uniform"),
    "prioritized": Entry(PrioritizedConfig, "border_cli.replay.prioritized"),
}


def register_agent(name: str, config: type[AgentConfig], module: str) -> None:
    """Make `agent.type=<name>` known. `module` offers what `border_cli.agents.dqn.agent` offers."""
    _register(AGENTS, name, Entry(config, module))


def register_buffer(name: str, config: type[BufferConfig], module: str) -> None:
    """Make `buffer.type=<name>` known. `module` offers what `border_cli.replay.uniform` offers."""
    _register(BUFFERS, name, Entry(config, module))


def _register(table: dict[str, Entry], name: str, entry: Entry) -> None:
    if table.setdefault(name, entry) != entry:
        raise ValueError(f"{name!r} is registered twice")
