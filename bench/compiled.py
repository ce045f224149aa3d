"""`python -m bench.compiled`: what compiling brings, for the opt step of every agent.

In each repetition eager opt steps, always in float32, and compiled ones take turns, on batches of a replay with real rows.
One thread. Compiling takes about 10 s per agent where the cache does not have the graph yet.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial

from bench.learning import compile_steps, opt_rate
from bench.report import Figure, markdown
from border_cli import compose
from border_cli.actors.sampler import Sampler
from border_cli.agents.agent import NetworkAgent
from border_cli.run import factories
from border_cli.runtime import seeding
from border_cli.runtime.worker import keep_freed_memory

CARTPOLE, CHEETAH = ("env=cartpole", "preset=none"), ("env=halfcheetah", "preset=none")
SMALL, LARGE = "agent.hidden=[64,64]", "agent.hidden=[256,256]"
BFLOAT16 = "agent.precision=bfloat16"
CASES = {
    "DQN, CartPole, 64-64": ("agent=dqn", *CARTPOLE, SMALL),
    "DQN, CartPole, 256-256": ("agent=dqn", *CARTPOLE, LARGE),
    "C51, CartPole, 64-64": ("agent=c51", *CARTPOLE, SMALL),
    "QR-DQN, CartPole, 64-64": ("agent=qrdqn", *CARTPOLE, SMALL),
    "IQN, CartPole, 64-64": ("agent=iqn", *CARTPOLE, SMALL),
    "Rainbow, CartPole, 64-64": ("agent=rainbow", *CARTPOLE, SMALL),
    "SAC, HalfCheetah, 256-256": ("agent=sac", *CHEETAH, LARGE),
    "TD3, HalfCheetah, 256-256": ("agent=td3", *CHEETAH, LARGE),
    "TQC, HalfCheetah, 256-256": ("agent=tqc", *CHEETAH, LARGE),
    "DQN, CartPole, 256-256, bfloat16": ("agent=dqn", *CARTPOLE, LARGE, BFLOAT16),
    "SAC, HalfCheetah, 256-256, bfloat16": ("agent=sac", *CHEETAH, LARGE, BFLOAT16),
}
ROWS = 2000
SECONDS = 0.5
"""Per measurement."""


def compiled_over_eager(overrides: tuple[str, ...], repetitions: int) -> tuple[list[float], list[float]]:
    """Return the eager and the compiled opt steps/s of each repetition."""
    config = compose(*overrides, "agent.compile=true")
    actor = factories.actor_spec(config).actor_id(0, 0, 1)
    env = factories.actor_env(actor, config)
    plain = replace(config, agent=replace(config.agent, precision="float32"))  # type: ignore[call-arg]
    agents = [factories.make_agent(c, env.spec) for c in (plain, config)]
    buffer = factories.make_buffer(config, env.spec)
    policy, processor = (
        factories.actor_policy(actor, env.spec, config),
        factories.actor_processor(actor, env.spec, config),
    )
    sampler = Sampler(env, policy, processor, partial(seeding.first_seed, 0, 0, 0))
    sampler.begin()
    for _ in range(ROWS):
        buffer.push(sampler.sample([0], 0))
    env.close()
    agent = agents[1]
    assert isinstance(agent, NetworkAgent)
    compile_steps(agent, buffer)

    measured = [[opt_rate(agent, buffer, SECONDS) for agent in agents] for _ in range(repetitions)]
    eager, compiled = zip(*measured, strict=True)
    return list(eager), list(compiled)


def main() -> None:
    """Measure every case and print the table."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose names contain this")
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # like a run
    rows = []
    for name, overrides in CASES.items():
        if args.only not in name:
            continue
        eager, compiled = compiled_over_eager(overrides, args.repetitions)
        ratio = [fast / slow for fast, slow in zip(compiled, eager, strict=True)]
        figures = (Figure("", eager, ""), Figure("", compiled, ""), Figure("", ratio, ""))
        rows.append([name, *(figure.cells()[1] for figure in figures), figures[2].cells()[2]])
        print(rows[-1], flush=True)
    print(markdown(["opt step", "eager, per s", "compiled, per s", "ratio", "least to greatest"], rows))


if __name__ == "__main__":
    main()
