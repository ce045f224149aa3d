"""The typed schema of a run: every value with its default, unit, range and meaning.

The files of conf/ contain only what differs from it. A section with a `type` may be another dataclass, which
`border_cli.config.registry` looks up by the name of the type.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar


@dataclass(frozen=True)
class OptionInfo:
    """What the checks and the help know about one value.

    Attributes:
        help: Its meaning, in one line.
        unit: Unit of a number: "env steps", "s", "probability" …; empty for anything else.
        gt, ge, lt, le: Bounds, exclusive and inclusive; None where there is none.
        choices: Allowed strings; empty for any.
        open_map: Whether it is a map whose keys are the user's.
        auto: Whether null leaves the value to the program, so that `auto` means null.
        path: Whether an import path `module:name` is allowed beside the choices.
    """

    help: str
    unit: str = ""
    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None
    choices: Sequence[str] = ()
    open_map: bool = False
    auto: bool = False
    path: bool = False


def option(default: Any, help: str, **info: Any) -> Any:
    """A dataclass field with an OptionInfo. Each instance gets its own copy of the default."""
    metadata = {"option": OptionInfo(help, open_map=isinstance(default, dict), **info)}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: copy.copy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def override_default(cls: Any, name: str, default: Any) -> Any:
    """The field of that name of a dataclass, with another default."""
    return field(default=default, metadata=cls.__dataclass_fields__[name].metadata)


@dataclass
class AgentConfig:
    """The algorithm.

    These are the options of every agent; each kind of agent has more.
    only_with maps `key=value` to the names of the options of this section that have an effect only then. The table of a
    subclass is added to that of its parent.
    """

    only_with: ClassVar[dict[str, str]] = {}

    type: str = option("", "name of the agent")
    batch_size: int = option(64, "rows per opt step", unit="rows", ge=1)
    gamma: float = option(0.99, "discount per env step", unit="factor", ge=0.0, le=1.0)
    reward_clip: float | None = option(
        None, "clip each reward to [-x, x] before learning; reported returns stay raw", unit="reward", gt=0.0
    )

    def validate(self) -> None:
        """Raise UsageError for values that do not fit together."""

    def resolve(self, opt_steps: int | None, may_switch: bool) -> AgentConfig:
        """A copy with values for what is left open.

        opt_steps: as in `BufferConfig.resolve` · may_switch: whether opt steps may become compiled ones in the middle of
        the run, which changes the rounding; then `compile=auto` stays open.
        """
        return self

    def on_device(self, device: str) -> AgentConfig:
        """A copy with the sizes for the learner's device, where they are left open."""
        return self

    def trained(self) -> AgentConfig:
        """A copy for an agent with trained weights: from the first env step it explores as little as at the end."""
        return self


@dataclass
class WrapperConfig:
    """One wrapper around each environment."""

    name: str = option("", "a wrapper of gymnasium by its name, any other as `module:name`")
    kwargs: dict[str, Any] = option({}, "arguments of the wrapper")


@dataclass
class EnvConfig:
    """The environment, by gymnasium id (env=gym) or by the import path of a class or factory; or one of a plugin."""

    only_with: ClassVar[dict[str, str]] = {
        "env.preprocess=atari": "noop_max frame_skip screen_size life_loss fire_reset sticky_actions",
        "env.entry_point=null": "sticky_actions",
    }

    type: str = option("gym", "kind of environment: gym, simulator, or one that a plugin registered")
    id: str = option("", "gymnasium id; `module:Id-v0` imports the module first")
    entry_point: str | None = option(
        None, "instead of id: `module:Class`, or `module:function` that makes an environment"
    )
    vector: bool = option(
        False,
        "each actor has one gymnasium VectorEnv of envs_per_actor sub-environments, made by make_vec(id) or by entry_point "
        "with the argument num_envs; evaluations, sync and lockstep have several with one sub-environment",
    )
    kwargs: dict[str, Any] = option({}, "arguments of the environment")
    imports: list[str] = option(
        [], "what registers environments: a `module` to import, or a `module:function` to call"
    )
    max_episode_steps: int | None = option(
        None, "truncate episodes here instead of at the registered limit", unit="env steps", ge=1
    )
    wrappers: list[WrapperConfig] = option(
        [],
        "wrappers around each environment, the first innermost: gymnasium's by name, others as `module:name`; "
        "with arguments as {name: …, kwargs: {…}}",
    )
    obs_keys: list[str] = option(
        [], "parts of a Dict observation to use, `key` or `key.key`; []: all that the agent supports"
    )
    categories: dict[str, list[int]] | None = option(
        None,
        "integer images of categories, to be one-hot coded: {key: [number of categories of each channel]}, with the key "
        "obs if the observation has no parts; {}: none; auto: small images with few values in the first random env steps",
        unit="categories",
        ge=1,
        le=256,
        auto=True,
    )
    action_mask: str = option(
        "auto",
        'whether info["action_mask"] is used; auto: if the first reset returns it; a mask in a Dict observation is always '
        "used",
        choices=("auto", "info", "none"),
    )
    info_keys: list[str] = option(
        [],
        "numbers in the `info` at the end of an episode to record as env/<key> and eval/<key>, such as is_success",
    )
    frame_stack: int = option(
        1,
        "number of newest observations stacked into one; the replay stores each of them once",
        unit="env steps",
        ge=1,
        le=64,
    )
    preprocess: str = option(
        "none",
        "atari: no-op starts, frame skip, greyscale, resizing, for ALE games",
        choices=("none", "atari"),
    )
    noop_max: int = option(
        30, "atari: at most this many no-op frames at the start of an episode", unit="frames", ge=0
    )
    frame_skip: int = option(4, "atari: frames per action", unit="frames", ge=1)
    screen_size: int = option(84, "atari: width and height of the image", unit="pixels", ge=16)
    life_loss: bool = option(False, "atari: a lost life ends bootstrapping, but not the episode")
    fire_reset: bool = option(
        False, "atari: press FIRE at the start and after a lost life, in games with that action"
    )
    sticky_actions: float = option(
        0.0, "atari: probability of repeating the previous action", unit="probability", ge=0.0, lt=1.0
    )

    @property
    def name(self) -> str:
        """The id, the import path, or the name that a plugin registered."""
        return self.id or self.entry_point or self.type


@dataclass
class BufferConfig:
    """The replay buffer."""

    only_with: ClassVar[dict[str, str]] = {"buffer.her=future": "her_ratio"}

    type: str = option("uniform", "name of the buffer")
    capacity: int = option(100_000, "rows kept; the oldest are overwritten", unit="rows", ge=1)
    n_step: int = option(1, "env steps per transition, for n-step returns", unit="env steps", ge=1, le=1000)
    device: str = option(
        "auto",
        "where the rows are: cpu, the main memory; cuda, the GPU that device names; auto: on the GPU if "
        "they take at most half of its free memory",
        choices=("auto", "cpu", "cuda"),
    )

    her: str = option(
        "none",
        "goals in hindsight; future: rows of a batch get a goal that their episode achieved later, and its reward",
        choices=("none", "future"),
    )
    her_ratio: float = option(
        0.8, "probability that a sampled row gets such a goal", unit="probability", gt=0.0, le=1.0
    )

    def resolve(self, opt_steps: int | None) -> BufferConfig:
        """A copy with values for what is left open. opt_steps: those of the whole run, None where unknown."""
        return self


@dataclass
class ActorManagerConfig:
    """Where and how the actors run."""

    only_with: ClassVar[dict[str, str]] = {
        "trainer.lockstep=false": "n_buffer min_actors restarts restart_window_s restart_delay_s",
        "actor_manager.restarts!=0": "restart_window_s restart_delay_s",
        "n_actors!=1": "serial_init",
    }

    type: str = option("process", "where actors run: process, or `module:name` of a manager")
    envs_per_actor: int | None = option(
        1,
        "environments stepped together by one actor; auto: as many as keep the learner busy",
        unit="environments",
        ge=1,
        auto=True,
    )
    n_buffer: int = option(
        64, "an actor hands over its rows after this many env steps, or 50 ms", unit="env steps", ge=1
    )
    min_actors: int = option(
        1,
        "end the run when fewer actors are left; an actor that waits for its restart counts",
        unit="processes",
        ge=1,
    )
    restarts: int = option(
        5,
        "restarts of an actor within restart_window_s, or of the evaluator's process between two evaluations; then it "
        "is given up",
        unit="restarts",
        ge=0,
    )
    restart_window_s: float = option(
        600.0, "time over which the restarts of an actor are counted", unit="s", gt=0.0
    )
    restart_delay_s: float = option(
        1.0, "wait before the first restart, doubled for each further one, at most 30 s", unit="s", gt=0.0
    )
    heartbeat_timeout_s: float = option(
        60.0,
        "kill an actor, or an evaluator's process, whose heartbeat stops for this long, such as in one long env step",
        unit="s",
        ge=1.0,
    )
    start_timeout_s: float = option(
        120.0,
        "kill an actor that is not ready after this time; if above 120, also the limit for making the environment before "
        "the run",
        unit="s",
        gt=0.0,
    )
    stop_timeout_s: float = option(
        5.0, "kill an actor that has not exited this long after it was asked to stop", unit="s", gt=0.0
    )
    serial_init: bool = option(False, "start actors one at a time, each when the previous one is ready")


@dataclass
class RayConfig(ActorManagerConfig):
    """Actors on a Ray cluster."""

    type: str = override_default(ActorManagerConfig, "type", "ray")
    n_buffer: int = override_default(ActorManagerConfig, "n_buffer", 256)
    address: str = option(
        "local",
        "the cluster: local, a cluster only for this run; auto, the cluster on this machine or at "
        "RAY_ADDRESS; ray://<host>:10001",
    )
    cpus_per_actor: float = option(
        1.0, "CPUs that Ray reserves for each actor; fractions share a CPU", unit="CPUs", gt=0.0
    )
    resources: dict[str, float] = option(
        {}, "other resources that Ray reserves for each actor, by their name", unit="amounts", ge=0.0
    )


@dataclass
class TrainerConfig:
    """Ratio, intervals, budgets. async: actor processes; sync: the learner's own thread; device: a simulator beside it."""

    only_with: ClassVar[dict[str, str]] = {
        "trainer.type=async": "sync_interval",
        "trainer.lockstep=false": "sync_interval ratio_tolerance",
        "trainer.lockstep=true": "lockstep_steps",
        "trainer.opt_interval!=null": "ratio_tolerance",
    }

    type: str = option(
        "async",
        "who acts: actor processes; the learner's own thread; or device: that thread, in a simulator of torch tensors",
        choices=("async", "sync", "device"),
    )
    max_opts: int | None = option(None, "budget", unit="opt steps", ge=1)
    max_env_steps: int | None = option(50_000, "budget, never exceeded", unit="env steps", ge=1)
    max_time: float | None = option(None, "budget; start-up does not count", unit="s", gt=0.0)
    stop_return: float | None = option(
        None,
        "end when a model reaches this mean return with 95% confidence, on regular and fresh episodes",
        unit="reward",
    )
    opt_interval: float | None = option(
        1.0,
        "env steps per opt step, enforced; fractions allowed; null: not enforced",
        unit="env steps",
        gt=0.0,
    )
    warmup_period: int = option(
        1_000,
        "env steps before the first opt step; the ratio counts from the end of this period",
        unit="env steps",
        ge=0,
    )
    ratio_tolerance: int | None = option(
        None,
        "how far acting may run ahead of the ratio; null: max(128, 2·n_actors·envs_per_actor)",
        unit="env steps",
        ge=1,
    )
    eval_interval: int | None = option(1_000, "evaluate this often; null: never", unit="opt steps", ge=1)
    save_interval: int | None = option(
        5_000, "save a checkpoint this often; null: only at the end", unit="opt steps", ge=1
    )
    record_interval: int | None = option(500, "write metrics this often; null: never", unit="opt steps", ge=1)
    sync_interval: int | None = option(
        10, "send a new model to the actors this often; null: only the first", unit="opt steps", ge=1
    )
    lockstep: bool = option(
        False, "actors and learner advance in rounds: reproducible with any number of actors"
    )
    lockstep_steps: int | None = option(
        None,
        "env steps of each environment per round; null: about 64 in all environments together",
        unit="env steps",
        ge=1,
    )
    max_nonfinite: int = option(
        10,
        "end the run after this many opt steps in a row with a loss or gradient that is not finite",
        unit="opt steps",
        ge=1,
    )


@dataclass
class EvaluatorConfig:
    """How models are evaluated during training."""

    only_with: ClassVar[dict[str, str]] = {"env.type!=simulator": "n_envs video_interval"}

    type: str = option(
        "auto",
        "where evaluations run: inline, in the learner's thread; process; shared, in the simulator of the training; or "
        "`module:name` of an evaluator; auto: process in a free-running run with more than one CPU, else inline",
    )
    episodes: int = option(20, "episodes per evaluation", unit="episodes", ge=1)
    n_envs: int = option(10, "environments stepped together", unit="environments", ge=1)
    max_episode_steps: int | None = option(
        None,
        "an evaluation episode is cut here; null: ten times the longest training episode so far, but at "
        "least 1,000 and at most 30,000; 30,000 in a reproducible run",
        unit="env steps",
        ge=1,
    )
    confirm: bool = option(
        True,
        "when the run ends, compare the models with the highest scores on fresh episodes; the best "
        "model's score comes from other episodes",
    )
    video_interval: int | None = option(
        None, "film one episode this often, to videos/; null: never", unit="opt steps", ge=1
    )


@dataclass
class RecorderConfig:
    """Where metrics are written. The files are in the run directory."""

    type: str = option("default", "default, or `module:name` of a recorder that gets every record too")
    jsonl: bool = option(True, "metrics.jsonl")
    tensorboard: bool = option(True, "tensorboard/")
    csv: bool = option(False, "metrics.csv, a line for each value")
    wandb: str = option(
        "none", "Weights & Biases; offline: files for `wandb sync`", choices=("none", "online", "offline")
    )
    mlflow: str | None = option(None, "MLflow: URI of its tracking store, such as sqlite:///mlflow.db")
    project: str = option("border-cli", "project of Weights & Biases, experiment of MLflow")
    finish_s: float = option(
        60.0,
        "wait this long at the end of a run for trackers and your own recorders; at most 15 s if the run "
        "was stopped",
        unit="s",
        ge=0.0,
    )
    console: str = option(
        "auto",
        "screen: live view; plain: a line per record; none: nothing; auto: screen in a terminal, else plain",
        choices=("auto", "screen", "plain", "none"),
    )


@dataclass
class CheckpointConfig:
    """Which checkpoints are kept."""

    keep: int = option(
        3,
        "number of newest checkpoints to keep; in any case at least two that verify (replays: by file size only)",
        unit="checkpoints",
        ge=1,
    )
    replay: str = option(
        "auto",
        "whether checkpoints contain the replay; auto: if checkpoints with the replay (about twice the replay's size) "
        "and best/ fit on the disk",
        choices=("auto", "full", "none"),
    )


@dataclass
class PresetConfig:
    """Which preset the values came from. Written by the preset file, not by the user."""

    name: str = option("none", "file under conf/preset/")
    env_id: str = option("", "id, import path or pattern of the environments that its values were tuned for")
    expect: str = option("", "what a run with it should reach")
    expect_return: float | None = option(None, "mean return that a run with it should reach", unit="reward")
    expect_env_steps: int | None = option(
        None, "env steps after which expect_return should be reached", unit="env steps", ge=1
    )
    source: str = option("", "where its values come from")


@dataclass
class TrainConfig:
    """One run."""

    only_with: ClassVar[dict[str, str]] = {"init_from!=null": "init_from_parts"}

    agent: AgentConfig = field(default_factory=AgentConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    buffer: BufferConfig = field(default_factory=BufferConfig)
    actor_manager: ActorManagerConfig = field(default_factory=ActorManagerConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    evaluator: EvaluatorConfig = field(default_factory=EvaluatorConfig)
    recorder: RecorderConfig = field(default_factory=RecorderConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    preset: PresetConfig = field(default_factory=PresetConfig)
    name: str = option("", "last part of the run's folder, in place of <agent>_<env>")
    seed: int = option(0, "seed of all random streams", unit="seed", ge=0, le=2**63 - 1)
    device: str = option("cpu", "where the learner computes: cpu, cuda, cuda:1, mps")
    n_actors: int | None = option(
        1,
        "number of actors, each in its own process; auto: as many as keep the learner busy",
        unit="processes",
        ge=1,
        le=1024,
        auto=True,
    )
    threads: int | None = option(
        None,
        "torch threads of the learner; auto: the fastest number, measured repeatedly during the run; 1 in"
        " reproducible runs",
        unit="threads",
        ge=1,
        auto=True,
    )
    init_from: str | None = option(None, "run or checkpoint whose weights the new run starts from")
    init_from_parts: str = option(
        "all", "what to take from init_from: all networks, or the policy alone", choices=("all", "policy")
    )
    step_processor: str | None = option(
        None, "`module:name` of a function that makes each actor's step processor; null: border-cli's own"
    )
    plugins: list[str] = option([], "Python modules to import first")
    plan: bool = option(
        False, "print what the run would do and need, and how long it would take; train nothing"
    )
    debug: bool = option(False, "show tracebacks, if it is typed on the command line")


GROUPS = tuple(f.name for f in fields(TrainConfig) if "option" not in f.metadata)
"""The sections of a configuration: the config groups of Hydra."""
