"""Decoupled weight decay against torch's AdamW."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from border_cli.agents.batch_renorm import BatchRenorm
from border_cli.agents.graph import TracedAdam
from border_cli.agents.memory import Gru
from border_cli.agents.nets import Linear, NoisyLinear
from border_cli.agents.params import AdamState, FlatParams
from border_cli.agents.sac.network import LayerNorm, StackedLinear

MATRICES = {"0.weight", "1.weight", "2.weight_x", "2.weight_h", "3.weight", "6.weight"}
LR, DECAY, EPS = 0.01, 0.3, 1e-8


@pytest.mark.parametrize("kind", [AdamState, TracedAdam])
def test_matrices_change_as_in_adamw_and_the_rest_as_in_adam(kind: type[AdamState]) -> None:
    rng = torch.Generator().manual_seed(0)
    parts = Linear(3, 1, rng), NoisyLinear(2, 3, rng, 0.5), Gru(2, 3, rng), StackedLinear(2, 1, 1, rng)
    layout = FlatParams(nn.Sequential(*parts, BatchRenorm(2, 1, 3), LayerNorm(2, 3), nn.Conv2d(2, 3, 2)))
    start = AdamState.init(layout, layout.init())
    n = layout.n_trained
    start.trained.uniform_(0.5, 1.5, generator=rng)
    state = kind(
        start.params.clone(), start.exp_avg, start.exp_avg_sq, start.step, 0.9, DECAY, layout.matrices
    )
    named = {name: nn.Parameter(part.clone()) for name, part in layout.unflatten(start.trained).items()}
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(
            [p for name, p in named.items() if name in MATRICES], LR, eps=EPS, weight_decay=DECAY
        ),
        torch.optim.Adam([p for name, p in named.items() if name not in MATRICES], LR, eps=EPS),
    ]
    for t in range(1, 6):
        gradient: Tensor = torch.randn(n, generator=rng)
        if isinstance(state, TracedAdam):
            state.corrections = torch.tensor([1 / (1 - 0.9**t), (1 - 0.999**t) ** -0.5])
        before = state.params.clone()
        state.update(gradient, LR, EPS, torch.ones(()))
        assert torch.equal(state.params, before)  # a skipped opt step
        state.update(gradient, LR, EPS, torch.zeros(()))
        for name, part in layout.unflatten(gradient).items():
            named[name].grad = part.clone()
        for optimizer in optimizers:
            optimizer.step()
    for name, part in layout.unflatten(state.trained).items():
        torch.testing.assert_close(part, named[name].detach(), rtol=1e-5, atol=1e-6, msg=name)
