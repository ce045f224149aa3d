"""The memory of recurrent agents: a GRU (Cho et al., 2014), and its state in each environment while a policy acts."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from border_cli.agents.config import MemoryConfig
from border_cli.agents.nets import in_float32
from border_cli.agents.params import TensorBatch
from border_cli.core.errors import IncompatibleStateError
from border_cli.core.spaces import Array, EnvSpec
from border_cli.core.state import State, check_like
from border_cli.core.types import Column

STATE = "gru"
"""Column of a row: the state before its observation."""


class Gru(nn.Module):
    """h_t = (1 - z)·n + z·h_{t-1}, with the gates r, z = σ(W·x + b + V·h + c) and n = tanh(W·x + b + r·(V·h + c)).

    weights: of r, z and n one below the other. Initially uniform in ±1/√units, from the given generator.
    """

    kind = "gru"

    def __init__(self, n_in: int, units: int, generator: torch.Generator) -> None:
        super().__init__()
        self.units = units
        self.weight_x = nn.Parameter(torch.empty(3 * units, n_in))
        self.weight_h = nn.Parameter(torch.empty(3 * units, units))
        self.bias_x, self.bias_h = nn.Parameter(torch.empty(3 * units)), nn.Parameter(torch.empty(3 * units))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.uniform_(-(units**-0.5), units**-0.5, generator=generator)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """(B, L, n_in), and (B, units) before the first → (B, L, units) all states, and (B, units) the last one."""
        states, last = in_float32(self._run, x, state.unsqueeze(0))
        return states, last.squeeze(0)

    def _run(self, x: Tensor, state: Tensor) -> Any:
        weights = (self.weight_x, self.weight_h, self.bias_x, self.bias_h)
        return torch.gru(x, state, weights, True, 1, 0.0, True, False, True)  # cuDNN: training


def states_of_sequences(
    gru: Gru,
    features: Callable[[dict[str, Tensor]], Tensor],
    batch: TensorBatch,
    burn_in: int,
    stored: bool = True,
) -> Tensor:
    """(B, T + n, units) states of the memory at the rows of sequences and the observations behind them.

    It first passes `burn_in` observations without a gradient. At the beginning of an episode it begins at the first row.

    Args:
        features: {name: (k, ...)} observations → (k, n_in), what the GRU sees of them.
        stored: whether the memory begins with the state that is stored with the rows, from an older model, or with zeros.
    """

    def seen(part: slice) -> Tensor:
        obs = {name: rows[:, part] for name, rows in batch.obs.items()}
        size = next(iter(obs.values())).shape[:2]
        return features({name: rows.flatten(0, 1) for name, rows in obs.items()}).view(*size, -1)

    before = batch.extra[STATE] if stored else torch.zeros_like(batch.extra[STATE])
    state = before[:, -1]
    if burn_in:
        with torch.no_grad():
            _, burned_in = gru(seen(slice(burn_in)), before[:, 0])
            state = torch.where(batch.extra["has_burn_in"].unsqueeze(1), burned_in, state)
    states: Tensor = gru(seen(slice(burn_in, None)), state)[0]
    return states


def mean_of_rows(values: Tensor, is_valid: Tensor | None, weight: Tensor | None = None) -> Tensor:
    """The mean of (B,) values times (B,) weights. Of sequences: of the (B·T,) values whose row is valid, (B, T)."""
    if is_valid is None:
        return values.mean() if weight is None else (weight * values).mean()
    values = torch.where(is_valid, values.view(is_valid.shape), 0.0)
    return (values if weight is None else weight.unsqueeze(1) * values).sum() / is_valid.sum()


def at_next(values: Tensor, next_: Tensor) -> Tensor:
    """(B, T + n, ...) values and (B, T) places → (B·T, ...) values at these places."""
    rows = torch.arange(len(values), device=values.device).unsqueeze(1)
    return values[rows, next_].flatten(0, 1)


def sequence_errors(errors: Tensor, is_valid: Tensor, max_share: float) -> Tensor:
    """(B, T) absolute errors → (B,): max_share·max + (1 - max_share)·mean over the rows that are there (R2D2)."""
    there = torch.where(is_valid, errors, 0.0)
    return max_share * there.max(1).values + (1.0 - max_share) * there.sum(1) / is_valid.sum(1)


class PerEnvironment:
    """What a policy keeps of each environment: arrays with a row per environment, which grow when a new one acts."""

    def __init__(self, **rows: Array) -> None:
        self.rows = rows

    def known(self, env_ix: Sequence[int]) -> Array:
        """(k,) indices of these environments, whose rows are zeros at first."""
        ix, n = np.asarray(env_ix, np.int64), len(next(iter(self.rows.values())))
        if (new := int(ix.max()) + 1 - n) > 0:
            for name, rows in self.rows.items():
                self.rows[name] = np.concatenate([rows, np.zeros((new, *rows.shape[1:]), rows.dtype)])
        return ix

    def state(self) -> dict[str, Any]:
        """The rows as JSON values, in base64."""
        return {name: base64.b64encode(rows.tobytes()).decode() for name, rows in self.rows.items()}

    def load_state(self, state: Any) -> None:
        """Raises IncompatibleStateError unless the state is one of `state`."""
        check_like(State({}, {"kept": state}), State({}, {"kept": self.state()}), "the policy")
        try:
            saved = {
                name: np.frombuffer(base64.b64decode(state[name]), rows.dtype).reshape(-1, *rows.shape[1:])
                for name, rows in self.rows.items()
            }
        except ValueError as e:
            raise IncompatibleStateError(f"the saved state of the policy does not fit: {e}") from e
        if len({len(rows) for rows in saved.values()}) > 1:
            raise IncompatibleStateError("the saved state of the policy has rows of different environments")
        self.rows = {name: rows.copy() for name, rows in saved.items()}


class Memory(PerEnvironment):
    """(units,) state of a GRU per environment of a policy that acts; zeros when an episode begins.

    Attributes:
        before, after: (k, units) states of the environments of `select`, before a time step and after it.
    """

    def __init__(self, units: int) -> None:
        super().__init__(state=np.zeros((0, units), np.float32))
        self.units = units
        self.before = self.after = self.rows["state"]
        self._selected: Array = np.zeros(0, np.int64)

    def begin_episode(self, env_ix: int) -> None:
        """Forget everything in this environment."""
        ix = self.known([env_ix])
        self.rows["state"][ix] = 0.0

    def select(self, env_ix: Sequence[int]) -> None:
        """Set `before` to the states of these environments."""
        self._selected = self.known(env_ix)
        self.before = self.rows["state"][self._selected]

    def keep(self) -> None:
        """Set the states of the selected environments to `after`: the time step is a part of their episodes."""
        self.rows["state"][self._selected] = self.after


def memory_columns(config: MemoryConfig, spec: EnvSpec) -> tuple[Column, ...]:
    """The state of the memory before each observation, if there is a memory."""
    del spec
    return () if config.gru is None else (Column(STATE, (config.gru,), "float32"),)
