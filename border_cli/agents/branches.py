"""Several discrete actions at once: D groups of n outputs each, behind a common trunk, as in BDQ (Tavakoli et al., 2018).

Rows of D actions are handled as D rows of one action. Where the D actions have fewer than n values, what is left over is
forbidden, as the actions are that a mask of the observation forbids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from border_cli.agents.config import NetworkConfig
from border_cli.agents.params import TensorBatch
from border_cli.core.errors import UsageError
from border_cli.core.spaces import ActionSpec, Array, EnvSpec, Obs


def check_discrete(config: NetworkConfig, spec: EnvSpec) -> None:
    """Raise UsageError unless the actions are discrete."""
    if spec.action.kind == "box":
        raise UsageError(
            f"agent={config.type} chooses among discrete actions, and this environment takes numbers",
            nearest="agent=sac",
            allowed="agent=sac, td3, tqc or crossq, or an environment with discrete actions",
        )


def by_branch(batch: TensorBatch, d: int) -> TensorBatch:
    """Rows of D actions at once as D rows each, of one action. Their observations are not repeated."""
    if d == 1:
        return batch
    reward, discount, terminated = (
        part.repeat_interleave(d) for part in (batch.reward, batch.discount, batch.terminated)
    )
    weight = None if batch.weight is None else batch.weight.repeat_interleave(d)
    action = batch.action.flatten()
    return replace(
        batch, action=action, reward=reward, discount=discount, terminated=terminated, weight=weight
    )


def mean_of_branches(values: Tensor, d: int) -> Tensor:
    """(B·D, ...) → the same shape: each row of D has the mean of its D."""
    return values if d == 1 else values.unflatten(0, (-1, d)).mean(1).repeat_interleave(d, 0)


def mask_actions(
    values: Tensor, obs: dict[str, Tensor], mask: str | None, branches: Sequence[int] = ()
) -> Tensor:
    """(B, n) values, -inf where the observation's mask forbids the action.

    branches: how many of n actions each of D actions has that are chosen at once; values are (B·D, n) then.
    """
    if mask is not None:
        return values.masked_fill(obs[mask] == 0, -torch.inf)
    if len(set(branches)) < 2:
        return values
    size = values.shape[1]
    ix = torch.arange(size, device=values.device)
    is_none = torch.stack([ix >= n for n in branches])
    return values.reshape(-1, len(branches), size).masked_fill(is_none, -torch.inf).reshape(-1, size)


class ArrayMask:
    """`mask_actions` for arrays. shape: of the chosen actions of one row."""

    def __init__(self, action: ActionSpec, mask: str | None) -> None:
        self.shape = action.shape if action.kind == "multi_discrete" else ()
        self._mask = mask
        self._is_action = np.arange(action.n) < np.array(action.branches)[:, None]  # (D, n)
        self.is_needed = mask is not None or not self._is_action.all()

    def __call__(self, values: Array, obs: Obs) -> Array:
        """(B·D, n) values, -inf for forbidden actions."""
        if not self.is_needed:
            return values
        if self._mask is not None:
            allowed = obs[self._mask] != 0
        else:
            allowed = np.tile(self._is_action, (len(values) // len(self._is_action), 1))
        return np.where(allowed, values, np.float32(-np.inf))
