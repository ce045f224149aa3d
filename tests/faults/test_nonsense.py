"""Row I4: a checkpoint with correct checksums and nonsensical content is refused by keys, types and shapes.

The test takes the saved state of a run, removes or replaces each of its values in turn, and loads it into a new loop. The
loop must either load or refuse it. Any other exception is a defect.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from border_cli.cli.train import main
from border_cli.core.errors import ExitCode, IncompatibleStateError
from border_cli.core.state import Block, RunState, State
from border_cli.run import build
from border_cli.runtime.stopping import run_all
from border_cli.training.loop import TrainingLoop
from tests.faults.amounts import FULL, sampled
from tests.interrupted import signal_at
from tests.real_runs import Run, tiny

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
NONSENSE: tuple[Any, ...] = (1.5, None, [], {}, "x", True, [[]], {"x": {}}) if FULL else (1.5, None)
STRANGE_ARRAYS: tuple[Callable[[Any], Any], ...] = (
    lambda array: array[:0] if array.ndim else array.reshape(1),
    lambda array: np.concatenate([array, array]) if array.ndim else array.reshape(1, 1),
    lambda array: array.astype(np.complex128),
)


def interrupted(folder: Path, *args: str) -> Run:
    with signal_at(50):
        assert main([*tiny(*args), f"hydra.run.dir='{folder}'"]) == 143
    return Run(folder)


def paths(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value and container in plain data; of lists only the first element."""
    if path:
        yield path
    items = data.items() if isinstance(data, dict) else enumerate(data[:1]) if isinstance(data, list) else ()
    for key, value in items:
        yield from paths(value, (*path, key))


def changed(data: Any, path: tuple[Any, ...], *value: Any) -> Any:
    """Return a copy with another value at this path, or without it."""
    data = copy.deepcopy(data)
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    if value:
        (inner[path[-1]],) = value
    else:
        del inner[path[-1]]
    return data


def variants_of_values(data: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in paths(data):
        yield f"{path} missing", changed(data, path)
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
    """Yield a description and a state with one faulty value."""
    for field in ("loop", "generators"):
        for what, values in variants_of_values(getattr(state, field)):
            yield f"{field}: {what}", replace(state, **{field: values})
    for field in ("agent", "actors", "evaluation"):
        for what, part in variants_of_part(getattr(state, field)):
            yield f"{field}: {what}", replace(state, **{field: part})
    assert state.replay is not None
    for what, part in variants_of_replay(state.replay):
        yield f"replay: {what}", replace(state, replay=part)


HARMLESS = (
    # any number of entries
    r"loop: \('(agent_values|incarnations|pending)',\) = \[\]|loop: \('pending', 0\) missing",
    r"loop: \('telemetry', '(evaluations|lags|recent_returns)'(\) = \[\]|, 0\) missing)",
    r"evaluation: \('pending',\) = \[\]|evaluation: \('(last|reached)',\) = None",
    r"actors: sampler/env/actions-\d, strange [01]",
    # floats may be any number, and null stands for a number that is not finite
    r"loop: \('telemetry', ('means', '[a-z_/]+'|'recent_returns'), 0\) = (1\.5|None)",
    r"evaluation: (\('(last|candidates)', (\d, )?'returns', 0\)|\('reached',\)) = (1\.5|None)",
    # parts of a lost actor may be missing: it starts new episodes
    r"actors: \('sampler',\) missing|actors: \('sampler', ('env'|'processor')\) = \{\}",
    r"actors: one array more",  # no component reads it
    r"generators: \('seed',\).*",  # informational: the seed comes from the configuration
    r"loop: \('records'.*",  # refused before the loop is made, see `test_hostile`
    r"loop: \('whole',\) = True",  # its value
)
"""What else may stand there."""


def test_i4_every_value_of_a_saved_state_is_checked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = interrupted(folder / "sync", *SYNC)
    make_loop = build.make_loop
    refused, taken, other = list[str](), list[str](), list[str]()

    def load_all_variants_first(setup: build.RunSetup) -> TrainingLoop:
        assert setup.resumed.state is not None
        for what, variant in sampled([*variants(setup.resumed.state)], 3):
            mine = list[Any]()
            loop = make_loop(replace(setup, closing=mine))
            try:
                loop.start(variant)
                taken.append(what)
            except IncompatibleStateError as e:
                assert len(str(e)) < 300, what
                refused.append(what)
            except Exception as e:
                other.append(f"{what}: {type(e).__name__}: {e}")
            run_all([*mine, loop.parts.source.stop])
        return make_loop(setup)

    monkeypatch.setattr(build, "make_loop", load_all_variants_first)
    assert main([f"resume={run.path}"]) == 0
    assert other == []
    assert [what for what in taken if not any(re.fullmatch(known, what) for known in HARMLESS)] == []
    assert len(refused) > 100
    if FULL:
        assert [known for known in HARMLESS if not any(re.fullmatch(known, what) for what in taken)] == []


@pytest.fixture(scope="module")
def lockstep_run(folder: Path) -> Run:
    return interrupted(folder / "lockstep", *LOCKSTEP)


PATHS = [
    ("rounds", "next"),
    ("actor0", "own", "round"),
    ("actor0", "sampler", "own", "episodes"),
    ("actor0", "policy", "state"),
]


@pytest.mark.parametrize("path", sampled(PATHS, 2), ids="/".join)
def test_i4_every_value_of_an_actors_state_is_checked_in_its_process(
    lockstep_run: Run,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    path: tuple[str, ...],
) -> None:
    def files() -> dict[str, bytes]:
        logs = ("train.log", "output.log", ".lock")
        return {name: data for name, data in lockstep_run.files("").items() if name not in logs}

    def damaged(loop: TrainingLoop, state: RunState, best: Any) -> None:
        values = changed(state.actors.values, path, "x")
        start(loop, replace(state, actors=replace(state.actors, values=values)), best)

    before, start = files(), TrainingLoop.start
    monkeypatch.setattr(TrainingLoop, "start", damaged)
    assert main([f"resume={lockstep_run.path}"]) == ExitCode.NO_VALID_CHECKPOINT
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) <= 3 and "cannot be resumed from" in lines[0]
    assert files() == before
