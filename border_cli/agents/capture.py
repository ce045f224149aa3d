"""The opt step as a CUDA graph: its kernels are recorded once and started together, without Python between them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from border_cli.agents.algorithm import Algorithm
from border_cli.agents.graph import leaves, map_leaves
from border_cli.agents.params import TensorBatch
from border_cli.core.errors import first_line

_logger = logging.getLogger(__name__)
_WARM_UP = 3
"""Calls before the recording, in which torch's libraries allocate what they keep."""

StepCall = Callable[[], Tensor | None]
RecordGraph = Callable[[StepCall, torch.device], tuple[Callable[[], None], Tensor | None]]


def record_graph(step: StepCall, device: torch.device) -> tuple[Callable[[], None], Tensor | None]:
    """Record the kernels of a step. Returns what starts them all, and the tensor that they return their result in.

    The step is called several times first, on a stream of its own as the recording demands. Raises RuntimeError for a
    step that cannot be recorded, such as one that waits for the device.
    """
    stream, graph = torch.cuda.Stream(device), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(stream):  # which is also left when the recording fails
            for _ in range(_WARM_UP):
                step()
            with torch.cuda.graph(graph, stream=stream):
                result = step()
    finally:  # the caller restores what these calls have changed, so it must wait for them, also for failed ones
        torch.cuda.current_stream(device).wait_stream(stream)
    return graph.replay, result


class CapturedStep:
    """A recorded opt step, called in place of `Algorithm.step`. The kernels read copies of batch, noise and lr_scale.

    batch, noise: examples; later ones must have the same shapes · record: see `record_graph`.
    """

    def __init__(
        self, algorithm: Algorithm, batch: TensorBatch, noise: Any, variant: int, record: RecordGraph
    ) -> None:
        own_batch, own_noise = map_leaves(torch.clone, batch), map_leaves(torch.clone, noise)
        self._inputs = [*leaves(own_batch), *leaves(own_noise)]
        self._lr_scale = torch.ones((), device=batch.reward.device)

        def step() -> Tensor | None:
            return algorithm.step(own_batch, own_noise, self._lr_scale, variant)

        self._replay, self._errors = record(step, batch.reward.device)

    def __call__(self, batch: TensorBatch, noise: Any, lr_scale: float) -> Tensor | None:
        torch._foreach_copy_(self._inputs, [*leaves(batch), *leaves(noise)])
        self._lr_scale.fill_(lr_scale)
        self._replay()
        return self._errors


def capture_opt_steps(algorithm: Algorithm, batch: TensorBatch, record: RecordGraph = record_graph) -> bool:
    """Replace the opt steps by recorded ones. State and random generator stay as they are.

    To be called before the first opt step of a launch, so that the bits of a run do not depend on when it was resumed.
    Opt steps that cannot be recorded stay eager, with a warning. Returns True: it needs no further call.
    """
    state, generator = list(leaves(algorithm.state)), algorithm.rng.bit_generator
    saved, saved_generator = [tensor.clone() for tensor in state], generator.state
    noise = algorithm.noise(len(batch.reward))
    generator.state = saved_generator
    try:
        graphs = {v: CapturedStep(algorithm, batch, noise, v, record) for v in algorithm.variants}
    except RuntimeError as error:
        # The end of a recording raises too, and does not say what has broken it.
        cause = error.__context__ or error
        _logger.warning("agent.compile: opt steps stay eager, recording them failed: %s", first_line(cause))
    else:
        algorithm.graphs.update(graphs)
        _logger.info("the opt step is a CUDA graph from here on")
    finally:
        with torch.no_grad():
            torch._foreach_copy_(state, saved)
    return True
