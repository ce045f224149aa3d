"""The roles of a run. The training loop uses only these protocols; `border_cli.run.build` knows the classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from border_cli.core.metrics import Record
from border_cli.core.spaces import Array, EnvSpec, Obs
from border_cli.core.state import State
from border_cli.core.types import ActorStat, Batch, Chunk, Evaluation, Items, ModelInfo, Step


class Env(Protocol):
    """A group of environments stepped together. It never resets by itself.

    What an environment raises becomes ActorLostError.

    together: the environments that must be stepped next, all of them in one call; None where each can be stepped alone.
    """

    n_envs: int
    spec: EnvSpec
    together: list[int] | None

    def reset(self, env_ix: int, seed: int | None = None) -> None:
        """Start a new episode in one environment; its first observation is then in `observe`."""

    def observe(self, env_ix: Sequence[int]) -> Obs:
        """Current observations (k, ...) of these environments, in arrays that do not change any more."""

    def step(self, env_ix: Sequence[int], action: Array) -> Step:
        """One env step in each of these environments, none of which may have ended."""

    def close(self) -> None:
        """Release what the environments hold."""


class ActingPolicy(Protocol):
    """Chooses actions, in an actor or an evaluation, with a model that can be replaced.

    It may keep a state per environment during an episode, such as a hidden state.
    """

    def sample(self, obs: Obs, env_steps: int = 0, env_ix: Sequence[int] = ()) -> Array:
        """Actions (B, ...) as stored.

        Args:
            env_steps: the global count that exploration schedules follow.
            env_ix: (B,) the environments of these observations, for a policy that keeps a state per environment.
        """

    def extras(self, step: Step) -> dict[str, Array]:
        """Arrays (B, ...) that the policy adds to the rows of an env step, the one of its last `sample`, by name.

        Those that the agent declares as extra columns come back in `Batch.extra`.
        """

    def begin_episode(self, env_ix: int) -> None:
        """An episode starts in this environment: reset the policy's state for it."""

    def train(self) -> None:
        """Explore."""

    def eval(self) -> None:
        """Act without exploration."""

    def generator_state(self) -> dict[str, Any]:
        """State of the exploration generator and of the environments' exploration noise, as JSON values."""

    def load_generator_state(self, state: dict[str, Any]) -> None:
        """Continue from a saved state. Raises ValueError if it does not fit."""

    def model_info(self) -> ModelInfo:
        """A snapshot whose arrays are views: the next opt step changes them."""

    def sync_model(self, info: ModelInfo) -> None:
        """Act with a copy of this snapshot."""


class Agent(ActingPolicy, Protocol):
    """Learns and acts.

    skipped_in_a_row: opt steps until now that changed nothing because their loss or gradient was not finite. On a GPU
    it is updated only at every 100th opt step and those with a record, because reading it costs time.
    """

    opt_steps: int
    skipped_in_a_row: int

    def opt(self, buffer: ReplayBuffer, record: bool = False) -> Record | None:
        """One opt step on one batch. With `record`, returns the means since the last record under `agent/<name>`.

        If the loss or gradient is not finite, weights and moments stay as they are. Such an opt step counts as one;
        the means exclude it, and `agent/skipped_steps` counts it.
        """

    def take_record(self) -> Record | None:
        """The means since the last record, as `opt` returns them; None if there was no opt step since."""

    def check_finite(self) -> bool:
        """Whether every weight and moment is finite."""

    def load_networks(self, arrays: Mapping[str, Array]) -> list[str]:
        """Load the networks of a saved `state` except the policy (see `sync_model`), but no optimiser and no count.

        Target networks become copies of their networks. Returns the names of the networks that the arrays lack, which
        stay as initialised. Raises IncompatibleStateError for a network of another shape.
        """

    def state(self) -> State:
        """Everything that a resumed agent needs except the generator. The arrays are views; see `State`."""

    def load_state(self, state: State) -> None:
        """Load a saved state. Raises ValueError if it does not fit."""


class ReplayBuffer(Protocol):
    """Stores items, samples batches."""

    capacity: int

    def push(self, items: Items, actor: int = 0) -> None:
        """Append rows of one actor, each environment's in stream order."""

    def __len__(self) -> int:
        """Rows that can be sampled; of a buffer of sequences, sequences."""

    @property
    def n_rows(self) -> int:
        """Rows whose next observation has arrived."""

    def batch(self, size: int, into: Batch | None = None) -> Batch:
        """A batch of `size` rows. Raises ValueError while fewer than `size` rows can be sampled.

        into: an earlier batch of this buffer that may be overwritten. It is reused if it has this size.
        """

    def update_priority(self, ix: Array, td_error: Array) -> None:
        """Set new priorities for sampled rows; a uniform buffer ignores them.

        An agent leaves out rows whose error is not finite. A prioritized buffer raises ValueError for such an error,
        because one NaN in its sums would break all later sampling.
        """

    def break_streams(self, actor: int | None = None) -> None:
        """End the streams of this actor, or of all. Their newest rows have no next observation and are never sampled."""

    def generator_state(self) -> dict[str, Any]:
        """State of the sampling generator, as JSON values."""

    def load_generator_state(self, state: dict[str, Any]) -> None:
        """Continue from a saved state, after `load_state` if rows are restored too. Raises ValueError."""

    def state(self) -> State:
        """Rows, in blocks that are written once when they are sealed, and what else the batches depend on."""

    def load_state(self, state: State) -> None:
        """Replace the rows by those of a saved state. Raises ValueError if it does not fit."""


class ExperienceSource(Protocol):
    """Where chunks come from: the learner's own thread, processes, or another machine."""

    def start(self, model: ModelInfo, state: State | None = None) -> None:
        """Start every actor with this model, in a resumed run from their saved state.

        Returns when each actor holds the model or is lost. Raises ValueError for a state that does not fit.
        """

    def state(self, whole: bool = True) -> State:
        """State of the actors: their counts, and in reproducible runs everything, between two env steps.

        whole: false after an exception, which leaves the rest undefined. From a state of counts alone, actors start
        new episodes with new seeds.
        """

    def collect(self) -> list[Chunk]:
        """What has arrived; after `stop`, once, what was left. Never blocks for long.

        The arrays of the chunks are valid until the next call.

        Raises ActorLostError when too few actors are left.
        """

    def present(self) -> Sequence[bool]:
        """Which actors can act. `collect` has returned all chunks of an absent one.

        An actor that returns is a new incarnation, which continues the count of env steps that had arrived.
        """

    def grant(self, credits: Sequence[int], env_steps: int) -> None:
        """Set the total of env steps that each actor may take, and the global count, which exploration follows.

        A credit may fall only for an absent actor.
        """

    def publish(self, model: ModelInfo) -> None:
        """Make this model the newest. Never waits for a reader."""

    def stats(self) -> list[ActorStat]:
        """One entry per actor."""

    def stop(self) -> list[ActorStat]:
        """Stop every actor and wait until it has ended."""


class Evaluator(Protocol):
    """Evaluates models, one at a time.

    concurrent: whether the learner continues meanwhile. If not, `begin` returns when the episodes are over.
    """

    concurrent: bool

    def begin(self, model: ModelInfo, seeds: Sequence[int], tick: Callable[[], None] = lambda: None) -> None:
        """Evaluate this model in eval mode, on one episode per seed of the environment.

        The previous evaluation must have ended. The arrays are copied. tick: called regularly by an evaluator that
        runs the episodes in this thread.
        """

    def poll(self) -> Evaluation | None:
        """The result of the last `begin`, once. None until it is there, or if the run was asked to stop meanwhile.

        Never waits. Call it often, also between evaluations: it supervises the evaluator's process. Raises
        ActorLostError once that has failed too often.
        """

    def close(self) -> None:
        """Release the environments, even during an evaluation."""


class Recorder:
    """A sink of records. This one keeps nothing.

    Attributes:
        name: for messages and summary.json.
        dropped: records that could not be written so far.
    """

    name = ""
    dropped = 0

    def write(self, record: Record) -> None:
        """Write one record; its opt_steps never decrease."""

    def video(self, path: Path, opt_steps: int, env_steps: int) -> None:
        """Take a film, an mp4 file."""

    def positions(self) -> dict[str, int]:
        """Lines in each file, by the option that turned it on. A resumed run cuts off what follows."""
        return {}

    def close(self) -> None:
        """Write what is left, and release."""


StopCheck = Callable[[], bool]
"""Polled by everything that takes time: true once the run has been asked to stop."""
