"""Configuration of the value-based family. Imports no torch: the command line reads it before anything heavy is loaded.

One class, whose switches can be combined freely; C51, QR-DQN, IQN and Rainbow are other defaults of the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from border_cli.config.options import like, option
from border_cli.config.schema import AgentConfig

HEADS = ("scalar", "categorical", "quantile", "implicit_quantile")
EXPLORATIONS = ("epsilon", "softmax", "none")
_OF_HEAD = {
    "loss": ("scalar",),
    "atoms": ("categorical",),
    "v_min": ("categorical",),
    "v_max": ("categorical",),
    "quantiles": ("quantile", "implicit_quantile"),
    "target_quantiles": ("implicit_quantile",),
    "act_quantiles": ("implicit_quantile",),
    "cosines": ("implicit_quantile",),
}
_OF_EXPLORATION = {
    "epsilon_start": "epsilon",
    "epsilon_final": "epsilon",
    "epsilon_env_steps": "epsilon",
    "epsilon_ladder": "epsilon",
    "temperature": "softmax",
}


@dataclass
class DqnConfig(AgentConfig):
    """DQN (Mnih et al., 2015) with double targets (van Hasselt et al., 2016), and all that was added to it since."""

    type: str = option("dqn", "which agent this is")
    lr: float = option(1e-3, "Adam's learning rate", gt=0.0, le=1.0)
    adam_eps: float = option(1e-8, "Adam's epsilon", gt=0.0)
    double: bool = option(True, "double DQN: the online network chooses the target's action")
    dueling: bool = option(False, "dueling network: the state's value plus the advantage of each action")
    noisy: bool = option(False, "noisy linear layers (the last two), for exploration")
    noisy_std: float = option(0.5, "noisy layers: initial σ₀", gt=0.0)
    head: str = option("scalar", "what is learnt of the return: its mean, or its distribution", choices=HEADS)
    loss: str = option("huber", "scalar head: loss of the TD error", choices=("huber", "mse"))
    atoms: int = option(51, "categorical head: number of atoms, the support of the discounted return", ge=2)
    v_min: float = option(-10.0, "categorical head: smallest discounted return", unit="reward")
    v_max: float = option(10.0, "categorical head: largest discounted return", unit="reward")
    quantiles: int = option(32, "quantile heads: quantiles learnt per opt step", ge=1)
    target_quantiles: int = option(32, "implicit quantile head: quantiles of the target", ge=1)
    act_quantiles: int = option(32, "implicit quantile head: quantiles averaged to choose actions", ge=1)
    cosines: int = option(64, "implicit quantile head: cosine features of a quantile's level", ge=1)
    max_grad_norm: float | None = option(
        10.0, "clip the global gradient norm here; null: no clipping", gt=0.0
    )
    hidden: list[int] = option([256, 256], "units per hidden layer", unit="units", ge=1)
    channels: list[int] = option(
        [32, 64, 64], "of the convolutions for images; []: none", unit="channels", ge=1
    )
    target_interval: int = option(128, "update the target network this often", unit="opt steps", ge=1)
    target_tau: float = option(1.0, "share of the online network in that update; 1: a copy", gt=0.0, le=1.0)
    exploration: str = option(
        "epsilon", "how actions are explored; none: only by noisy layers", choices=EXPLORATIONS
    )
    epsilon_start: float = option(1.0, "ε, the probability of a random action, at env step 0", ge=0.0, le=1.0)
    epsilon_final: float = option(0.05, "ε from epsilon_env_steps on", ge=0.0, le=1.0)
    epsilon_env_steps: int = option(
        10_000,
        "linear decay of ε over so many, of all actors together, warm-up included",
        unit="env steps",
        ge=1,
    )
    epsilon_ladder: float | None = option(
        None, "α of the Ape-X ladder ε^(1+α·i/(n-1)) over actors i = 0..n-1; null: the same ε for all", gt=0.0
    )
    temperature: float = option(
        1.0, "softmax: actions are drawn in proportion to exp(value/temperature)", unit="reward", gt=0.0
    )
    eval_epsilon: float = option(0.0, "ε in evaluation", ge=0.0, le=1.0)

    def mistake(self) -> str | None:
        """As of `AgentConfig`."""
        if self.head == "categorical" and self.v_min >= self.v_max:
            return (
                f"agent.v_min={self.v_min:g} is not below agent.v_max={self.v_max:g}\n"
                "allowed: v_min < v_max, and returns between them"
            )
        if self.exploration == "none" and not self.noisy:
            return (
                "agent.exploration=none explores by noisy layers alone, and agent.noisy=false has none\n"
                "allowed: agent.noisy=true, or agent.exploration=epsilon"
            )
        return None

    def knows_errors(self) -> bool:
        """As of `AgentConfig`. Those of values, which are not what a categorical head's priorities are made of."""
        return self.head != "categorical"

    def idle(self) -> Iterator[tuple[str, str]]:
        """As of `AgentConfig`."""
        for name, heads in _OF_HEAD.items():
            if self.head not in heads:
                yield name, f"head={' or '.join(heads)}"
        for name, exploration in _OF_EXPLORATION.items():
            if self.exploration != exploration:
                yield name, f"exploration={exploration}"
        if not self.noisy:
            yield "noisy_std", "noisy=true"


@dataclass
class C51Config(DqnConfig):
    """C51 (Bellemare et al., 2017)."""

    type: str = like(DqnConfig, "type", "c51")
    head: str = like(DqnConfig, "head", "categorical")


@dataclass
class QrDqnConfig(DqnConfig):
    """QR-DQN (Dabney et al., 2018)."""

    type: str = like(DqnConfig, "type", "qrdqn")
    head: str = like(DqnConfig, "head", "quantile")


@dataclass
class IqnConfig(DqnConfig):
    """IQN (Dabney et al., 2018)."""

    type: str = like(DqnConfig, "type", "iqn")
    head: str = like(DqnConfig, "head", "implicit_quantile")


@dataclass
class RainbowConfig(DqnConfig):
    """Rainbow (Hessel et al., 2018); its prioritised replay and its n-step transitions are options of `buffer`."""

    type: str = like(DqnConfig, "type", "rainbow")
    dueling: bool = like(DqnConfig, "dueling", True)
    noisy: bool = like(DqnConfig, "noisy", True)
    head: str = like(DqnConfig, "head", "categorical")
    exploration: str = like(DqnConfig, "exploration", "none")
