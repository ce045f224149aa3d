"""The state of a run: taken between two opt steps, and loaded into the parts of a new process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from border_cli.core.errors import IncompatibleStateError
from border_cli.core.metrics import METRICS
from border_cli.core.protocols import Agent, ExperienceSource, Recorder, ReplayBuffer
from border_cli.core.state import RunState, State, check_like, number
from border_cli.training.choose_best import Candidate
from border_cli.training.eval_manager import EvalManager, EvaluationParts
from border_cli.training.ratio_limiter import RatioLimiter
from border_cli.training.videos import Films

STAGES = ("publish", "evaluate", "film", "record", "save")
"""What the loop does at intervals of opt steps, in this order."""


@dataclass(kw_only=True)
class Components(EvaluationParts):
    """Everything that a training loop joins.

    save_request: whether a checkpoint was requested (SIGUSR1) since the last call · pretrained: the weights come from
    another run.
    """

    agent: Agent
    buffer: ReplayBuffer
    source: ExperienceSource
    limiter: RatioLimiter
    lossy_recorders: Sequence[Recorder]
    batch_size: int
    save_request: Callable[[], bool] = lambda: False
    films: Films | None = None
    pretrained: bool = False


@dataclass
class LoopState:
    """What the loop itself carries from one opt step to the next.

    Attributes:
        recorded_at: opt step of the last record, -1 before the first.
        agent_values: the agent's metrics since that record, by name.
        pending: stages that are due and not done yet.
        incarnations: the incarnation of each actor whose rows were inserted last.
        records: number of lines in each recorder's file when the run was resumed.
    """

    recorded_at: int = -1
    agent_values: dict[str, float] = field(default_factory=dict)
    pending: list[str] = field(default_factory=list)
    incarnations: dict[int, int] = field(default_factory=dict)
    records: dict[str, int] = field(default_factory=dict)

    def state(self) -> dict[str, Any]:
        pairs = {"agent_values": self.agent_values.items(), "incarnations": sorted(self.incarnations.items())}
        return asdict(self) | {name: [list(pair) for pair in items] for name, items in pairs.items()}

    def load_state(self, saved: dict[str, Any]) -> None:
        self.recorded_at, self.records = saved["recorded_at"], saved["records"]
        self.agent_values = {name: number(value) for name, value in saved["agent_values"]}
        self.pending, self.incarnations = list(saved["pending"]), dict(saved["incarnations"])
        if unknown := (self.agent_values.keys() - METRICS.keys()) | (set(self.pending) - set(STAGES)):
            raise ValueError(f"there is no metric or stage {min(unknown)!r}")


def take_state(
    parts: Components, eval_manager: EvalManager, state: LoopState, reproducible: bool, failed: bool
) -> RunState:
    """The state of a run.

    failed: whether something raised, so that the actors may be gone; the experience that they hold is lost.
    """
    return RunState(
        agent=parts.agent.state(),
        replay=parts.buffer.state(),
        actors=parts.source.state(whole=not failed),
        evaluation=eval_manager.state(),
        loop={
            **state.state(),
            "records": state.records | parts.recorder.positions(),
            "limiter": parts.limiter.state(),
            "telemetry": parts.telemetry.state(reproducible),
            "whole": reproducible and not failed,
        },
        generators={"replay": parts.buffer.generator_state(), "exploration": parts.agent.generator_state()},
    )


def load_state(
    saved: RunState,
    parts: Components,
    eval_manager: EvalManager,
    state: LoopState,
    later_best: Candidate | None = None,
) -> None:
    """Load a saved state into every part of a run but its actors. later_best: see `EvalManager.load_state`.

    Raises IncompatibleStateError if the saved state does not fit. The parts are then unusable.
    """
    loop, generators = saved.loop, saved.generators
    try:
        check_like(State({}, loop), State({}, _LOOP_EXAMPLE), "the loop")
        example = dict.fromkeys(("exploration", "replay", "seed"))
        check_like(State({}, generators | {"seed": 0}), State({}, example), "the generators")
        parts.agent.load_state(saved.agent)
        parts.agent.load_generator_state(generators["exploration"])
        parts.limiter.load_state(loop["limiter"])
        if saved.replay is None:
            parts.limiter.warm_up_again()
        else:
            parts.buffer.load_state(saved.replay)
            parts.checkpoints.replay_loaded(parts.buffer.state())
        parts.buffer.load_generator_state(generators["replay"])
        if not loop["whole"]:
            parts.buffer.break_streams()  # new episodes begin, also in actors that are not there any more
        parts.telemetry.load_state(loop["telemetry"])
        eval_manager.load_state(saved.evaluation, parts.agent.model_info().arrays, later_best)
        state.load_state(loop)
    except (ValueError, ArithmeticError, LookupError) as e:
        raise IncompatibleStateError(str(e)) from e


_LOOP_EXAMPLE = {
    **LoopState(agent_values={"": 0.0}, pending=[""], incarnations={0: 0}).state(),
    "records": None,  # checked before the recorders were made
    "limiter": None,
    "telemetry": None,
    "whole": False,
}
