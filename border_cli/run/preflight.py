"""What is checked before there is a run directory: environment, spaces, device, weights, and room for the run."""

from __future__ import annotations

import importlib.util
import sys
import time
import timeit
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from border_cli.checkpoints.contents import BEST, CHECKPOINTS, read_model
from border_cli.checkpoints.store import newest_valid
from border_cli.config import resources, throughput
from border_cli.config.convert import to_plain
from border_cli.config.registry import import_path, import_paths
from border_cli.config.resolve import (
    making_s,
    may_evaluate_beside,
    resolve,
    threads,
    trackers,
    with_env_facts,
)
from border_cli.config.resources import Sizes
from border_cli.config.schema import TrainConfig
from border_cli.core.errors import BorderError, ResourceError, UsageError
from border_cli.core.format import size
from border_cli.core.spaces import EnvSpec, ObsSpec
from border_cli.display.output import write_line
from border_cli.display.views import SILENCE_S, is_live
from border_cli.envs.group import Probed
from border_cli.envs.gym_spaces import part_name
from border_cli.run import build
from border_cli.run.directory import RUNS, folder_error
from border_cli.run.find import weights_directory
from border_cli.runtime import forkserver, machine
from border_cli.runtime.child import Child, ChildError
from border_cli.runtime.clock import Deadline
from border_cli.runtime.signals import StopFlag


def preflight(
    config: TrainConfig,
    stop: StopFlag,
    folder: Path = RUNS,
    overrides: Collection[str] = (),
    *,
    resuming: bool = False,
) -> tuple[TrainConfig, EnvSpec, str]:
    """Make the environment once in a child process and check everything that needs its spaces or the machine.

    Args:
        folder: Where the run directory will be, or is.
        resuming: Whether the weights are those of a checkpoint in the folder, so `init_from` has no effect.

    Returns:
        The resolved configuration, the spaces of the environment, and for the banner why `auto` became what it is for
        actors and environments.

    Raises:
        UsageError for what the user can correct, ResourceError where the machine is too small, Interrupted.
    """
    try:
        resources.check_folder(folder)
    except OSError as e:
        raise folder_error(e, folder) from e
    largest = replace(config, n_actors=throughput.most_actors(config, machine.cpus()))
    resources.check_descriptors(largest)
    resources.check_tasks(largest)
    policies = config.trainer.type == "async" or may_evaluate_beside(config)  # in children
    forkserver.start_early(forkserver.PRELOAD if policies else forkserver.LIGHT_PRELOAD)
    # This imports torch while the forkserver does the same: the probe waits for that.
    agent_module = build.agent_module(config)
    for key, path in import_paths(to_plain(config)).items():
        if not callable(import_path(path, key)):
            raise UsageError(f"{key}={path} is no class or function", allowed="module:name")
    _check_packages(config)
    probed, weights = probe_env(config, stop), None
    if config.init_from is not None and not resuming:
        whole = config.init_from_parts == "all"
        weights = weights_directory(Path(config.init_from), whole_agent=whole)
        probed = _with_spec_of(weights, config, probed)
        config = _with_range_of(weights, config)
    spec = probed.spec
    agent_module.check_spec(config.agent, spec)
    from border_cli.agents.nets import has_images, is_normalizable  # torch is imported by now

    images = has_images(spec.inputs)
    if "agent.channels" in overrides and not images:
        raise UsageError(
            "agent.channels has no effect on these observations: none of them is an image",
            allowed="agent.channels with images, agent.hidden for layers on vectors",
        )
    if "agent.normalize_obs" in overrides and not any(map(is_normalizable, spec.inputs.leaves)):
        raise UsageError(
            "agent.normalize_obs has no effect on these observations: images, discrete values and integers of a "
            "small range are scaled by their bounds",
            allowed="agent.normalize_obs with boxes of floats, or of integers with a range above 255",
        )
    _check_device(config.device)
    _check_precision(getattr(config.agent, "precision", "float32"), config.device)
    sizes = _sizes(config, spec)
    decided, reason = _decide(with_env_facts(config, probed.action_mask, probed.categories), spec, stop)
    with_replay = sum(resources.disk_need(config, sizes, with_replay=True).values())
    resolved = resolve(
        decided,
        action_mask=probed.action_mask,
        categories=probed.categories,
        replay_fits=with_replay <= resources.disk_for(folder),
        screen=is_live(Console()),
        init_from=config.init_from if weights is None else _init_from(config, spec, weights),
        cpus=machine.cpus(),
        replay_on_gpu=_replay_on_gpu(config, sizes.replay),
    )
    resources.check_memory(resolved, sizes)
    resources.check_disk(resolved, sizes, folder)
    return resolved, spec, reason


def _decide(config: TrainConfig, spec: EnvSpec, stop: StopFlag) -> tuple[TrainConfig, str]:
    """As `throughput.decide`. Measures only what may and can change something."""
    cpus, measured = machine.cpus(), None
    if envs := throughput.env_counts(config):
        from border_cli.run import probes

        measured = probes.measure(config, spec, envs, probes.AUTO_S, stop)
    return throughput.decide(config, measured, cpus)


def probe_env(config: TrainConfig, stop: StopFlag) -> Probed:
    """Make the environment once in a child process, and find out what can be known before the run."""
    began, silence = time.monotonic(), Deadline(SILENCE_S)

    def waiting() -> None:
        nonlocal silence
        if silence.passed:
            write_line(sys.stderr, f"making the environment, for {time.monotonic() - began:.0f} s")
            silence = Deadline(SILENCE_S)
        stop.check()

    try:
        args = (config.env, tuple(config.plugins), config.seed)
        child = Child("trial", build.probe_env, args)
        probed: Probed = child.answer(making_s(config), waiting)
    except TimeoutError as e:
        raise UsageError(
            f"env: making the environment took longer than {making_s(config):g} s",
            allowed="a higher actor_manager.start_timeout_s",
        ) from e
    except ChildError as e:
        raise _probe_error(e) from e
    for text in probed.warnings:
        write_line(sys.stderr, f"warning: {text}")
    return probed


def _probe_error(error: ChildError) -> BorderError:
    if error.error_type == "UsageError":
        return UsageError(str(error))
    if error.error_type == "BorderError":  # a module that failed on import
        return BorderError(str(error))
    if error.error_type == "RuntimeError" and "bootstrapping phase" in str(error):
        return UsageError(
            "your script trains when it is imported", allowed='train under `if __name__ == "__main__":`'
        )
    if not error.error_type:
        first, newline, said = str(error).partition("\n")
        return UsageError(f"env: {first} while it made the environment{newline}{said}")
    first = str(error).partition("\n")[0]
    return UsageError(
        f"env: the environment raised when it was made or reset: {error.error_type}: {first}\n"
        "env.kwargs.… are its arguments; debug=true shows its traceback"
    )


def _sizes(config: TrainConfig, spec: EnvSpec) -> Sizes:
    import torch

    torch.set_num_threads(threads(config))  # before the first tensor, which starts them
    try:
        return build.sizes(config, spec)
    except (MemoryError, RuntimeError) as e:
        if isinstance(e, RuntimeError) and "not enough memory" not in str(e) and "allocate" not in str(e):
            raise
        raise ResourceError(
            f"agent={config.agent.type}: the network alone takes more memory than there is",
            allowed="a smaller network",
        ) from e


def _check_packages(config: TrainConfig) -> None:
    """Raise UsageError for an option whose package is not installed."""
    needed = [(f"recorder.{name}", name, name) for name in trackers(config.recorder)]
    if config.actor_manager.type == "ray":
        needed.append(("actor_manager=ray", "ray", "ray"))
    if config.evaluator.video_interval is not None:
        needed.append(("evaluator.video_interval", "av", "video"))
    for option, package, extra in needed:
        if importlib.util.find_spec(package) is None:
            raise UsageError(
                f"{option}: the package {package} is not installed",
                allowed=f"pip install 'border-cli[{extra}]'",
            )


def _check_device(device: str) -> None:
    if device == "cpu":
        return
    import torch

    kind, _, index = device.partition(":")
    if kind == "mps":
        there = int(torch.backends.mps.is_available())
    else:
        there = torch.cuda.device_count()
    if int(index or 0) >= there:
        raise UsageError(
            f"device={device}: this machine has {there} {kind} devices\nallowed here: device=cpu"
        )


def _check_precision(precision: str, device: str) -> None:
    """Raise UsageError where the device, which must exist, cannot compute in this precision."""
    if precision == "float32":
        return
    import torch

    if device.startswith("cuda"):
        with torch.cuda.device(device):
            supported = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        supported = device == "cpu" and machine.has_bfloat16()
    if not supported:
        slow = f": {_bfloat16_speed():.2f} of the speed of float32" if device == "cpu" else ""
        raise UsageError(
            f"agent.precision={precision}: device={device} has no instructions for it on this machine{slow}\n"
            "allowed here: agent.precision=float32 in a new run, which init_from=<run> starts from the weights of another"
        )


def _bfloat16_speed() -> float:
    """Speed of a product of 256×256 matrices in bfloat16 on the CPU, over that in float32."""
    import torch

    torch.set_num_threads(1)  # on a busy machine, threads that wait for each other take seconds
    seconds = []
    for dtype in (torch.float32, torch.bfloat16):
        matrix = torch.ones(256, 256, dtype=dtype)
        seconds.append(min(timeit.repeat(lambda: matrix @ matrix, repeat=5, number=1)))  # noqa: B023
    return seconds[0] / seconds[1]


def _replay_on_gpu(config: TrainConfig, replay_bytes: int) -> bool:
    """Whether the replay takes at most half of the free memory of the learner's GPU, if it may be there.

    Raises UsageError or ResourceError where `buffer.device=cuda` is impossible.
    """
    wanted = config.buffer.device
    if wanted == "cpu" or not config.device.startswith("cuda"):
        return False
    if not build.has_rows_on_gpu(config):
        if wanted == "cuda":
            raise UsageError(
                f"buffer.device=cuda: buffer={config.buffer.type} has its rows in the main memory",
                allowed="buffer.device=cpu",
            )
        return False
    import torch

    free = torch.cuda.mem_get_info(config.device)[0]
    if wanted == "cuda" and replay_bytes > free:
        raise ResourceError(
            f"the replay takes {size(replay_bytes)}, and device={config.device} has {size(free)} of free memory",
            allowed="a smaller buffer.capacity, or buffer.device=cpu",
        )
    return replay_bytes <= free // 2


def _with_spec_of(weights: Path, config: TrainConfig, probed: Probed) -> Probed:
    """The same with the saved categories, if `env.categories` is `auto`: the first env steps may show others.

    Raises UsageError where the spaces of the weights are not those of the environment.
    """
    saved, spec = read_model(weights).description.spec, probed.spec
    if config.env.categories is None and _without_categories(saved) == _without_categories(spec):
        root = ("obs",) if probed.action_mask == "info" else ()
        images = [leaf for leaf in saved.obs.leaves if leaf.kind == "box" and leaf.categories]
        categories = {part_name(leaf.path, root): list(leaf.categories) for leaf in images}
        return replace(probed, spec=replace(spec, obs=saved.obs), categories=categories)
    if saved != spec:
        problem = saved.difference(spec)
        typed = config.env.categories is not None and "categories" in problem
        hint = "\nallowed: env.categories=auto, which takes those of the weights" if typed else ""
        raise UsageError(
            f"init_from={config.init_from}: its spaces are not those of this environment: {problem}{hint}"
        )
    return probed


def _with_range_of(weights: Path, config: TrainConfig) -> TrainConfig:
    """The same with the saved ends of a range of returns that are left open: the saved outputs are for these."""
    saved = read_model(weights).description.agent
    ends: dict[str, Any] = {
        name: saved.get(name) for name in ("v_min", "v_max") if getattr(config.agent, name, 0.0) is None
    }
    config = replace(config, agent=replace(config.agent, **ends))
    config.agent.validate()
    return config


def _without_categories(spec: EnvSpec) -> EnvSpec:
    leaves = (replace(leaf, categories=()) if leaf.kind == "box" else leaf for leaf in spec.obs.leaves)
    return replace(spec, obs=ObsSpec(tuple(leaves)))


def _init_from(config: TrainConfig, spec: EnvSpec, path: Path) -> str:
    """The directory whose weights a new run takes; a name such as runs/latest may mean another one later.

    For a run it is the best model, with the other networks from the checkpoint of its opt step. Where that checkpoint is
    gone, best/ lacks the critics, and the newest checkpoint is taken instead.
    """
    named, agent = Path(str(config.init_from)), build.make_agent(config, spec)
    missing = build.init_weights(agent, replace(config, init_from=str(path)))
    if missing and path.name == BEST and named.resolve() != path.resolve():
        newest = newest_valid(path.parent / CHECKPOINTS)
        if newest is not None:
            path = newest
            build.init_weights(agent, replace(config, init_from=str(path)))
    return str(path.resolve())
