"""Search spaces in Hydra's syntax, and the default ones of the agents."""

from __future__ import annotations

import pytest

from border_cli import compose
from border_cli.agents.dqn.config import DqnConfig
from border_cli.cli.search_space import default_space, read_space
from border_cli.config.convert import dotted, to_plain
from border_cli.config.registry import AGENTS
from border_cli.core.errors import UsageError

optuna = pytest.importorskip("optuna")


def test_search_spaces_in_words_of_hydra() -> None:
    words = [
        "agent=dqn",
        "++agent.lr=tag(log,interval(1e-4,3e-3))",
        "++agent.batch_size=choice(32,64)",
        "++agent.hidden=choice([64,64],[128])",
        "++buffer.n_step=range(1,6,2)",
        "++agent.target_interval=int(interval(1,9))",
        "++seed=5",
    ]
    space = read_space(words, lambda: {"agent.gamma": "choice(0.9,0.99)"})
    d = optuna.distributions
    assert space.distributions == {
        "agent.lr": d.FloatDistribution(1e-4, 3e-3, log=True),
        "agent.batch_size": d.CategoricalDistribution(["32", "64"]),
        "agent.hidden": d.CategoricalDistribution(["[64,64]", "[128]"]),
        "buffer.n_step": d.IntDistribution(1, 5, step=2),
        "agent.target_interval": d.IntDistribution(1, 9),
    }
    assert read_space(["++x=tag(log,range(1,9))"], dict).distributions == {
        "x": d.IntDistribution(1, 8, log=True)
    }
    assert space.overrides({"agent.lr": "0.001"}, 2) == ["agent=dqn", "++agent.lr=0.001", "++seed=7"]
    own = read_space(
        ["agent=dqn", "++agent.lr=0.5"],
        lambda: {"agent.lr": "choice(1,2)", "agent.gamma": "choice(0.9,0.99)"},
    )
    assert list(own.distributions) == ["agent.gamma"]
    with pytest.raises(UsageError, match=r"hydra\.sweeper\.seeds"):
        read_space(["++seed=1,2", *words[1:-1]], dict)


@pytest.mark.parametrize("agent", list(AGENTS))
def test_each_agent_has_a_search_space_whose_values_are_allowed(agent: str) -> None:
    env = "cartpole" if issubclass(AGENTS[agent].config, DqnConfig) else "pendulum"
    typed = [f"agent={agent}", f"env={env}", "preset=none"]
    space = read_space(typed, lambda: default_space(agent))
    every = [
        {
            key: str(
                one.choices[i % len(one.choices)] if hasattr(one, "choices") else (one.low, one.high)[i % 2]
            )
            for key, one in space.distributions.items()
        }
        for i in range(4)
    ]
    for params in every:
        config = dotted(to_plain(compose(*space.overrides(params, 0))))
        for key, value in params.items():
            assert str(config[key]).replace(" ", "") == value


def test_several_environments_are_no_search_space() -> None:
    with pytest.raises(UsageError, match="env has several values"):
        read_space(["agent=dqn", "env=cartpole,acrobot"], dict)


def test_an_agent_without_a_search_space_is_named() -> None:
    with pytest.raises(UsageError, match=r"nearest: hydra\.sweeper\.space=dqn"):
        default_space("dqnn")
