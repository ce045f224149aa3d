"""Configuration of the actor-critic family. Imports no torch: the command line reads it before anything heavy is loaded.

One class, whose switches can be combined; TD3 and TQC are other defaults of the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from border_cli.config.options import like, option
from border_cli.config.schema import AgentConfig

POLICIES = ("gaussian", "deterministic")
EXPLORATIONS = {
    "gaussian": ("policy", "state_dependent"),
    "deterministic": ("gaussian", "ornstein_uhlenbeck"),
}
"""How each kind of policy can explore."""
_ALL_EXPLORATIONS = tuple(name for names in EXPLORATIONS.values() for name in names)


@dataclass
class SacConfig(AgentConfig):
    """SAC (Haarnoja et al., 2018) with a learnt entropy coefficient, and what TD3 and TQC have instead."""

    type: str = option("sac", "which agent this is")
    batch_size: int = like(AgentConfig, "batch_size", 256)
    lr: float = option(3e-4, "Adam's learning rate", gt=0.0, le=1.0)
    critic_lr: float | None = option(None, "learning rate of the critics; null: lr", gt=0.0, le=1.0)
    adam_eps: float = option(1e-8, "Adam's epsilon", gt=0.0)
    max_grad_norm: float | None = option(
        None, "clip the gradient norm of each network here; null: no clipping", gt=0.0
    )
    hidden: list[int] = option(
        [256, 256], "units per hidden layer, of the policy and of each critic", unit="units", ge=1
    )
    channels: list[int] = option(
        [32, 64, 64], "of the convolutions for images; []: none", unit="channels", ge=1
    )
    policy: str = option("gaussian", "a squashed Gaussian, or one action per state", choices=POLICIES)
    policy_interval: int = option(1, "one policy update per so many opt steps", unit="opt steps", ge=1)
    critics: int = option(2, "number of critics", ge=1)
    quantiles: int = option(1, "quantiles of the return per critic; 1: its mean", ge=1)
    drop_quantiles: int = option(
        0, "quantiles dropped from the target, per critic: the largest of all critics pooled", ge=0
    )
    entropy_coef: float | None = option(None, "entropy coefficient; null: learnt", ge=0.0)
    entropy_coef_start: float = option(1.0, "initial value of a learnt entropy coefficient", gt=0.0)
    target_entropy: float | None = option(
        None,
        "target of a learnt one, for actions scaled to [-1, 1]; null: minus the number of action dimensions",
        unit="nats",
    )
    target_interval: int = option(1, "update the target networks this often", unit="opt steps", ge=1)
    target_tau: float = option(
        0.005, "share of the online networks in that update; 1: a copy", gt=0.0, le=1.0
    )
    target_noise: float = option(
        0.2,
        "deterministic policy: standard deviation of the target smoothing noise; 1 is half the action range",
        ge=0.0,
    )
    target_noise_clip: float = option(0.5, "deterministic policy: that noise is clipped to [-x, x]", gt=0.0)
    exploration: str = option("policy", "source of the exploration noise", choices=_ALL_EXPLORATIONS)
    noise_std: float = option(
        0.1,
        "deterministic policy: σ of the Gaussian or Ornstein-Uhlenbeck noise; 1 is half the action range",
        ge=0.0,
    )
    noise_theta: float = option(0.15, "Ornstein-Uhlenbeck noise: θ, its pull towards 0", ge=0.0)
    log_std_start: float = option(
        -3.0, "state-dependent noise (gSDE): initial logarithm of its standard deviation", ge=-20.0, le=2.0
    )
    noise_interval: int | None = option(
        None,
        "state-dependent noise: drawn again after so many; null: once per episode",
        unit="env steps",
        ge=1,
    )
    random_env_steps: int = option(
        1_000, "uniform random actions until this env step", unit="env steps", ge=0
    )

    def mistake(self) -> str | None:
        """As of `AgentConfig`."""
        allowed = EXPLORATIONS[self.policy]
        if self.exploration not in allowed:
            return (
                f"agent.exploration={self.exploration} is not for agent.policy={self.policy}\n"
                f"allowed: agent.exploration={' or '.join(allowed)}"
            )
        if self.drop_quantiles >= self.quantiles:
            return (
                f"agent.drop_quantiles={self.drop_quantiles} leaves none of agent.quantiles={self.quantiles}\n"
                "allowed: drop_quantiles < quantiles"
            )
        return None

    def idle(self) -> Iterator[tuple[str, str]]:
        """As of `AgentConfig`."""
        if self.policy == "deterministic":
            for name in ("entropy_coef", "entropy_coef_start", "target_entropy"):
                yield name, "policy=gaussian"
        elif self.entropy_coef is not None:
            for name in ("entropy_coef_start", "target_entropy"):
                yield name, "entropy_coef=null"
        if self.policy == "gaussian":
            for name in ("target_noise", "target_noise_clip", "noise_std"):
                yield name, "policy=deterministic"
        for name, exploration in (
            ("noise_theta", "ornstein_uhlenbeck"),
            ("log_std_start", "state_dependent"),
            ("noise_interval", "state_dependent"),
        ):
            if self.exploration != exploration:
                yield name, f"exploration={exploration}"


@dataclass
class Td3Config(SacConfig):
    """TD3 (Fujimoto et al., 2018)."""

    type: str = like(SacConfig, "type", "td3")
    policy: str = like(SacConfig, "policy", "deterministic")
    policy_interval: int = like(SacConfig, "policy_interval", 2)
    target_interval: int = like(SacConfig, "target_interval", 2)
    exploration: str = like(SacConfig, "exploration", "gaussian")


@dataclass
class TqcConfig(SacConfig):
    """TQC (Kuznetsov et al., 2020)."""

    type: str = like(SacConfig, "type", "tqc")
    quantiles: int = like(SacConfig, "quantiles", 25)
    drop_quantiles: int = like(SacConfig, "drop_quantiles", 2)
