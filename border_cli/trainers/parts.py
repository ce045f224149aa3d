"""What a trainer joins: the parts of one run, as the composition root has made them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from border_cli.core.progress import View
from border_cli.core.protocols import (
    Agent,
    Evaluator,
    ExperienceSource,
    Recorder,
    ReplayBuffer,
    StopCheck,
)
from border_cli.replay.limiter import RatioLimiter
from border_cli.trainers.judging import Episodes
from border_cli.trainers.saving import Keeper
from border_cli.trainers.telemetry import Telemetry


@dataclass
class Parts:
    """save_request: whether somebody has asked for a checkpoint since it was last called · begun: called once the loop
    has begun, and a saved state that it goes on from has turned out to fit.
    """

    agent: Agent
    buffer: ReplayBuffer
    source: ExperienceSource
    limiter: RatioLimiter
    evaluator: Evaluator
    episodes: Episodes
    recorder: Recorder
    keeper: Keeper
    view: View
    telemetry: Telemetry
    should_stop: StopCheck
    batch_size: int
    save_request: Callable[[], bool] = lambda: False
    begun: Callable[[], None] = lambda: None
