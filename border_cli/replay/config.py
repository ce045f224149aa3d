"""Configuration of prioritised replay; the uniform one is `BufferConfig`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from border_cli.config.schema import BufferConfig, option, override_default

DEFAULT_BETA_OPT_STEPS = 50_000


@dataclass
class PrioritizedConfig(BufferConfig):
    """Proportional prioritised replay (Schaul et al., 2016)."""

    type: str = override_default(BufferConfig, "type", "prioritized")
    alpha: float = option(
        0.5,
        "exponent: a row is drawn in proportion to (|error| + priority_eps)^alpha",
        unit="exponent",
        ge=0.0,
        le=4.0,
    )
    priority_eps: float = option(
        1e-6, "added to each error, so that every row can be drawn", unit="reward", ge=1e-9, le=1.0
    )
    beta_start: float = option(
        0.4, "initial β; importance weights are (rows · probability)^-β", unit="exponent", ge=0.0, le=1.0
    )
    beta_final: float = option(1.0, "β from beta_opt_steps on", unit="exponent", ge=0.0, le=1.0)
    beta_opt_steps: int | None = option(
        None,
        "β grows linearly over this many; null: over the whole budget, or 50,000 if the budget in opt steps is unknown",
        unit="opt steps",
        ge=1,
    )

    def resolve(self, opt_steps: int | None) -> PrioritizedConfig:
        return replace(self, beta_opt_steps=self.beta_opt_steps or opt_steps or DEFAULT_BETA_OPT_STEPS)
