"""Configuration of FlashSAC. Does not import torch: the command line reads it before anything heavy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from border_cli.agents.config import NetworkConfig
from border_cli.config.schema import option, override_default
from border_cli.core.errors import UsageError


@dataclass
class FlashsacConfig(NetworkConfig):
    """FlashSAC (Kim et al., 2026), with networks narrow enough for a CPU."""

    not_in_opt_step: ClassVar[tuple[str, ...]] = (
        *NetworkConfig.not_in_opt_step,
        *("noise_repeat", "random_env_steps", "target_interval", "target_tau"),
    )
    only_with: ClassVar[dict[str, str]] = NetworkConfig.only_with | {
        "agent.entropy_coef=null": "entropy_coef_start target_std",
    }
    # Options of SAC that its shared parts read, and that have one value here.
    policy: ClassVar[str] = "gaussian"
    has_targets: ClassVar[bool] = True
    target_entropy: ClassVar[float | None] = None  # target_std sets it
    critic_lr: ClassVar[float | None] = None

    type: str = option("flashsac", "name of the agent")
    batch_size: int = override_default(NetworkConfig, "batch_size", 256)
    lr: float = override_default(NetworkConfig, "lr", 3e-4)
    lr_schedule: str = override_default(NetworkConfig, "lr_schedule", "linear")
    lr_final: float = override_default(NetworkConfig, "lr_final", 0.5)
    hidden: list[int] = option(
        [64, 64], "units of each block of the policy, all the same", unit="units", ge=1
    )
    critic_hidden: list[int] = option(
        [64, 64], "units of each block of each critic, all the same", unit="units", ge=1
    )
    policy_interval: int = option(2, "one policy update per this many opt steps", unit="opt steps", ge=1)
    entropy_coef: float | None = option(
        None, "entropy coefficient; auto: learned", unit="normalised reward/nat", ge=0.0, auto=True
    )
    entropy_coef_start: float = option(
        0.01, "initial value of a learned entropy coefficient", unit="normalised reward/nat", gt=0.0
    )
    target_std: float = option(
        0.15,
        "target entropy of a learned coefficient: that of Gaussian actions with this standard deviation; 1 is half the "
        "action range",
        unit="action",
        gt=0.0,
    )
    target_interval: int = option(1, "update the target networks this often", unit="opt steps", ge=1)
    target_tau: float = option(
        0.01, "share of the online networks in each target update; 1: a copy", unit="share", gt=0.0, le=1.0
    )
    noise_repeat: int = option(
        16,
        "exploration noise is repeated for n env steps, with a probability in proportion to 1/n² up to this n; 1: new "
        "noise at each",
        unit="env steps",
        ge=1,
    )
    random_env_steps: int = option(
        1_000, "uniform random actions until this env step", unit="env steps", ge=0
    )

    def validate(self) -> None:
        super().validate()
        for key in ("hidden", "critic_hidden"):
            widths: list[int] = getattr(self, key)
            if len(set(widths)) != 1:
                raise UsageError(
                    f"agent.{key}={widths}: the blocks of FlashSAC add their outputs to their inputs",
                    allowed=f"one number, repeated for each block, such as agent.{key}=[128,128]",
                )

    def trained(self) -> FlashsacConfig:
        return replace(self, random_env_steps=0)
