"""The user's mistakes: each row is a command line, its exit code and what its message must hold.

A mistake ends in one to three lines on stderr, without a traceback and without a run directory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from border_cli.cli.train import main

USAGE, RESOURCES, NO_VALID_CHECKPOINT = 2, 3, 7


@dataclass(frozen=True)
class Row:
    """words: the command line, separated by blanks · fragments: what stderr must hold, separated by bars."""

    words: str
    fragments: str
    code: int = USAGE


COMPOSITION = [
    # groups and words
    Row("agent=dqnn", "agent: there is no 'dqnn'|allowed: c51, dqn, iqn|nearest: dqn"),
    Row("env=cartpol", "env: there is no 'cartpol'|acrobot, ant, atari|nearest: cartpole"),
    Row("env=null", "env: there is no 'null'|allowed: acrobot"),
    Row("trainer=asink", "trainer: there is no 'asink'|async, sync|nearest: async"),
    Row("actor_manager=ray", "actor_manager: there is no 'ray'|allowed: process"),
    Row("preset=dqn_cartpol", "preset: there is no 'dqn_cartpol'|nearest: dqn_cartpole"),
    Row("trainer={max_opts:5}", "trainer|async, sync|trainer.<key>="),
    Row("resum=auto", "resum: there is no such key|nearest: resume"),
    Row("agnt=dqn", "agnt: there is no such key|nearest: agent"),
    Row("agent@other=dqn", "agent@other|allowed: agent=<option>"),
    Row("cartpole", "'cartpole' is not a setting|allowed: key=value"),
    Row("n_actor", "'n_actor' is not a setting|nearest: n_actors="),
    Row("=3", "'=3' is not a setting"),
    Row("agent.hidden=[64", "'agent.hidden=[64' cannot be read|allowed"),
    Row("agent.hidden=64,64", "agent.hidden=64,64 has several values|-m|[64,64]"),
    Row("-m seed=interval(0,1)", "seed: interval(0,1) has no end of values|range"),
    # flags
    Row("--cfgg job", "no flag --cfgg|nearest: --cfg"),
    Row("--cfg jobb", "--cfg|jobb|job"),
    Row("--config-dir nowhere", "no folder nowhere|allowed"),
    Row("--config-name mine", "--config-name is not taken|--config-dir"),
    Row("--experimental-rerun x.pickle", "--experimental-rerun is not taken"),
    Row("-m --cfg job", "--cfg shows one configuration|allowed"),
    Row("-p agent", "--package says how --cfg shows|allowed: --cfg job --package"),
    Row("--resolve", "--resolve says how --cfg shows|allowed: --cfg job --resolve"),
    Row("--cfg job -p trainr", "no part 'trainr'|nearest: trainer"),
    Row("hydra.searchpath=[nowhere]", "nowhere is not available"),
    Row("hydra.nothing=1", "hydra.nothing"),
    Row("hydra.mode=MULTIRUN", "hydra.mode|-m sweeps"),
    # keys
    Row("agent.lrr=0.1", "agent.lrr: there is no such key|nearest: agent.lr"),
    Row("+agent.lrr=0.1", "agent.lrr: there is no such key|nearest: agent.lr"),
    Row("++trainer.max_opt=10", "trainer.max_opt: there is no such key|nearest: trainer.max_opts"),
    Row("lr=0.1", "lr: there is no such key|nearest: agent.lr"),
    Row("~agent.lr", "~agent.lr: every run has it|allowed: agent.lr="),
    Row("~trainer", "~trainer: every run has it"),
    Row("~agent.lrr", "~agent.lrr: there is no such key|nearest: agent.lr"),
    Row("~env.kwargs.n", "env.kwargs.n"),
    Row("resumed=auto", "resumed: there is no such key"),
    Row("resume=", "resume= names no run|resume=auto"),
    Row("env=gym env.kwargs.bad=nan", "env.kwargs: nan"),
    Row("preset.env_id=Acrobot-v1", "preset.env_id: written by preset files|preset=none"),
    Row("-m seed=1,2 agent.lrr=0.1", "agent.lrr: there is no such key"),
    # types and ranges
    Row("agent.lr=fast", "agent.lr: 'fast' is of the wrong type|a number > 0 and <= 1"),
    Row("agent.lr=nan", "agent.lr: nan is not a finite number"),
    Row("agent.lr=-1", "agent.lr: -1 is out of range|> 0"),
    Row("agent.gamma=1.5", "agent.gamma: 1.5 is out of range"),
    Row("agent.double=1", "agent.double: 1 is of the wrong type|true or false"),
    Row("agent.loss=hubr", "agent.loss: there is no 'hubr'|nearest: huber"),
    Row("agent.hidden=256", "agent.hidden|not a list|a list in brackets"),
    Row("agent.batch_size=1.5", "agent.batch_size: 1.5 is not a whole number|rows"),
    Row("agent.type=iqn", "agent.type cannot be typed|allowed: agent=<name>"),
    Row("agent.atoms=3", "agent.atoms changes nothing|allowed: agent.atoms with agent.head=categorical"),
    Row(
        "agent=td3 env=pendulum buffer=prioritized buffer.initial_priority=actor",
        "buffer.initial_priority=actor: actors with agent=td3 do not know|allowed: buffer.initial_priority=max",
    ),
    Row(
        "agent=rainbow buffer.initial_priority=actor",  # its priorities are divergences, the actors' would be of values
        "buffer.initial_priority=actor: actors with agent=rainbow do not know|allowed: buffer.initial_priority=max",
    ),
    Row(
        "trainer=sync actor_manager.ring_rows=100", "actor_manager.ring_rows has no effect|with trainer=async"
    ),
    Row("trainer=sync trainer.sync_interval=5", "trainer.sync_interval has no effect|with trainer=async"),
    Row("trainer.lockstep_steps=8", "trainer.lockstep_steps has no effect|with trainer.lockstep=true"),
    Row("env=catch env.sticky_actions=0.25", "env.sticky_actions changes nothing|env.id=<game of ALE>"),
    Row(
        "agent=sac env=pendulum preset=td3_pendulum",
        "preset=td3_pendulum was tuned for another agent|preset=none",
    ),
    Row(
        "buffer.alpha=0.6",
        "buffer.alpha: buffer=uniform has no such key|allowed: buffer.alpha with buffer=prioritized",
    ),
    Row(
        "agent=sac env=pendulum agent.double=true",
        "agent.double: agent=sac has no such key|agent=dqn or agent=c51",
    ),
    Row("agent.tau=0.5", "agent.tau: there is no such key|nearest: agent.target_tau"),
    Row("env.life_loss=true", "env.life_loss changes nothing|env.preprocess=atari"),
    Row("env=catch env.native=always", "env.native=always: only the games of ALE have it|env.native=auto"),
    Row("env=pong env.native=always trainer=sync", "env.native=always: games in|allowed: env.native=auto"),
    Row("env=pong env.native=always +env.kwargs.mode=1", "env.native=always: only the games|env.kwargs={}"),
    Row("agent=c51 agent.v_min=500", "agent.v_min=500 is not below agent.v_max=100|allowed: v_min < v_max"),
    Row("n_actors=0", "n_actors: 0 is out of range|>= 1"),
    Row("n_actors=two", "n_actors: 'two' is of the wrong type|a whole number"),
    Row("n_actors=null", "n_actors: null has no meaning here"),
    Row("seed=-1", "seed: -1 is out of range"),
    Row("trainer.eval_interval=0", "trainer.eval_interval: 0 is out of range|or null|opt steps"),
    Row("trainer.save_interval=-5", "trainer.save_interval: -5 is out of range"),
    Row("trainer.record_interval=0", "trainer.record_interval: 0 is out of range"),
    Row("trainer.sync_interval=null", "trainer.sync_interval: null has no meaning here"),
    Row("trainer.opt_interval=0", "trainer.opt_interval: 0 is out of range|> 0|env steps"),
    Row("env.kwargs=5", "env.kwargs: 5|keys with values"),
    Row("env.imports=mine", "env.imports|not a list"),
    Row("env.id=${nothing}", "env.id|nothing"),
    Row("device=gpu", "device: there is no 'gpu'|cpu, cuda"),
    Row("plugins=[no_such_plugin]", "plugins: there is no module 'no_such_plugin'"),
    Row("plugins=no_such_plugin", "plugins|not a list"),
    # more than one value
    Row("env=gym", "env.id: the environment has no name|env.id=CartPole-v1"),
    Row("env.id=Acrobot-v1", "preset=dqn_cartpole|CartPole-v1|Acrobot-v1|preset=none"),
    Row("env.entry_point=mine:Env preset=none", "two environments"),
    Row("trainer=sync n_actors=8", "n_actors=8|trainer=async"),
    Row("trainer=sync trainer.opt_interval=null", "opt_interval=null|trainer=async"),
    Row("buffer.capacity=32", "buffer.capacity=32|batch_size=64"),
    Row("trainer.warmup_period=200000", "warmup_period=200000|capacity=100000"),
    Row("trainer.max_env_steps=null", "without a budget|trainer.max_time"),
    Row("trainer.max_env_steps=1000", "max_env_steps=1000 ends before the first opt step"),
    Row("n_actors=65 trainer.ratio_tolerance=64", "ratio_tolerance=64|n_actors·envs_per_actor = 65"),
    Row(
        "trainer.warmup_period=0 agent.batch_size=128 buffer.n_step=3",
        "warmup_period + opt_interval + ratio_tolerance|batch_size",
    ),
    Row("actor_manager.ring_rows=100", "ring_rows=100|= 130"),
    Row("trainer.stop_return=475 trainer.eval_interval=null", "stop_return|eval_interval"),
    Row("evaluator=proces", "evaluator|process"),
    Row("evaluator.restarts=1", "evaluator.restarts is about the process|evaluator=process"),
    Row("evaluator.heartbeat_timeout_s=9", "evaluator.heartbeat_timeout_s is about the process"),
    Row("evaluator.confirm=false evaluator.confirm_episodes=9", "confirm_episodes=9|confirm=false"),
]

PREFLIGHT = [
    Row("env=gym env.id=CartPol-v1", "CartPol-v1|CartPole-v1"),
    Row("env=gym env.id=no_such_module:Env-v0", "no_such_module"),
    Row("env=gym env.id=Env-v0 env.imports=[no_such_module]", "no_such_module"),
    Row("env=gym env.entry_point=spaces_nobody_takes:missing", "spaces_nobody_takes:missing|module:name"),
    Row("env=gym env.entry_point=spaces_nobody_takes:TextEnv", "Text|Box"),
    Row("env.kwargs.no_such_argument=1", "no_such_argument"),
    Row("env=gym env.id=Pendulum-v1", "Discrete"),
    Row("buffer.capacity=1e12", "GiB|buffer.capacity", RESOURCES),
    Row("device=cuda:63", "device|cuda:63"),
    Row("init_from=nowhere", "nowhere"),
    Row("init_from=empty", "empty"),
    Row("hydra.run.dir=taken", "taken already holds a run"),
    Row("hydra.run.dir=taken/config.yaml/below", "taken/config.yaml/below cannot be made"),
]

EVAL = [
    Row("nowhere", "nowhere"),
    Row("empty", "empty"),
    Row("", "run"),
    Row("taken checkpoint=7", "7"),
    Row("taken episodes=0", "episodes"),
    Row("taken episods=5", "episods|episodes"),
    Row("broken checkpoint=last", "checkpoint", NO_VALID_CHECKPOINT),
]

TEXT_ENV = """\
import gymnasium

class TextEnv(gymnasium.Env):
    observation_space = gymnasium.spaces.Text(5)
    action_space = gymnasium.spaces.Discrete(2)
"""

CONFIG = "agent: {type: dqn}\nenv: {id: CartPole-v1}\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where commands are typed: empty/ is no run, taken/ has no checkpoint, that of broken/ cannot verify."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "spaces_nobody_takes.py").write_text(TEXT_ENV, encoding="utf-8")
    for name in ("taken", "broken"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(CONFIG, encoding="utf-8")
    step = tmp_path / "broken" / "checkpoints" / "step-000000010"
    step.mkdir(parents=True)
    (step / "manifest.json").write_text("{", encoding="utf-8")
    return tmp_path


def refuses(command, row: Row, folder: Path, capsys) -> None:
    before = sorted(folder.rglob("*"))
    code = command(row.words.split())
    err = capsys.readouterr().err
    lines = err.splitlines()
    assert code == row.code, err
    assert 1 <= len(lines) <= 3, err
    assert "Traceback" not in err
    for fragment in row.fragments.split("|"):
        assert fragment in err
    assert not (folder / "runs").exists()
    assert [path for path in sorted(folder.rglob("*")) if "__pycache__" not in path.parts] == before


@pytest.mark.parametrize("row", COMPOSITION, ids=lambda row: row.words)
def test_i5_refused_while_composing(row, folder, capsys):
    refuses(main, row, folder, capsys)


@pytest.mark.parametrize("row", PREFLIGHT, ids=lambda row: row.words)
def test_i5_refused_before_training(row, folder, capsys):
    refuses(main, row, folder, capsys)


def test_a_missing_extra_is_named_with_what_installs_it(folder, capsys):
    """A module of its name that cannot be imported hides the real one from the child that makes the environment."""
    (folder / "Box2D.py").write_text("raise ModuleNotFoundError(__name__)\n", encoding="utf-8")
    refuses(main, Row("env=lunarlander", "LunarLander-v3|pip install 'border-cli[box2d]'"), folder, capsys)


def test_a_runs_folder_that_cannot_be_written(folder, capsys):
    (folder / "runs").touch()
    assert main([]) == USAGE
    lines = capsys.readouterr().err.splitlines()
    assert 1 <= len(lines) <= 3
    assert "runs" in lines[0]
    assert (folder / "runs").read_bytes() == b""


@pytest.mark.parametrize("row", EVAL, ids=lambda row: f"eval {row.words}")
def test_i5_refused_by_the_evaluation(row, folder, capsys):
    from border_cli.cli.eval import main as evaluate

    refuses(evaluate, row, folder, capsys)
