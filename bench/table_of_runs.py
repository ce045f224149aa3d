"""The table of runs for docs/results/."""

from __future__ import annotations

import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Bar:
    """What the best models of a row are promised to reach over new episodes.

    mean, median, least: over the seeds, None where nothing is promised · rise: by how much the mean return of the last
    30 training episodes is above that of the first 30 · published: what others report, and where.
    """

    published: str
    mean: float | None = None
    median: float | None = None
    least: float | None = None
    rise: float | None = None

    def __str__(self) -> str:
        rise = "last 30 training episodes above the first 30 by"
        named = (("mean", self.mean), ("median", self.median), ("none below", self.least), (rise, self.rise))
        return ", ".join(f"{name} {value:g}" for name, value in named if value is not None)

    def holds(self, means: list[float], rises: list[float]) -> bool:
        """Whether the mean returns of the seeds and the rises of their training returns meet the bar."""
        if self.rise is not None and min(rises) < self.rise:
            return False
        mean, median = statistics.fmean(means), statistics.median(means)
        bounds = ((self.mean, mean), (self.median, median), (self.least, min(means)))
        return all(wanted is None or value >= wanted for wanted, value in bounds)


@dataclass(frozen=True)
class Row:
    """Runs that differ by their seed alone.

    table: "bars", "long" (beyond the budget of the preset) or "parity" · args: of the command, beside agent, env and seed ·
    way: how it is trained, or how long · episodes: new episodes for each best model · minutes: about what one run takes
    on two cores.
    """

    table: str
    agent: str
    env: str
    seeds: tuple[int, ...]
    args: tuple[str, ...]
    bar: Bar | None = None
    way: str = "n_actors=2"
    episodes: int = 100
    minutes: float = 1.0

    @property
    def label(self) -> str:
        """The agent, with the length of a long run."""
        return f"{self.agent} ({self.way})" if self.table == "long" else self.agent

    @property
    def name(self) -> str:
        """Name of the row, usable as a file name."""
        return f"{self.env}_{self.agent}_{self.way}".replace("=", "").replace(" ", "_")


def _row(
    agent: str, env: str, n_seeds: int, env_steps: int, bar: Bar, minutes: float, episodes: int = 100
) -> Row:
    args = ("n_actors=2", f"trainer.max_env_steps={env_steps}")
    return Row("bars", agent, env, _seeds(n_seeds), args, bar, episodes=episodes, minutes=minutes)


def _seeds(n_seeds: int) -> tuple[int, ...]:
    """Seeds that no preset was tuned with: those below 200 were."""
    return tuple(range(201, 201 + n_seeds))


_WAYS = {
    "trainer=sync": ("trainer=sync",),
    "n_actors=1": ("n_actors=1",),
    "n_actors=8": ("n_actors=8",),
    "lockstep": ("n_actors=8", "trainer.lockstep=true"),
}


def _parity(
    agent: str, env: str, n_seeds: int, ways: tuple[str, ...], minutes: float, args: tuple[str, ...] = ()
) -> list[Row]:
    return [
        Row("parity", agent, env, _seeds(n_seeds), _WAYS[way] + args, way=way, minutes=minutes)
        for way in ways
    ]


_ZOO = "RL Baselines3 Zoo"
_ONE_THREAD = ("trainer=sync", "agent.compile=true")
_LOWERED = ("agent.precision=bfloat16",)
"""Of FlashSAC: an opt step takes half of the time. Older rows, such as Humanoid's, are in float32."""
ROWS: tuple[Row, ...] = (
    *(
        _row(agent, "cartpole", 5, env_steps, Bar(f"500 (DQN, {_ZOO}, one seed)", mean=490), minutes)
        for agent, env_steps, minutes in (
            ("dqn", 100_000, 0.5),
            *(("c51", 50_000, 1.5), ("qrdqn", 50_000, 1.5), ("iqn", 50_000, 2.5), ("rainbow", 50_000, 2.5)),
        )
    ),
    *(
        _row(agent, "acrobot", 5, 100_000, Bar("-77, by QR-DQN -69 (" + _ZOO + ")", mean=-82), minutes)
        for agent, minutes in (("dqn", 1), ("qrdqn", 5), ("iqn", 6), ("rainbow", 6))
    ),
    *(
        _row(agent, "mountaincar", 5, 120_000, Bar(f"{value} ({_ZOO})", median=-110, least=-140), minutes)
        for agent, value, minutes in (
            *(("dqn", -101, 3), ("qrdqn", -106, 5)),
            *(("iqn", "-106, by QR-DQN", 6), ("rainbow", "-106, by QR-DQN", 6)),
        )
    ),
    *(
        _row(agent, "pendulum", 5, 20_000, Bar(f"{value} ({_ZOO})", mean=-160), minutes, episodes=1000)
        for agent, value, minutes in (("sac", -157, 3), ("td3", -152, 2.5), ("tqc", -151, 6))
    ),
    *(
        _row(agent, "lunarlander", 5, env_steps, Bar(f"{value} at 100,000 env steps", mean=mean), minutes)
        for agent, env_steps, value, mean, minutes in (
            *(
                ("dqn", 300_000, f"154 (DQN, {_ZOO})", 230, 3),
                ("rainbow", 200_000, f"154 (DQN, {_ZOO})", 230, 6),
            ),
            *(("qrdqn", 200_000, f"70 ({_ZOO})", 200, 8), ("iqn", 200_000, f"154 (DQN, {_ZOO})", 200, 8)),
        )
    ),
    _row("sac", "mountaincarcontinuous", 3, 50_000, Bar(f"94.7 ({_ZOO})", mean=93), 10),
    _row("sac", "bipedalwalker", 3, 500_000, Bar(f"298 ({_ZOO})", mean=280), 90),
    _row("sac", "halfcheetah", 3, 100_000, Bar("9,500 to 12,100 at 1,000,000 env steps", mean=4000), 25),
    _row("dqn", "catch", 3, 85_000, Bar("none; the maximum is 5", mean=4.5), 15),
    Row(
        "bars",
        "dqn",
        "pong",
        _seeds(3),
        ("preset=dqn_pong_fast", "n_actors=1"),
        Bar("20 at 10,000,000 env steps", mean=18, least=18),
        way="fast",
        episodes=30,
        minutes=60,
    ),
    *(
        Row(
            "bars",
            "dqn",
            game,
            _seeds(3),
            ("preset=dqn_atari_100k", "n_actors=1"),
            Bar(f"{value} at 100,000 env steps, sticky actions (MR.Q)", rise=rise),
            way="100k",
            episodes=30,
            minutes=30,
        )
        for game, value, rise in (("breakout", 11, 3), ("qbert", "1,036", 200))
    ),
    # With actions as old as those of published runs, the samples are comparable: one thread acts and learns.
    *(
        Row(
            "bars",
            agent,
            env,
            _seeds(3),
            (*_ONE_THREAD, "trainer.max_env_steps=100000", *args),
            Bar(f"{value} at 100,000 env steps, {sizes}", mean=mean),
            way="sync",
            minutes=minutes,
        )
        for env, mean, values, durations, of_flashsac in (
            ("halfcheetah", 7500, ("8,112", "9,815"), (15, 30), ()),
            ("hopper", 2500, ("2,764", "2,121"), (15, 30), ()),
            ("walker2d", 2500, ("3,914", "3,299"), (15, 30), ()),
            ("ant", 2500, ("2,299", "3,196"), (20, 40), _LOWERED),
            ("humanoid", 2500, ("2,603", "6,138"), (30, 90), ()),
        )
        for agent, value, sizes, minutes, args in (
            ("crossq", f"{values[0]} (Bhatt et al.)", "critics of 2,048 units", durations[0], ()),
            ("flashsac", f"{values[1]} (Kim et al.)", "wider networks", durations[1], of_flashsac),
        )
    ),
    Row(
        "long",
        "flashsac",
        "halfcheetah",
        _seeds(3),
        (*_ONE_THREAD, "trainer.max_env_steps=300000", *_LOWERED),
        Bar("11,481 (Kim et al.) at 300,000 env steps, wider networks", mean=9500),
        way="300k",
        minutes=50,
    ),
    # Where bits have to repeat, compiling is left out by default.
    *_parity("dqn", "cartpole", 10, ("trainer=sync", "lockstep"), 0.5, ("agent.compile=true",)),
    *_parity("dqn", "cartpole", 10, ("n_actors=1", "n_actors=8"), 0.5),
    *_parity("sac", "pendulum", 5, ("trainer=sync", "n_actors=1", "n_actors=8"), 3),
)
