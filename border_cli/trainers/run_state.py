"""What a run goes on from: taken between two opt steps, and given back to the parts of a new process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from border_cli.core.errors import UnfitStateError
from border_cli.core.metrics import METRICS
from border_cli.core.protocols import Agent, ModelInfo
from border_cli.core.state import (
    RunState,
    State,
    check_arrays,
    count,
    flag,
    joined,
    listed,
    number,
    require,
    section,
)
from border_cli.trainers.judging import Judging
from border_cli.trainers.parts import Parts

_LOOP = (
    *("limiter", "telemetry", "judging", "whole"),
    *("recorded_at", "agent_values", "to_do", "incarnations", "records"),
)


@dataclass
class Position:
    """What the loop itself has to remember from one opt step to the next.

    recorded_at: opt step of the last record, -1 before the first · agent_values: of the agent since then ·
    to_do: stages that are due and not done · incarnations: by actor, of what was inserted last · records: how much the
    recorders had written of the past that counts, when the run went on; they say themselves what they have written since.
    """

    recorded_at: int = -1
    agent_values: dict[str, float] = field(default_factory=dict)
    to_do: list[str] = field(default_factory=list)
    incarnations: dict[int, int] = field(default_factory=dict)
    records: dict[str, int] = field(default_factory=dict)

    def state(self) -> dict[str, object]:
        """For `load_state`, as JSON can hold it."""
        return {
            "recorded_at": self.recorded_at,
            "agent_values": self.agent_values,
            "to_do": self.to_do,
            "incarnations": [[actor, n] for actor, n in sorted(self.incarnations.items())],
        }

    def load_state(self, saved: Mapping[str, Any], stages: Sequence[str]) -> None:
        """Take over a saved state. stages: those that may be to do. Raises ValueError where it does not fit."""
        recorded_at = saved["recorded_at"]
        require(saved["agent_values"], (), "the agent's record")
        require(saved["records"], (), "the recorders")
        values = {name: number(value, name) for name, value in saved["agent_values"].items()}
        to_do = listed(saved["to_do"], "to_do")
        unknown = [
            *(name for name in values if name not in METRICS),
            *(stage for stage in to_do if stage not in stages),
        ]
        if unknown:
            raise ValueError(f"there is no metric or stage {unknown[0]!r}")
        pairs = [listed(pair, "an incarnation", 2) for pair in listed(saved["incarnations"], "incarnations")]
        self.recorded_at = -1 if recorded_at == -1 else count(recorded_at, "recorded_at")
        self.records = {name: count(n, f"records of {name}") for name, n in saved["records"].items()}
        self.agent_values, self.to_do = values, to_do
        self.incarnations = {count(actor, "an actor"): count(n, "an incarnation") for actor, n in pairs}


def take_state(
    parts: Parts, judging: Judging, position: Position, *, reproducible: bool, failed: bool
) -> RunState:
    """All that a run goes on from.

    reproducible: the kind of run of which a resumed one equals one that was never interrupted ·
    failed: the actors may be gone, and what was under way with them is lost.
    """
    return RunState(
        agent=parts.agent.state(),
        replay=parts.buffer.state(),
        actors=parts.source.state(whole=not failed),
        waiting=joined({str(model.version): State(model.arrays) for model in judging.pending}),
        loop={
            "limiter": parts.limiter.state(),
            "telemetry": parts.telemetry.state(reproducible),
            "judging": judging.state(),
            "whole": reproducible and not failed,
            **position.state(),
            "records": position.records | parts.recorder.positions(),
        },
        generators={"replay": parts.buffer.generator_state(), "exploration": parts.agent.generator_state()},
    )


def load_state(
    saved: RunState, parts: Parts, judging: Judging, position: Position, stages: Sequence[str]
) -> None:
    """Have everything go on from a saved state. Raises UnfitStateError where it does not fit: then the parts may hold
    half of it, and are of no more use.
    """
    try:
        _load(saved, parts, judging, position, stages)
    except UnfitStateError:
        raise
    except ValueError as e:
        raise UnfitStateError(str(e)) from e


def _load(saved: RunState, parts: Parts, judging: Judging, position: Position, stages: Sequence[str]) -> None:
    own = saved.loop
    require(own, _LOOP, "the loop")
    require(saved.generators, ("exploration", "replay"), "the generators")
    parts.agent.load_state(saved.agent)
    parts.agent.load_generator_state(saved.generators["exploration"])
    parts.limiter.load_state(own["limiter"])
    if parts.agent.opt_steps != parts.limiter.opt_steps:
        raise ValueError(
            f"the agent is of opt step {parts.agent.opt_steps}, the loop of {parts.limiter.opt_steps}"
        )
    _load_replay(saved, parts)
    parts.telemetry.load_state(own["telemetry"])
    judging.load_state(own["judging"], _waiting_models(saved.waiting, parts.agent))
    position.load_state(own, stages)


def _load_replay(saved: RunState, parts: Parts) -> None:
    if saved.replay is None:
        parts.limiter.warm_up_again()
    else:
        parts.buffer.load_state(saved.replay)
        parts.keeper.know_loaded(parts.buffer.state())
    parts.buffer.load_generator_state(saved.generators["replay"])
    if not flag(saved.loop["whole"], "whole"):
        parts.buffer.break_streams()  # what actors had begun is not gone on with, of those that are gone as well


def _waiting_models(waiting: State, agent: Agent) -> list[ModelInfo]:
    """Those that wait for their evaluation, the oldest first. Raises ValueError for what is no model of this agent."""
    models = []
    for n in sorted(count(int(name), "the opt step of a model") for name in waiting.values):
        arrays = section(waiting, str(n)).arrays
        check_arrays(arrays, agent.model_info().arrays, f"the model of opt step {n}")
        models.append(ModelInfo(n, arrays))
    return models
