"""Configuration of the actor-critic family. Does not import torch: the command line reads it before anything heavy.

There is one class whose options can be combined; TD3, TQC and CrossQ have other defaults.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from border_cli.agents.config import ActorCriticConfig, MemoryConfig
from border_cli.config.schema import option, override_default
from border_cli.core.errors import UsageError

POLICIES = ("gaussian", "deterministic")
EXPLORATIONS = {"gaussian": ("policy", "state_dependent"), "deterministic": ("gaussian",)}
"""Allowed exploration of each kind of policy."""
_ALL_EXPLORATIONS = tuple(name for names in EXPLORATIONS.values() for name in names)


@dataclass
class SacConfig(ActorCriticConfig, MemoryConfig):
    """SAC (Haarnoja et al., 2018) with a learned entropy coefficient, and options of TD3, TQC, REDQ and DroQ."""

    only_with: ClassVar[dict[str, str]] = MemoryConfig.only_with | {
        "agent.policy=gaussian": "entropy_coef entropy_coef_start target_entropy",
        "agent.entropy_coef=null": "entropy_coef_start target_entropy",
        "agent.policy=deterministic": "target_noise target_noise_clip noise_std",
        "agent.quantiles!=1": "kappa",
        "agent.norm!=batch": "target_interval target_tau critic_dropout",
        "agent.exploration=state_dependent": "log_std_start noise_interval",
    }

    type: str = option("sac", "name of the agent")
    batch_size: int = override_default(MemoryConfig, "batch_size", 256)
    policy: str = option("gaussian", "a squashed Gaussian, or one action per state", choices=POLICIES)
    norm: str = option(
        "none",
        "batch: batch renormalisation before each linear layer, current and next actions as one batch of the critics, and "
        "no target networks (CrossQ); layer: layer normalisation before each ReLU of the critics (DroQ)",
        choices=("none", "batch", "layer"),
    )
    critic_dropout: float = option(
        0.0, "dropout of hidden units of the critics in opt steps (DroQ)", unit="probability", ge=0.0, le=0.9
    )
    critic_subset: int | None = option(
        None,
        "the target takes the minimum over so many critics, drawn anew in each opt step, and the policy maximises the mean "
        "over all critics (REDQ); null: the minimum over all in both",
        unit="critics",
        ge=1,
    )
    quantiles: int = option(
        1, "quantiles of the return per critic; 1: the mean of the return", unit="quantiles", ge=1
    )
    drop_quantiles: int = option(
        0,
        "the target drops the largest (critics × this many) of all pooled quantiles",
        unit="quantiles",
        ge=0,
    )
    kappa: float = option(
        1.0,
        "quantiles: κ of the quantile Huber loss, which is quadratic up to this error; if κ is not much "
        "less than the spread of the returns, expectiles are learned",
        unit="reward",
        gt=0.0,
    )
    target_entropy: float | None = option(
        None,
        "target entropy of a learned coefficient, actions scaled to [-1, 1]; null: minus the number of action dimensions",
        unit="nats",
    )
    target_noise: float = option(
        0.2,
        "deterministic policy: standard deviation of the target smoothing noise; 1 is half the action range",
        unit="action",
        ge=0.0,
    )
    target_noise_clip: float = option(
        0.5, "deterministic policy: target_noise is clipped to [-x, x]", unit="action", gt=0.0
    )
    exploration: str = option("policy", "source of the exploration noise", choices=_ALL_EXPLORATIONS)
    noise_std: float = option(
        0.1,
        "deterministic policy: standard deviation of the Gaussian noise; 1 is half the action range",
        unit="action",
        ge=0.0,
    )
    log_std_start: float = option(
        -3.0,
        "state-dependent noise (gSDE): initial log standard deviation of the noise weights on the last "
        "hidden layer",
        unit="log weight",
        ge=-20.0,
        le=2.0,
    )
    noise_interval: int | None = option(
        None,
        "state-dependent noise: drawn again after this many; null: once per episode",
        unit="env steps",
        ge=1,
    )

    def validate(self) -> None:
        super().validate()
        allowed = EXPLORATIONS[self.policy]
        if self.exploration not in allowed:
            raise UsageError(
                f"agent.exploration={self.exploration} is not for agent.policy={self.policy}",
                allowed=f"agent.exploration={' or '.join(allowed)}",
            )
        if self.gru is not None and self.norm == "batch":
            raise UsageError(
                "agent.gru is not for agent.norm=batch",
                allowed="agent.norm=none, as of agent=rsac, sac, td3 and tqc, or agent.norm=layer",
            )
        if self.critic_subset is not None and (self.critic_subset > self.critics or self.quantiles > 1):
            raise UsageError(
                f"agent.critic_subset={self.critic_subset} is not for {self.critics} critics of {self.quantiles} quantiles",
                allowed="critic_subset up to critics, with agent.quantiles=1",
            )
        if self.drop_quantiles >= self.quantiles:
            raise UsageError(
                f"agent.drop_quantiles={self.drop_quantiles} leaves none of agent.quantiles={self.quantiles}",
                allowed="drop_quantiles < quantiles",
            )

    @property
    def fixed_entropy_coef(self) -> float | None:
        return self.entropy_coef if self.policy == "gaussian" else 0.0


@dataclass
class Td3Config(SacConfig):
    """TD3 (Fujimoto et al., 2018)."""

    type: str = override_default(SacConfig, "type", "td3")
    policy: str = override_default(SacConfig, "policy", "deterministic")
    policy_interval: int = override_default(SacConfig, "policy_interval", 2)
    target_interval: int = override_default(SacConfig, "target_interval", 2)
    exploration: str = override_default(SacConfig, "exploration", "gaussian")


@dataclass
class TqcConfig(SacConfig):
    """TQC (Kuznetsov et al., 2020)."""

    type: str = override_default(SacConfig, "type", "tqc")
    quantiles: int = override_default(SacConfig, "quantiles", 25)
    drop_quantiles: int = override_default(SacConfig, "drop_quantiles", 2)


@dataclass
class CrossqConfig(SacConfig):
    """CrossQ (Bhatt et al., 2024), with critics as narrow as SAC's on a CPU."""

    type: str = override_default(SacConfig, "type", "crossq")
    lr: float = override_default(SacConfig, "lr", 1e-3)
    adam_beta1: float = override_default(SacConfig, "adam_beta1", 0.5)
    policy_interval: int = override_default(SacConfig, "policy_interval", 3)
    norm: str = override_default(SacConfig, "norm", "batch")
    random_env_steps: int = override_default(SacConfig, "random_env_steps", 5_000)

    def on_device(self, device: str) -> CrossqConfig:
        """On a GPU, critics are wide: there that takes little time."""
        wide = [1024, 1024] if device.startswith("cuda") else self.hidden
        return replace(self, critic_hidden=self.critic_hidden or wide)


@dataclass
class RsacConfig(SacConfig):
    """SAC with a memory: policy and critics have one each (as in Ni et al., 2022)."""

    type: str = override_default(SacConfig, "type", "rsac")
    batch_size: int = override_default(SacConfig, "batch_size", 32)
    gru: int | None = override_default(SacConfig, "gru", 64)
