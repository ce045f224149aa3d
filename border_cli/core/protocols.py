"""The roles. Everything in the training loop speaks to these; only `border_cli.build` knows the classes behind them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from border_cli.core.items import Chunk, Items
from border_cli.core.record import Record
from border_cli.core.spaces import Array, EnvSpec, Obs
from border_cli.core.state import State, count, listed, number, require


@dataclass
class Estimates:
    """What a policy thought of k observations when it acted: (k,) value of the best action, and of the one it took."""

    best: Array
    taken: Array


@dataclass
class Step:
    """One env step of k environments of an actor.

    env_ix: (k,) which environments · obs, next_obs: (k, ...) before and after; next_obs is the true one, the final
    observation where an episode ended, never the first of the next · action: (k, ...) as stored ·
    reward: (k,) float64, raw · terminated, truncated: (k,) bool, gymnasium's meaning · dropped: (k,) bool, or None if
    none are: env steps that gave numbers nobody can use. They count for nothing, and their episode ended before them ·
    boundary: (k,) bool, or None if none are: the episode goes on, but to the learner nothing that comes after counts, as
    if it had been terminated · estimates: of `obs`, where the step processor wants them.
    """

    env_ix: Sequence[int]
    obs: Obs
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    next_obs: Obs
    dropped: Array | None = None
    boundary: Array | None = None
    estimates: Estimates | None = None

    @property
    def over(self) -> Array:
        """(k,) bool: the environment has to be reset before its next env step."""
        over: Array = self.terminated | self.truncated
        return over if self.dropped is None else over | self.dropped


class StepError(Exception):
    """An environment raised in `Env.step`; what it raised is the cause.

    env_ix: which one. taken: the env steps of others in the same call, None if there were none. not_taken: those that
    were not stepped.
    """

    def __init__(self, env_ix: int, taken: Step | None, not_taken: Sequence[int]) -> None:
        super().__init__(f"environment {env_ix} raised")
        self.env_ix = env_ix
        self.taken = taken
        self.not_taken = not_taken


class Env(Protocol):
    """A group of environments stepped together. It never resets by itself."""

    n_envs: int
    spec: EnvSpec

    def reset(self, env_ix: int, seed: int | None = None) -> None:
        """Start a new episode in one environment; its first observation is then in `observe`."""

    def observe(self, env_ix: Sequence[int]) -> Obs:
        """Current observations (k, ...) of these environments, as copies."""

    def step(self, env_ix: Sequence[int], action: Array) -> Step:
        """One env step in each of these environments, none of which may have ended. Raises StepError."""

    def remake(self, env_ix: int) -> None:
        """Close one environment, whatever state it is in, and make it anew; it has to be reset then."""

    def close(self) -> None:
        """Release what the environments hold."""


class StepProcessor(Protocol):
    """Turns env steps into items. needs_estimates: steps have to come with what the policy thought of them."""

    @property
    def needs_estimates(self) -> bool:
        """As above."""

    def process(self, step: Step) -> Items:
        """Rows that this env step completes (possibly none). Where it was dropped, as `cut`."""

    def cut(self, env_ix: int) -> Items:
        """End a stream that broke at its last known observation: rows so far, as truncated."""

    def state(self) -> State:
        """What the streams carry."""

    def load_state(self, state: State) -> None:
        """Take over a saved state. Raises ValueError for one that does not fit."""


@dataclass(frozen=True)
class ModelInfo:
    """A snapshot of what acting needs: `version` is the opt step it was taken at."""

    version: int
    arrays: dict[str, Array]


class Policy(Protocol):
    """Acts."""

    def sample(self, obs: Obs, env_steps: int = 0, env_ix: Sequence[int] = ()) -> Array:
        """Actions (B, ...) as stored.

        env_steps: the global count that exploration schedules follow · env_ix: whose observations these are, for
        exploration that lasts longer than an env step; where it is empty, they are of no environment in particular.
        """

    def estimates(self) -> Estimates | None:
        """Of the observations and actions of the last `sample` in train mode; None where it knows of no values."""

    def begin_episode(self, env_ix: int) -> None:
        """An episode begins in this environment: what of exploration lasts for one begins anew."""

    def train(self) -> None:
        """Explore from now on."""

    def eval(self) -> None:
        """Exploit from now on."""

    def generator_state(self) -> dict[str, Any]:
        """State of the generator that exploration draws from, as JSON values."""

    def load_generator_state(self, state: dict[str, Any]) -> None:
        """Draw on from a saved state. Raises ValueError for one that does not fit."""


class SyncModel(Protocol):
    """Exports and imports what acting needs."""

    def model_info(self) -> ModelInfo:
        """The present snapshot; its arrays are views that the next opt step changes."""

    def sync_model(self, info: ModelInfo) -> None:
        """Act with this snapshot from now on (the arrays are copied)."""


class ActingPolicy(Policy, SyncModel, Protocol):
    """What runs in an actor or an evaluation: a policy whose model can be replaced."""


class Agent(ActingPolicy, Protocol):
    """Learns and acts.

    skipped_in_a_row: opt steps until now that changed nothing because their loss or gradient was not finite. It is
    known after each opt step on a CPU; elsewhere, where a look at it costs time, at those with a record.
    """

    opt_steps: int
    skipped_in_a_row: int

    def opt(self, buffer: ReplayBuffer, record: bool = False) -> Record | None:
        """One opt step on one batch. With `record`, the means since the last record under `agent/<name>`.

        Where loss or gradient is not finite, weights and moments stay as they are, and the opt step counts all the
        same; the means leave it out, and `agent/skipped_steps` says how many there were.
        """

    def skipped_batch(self) -> dict[str, Array] | None:
        """Copies of the columns of the last batch, if its opt step is known to have been skipped."""

    def take_record(self) -> Record | None:
        """The means since the last record, as `opt` would have given them; None if there was no opt step since."""

    def check_finite(self) -> bool:
        """Whether every weight and moment is finite."""

    def state(self) -> State:
        """Everything needed to go on but the generator (views; write them out before the next opt step)."""

    def load_state(self, state: State) -> None:
        """Take over a saved state. Raises ValueError on a name or shape that does not fit."""


@dataclass
class Batch:
    """What an agent learns from, all of length B.

    obs, next_obs: (B, ...) per leaf · action: (B, ...) · reward, discount: (B,) float32, n-step sum and γ^m ·
    terminated: (B,) bool · ix: (B,) int64, for `update_priority` · weight: (B,) float32 importance weights or None.
    """

    obs: Obs
    action: Array
    reward: Array
    discount: Array
    terminated: Array
    next_obs: Obs
    ix: Array
    weight: Array | None = None


class ReplayBuffer(Protocol):
    """Stores items, samples batches."""

    capacity: int

    def push(self, items: Items, actor: int = 0) -> None:
        """Append rows of one actor, each environment's in stream order."""

    def __len__(self) -> int:
        """Rows that can be sampled."""

    def batch(self, size: int, into: Batch | None = None) -> Batch:
        """A batch of `size` rows. Raises ValueError while fewer than `size` rows can be sampled.

        into: an earlier batch of this buffer that is not needed any more. If it has this size, it is the one returned,
        and its arrays are filled anew; otherwise it is left alone and the batch returned is a new one.
        """

    def update_priority(self, ix: Array, td_error: Array) -> None:
        """New priorities for sampled rows; a uniform buffer ignores them.

        An agent leaves out rows whose error is not finite, such as those of a skipped opt step: they keep the
        priorities they had. A buffer with priorities raises ValueError for an error that is not finite: one NaN
        among their sums would decide every draw from then on.
        """

    def break_streams(self, actor: int | None = None) -> None:
        """Forget what the newest rows of this actor, or of all, were waiting for: their streams start anew."""

    def generator_state(self) -> dict[str, Any]:
        """State of the sampling generator, as JSON values."""

    def load_generator_state(self, state: dict[str, Any]) -> None:
        """Sample on from a saved state, after `load_state` if rows come back too. Raises ValueError."""

    def state(self) -> State:
        """Rows, in blocks that are written once when they are sealed, and what streams wait for."""

    def load_state(self, state: State) -> None:
        """Take over a saved state, in place of what is there. Raises ValueError for one that does not fit."""


class ExperienceSource(Protocol):
    """Where chunks come from: the learner's own thread, processes, or another machine."""

    def start(self, model: ModelInfo, state: State | None = None) -> None:
        """Bring every actor up with this model, where a run is resumed from their saved state.

        Returns when all of them hold the model, but for those that are lost. Raises ValueError for a state that does not
        fit.
        """

    def state(self, whole: bool = True) -> State:
        """What has to be kept of the actors: counts; where runs are reproducible, all of them, between two env steps.

        whole: false once something raised, and nobody knows in the middle of what; then from such a state new episodes
        begin, with seeds that were not used before.
        """

    def collect(self) -> list[Chunk]:
        """What has arrived; after `stop`, once, what was left. Never blocks for long.

        Raises ActorLostError when too few actors are left.
        """

    def present(self) -> Sequence[bool]:
        """Which actors can act. One that left has handed over by `collect` all that will ever come of it.

        An actor that is back goes on from the env steps that had arrived of it, in a new incarnation.
        """

    def grant(self, credits: Sequence[int]) -> None:
        """Env steps each actor may have taken in all, one number per actor; falling only for those not present."""

    def announce(self, env_steps: int) -> None:
        """Publish the global count that exploration follows."""

    def publish(self, model: ModelInfo) -> None:
        """Make this model the newest. Never waits for a reader."""

    def stats(self) -> list[ActorStat]:
        """One entry per actor."""

    def stop(self) -> list[ActorStat]:
        """End every actor and wait until it is gone."""


@dataclass
class ActorStat:
    """What one actor did in all its incarnations.

    seconds: since its first env step · blocked_seconds: of them, waiting for credit or room · exact: false once an
    environment of it could not be resumed as it was · restarts: of its process and, in place, of its environments ·
    dropped: env steps of its last incarnation that gave numbers not finite and were left out, known once it has left ·
    env_steps_before: of env_steps, those of earlier launches of the run; seconds are of this one.
    """

    actor: int
    incarnation: int = 0
    env_steps: int = 0
    episodes: int = 0
    seconds: float = 0.0
    blocked_seconds: float = 0.0
    state: str = "starting"
    exact: bool = True
    restarts: int = 0
    dropped: int = 0
    env_steps_before: int = 0

    @property
    def alive(self) -> bool:
        """Whether it neither ended unasked nor stayed when it was asked to leave."""
        return self.state not in ("failed", "killed", "lost")

    @property
    def samples_per_sec(self) -> float:
        """Env steps per second of its life in this launch."""
        return (self.env_steps - self.env_steps_before) / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Evaluation:
    """Result of judging one model: returns and lengths per episode, in the order of their seeds."""

    opt_steps: int
    returns: tuple[float, ...]
    lengths: tuple[int, ...]

    @property
    def mean(self) -> float:
        """Mean return: the score."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """Standard deviation of the returns over episodes (population)."""
        first = self.returns[0]  # without it, rounding makes a deviation of equal returns
        return float(np.std([value - first for value in self.returns]))

    def to_json(self) -> dict[str, Any]:
        """As JSON values; a return that is no finite number is null."""
        returns = [value if math.isfinite(value) else None for value in self.returns]
        return {"opt_steps": self.opt_steps, "returns": returns, "lengths": list(self.lengths)}

    @classmethod
    def from_json(cls, data: Any) -> Evaluation:
        """The inverse, with NaN for null. Raises ValueError for what is no evaluation."""
        require(data, ("opt_steps", "returns", "lengths"), "an evaluation")
        returns = tuple(number(value, "a return") for value in listed(data["returns"], "returns"))
        lengths = tuple(count(value, "a length") for value in listed(data["lengths"], "lengths"))
        if not returns or len(returns) != len(lengths):
            raise ValueError(f"an evaluation has {len(returns)} returns and {len(lengths)} lengths")
        return cls(count(data["opt_steps"], "the opt step of an evaluation"), returns, lengths)


class Evaluator(Protocol):
    """Judges models, one at a time.

    concurrent: whether the learner goes on meanwhile. If not, `begin` returns when the episodes are over.
    """

    concurrent: bool

    def begin(self, model: ModelInfo, seeds: Sequence[int]) -> None:
        """Judge this model in eval mode, on one episode per seed of the environment.

        The one begun before must have been judged. The arrays are not looked at any more when this returns.
        """

    def poll(self) -> Evaluation | None:
        """What the model begun last has brought, once; None before that, and when the run was asked to stop meanwhile.

        Never waits; to be called often, also while nothing is judged: it looks after what works for the evaluator.
        Raises ActorLostError when judging has failed for good.
        """

    def close(self) -> None:
        """Release the environments, whatever they are doing."""


class Recorder(Protocol):
    """A sink of records."""

    def write(self, record: Record) -> None:
        """Take one record; its opt_steps never go back."""

    def positions(self) -> dict[str, int]:
        """Records written so far, those of earlier launches of the run included, by name of a sink that lasts."""

    def flush(self) -> None:
        """Make everything written durable enough to be read by another process."""

    def close(self) -> None:
        """Flush and release."""


StopCheck = Callable[[], bool]
"""Polled by everything that takes time: true once the run has been asked to stop."""
