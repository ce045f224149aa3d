"""`python -m bench.gpu`: opt steps per second with `device=cuda`, on a machine with a GPU.

In each repetition the ways to do an opt step take turns, sampling included, on a replay of made-up rows. The CPU has
one thread.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from bench.report import markdown, number
from border_cli import compose
from border_cli.agents.agent import NetworkAgent
from border_cli.agents.capture import capture_opt_steps
from border_cli.core.spaces import ActionSpec, EnvSpec, ObsLeaf, ObsSpec
from border_cli.run import factories
from border_cli.run.probes import made_up
from border_cli.runtime.tensors import repeat_bits_on_gpu
from border_cli.runtime.worker import keep_freed_memory

CARTPOLE = EnvSpec(ObsSpec((ObsLeaf("obs", (), "box", (4,), "float32"),)), ActionSpec("discrete", n=2))
CHEETAH = EnvSpec(
    ObsSpec((ObsLeaf("obs", (), "box", (17,), "float32"),)),
    ActionSpec("box", shape=(6,), low=(-1.0,) * 6, high=(1.0,) * 6),
)
FRAMES = EnvSpec(
    ObsSpec((ObsLeaf("obs", (), "box", (4, 84, 84), "uint8", 0.0, 255.0, stack=4),)),
    ActionSpec("discrete", n=6),
)
CASES = {
    "DQN, CartPole, 64-64, batches of 64": (CARTPOLE, "agent=dqn agent.hidden=[64,64] agent.batch_size=64"),
    "SAC, HalfCheetah, 256-256, batches of 256": (
        CHEETAH,
        "agent=sac agent.hidden=[256,256] agent.batch_size=256",
    ),
    "TQC, HalfCheetah, 256-256, batches of 256": (
        CHEETAH,
        "agent=tqc agent.hidden=[256,256] agent.batch_size=256",
    ),
    "DQN, Atari, batches of 32": (FRAMES, "agent=dqn agent.hidden=[512] agent.batch_size=32"),
    "DQN, Atari, batches of 256": (FRAMES, "agent=dqn agent.hidden=[512] agent.batch_size=256"),
    "Rainbow, Atari, batches of 32": (FRAMES, "agent=rainbow agent.hidden=[512] agent.batch_size=32"),
    "IQN, Atari, batches of 32": (FRAMES, "agent=iqn agent.hidden=[512] agent.batch_size=32"),
}
WAYS = {
    "eager": "agent.compile=false buffer.device=cuda",
    "graph": "agent.compile=true buffer.device=cuda",
    "graph, replay in main memory": "agent.compile=true buffer.device=cpu",
    "graph, bfloat16": "agent.compile=true buffer.device=cuda agent.precision=bfloat16",
}
REPRODUCIBLE = "graph, bits repeat"
CPU = "CPU, eager"
ROWS = 4_000
SECONDS = 0.5
"""Per measurement."""
OptStep = Callable[[], object]


def opt_step(spec: EnvSpec, overrides: str) -> OptStep:
    """An opt step of a new agent on a replay of its own, captured as a CUDA graph if `overrides` say so."""
    config = compose(*overrides.split(), "preset=none", f"buffer.capacity={ROWS}")
    agent, buffer = factories.make_agent(config, spec), factories.make_buffer(config, spec)
    assert isinstance(agent, NetworkAgent)
    buffer.push(made_up(spec, ROWS, config))
    if "compile=true" in overrides:
        agent.compiling = partial(capture_opt_steps, agent.algorithm)
        agent.opt(buffer)
        assert agent.algorithm.graphs, "the opt step could not be captured"
    return partial(agent.opt, buffer)


def rate(step: OptStep) -> float:
    """Opt steps per second, after some that are not counted."""
    for _ in range(20):
        step()
    torch.cuda.synchronize()
    began, n = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS:
        step()
        n += 1
    torch.cuda.synchronize()
    return n / (time.perf_counter() - began)


def measure(spec: EnvSpec, overrides: str, repetitions: int) -> dict[str, float]:
    """The median opt steps per second of each way."""
    steps = {CPU: opt_step(spec, f"{overrides} agent.compile=false")}
    steps |= {way: opt_step(spec, f"{overrides} device=cuda {options}") for way, options in WAYS.items()}
    repeat_bits_on_gpu(True)
    steps[REPRODUCIBLE] = opt_step(spec, f"{overrides} device=cuda {WAYS['graph']}")
    repeat_bits_on_gpu(False)
    rates = [{way: rate(step) for way, step in steps.items()} for _ in range(repetitions)]
    return {way: statistics.median(rate[way] for rate in rates) for way in steps}


def main() -> None:
    """Measure every case and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose names contain this")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("there is no GPU that torch can use")
    torch.set_num_threads(1)
    repeat_bits_on_gpu(False)
    keep_freed_memory()  # like a run
    rows, head = [], ["opt steps/s", CPU, *WAYS, REPRODUCIBLE]
    for name, (spec, overrides) in CASES.items():
        if args.only in name:
            measured = measure(spec, overrides, args.repetitions)
            rows.append([name, *(number(measured[way]) for way in head[1:])])
            print(rows[-1], flush=True)
    print(torch.cuda.get_device_name())
    print(markdown(head, rows))


if __name__ == "__main__":
    main()
