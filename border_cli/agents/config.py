"""What the configurations of all agents with a network share. Does not import torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, cast

from border_cli.config.schema import AgentConfig, option
from border_cli.core.errors import UsageError
from border_cli.core.types import SequenceShape


@dataclass
class NetworkConfig(AgentConfig):
    """An agent that trains a network by Adam.

    not_in_opt_step: options of any agent that no opt step reads, so that a compiled step serves all their values.
    """

    not_in_opt_step: ClassVar[str] = (
        "compile lr_schedule lr_final lr_opt_steps reset_interval target_interval target_tau random_env_steps eval_epsilon "
        "epsilon_start epsilon_final epsilon_env_steps epsilon_ladder noise_std noise_interval noise_repeat"
    )
    only_with: ClassVar[dict[str, str]] = {
        "agent.lr_schedule=linear|cosine": "lr_final lr_opt_steps",
        "agent.encoder=convolutions": "kernels strides",
        "agent.encoder=convolutions|impala": "channels normalize_obs",
        "agent.encoder!=convolutions|impala": "encoder_kwargs",
        "agent.encoder=impala": "spectral_norm",
    }

    lr: float = option(3e-4, "Adam's learning rate", unit="rate", gt=0.0, le=1.0)
    lr_schedule: str = option(
        "constant",
        "how the learning rate falls to lr · lr_final over lr_opt_steps",
        choices=("constant", "linear", "cosine"),
    )
    lr_final: float = option(
        0.0, "schedule: final learning rate, as a share of lr", unit="share", ge=0.0, le=1.0
    )
    lr_opt_steps: int | None = option(
        None, "schedule: its length; auto: the whole budget", unit="opt steps", ge=1, auto=True
    )
    adam_eps: float = option(1e-8, "Adam's epsilon", unit="gradient", gt=0.0)
    adam_beta1: float = option(
        0.9, "Adam's decay of the mean of the gradients", unit="factor", ge=0.0, le=0.999
    )
    max_grad_norm: float | None = option(
        None, "clip the gradient norm of each network here; null: no clipping", unit="gradient", gt=0.0
    )
    weight_decay: float = option(
        0.0,
        "matrices and kernels shrink by lr · weight_decay in each opt step (AdamW)",
        unit="factor",
        ge=0.0,
    )
    reset_interval: int | None = option(
        None, "draw all trained parameters anew after each of these; null: never", unit="opt steps", ge=1
    )
    hidden: list[int] = option([256, 256], "units per hidden layer of each network", unit="units", ge=1)
    encoder: str = option(
        "convolutions",
        "network for images; impala: residual blocks, pooled to 6×6 at the end; module:Class: a network of your own for "
        "the whole observation",
        choices=("convolutions", "impala"),
        path=True,
    )
    encoder_kwargs: dict[str, Any] = option({}, "arguments of your own encoder")
    channels: list[int] = option(
        [32, 64, 64],
        "images: output channels of each convolution, or of each stage of impala; []: images are flattened",
        unit="channels",
        ge=1,
    )
    spectral_norm: bool = option(
        False, "impala: divide the weights of the residual blocks by their spectral norm"
    )
    kernels: list[int] = option(
        [], "width and height of each convolution's kernel; []: by the size of the image", unit="pixels", ge=1
    )
    strides: list[int] = option(
        [], "stride of each convolution; []: by the size of the image", unit="pixels", ge=1
    )
    normalize_obs: bool = option(
        False,
        "normalise observations by their running mean and standard deviation, clipped to ±10; the statistics are a "
        "part of the model",
    )
    compile: str = option(
        "auto",
        "compile the opt step; auto: during the run if it is long enough; the compiled form is used while"
        " it is the fastest; false in reproducible runs; with device=cuda, auto and true capture it as a "
        "CUDA graph",
        choices=("auto", "true", "false"),
    )

    precision: str = option(
        "float32",
        "numbers of the matrix products of opt steps; output layers, losses and parameters are always float32",
        choices=("float32", "bfloat16"),
    )

    def validate(self) -> None:
        super().validate()
        if self.encoder == "impala" and not self.channels:
            raise UsageError(
                "agent.encoder=impala has no stage with agent.channels=[]",
                allowed="agent.channels=[32,64,64], or agent.encoder=convolutions",
            )
        n, of_kernels, of_strides = map(len, (self.channels, self.kernels, self.strides))
        if (of_kernels or of_strides) and not n == of_kernels == of_strides:
            raise UsageError(
                f"agent.channels, kernels and strides have {n}, {of_kernels} and {of_strides} values",
                allowed="as many in each; or agent.kernels=[] agent.strides=[], which follow from the size of the image",
            )

    def resolve(self, opt_steps: int | None, may_switch: bool) -> NetworkConfig:
        if self.has_own_encoder and self.normalize_obs:  # of a preset
            return replace(self, normalize_obs=False).resolve(opt_steps, may_switch)
        if self.compile == "auto" and not may_switch:
            return replace(self, compile="false").resolve(opt_steps, may_switch)
        if self.lr_schedule == "constant" or self.lr_opt_steps is not None:
            return self
        if opt_steps is None:
            raise UsageError(
                f"agent.lr_schedule={self.lr_schedule} ends with the budget, whose opt steps are not known",
                allowed="agent.lr_opt_steps=<number>, or a budget of trainer.max_opts",
            )
        return replace(self, lr_opt_steps=opt_steps)

    @property
    def has_own_encoder(self) -> bool:
        """Whether `encoder` is the path of a class of the user's own."""
        return ":" in self.encoder

    def lr_scale(self, number: int) -> float:
        """The factor of every learning rate at opt step `number`, from 1: 1 at the first, lr_final after lr_opt_steps."""
        if self.lr_schedule == "constant" or self.lr_opt_steps is None:
            return 1.0
        left = 1.0 - min((number - 1) / self.lr_opt_steps, 1.0)
        if self.lr_schedule == "cosine":
            left = 0.5 * (1.0 - math.cos(math.pi * left))
        return self.lr_final + (1.0 - self.lr_final) * left

    def of_opt_step(self) -> NetworkConfig:
        """With defaults in place of the values that an opt step does not read."""
        defaults = {
            field.name: field.default for field in fields(self) if field.name in self.not_in_opt_step.split()
        }
        return replace(self, **defaults)  # type: ignore[arg-type]


@dataclass
class ActorCriticConfig(NetworkConfig):
    """An agent with a policy, several critics and an entropy coefficient."""

    critic_lr: float | None = option(
        None, "learning rate of the critics; null: lr", unit="rate", gt=0.0, le=1.0
    )
    critic_hidden: list[int] = option(
        [],
        "units per hidden layer of each critic; []: those of hidden, with agent=crossq on a GPU [1024,1024]",
        unit="units",
        ge=1,
    )
    critics: int = option(2, "number of critics", unit="critics", ge=1)
    privileged_obs: list[str] = option(
        [],
        "parts of a Dict observation that only the critics see, named as in env.obs_keys: the policy acts without them "
        "(asymmetric actor-critic)",
    )
    policy_interval: int = option(1, "one policy update per this many opt steps", unit="opt steps", ge=1)
    entropy_coef: float | None = option(
        None, "entropy coefficient; auto: learned", unit="reward/nat", ge=0.0, auto=True
    )
    entropy_coef_start: float = option(
        1.0, "initial value of a learned entropy coefficient", unit="reward/nat", gt=0.0
    )
    target_interval: int = option(1, "update the target networks this often", unit="opt steps", ge=1)
    target_tau: float = option(
        0.005, "share of the online networks in each target update; 1: a copy", unit="share", gt=0.0, le=1.0
    )
    random_env_steps: int = option(
        1_000, "uniform random actions until this env step", unit="env steps", ge=0
    )

    @property
    def fixed_entropy_coef(self) -> float | None:
        """The entropy coefficient; None: it is learned."""
        return self.entropy_coef

    def trained(self) -> ActorCriticConfig:
        return replace(self, random_env_steps=0)


@dataclass
class MemoryConfig(NetworkConfig):
    """An agent whose networks may have a memory, for environments that do not show everything at once."""

    only_with: ClassVar[dict[str, str]] = NetworkConfig.only_with | {
        "agent.gru!=null": "sequence_length burn_in priority_max_share",
        "buffer.type=prioritized": "priority_max_share",
    }

    gru: int | None = option(
        None,
        "units of a GRU before the last hidden layers, the memory of an agent that does not see everything at once; a "
        "batch then has batch_size sequences; null: no memory",
        unit="units",
        ge=1,
    )
    sequence_length: int = option(
        40, "gru: env steps of a sequence, through which the gradient goes", unit="env steps", ge=1, le=1024
    )
    burn_in: int = option(
        20,
        "gru: env steps before a sequence that only bring the memory up to date; at most sequence_length",
        unit="env steps",
        ge=0,
    )
    priority_max_share: float = option(
        0.9,
        "gru, prioritised replay: a sequence's error is this share of its largest, plus the rest of its mean error",
        unit="share",
        ge=0.0,
        le=1.0,
    )

    @property
    def sequences(self) -> SequenceShape | None:
        """What a sampled sequence consists of; None where single rows are sampled."""
        return None if self.gru is None else SequenceShape(self.sequence_length, self.burn_in)

    def validate(self) -> None:
        super().validate()
        if self.gru is not None and self.burn_in > self.sequence_length:
            raise UsageError(
                f"agent.burn_in={self.burn_in} is more than agent.sequence_length={self.sequence_length}",
                allowed="burn_in up to sequence_length",
            )

    def resolve(self, opt_steps: int | None, may_switch: bool) -> MemoryConfig:
        """`compile=auto` does not compile a GRU, which is unrolled over all env steps: that takes the compiler minutes."""
        return cast(MemoryConfig, super().resolve(opt_steps, may_switch and self.gru is None))
