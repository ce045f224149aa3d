"""One env step for some environments of an actor: act, step, make rows, reset what ended.

Actor processes use it, and `InThreadSource`, which is the one actor of the synchronous trainer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from border_cli.core.protocols import ActingPolicy, Env
from border_cli.core.spaces import Array, EnvSpec, Obs
from border_cli.core.state import State, check_like, joined, section
from border_cli.core.types import (
    EPISODE_INFO,
    ActorStat,
    Chunk,
    Column,
    Items,
    ModelInfo,
    Step,
    count_episodes,
    empty_items,
    item_columns,
    obs_columns,
    stored_step,
)

if TYPE_CHECKING:
    from border_cli.actors.simulator_sampler import SimulatorSampler  # imports torch

_ROOM = 64
"""Rows that there is room for at first. The room grows to what an actor hands over at once."""
_OF_FINAL_ROWS = {"final", "episode_return", "episode_length", EPISODE_INFO}
"""Columns that are 0 in all other rows."""
_logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Sampler:
    """Steps environments with a policy and gives the steps to a processor, which turns them into items.

    Its state can be saved between any two env steps if the environments are a ReplayedEnv and every episode has a seed.

    Args:
        processor: gets each env step; the caller takes the items from it.
        seed_of: (environment, number of its episode from 0) → seed of the reset, None for the environment's own generator.
        owner: who acts, for messages.

    `exact` says whether every environment was restored exactly from the saved state. `least_credit` is the credit that a
    step needs [env steps]: of environments that are stepped together, one for each.
    """

    env: Env
    policy: ActingPolicy
    processor: RowProcessor
    seed_of: Callable[[int, int], int | None]
    owner: str = ""

    def __post_init__(self) -> None:
        self.next_env = self.incarnation = 0
        self.exact = True
        self.least_credit = 1 if self.env.together is None else self.env.n_envs
        self._all = list(range(self.env.n_envs))
        self._episodes = np.zeros(self.env.n_envs, np.int64)
        # Environments that started a new episode on resume; the rows of the episode before are cut at the next step.
        self._to_cut: list[int] = []

    def begin(self, first_episode: int = 0) -> None:
        """Start the episode of this number in every environment."""
        for env_ix in range(self.env.n_envs):
            self._begin_episode(env_ix, first_episode)

    def begin_from(self, state: State) -> None:
        """Continue from a saved state. Raises ValueError if it does not fit.

        If an environment cannot be restored exactly, its episode is cut and a new one starts.
        """
        check_like(saved := section(state, "own"), self._own_state(), f"the sampler of {self.owner}")
        self._episodes = saved.arrays["episodes"].copy()
        self.processor.load_state(section(state, "processor"))
        lost = cast(Any, self.env).load_state(section(state, "env"))
        self._to_cut = sorted({*np.flatnonzero(saved.arrays["to_cut"]).tolist(), *lost})
        for env_ix in lost:
            self.exact = False
            self._begin_episode(env_ix, self._episodes[env_ix] + 1)
            _logger.warning(
                "environment %d of %s cannot be resumed exactly: it is not determined by its seed and the actions; "
                "a new episode starts there",
                env_ix,
                self.owner,
            )

    def state(self) -> State:
        """The state between two env steps, when no rows are left to take. The policy's state is not included."""
        env = cast(Any, self.env)
        return joined({"env": env.state(), "processor": self.processor.state(), "own": self._own_state()})

    def next_envs(self, k: int) -> list[int]:
        """The next k environments, in turn, so that env steps are spread evenly for any k; or those stepped together."""
        if self.env.together is not None:
            return self.env.together
        if k == self.env.n_envs and self.next_env == 0:  # usually so
            return self._all
        env_ix = [(self.next_env + i) % self.env.n_envs for i in range(k)]
        self.next_env = (self.next_env + k) % self.env.n_envs
        return env_ix

    def step(self, env_ix: Sequence[int], env_steps: int) -> int:
        """One env step in each of these environments. Returns how many.

        Exploration schedules follow env_steps, the global count.
        """
        while self._to_cut:
            self.processor.cut(self._to_cut.pop(0))
        action = self.policy.sample(self.env.observe(env_ix), env_steps, env_ix)
        step = self.env.step(env_ix, action)
        if self.processor.needs_extras:
            step.extras = self.policy.extras(step)
        self.processor.add(step)
        for i, over in zip(env_ix, step.over.tolist(), strict=True):
            if over:
                self._begin_episode(i, self._episodes[i] + 1)
        return len(env_ix)

    def sample(self, env_ix: Sequence[int], env_steps: int) -> Items:
        """`step`, of all environments where none are named, and then the rows completed since they were last taken."""
        self.step(env_ix or self.next_envs(self.env.n_envs), env_steps)
        return self.processor.take()

    def _begin_episode(self, env_ix: int, number: int) -> None:
        self._episodes[env_ix] = number
        self.policy.begin_episode(env_ix)
        self.env.reset(env_ix, self.seed_of(env_ix, int(number)))

    def _own_state(self) -> State:
        to_cut = np.isin(np.arange(self.env.n_envs), self._to_cut)
        return State({"episodes": self._episodes.copy(), "to_cut": to_cut})


class RowProcessor:
    """Turns env steps into rows of the replay: one row per env step, and one for the final observation of an episode.

    The rows of an env step come at once, those of all environments together.

    Args:
        extra: columns of the agent.
        n_info: values of an episode's info that its final row has.

    needs_extras: whether steps must come with what the policy adds to them (`Step.extras`) · n_rows: rows not taken yet.
    """

    def __init__(self, spec: EnvSpec, n_envs: int, extra: tuple[Column, ...] = (), n_info: int = 0) -> None:
        self.needs_extras = bool(extra)
        self.n_rows = 0
        self._columns = item_columns(spec, extra, n_info)
        self._rows = empty_items(self._columns, max(_ROOM, 2 * n_envs))
        self._stacked = [(leaf.name, leaf.stack > 1) for leaf in spec.obs.leaves]
        self._extra = [column.name for column in extra]
        self._n_envs = n_envs
        self._length = np.zeros(n_envs, np.int64)  # env steps of each environment's episode so far
        self._return = np.zeros(n_envs, np.float64)
        self._newest = empty_items(obs_columns(spec), n_envs)  # observation of each, as stored

    def add(self, step: Step) -> None:
        """Add an env step."""
        n, newest, terminated = len(step.env_ix), self._stored(step.next_obs), step.terminated
        if step.life_lost is not None:
            terminated = terminated | step.life_lost
        columns = self._stored(step.obs) | {name: step.extras[name] for name in self._extra}
        columns |= {"action": step.action, "reward": step.reward, "terminated": terminated}
        # A slice is faster than an index array. Usually all environments take an env step.
        is_whole = n == self._n_envs and step.env_ix[0] == 0
        env_ix: slice | Array = slice(None) if is_whole else np.asarray(step.env_ix, np.int64)
        self._write(columns, step.env_ix, env_ix)
        self._length[env_ix] += 1
        self._return[env_ix] += step.reward
        for name, rows in newest.items():
            self._newest[name][env_ix] = rows
        if np.count_nonzero(step.terminated) or np.count_nonzero(step.truncated):
            over = step.terminated | step.truncated
            self._end(np.asarray(step.env_ix)[over], None if step.infos is None else step.infos[over])

    def cut(self, env_ix: int) -> None:
        """End a broken stream at its last known observation: its rows count as truncated, and no episode is reported."""
        if self._length[env_ix]:
            self._end(np.array([env_ix]), reported=False)

    def take(self, into: Items | None = None) -> Items:
        """Move rows, each environment's in stream order, into the arrays `into`, which they must fill.

        Without `into`, all of them are moved into new arrays.
        """
        items = empty_items(self._columns, self.n_rows) if into is None else into
        before, n = self.n_rows, len(items["env"])
        for name, rows in self._rows.items():
            items[name][...] = rows[:n]
        self.n_rows = before - n
        if self.n_rows:
            for rows in self._rows.values():
                rows[: self.n_rows] = rows[n:before].copy()
        for name in _OF_FINAL_ROWS & self._rows.keys():
            self._rows[name][self.n_rows : before] = 0
        return items

    def _stored(self, obs: Obs) -> Obs:
        """Observations (k, ...) as rows store them: of stacks the newest frames."""
        return {name: obs[name][:, -1] if stacked else obs[name] for name, stacked in self._stacked}

    def _write(self, columns: Mapping[str, Any], env: Sequence[int] | Array, env_ix: slice | Array) -> None:
        """Append rows of these environments. The columns that are not given stay 0."""
        first, end = self.n_rows, self.n_rows + len(env)
        while end > len(self._rows["env"]):
            self._rows = {n: np.concatenate([rows, np.zeros_like(rows)]) for n, rows in self._rows.items()}
        rows = self._rows
        for name, values in columns.items():
            rows[name][first:end] = values
        rows["env"][first:end] = env
        rows["step"][first:end] = stored_step(self._length[env_ix])
        self.n_rows = end

    def _end(self, env_ix: Array, infos: Array | None = None, *, reported: bool = True) -> None:
        """Append the final observations of these environments, whose episodes begin anew. reported: they count."""
        columns: dict[str, Any] = dict.fromkeys(self._rows, 0)
        columns |= {name: rows[env_ix] for name, rows in self._newest.items()}
        columns["final"] = True
        if reported:
            columns |= {"episode_return": self._return[env_ix], "episode_length": self._length[env_ix]}
            if infos is not None:
                columns[EPISODE_INFO] = infos
        self._write(columns, env_ix, env_ix)
        self._length[env_ix], self._return[env_ix] = 0, 0.0
        for rows in self._newest.values():
            rows[env_ix] = 0

    def state(self) -> State:
        """What the streams carry from one env step to the next."""
        newest = {f"newest/{name}": rows.copy() for name, rows in self._newest.items()}
        return State(newest | {"length": self._length.copy(), "return": self._return.copy()})

    def load_state(self, state: State) -> None:
        """Load a saved state. Raises ValueError if it does not fit."""
        check_like(state, self.state(), "the step processor")
        for name, rows in self._newest.items():
            rows[...] = state.arrays[f"newest/{name}"]
        self._length[:], self._return[:] = state.arrays["length"], state.arrays["return"]


class InThreadSource:
    """One actor in the learner's own thread: the source of experience with `trainer=sync` and `trainer=device`.

    Each `collect` takes one env step in each environment that has credit for it.

    Args:
        sampler: acts with the learner's own agent, so that there is no model to publish.
    """

    def __init__(self, sampler: Sampler | SimulatorSampler, n_envs: int, close: Callable[[], None]) -> None:
        self._sampler = sampler
        self._close = close
        self._n_envs = n_envs
        self._credit = 0
        self._global_env_steps = 0
        self._started = monotonic()
        self._version = 0
        self._stat = ActorStat(0, state="ready")

    def start(self, model: ModelInfo, state: State | None = None) -> None:
        """Reset the environments, or restore their saved state. Raises ValueError if it does not fit."""
        self._version = model.version
        self._started = monotonic()
        if state is None:
            self._sampler.begin()
            return
        saved = section(state, "source")
        check_like(saved, self._own_state(), "the actor")
        values, stat = saved.values, self._stat
        if "sampler" in state.values:
            self._sampler.begin_from(section(state, "sampler"))
        else:
            self._sampler.begin(first_episode=values["episodes"] + 1)
        self._sampler.next_env = values["next_env"]
        self._version = values["version"]
        stat.env_steps = stat.env_steps_before = values["env_steps"]
        stat.episodes, stat.exact = values["episodes"], self._sampler.exact

    def state(self, whole: bool = True) -> State:
        counts = {"source": self._own_state()}
        return joined(counts | {"sampler": self._sampler.state()} if whole else counts)

    def _own_state(self) -> State:
        counts = {
            "env_steps": self._stat.env_steps,
            "next_env": self._sampler.next_env,
            "version": self._version,
            "episodes": self._stat.episodes,
        }
        return State({}, counts)

    def collect(self) -> list[Chunk]:
        """The rows of one env step in each environment; nothing without credit, or after `stop`."""
        k = 0 if self._stat.state == "done" else min(self._n_envs, self._credit - self._stat.env_steps)
        if k < self._sampler.least_credit:
            return []
        taken = self._sampler.step(self._sampler.next_envs(k), self._global_env_steps)
        items = self._sampler.processor.take()
        self._stat.env_steps += taken
        self._stat.episodes += count_episodes(items)
        return [Chunk(0, self._sampler.incarnation, 0, taken, self._version, items)]

    def present(self) -> list[bool]:
        return [True]

    def grant(self, credits: Sequence[int], env_steps: int) -> None:
        (self._credit,), self._global_env_steps = credits, env_steps

    def publish(self, model: ModelInfo) -> None:
        """Note the version of the model, which the sampler has already."""
        self._version = model.version

    def stats(self) -> list[ActorStat]:
        self._stat.seconds = monotonic() - self._started
        return [self._stat]

    def stop(self) -> list[ActorStat]:
        if self._stat.state != "done":
            self.stats()
            self._stat.state = "done"
            self._close()
        return [self._stat]
