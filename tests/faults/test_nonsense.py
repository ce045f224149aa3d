"""I4: a checkpoint whose sums fit and whose content is nonsense is refused, value by value, before anything starts.

One run is resumed for real, and on its way in every value of its saved state is replaced by what no run ever wrote: the
loop takes it over, or says that it does not fit. Any other exception is what this test is there for.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from border_cli.cli.train import main
from border_cli.core.errors import ExitCode, UnfitStateError
from border_cli.core.state import Block, RunState, State
from border_cli.trainers.loop import TrainingLoop
from tests.interrupted import signal_at
from tests.real_runs import Run, in_folder, tiny

SYNC = (
    "trainer=sync",
    "buffer.capacity=200",
    "actor_manager.envs_per_actor=2",
    "buffer.n_step=3",
    "trainer.max_opts=80",
    "trainer.save_interval=null",
    "trainer.eval_interval=20",
)
LOCKSTEP = ("trainer.lockstep=true", "trainer.max_opts=80", "trainer.eval_interval=20", "buffer.capacity=200")
NONSENSE: tuple[Any, ...] = (
    -1,
    2**63,
    10**39,
    1.5,
    -1e308,
    "x",
    None,
    True,
    [],
    [[]],
    {},
    {"x": {}},
)
STRANGE_ARRAYS: tuple[Callable[[Any], Any], ...] = (
    lambda array: array[:0] if array.ndim else array.reshape(1),
    lambda array: np.concatenate([array, array]) if array.ndim else array.reshape(1, 1),
    lambda array: array.astype(np.float16),
    lambda array: -np.ones_like(array) if array.dtype != bool else ~array,
    lambda array: np.full_like(
        array, np.inf if array.dtype.kind == "f" else 1 if array.dtype == bool else 2**30
    ),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, full_forkserver: None) -> Iterator[Path]:
    with in_folder(tmp_path_factory.mktemp("nonsense")) as path:
        yield path


def interrupted(folder: Path, *words: str) -> Run:
    with signal_at(50):
        assert main([*tiny(*words), f"hydra.run.dir='{folder}'"]) == 143
    return Run(folder)


def paths(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where every value of plain data stands, those that hold others included; of long lists the first two."""
    if path:
        yield path
    items = data.items() if isinstance(data, dict) else enumerate(data[:2]) if isinstance(data, list) else ()
    for key, value in items:
        yield from paths(value, (*path, key))


def changed(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy with one value replaced."""
    data = copy.deepcopy(data)
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return data


def without(data: Any, path: tuple[Any, ...]) -> Any:
    data = copy.deepcopy(data)
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return data


def variants_of_values(data: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in paths(data):
        yield f"{path} missing", without(data, path)
        for value in NONSENSE:
            yield f"{path} = {value!r}", changed(data, path, value)


def variants_of_arrays(arrays: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, array in arrays.items():
        yield f"{name} missing", {key: value for key, value in arrays.items() if key != name}
        for i, strange in enumerate(STRANGE_ARRAYS):
            yield f"{name}, strange {i}", arrays | {name: strange(array)}
    yield "one array more", arrays | {"x": np.zeros(3)}


def variants_of_part(state: State) -> Iterator[tuple[str, State]]:
    for what, values in variants_of_values(state.values):
        yield what, replace(state, values=values)
    for what, arrays in variants_of_arrays(state.arrays):
        yield what, replace(state, arrays=arrays)


def variants_of_replay(replay: State) -> Iterator[tuple[str, State]]:
    yield from variants_of_part(replay)
    yield "no blocks", replace(replay, blocks=())
    yield "blocks twice", replace(replay, blocks=replay.blocks * 2)
    first, *rest = replay.blocks
    yield "another name", replace(replay, blocks=(replace(first, name="rows-000000009"), *rest))
    for what, arrays in variants_of_arrays(first.arrays()):
        block = Block(first.name, first.sealed, lambda arrays=arrays: arrays)  # type: ignore[misc]
        yield what, replace(replay, blocks=(block, *rest))


def variants(state: RunState) -> Iterator[tuple[str, RunState]]:
    """The state with one thing wrong, and what that is."""
    for field in ("loop", "generators"):
        for what, values in variants_of_values(getattr(state, field)):
            yield f"{field}: {what}", replace(state, **{field: values})
    for field in ("agent", "actors"):
        for what, part in variants_of_part(getattr(state, field)):
            yield f"{field}: {what}", replace(state, **{field: part})
    assert state.replay is not None
    for what, part in variants_of_replay(state.replay):
        yield f"replay: {what}", replace(state, replay=part)


HARMLESS = re.compile(
    r"loop: \('(judging|telemetry)', '(best|last|evaluations|lengths|returns|recent_returns|lags)'.*"
    r"|loop: \('(recorded_at|agent_values|to_do)'.*( missing|= -1|= \[\]|= \{\})"
    r"|loop: \('(incarnations',|judging', 'pending')\) = \[\]"  # which is what they were
    r"|loop: \('records'.*"  # judged before there is a loop
    r"|generators: \('seed',\).*"  # a note: the seed stands in the configuration
    r"|generators: .*'(has_uint32|inc|state|uinteger)'\) = .*"
    r"|generators: \('exploration', 'learning'\) missing"  # as of the first that were saved
    r"|actors: \('sampler',\) missing"  # as of an actor that was lost: a new episode begins
    r"|actors: .*'judged'\) missing"  # as of the first that were saved
    r"|actors: .*'(told_dtype|told_bounds)', 0\) = True"  # it was told, or was not
    r"|actors: .*'(observation|episode_return)'\) = .*"
    r"|actors: sampler/env/\d, strange [01]|actors: one array more"
    r"|(agent|actors|replay): .*, strange [34]"
    r"|.*'(whole|begun)'.* = True"  # which is what it was
)
"""Other numbers where any number will do."""


def test_i4_every_value_of_a_saved_state_is_checked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = interrupted(folder / "sync", *SYNC)
    go_on = TrainingLoop._go_on_from
    refused, taken, other = list[str](), list[str](), list[str]()

    def go_on_from_all(loop: TrainingLoop, state: RunState) -> None:
        assert state.replay is not None
        blocks = tuple(Block(b.name, b.sealed, partial(dict, b.arrays())) for b in state.replay.blocks)
        state = replace(state, replay=replace(state.replay, blocks=blocks))
        for what, variant in variants(state):
            try:
                go_on(loop, variant)
                taken.append(what)
            except UnfitStateError as e:
                assert len(str(e)) < 300, what
                refused.append(what)
            except Exception as e:
                other.append(f"{what}: {type(e).__name__}: {e}")
        go_on(loop, state)

    monkeypatch.setattr(TrainingLoop, "_go_on_from", go_on_from_all)
    assert main([f"resume={run.path}"]) == 0
    assert other == []
    assert [what for what in taken if not HARMLESS.fullmatch(what)] == []
    assert len(refused) > 1000


def spoilt(state: RunState, *path: str) -> RunState:
    """The state with "x" for one value of its actors."""
    return replace(state, actors=replace(state.actors, values=changed(state.actors.values, path, "x")))


@pytest.mark.parametrize(
    "path",
    [
        ("rounds", "next"),
        ("actor0", "counts", "round"),
        ("actor0", "sampler", "env", "0", "seed"),
        ("actor0", "policy", "state"),
    ],
    ids="/".join,
)
def test_i4_so_is_what_an_actor_process_is_given(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], path: tuple[str, ...]
) -> None:
    run_dir = folder / "lockstep"
    run = Run(run_dir) if run_dir.exists() else interrupted(run_dir, *LOCKSTEP)
    before = all_but_the_log(run)
    go_on = TrainingLoop._go_on_from
    with monkeypatch.context() as patch:
        patch.setattr(TrainingLoop, "_go_on_from", lambda loop, state: go_on(loop, spoilt(state, *path)))
        assert main([f"resume={run.path}"]) == ExitCode.NO_VALID_CHECKPOINT
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) <= 3
    assert "cannot be gone on from" in lines[0]
    assert all_but_the_log(run) == before


def all_but_the_log(run: Run) -> dict[str, bytes]:
    return {name: data for name, data in run.files("").items() if name not in ("train.log", ".lock")}
