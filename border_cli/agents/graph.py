"""The opt step as one graph, several times as fast for small networks.

`trace` records the tensor operations of `Algorithm.step`, gradients included, as a graph over the tensors of state, batch
and noise. `StepGraph` runs it as TorchScript, without Python and autograd, or as a library that torch's compiler
(AOTInductor) makes of it. The results are those of the eager step up to rounding. `border_cli.agents.compiler` decides when
this is done, and where.
"""

from __future__ import annotations

import operator
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from border_cli.agents.algorithm import Algorithm
from border_cli.agents.params import AdamState, LearnerState, TensorBatch

_SHARE_OF_ROUNDING = {"float32": 1e-3, "bfloat16": 1e-1}
"""By precision: how far a change of the state may differ, as a share of its norm. Rounding the products of matrices to
bfloat16 changes the gradient of a policy by up to 4%."""
_FLOAT32_ROUNDING = 1e-6
TRACED_SUFFIX, COMPILED_SUFFIX = ".pt", ".pt2"
_BETA2 = 0.999


class TracedAdam(AdamState):
    """Adam by single operations: torch's fused one cannot be compiled.

    corrections: (2,) `bias_corrections` of the step that is traced. They are arguments of the graph, because compiled code
    would compute them again for every 16 parameters, a tenth of the time of an opt step of DQN.
    """

    corrections: Tensor

    def update(self, gradient: Tensor, lr: float | Tensor, eps: float, skip: Tensor) -> None:
        self.decay(lr, skip)
        kept = 1.0 - skip
        gradient = torch.where(skip == 0.0, gradient, 0.0)
        self.exp_avg.lerp_(gradient, (1.0 - self.beta1) * kept)
        self.exp_avg_sq.lerp_(gradient * gradient, 0.001 * kept)
        of_mean, of_root = self.corrections.unbind()
        self.trained.sub_((lr * of_mean * kept) * self.exp_avg / (self.exp_avg_sq.sqrt() * of_root + eps))
        self.step.add_(kept)


def adam_states(state: LearnerState) -> list[AdamState]:
    """The states of Adam in a fixed order."""
    return [adam for _, adam in sorted(state.nets.items())]


def bias_corrections(states: Sequence[AdamState]) -> list[tuple[float, float]]:
    """1/(1 - β1^t) and 1/√(1 - β2^t) of the next step t of each state."""
    corrections = []
    for state in states:
        t = state.step.item() + 1.0
        of_mean, of_square = 1.0 - state.beta1**t, 1.0 - _BETA2**t
        corrections.append((1.0 / of_mean, of_square**-0.5))
    return corrections


def leaves(value: Any) -> Iterator[Any]:
    """The tensors, or tensor layouts, in a dataclass or dict of such, in a fixed order."""
    if isinstance(value, Tensor | TensorLayout):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from leaves(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for name in sorted(value):
            yield from leaves(value[name])


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """A copy with function(leaf) in place of each leaf, called in the order of `leaves`."""
    if isinstance(value, Tensor | TensorLayout):
        return function(value)
    if isinstance(value, AdamState):
        return TracedAdam(**{f.name: map_leaves(function, getattr(value, f.name)) for f in fields(value)})
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{f.name: map_leaves(function, getattr(value, f.name)) for f in fields(value)})
    if isinstance(value, Mapping):
        return {name: map_leaves(function, value[name]) for name in sorted(value)}
    return value


@dataclass(frozen=True)
class TensorLayout:
    """Where a tensor has its numbers: a graph is compiled for it and reads nothing else."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str

    @staticmethod
    def of(tensor: Tensor) -> TensorLayout:
        return TensorLayout(tuple(tensor.shape), tensor.stride(), str(tensor.dtype).removeprefix("torch."))

    def example(self, generator: torch.Generator) -> Tensor:
        """A tensor of this layout: fractions in [0, 1), pixels, truth values, or zeros."""
        tensor = torch.empty_strided(self.size, self.stride, dtype=getattr(torch, self.dtype))
        if tensor.is_floating_point():
            return tensor.uniform_(generator=generator)
        return (
            tensor.random_(generator=generator)
            if tensor.dtype in (torch.uint8, torch.bool)
            else tensor.zero_()
        )


class GraphRecorder(TorchDispatchMode):
    """Records every tensor operation inside it as a node of a graph, those of gradients too.

    `make_fx` of torch does this too, but imports its compiler first, which takes longer than all the rest.

    Args:
        inputs: the arguments of the graph. Other tensors that the operations read become constants.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._graph = torch.fx.Graph()
        self._nodes: dict[int, torch.fx.Node] = {}  # by the tensor's id
        self._tensors: list[Tensor] = []  # keeps them alive, so that no id is used twice
        self._constants: dict[str, Tensor] = {}
        for i, tensor in enumerate(inputs):
            self._set(tensor, self._graph.placeholder(f"input_{i}"))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch wraps `__torch_dispatch__`, and imports its compiler for that

    def finish(self, results: Sequence[Tensor]) -> torch.fx.GraphModule:
        """The graph, which returns these results."""
        self._graph.output(tuple(map(self._node, results)))
        return torch.fx.GraphModule(self._constants, self._graph)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        node = self._graph.call_function(func, *tree_map_only(Tensor, self._node, (args, kwargs or {})))
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self._set(result, node)
        elif isinstance(result, tuple | list):
            for i, part in enumerate(result):
                self._set(part, self._graph.call_function(operator.getitem, (node, i)))
        return result

    def _set(self, tensor: Tensor, node: torch.fx.Node) -> None:
        self._nodes[id(tensor)] = node
        self._tensors.append(tensor)

    def _node(self, tensor: Tensor) -> torch.fx.Node:
        if id(tensor) not in self._nodes:
            name = f"constant_{len(self._constants)}"
            self._constants[name] = tensor
            self._set(tensor, self._graph.get_attr(name))
        return self._nodes[id(tensor)]


def trace(algorithm: Algorithm, batch: TensorBatch, noise: Any, variant: int) -> torch.fx.GraphModule:
    """The graph of an opt step, whose arguments are those of `example`.

    The graph changes the tensors of the state in place, and returns the errors if there are any.
    """
    _fill_moments(algorithm, batch, noise, variant)
    inputs = example(algorithm, batch, noise)
    copies, corrections = iter(inputs), inputs[-1]
    state, own_batch, own_noise, lr_scale = (
        map_leaves(lambda _: next(copies), part) for part in (algorithm.state, batch, noise, torch.ones(()))
    )
    recorder = GraphRecorder(inputs)
    with recorder:
        for adam, correction in zip(adam_states(state), corrections.unbind(), strict=True):
            cast(TracedAdam, adam).corrections = correction
        errors = algorithm.on(state).step(own_batch, own_noise, lr_scale, variant)
    return recorder.finish(() if errors is None else (errors,))


def example(algorithm: Algorithm, batch: TensorBatch, noise: Any) -> list[Tensor]:
    """Copies of the tensors of state, batch and noise, `lr_scale`, and `bias_corrections` as one tensor (n, 2)."""
    corrections = torch.tensor(bias_corrections(adam_states(algorithm.state)))
    return _copies([*leaves(algorithm.state), *leaves(batch), *leaves(noise), torch.ones(()), corrections])


def is_traceable(graph: torch.fx.GraphModule) -> bool:
    """Whether `save_traced` can write a graph: torch.jit has no gradients of convolutions and of normalisations."""
    names = "convolution_backward", "native_layer_norm_backward", "native_group_norm_backward"
    unknown = [getattr(torch.ops.aten, name).default for name in names]
    return all(node.target not in unknown for node in graph.graph.nodes)


def save_traced(graph: torch.fx.GraphModule, arguments: Sequence[Tensor], path: Path) -> None:
    """Write a graph as a list of torch's operations: they run without Python and autograd, and need no C++ compiler."""
    with torch.no_grad():
        torch.jit.save(torch.jit.trace(graph, tuple(arguments), check_trace=False), str(path))


def save_compiled(graph: torch.fx.GraphModule, arguments: Sequence[Tensor], path: Path) -> None:
    """Write a graph as machine code."""
    import torch._inductor.config as inductor

    exported = torch.export.export(graph, tuple(arguments), strict=False)
    inductor.compile_threads = 1
    inductor.cpp.dynamic_threads = True  # it uses as many as the run has when it is called
    # In code that is compiled for one thread, several would each do what is to be done once, such as counting a step.
    inductor.cpp.threads = 2
    # Else torch spends half of the time on test programs, though the CPU names its instructions, and on precompiled
    # headers, which are used once.
    inductor.cpp.vec_isa_ok = True
    inductor.aot_inductor.precompile_headers = False
    torch._inductor.aoti_compile_and_package(exported, package_path=str(path))


def _fill_moments(algorithm: Algorithm, batch: TensorBatch, noise: Any, variant: int) -> None:
    """Give Adam moments of the gradient's size. In its first step, a rounding error can decide the sign of a change."""
    algorithm.step(batch, noise, 1.0, variant)
    generator = torch.Generator().manual_seed(0)
    for adam in adam_states(algorithm.state):
        size = adam.exp_avg_sq.mean().sqrt() / 0.001**0.5
        adam.exp_avg.normal_(generator=generator).mul_(size)
        adam.exp_avg_sq.uniform_(0.5, 1.5, generator=generator).mul_(size * size)


def check(algorithm: Algorithm, batch: TensorBatch, noise: Any, variant: int, path: Path) -> None:
    """Do an opt step with a written graph, with one thread and with two, and eagerly.

    Raises RuntimeError unless all change the state alike.
    """
    before = [tensor.clone() for tensor in leaves(algorithm.state)]
    changed = {threads: example(algorithm, batch, noise) for threads in (1, 2)}
    threads_before = torch.get_num_threads()
    for threads, arguments in changed.items():
        torch.set_num_threads(threads)
        _load(path)(list(arguments))  # a copy of the list, which the call empties
    torch.set_num_threads(threads_before)
    algorithm.step(batch, noise, 1.0, variant)
    share = _SHARE_OF_ROUNDING[algorithm.config.precision]
    for i, eager in enumerate(leaves(algorithm.state)):
        allowed = share * (eager - before[i]).norm() + _FLOAT32_ROUNDING * eager.norm()
        for threads, arguments in changed.items():
            if not (arguments[i] - eager).norm() <= allowed:
                raise RuntimeError(f"the compiled opt step with threads={threads} differs from the eager one")


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """New tensors with the same values and strides."""
    return [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(t.detach()) for t in tensors]


def _load(path: Path) -> Callable[[list[Tensor]], list[Tensor]]:
    """The function in a file of `save_traced` or `save_compiled`. Raises RuntimeError if it is none."""
    if path.suffix == TRACED_SUFFIX:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is deprecated; here, the compiled opt step replaces it soon
            module = torch.jit.load(str(path))

        def run_traced(tensors: list[Tensor]) -> list[Tensor]:
            with torch.inference_mode():  # a tenth faster than no_grad
                return list(module(*tensors))

        return run_traced
    # The loader unpacks the file into a temporary folder and removes it only with itself, which a program that ends does
    # not do. Once the code is loaded, its file is no longer needed.
    with tempfile.TemporaryDirectory() as folder, _temporary_folder(folder):
        # Not torch._inductor.aoti_load_package, whose import takes a second and a half.
        loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", True, 1, -1)
    run: Callable[[list[Tensor]], list[Tensor]] = loader.boxed_run
    return run


@contextmanager
def _temporary_folder(folder: str) -> Iterator[None]:
    """Inside, C++ code puts temporary files into this folder."""
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = folder
    try:
        yield
    finally:
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before


class StepGraph:
    """A traced or compiled opt step, called in place of `Algorithm.step`.

    Args:
        state: the one that it changes.
        layout: of the batch that it was compiled for. The machine code does not check it, and would read other numbers.
    """

    def __init__(self, path: Path, state: Any, layout: Any) -> None:
        self._run = _load(path)
        self._state = list(leaves(state))
        self._layout = layout
        self._batch: TensorBatch | None = None
        self._noise: Any = None
        self._arguments: list[Tensor] = []
        self._lr_scale = torch.ones(())
        self._adam_states = adam_states(state)
        self._corrections = torch.empty(len(self._adam_states), 2)
        self._correction_values = self._corrections.numpy()

    def __call__(self, batch: TensorBatch, noise: Any, lr_scale: float) -> Tensor | None:
        if batch is not self._batch and map_leaves(TensorLayout.of, batch) != self._layout:
            raise ValueError("agent.compile: the replay has changed the layout of its batches")
        # A replay refills the same batch, and most agents have the same empty noise: then the tensors are the same too.
        if batch is not self._batch or noise is not self._noise:
            self._batch, self._noise = batch, noise
            self._arguments = [
                *self._state,
                *leaves(batch),
                *leaves(noise),
                self._lr_scale,
                self._corrections,
            ]
        self._lr_scale.fill_(lr_scale)
        self._correction_values[:] = bias_corrections(self._adam_states)
        returned = self._run(list(self._arguments))
        return returned[0] if returned else None
