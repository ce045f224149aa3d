"""Row E5 of the fault table: huge rewards, episodes of one env step, truncation at the first env step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from border_cli.agents.dqn.loss import ScalarHead, td_target
from border_cli.core.progress import Progress
from border_cli.core.types import Chunk, Evaluation
from border_cli.replay.buffer import RowReplayBuffer
from border_cli.replay.n_step import NStepProcessor
from border_cli.replay.samplers import UniformSampler
from border_cli.training.ratio_limiter import RatioLimiter
from border_cli.training.telemetry import Telemetry
from tests.fakes import processed
from tests.unit.test_step_processor import SPEC, step

GAMMA = 0.5
HUGE = 1e30


def targets(buffer: RowReplayBuffer) -> dict[float, tuple[float, float]]:
    """Return observation → (TD target, next observation). The value of an observation is 100 times itself."""
    batch = buffer.batch(len(buffer))
    value = torch.from_numpy(100.0 * batch.next_obs["obs"])
    columns = (torch.from_numpy(rows) for rows in (batch.reward, batch.discount, batch.terminated))
    y = td_target(ScalarHead("huber"), value.unsqueeze(-1), value, *columns)[:, 0]
    sampled = zip(batch.obs["obs"][:, 0], y, batch.next_obs["obs"][:, 0], strict=True)
    return {float(obs): (float(target), float(next_obs)) for obs, target, next_obs in sampled}


@pytest.mark.parametrize("n_step", [1, 3])
def test_e5_episodes_of_one_env_step_bootstrap_only_if_truncated(n_step: int) -> None:
    """Observation t leads to t + 1 with reward 2."""
    processor = NStepProcessor(SPEC, 1, n_step, GAMMA)
    buffer = RowReplayBuffer(1000, SPEC, UniformSampler(np.random.default_rng(0)))
    for t in range(0, 400, 4):
        buffer.push(processed(processor, step(t, 2.0, terminated=True)))
        buffer.push(processed(processor, step(t + 2, 2.0, truncated=True)))
    learned = targets(buffer)
    assert len(learned) > 20
    for obs, (target, next_obs) in learned.items():
        assert next_obs == obs + 1  # the final observation, never the first of the next episode
        assert target == (2.0 if obs % 4 == 0 else 2.0 + GAMMA * 100 * (obs + 1))


def test_e5_terminated_and_truncated_at_once_is_terminated() -> None:
    processor = NStepProcessor(SPEC, 1, 1, GAMMA)
    buffer = RowReplayBuffer(1000, SPEC, UniformSampler(np.random.default_rng(0)))
    for _ in range(64):
        buffer.push(processed(processor, step(8, 3.0, terminated=True, truncated=True)))
    assert targets(buffer) == {8.0: (3.0, 9.0)}


def test_e5_records_of_huge_returns_are_finite() -> None:
    limiter = RatioLimiter(1.0, 10, 64, None, 1, 1)
    telemetry = Telemetry(limiter, Progress())
    evaluation = Evaluation(5, (HUGE, -HUGE, 3 * HUGE), (1, 1, 1))
    assert (evaluation.mean, evaluation.std) == pytest.approx((HUGE, HUGE * math.sqrt(8 / 3)))
    items: Any = processed(NStepProcessor(SPEC, 1, 1, GAMMA), step(0, HUGE, terminated=True))
    for sequence in range(5):
        telemetry.chunk(Chunk(0, 0, sequence, 1, 0, items))
    values = telemetry.interval_values(5, 100, [], {})
    assert values["train/episode_return"] == pytest.approx(HUGE)
    assert values["train/episode_length"] == 1.0
    assert all(math.isfinite(value) for value in values.values())
