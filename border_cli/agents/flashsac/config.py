"""Configuration of FlashSAC. Does not import torch: the command line reads it before anything heavy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from border_cli.agents.config import ActorCriticConfig
from border_cli.config.schema import option, override_default
from border_cli.core.errors import UsageError

NARROW = [64, 64]
"""Units of each block on a CPU, and where no device is known."""


@dataclass
class FlashsacConfig(ActorCriticConfig):
    """FlashSAC (Kim et al., 2026), on a CPU with narrower networks."""

    only_with: ClassVar[dict[str, str]] = ActorCriticConfig.only_with | {
        "agent.entropy_coef=null": "entropy_coef_start target_std",
    }
    # Options of SAC that its shared parts read, and that have one value here.
    policy: ClassVar[str] = "gaussian"
    critic_subset: ClassVar[int | None] = None
    critic_dropout: ClassVar[float] = 0.0

    type: str = option("flashsac", "name of the agent")
    batch_size: int = override_default(ActorCriticConfig, "batch_size", 256)
    lr_schedule: str = override_default(ActorCriticConfig, "lr_schedule", "linear")
    lr_final: float = override_default(ActorCriticConfig, "lr_final", 0.5)
    hidden: list[int] = option(
        [],
        "units of each block of the policy, all the same; []: [64,64], on a GPU [128,128]",
        unit="units",
        ge=1,
    )
    critic_hidden: list[int] = option(
        [],
        "units of each block of each critic, all the same; []: [64,64], on a GPU [256,256]",
        unit="units",
        ge=1,
    )
    policy_interval: int = override_default(ActorCriticConfig, "policy_interval", 2)
    entropy_coef_start: float = override_default(ActorCriticConfig, "entropy_coef_start", 0.01)
    target_std: float = option(
        0.15,
        "target entropy of a learned coefficient: that of Gaussian actions with this standard deviation; 1 is half the "
        "action range",
        unit="action",
        gt=0.0,
    )
    target_tau: float = override_default(ActorCriticConfig, "target_tau", 0.01)
    noise_repeat: int = option(
        16,
        "exploration noise is repeated for n env steps, with a probability in proportion to 1/n² up to this n; 1: new "
        "noise at each",
        unit="env steps",
        ge=1,
    )

    def validate(self) -> None:
        super().validate()
        if self.weight_decay:
            raise UsageError(
                "agent.weight_decay has no effect on FlashSAC, whose weights have norm 1",
                allowed="agent.weight_decay=0",
            )
        for key in ("hidden", "critic_hidden"):
            widths: list[int] = getattr(self, key)
            if len(set(widths)) > 1:
                raise UsageError(
                    f"agent.{key}={widths}: the blocks of FlashSAC add their outputs to their inputs",
                    allowed=f"one number, repeated for each block, such as agent.{key}=[128,128]",
                )

    def on_device(self, device: str) -> FlashsacConfig:
        """The published widths on a GPU, where they take little time."""
        policy, critic = ([128, 128], [256, 256]) if device.startswith("cuda") else (NARROW, NARROW)
        return replace(self, hidden=self.hidden or policy, critic_hidden=self.critic_hidden or critic)
