"""Configuration of the value-based family. Does not import torch: the command line reads it before anything heavy.

There is one class whose options can be combined freely; C51, QR-DQN, IQN and Rainbow have other defaults.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import numpy as np

from border_cli.agents.config import MemoryConfig
from border_cli.config.schema import option, override_default
from border_cli.core.errors import UsageError
from border_cli.core.spaces import Array

HEADS = ("scalar", "categorical", "quantile", "implicit_quantile")
EXPLORATIONS = ("epsilon", "none")

LARGEST_RETURN = math.expm1(10.0)
"""How far the atoms of a categorical head reach where an end is open: 22,025."""


@dataclass
class DqnConfig(MemoryConfig):
    """DQN (Mnih et al., 2015) with double targets (van Hasselt et al., 2016), and its extensions as options."""

    only_with: ClassVar[dict[str, str]] = MemoryConfig.only_with | {
        "agent.head=scalar": "loss",
        "agent.head=categorical": "atoms v_min v_max",
        "agent.head=quantile|implicit_quantile": "quantiles kappa",
        "agent.head=implicit_quantile": "target_quantiles act_quantiles cosines",
        "agent.exploration=epsilon": "epsilon_start epsilon_final epsilon_env_steps epsilon_ladder",
        "n_actors!=1": "epsilon_ladder",
        "agent.noisy=true": "noisy_std",
        "agent.munchausen=null": "double",
        "agent.munchausen!=null": "munchausen_tau munchausen_clip",
    }

    type: str = option("dqn", "name of the agent")
    max_grad_norm: float | None = override_default(MemoryConfig, "max_grad_norm", 10.0)
    double: bool = option(True, "double DQN: the online network chooses the target's action")
    munchausen: float | None = option(
        None,
        "α of Munchausen targets: the weight in the reward of τ times the log-probability of the action, by a softmax of "
        "the values; they bootstrap from its soft value; null: plain targets",
        unit="factor",
        ge=0.0,
        le=1.0,
    )
    munchausen_tau: float = option(0.03, "Munchausen: temperature τ of the softmax", unit="reward", gt=0.0)
    munchausen_clip: float = option(
        -1.0, "Munchausen: least value of τ times the log-probability", unit="reward", le=0.0
    )
    dueling: bool = option(False, "dueling network: the state's value plus the advantage of each action")
    noisy: bool = option(
        False,
        "noisy linear layers, for exploration: the output layer and, if there are several hidden layers, "
        "the last of them",
    )
    noisy_std: float = option(0.5, "noisy layers: initial σ₀", unit="weight", gt=0.0)
    head: str = option(
        "scalar", "what is learned about the return: its mean or its distribution", choices=HEADS
    )
    loss: str = option("huber", "scalar head: loss of the TD error", choices=("huber", "mse"))
    atoms: int | None = option(
        None,
        "categorical head: number of atoms, the returns whose probabilities are learned; auto: 51 between a typed v_min "
        "and v_max, else 201",
        unit="atoms",
        ge=2,
        auto=True,
    )
    v_min: float | None = option(
        None,
        "categorical head: smallest discounted return; auto: no range is needed, the atoms are spaced by symlog",
        unit="reward",
        auto=True,
    )
    v_max: float | None = option(
        None, "categorical head: largest discounted return; auto: as for v_min", unit="reward", auto=True
    )
    quantiles: int = option(32, "quantile heads: quantiles learned per opt step", unit="quantiles", ge=1)
    kappa: float = option(
        1.0,
        "quantile heads: κ of the quantile Huber loss, which is quadratic up to this error; if κ is not "
        "much less than the spread of the returns, expectiles are learned",
        unit="reward",
        gt=0.0,
    )
    target_quantiles: int = option(
        32, "implicit quantile head: quantiles of the target", unit="quantiles", ge=1
    )
    act_quantiles: int = option(
        32, "implicit quantile head: quantiles averaged to choose actions", unit="quantiles", ge=1
    )
    cosines: int = option(
        64, "implicit quantile head: cosine features of a quantile's level", unit="features", ge=1
    )
    target_interval: int = option(128, "update the target network this often", unit="opt steps", ge=1)
    target_tau: float = option(
        1.0, "share of the online network in each target update; 1: a copy", unit="share", gt=0.0, le=1.0
    )
    exploration: str = option(
        "epsilon", "how actions are explored; none: only by noisy layers", choices=EXPLORATIONS
    )
    epsilon_start: float = option(
        1.0, "ε, the probability of a random action, at env step 0", unit="probability", ge=0.0, le=1.0
    )
    epsilon_final: float = option(0.05, "ε from epsilon_env_steps on", unit="probability", ge=0.0, le=1.0)
    epsilon_env_steps: int = option(
        10_000,
        "ε falls linearly over this many, counted over all actors, warm-up included",
        unit="env steps",
        ge=1,
    )
    epsilon_ladder: float | None = option(
        None,
        "α of the Ape-X ladder ε^(1+α·i/(n-1)) over actors i = 0..n-1; null: the same ε for all",
        unit="exponent",
        gt=0.0,
    )
    eval_epsilon: float = option(0.0, "ε in evaluation", unit="probability", ge=0.0, le=1.0)

    @property
    def outputs(self) -> int:
        """Numbers per action that the network returns."""
        return {"categorical": self.n_atoms, "quantile": self.quantiles}.get(self.head, 1)

    @property
    def n_atoms(self) -> int:
        """Atoms of a categorical head."""
        return self.atoms or (201 if None in (self.v_min, self.v_max) else 51)

    def resolve(self, opt_steps: int | None, may_switch: bool) -> DqnConfig:
        resolved = cast(DqnConfig, super().resolve(opt_steps, may_switch))
        return replace(resolved, atoms=resolved.n_atoms) if self.head == "categorical" else resolved

    def validate(self) -> None:
        super().validate()
        if self.head == "categorical":
            atoms = atoms_of(self)
            if not (np.isfinite(atoms).all() and (np.diff(atoms) > 0).all()):
                low, high = ("auto" if end is None else f"{end:g}" for end in (self.v_min, self.v_max))
                raise UsageError(
                    f"agent.v_min={low} agent.v_max={high}: {self.n_atoms} atoms between them are not increasing float32 "
                    "numbers",
                    allowed=f"v_min < v_max (auto: ±{LARGEST_RETURN:,.0f}), smaller ends, ends that are further apart, or "
                    "fewer agent.atoms",
                )
        if self.gru is not None and self.head == "implicit_quantile":
            raise UsageError(
                "agent.gru is not for agent.head=implicit_quantile",
                allowed="agent.head=scalar, categorical or quantile",
            )
        if self.munchausen is not None and (self.head == "categorical" or self.gru is not None):
            raise UsageError(
                "agent.munchausen is not for agent.head=categorical or agent.gru",
                allowed="agent.munchausen=null, or another head and agent.gru=null",
            )
        if self.exploration == "none" and not self.noisy:
            raise UsageError(
                "agent.exploration=none explores by noisy layers alone, and agent.noisy=false has none",
                allowed="agent.noisy=true, or agent.exploration=epsilon",
            )

    def trained(self) -> DqnConfig:
        return replace(self, epsilon_start=self.epsilon_final)


def atoms_of(config: DqnConfig) -> Array:
    """(k,) float32, the returns whose probabilities a categorical head learns.

    Between two typed ends they are evenly spaced. Otherwise they are evenly spaced in symlog z = sign(z)·log(1 + |z|), from
    the typed end or ±22,025 on (as the bins of DreamerV3, Hafner et al., 2023). So no range has to be known: near 0 their
    distance is 0.1, far out it is a tenth of the return.
    """
    low, high = config.v_min, config.v_max
    if low is not None and high is not None:
        atoms = np.linspace(low, high, config.n_atoms)
    else:
        ends = np.array([-LARGEST_RETURN if low is None else low, LARGEST_RETURN if high is None else high])
        first, last = np.sign(ends) * np.log1p(np.abs(ends))
        u = np.linspace(first, last, config.n_atoms)
        atoms = np.sign(u) * np.expm1(np.abs(u))
    with np.errstate(over="ignore"):  # `validate` refuses infinite atoms
        return atoms.astype(np.float32)


@dataclass
class C51Config(DqnConfig):
    """C51 (Bellemare et al., 2017)."""

    type: str = override_default(DqnConfig, "type", "c51")
    head: str = override_default(DqnConfig, "head", "categorical")


@dataclass
class QrDqnConfig(DqnConfig):
    """QR-DQN (Dabney et al., 2018)."""

    type: str = override_default(DqnConfig, "type", "qrdqn")
    head: str = override_default(DqnConfig, "head", "quantile")


@dataclass
class IqnConfig(DqnConfig):
    """IQN (Dabney et al., 2018)."""

    type: str = override_default(DqnConfig, "type", "iqn")
    head: str = override_default(DqnConfig, "head", "implicit_quantile")


@dataclass
class RainbowConfig(DqnConfig):
    """Rainbow (Hessel et al., 2018). Prioritised replay and n-step transitions are options of `buffer`."""

    type: str = override_default(DqnConfig, "type", "rainbow")
    dueling: bool = override_default(DqnConfig, "dueling", True)
    noisy: bool = override_default(DqnConfig, "noisy", True)
    head: str = override_default(DqnConfig, "head", "categorical")
    exploration: str = override_default(DqnConfig, "exploration", "none")


@dataclass
class BtrConfig(DqnConfig):
    """BTR, Beyond the Rainbow (Clark et al., 2025). Prioritised replay and n-step transitions are options of `buffer`."""

    type: str = override_default(DqnConfig, "type", "btr")
    encoder: str = override_default(DqnConfig, "encoder", "impala")
    spectral_norm: bool = override_default(DqnConfig, "spectral_norm", True)
    munchausen: float | None = override_default(DqnConfig, "munchausen", 0.9)
    dueling: bool = override_default(DqnConfig, "dueling", True)
    noisy: bool = override_default(DqnConfig, "noisy", True)
    head: str = override_default(DqnConfig, "head", "implicit_quantile")
    quantiles: int = override_default(DqnConfig, "quantiles", 8)
    target_quantiles: int = override_default(DqnConfig, "target_quantiles", 8)
    act_quantiles: int = override_default(DqnConfig, "act_quantiles", 8)


@dataclass
class R2d2Config(DqnConfig):
    """R2D2 (Kapturowski et al., 2019) on one machine. Prioritised replay and n-step transitions are options of `buffer`."""

    type: str = override_default(DqnConfig, "type", "r2d2")
    lr: float = override_default(DqnConfig, "lr", 1e-3)  # the published 1e-4 is for far longer runs
    batch_size: int = override_default(DqnConfig, "batch_size", 32)
    gru: int | None = override_default(DqnConfig, "gru", 64)
    dueling: bool = override_default(DqnConfig, "dueling", True)
