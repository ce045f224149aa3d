"""What can be judged before there is a run directory: environment, spaces, device, weights, and room for the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from border_cli import parts, room
from border_cli.checkpoints.contents import read_model
from border_cli.config.plan import Sizes, counts
from border_cli.config.schema import TrainConfig
from border_cli.core.errors import ExitCode, Interrupted, ResourceError, UsageError
from border_cli.core.spaces import EnvSpec
from border_cli.replay.config import DEFAULT_BETA_OPT_STEPS, PrioritizedConfig
from border_cli.runs.directory import RUNS
from border_cli.runs.locate import model_directory
from border_cli.runtime import forkserver
from border_cli.runtime.signals import StopFlag, own_or

_PROBE_TIMEOUT_S = 120.0


def preflight(
    config: TrainConfig, stop: StopFlag | None = None, folder: Path = RUNS, *, goes_on: bool = False
) -> EnvSpec:
    """Make the environment once in a child; check spaces, device, weights and room; resolve init_from.

    folder: where the run directory will be, or is · goes_on: the weights are those of a checkpoint there. Raises
    UsageError or ResourceError; there is no run directory yet. Raises Interrupted when asked to stop.
    """
    room.check_folder(folder)
    room.check_descriptors(config)  # before the forkserver, which inherits the limit
    room.check_tasks(config)
    forkserver.start_early()  # before this process imports torch
    parts.import_agent(config)  # which does that, while the forkserver does the same: the probe waits for it
    spec = _settle_mask(config, stop)
    _settle_beta(config)
    parts.check_spec(config, spec)
    _check_device(config.device)
    sizes = _sizes(config, spec)
    room.check_memory(config, sizes)
    room.settle_replay(config, sizes, folder)
    room.check_disk(config, sizes, folder)
    if config.init_from is not None and not goes_on:
        _check_init(config, spec)
    return spec


def _settle_mask(config: TrainConfig, stop: StopFlag | None) -> EnvSpec:
    """Whether an environment's info says which actions are allowed, where that is left to us; and its spaces."""
    found = _probe(config, stop)
    if found["action_mask"] != config.env.action_mask:
        config.env.action_mask = found["action_mask"]
        if config.env.action_mask == "info":
            found = _probe(config, stop)  # the mask is one of its spaces now
    return EnvSpec.from_json(found["spec"])


def _settle_beta(config: TrainConfig) -> None:
    """The schedule of importance weights, where it is to be as long as the run: once, so that a longer budget keeps it."""
    buffer = config.buffer
    if isinstance(buffer, PrioritizedConfig) and buffer.beta_opt_steps is None:
        buffer.beta_opt_steps = counts(config).opt_steps or DEFAULT_BETA_OPT_STEPS


def _probe(config: TrainConfig, stop: StopFlag | None) -> dict[str, Any]:
    with own_or(stop) as flag:
        try:
            data: dict[str, Any] = forkserver.run_in_child(
                parts.probe_env, (config.env, tuple(config.plugins)), _PROBE_TIMEOUT_S, flag
            )
        except forkserver.ChildStopped as e:
            raise Interrupted(flag.code or ExitCode.SIGTERM) from e
        except TimeoutError as e:
            raise UsageError(f"env: making the environment took longer than {_PROBE_TIMEOUT_S:g} s") from e
        except forkserver.ChildError as e:
            if e.error_type == "UsageError":
                raise UsageError(str(e)) from e
            if not e.error_type:
                raise UsageError(
                    f"env: {e} while it made the environment\n"
                    'in a script of your own, train_async belongs under `if __name__ == "__main__":`'
                ) from e
            first = (str(e).splitlines() or [""])[0]
            raise UsageError(
                f"env: the environment raised when it was made or reset: {e.error_type}: {first}\n"
                "env.kwargs.… are its arguments; debug=true shows its traceback"
            ) from e
    return data


def _sizes(config: TrainConfig, spec: EnvSpec) -> Sizes:
    import torch

    torch.set_num_threads(config.threads)  # before the first tensor, which starts them
    try:
        return parts.sizes(config, spec)
    except (MemoryError, RuntimeError) as e:
        if isinstance(e, RuntimeError) and "not enough memory" not in str(e) and "allocate" not in str(e):
            raise
        raise ResourceError(
            f"agent={config.agent.type}: the network alone takes more memory than there is\n"
            "allowed: a smaller network"
        ) from e


def _check_device(device: str) -> None:
    if device == "cpu":
        return
    import torch

    kind, _, index = device.partition(":")
    if kind == "mps":
        there = 1 if torch.backends.mps.is_available() else 0
    else:
        there = torch.cuda.device_count()
    if int(index or 0) >= there:
        raise UsageError(
            f"device={device}: this machine has {there} {kind} devices\nallowed here: device=cpu"
        )


def _check_init(config: TrainConfig, spec: EnvSpec) -> None:
    found = model_directory(Path(str(config.init_from)))
    saved = read_model(found.path)
    if saved.description.spec != spec:
        raise UsageError(f"init_from={config.init_from}: its spaces are not those of this environment")
    try:
        parts.make_agent(config, spec).sync_model(saved.info)
    except ValueError as e:
        raise UsageError(f"init_from={config.init_from}: its network is not the one of this agent") from e
    # The words may mean another run once this one exists, as runs/latest does; and the record should say which it was.
    config.init_from = str(found.path.resolve())
