"""What is checked before there is a run directory: environment, spaces, device, weights, and room for the run."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from border_cli.checkpoints.contents import read_model
from border_cli.config import resolve, resource_checks, throughput
from border_cli.config.convert import to_plain
from border_cli.config.registry import import_path, import_paths, require_package
from border_cli.config.schema import TrainConfig
from border_cli.core.errors import ActorLostError, BorderError, ResourceError, UsageError, first_line
from border_cli.core.format import size
from border_cli.core.spaces import EnvSpec
from border_cli.display.output import write_line
from border_cli.display.views import SILENCE_S, is_live
from border_cli.envs.goals import GoalOutcome
from border_cli.envs.try_env import Probed
from border_cli.run import factories, initial_weights
from border_cli.run.directory import RUNS, writing
from border_cli.runtime import forkserver, machine
from border_cli.runtime.child import Child, ChildError
from border_cli.runtime.stopping import Deadline, StopFlag


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

    Returns the resolved configuration, the spaces of the environment, and for the banner why `auto` became what it is for
    actors and environments. Raises UsageError, ResourceError where the machine is too small, Interrupted.
    """
    _check_machine(config, folder)
    policies = config.trainer.type == "async" or resolve.may_evaluate_beside(config)  # in children
    forkserver.start_early(forkserver.PRELOAD if policies else forkserver.LIGHT_PRELOAD)
    # This imports torch while the forkserver does the same: the probe waits for that.
    agent_module = factories.agent_module(config)
    import torch

    _check_imports(config)
    probed = _probe_simulator(config) if config.trainer.type == "device" else probe_env(config, stop)
    weights = None
    if config.init_from is not None and not resuming:
        weights = initial_weights.weights_directory(config)
        saved = read_model(weights)
        probed = initial_weights.with_saved_spec(saved, config, probed)
        config = initial_weights.with_saved_sizes(saved, config)
    config = replace(config, agent=config.agent.on_device(config.device))
    spec = probed.spec
    agent_module.check_spec(config.agent, spec)
    if config.trainer.type == "device":
        _check_acts_on_tensors(config, spec)
    _check_effects(config, overrides, spec)
    _check_device(config)
    torch.set_num_threads(resolve.threads(config))  # before the first tensor, which starts them
    sizes = factories.sizes(config, spec)
    config, measured, reason = resolve.with_env_facts(config, probed.action_mask, probed.categories), None, ""
    if config.buffer.her != "none" and probed.first is not None:
        GoalOutcome(config.env, spec).check(spec, probed.first)
    _check_buffer(config)
    if envs := throughput.env_counts(config):  # a measurement may and can decide something
        from border_cli.run import probes

        measured = probes.measure(config, spec, envs, probes.AUTO_S, stop)
    if config.n_actors is None or config.actor_manager.envs_per_actor is None:
        config, reason = throughput.decide(config, measured, machine.cpus())
    model = config.init_from if weights is None else initial_weights.resolved_init_from(config, spec, weights)
    resolved = resolve.resolve(
        config,
        replay_fits=sum(resource_checks.disk_need(config, sizes, True).values()) <= machine.free_disk(folder),
        screen=is_live(Console()),
        init_from=model,
        cpus=machine.cpus(),
        replay_on_gpu=_replay_on_gpu(config, sizes.replay),
    )
    resource_checks.check_descriptors(resolved)
    resource_checks.check_memory(resolved, sizes)
    if not resuming:  # the run has most of what it needs already
        resource_checks.check_disk(resolved, sizes, folder)
    return resolved, spec, reason


def _check_machine(config: TrainConfig, folder: Path) -> None:
    """Check the folder, and descriptors for the actors that `auto` may choose if env steps do not wait."""
    with writing(folder), tempfile.TemporaryFile(dir=machine.existing(folder)) as file:
        file.write(bytes(4096))
        file.flush()
        os.fsync(file.fileno())
    most_actors = throughput.most_actors(config, machine.cpus())
    resource_checks.check_descriptors(replace(config, n_actors=most_actors))


def _check_imports(config: TrainConfig) -> None:
    """Raise UsageError for an import path that is no function, and for an option whose package is not installed."""
    for key, path in import_paths(to_plain(config)).items():
        if not callable(import_path(path, key)):
            raise UsageError(f"{key}={path} is no class or function", allowed="module:name")
    for name in resolve.trackers(config.recorder):
        require_package(name, f"recorder.{name}", name)
    if config.actor_manager.type == "ray":
        require_package("ray", "actor_manager=ray", "ray")
    if config.evaluator.video_interval is not None:
        require_package("av", "evaluator.video_interval", "video")


def _check_effects(config: TrainConfig, overrides: Collection[str], spec: EnvSpec) -> None:
    """Raise UsageError for a typed key of the network that has no effect on these observations."""
    from border_cli.agents.nets import is_image, is_normalizable  # torch is imported by now

    for key in (f"agent.{name}" for name in ("channels", "kernels", "strides", "encoder", "spectral_norm")):
        if (
            key in overrides
            and not any(map(is_image, spec.inputs.leaves))
            and ":" not in str(getattr(config.agent, "encoder", ""))
        ):
            raise UsageError(
                f"{key} has no effect on these observations: none of them is an image",
                allowed=f"{key} with images, agent.hidden for layers on vectors",
            )
    if "agent.normalize_obs" in overrides and not any(map(is_normalizable, spec.inputs.leaves)):
        raise UsageError(
            "agent.normalize_obs has no effect on these observations: images, discrete values and integers of a "
            "small range are scaled by their bounds",
            allowed="agent.normalize_obs with boxes of floats, or of integers with a range above 255",
        )


def probe_env(config: TrainConfig, stop: StopFlag) -> Probed:
    """Make the environment once in a child process, and find out what can be known before the run."""
    began, silence = time.monotonic(), Deadline(SILENCE_S)

    def waiting() -> None:
        nonlocal silence
        if silence.passed:
            write_line(sys.stderr, f"making the environment, for {time.monotonic() - began:.0f} s")
            silence = Deadline(SILENCE_S)
        stop.check()

    limit_s, args = resolve.making_s(config), (config.env, tuple(config.plugins), config.seed)
    try:
        probed: Probed = Child("trial", factories.probe_env, args).answer(limit_s, waiting)
    except TimeoutError as e:
        problem = f"env: making the environment took longer than {limit_s:g} s"
        raise UsageError(problem, allowed="a higher actor_manager.start_timeout_s") from e
    except ChildError as e:
        first, newline, said = str(e).partition("\n")
        ours = {"BorderError": BorderError, "UsageError": UsageError}  # the first: a module failed on import
        if e.error_type in ours:
            raise ours[e.error_type](str(e)) from e
        if e.error_type == "RuntimeError" and "bootstrapping phase" in str(e):
            raise UsageError(
                "your script trains when it is imported", allowed='train under `if __name__ == "__main__":`'
            ) from e
        if not e.error_type:
            raise UsageError(f"env: {first} while it made the environment{newline}{said}") from e
        raise UsageError(
            f"env: the environment raised when it was made or reset: {e.error_type}: {first}\n"
            "env.kwargs.… are its arguments; debug=true shows its traceback"
        ) from e
    for text in probed.warnings:
        write_line(sys.stderr, f"warning: {text}")
    return probed


def _probe_simulator(config: TrainConfig) -> Probed:
    """Make the simulator of the run and reset it, in this process: it may be the only one, and it may be on a GPU."""
    _check_device(config)
    try:
        simulator = factories.simulator(config)
        simulator.reset(config.seed % 2**31)
    except ActorLostError as e:
        raise UsageError(f"env: {first_line(e)}\nenv.kwargs.… are its arguments") from e
    return Probed(simulator.spec, "none", config.env.categories or {}, [])


def _check_acts_on_tensors(config: TrainConfig, spec: EnvSpec) -> None:
    """Raise UsageError for an agent that cannot act in a simulator."""
    from border_cli.agents.policy import NetworkPolicy

    policy = factories.evaluation_policy(spec, config)
    if not isinstance(policy, NetworkPolicy) or policy.memory_units is not None:
        raise UsageError(
            f"agent={config.agent.type} cannot choose actions by tensors, as trainer=device needs",
            allowed="border-cli's own agents without a memory",
        )


def _check_device(config: TrainConfig) -> None:
    """Raise UsageError where the learner's device does not exist, or cannot compute in the agent's precision."""
    import torch

    device, precision = config.device, getattr(config.agent, "precision", "float32")
    kind, _, index = device.partition(":")
    if kind != "cpu":
        count = int(torch.backends.mps.is_available()) if kind == "mps" else torch.cuda.device_count()
        if int(index or 0) >= count:
            raise UsageError(
                f"device={device}: this machine has {count} {kind} devices\nallowed here: device=cpu"
            )
    if precision == "float32":
        return
    supported = kind == "cpu" and machine.has_bfloat16()
    if kind == "cuda":
        with torch.cuda.device(device):
            supported = torch.cuda.is_bf16_supported(including_emulation=False)
    if not supported:
        raise UsageError(
            f"agent.precision={precision}: device={device} has no instructions for it on this machine\n"
            "allowed here: agent.precision=float32 in a new run, which init_from=<run> starts from the weights of another"
        )


def _check_buffer(config: TrainConfig) -> None:
    """Raise UsageError where a buffer of a plugin lacks what the run asks of it."""
    asked = {
        "sequences": (getattr(config.agent, "sequences", None) is not None, f"agent={config.agent.type}"),
        "outcome": (config.buffer.her != "none", f"buffer.her={config.buffer.her}"),
    }
    for argument, (is_needed, what) in asked.items():
        if is_needed and not factories.buffer_knows(argument, config):
            raise UsageError(
                f"{what} needs a buffer with the argument {argument}, which buffer={config.buffer.type} lacks",
                allowed="buffer=uniform or prioritized",
            )


def _replay_on_gpu(config: TrainConfig, replay_bytes: int) -> bool:
    """Whether the replay takes at most half of the free memory of the learner's GPU, if it may be there.

    Raises UsageError or ResourceError where `buffer.device=cuda` is impossible.
    """
    wanted = config.buffer.device
    if wanted == "cpu" or config.buffer.her != "none" or not config.device.startswith("cuda"):
        return False
    if not factories.buffer_knows("device", config):
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
