"""A compiled opt step does what the eager learner does."""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from border_cli.actors.sampler import RowProcessor
from border_cli.agents.agent import NetworkAgent
from border_cli.agents.compiler import (
    COMPILING_PAYS_S,
    TRACING_PAYS_S,
    CompileJob,
    GraphCompiler,
    cache_folder,
    graph_path,
    remove_old_files,
    traced_path,
)
from border_cli.config.registry import AGENTS, BUFFERS
from border_cli.core.errors import ExitCode, Interrupted, UsageError
from border_cli.core.spaces import Array
from border_cli.core.types import Batch, Step
from border_cli.runtime.stopping import StopFlag
from tests.fakes import processed
from tests.faults.amounts import FULL, sampled
from tests.faults.processes import nothing_left
from tests.interrupted import assert_same_bits, run_interrupted, run_whole
from tests.learners import SIZE, OneBatchBuffer, batch_of, config_of, learn_from, make_learner, spec_of
from tests.real_runs import Run, train

pytestmark = [
    pytest.mark.usefixtures("folder"),
    pytest.mark.timeout(1800),  # compiling takes minutes on a busy machine
]
full_tier = pytest.mark.skipif(not FULL, reason="make test-full: each of these compiles another graph")
OPT_STEPS = 200
SETTINGS: dict[str, dict[str, Any]] = {
    "dqn": {
        **{"hidden": [8], "lr_schedule": "linear", "lr_opt_steps": 400, "normalize_obs": True},
        **{"weight_decay": 0.01, "reset_interval": 150},
    },
    "sac": {"normalize_obs": True, "critic_subset": 1, "norm": "layer", "critic_dropout": 0.1},
}

WEIGHTED = "dqn", "rainbow", "tqc"
"""The agents whose batches have weights, as prioritized replay gives them."""


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("border_cli.agents.compiler._COMPILING_S", 1500.0)


def compiled_learner(
    agent: str = "dqn",
    compiled: str = "true",
    waits: bool = True,
    plugins: Sequence[str] = (),
    **settings: Any,
) -> tuple[NetworkAgent, GraphCompiler]:
    settings = {"compile": compiled, **SETTINGS.get(agent, {}), **settings}
    learner = make_learner(agent, **settings)
    compiler = GraphCompiler(learner, plugins, waits, StopFlag())
    learner.compiling = compiler.poll
    return learner, compiler


def eager_learner(agent: str = "dqn", **settings: Any) -> NetworkAgent:
    return make_learner(agent, **SETTINGS.get(agent, {}) | settings)


@functools.cache
def replayed(agent: str) -> Batch:
    """A batch of a replay: the strides of its arrays are part of the graph, which runs find in the cache then."""
    if getattr(config_of(agent), "sequences", None) is not None:
        return batch_of(agent, 0, weighted=agent in WEIGHTED)
    entry, spec = BUFFERS["prioritized" if agent in WEIGHTED else "uniform"], spec_of(agent)
    extra = getattr(AGENTS[agent].load(), "extra_columns", lambda config, spec: ())
    columns = extra(config_of(agent), spec)
    buffer = entry.load().make_buffer(entry.config(capacity=100), spec, seed=0, extra=columns)
    processor = RowProcessor(spec, 1, columns)
    for seed in range(40):
        row = batch_of(agent, seed, 1)
        step = Step([0], row.obs, row.action, row.reward, row.terminated, np.zeros(1, bool), row.next_obs)
        step.extras = row.extra
        buffer.push(processed(processor, step))
    rows: Batch = buffer.batch(SIZE)
    return rows


def learn(learner: NetworkAgent, opt_steps: int, agent: str = "dqn") -> list[Any]:
    """Do opt steps with batches in the same memory, as a replay gives them. Returns the errors of each."""
    buffer: Any = OneBatchBuffer(replayed(agent))
    for seed in range(opt_steps):
        refill(agent, seed)
        learner.opt(buffer)
    return list(buffer.errors)


def learn_until_decided(learner: NetworkAgent) -> None:
    while learner.compiling is not None:
        learn(learner, 32)


def refill(agent: str, seed: int) -> Batch:
    """Write new values into the batch of `replayed`."""
    into, new = replayed(agent), batch_of(agent, seed)
    for rows, new_rows in ((into.obs, new.obs), (into.next_obs, new.next_obs)):
        for name, array in rows.items():
            array[...] = new_rows[name]
    for column in ("action", "reward", "discount", "terminated"):
        getattr(into, column)[...] = getattr(new, column)
    for name, array in into.extra.items():
        array[...] = new.extra[name]
    if into.weight is not None:
        into.weight[...] = np.random.default_rng(seed).random(SIZE)
    return into


@dataclass
class Learned:
    """What 200 opt steps have changed."""

    state: Mapping[str, Array]
    generators: Mapping[str, Any]
    errors: Sequence[Any]


def after_opt_steps(agent: str, compiled: bool, **settings: Any) -> Learned:
    learner = compiled_learner(agent, **settings)[0] if compiled else eager_learner(agent, **settings)
    torch.set_num_threads(2 if compiled else 1)
    # FlashSAC's rounding errors grow tenfold in 40 opt steps: its small batches are normalised by their own statistics.
    errors = learn(learner, 10 if agent == "flashsac" else OPT_STEPS, agent)
    torch.set_num_threads(1)
    assert set(learner.algorithm.graphs) == set(learner.algorithm.variants if compiled else ())
    return Learned(learner.state().arrays, learner.generator_state(), errors)


def vectors(learned: Learned) -> dict[str, Array]:
    """The state by vector, such as critics.exp_avg, whose parts are the layers."""
    parts: dict[str, list[Array]] = {}
    for name, array in learned.state.items():
        parts.setdefault(".".join(name.split(".")[:2]), []).append(array.ravel())
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def norm(array: Array) -> float:
    return float(np.linalg.norm(array))


def assert_close(arrays: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    for name, array in expected.items():
        assert norm(array - arrays[name]) <= 1e-2 * norm(array) + 1e-5, name


def assert_learned_like_eager(learner: NetworkAgent, **settings: Any) -> None:
    eager = eager_learner(**settings)
    for _ in range(learner.opt_steps // 32):
        learn(eager, 32)
    assert_close(learner.state().arrays, eager.state().arrays)


def test_a_free_running_learner_goes_on_eagerly_until_the_opt_step_is_traced_and_then_compiled() -> None:
    """It is the first test, so that the others of this agent find its graph in the cache."""
    learner, compiler = compiled_learner(waits=False)
    learn(learner, 32)
    assert not learner.algorithm.graphs and learner.compiling is not None
    assert compiler._child is not None and compiler._folder is not None
    while not traced_path(Path(compiler._folder.name), 0).exists():
        assert not compiler._child.poll(0.1)
    for _ in range(2):
        learn(learner, 32)
    assert set(compiler.graphs) == {"traced"} and learner.algorithm.graphs == compiler.graphs["traced"]
    assert_learned_like_eager(learner)
    assert compiler._child.poll(1200.0)
    learn_until_decided(learner)
    learn(learner, 32)
    assert set(compiler.graphs) == {"traced", "compiled"}
    assert learner.algorithm.graphs == compiler.graphs["compiled"]
    assert_learned_like_eager(learner)


@pytest.mark.parametrize("agent", AGENTS if FULL else ["dqn"])
def test_a_compiled_opt_step_equals_the_eager_one(agent: str) -> None:
    eager, compiled = (after_opt_steps(agent, compiled) for compiled in (False, True))
    assert_close(compiled.state, eager.state)
    assert eager.generators == compiled.generators
    np.testing.assert_allclose(eager.errors, compiled.errors, rtol=0.05, atol=0.05)


@full_tier
@pytest.mark.parametrize("agent", AGENTS)
def test_compiled_opt_steps_in_bfloat16_round_no_more_than_eager_ones(agent: str) -> None:
    """Both differ from float32 by rounding alone, each in another order of operations.

    Vectors are compared as a whole: the rounding of a single number is luck.
    """
    full = after_opt_steps(agent, False)
    eager, compiled = (after_opt_steps(agent, compiled, precision="bfloat16") for compiled in (False, True))
    for name, array in vectors(full).items():
        rounding = norm(array - vectors(eager)[name])
        assert norm(array - vectors(compiled)[name]) <= 2 * rounding + 1e-2 * norm(array) + 1e-5, name
    assert eager.generators == compiled.generators


def test_a_compiled_opt_step_skips_numbers_that_are_not_finite() -> None:
    """Compilers may take x - x and 0·x for 0, which is how such numbers are found."""
    learner, _ = compiled_learner()
    learn(learner, 1)
    assert learner.algorithm.graphs
    before = deepcopy(learner.state().arrays)
    cases = itertools.product(("obs", "next_obs", "reward"), (np.inf, -np.inf, np.nan))
    for number, (column, bad) in enumerate(cases, 1):
        rows = refill("dqn", 1)
        (rows.reward if column == "reward" else getattr(rows, column)["obs.x"][:, 0])[3] = bad
        learn_from(learner, rows)
        assert learner.skipped_in_a_row == number, (column, bad)
    for name, array in learner.state().arrays.items():
        assert name.startswith("stats") or np.array_equal(array, before[name]), name


def with_cache(**settings: Any) -> NetworkAgent:
    """An agent after an opt step that is compiled if the cache has it."""
    learner, compiler = compiled_learner(waits=False, **settings)
    learner.compiling = compiler.use_cached
    learn(learner, 1)
    return learner


@pytest.fixture
def cached() -> set[Path]:
    """The files of the cache, which has the opt step of this agent."""
    learn(compiled_learner()[0], 1)
    return set(cache_folder().glob("dqn-*.pt2"))


def test_a_later_run_uses_the_cache(cached: set[Path]) -> None:
    assert with_cache(target_interval=7, lr_schedule="constant", lr_opt_steps=None).algorithm.graphs
    assert not with_cache(lr=0.5).algorithm.graphs
    assert set(cache_folder().glob("dqn-*.pt2")) == cached


def test_a_damaged_file_is_removed(cached: set[Path], caplog: pytest.LogCaptureFixture) -> None:
    whole = {path: path.read_bytes() for path in cached}
    for path in whole:
        path.write_bytes(b"no library")
    learner = with_cache()
    left = set(cache_folder().glob("dqn-*.pt2"))
    for path, content in whole.items():
        path.write_bytes(content)
    assert not learner.algorithm.graphs and learner.opt_steps == 1
    assert "a compiled opt step cannot be loaded and was removed" in caplog.text
    assert len(left) == len(cached) - 1


def test_a_loaded_graph_leaves_nothing_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    learner, _ = compiled_learner()
    learn(learner, 1)
    assert learner.algorithm.graphs and not list(tmp_path.glob("aotinductor*"))
    assert os.environ["TMPDIR"] == str(tmp_path)


def test_a_changed_module_beside_that_of_the_agent_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_loss.py").write_text("SCALE = 1.0\n")
    (tmp_path / "own_agent.py").write_text("import own_loss\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("own_agent")
    monkeypatch.setitem(AGENTS, "dqn", replace(AGENTS["dqn"], factory="own_agent"))
    job = CompileJob(config_of("dqn"), [], spec_of("dqn"), None)  # type: ignore[arg-type]
    before = graph_path(job, 0)
    assert graph_path(job, 0) == before
    (tmp_path / "own_loss.py").write_text("SCALE = 2.0\n")
    assert graph_path(job, 0) != before


@pytest.mark.parametrize("waits", [False, True])
def test_a_compiling_process_that_fails_is_a_warning_or_an_error_where_bits_have_to_repeat(
    waits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Eager opt steps would round in another way than the compiled ones of the same run elsewhere."""
    learner, _ = compiled_learner(waits=waits, plugins=["no_such_module"], lr=0.25)
    if waits:
        message = r"(?s)agent.compile=true: compiling failed: .*allowed: agent.compile=false"
        with pytest.raises(UsageError, match=message):
            learn(learner, 1)
        return
    learn_until_decided(learner)
    assert not learner.algorithm.graphs
    assert "opt steps are not compiled, compiling failed: plugins: there is no module" in caplog.text


@pytest.mark.parametrize(
    ("time_left", "done"),
    [(TRACING_PAYS_S - 1, ""), (COMPILING_PAYS_S - 1, "traced"), (COMPILING_PAYS_S, "compiled")],
)
def test_only_what_pays_in_the_time_that_is_left_is_done(
    monkeypatch: pytest.MonkeyPatch, time_left: float, done: str
) -> None:
    monkeypatch.setattr("border_cli.agents.compiler._MEASURING_S", 0.0)
    learner, compiler = compiled_learner(compiled="auto", waits=False, adam_eps=1e-6)
    opt_steps_s = list[float]()
    compiler._time_left = lambda opt_step_s: opt_steps_s.append(opt_step_s) or time_left
    learn(learner, 40)
    assert len(opt_steps_s) == (1 if done else 40) and 0.0 < opt_steps_s[-1] < 10.0
    assert bool(list(cache_folder().glob("tmp*"))) is bool(done), "the folder of the compiling process"
    if done == "traced":
        learn_until_decided(learner)
        assert set(compiler.graphs) == {"traced"}
        assert not any(path.exists() for path in compiler._paths.values())
    compiler.close()


@pytest.mark.parametrize(
    ("variable", "value", "reason", "traced"),
    [
        ("CXX", "/no/such/compiler", "there is no C++ compiler (/no/such/compiler)", {"traced"}),
        ("XDG_CACHE_HOME", "/proc/cache", "/proc/cache: No such file or directory", set()),
    ],
)
def test_where_opt_steps_cannot_be_compiled_they_are_traced_or_eager(
    variable: str, value: str, reason: str, traced: set[str],
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setenv(variable, value)
    learner, compiler = compiled_learner(compiled="auto", waits=False, adam_eps=1e-5)
    learn_until_decided(learner)
    assert set(compiler.graphs) == traced
    assert_learned_like_eager(learner, adam_eps=1e-5)
    assert caplog.text.count(f"agent.compile: opt steps are not compiled, {reason}") == 1


def test_the_waiting_ends_when_the_run_is_asked_to_stop() -> None:
    notes = list[str]()
    learner, compiler = compiled_learner(lr=0.125)
    compiler._note, compiler._waiting = notes.append, lambda: compiler._stop.request(ExitCode.SIGINT)
    with pytest.raises(Interrupted):
        learn(learner, 1)
    compiler.close()
    assert learner.opt_steps == 0
    assert [note.partition(" ")[0] for note in notes] == ["compiling", "the"]


RUN = (
    "env=gym",
    "env.entry_point=tests.envs:Sampled",
    "env.kwargs.space='number and kind'",
    "env.kwargs.actions=2",
    "buffer=prioritized",
    *(
        f"agent.{name}={value}".replace(" ", "").replace("True", "true")
        for name, value in SETTINGS["dqn"].items()
    ),
    "trainer.max_opts=60",
    "trainer.max_env_steps=null",
    "trainer.eval_interval=null",
    "agent.compile=true",
)


def log(run: Run) -> str:
    return (run.path / "train.log").read_text(encoding="utf-8")


@full_tier
@pytest.mark.parametrize("agent", ["dqn", "btr"])
def test_an_opt_step_with_convolutions_is_compiled_though_torch_cannot_trace_it(agent: str) -> None:
    small = ("agent.channels=[4,8]", "agent.hidden=[16]", "agent.batch_size=16")
    run = train(
        f"agent={agent}", "env=catch", "trainer=sync", "agent.compile=true", "trainer.max_opts=4", *small
    )
    assert log(run).count("the opt step is compiled from here on") == 1


def test_a_run_that_ends_first_leaves_no_process() -> None:
    with nothing_left():
        run = train(*RUN, "agent.lr=0.0625")
    assert run.counts[0] == 60 and "the opt step is compiled" not in log(run)
    assert log(run).count("the run ended before its opt step was compiled") == 1
    assert list(cache_folder().glob("tmp*")) == []


def test_a_free_running_run_keeps_the_faster_opt_steps_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the cache are used from the first opt step on, and compared with eager ones at once."""
    monkeypatch.setattr("border_cli.agents.chooser.TURN_S", 0.0)
    monkeypatch.setattr("border_cli.agents.chooser.WARM_UP_S", 0.0)
    monkeypatch.setattr("border_cli.agents.chooser._FIRST_LOOK_S", 0.0)
    train(*RUN, "trainer=sync")
    run = train(*RUN, "agent.compile=auto", "threads=1", "trainer.max_opts=200")
    assert run.config.agent.compile == "auto"
    (line,) = re.findall("the fastest opt steps here are (.*)", log(run))
    assert re.fullmatch(
        r"(compiled|eager) with 1 thread; as a share of their speed: (compiled|eager) with 1 thread \d+\.\d\d",
        line,
    )


MODES = [("trainer=sync",), ("trainer.lockstep=true", "n_actors=2", "trainer.lockstep_steps=4")]


@pytest.mark.parametrize("mode", sampled(MODES, 2))
def test_sync_and_lockstep_repeat_their_bits_with_compiled_opt_steps(
    folder: Path, mode: tuple[str, ...]
) -> None:
    args = (*mode, *RUN, "trainer.save_interval=14")
    whole = run_whole(folder / f"{mode[0]}, whole", *args)
    assert "the opt step is compiled from here on" in log(whole)
    resumed = run_interrupted(folder / f"{mode[0]}, resumed", *args, at=30)
    assert log(resumed).count("the opt step is compiled from here on") == 2
    assert_same_bits(resumed, whole)


def test_what_a_killed_run_left_in_the_cache_is_removed_by_a_later_one(cached: set[Path]) -> None:
    old, new = cache_folder() / "tmpold", cache_folder() / "tmpnew"
    for folder in (old, new):
        folder.mkdir()
        (folder / "graph.pt2").touch()
    os.utime(old, (0, 0))
    remove_old_files(cache_folder())
    assert not old.exists() and new.exists()
    shutil.rmtree(new)
