"""Every attribute of what a run goes on from is saved, or there is a reason why it need not be (row G3).

An attribute that is new fails this test until somebody has decided. Each that is said to be saved is changed in a run,
saved, and looked for in another loop that goes on from there; what is left out of a state is not found. That all of it
is checked when it comes back is held by `tests/faults/test_nonsense.py`.
"""

from __future__ import annotations

import ast
import copy
import inspect
import json
import textwrap
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import is_dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import pytest
import torch

from border_cli import build, parts
from border_cli.actors.lockstep import LockstepManager
from border_cli.actors.lockstep_actor import LockstepActor
from border_cli.actors.proxy import ReplayBufferProxy
from border_cli.actors.slot import ActorSlot
from border_cli.checkpoints.keeper import RunKeeper
from border_cli.core.protocols import Evaluation
from border_cli.core.state import Block, State
from border_cli.recorders.appending import AppendedFile
from border_cli.recorders.fanout import FanOut
from border_cli.recorders.jsonl import JsonlRecorder
from border_cli.recorders.tensorboard import TensorBoardRecorder
from border_cli.recorders.tolerant import TolerantRecorder
from border_cli.replay.packed import PackedRows
from border_cli.trainers.judging import _Trial
from border_cli.trainers.lockstep import LockstepTrainer
from border_cli.trainers.loop import TrainingLoop
from border_cli.trainers.parts import Parts
from border_cli.trainers.run_state import RunState, take_state
from tests.real_runs import in_folder, train

OWNERS = {
    "Trainer": "",
    "Position": "_position",
    "Judging": "judging",
    "Saving": "saving",
    "Skipping": "skipping",
    "RatioLimiter": "parts.limiter",
    "Telemetry": "parts.telemetry",
    "Learner": "parts.agent",
    "DqnPolicy": "parts.agent._policy",
    "DqnRule": "parts.agent._rule",
    "RowReplayBuffer": "parts.buffer",
    "UniformDrawing": "parts.buffer._drawing",
    "InThreadSource": "parts.source",
    "ResumableSampler": "parts.source._sampler",
    "NStepProcessor": "parts.source._sampler._processor",
    "TapedEnv": "parts.source._sampler._env",
    "GuardedEnv": "parts.source._sampler._env._env",
    "GymEnv": "parts.source._sampler._env._env._env",
    "EnvGuard": "parts.source._sampler._env._env._env._guard",
}
"""Where they are in the loop of a run under sync. What one of them is to another is decided on with it."""
STATE = {
    "Trainer": "_position judging parts",
    "Position": "agent_values incarnations recorded_at records to_do",
    "Judging": "_trials best last skipped",
    "RatioLimiter": "_base_env_steps _base_opt_steps _used env_steps opt_steps",
    "Telemetry": "_interval_episodes _lags _lengths _recent_returns _returns episodes progress",
    "Learner": "_policy _rule _unread opt_steps skipped_in_a_row",
    "DqnPolicy": "_rng _weights version",
    "DqnRule": "rng state",
    "RowReplayBuffer": "_data _drawing _next _rows _tails",
    "UniformDrawing": "_before_draws _next_draw _rng",
    "InThreadSource": "_cursor _sampler _sequence _stat _taken _version",
    "ResumableSampler": "_env _episodes _processor _times _to_cut dropped",
    "TapedEnv": "_actions _env _seeds",
    "GuardedEnv": "_env _env_steps _episodes",
    "GymEnv": "_guard",
    "EnvGuard": "_episode _in_a_row _leaves _taken dropped",
    "NStepProcessor": "_streams",
    # Of actors in processes, whose states are asked for over their pipes.
    "LockstepManager": "_earlier _inserted _models _next _rounds _slots _vacant _whole",
    "ActorSlot": "_counts _state",
    "LockstepActor": "_episodes _policy _round _sampler env_steps",
    # How much was written, which `Position.records` is a part of.
    "FanOut": "_recorders",
    "TolerantRecorder": "_recorder",
    "JsonlRecorder": "_file _written",
    "AppendedFile": "_end",
    "TensorBoardRecorder": "_written",
}
CONFIG = {
    "Trainer": "_stages config",
    "Judging": "_config _episodes _evaluator _keep_open _saving _should_stop _telemetry _tick _view _write",
    "Saving": "_keeper _telemetry",
    "Skipping": "_keeper",
    "RatioLimiter": "_group _interval _least_grant _max_env_steps _share _tolerance _warmup",
    "Telemetry": "_limiter",
    "Learner": "_device",
    "DqnPolicy": "_eval_epsilon _explorer _head _mask _net _noise_size _seed",
    "DqnRule": "_config _device _head _mask _net _noise_size",
    "RowReplayBuffer": "_action _block_rows _packed _plain_obs _with_priority capacity",
    "InThreadSource": "_close _n_envs",
    "ResumableSampler": "_mender _owner _policy _resumable _seed_of _seeds",
    "TapedEnv": "n_envs spec",
    "GuardedEnv": "_owner n_envs spec",
    "GymEnv": "_config _life_loss _native _render_mode n_envs spec",
    "EnvGuard": "_drop _reward_limit _strict_bounds",
    "NStepProcessor": "_action _clip _columns _gamma _has_age _n _obs_names _stacked needs_estimates",
    "LockstepTrainer": "_stages config _rounds",
    "LockstepManager": "_columns _config _n_actors _on_exception _should_stop _spec",
    "ActorSlot": "_actor _shared",
    "LockstepActor": "_clock _place _requests _rounds _waiter",
    "ReplayBufferProxy": "_clock _n_buffer _place _waiter",
    "RunKeeper": "_agent _before _dir _keep _model _saved _seed _with_replay",
    "TolerantRecorder": "_now name",
    "AppendedFile": "path",
    "TensorBoardRecorder": "_folder _keep",
}
FOLLOWS = {
    "Trainer": "_begun _failed _final_phase _phase actors saving skipping",  # of this launch
    "Judging": "_begun_at good_enough",  # the clock; the best score
    "Saving": "_failures _left_out saved_at",  # of this launch's disk; the opt step that is gone on from
    "Skipping": "_in_series _telling",  # what was told
    "RatioLimiter": "_present credits",  # given anew to whoever is there
    "Telemetry": "_began _launched _collect_ms _excluded_s _failed_saves _last _next_refresh _opt_ms _recent_lags _save_ms"
    " _window blocked_s",  # the clock, and the recent past
    "Learner": "_batches",  # rooms
    "DqnPolicy": "_evaluation_rng _exploring _last _network",  # made anew; of the last env step; over the weights
    "DqnRule": "_networks _told",  # over the weights; what was told
    "RowReplayBuffer": "_columns _frames _ready",  # of _data; none here; counted again
    "UniformDrawing": "_drawn",  # drawn again
    "InThreadSource": "_announced _credit _started",  # told by the loop; the clock
    "ResumableSampler": "_estimates env_steps exact fault phase",  # of this launch
    "GuardedEnv": "_times",  # the tape
    "GymEnv": "_envs _lives gives_mask",  # the tape; the last reset
    "EnvGuard": "_again _floats _is_finite _step obs",  # the tape; only while it is played; rooms
    "LockstepTrainer": "_backoff _begun _failed _final_phase _phase _position actors judging parts saving skipping",
    "LockstepManager": "_absent _board _first_cause _known_exceptions _left_over _lost _news _news_due _stopped"
    " _supervisors _told_absent"  # of this launch's processes
    " _under_way",  # nothing: all rounds that have begun are whole when a state is taken
    "ActorSlot": "_earlier_episodes _failed _final _killed _line _mended _ring _sequence _state_pieces"
    " _worker ready sent_state",
    "LockstepActor": "_held _line _models _proxy _version",  # the model that the round is due is taken again
    "ReplayBufferProxy": "_pending _ring _sequence _since_ns _version pending_env_steps",  # handed over in each round
    "RunKeeper": "_best _on_disk",  # its own save; found again
    "FanOut": "_newest",  # of what is flushed by now
    "TolerantRecorder": "_retry_at _retry_s _warn_at dropped",  # of this launch's disk
    "AppendedFile": "_behind _file _torn",  # of this launch's disk
    "TensorBoardRecorder": "_file _newest",  # of this launch's file
}
BY_THEIR_CODE: tuple[type, ...] = (
    *(LockstepTrainer, LockstepManager, ActorSlot, LockstepActor, ReplayBufferProxy),
    *(RunKeeper, FanOut, TolerantRecorder, JsonlRecorder, AppendedFile, TensorBoardRecorder),
)
"""Those that no run under sync has, or that live in other processes: their attributes are what their code assigns."""


def of(loop: TrainingLoop, owner: str) -> Any:
    return attrgetter(OWNERS[owner])(loop) if OWNERS[owner] else loop


def listed_in(table: dict[str, str], owner: str) -> list[str]:
    return table.get(owner, "").split()


def decided(owner: str) -> list[str]:
    return sorted(name for table in (STATE, CONFIG, FOLLOWS) for name in listed_in(table, owner))


def assigned(kind: type) -> list[str]:
    """Every attribute that the methods of a class assign to `self`, its bases included."""
    nodes = (
        node
        for base in kind.__mro__
        if base.__module__.startswith("border_cli")
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(base))))
    )
    return sorted(
        {
            node.attr
            for node in nodes
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            if isinstance(node.value, ast.Name) and node.value.id == "self"
        }
    )


# -- changes ------------------------------------------------------------


def other(value: Any) -> Any:
    """Another value of the same kind; of what holds several, with its first one changed."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return value + 0.5
        case torch.Tensor() | np.floating() | np.integer():
            return value + 1
        case np.ndarray():
            changed = value.copy()
            changed.flat[0] = other(changed.flat[0])
            return changed
        case list() | tuple() | deque() if value:
            first, *rest = value
            return type(value)([other(first), *rest])
        case dict() if value:
            key = next(iter(value))
            return value | {key: other(value[key])}
        case np.random.Generator():
            generator = np.random.default_rng(0)
            generator.bit_generator.state = value.bit_generator.state
            generator.random()
            return generator
    raise AssertionError(f"no other {value!r}: a case for CHANGES")


def one_more_env_step(loop: TrainingLoop) -> None:
    """The limiter knows how many env steps each actor has taken, and the actor does too."""
    limiter, source = loop.parts.limiter, of(loop, "InThreadSource")
    limiter.env_steps += 1
    limiter._used = [limiter._used[0] + 1]
    source._taken += 1


def one_more_opt_step(loop: TrainingLoop) -> None:
    """The agent and the limiter count them, and the version is that count."""
    agent = of(loop, "Learner")
    agent.opt_steps = agent._policy.version = loop.parts.limiter.opt_steps = agent.opt_steps + 1


def one_more_skipped(loop: TrainingLoop) -> None:
    """What is read from the device is a copy of what is there."""
    agent = of(loop, "Learner")
    agent.skipped_in_a_row += 1
    agent._rule.outcome.skipped_in_a_row += 1


def a_model_that_waits(loop: TrainingLoop) -> None:
    model = replace(loop.parts.agent.model_info(), version=1)
    loop.judging._trials = [_Trial(model, 9)]


def rows_pushed(loop: TrainingLoop) -> None:
    """At least one: the first few env steps of an episode wait for their sum."""
    before = of(loop, "RowReplayBuffer")._rows
    while of(loop, "RowReplayBuffer")._rows == before:
        loop.parts.buffer.push(of(loop, "ResumableSampler").sample([0], 0))


def another_link(loop: TrainingLoop) -> None:
    """The next observation of the oldest row is that of the row behind it."""
    buffer = of(loop, "RowReplayBuffer")
    slots = buffer._slots(np.arange(buffer._rows - buffer.capacity, buffer._rows))
    buffer._next[slots[0]] = buffer._next[slots[1]]


def a_generator_without_draws(loop: TrainingLoop) -> None:
    """While there are draws in use, the generator follows from what it was before them."""
    buffer = of(loop, "RowReplayBuffer")
    buffer._drawing.pushed()
    buffer._drawing._rng.random()


def another_row(loop: TrainingLoop) -> None:
    buffer = of(loop, "RowReplayBuffer")
    buffer._data.columns["reward"][buffer._slots(np.array([buffer._rows - 1]))] += 0.5


def other_reward_that_waits(loop: TrainingLoop) -> None:
    of(loop, "NStepProcessor")._streams[0].waiting[0].reward += 0.5


def set_to(owner: str, name: str, value: Any) -> Callable[[TrainingLoop], None]:
    return lambda loop: setattr(of(loop, owner), name, value)


def changed(owner: str, path: str) -> Callable[[TrainingLoop], None]:
    """The value becomes another one; tensors stay where they are, because networks look there."""
    *inner, name = path.split(".")

    def change(loop: TrainingLoop) -> None:
        holder = at(of(loop, owner), inner)
        value = other(getattr(holder, name))
        if isinstance(value, torch.Tensor):
            with torch.no_grad():
                getattr(holder, name).copy_(value)
        else:
            setattr(holder, name, value)

    return change


CHANGES: dict[str, Callable[[TrainingLoop], None]] = {
    # Values that have to be known to somebody else.
    "Position.agent_values": set_to("Position", "agent_values", {"agent/loss": 1.5}),
    "Position.incarnations": set_to("Position", "incarnations", {0: 1}),
    "Position.to_do": set_to("Position", "to_do", ["save"]),
    "Position.records": set_to("Position", "records", {"a file": 3}),
    # What has to go together.
    "RatioLimiter.env_steps": one_more_env_step,
    "RatioLimiter._used": one_more_env_step,
    "InThreadSource._taken": one_more_env_step,
    "RatioLimiter.opt_steps": one_more_opt_step,
    "Learner.opt_steps": one_more_opt_step,
    "DqnPolicy.version": one_more_opt_step,
    "Learner.skipped_in_a_row": one_more_skipped,
    "RowReplayBuffer._rows": rows_pushed,
    "RowReplayBuffer._data": another_row,
    "RowReplayBuffer._next": another_link,
    "UniformDrawing._rng": a_generator_without_draws,
    "UniformDrawing._before_draws": set_to(
        "UniformDrawing", "_before_draws", np.random.default_rng(5).bit_generator.state
    ),
    "RowReplayBuffer._tails": lambda loop: loop.parts.buffer.break_streams(),
    # What an environment does as well, so that it comes out of its tape as it went in.
    "TapedEnv._actions": lambda loop: of(loop, "TapedEnv").step([0], np.zeros(1, np.int64)) and None,
    "TapedEnv._seeds": lambda loop: of(loop, "TapedEnv").reset(0, 12345),
    # What is empty, or is one of few.
    "Judging.best": set_to("Judging", "best", Evaluation(7, (99.0,), (5,))),
    "Judging.last": set_to("Judging", "last", Evaluation(8, (98.0,), (6,))),
    "Judging._trials": a_model_that_waits,
    "ResumableSampler._to_cut": set_to("ResumableSampler", "_to_cut", [1]),
    "EnvGuard._in_a_row": set_to("EnvGuard", "_in_a_row", {1: 3}),
    "InThreadSource._cursor": lambda loop: setattr(
        source := of(loop, "InThreadSource"), "_cursor", 1 - source._cursor
    ),
    "NStepProcessor._streams.0.waiting": other_reward_that_waits,
}
PARTS_OF = {
    "Telemetry.progress": "evaluations best",
    "Telemetry._returns": "_sum _n",
    "Telemetry._lengths": "_sum _n",
    "DqnRule.state": "online.weights online.mean online.variance online.count target outcome.sums outcome.skipped"
    " outcome.skipped_in_a_row",
    "EnvGuard._leaves": "0.told_dtype 0.told_bounds",
    "InThreadSource._stat": "episodes",
    "NStepProcessor._streams": "0.episode_return 0.length 0.waiting 0.last_obs",
}
"""Of what holds several values, of which each may be forgotten, and others besides: those that are saved."""


def at(value: Any, path: Sequence[str]) -> Any:
    """What stands below a value; a number is an index."""
    for name in path:
        value = value[int(name)] if name.isdecimal() else getattr(value, name)
    return value


def plain(value: Any) -> Any:
    """As something that can be compared."""
    match value:
        case np.random.Generator():
            return value.bit_generator.state
        case np.ndarray() | torch.Tensor():
            return value.tolist()
        case list() | tuple() | deque():
            return [plain(inner) for inner in value]
        case dict():
            return {key: plain(inner) for key, inner in value.items()}
        case PackedRows():
            return plain(value.columns)
        case _ if is_dataclass(value):
            return plain(vars(value))
    return value


def saved_values(loop: TrainingLoop) -> Iterator[tuple[str, str]]:
    """Owner and path of every value that is said to be saved."""
    owners = [of(loop, owner) for owner in OWNERS]
    for owner in OWNERS:
        for name in listed_in(STATE, owner):
            value = getattr(of(loop, owner), name)
            if any(value is one for one in owners) or isinstance(value, Parts):
                continue  # its own values are gone through
            for part in PARTS_OF.get(f"{owner}.{name}", "").split() or [""]:
                yield owner, f"{name}.{part}" if part else name


# -- tests --------------------------------------------------------------


def state_of(loop: TrainingLoop) -> RunState:
    return take_state(loop.parts, loop.judging, loop._position, reproducible=True, failed=False)


def stored(state: RunState) -> RunState:
    """As it comes back from a checkpoint: arrays of its own, values that went through JSON."""

    def part(state: State) -> State:
        blocks = tuple(Block(b.name, b.sealed, partial(dict, b.arrays())) for b in state.blocks)
        return State(state.copy().arrays, json.loads(json.dumps(state.values)), blocks)

    assert state.replay is not None
    return RunState(
        *(part(one) for one in (state.agent, state.replay, state.actors, state.waiting)),
        *(json.loads(json.dumps(values)) for values in (state.loop, state.generators)),
    )


class Stopped:
    """A run under sync in the middle of it, and as many others as are wanted that go on from there."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        make_loop, after_opt = build.make_loop, TrainingLoop._after_opt

        def make(context: build.Context, *made: Any) -> TrainingLoop:
            self._context, self._rest = context, made[2:]  # evaluator and recorder
            self.loop = make_loop(context, *made)
            return self.loop

        def after(loop: TrainingLoop) -> None:
            after_opt(loop)
            if loop.parts.limiter.opt_steps == STOPPED_AT:
                self._state = stored(state_of(loop))

        patch.setattr(build, "make_loop", make)
        patch.setattr(TrainingLoop, "_after_opt", after)
        train(*WORDS)

    def another(self, state: RunState | None = None) -> TrainingLoop:
        """One that goes on from a state, or from where it was stopped."""
        context = self._context
        agent, buffer = build.make_agent(context), parts.make_buffer(context.config, context.spec)
        loop = build.make_loop(context, agent, buffer, *self._rest)
        loop._go_on_from(stored(state or self._state))
        return loop


STOPPED_AT = 33
"""In the middle of an episode of each environment, with env steps that wait for their sum."""
WORDS = (
    "trainer=sync",
    "trainer.max_opts=36",
    "trainer.eval_interval=10",
    "trainer.record_interval=1000",
    "recorder.jsonl=false",
    "actor_manager.envs_per_actor=2",
    "buffer.n_step=3",
    "buffer.capacity=60",
)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    with in_folder(tmp_path_factory.mktemp("stopped")), pytest.MonkeyPatch.context() as patch:
        return Stopped(patch)


def test_g3_every_attribute_of_a_run_is_decided_on(stopped: Stopped) -> None:
    for owner in OWNERS:
        held = of(stopped.loop, owner)
        assert type(held).__name__ == owner
        assert decided(owner) == sorted(vars(held)), owner


@pytest.mark.parametrize("kind", BY_THEIR_CODE, ids=lambda kind: kind.__name__)
def test_g3_so_is_every_attribute_of_what_a_run_in_lockstep_has_besides(kind: type) -> None:
    assert decided(kind.__name__) == assigned(kind)


def test_g3_what_is_said_to_be_saved_is_saved(stopped: Stopped) -> None:
    lost = []
    for owner, path in saved_values(stopped.loop):
        run, label = stopped.another(), f"{owner}.{path}"

        def value(loop: TrainingLoop, owner: str = owner, path: str = path) -> Any:
            return copy.deepcopy(plain(at(of(loop, owner), path.split("."))))

        before = value(run)
        (CHANGES.get(label) or changed(owner, path))(run)
        assert value(run) != before, label
        if value(stopped.another(state_of(run))) != value(run):
            lost.append(label)
    assert lost == []
