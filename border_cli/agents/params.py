"""Networks whose parameters lie in one flat vector, Adam over such vectors, the state of a learner, batches as tensors."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from border_cli.agents.batch_renorm import BatchRenorm
from border_cli.core.protocols import ReplayBuffer
from border_cli.core.types import Batch
from border_cli.runtime.tensors import to_device


class FlatParams:
    """The layout of a network in one (n,) float32 vector: its parameters, then its buffers, which gradients do not train.

    n_trained: numbers that are parameters.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        parameters = {name: tuple(p.shape) for name, p in module.named_parameters()}
        self._shapes = parameters | {name: tuple(b.shape) for name, b in module.named_buffers()}
        self._sizes = [math.prod(shape) for shape in self._shapes.values()]
        self.n_trained = sum(self._sizes[: len(parameters)])

    def init(self) -> Tensor:
        """A new vector with the network's initial numbers."""
        # torch.cat would import torch's compiler on the meta device, from which a run's sizes are taken at its start.
        vector = torch.empty(sum(self._sizes))
        initial = dict(self._module.named_parameters()) | dict(self._module.named_buffers())
        for name, part in self.unflatten(vector).items():
            part.copy_(initial[name].detach())
        return vector

    @property
    def matrices(self) -> list[slice]:
        """Where the vector has weights of matrices and kernels: no biases, scales or deviations."""
        modules = self._module.named_modules()
        scales = {f"{path}.weight" for path, part in modules if isinstance(part, BatchRenorm)}
        names = {
            name
            for name, shape in self._shapes.items()
            if (name.rpartition(".")[2] in ("weight", "weight_x", "weight_h") or ".own." in name)
            and len(shape) > 1
        }
        parts = zip(self._shapes, self._sizes, accumulate(self._sizes), strict=True)
        return [slice(end - size, end) for name, size, end in parts if name in names - scales]

    @property
    def statistics(self) -> set[str]:
        """Names of the buffers that do not depend on the network's weights: those of observations and returns."""
        norms = {path for path, part in self._module.named_modules() if isinstance(part, BatchRenorm)}
        return {name for name, _ in self._module.named_buffers() if name.rpartition(".")[0] not in norms}

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """The parts of a vector by name. One that is only as long as the parameters, such as a moment, has theirs."""
        n = len(self._sizes)
        while sum(self._sizes[:n]) > len(vector):
            n -= 1
        parts, shapes = vector.split(self._sizes[:n]), list(self._shapes.items())[:n]
        return {name: part.view(shape) for (name, shape), part in zip(shapes, parts, strict=True)}

    def bind(self, vector: Tensor, precision: str = "float32") -> nn.Module:
        """A copy of the network whose parameters and buffers are views of the vector.

        A change of the vector in place changes the network. Its parameters require gradients, which `flat_gradient`
        returns as one vector. precision: bfloat16 computes the matrix products and convolutions in it, except those
        in `nets.in_float32`; the gradients are float32.
        """
        tensors = [*self._module.parameters(), *self._module.buffers()]
        module = copy.deepcopy(self._module, {id(tensor): tensor for tensor in tensors})
        for name, part in self.unflatten(vector.detach()).items():
            path, _, own_name = name.rpartition(".")
            owner = module.get_submodule(path)
            if own_name in owner._buffers:
                owner._buffers[own_name] = part.detach()
            else:
                # Not as nn.Parameter, which would hide the tensor from a trace (`border_cli.agents.graph`).
                parameters: dict[str, Any] = owner._parameters
                parameters[own_name] = part.detach().requires_grad_()
        module.trained = tuple(module.parameters())  # type: ignore[assignment] # finding them takes long
        if precision == "bfloat16":
            module.forward = _autocast(module.forward, vector.device.type)
        return module


def _autocast(forward: Callable[..., Any], device: str) -> Callable[..., Any]:
    def lowered(*args: Any, **kwargs: Any) -> Any:
        # Without the cache of lowered weights: one that is filled without gradients would serve calls that need them.
        with torch.autocast(device, torch.bfloat16, cache_enabled=False):
            return forward(*args, **kwargs)

    return lowered


def flat_gradient(loss: Tensor, network: nn.Module) -> Tensor:
    """Gradient (n,) of a scalar with respect to the parameters of a bound network, 0 for those that it does not use."""
    gradients = torch.autograd.grad(loss, network.trained, materialize_grads=True)  # type: ignore[arg-type]
    return torch.cat([g.reshape(-1) for g in gradients])


def clip_norm_(gradient: Tensor, max_norm: float | None) -> Tensor:
    """Scale the gradient in place so that its norm is at most max_norm. Returns the norm before clipping."""
    norm: Tensor = gradient.norm()
    if max_norm is not None:
        gradient.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm


_ADAM: dict[str, Any] = {
    "fused": True, "amsgrad": False, "maximize": False, "weight_decay": 0.0, "beta2": 0.999,
}  # fmt: skip


@dataclass
class AdamState:
    """The vector of a network and the state of Adam (Kingma and Ba, 2015) for its parameters.

    params: (n,) float32, parameters and then buffers · exp_avg, exp_avg_sq: (n_trained,) float32 · step: scalar float32,
    Adam's steps so far · beta1: decay of the first moment · weight_decay: of the parts `decayed` of params.
    """

    params: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    step: Tensor
    beta1: float = 0.9
    weight_decay: float = 0.0
    decayed: Sequence[slice] = ()

    @staticmethod
    def init(layout: FlatParams, params: Tensor, beta1: float = 0.9) -> AdamState:
        """The state before the first step. `params`, of this layout, is used in place."""
        n = layout.n_trained
        return AdamState(params, params.new_zeros(n), params.new_zeros(n), params.new_zeros(()), beta1)

    @property
    def trained(self) -> Tensor:
        """(n_trained,) view of the parameters."""
        return self.params[: len(self.exp_avg)]

    def update(self, gradient: Tensor, lr: float | Tensor, eps: float, skip: Tensor) -> None:
        """One Adam step in place. gradient: (n_trained,) · skip: scalar; if it is 1, nothing changes, bit for bit."""
        self.decay(lr, skip)
        adam(
            *([self.trained], [gradient], [self.exp_avg], [self.exp_avg_sq], [], [self.step]),
            **_ADAM, lr=lr, eps=eps, beta1=self.beta1, found_inf=skip,
        )  # fmt: skip

    def decay(self, lr: float | Tensor, skip: Tensor) -> None:
        """Decoupled weight decay (AdamW, Loshchilov and Hutter, 2019): θ ← (1 - lr·weight_decay)·θ, before Adam's step."""
        for part in self.decayed:
            self.params[part].mul_(1.0 - lr * self.weight_decay * (1.0 - skip))


@functools.cache
def _flags(flags: tuple[bool, ...], device: torch.device) -> Tensor:
    """1 or 0 for each flag. Kept, because making a tensor on a GPU waits for it."""
    return torch.tensor(flags, dtype=torch.float32, device=device)


@dataclass
class StepStats:
    """Statistics since the last record, on the device.

    totals: (2k,) sums of k scalars of opt steps that were not skipped, then how many of these opt steps had each scalar ·
    skipped: scalar, number of skipped opt steps · skipped_in_a_row: scalar, number of the last opt steps that were all
    skipped; not reset by records.
    """

    totals: Tensor
    skipped: Tensor
    skipped_in_a_row: Tensor

    @staticmethod
    def init(n_scalars: int, device: torch.device) -> StepStats:
        return StepStats(*(torch.zeros(shape, device=device) for shape in ((2 * n_scalars,), (), ())))

    def add(self, scalars: Sequence[Tensor | None]) -> Tensor:
        """Count one opt step with these scalars, None for those that it does not have.

        Returns a scalar float32, which never leaves the device: 1 if one of them is not finite, so that the step must be
        skipped, else 0.
        """
        has = tuple(scalar is not None for scalar in scalars)
        present = [scalar for scalar in scalars if scalar is not None]
        if len(present) < len(has):
            zero = torch.zeros_like(present[0])
            present = [zero if scalar is None else scalar for scalar in scalars]
        values = torch.cat([torch.stack(present), _flags(has, self.totals.device)])
        # x - x is 0, but NaN for NaN and ±inf. It takes half the time of isfinite.
        is_bad = (values - values).sum().isnan()
        skip = is_bad.float()
        self.totals.add_(torch.where(is_bad, 0.0, values))
        self.skipped.add_(skip)
        self.skipped_in_a_row.add_(skip).mul_(skip)
        return skip

    def read(self) -> tuple[list[float | None], int]:
        """Return the means, None where nothing was counted, and the number of skipped opt steps. Resets both."""
        (sums, counts), skipped = self.totals.view(2, -1).tolist(), int(self.skipped.item())
        self.totals.zero_()
        self.skipped.zero_()
        pairs = zip(sums, counts, strict=True)
        return [total / count if count else None for total, count in pairs], skipped


@dataclass
class LearnerState:
    """Everything that an opt step reads and changes.

    nets: the networks that Adam trains · targets: (n,) vectors of their target networks; both by name.
    """

    nets: dict[str, AdamState]
    targets: dict[str, Tensor]
    stats: StepStats

    def tensors(self, layouts: Mapping[str, FlatParams]) -> dict[str, Tensor]:
        """Every tensor by its path. layouts: by network; their vectors are split into named parameters and buffers."""
        vectors = dict(self.targets)
        for name, net in self.nets.items():
            vectors |= {f"{name}.{part}": getattr(net, part) for part in ("params", "exp_avg", "exp_avg_sq")}
        tensors = {f"{name}.step": net.step for name, net in self.nets.items()}
        tensors |= {f"stats.{name}": tensor for name, tensor in vars(self.stats).items()}
        for path, vector in vectors.items():
            parts = layouts[path.partition(".")[0]].unflatten(vector)
            tensors |= {f"{path}.{name}": part for name, part in parts.items()}
        return tensors


@dataclass
class TensorBatch:
    """A batch as tensors; see `core.types.Batch`."""

    obs: dict[str, Tensor]
    action: Tensor
    reward: Tensor
    discount: Tensor
    terminated: Tensor
    next_obs: dict[str, Tensor]
    weight: Tensor | None = None
    extra: dict[str, Tensor] = field(default_factory=dict)


def _mapped(function: Callable[[Any], Tensor], batch: Any) -> TensorBatch:
    """A batch, of arrays or tensors, with function(column) in place of each."""

    def of(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: function(rows) for name, rows in value.items()}
        return None if value is None else function(value)

    return TensorBatch(**{column.name: of(getattr(batch, column.name)) for column in fields(TensorBatch)})


class BatchLoader:
    """Samples batches of one size from a replay buffer. last: the newest batch, None before the first."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.last: Batch | None = None
        self._size = size
        self._device = device
        self._tensors: TensorBatch | None = None  # with the memory of `last`

    def next(self, buffer: ReplayBuffer) -> TensorBatch:
        """The next batch. On the CPU its tensors share the arrays' memory, so that a refilled batch keeps its tensors."""
        batch = buffer.batch(self._size, into=self.last)
        if self._tensors is None or batch is not self.last or self._device.type != "cpu":
            self.last, self._tensors = batch, _mapped(self._on_device, batch)
        return self._tensors

    def _on_device(self, rows: Any) -> Tensor:
        return rows if isinstance(rows, Tensor) else to_device(rows, self._device)
