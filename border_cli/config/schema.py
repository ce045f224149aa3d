"""The typed schema of a run: every value with its default, unit, range and meaning. conf/ repeats them for people.

`agent` and `buffer` differ by their `type`: their dataclasses stand beside the class they configure
(`border_cli.agents.dqn.config`) and are looked up in `border_cli.config.registry`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from border_cli.config.options import option


@dataclass
class AgentConfig:
    """What every agent has; the rest is its own."""

    type: str = option("", "which agent this is")
    batch_size: int = option(64, "rows per opt step", unit="rows", ge=1)
    gamma: float = option(0.99, "discount per env step", ge=0.0, le=1.0)
    reward_clip: float | None = option(
        None, "clip each reward to [-x, x] before learning; reported returns stay raw", unit="reward", gt=0.0
    )

    def mistake(self) -> str | None:
        """What is wrong with values that are allowed each by itself, as the lines of a message; None if nothing is."""
        return None

    def knows_errors(self) -> bool:
        """Whether its policy, as it acts, knows the errors that opt steps give priorities by, in the same unit."""
        return False

    def idle(self) -> Iterator[tuple[str, str]]:
        """Names of values that change nothing with the others as they are, each with what would make it matter."""
        return iter(())


@dataclass
class EnvConfig:
    """One environment, by gymnasium id or by the import path of a class or factory."""

    id: str = option("", "gymnasium id; `module:Id-v0` imports the module first")
    entry_point: str | None = option(None, "instead of id: `module:Class` or `module:function` returning one")
    kwargs: dict[str, Any] = option({}, "arguments of the environment", open_map=True)
    imports: list[str] = option([], "modules to import first, because they register environments")
    max_episode_steps: int | None = option(
        None, "truncate episodes here instead of at the registered limit", unit="env steps", ge=1
    )
    nonfinite: str = option(
        "error",
        "a NaN or infinite reward or observation: an error of the environment, or its episode ends before it",
        choices=("error", "drop"),
    )
    out_of_bounds: str = option(
        "error",
        "an observation outside its space in the first 100 env steps: an error of the environment, or only a warning",
        choices=("error", "warn"),
    )
    action_mask: str = option(
        "auto",
        'whether info["action_mask"] is used; auto: if the first reset has one; one in a Dict observation always is',
        choices=("auto", "info", "none"),
    )
    frame_stack: int = option(
        1,
        "an observation is the last so many, stacked; the replay stores each once",
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
        30, "atari: up to so many no-op frames at the start of an episode", unit="frames", ge=0
    )
    frame_skip: int = option(4, "atari: frames per action", unit="frames", ge=1)
    screen_size: int = option(84, "atari: width and height of the image", unit="pixels", ge=16)
    life_loss: bool = option(False, "atari: a lost life ends bootstrapping; the episode and its return go on")
    fire_reset: bool = option(
        False, "atari: press FIRE at the start and after a lost life, where the game has it"
    )
    sticky_actions: float = option(0.0, "atari: probability of repeating the previous action", ge=0.0, lt=1.0)
    native: str = option(
        "auto",
        "atari: step an actor's games at once, in ALE's threads; auto: with several games per actor, unless reproducible",
        choices=("auto", "always", "never"),
    )

    def idle(self) -> Iterator[tuple[str, str]]:
        """As of `AgentConfig`."""
        if self.preprocess != "atari":
            for name in (
                "noop_max",
                "frame_skip",
                "screen_size",
                "life_loss",
                "fire_reset",
                "sticky_actions",
                "native",
            ):
                yield name, "preprocess=atari"
        elif self.entry_point is not None:
            yield "sticky_actions", "id=<game of ALE>"
            yield "native", "id=<game of ALE>"

    @property
    def name(self) -> str:
        """The id, or the import path where there is none."""
        return self.id or str(self.entry_point)


@dataclass
class BufferConfig:
    """What every replay buffer has."""

    type: str = option("uniform", "which buffer this is")
    capacity: int = option(100_000, "rows kept; the oldest are overwritten", unit="rows", ge=1)
    n_step: int = option(1, "env steps per transition, for n-step returns", unit="env steps", ge=1, le=1000)

    def needs_estimates(self) -> bool:
        """Whether actors say how surprising each row is."""
        return False


@dataclass
class ActorManagerConfig:
    """How the actors are run."""

    type: str = option("process", "where actors run", choices=("process",))
    envs_per_actor: int = option(1, "environments stepped together by one actor", ge=1)
    n_buffer: int = option(64, "an actor hands rows over at least this often", unit="env steps", ge=1)
    min_actors: int = option(1, "end the run when fewer are left or expected back", unit="processes", ge=1)
    restarts: int = option(5, "restarts of an actor within restart_window_s; then it is given up", ge=0)
    restart_window_s: float = option(600.0, "restarts longer ago do not count", unit="s", gt=0.0)
    restart_delay_s: float = option(
        1.0,
        "wait before the first restart, doubled for each further one, at most 30 s",
        unit="s",
        gt=0.0,
    )
    heartbeat_timeout_s: float = option(
        60.0,
        "kill an actor that gives no sign of life for so long, such as in one long env step",
        unit="s",
        gt=0.0,
    )
    on_env_error: str = option(
        "restart",
        "when an environment raises: make a new one, as often as restarts allows, or end the run",
        choices=("restart", "stop"),
    )
    ring_rows: int = option(
        8192, "capacity of the ring between one actor and the learner", unit="rows", ge=16
    )
    start_timeout_s: float = option(120.0, "kill an actor that is not ready by then", unit="s", gt=0.0)
    stop_timeout_s: float = option(5.0, "kill an actor that has not left by then", unit="s", gt=0.0)
    serial_init: bool = option(False, "start actors one at a time, each after the one before is ready")


@dataclass
class TrainerConfig:
    """Ratio, intervals and budgets, the same in both trainers."""

    type: str = option(
        "async", "who acts: actor processes, or the learner's own thread", choices=("async", "sync")
    )
    max_opts: int | None = option(None, "budget", unit="opt steps", ge=1)
    max_env_steps: int | None = option(50_000, "budget, never exceeded", unit="env steps", ge=1)
    max_time: float | None = option(None, "budget", unit="s", gt=0.0)
    stop_return: float | None = option(
        None,
        "end when an evaluation's mean return reaches this; with evaluator.confirm, the confirmed mean",
        unit="reward",
    )
    opt_interval: float | None = option(
        1.0,
        "env steps per opt step, enforced; fractions allowed; null: free-running",
        unit="env steps",
        gt=0.0,
    )
    warmup_period: int = option(1_000, "env steps before the first opt step", unit="env steps", ge=0)
    ratio_tolerance: int | None = option(
        None,
        "how far acting may run ahead of the ratio; null: max(64, 2·n_actors·envs_per_actor)",
        unit="env steps",
        ge=1,
    )
    eval_interval: int | None = option(1_000, "evaluate this often; null: never", unit="opt steps", ge=1)
    save_interval: int | None = option(
        5_000, "save a checkpoint this often; null: only at the end", unit="opt steps", ge=1
    )
    record_interval: int | None = option(500, "write metrics this often; null: never", unit="opt steps", ge=1)
    sync_interval: int = option(10, "send a new model to the actors this often", unit="opt steps", ge=1)
    lockstep: bool = option(
        False, "actors and learner take turns in rounds: reproducible with any number of actors"
    )
    lockstep_steps: int | None = option(
        None,
        "of each environment per round; null: about 64 in all environments together",
        unit="env steps",
        ge=1,
    )
    max_nonfinite: int = option(
        10,
        "end the run after so many in a row with a loss or gradient that is not finite",
        unit="opt steps",
        ge=1,
    )


@dataclass
class EvaluatorConfig:
    """How a model is judged while it trains."""

    type: str = option(
        "inline",
        "where evaluations run: in the learner's thread, or in a process of their own",
        choices=("inline", "process"),
    )
    episodes: int = option(20, "episodes per evaluation", unit="episodes", ge=1)
    n_envs: int = option(10, "environments stepped together", ge=1)
    max_episode_steps: int = option(30_000, "an evaluation episode is cut here", unit="env steps", ge=1)
    confirm: bool = option(True, "a new best model must also beat the best on fresh episodes")
    confirm_episodes: int | None = option(
        None, "number of fresh episodes; null: as many as episodes", unit="episodes", ge=1
    )
    heartbeat_timeout_s: float = option(
        60.0, "process: restart it after so long without a sign of life", unit="s", gt=0.0
    )
    restarts: int = option(
        5, "process: restarts in a row, without an evaluation in between, before the run ends", ge=0
    )


@dataclass
class RecorderConfig:
    """Where metrics go. The files stand in the run directory."""

    jsonl: bool = option(True, "metrics.jsonl")
    tensorboard: bool = option(True, "tensorboard/")
    console: str = option(
        "auto",
        "screen: live view; plain: a line per record; none: nothing; auto: screen in a terminal, else plain",
        choices=("auto", "screen", "plain", "none"),
    )


@dataclass
class CheckpointConfig:
    """What is kept under checkpoints/."""

    keep: int = option(3, "newest checkpoints kept, and never fewer than two that verify", ge=1)
    replay: str = option(
        "auto",
        "whether checkpoints contain the replay; auto: where twice its size is free on the disk",
        choices=("auto", "full", "none"),
    )


@dataclass
class PresetConfig:
    """Which preset the values came from. Written by the preset file, not by the user."""

    name: str = option("none", "file under conf/preset/")
    env_id: str = option("", "the environment its values were tuned for: its id, or its import path")
    expect: str = option("", "what a run with it should reach")
    expect_return: float | None = option(None, "the mean return of it", unit="reward")
    expect_env_steps: int | None = option(None, "after so many of them", unit="env steps", ge=1)
    source: str = option("", "where its values come from")


@dataclass
class TrainConfig:
    """One run."""

    agent: AgentConfig = field(default_factory=AgentConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    buffer: BufferConfig = field(default_factory=BufferConfig)
    actor_manager: ActorManagerConfig = field(default_factory=ActorManagerConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    evaluator: EvaluatorConfig = field(default_factory=EvaluatorConfig)
    recorder: RecorderConfig = field(default_factory=RecorderConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    preset: PresetConfig = field(default_factory=PresetConfig)
    seed: int = option(0, "seed of all random streams", ge=0, le=2**63 - 1)
    device: str = option("cpu", "where the learner computes: cpu, cuda, cuda:1, mps")
    n_actors: int = option(1, "sampling processes", unit="processes", ge=1, le=1024)
    threads: int = option(1, "torch threads of the learner", unit="threads", ge=1)
    init_from: str | None = option(None, "run or checkpoint whose weights the new run starts from")
    plugins: list[str] = option([], "Python modules to import first")
    plan: bool = option(
        False, "print what the run would do and take, with an estimate of its time; train nothing"
    )
    debug: bool = option(False, "show tracebacks")


GROUPS = (
    "agent",
    "env",
    "buffer",
    "actor_manager",
    "trainer",
    "evaluator",
    "recorder",
    "checkpoint",
    "preset",
)
