"""What is compared: other tools with their pinned packages, and the tasks that they and border-train train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

EPISODES = 20
"""Greedy episodes of an evaluation."""


@dataclass(frozen=True)
class Peer:
    """Another tool: its pinned packages and its program under programs/."""

    name: str
    packages: Sequence[str]
    program: str


PEERS = (
    Peer(
        "stable-baselines3",
        (
            "stable-baselines3==2.9.2",
            "sb3-contrib==2.9.2",
            "ale-py==0.12.0",
            "opencv-python-headless==4.13.0.92",
        ),
        "sb3.py",
    ),
    Peer("PFRL", ("pfrl==0.4.0", "packaging>=24"), "pfrl_dqn.py"),
    Peer("Tianshou", ("tianshou==2.0.1",), "tianshou_dqn.py"),
)


@dataclass(frozen=True)
class Task:
    """A run of each tool. target: the greedy mean return that ends it; None measures opt steps per second.

    options: arguments of `border-train` beside agent and threads. peers: names of those that have the agent. threads: of
    torch in each program that learns.
    """

    name: str
    env_id: str
    hidden: Sequence[int]
    max_env_steps: int
    options: Sequence[str]
    peers: Sequence[str]
    target: float | None = None
    eval_interval: int = 500
    agent: str = "dqn"
    threads: int = 1


DQN_PEERS = ("stable-baselines3", "PFRL", "Tianshou")
SB3 = DQN_PEERS[:1]
ZOO_CARTPOLE = (
    "env=cartpole",
    "buffer.n_step=1",
    "agent.double=false",
    "agent.batch_size=64",
    "agent.normalize_obs=false",
    "agent.dueling=false",
    "trainer.opt_interval=2.0",
    "trainer.max_env_steps=51000",
    "trainer.eval_interval=null",
)
CHEETAH = (
    "env=halfcheetah",
    "agent.normalize_obs=false",
    "trainer.max_env_steps=14000",
    "trainer.eval_interval=null",
)
PONG = (
    "env=pong",
    "agent.double=false",
    "buffer.capacity=20000",
    "trainer.warmup_period=2000",
    "trainer.max_env_steps=8000",
    "trainer.eval_interval=null",
    "trainer.record_interval=250",
)


def _rate(
    name: str, env_id: str, hidden: Sequence[int], max_env_steps: int, options: Sequence[str],
    peers: Sequence[str] = SB3, agent: str = "dqn", threads: int = 1,
) -> Task:  # fmt: skip
    """A task that measures opt steps per second, with these networks in both tools."""
    sizes = f"agent.hidden={list(hidden)}".replace(" ", "")
    return Task(name, env_id, hidden, max_env_steps, (*options, sizes), peers, agent=agent, threads=threads)


TASKS = (
    Task("CartPole to 475", "CartPole-v1", (256, 256), 50_000, ("env=cartpole",), DQN_PEERS, 475.0),
    Task("Acrobot to -85", "Acrobot-v1", (256, 256), 100_000, ("env=acrobot",), SB3, -85.0),
    Task(
        "LunarLander to 200", "LunarLander-v3", (256, 256), 100_000, ("env=lunarlander",), SB3, 200.0, 2_500
    ),
    Task(
        "HalfCheetah to 5,000, border-train in bfloat16",
        "HalfCheetah-v5",
        (256, 256),
        300_000,
        ("env=halfcheetah", "preset=sac_halfcheetah_fast", "agent.precision=bfloat16"),
        SB3,
        5_000.0,
        2_500,
        agent="sac",
    ),
    _rate("DQN 256-256", "CartPole-v1", (256, 256), 20_000, ZOO_CARTPOLE, DQN_PEERS),
    _rate("DQN 64-64", "CartPole-v1", (64, 64), 20_000, ZOO_CARTPOLE, DQN_PEERS),
    _rate(
        "QR-DQN 256-256, 200 quantiles",
        "CartPole-v1",
        (256, 256),
        12_000,
        (*ZOO_CARTPOLE, "agent.quantiles=200"),
        agent="qrdqn",
    ),
    _rate("SAC 256-256, HalfCheetah", "HalfCheetah-v5", (256, 256), 12_000, CHEETAH, agent="sac"),
    _rate(
        "SAC 256-256, HalfCheetah, two threads",
        "HalfCheetah-v5",
        (256, 256),
        12_000,
        CHEETAH,
        agent="sac",
        threads=2,
    ),
    _rate(
        "SAC 256-256, HalfCheetah, border-train in bfloat16",
        "HalfCheetah-v5",
        (256, 256),
        12_000,
        (*CHEETAH, "agent.precision=bfloat16"),
        agent="sac",
    ),
    _rate("TD3 400-300, HalfCheetah", "HalfCheetah-v5", (400, 300), 12_000, CHEETAH, agent="td3"),
    _rate("TQC 256-256, HalfCheetah", "HalfCheetah-v5", (256, 256), 11_500, CHEETAH, agent="tqc"),
    _rate("DQN, Pong", "ALE/Pong-v5", (512,), 8_000, PONG),
    _rate("DQN, Pong, two threads", "ALE/Pong-v5", (512,), 8_000, PONG, threads=2),
)
