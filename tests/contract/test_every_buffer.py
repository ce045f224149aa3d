"""Contract tests of every buffer, with and without frame stacks, of rows and of sequences.

They are compared with a buffer of complete transitions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from border_cli.actors.sampler import RowProcessor
from border_cli.core.spaces import ActionSpec, Array, EnvSpec, ObsLeaf, ObsSpec
from border_cli.core.state import Block, State
from border_cli.core.types import Batch, SequenceShape, Step, concat_items
from border_cli.replay.buffer import Returns, RowReplayBuffer
from tests.fakes import processed
from tests.faults.amounts import FULL
from tests.kinds import BUFFERS

GAMMA = 0.5
SIZE = 8
STACKS = {"single": 1, "stacks": 4}
SEQUENCES = SequenceShape(length=3, burn_in=2)
SHAPES = {"rows": None, "sequences": SEQUENCES}
ON_DEVICE = " on device "
Key = tuple[int, int, int, int]
"""Actor, environment, episode and env step in the episode: the newest frame of an observation."""


def spec_of(stack: int) -> EnvSpec:
    shape = (4,) if stack == 1 else (stack, 4)
    leaf = ObsLeaf("obs", (), "box", shape, "int32", stack=stack)
    return EnvSpec(ObsSpec((leaf,)), ActionSpec("discrete", n=3))


def make(
    kind: str, capacity: int, stack: int, n_step: int, shape: SequenceShape | None = None, **options: Any
) -> RowReplayBuffer:
    name, on_device, device = kind.partition(ON_DEVICE)
    entry = BUFFERS[name]
    if on_device:  # as with buffer.device=cuda, but for the device itself
        options |= {"device": "cuda"}
    config = entry.config(type=name, capacity=capacity, n_step=n_step, **options)
    buffer: RowReplayBuffer = entry.load().make_buffer(
        config, spec_of(stack), 7, (), Returns(GAMMA), device=device, sequences=shape
    )
    return buffer


@dataclass
class Naive:
    """Stores complete transitions, and the position of each row in the order of pushes. finals: final observations."""

    stack: int
    n_step: int
    capacity: int
    shape: SequenceShape | None = None
    finals: set[Key] = field(default_factory=set)
    transitions: dict[Key, tuple[Key, float, float, bool]] = field(default_factory=dict)
    row_of: dict[Key, int] = field(default_factory=dict)

    def observation(self, key: Key) -> Array:
        if self.stack == 1:
            return np.array(key)
        *stream, t = key
        return np.array([[*stream, max(t - back, 0)] for back in reversed(range(self.stack))])

    def oldest_row(self, key: Key) -> int:
        *stream, t = key
        return self.row_of[(*stream, max(t - self.stack + 1, 0))]  # type: ignore[index]

    def complete(self) -> set[Key]:
        """Return every transition whose next observation has been pushed."""
        return {key for key, (then, *_) in self.transitions.items() if then in self.row_of}

    def possible(self) -> set[Key]:
        """Return every complete transition, or the first one of every whole sequence."""
        complete = self.complete()
        return complete if self.shape is None else {key for key in complete if self._is_whole(key, complete)}

    def _is_whole(self, first: Key, complete: set[Key]) -> bool:
        assert self.shape is not None
        *stream, t = first
        rows: list[Any] = [(*stream, t + i) for i in range(self.shape.length)]
        n_rows = next((i for i, row in enumerate(rows) if row in self.finals), len(rows))
        return t % self.shape.length == 0 and n_rows > 0 and complete.issuperset(rows[:n_rows])

    def certain(self) -> set[Key]:
        """Return the possible ones that lie within the capacity, less a page per stream."""
        least = self.capacity
        return {key for key in self.possible() if self.oldest_row(key) >= len(self.row_of) - least}


class World:
    """Env steps of two actors. Every row goes into the tested buffer, other `buffers`, and the naive one."""

    def __init__(self, buffer: RowReplayBuffer, naive: Naive) -> None:
        self.buffer, self.naive = buffer, naive
        self.buffers = [buffer]
        self.spec = spec_of(naive.stack)
        self.processors = {actor: RowProcessor(self.spec, 2) for actor in range(2)}
        self.at: dict[tuple[int, int], tuple[int, int]] = {}
        self.held: list[dict[str, Array]] | None = None  # rows of an incomplete chunk

    def act(self, kind: str, *arguments: Any) -> None:
        """Run one part of a plan: `episode`, `chunk` or `restart`."""
        getattr(self, kind)(*arguments)

    def episode(self, actor: int, env: int, length: int, ending: str) -> None:
        """Run `length` env steps. ending: "terminated", "truncated", "cut", or "" if the episode continues later."""
        for _ in self._steps(actor, env, length, ending):
            pass

    def chunk(self, actor: int, first: tuple[int, str], second: tuple[int, str]) -> None:
        """Run both environments of an actor alternately, each by (length, ending); pushes all rows as one chunk."""
        self.held = []
        streams = [self._steps(actor, env, *steps) for env, steps in enumerate((first, second))]
        for _ in zip_longest(*streams):
            pass
        parts, self.held = self.held, None
        if parts:
            self._insert(concat_items(parts), actor)

    def restart(self, actor: int) -> None:
        """The actor is lost, and a new one begins: the newest row of each environment is its final observation."""
        for buffer in self.buffers:
            buffer.break_streams(actor)
        self.processors[actor] = RowProcessor(self.spec, 2)
        for env in range(2):
            number, t = self.at.get((actor, env), (0, 0))
            if t > 0:
                self._closed((actor, env, number, t - 1), False)
                self.at[actor, env] = number + 1, 0

    def _steps(self, actor: int, env: int, length: int, ending: str) -> Iterator[None]:
        number, t = self.at.get((actor, env), (0, 0))
        for i in range(length):
            last = i == length - 1
            self._step(
                (actor, env, number, t), last and ending == "terminated", last and ending == "truncated"
            )
            t += 1
            yield
        if ending == "cut":
            self.processors[actor].cut(env)
            self._push(actor, self.processors[actor].take())
            self._closed((actor, env, number, t), False)
        self.at[actor, env] = (number, t) if not ending else (number + 1, 0)

    def _step(self, key: Key, terminated: bool, truncated: bool) -> None:
        actor, env, number, t = key
        after = (actor, env, number, t + 1)
        step = Step(
            [env], {"obs": self.naive.observation(key)[None].astype(np.int32)}, np.array([t % 3]),
            np.array([self.reward(t)]), np.array([terminated]), np.array([truncated]),
            {"obs": self.naive.observation(after)[None].astype(np.int32)},
        )  # fmt: skip
        self._push(actor, processed(self.processors[actor], step))
        n = self.naive.n_step
        if terminated or truncated:
            self._closed(after, terminated)
        elif t + 1 >= n:
            self._transition((actor, env, number, t + 1 - n), after, False)

    def _closed(self, final: Key, terminated: bool) -> None:
        *stream, length = final
        self.naive.finals.add(final)
        for t in range(max(0, length - self.naive.n_step), length):
            self._transition((*stream, t), final, terminated)  # type: ignore[arg-type]

    def _transition(self, key: Key, then: Key, terminated: bool) -> None:
        m = then[3] - key[3]
        reward = sum(GAMMA**k * self.reward(key[3] + k) for k in range(m))
        self.naive.transitions[key] = (then, reward, 0.0 if terminated else GAMMA**m, terminated)

    @staticmethod
    def reward(t: int) -> float:
        return float(t % 5 - 2)

    def _push(self, actor: int, items: dict[str, Array]) -> None:
        newest = items["obs"] if len(items["obs"]) else np.empty((0, 4), np.int32)
        for row in newest:
            self.naive.row_of[tuple(int(v) for v in row)] = len(self.naive.row_of)  # type: ignore[index]
        if len(newest) and self.held is not None:
            self.held.append(items)
        elif len(newest):
            self._insert(items, actor)

    def _insert(self, items: dict[str, Array], actor: int) -> None:
        for buffer in self.buffers:
            buffer.push(items, actor)

    def check(self) -> None:
        certain, possible, n = self.naive.certain(), self.naive.possible(), len(self.buffer)
        assert len(certain) <= n <= len(possible)
        assert n <= self.buffer.n_rows <= len(self.naive.complete())
        assert self.naive.shape is not None or n == self.buffer.n_rows
        if n == 0:
            return
        seen: set[Key] = set()
        size = min(SIZE, n)
        for _ in range(40 if FULL or n <= 12 else 8):
            seen |= self.check_batch(self.buffer.batch(size))
        assert seen <= possible
        if n <= 12:
            assert len(seen) == n and seen >= certain

    def check_batch(self, batch: Batch) -> set[Key]:
        if self.naive.shape is not None:
            return {self._check_sequence(batch, i, self.naive.shape) for i in range(len(batch.ix))}
        keys = set()
        for i in range(len(batch.ix)):
            obs, next_obs = np.asarray(batch.obs["obs"][i]), np.asarray(batch.next_obs["obs"][i])
            key: Key = tuple(int(v) for v in (obs if self.naive.stack == 1 else obs[-1]))  # type: ignore[assignment]
            then, reward, discount, terminated = self.naive.transitions[key]
            assert (obs == self.naive.observation(key)).all()
            assert (next_obs == self.naive.observation(then)).all()
            assert (batch.reward[i], batch.discount[i]) == (pytest.approx(reward), discount)
            assert (bool(batch.terminated[i]), batch.action[i]) == (terminated, key[3] % 3)
            keys.add(key)
        return keys

    def _check_sequence(self, batch: Batch, i: int, shape: SequenceShape) -> Key:
        obs, extra = (np.asarray(batch.obs["obs"][i]), {n: np.asarray(v[i]) for n, v in batch.extra.items()})
        before, obs = obs[: shape.burn_in], obs[shape.burn_in :]
        first: Key = tuple(int(v) for v in (obs[0] if self.naive.stack == 1 else obs[0, -1]))  # type: ignore[assignment]
        *stream, t = first
        rows: list[Any] = [(*stream, t + k) for k in range(len(obs))]
        end = next((k for k, row in enumerate(rows) if row in self.naive.finals), len(rows) - 1)
        assert extra["is_valid"].tolist() == [k < end for k in range(shape.length)]
        for k in range(len(rows)):  # beyond its end, the final observation of the episode
            assert (obs[k] == self.naive.observation(rows[min(k, end)])).all()
        for k in range(min(shape.length, end)):
            then, reward, discount, terminated = self.naive.transitions[rows[k]]
            assert rows[extra["next"][k]] == then
            assert (batch.reward[i][k], batch.discount[i][k]) == (pytest.approx(reward), discount)
            assert (bool(batch.terminated[i][k]), batch.action[i][k]) == (terminated, (t + k) % 3)
        if extra["has_burn_in"]:
            wanted = [self.naive.observation((*stream, t - k)) for k in range(shape.burn_in, 0, -1)]  # type: ignore[arg-type]
            assert t > 0 and (before == np.array(wanted)).all()
        elif t > 0:  # rows before the sequence are gone
            oldest = self.naive.oldest_row((*stream, t - shape.burn_in))  # type: ignore[arg-type]
            assert oldest < len(self.naive.row_of) - self.naive.capacity
        return first


def new_world(kind: str, capacity: int, stack: int, n_step: int, shape: SequenceShape | None = None) -> World:
    return World(make(kind, capacity, stack, n_step, shape), Naive(stack, n_step, capacity, shape))


class GoalWorld(World):
    """Each row has achieved its key; every sampled row gets a goal in hindsight, and the reward says how far that is."""

    def _insert(self, items: dict[str, Array], actor: int) -> None:
        own = np.full_like(items["obs"], -1)
        super()._insert(items | {"obs.achieved_goal": items["obs"], "obs.desired_goal": own}, actor)

    def check_batch(self, batch: Batch) -> set[Key]:
        keys = set()
        for i in range(len(batch.ix)):
            key, after, goal, same_goal = (
                tuple(int(v) for v in obs[name][i])
                for name in ("obs", "obs.desired_goal")
                for obs in (batch.obs, batch.next_obs)
            )
            assert after == self.naive.transitions[key][0]  # type: ignore[index]
            assert goal == same_goal and goal in self.naive.row_of
            assert goal[:3] == key[:3] and goal[3] > key[3]
            assert (batch.reward[i], batch.discount[i]) == (after[3] - goal[3], GAMMA * (goal != after))
            assert bool(batch.terminated[i]) == (goal == after)
            keys.add(key)
        return keys  # type: ignore[return-value]


def goal_buffer(kind: str, capacity: int) -> RowReplayBuffer:
    leaf = spec_of(1).obs.leaves[0]
    goals = (
        ObsLeaf(f"obs.{name}", (name,), "box", (4,), "int32") for name in ("achieved_goal", "desired_goal")
    )
    spec = EnvSpec(ObsSpec((leaf, *goals)), spec_of(1).action)

    def outcome(achieved: Array, desired: Array) -> tuple[Array, Array]:
        return achieved[:, 3] - desired[:, 3], (achieved == desired).all(1)

    entry = BUFFERS[kind]
    config = entry.config(type=kind, capacity=capacity, her="future", her_ratio=1.0)
    buffer: RowReplayBuffer = entry.load().make_buffer(config, spec, 7, (), Returns(GAMMA), outcome=outcome)
    return buffer


ACTOR, LENGTH, ENDING = (
    st.integers(0, 1),
    st.integers(1, 9),
    st.sampled_from(["terminated", "truncated", "cut", ""]),
)
STEPS = st.tuples(LENGTH, ENDING)
PLANS = st.lists(
    st.one_of(
        st.tuples(st.just("episode"), ACTOR, st.integers(0, 1), LENGTH, ENDING),
        st.tuples(st.just("chunk"), ACTOR, STEPS, STEPS),
        st.tuples(st.just("restart"), ACTOR),
    ),
    min_size=1,
    max_size=25,
)
ERRORS = st.lists(st.floats(0.0, 10.0, width=32), min_size=4, max_size=4).map(
    partial(np.array, dtype=np.float32)
)
stacks = pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
KINDS = [*BUFFERS, *(f"{kind}{ON_DEVICE}cpu" for kind in BUFFERS)]
kinds = pytest.mark.parametrize("kind", KINDS)
shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


@shapes
@stacks
# below, a buffer on a device is compared with one in memory
@pytest.mark.parametrize("kind", KINDS if FULL else BUFFERS)
@settings(max_examples=50 if FULL else 10, deadline=None)
@given(n_step=st.integers(1, 4), capacity=st.integers(9, 200), plan=PLANS)
def test_batches_match_the_naive_buffer(
    kind: str, stack: int, shape: SequenceShape | None, n_step: int, capacity: int, plan: Any
) -> None:
    world = new_world(kind, capacity, stack, n_step, shape)
    for part in plan:
        world.act(*part)
        world.check()


def through_json(state: State) -> State:
    """Return the state as it comes back from a checkpoint."""
    blocks = tuple(Block(b.name, b.sealed, partial(dict, b.arrays())) for b in state.blocks)
    return State(deepcopy(state.arrays), json.loads(json.dumps(state.values)), blocks)


def columns(batch: Batch) -> dict[str, Any]:
    """Return the arrays or tensors of a batch."""
    names = ("action", "reward", "discount", "terminated")
    named = {name: getattr(batch, name) for name in names} | batch.extra
    next_obs = {f"next_{name}": leaf for name, leaf in batch.next_obs.items()}
    return named | batch.obs | next_obs


def used(buffer: RowReplayBuffer, errors: Array) -> dict[str, Any]:
    """Sample a batch and update its priorities. Returns dtype and values of its columns."""
    if len(buffer) < 4:
        return {}
    batch = buffer.batch(4)
    buffer.update_priority(batch.ix, errors)
    arrays = {name: np.asarray(column) for name, column in columns(batch).items()}
    weight = None if batch.weight is None else batch.weight.tolist()
    return {name: (array.dtype, array.tolist()) for name, array in arrays.items()} | {"weight": weight}


def content(buffer: RowReplayBuffer) -> dict[str, Any]:
    """Return the state of a buffer: its values, and the bytes of its arrays and blocks."""
    state = buffer.state()
    parts = {(block.name, block.sealed, n): a for block in state.blocks for n, a in block.arrays().items()}
    arrays = parts | state.arrays
    return {**state.values, **{n: (a.dtype, a.shape, a.tobytes()) for n, a in arrays.items()}}


@shapes
@stacks
@pytest.mark.parametrize("ways", ["memory to memory", "memory to device", "device to memory"])
@pytest.mark.parametrize("kind", BUFFERS)
@settings(max_examples=15 if FULL else 4, deadline=None)
@given(n_step=st.integers(1, 4), capacity=st.integers(20, 200), before=PLANS, after=PLANS, errors=ERRORS)
def test_a_buffer_that_loads_a_state_gives_the_same_batches_and_sealed_blocks_never_change(
    kind: str,
    ways: str,
    stack: int,
    shape: SequenceShape | None,
    n_step: int,
    capacity: int,
    before: Any,
    after: Any,
    errors: Any,
) -> None:
    source, target = (kind + f"{ON_DEVICE}cpu" * (where == "device") for where in ways.split(" to "))
    sealed: dict[Any, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("border_cli.replay.buffer.rows_per_block", lambda capacity, row_bytes: 5)
        patch.setattr("border_cli.replay.buffer._PART", 7)
        world = new_world(source, capacity, stack, n_step, shape)
        loaded = make(target, capacity, stack, n_step, shape)
        for part in before:
            world.act(*part)
            used(world.buffer, errors)
            for block in world.buffer.state().blocks:
                if block.sealed:
                    rows = {name: array.tobytes() for name, array in block.arrays().items()}
                    assert sealed.setdefault(block.name, rows) == rows
        loaded.load_state(through_json(world.buffer.state()))
        loaded.load_generator_state(json.loads(json.dumps(world.buffer.generator_state())))
        world.buffers.append(loaded)
        for part in after:
            world.act(*part)
            assert used(world.buffer, errors) == used(loaded, errors)
        assert content(world.buffer) == content(loaded)


@pytest.mark.parametrize("kind", BUFFERS)
@settings(max_examples=100 if FULL else 20, deadline=None)
@given(capacity=st.integers(9, 200), before=PLANS, after=PLANS, errors=ERRORS)
@example(
    9, [("restart", 0)], [("episode", 0, 0, 9, "terminated")], np.zeros(4, np.float32)
)  # longer than the ring
def test_a_goal_in_hindsight_is_of_a_later_row_of_the_episode_and_the_same_after_loading(
    kind: str, capacity: int, before: Any, after: Any, errors: Any
) -> None:
    """Pages have at most two rows here, and episodes more."""
    world, loaded = GoalWorld(goal_buffer(kind, capacity), Naive(1, 1, capacity)), goal_buffer(kind, capacity)
    for part in before:
        world.act(*part)
        world.check()
    loaded.load_state(through_json(world.buffer.state()))
    loaded.load_generator_state(json.loads(json.dumps(world.buffer.generator_state())))
    world.buffers.append(loaded)
    for part in after:
        world.act(*part)
        assert used(world.buffer, errors) == used(loaded, errors)
        for buffer in world.buffers if len(loaded) else ():
            world.check_batch(buffer.batch(len(loaded)))


@shapes
@stacks
@kinds
def test_a_batch_that_is_filled_again_keeps_its_arrays(
    kind: str, stack: int, shape: SequenceShape | None
) -> None:
    """Tensors that share the memory of the arrays then have the values of the new batch."""
    world = new_world(kind, 40, stack, 1, shape)
    world.episode(0, 0, 30, "terminated")
    batch = world.buffer.batch(SIZE)
    arrays, weight = columns(batch), batch.weight
    for array in arrays.values():
        assert isinstance(array, torch.Tensor if ON_DEVICE in kind else np.ndarray)
    if ON_DEVICE in kind and stack > 1:
        assert arrays["obs"].is_contiguous()
    world.buffer.update_priority(batch.ix, np.linspace(0.5, 1.5, SIZE, dtype=np.float32))
    again, fresh = world.buffer.batch(SIZE, into=batch), world.buffer.batch(SIZE)
    assert again is batch is not fresh
    world.check_batch(again)
    for name, array in columns(again).items():
        assert array is arrays[name] or np.shares_memory(np.asarray(array), np.asarray(arrays[name]))
    assert again.weight is weight
    if weight is not None:
        assert len(set(weight.tolist())) > 1


@kinds
def test_errors_that_are_not_finite_or_too_few_are_refused(kind: str) -> None:
    world = new_world(kind, 40, 1, 1)
    world.episode(0, 0, 20, "terminated")
    batch = world.buffer.batch(4)
    with pytest.raises(ValueError, match="4 rows and 3 errors"):
        world.buffer.update_priority(batch.ix, np.ones(3, np.float32))
    if batch.weight is not None:
        with pytest.raises(ValueError, match="not finite"):
            world.buffer.update_priority(batch.ix, np.array([1, np.nan, 1, 1], np.float32))
