"""The command that tunes: real runs that are killed and continue, search spaces, and the mistakes of users."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from border_cli import compose
from border_cli.agents.dqn.config import DqnConfig
from border_cli.cli.sweep import default_space, read_space
from border_cli.cli.train import main
from border_cli.config.convert import dotted, load, to_plain
from border_cli.config.registry import AGENTS
from border_cli.core.errors import UsageError
from tests.faults.commands import Command
from tests.faults.processes import wait_until
from tests.real_runs import Run, tiny

optuna = pytest.importorskip("optuna")


def study_in(sweep: Path) -> Any:
    backend = optuna.storages.journal.JournalFileBackend(str(sweep / "study.log"))
    return optuna.load_study(study_name="border-cli", storage=optuna.storages.JournalStorage(backend))


TUNED = (
    "hydra/sweeper=border_optuna",
    "agent.lr=tag(log,interval(1e-4,1e-2))",
    "agent.gamma=choice(0.9,0.95,0.99)",  # before agent.lr in the alphabet
    "hydra.sweeper.n_trials=4",
    "hydra.sweeper.pruner=none",
    "hydra.sweeper.top=1",
    "hydra.sweeper.top_seeds=2",
    "trainer=sync",
    "trainer.max_opts=60",
    "trainer.eval_interval=10",
    "trainer.save_interval=null",
)


def test_a_killed_tuning_continues_and_the_winner_is_a_preset(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = tiny(*TUNED, "sweep.slots=1", "recorder.console=plain")
    with Command(workplace, "-m", *words) as command:
        wait_until(lambda: len(list(workplace.glob("runs/sweeps/*/*/*/summary.json"))) >= 2, "two runs")
        command.send(signal.SIGKILL)
        assert command.end() == 137
    assert main(["-m", *words[:-1], "recorder.console=auto", "debug=true"]) == 0  # which change no job
    (sweep,) = workplace.glob("runs/sweeps/*/*")
    study = study_in(sweep)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 4
    assert len(list(sweep.glob("*_dqn_cartpole"))) == 4 + 2  # no run began anew
    whole = Run(sweep / "0_dqn_cartpole")
    assert (whole.counts[0], whole.steps("eval/return_mean")) == (60, [10, 20, 30, 40, 50, 60])
    preset = load(sweep / "preset" / "best_cartpole.yaml")
    assert preset["agent"]["lr"] == pytest.approx(study.best_trial.params["agent.lr"], rel=1e-3)


def test_a_run_that_is_pruned_stops_with_a_checkpoint(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("border_cli.sweeps.study._STARTUP", 1)
    words = ("hydra/sweeper=border_optuna", "agent.lr=choice(1e-3,1e-9)", "hydra.sweeper.n_trials=2")
    more = ("hydra.sweeper.seed=2", "hydra.sweeper.top=0", "sweep.slots=1")
    run = ("trainer=sync", "trainer.max_opts=3000", "trainer.eval_interval=100", "trainer.save_interval=null")
    assert main(["-m", *tiny(*words, *more, *run, "recorder.console=none")]) == 0
    (sweep,) = workplace.glob("runs/sweeps/*/*")
    trials = study_in(sweep).trials
    drawn = {trial.params["agent.lr"]: trial.state.name for trial in trials if trial.state.name != "FAIL"}
    assert list(drawn.items()) == [("0.001", "COMPLETE"), ("1e-09", "PRUNED")]  # which learns nothing
    pruned = Run(sweep / "1_dqn_cartpole")
    assert pruned.summary["status"] == "stopped"
    assert len(pruned.checkpoints) == 1 and 1000 <= pruned.counts[0] < 3000


def test_the_search_space_is_that_of_the_agent_that_a_group_of_the_user_has_chosen(workplace: Path) -> None:
    (workplace / "c" / "experiment").mkdir(parents=True)
    text = "# @package _global_\ndefaults:\n  - override /agent: sac\n  - override /env: pendulum\n"
    (workplace / "c" / "experiment" / "mine.yaml").write_text(text)
    short = (
        "hydra.sweeper.n_trials=1",
        "hydra.sweeper.top=0",
        "trainer.max_opts=2",
        "trainer.eval_interval=2",
    )
    words = ("hydra/sweeper=border_optuna", "+experiment=mine", "hydra.sweeper.pruner=none", *short)
    more = (
        "trainer=sync",
        "agent.batch_size=16",
        "evaluator.episodes=1",
        "recorder.console=none",
        "sweep.slots=1",
    )
    assert main(["--config-dir", "c", "-m", *words, *more]) == 0
    (sweep,) = workplace.glob("runs/sweeps/*/*")
    (trial,) = study_in(sweep).trials
    assert trial.distributions["buffer.n_step"].high == 5  # that of DQN ends at 10


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seed=1,2", "agent.lr=interval(0.1,0.2)"], "hydra.sweeper.seeds"),
        (["seed=abc", "agent.lr=interval(0.1,0.2)"], "seed=abc: a tuning has seeds of its own"),
        (["seed=null", "agent.lr=interval(0.1,0.2)"], "seed=null: a tuning has seeds of its own"),
        (["env=gym", "env.id=CartPole-v1,Acrobot-v1"], "env.id has several values"),
        (
            ["agent.lr=interval(0.1,0.2)", "hydra/launcher=basic"],
            "hydra/launcher=basic does not run the trials",
        ),
        (["hydra.sweeper.sampler=tp"], "allowed: tpe, gp, cmaes, random"),
        (["hydra.sweeper.top=true"], "hydra.sweeper.top"),
        (["agent.lr=interval(0.1,0.2)", "sweep.retry=true"], "sweep.retry has no effect in a tuning"),
        (["env=cartpole,acrobot"], "env has several values"),
        (["agent.lr=interval(0.1,0.2)", "trainer.eval_interval=null"], "tuning needs evaluations"),
        (["hydra.sweeper.space=nowhere"], "no search space for 'nowhere'"),
        (["agent.lr=0.1", "agent.lrr=interval(0.1,0.2)"], "agent.lrr: there is no such key"),
        (["agent.lr=interval(0.1,5)"], "agent.lr: 5 is out of range"),
        (["agent.batch_size=range(64,32)"], "agent.batch_size=range(64,32): the range is empty"),
        (["agent=glob(d*)"], "a glob is not a search space"),
        (["agent.batch_size=tag(log,range(32,64,4))"], "when `log` argument is True"),
        (["agent.batch_size=interval(32,64)"], "agent.batch_size: 43.84 is not a whole number"),
    ],
)
def test_mistakes_are_named_before_there_is_a_folder(
    workplace: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["-m", "hydra/sweeper=border_optuna", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) <= 3
    assert not (workplace / "runs").exists()


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
    added = read_space(
        ["agent=dqn", "++agent.lr=0.5"],
        lambda: {"agent.lr": "choice(1,2)", "agent.gamma": "choice(0.9,0.99)"},
    )
    assert list(added.distributions) == ["agent.gamma"]


@pytest.mark.parametrize("agent", list(AGENTS))
def test_each_agent_has_a_search_space_whose_values_are_allowed(agent: str) -> None:
    env = "cartpole" if issubclass(AGENTS[agent].config, DqnConfig) else "pendulum"
    typed = [f"agent={agent}", f"env={env}", "preset=none"]
    space = read_space(typed, lambda: default_space(agent))
    every = [
        {
            key: str(d.choices[i % len(d.choices)] if hasattr(d, "choices") else (d.low, d.high)[i % 2])
            for key, d in space.distributions.items()
        }
        for i in range(4)
    ]
    for params in every:
        config = dotted(to_plain(compose(*space.overrides(params, 0))))
        for key, value in params.items():
            assert str(config[key]).replace(" ", "") == value


def test_an_agent_without_a_search_space_is_named() -> None:
    with pytest.raises(UsageError, match=r"nearest: hydra\.sweeper\.space=dqn"):
        default_space("dqnn")
