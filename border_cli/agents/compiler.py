"""Compiling the opt step of a run in a child process, while the learner continues eagerly, and the cache of the results."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from border_cli.agents.agent import NetworkAgent
from border_cli.agents.algorithm import Algorithm
from border_cli.agents.config import NetworkConfig
from border_cli.agents.graph import (
    COMPILED_SUFFIX,
    TRACED_SUFFIX,
    StepGraph,
    TensorLayout,
    check,
    example,
    is_traceable,
    map_leaves,
    save_compiled,
    save_traced,
    trace,
)
from border_cli.agents.params import TensorBatch
from border_cli.config.registry import AGENTS, import_path, import_plugins
from border_cli.core.errors import ResourceError, UsageError, first_line
from border_cli.core.spaces import EnvSpec
from border_cli.runtime.child import Child, ChildError, call
from border_cli.runtime.stopping import Deadline, StopFlag

_logger = logging.getLogger(__name__)
_KEPT_GRAPHS = 200
_CALLS_PER_POLL = 32
_COMPILING_S = 600.0
"""How long a run waits for its compiled opt step, which takes 10 to 30 s."""
_MEASURING_S = 0.1
TRACING_PAYS_S, COMPILING_PAYS_S = 3.0, 20.0
"""Time left from which on tracing pays, which takes half a second, and compiling, which takes 20 s of CPU."""
_PRIORITY_PAYS_S = 120.0
"""Time left from which on compiling has the learner's priority. In a shorter run it only uses CPUs that are idle."""
_LEAST_PRIORITY = 19


@dataclass(frozen=True)
class CompileJob:
    """What a process needs to know to compile the opt step of an agent. batch: with `TensorLayout` in place of tensors."""

    config: NetworkConfig
    plugins: Sequence[str]
    spec: EnvSpec
    batch: Any

    def example_batch(self) -> TensorBatch:
        """A batch of random numbers with this layout."""
        generator = torch.Generator().manual_seed(0)
        batch: TensorBatch = map_leaves(partial(TensorLayout.example, generator=generator), self.batch)
        for leaf in self.spec.obs.leaves:  # an embedding has no other pixels
            most = min(leaf.categories) - 1 if leaf.categories else leaf.high
            if leaf.dtype == "uint8" and most is not None:
                for obs in filter(None, (batch.obs, batch.next_obs)):
                    obs[leaf.name].remainder_(int(most) + 1)
        if self.spec.action.kind != "box":
            batch.action.random_(min(self.spec.action.branches), generator=generator)
        return batch


class GraphCompiler:
    """Gives an agent the compiled forms of its opt step: from the cache, or from a process that compiles them.

    graphs: the opt steps by kind, "traced" or "compiled", and variant. The compiling process traces them first.

    Args:
        waits: the first opt step waits for them, so that every run of the same configuration has the same bits. Where they
            cannot be had, that is an error; without waiting, opt steps stay eager, with a warning.
        stop: ends the waiting with Interrupted.
        note: what is to be shown to the user · waiting: called again and again while it waits.
        time_left: seconds until the run ends, if an opt step takes so long [s]: if they are enough, tracing begins, and
            compiling follows if that pays too, with low priority in a short run. None: both begin at once.
    """

    def __init__(
        self,
        agent: NetworkAgent,
        plugins: Sequence[str],
        waits: bool,
        stop: StopFlag,
        note: Callable[[str], None] = lambda _: None,
        waiting: Callable[[], None] = lambda: None,
        time_left: Callable[[float], float] | None = None,
    ) -> None:
        self._algorithm = agent.algorithm
        self._make_job = partial(CompileJob, agent.algorithm.config, plugins, agent.algorithm.spec)
        self._time_left = time_left
        self._waits = waits
        self._stop = stop
        self._note = note
        self._waiting = waiting
        self.graphs: dict[str, dict[int, Callable[..., Tensor | None]]] = {}
        self._paths: dict[int, Path] = {}
        self._job: CompileJob  # from the first call on
        self._child: Child | None = None
        # Of the process, which is killed if the run ends.
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._nice: int | None = 0
        self._calls = 0
        self._began = monotonic()

    def poll(self, batch: TensorBatch) -> bool:
        """To be called before each opt step, until it returns True: then nothing more will change.

        Where it waits, it raises Interrupted when the run is asked to stop, and UsageError if compiling fails.
        """
        self._calls += 1
        if self._calls == 1:
            self._began = monotonic()
            if self.use_cached(batch):
                return True
        if self._child is None:
            if not self._pays():
                return False
            if self._begin():
                return True
        child = self._child
        assert child is not None
        if self._waits:
            return self._wait(child)
        if self._calls % _CALLS_PER_POLL:
            return False
        has_ended = child.poll()
        self._look_for_traced()
        return has_ended and self._end(child)

    def _wait(self, child: Child) -> bool:
        deadline = Deadline(_COMPILING_S)
        while not child.poll(0.1):
            self._waiting()
            self._stop.check()
            if deadline.passed:
                return self._give_up(f"compiling took longer than {_COMPILING_S:g} s")
        return self._end(child)

    def close(self) -> None:
        """End the compiling process, if there is one."""
        if self._child is not None:
            self._tell(
                "the run ended before its opt step was compiled; "
                "border-bench with the same arguments compiles it for later runs"
            )
        self._end_process()

    def _end_process(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _tell(self, what: str) -> None:
        _logger.info("%s", what)
        self._note(what)

    def use_cached(self, batch: TensorBatch) -> bool:
        """Replace the eager opt steps by what is in the cache. False if it lacks them."""
        self._job = self._make_job(map_leaves(TensorLayout.of, batch))
        self._paths = {variant: graph_path(self._job, variant) for variant in self._algorithm.variants}
        return all(path.exists() for path in self._paths.values()) and self._use("compiled", self._paths)

    def _look_for_traced(self) -> None:
        assert self._folder is not None
        paths = {variant: traced_path(Path(self._folder.name), variant) for variant in self._paths}
        if "traced" not in self.graphs and all(path.exists() for path in paths.values()):
            self._use("traced", paths)

    def _pays(self) -> bool:
        """Whether enough time is left, at the run's speed so far."""
        seconds = monotonic() - self._began
        if self._time_left is None:
            return True
        if seconds <= _MEASURING_S:
            return False
        left_s = self._time_left(seconds / self._calls)
        if left_s < COMPILING_PAYS_S:
            self._nice = None
        elif left_s < _PRIORITY_PAYS_S:
            self._nice = _LEAST_PRIORITY
        return left_s >= TRACING_PAYS_S

    def _begin(self) -> bool:
        """Start tracing and compiling. Returns whether it cannot be done, so that nothing more will change."""
        compiler = os.environ.get("CXX") or ("clang++" if platform.system() == "Darwin" else "g++")
        if self._nice is not None and shutil.which(compiler) is None:
            self._give_up(f"there is no C++ compiler ({compiler}): g++, or another one by CXX, is needed")
            self._nice = None
        try:
            cache_folder().mkdir(0o700, parents=True, exist_ok=True)
            self._folder = tempfile.TemporaryDirectory(dir=cache_folder())
        except OSError as error:
            return self._give_up(f"{error.filename or cache_folder()}: {error.strerror}")
        if self._waits:
            self._tell("compiling the opt step, which takes half a minute the first time")
        try:
            args = (self._job, self._paths, Path(self._folder.name), self._nice)
            self._child = Child("compiler", call, (compile_in_child, args), nice=0)
        except ResourceError as error:
            return self._give_up(first_line(error))
        return False

    def _end(self, child: Child) -> bool:
        try:
            child.result()
        except (ChildError, ResourceError) as error:
            if self._waits:
                self._stop.check()  # the signal has ended the C++ compiler too
            reason = first_line(error) if str(error).strip() else str(getattr(error, "error_type", ""))
            return self._give_up(f"compiling failed: {reason}")
        finally:
            self._end_process()
        if self._nice is None:
            return True
        return self._use("compiled", self._paths) or self._give_up("the compiled one cannot be loaded")

    def _use(self, kind: str, paths: Mapping[int, Path]) -> bool:
        """Replace the opt steps. False if these cannot be loaded: then they are removed."""
        try:
            graphs: dict[int, Callable[..., Tensor | None]] = {
                variant: StepGraph(path, self._algorithm.state, self._job.batch)
                for variant, path in paths.items()
            }
        except RuntimeError as error:
            for path in paths.values():
                path.unlink(missing_ok=True)
            _logger.warning("a %s opt step cannot be loaded and was removed: %s", kind, first_line(error))
            return False
        for path in paths.values():
            with contextlib.suppress(OSError):
                os.utime(path)  # the oldest are removed first
        self.graphs[kind] = self._algorithm.graphs = graphs
        self._tell(f"the opt step is {kind} from here on")
        return True

    def _give_up(self, reason: str) -> bool:
        if self._waits:  # opt steps that are not compiled would have other bits
            raise UsageError(f"agent.compile=true: {reason}", allowed="agent.compile=false")
        _logger.warning("agent.compile: opt steps are not compiled, %s", reason)
        return True


def compile_in_child(job: CompileJob, paths: Mapping[int, Path], folder: Path, nice: int | None) -> None:
    """Trace all variants, then compile them.

    paths: in the cache of the run, whose folder an older forkserver need not know · folder: for incomplete files ·
    nice: by how much the priority is lowered before compiling; None: they are only traced.
    """
    warnings.simplefilter("ignore")  # of torch's compiler
    logging.disable(logging.WARNING)
    # The C++ compiler leaves its files there when it is killed, and torch a cache that is of no use for other graphs.
    os.environ["TMPDIR"] = os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    import_plugins(job.plugins)
    module = AGENTS[job.config.type].load()
    algorithm: Algorithm = module.make_agent(job.config, job.spec, 0).algorithm
    batch = job.example_batch()
    noise = algorithm.noise(len(batch.reward))
    graphs = {variant: trace(algorithm, batch, noise, variant) for variant in paths}

    def write(save: Callable[..., None], variant: int, path: Path) -> None:
        unchecked = folder / f"unchecked{path.suffix}"
        save(graphs[variant], example(algorithm, batch, noise), unchecked)
        check(algorithm, batch, noise, variant, unchecked)
        unchecked.replace(path)

    if all(map(is_traceable, graphs.values())):
        for variant in paths:
            write(save_traced, variant, traced_path(folder, variant))
    if nice is None:
        return
    os.nice(nice)
    for variant, path in paths.items():
        write(save_compiled, variant, path)
    remove_old_files(cache_folder())


def traced_path(folder: Path, variant: int) -> Path:
    """Where the compiling process leaves the traced opt step, which takes it seconds."""
    return folder / f"{variant}{TRACED_SUFFIX}"


def remove_old_files(folder: Path) -> None:
    """Keep the newest compiled opt steps, and no folder of a run that was killed while it compiled."""
    graphs = []
    for path in folder.glob(f"*{COMPILED_SUFFIX}"):
        with contextlib.suppress(FileNotFoundError):  # another process may remove old files too
            graphs.append((path.stat().st_mtime, path))
    for _, path in sorted(graphs)[:-_KEPT_GRAPHS]:
        path.unlink(missing_ok=True)
    now = folder.stat().st_mtime  # when the last file was added to it
    for unfinished in folder.glob("tmp*"):
        with contextlib.suppress(OSError):
            if now - unfinished.stat().st_mtime > 2 * _COMPILING_S:
                shutil.rmtree(unfinished)


def graph_path(job: CompileJob, variant: int) -> Path:
    """Where the compiled opt step is cached. The name depends on all that the machine code depends on."""
    code, modules = hashlib.sha256(), [AGENTS[job.config.type].load()]
    if job.config.has_own_encoder:
        own = import_path(job.config.encoder)
        names = job.config.encoder.partition(":")[0], getattr(own, "__module__", "")
        modules += [sys.modules[name] for name in names if name in sys.modules]
    files = (getattr(module, "__file__", None) for module in modules)  # a notebook has none
    for file in _code_files([Path(file).parent for file in files if file]):
        code.update(file.read_bytes())
    facts = [
        asdict(job.config.of_opt_step()), job.spec.to_json(), str(job.batch), variant,
        torch.__version__, _cpu(), code.hexdigest(),
    ]  # fmt: skip
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
    return cache_folder() / f"{job.config.type}-{key}{COMPILED_SUFFIX}"


def _code_files(folders: Sequence[Path]) -> list[Path]:
    """The files of this package, and those from which modules below the folders, of agent and encoder, were loaded."""
    files = (getattr(module, "__file__", None) or "" for module in list(sys.modules.values()))
    loaded = {Path(file) for file in files if file.endswith(".py")}
    beside = {
        path
        for path in loaded
        for folder in folders
        if path.is_relative_to(folder) and "site-packages" not in path.relative_to(folder).parts
    }
    return sorted({*Path(__file__).parent.rglob("*.py"), *beside})


def cache_folder() -> Path:
    """The user's folder for compiled opt steps; one that cannot be made where the user has no home folder."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        home = os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises where there is none
        base = Path(os.devnull if home == "~" else home, ".cache")
    return base / "border-cli" / "graphs"


def _cpu() -> str:
    """The processor with its instructions, for which the code is made."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return "".join(
            dict.fromkeys(line for line in lines if line.startswith(("model name", "flags", "Features")))
        )
    return platform.processor()
