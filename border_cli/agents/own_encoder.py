"""A network of the user's own for the observation, `agent.encoder=module:Class`, and the checks that it can be trained."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn

from border_cli.agents.config import NetworkConfig
from border_cli.agents.params import FlatParams
from border_cli.config.registry import import_path
from border_cli.core.errors import UsageError, first_line
from border_cli.core.spaces import ObsLeaf, ObsSpec

_ROWS = 16


def own_encoder(spec: ObsSpec, config: NetworkConfig, generator: torch.Generator) -> nn.Module:
    """A network of the user's class, which is called with `spec` and `config.encoder_kwargs`.

    What the class draws from torch's global generator comes from the given one. Raises UsageError where it fails, or the
    network cannot be trained.
    """
    make = import_path(config.encoder, "agent.encoder")
    with torch.random.fork_rng(devices=()), torch.device("cpu"), torch.no_grad():
        torch.set_rng_state(generator.get_state())
        try:
            own = make(spec, **config.encoder_kwargs)
            problem, allowed = _problem(own, {leaf.name: _example(leaf) for leaf in spec.leaves})
        except Exception as e:
            raise UsageError(
                f"agent.encoder={config.encoder} raised {type(e).__name__}: {first_line(e)}",
                allowed="debug=true for its traceback",
            ) from e
        generator.set_state(torch.get_rng_state())
    if problem:
        raise UsageError(f"agent.encoder={config.encoder} {problem}", allowed=allowed)
    return cast(nn.Module, own)


def _problem(own: Any, obs: dict[str, Tensor]) -> tuple[str, str]:
    """What stands in the way of training it, and what is allowed instead; empty if nothing does."""
    if not isinstance(own, nn.Module) or not isinstance(getattr(own, "features", None), int):
        return "makes no torch.nn.Module with an int `features`", "the number of outputs as `features`"
    own(obs)  # lazy layers draw their weights
    named = dict((*own.named_parameters(), *own.named_buffers()))
    if others := [name for name, tensor in named.items() if tensor.dtype != torch.float32]:
        return f"has the parameter or buffer {others[0]}, which is not float32", "LayerNorm, float32"
    if not all(parameter.requires_grad for parameter in own.parameters()):
        return "has frozen parameters", "register_buffer for what is not trained"
    return _problem_when_bound(own, named, obs)


def _problem_when_bound(own: Any, named: dict[str, Tensor], obs: dict[str, Tensor]) -> tuple[str, str]:
    """As `_problem`, of a copy as in a run, whose parameters and buffers are views of one vector.

    Nothing else may decide what it returns. named: the parameters and buffers of `own`.
    """
    layout = FlatParams(own)
    vector = layout.init()
    bound, before = layout.bind(vector), vector.clone()
    first = bound(obs)
    if first.shape != (_ROWS, own.features) or first.dtype != torch.float32:
        problem = f"returns {tuple(first.shape)} {first.dtype} for {_ROWS} observations"
        return problem, f"{(_ROWS, own.features)} float32"
    if not first.isfinite().all():
        return "returns a number that is not finite", "finite numbers for all observations of the space"
    for tensor in named.values():
        tensor.fill_(torch.nan)
    again = bound(obs)
    for tensor, part in zip(named.values(), layout.unflatten(before).values(), strict=True):
        tensor.copy_(part)
    if torch.isnan(again).any():
        return (
            "has a layer or a tensor in a list, in a function, or under two names",
            "ModuleList, and one name each",
        )
    if not torch.equal(first, again) or not torch.equal(vector, before):
        return (
            "returns other numbers when it is called again, or changes its buffers",
            "LayerNorm, no dropout",
        )
    alone = bound({name: rows[:1] for name, rows in obs.items()})
    if alone.shape != (1, own.features) or not torch.allclose(alone, first[:1], rtol=1e-3, atol=1e-4):
        return "returns other numbers for an observation alone than beside others", "LayerNorm"
    return "", ""


def _example(leaf: ObsLeaf) -> Tensor:
    """(_ROWS, *leaf.shape) values inside the leaf's space."""
    size, dtype = (_ROWS, *leaf.shape), getattr(torch, leaf.dtype)
    high = math.inf if leaf.high is None else leaf.high
    low = min(0.0 if leaf.low is None else max(leaf.low, -1.0), high)
    if dtype.is_floating_point:
        return (low + min(high - low, 1.0) * torch.rand(size)).to(dtype)
    return torch.full(size, low).to(dtype)
