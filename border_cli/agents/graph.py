"""The opt step as one compiled graph, several times as fast for small networks.

`trace` records the tensor operations of `Algorithm.step`, gradients included, as a graph over the tensors of state, batch
and noise. torch's compiler (AOTInductor) makes a library of it, in a child process while the learner continues eagerly,
and keeps it in the user's cache. The results are those of the eager step up to rounding.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import platform
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from border_cli.agents.agent import Algorithm, NetworkAgent
from border_cli.agents.config import NetworkConfig
from border_cli.agents.params import AdamState, TensorBatch, named_tensors
from border_cli.config.registry import AGENTS, import_plugins
from border_cli.core.errors import Interrupted, ResourceError, UsageError, first_line
from border_cli.core.spaces import EnvSpec
from border_cli.runtime import child
from border_cli.runtime.clock import Deadline
from border_cli.runtime.forkserver import ChildCall, ChildError
from border_cli.runtime.signals import StopFlag

_logger = logging.getLogger(__name__)
_KEPT_GRAPHS = 200
_CALLS_PER_POLL = 32
_COMPILING_S = 600.0
"""How long a run waits for its compiled opt step, which takes 10 to 30 s."""
_SHARE_OF_ROUNDING = {"float32": 1e-3, "bfloat16": 2e-2}
"""By precision: how far results of one opt step may differ, as a share of their norm."""
_LOG_BETAS = math.log(0.9), math.log(0.999)


class TracedAdam(AdamState):
    """Adam by single operations: torch's fused one cannot be compiled.

    corrections: (2,) `bias_corrections` of the step that is traced. They are arguments of the graph, because compiled code
    would compute them again for every 16 parameters, a tenth of the time of an opt step of DQN.
    """

    corrections: Tensor

    def update(self, gradient: Tensor, lr: float | Tensor, eps: float, skip: Tensor) -> None:
        kept = skip != 0.0
        mean = torch.lerp(self.exp_avg, gradient, 0.1)
        square = torch.lerp(self.exp_avg_sq, gradient * gradient, 0.001)
        of_mean, of_root = self.corrections.unbind()
        change = (lr * of_mean) * mean / (square.sqrt() * of_root + eps)
        self.params.copy_(torch.where(kept, self.params, self.params - change))
        self.exp_avg.copy_(torch.where(kept, self.exp_avg, mean))
        self.exp_avg_sq.copy_(torch.where(kept, self.exp_avg_sq, square))
        self.step.add_(1.0 - skip)


def adam_states(value: Any) -> Iterator[AdamState]:
    """The states of Adam in a dataclass, in a fixed order."""
    if isinstance(value, AdamState):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from adam_states(getattr(value, field.name))


def bias_corrections(states: Sequence[AdamState]) -> list[tuple[float, float]]:
    """1/(1 - β1^t) and 1/√(1 - β2^t) of the next step t of each state."""
    found = []
    for state in states:
        t = state.step.item() + 1.0
        # 1 - β^t as -expm1(t·log β)
        of_mean, of_square = (-math.expm1(t * log_beta) for log_beta in _LOG_BETAS)
        found.append((1.0 / of_mean, of_square**-0.5))
    return found


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
        """A tensor of this layout: fractions in [0, 1), or zeros."""
        made = torch.empty_strided(self.size, self.stride, dtype=getattr(torch, self.dtype))
        return made.uniform_(generator=generator) if made.is_floating_point() else made.zero_()


def trace(
    algorithm: Algorithm, batch: TensorBatch, noise: Any, variant: int
) -> tuple[torch.fx.GraphModule, list[Tensor]]:
    """The graph of an opt step and an example of its arguments.

    These are the tensors of state, batch and noise, `lr_scale`, and `bias_corrections` as one tensor (n, 2).

    It changes the tensors of the state in place, and returns the errors if there are any.
    """
    # Imported here, because it takes a second and only the compiling process needs it.
    from torch.fx.experimental.proxy_tensor import make_fx

    def step(*tensors: Tensor) -> tuple[Tensor, ...]:
        given = iter(tensors)
        state, own_batch, own_noise, lr_scale, corrections = (
            map_leaves(lambda _: next(given), part)
            for part in (algorithm.state, batch, noise, torch.ones(()), corrections_now)
        )
        for adam, own in zip(adam_states(state), corrections, strict=True):
            cast(TracedAdam, adam).corrections = own
        errors = algorithm.step(algorithm.bind(state), state, own_batch, own_noise, lr_scale, variant)
        return () if errors is None else (errors,)

    corrections_now = torch.tensor(bias_corrections(list(adam_states(algorithm.state))))
    example = [*leaves(algorithm.state), *leaves(batch), *leaves(noise), torch.ones(()), corrections_now]
    return make_fx(step)(*_copies(example)), example


def compile_graph(algorithm: Algorithm, batch: TensorBatch, noise: Any, variant: int, path: Path) -> None:
    """Write the compiled opt step to a file. Raises RuntimeError if its results are not those of the eager one."""
    import torch._inductor.config as inductor

    graph, example = trace(algorithm, batch, noise, variant)
    exported = torch.export.export(graph, tuple(_copies(example)), strict=False)
    inductor.compile_threads = 1
    torch._inductor.aoti_compile_and_package(exported, package_path=str(path))
    _check(algorithm, batch, noise, variant, path, example)


def _check(
    algorithm: Algorithm, batch: TensorBatch, noise: Any, variant: int, path: Path, example: Sequence[Tensor]
) -> None:
    """Do an opt step with the graph and the same one eagerly. Raises RuntimeError unless both change the state alike."""
    compiled = _copies(example)
    _load(path)(list(compiled))  # a copy of the list, which the call empties
    algorithm.step(algorithm.networks, algorithm.state, batch, noise, 1.0, variant)
    state = named_tensors(algorithm.state, {})
    for (name, eager), own in zip(state.items(), compiled[: len(state)], strict=True):
        allowed = _SHARE_OF_ROUNDING[algorithm.config.precision] * eager.norm() + 1e-6
        if name.endswith(".params"):  # a step of Adam is about lr, and its sign may be a matter of rounding
            allowed += 2 * algorithm.config.lr * math.sqrt(eager.numel())
        if not (own - eager).norm() <= allowed:
            raise RuntimeError(f"the compiled opt step differs from the eager one in {name}")


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """New tensors with the same values and strides."""
    return [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(t.detach()) for t in tensors]


def _load(path: Path) -> Callable[[list[Tensor]], list[Tensor]]:
    """The function in a compiled file. Raises RuntimeError if it is none."""
    # Not torch._inductor.aoti_load_package, whose import takes a second and a half.
    loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", True, 1, -1)
    run: Callable[[list[Tensor]], list[Tensor]] = loader.boxed_run
    return run


class StepGraph:
    """A compiled opt step, called in place of `Algorithm.step`.

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
        self._given: list[Tensor] = []
        self._lr_scale = torch.ones(())
        self._adam_states = list(adam_states(state))
        self._corrections = torch.empty(len(self._adam_states), 2)
        self._correction_values = self._corrections.numpy()

    def __call__(self, batch: TensorBatch, noise: Any, lr_scale: float) -> Tensor | None:
        if batch is not self._batch and map_leaves(TensorLayout.of, batch) != self._layout:
            raise ValueError("agent.compile: the replay has changed the layout of its batches")
        # A replay refills the same batch, and most agents have the same empty noise: then the tensors are the same too.
        if batch is not self._batch or noise is not self._noise:
            self._batch, self._noise = batch, noise
            self._given = [*self._state, *leaves(batch), *leaves(noise), self._lr_scale, self._corrections]
        self._lr_scale.fill_(lr_scale)
        self._correction_values[:] = bias_corrections(self._adam_states)
        returned = self._run(list(self._given))
        return returned[0] if returned else None


# -- compiling beside the run ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CompileJob:
    """What a process needs to know to compile the opt step of an agent. batch: with `TensorLayout` in place of tensors."""

    config: NetworkConfig
    plugins: Sequence[str]
    spec: EnvSpec
    threads: int
    batch: Any


class GraphCompiler:
    """Gives an agent the compiled forms of its opt step: from the cache, or from a process that compiles them.

    Args:
        waits: the first opt step waits for them, so that every run of the same configuration has the same bits. Where they
            cannot be had, that is an error; without waiting, opt steps stay eager, with a warning.
        stop: ends the waiting with Interrupted.
        note: what is to be shown to the user · waiting: called again and again while it waits.
    """

    def __init__(
        self,
        agent: NetworkAgent,
        config: NetworkConfig,
        plugins: Sequence[str],
        spec: EnvSpec,
        threads: int,
        waits: bool,
        stop: StopFlag,
        note: Callable[[str], None] = lambda _: None,
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        self._algorithm = agent.algorithm
        self._job = partial(CompileJob, config, plugins, spec, threads)
        self._only_cached = config.compile == "cached"
        self._waits = waits
        self._stop = stop
        self._note = note
        self._waiting = waiting
        self._paths: dict[int, Path] = {}
        self._layout: Any = None
        self._call: ChildCall | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = (
            None  # of the process, which is killed if the run ends
        )
        self._calls = 0

    def poll(self, batch: TensorBatch) -> bool:
        """To be called before each opt step, until it returns True: then nothing more will change.

        Where it waits, it raises Interrupted when the run is asked to stop, and UsageError if compiling fails.
        """
        self._calls += 1
        if self._call is None and self._begin(self._job(map_leaves(TensorLayout.of, batch))):
            return True
        call = self._call
        assert call is not None
        deadline = Deadline(_COMPILING_S)
        while self._waits and not call.poll(0.1):
            self._waiting()
            if self._stop.code is not None:
                raise Interrupted(self._stop.code)
            if deadline.passed:
                return self._stay_eager(f"compiling took longer than {_COMPILING_S:g} s")
        if self._calls % _CALLS_PER_POLL and not self._waits:
            return False
        return call.poll() and self._end(call)

    def close(self) -> None:
        """End the compiling process, if there is one."""
        if self._call is not None:
            self._tell(
                "the run ended before its opt step was compiled; border-bench would leave it to later runs"
            )
        self._end_process()

    def _end_process(self) -> None:
        if self._call is not None:
            self._call.close()
            self._call = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _tell(self, what: str) -> None:
        _logger.info("%s", what)
        self._note(what)

    def _begin(self, job: CompileJob) -> bool:
        """Use what is in the cache, or start compiling. Returns whether nothing more will change."""
        self._layout = job.batch
        self._paths = {variant: graph_path(job, variant) for variant in self._algorithm.variants}
        if all(path.exists() for path in self._paths.values()):
            return self._use()
        if self._only_cached:
            return True
        compiler = os.environ.get("CXX") or ("clang++" if platform.system() == "Darwin" else "g++")
        if shutil.which(compiler) is None:
            return self._stay_eager(
                f"there is no C++ compiler ({compiler}): g++, or another one by CXX, is needed"
            )
        if self._waits:
            self._tell("compiling the opt step, which takes half a minute the first time")
        cache_folder().mkdir(0o700, parents=True, exist_ok=True)
        self._folder = tempfile.TemporaryDirectory(dir=cache_folder())
        try:
            self._call = ChildCall(compile_in_child, (job, self._paths, Path(self._folder.name)))
        except ResourceError as error:
            return self._stay_eager(first_line(error))
        return False

    def _end(self, call: ChildCall) -> bool:
        try:
            call.result()
        except ChildError as error:
            reason = first_line(error) if str(error).strip() else error.error_type
            return self._stay_eager(f"compiling failed: {reason}")
        finally:
            self._end_process()
        return self._use()

    def _use(self) -> bool:
        """Replace the eager opt steps."""
        try:
            graphs = {
                variant: StepGraph(path, self._algorithm.state, self._layout)
                for variant, path in self._paths.items()
            }
        except RuntimeError as error:
            for path in self._paths.values():
                path.unlink(missing_ok=True)
            return self._stay_eager(f"a compiled one cannot be loaded: {first_line(error)}")
        for path in self._paths.values():
            with contextlib.suppress(OSError):
                os.utime(path)  # the oldest are removed first
        self._algorithm.graphs.update(graphs)
        self._tell("the opt step is compiled from here on")
        return True

    def _stay_eager(self, reason: str) -> bool:
        if self._waits:  # eager opt steps would have other bits
            raise UsageError(f"agent.compile=true: {reason}\nallowed: agent.compile=false")
        _logger.warning("agent.compile: opt steps stay eager, %s", reason)
        return True


def compile_in_child(job: CompileJob, paths: Mapping[int, Path], folder: Path) -> None:
    """Compile the variants that are not in the cache yet. folder: for files that are not complete."""
    warnings.simplefilter("ignore")  # of torch's compiler
    logging.disable(logging.WARNING)
    child.lower_priority()
    torch.set_num_threads(job.threads)
    import_plugins(job.plugins)
    module = AGENTS[job.config.type].load()
    for variant, path in paths.items():
        if path.exists():
            continue
        algorithm: Algorithm = module.make_agent(job.config, job.spec, 0).algorithm
        generator = torch.Generator().manual_seed(0)
        batch = map_leaves(partial(TensorLayout.example, generator=generator), job.batch)
        made = folder / path.name
        compile_graph(algorithm, batch, algorithm.noise(len(batch.reward)), variant, made)
        made.replace(path)
    remove_old_files(cache_folder())


def remove_old_files(folder: Path) -> None:
    """Keep the newest compiled opt steps, and no folder of a run that was killed while it compiled."""
    for old in sorted(folder.glob("*.pt2"), key=lambda path: path.stat().st_mtime)[:-_KEPT_GRAPHS]:
        old.unlink(missing_ok=True)
    now = folder.stat().st_mtime  # when the last file was added to it
    for unfinished in folder.glob("tmp*"):
        with contextlib.suppress(OSError):  # another process may remove it too
            if now - unfinished.stat().st_mtime > 2 * _COMPILING_S:
                shutil.rmtree(unfinished)


def graph_path(job: CompileJob, variant: int) -> Path:
    """Where the compiled opt step is cached. The name depends on all that the machine code depends on."""
    code = hashlib.sha256()
    for file in _code_files(Path(str(AGENTS[job.config.type].load().__file__)).parent):
        code.update(file.read_bytes())
    facts = [
        asdict(job.config.of_opt_step()), job.spec.to_json(), str(job.batch), job.threads, variant,
        torch.__version__, _cpu(), code.hexdigest(),
    ]  # fmt: skip
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
    return cache_folder() / f"{job.config.type}-{key}.pt2"


def _code_files(folder: Path) -> list[Path]:
    """The files of this package, and those from which modules below the folder, that of an agent, were loaded."""
    files = (getattr(module, "__file__", None) or "" for module in list(sys.modules.values()))
    loaded = {Path(file) for file in files if file.endswith(".py")}
    own = {
        path
        for path in loaded
        if path.is_relative_to(folder) and "site-packages" not in path.relative_to(folder).parts
    }
    return sorted({*Path(__file__).parent.rglob("*.py"), *own})


def cache_folder() -> Path:
    """The user's folder for compiled opt steps."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "border-cli" / "graphs"


def _cpu() -> str:
    """The processor with its instructions, for which the code is made."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return "".join(
            dict.fromkeys(line for line in lines if line.startswith(("model name", "flags", "Features")))
        )
    return platform.processor()
