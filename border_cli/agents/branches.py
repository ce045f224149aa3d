"""Several discrete actions at once: D groups of n outputs each, behind a common trunk, as in BDQ (Tavakoli et al., 2018).

Rows of D actions are handled as D rows of one action. Where the D actions have fewer than n values, what is left over is
forbidden, as the actions are that a mask of the observation forbids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from border_cli.agents.config import NetworkConfig
from border_cli.agents.params import TensorBatch
from border_cli.core.errors import UsageError
from border_cli.core.spaces import Array, EnvSpec
from border_cli.runtime.tensors import library_of


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


Values = TypeVar("Values", Tensor, Array)


def mask_actions(
    values: Values, obs: Mapping[str, Values], mask: str | None, branches: Sequence[int] = ()
) -> Values:
    """(B, n) values, arrays or tensors, -inf where the observation's mask forbids the action.

    branches: how many of n actions each of D actions has that are chosen at once; values are (B·D, n) then.
    """
    if mask is None and len(set(branches)) < 2:
        return values
    xp = library_of(values)
    if mask is not None:
        return cast(Values, xp.where(obs[mask] == 0, -torch.inf, values))
    ix = torch.arange(values.shape[1], device=values.device) if xp is torch else np.arange(values.shape[1])
    is_none = xp.stack([ix >= n for n in branches])  # (D, n)
    return cast(
        Values, xp.where(is_none, -torch.inf, values.reshape(-1, *is_none.shape)).reshape(values.shape)
    )
