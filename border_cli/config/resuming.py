"""What of a configuration may change when a run goes on, and what has to stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from border_cli.config.convert import dotted, to_plain
from border_cli.config.schema import TrainConfig
from border_cli.core.errors import UsageError

BUDGETS = ("trainer.max_opts", "trainer.max_env_steps", "trainer.max_time", "trainer.stop_return")
_SAFE = (
    *BUDGETS,
    "trainer.eval_interval",
    "trainer.save_interval",
    "trainer.record_interval",
    "evaluator.",
    "recorder.",
    "checkpoint.",
    "env.nonfinite",
    "env.out_of_bounds",
    "env.action_mask",  # which is settled when a run begins
    "buffer.beta_opt_steps",  # so is this
    "device",
    "debug",
)
_SAFE_RUNNING_FREE = ("n_actors", "actor_manager.", "threads", "trainer.ratio_tolerance")
_KEEP_THE_BITS = (*BUDGETS, "recorder.", "checkpoint.", "env.out_of_bounds", "env.action_mask", "debug")
_SHOWN = 3


@dataclass(frozen=True)
class Change:
    """One key with the value of the run so far and the one from now on."""

    key: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.key}: {_shown(self.before)} → {_shown(self.now)}"


def is_reproducible(config: TrainConfig) -> bool:
    """Whether the same seed gives the same bits, and a resumed run equals one that was never interrupted."""
    return config.trainer.type == "sync" or config.trainer.lockstep


def changes(before: TrainConfig, now: TrainConfig) -> list[Change]:
    """Every key whose value differs, in schema order."""
    old, new = dotted(to_plain(before)), dotted(to_plain(now))
    keys = dict.fromkeys([*old, *new])
    return [Change(key, old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)]


def safe(config: TrainConfig, change: Change) -> bool:
    """Whether a run of this configuration may go on with this change."""
    return _among(change.key, _allowed(config))


def keeps_the_bits(change: Change) -> bool:
    """Whether a reproducible run stays the same, bit for bit, with this change."""
    return _among(change.key, _KEEP_THE_BITS)


def check_changes(config: TrainConfig, wanted: Sequence[Change]) -> None:
    """Raise UsageError where one of these would make another run of it. config: that of the run so far."""
    unsafe = [change for change in wanted if not safe(config, change)]
    if not unsafe:
        return
    shown = "; ".join(map(str, unsafe[:_SHOWN])) + ("; …" if len(unsafe) > _SHOWN else "")
    raise UsageError(
        f"resume: these values cannot change within a run: {shown}\n"
        f"allowed: {', '.join(_named(key) for key in _allowed(config))}\n"
        "a new run can start from its weights: init_from=<run>"
    )


def _allowed(config: TrainConfig) -> tuple[str, ...]:
    return _SAFE if is_reproducible(config) else (*_SAFE, *_SAFE_RUNNING_FREE)


def _named(key: str) -> str:
    return f"{key}*" if key.endswith(".") else key.removeprefix("trainer.")


def _among(key: str, names: Sequence[str]) -> bool:
    return any(key == name or (name.endswith(".") and key.startswith(name)) for name in names)


def _shown(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
