"""`device=cuda` on a real GPU: `make test-gpu`. tests/unit/test_capture.py shows the same paths without one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from border_cli import load, load_agent
from border_cli.agents.capture import capture_opt_steps
from border_cli.cli.train import main
from border_cli.runtime.tensors import repeat_bits_on_gpu
from tests.interrupted import assert_same_bits, resume, run_interrupted, run_whole
from tests.kinds import AGENTS
from tests.learners import assert_same_state, learn, make_learner
from tests.real_runs import Run, tiny, train

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

CONTINUOUS = ("sac", "td3", "tqc", "crossq", "rsac", "flashsac")
FRAMES = (
    "env=catch",
    "env.screen_size=44",
    "env.frame_stack=4",
    "agent.channels=[8,16,16]",
    "agent.target_interval=16",
)
LARGE = (
    "agent.batch_size=1024",
    "buffer.capacity=2200",
    "trainer.warmup_period=1100",
    "trainer.opt_interval=0.25",
)
"""So many rows that the order of additions differs from run to run, unless `repeat_bits_on_gpu` fixes it."""
TASKS = {
    agent: (
        f"agent={agent}",
        f"env={'pendulum' if agent in CONTINUOUS else 'cartpole'}",
        *(() if agent == "crossq" else ("agent.target_interval=16",)),  # it has no targets
    )
    for agent in AGENTS
}
TASKS |= {
    "rainbow on frames": ("agent=rainbow", *FRAMES),
    "btr on frames": ("agent=btr", *FRAMES),
    "iqn on frames, prioritised": ("agent=iqn", *FRAMES, "buffer=prioritized"),
    "sac, bfloat16": (*TASKS["sac"], "agent.precision=bfloat16"),
    "rainbow on frames, large batches": ("agent=rainbow", *FRAMES, *LARGE),
}
REPEATED = (
    f"device={DEVICE}",
    "trainer=sync",
    "trainer.max_opts=60",
    "trainer.eval_interval=25",
    "trainer.save_interval=30",
    "trainer.record_interval=10",
    "buffer.capacity=90",
    "seed=7",
)


@pytest.fixture
def same_bits() -> Iterator[None]:
    repeat_bits_on_gpu(True)
    yield
    repeat_bits_on_gpu(False)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("agent", AGENTS)
def test_captured_opt_steps_equal_eager_ones(agent: str, weighted: bool, same_bits: None) -> None:
    eager, captured = (make_learner(agent, device=DEVICE) for _ in range(2))
    captured.compiling = partial(capture_opt_steps, captured.algorithm)
    errors = [learn(agent, learner, range(7), weighted) for learner in (eager, captured)]
    assert set(captured.algorithm.graphs) == set(captured.algorithm.variants)
    assert_same_state(eager, captured)
    np.testing.assert_array_equal(*errors)


@pytest.mark.parametrize("agent", AGENTS)
def test_opt_steps_equal_those_of_the_cpu_but_for_rounding(agent: str) -> None:
    learners = [make_learner(agent, device=device) for device in (DEVICE, "cpu")]
    for learner in learners:
        learn(agent, learner, range(3), weighted=True)
    arrays, expected = (learner.state().arrays for learner in learners)
    for name, array in expected.items():
        np.testing.assert_allclose(arrays[name], array, rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("task", TASKS)
def test_reproducible_runs_repeat_their_bits(folder: Path, task: str) -> None:
    """Also with the replay in main memory, and interrupted and resumed: the batches are the same."""
    args = (*REPEATED, *TASKS[task])
    whole = run_whole(folder / f"{task}, whole", *args, f"buffer.device={DEVICE}")
    other = run_interrupted(folder / f"{task}, paused", *args, "buffer.device=cpu", at=37)
    assert_same_bits(other, whole)
    assert "the opt step is a CUDA graph" in (other.path / "train.log").read_text()


def test_a_lockstep_run_repeats_its_bits(folder: Path) -> None:
    args = [arg for arg in REPEATED if arg != "trainer=sync"] + ["trainer.lockstep=true", "n_actors=2"]
    first, other = (run_whole(folder / name, *args, *TASKS["c51"]) for name in ("lockstep 1", "lockstep 2"))
    assert_same_bits(first, other)


def test_a_run_of_a_gpu_goes_on_without_one(folder: Path) -> None:
    """And its saved model acts on the CPU as it does on the GPU."""
    run = train(
        "agent=dqn", "env=cartpole", f"device={DEVICE}", "trainer.max_opts=30", "seed=3", "n_actors=2"
    )
    obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    agent = load_agent(run.path, device=DEVICE)
    agent.eval()
    on_cpu = load(run.path, "last").sample(obs)
    assert agent.sample({"obs": obs}).tolist() == on_cpu.tolist()
    resume(run.path, "device=cpu", "trainer.max_opts=50")
    assert run.counts[0] == 50


def test_too_little_memory_is_one_message(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = tiny("agent=sac", "env=pendulum", f"device={DEVICE}", "trainer=sync", "agent.hidden=[16,16]")
    large = ["buffer.capacity=100000000000", "buffer.device=cuda", "checkpoint.replay=none"]
    assert main([*args, *large]) == 3
    assert "free memory" in capsys.readouterr().err


def test_dqn_solves_cartpole(folder: Path) -> None:
    """Free-running, as `border-train agent=dqn env=cartpole device=cuda` does."""
    typed = ("agent=dqn", "env=cartpole", f"device={DEVICE}", "n_actors=4", "seed=1", "recorder.console=none")
    assert main([*typed, "trainer.stop_return=475"]) == 0
    run = Run(Path("runs/latest").resolve())
    assert run.summary["ended_by"] == "stop_return", run.series("eval/return_mean")
