"""The user's mistakes: each row is a command line, the fragments that its message must contain, and its exit code.

A mistake ends in one to three lines on stderr, without a traceback and without a run directory. The rules themselves are
tested in tests/unit/test_config_checks.py and test_config.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from border_cli.cli.eval import main as evaluate
from border_cli.cli.train import main
from tests.faults.amounts import sampled

USAGE, RESOURCES, NO_VALID_CHECKPOINT = 2, 3, 7


@dataclass(frozen=True)
class Row:
    """args: command-line arguments, separated by spaces · fragments: texts that stderr must contain, separated by |."""

    args: str
    fragments: str
    code: int = USAGE


COMPOSITION = [
    # arguments and flags
    Row(
        "agent=dqnn",
        "agent: there is no 'dqnn'|nearest: agent=dqn|allowed: btr, c51, crossq, dqn, dsac, flashsac, iqn",
    ),
    Row("env=null", "env: there is no 'null'|allowed: env=gym env.id=<id> env.imports=[<package>], acrobot"),
    Row("env=cart", "env: there is no 'cart'|nearest: env=cartpole"),
    Row(
        "env=./own_envs.py:MyEnv",
        "there is no './own_envs.py:MyEnv'|nearest: env=gym env.entry_point=own_envs:MyEnv",
    ),
    Row("agent=iqn preset=cartpole", "preset: there is no 'cartpole'|nearest: preset=iqn_cartpole"),
    Row("agent@other=dqn", "'agent@other=dqn' is not a setting|allowed: key=value"),
    Row("n_actor", "'n_actor' is not a setting|nearest: n_actors=<value>"),
    Row("agent.hidden=[64", "'agent.hidden=[64' cannot be read|allowed"),
    Row("agent.hidden=64,64", "agent.hidden=64,64 has several values|-m|agent.hidden=[64,64]"),
    Row(
        "trainer.max_env_steps=50,000", "has several values|nearest: trainer.max_env_steps=50000|allowed: -m"
    ),
    Row("seed=1,200", "seed=1,200 has several values\nallowed: -m"),
    Row("agent.lr=0,001", "has several values|nearest: agent.lr=0.001|allowed: -m"),
    Row("-m seed=interval(0,1)", "seed=interval(0,1) is a search space|border_optuna"),
    Row("--help agent.lrr", "no such key with the values of agent=dqn|nearest: --help agent.lr"),
    Row("--cfgg job", "no flag --cfgg|nearest: --cfg"),
    Row("--cfg jobb", "--cfg|jobb|job"),
    Row("-m --cfg job", "--cfg|not allowed with argument --multirun|allowed"),
    Row("hydra.searchpath=[nowhere]", "hydra.searchpath: no folder nowhere"),
    Row("hydra.job.num=foo", "could not be converted to Integer"),
    Row("hydra.swepeer.dir=x", "cannot be composed|hydra.swepeer"),
    Row("-m hydra.sweeper.max_batch=1", "hydra.sweeper.max_batch has no effect|hydra/sweeper=border_optuna"),
    Row("sweep.slots=2", "sweep.slots has no effect without -m"),
    # keys
    Row("resum=auto", "resum: there is no such key|nearest: resume"),
    Row(
        "agent.epsilon=1",
        "agent.epsilon: there is no such key|allowed: agent.epsilon_start, agent.epsilon_final",
    ),
    Row("resume=", "resume=: the value is missing|allowed: a run to continue; auto: "),
    Row("~agent.lr", "~agent.lr: this cannot be removed|allowed: ~env.kwargs.<key>"),
    Row("agent.type=iqn", "agent.type cannot be typed|allowed: agent=<name>"),
    Row("-m seed=1,2 agent.lrr=0.1", "agent.lrr: there is no such key|nearest: agent.lr"),
    Row("agent=sac env=pendulum agent.double=true", "agent=sac has no such key|allowed: agent.double with"),
    Row("plugins=[no_such_plugin]", "plugins: there is no module 'no_such_plugin'"),
    # values
    Row("agent.lr=[0.1,0.2]", "agent.lr: [0.1, 0.2] is of the wrong type|nearest: -m agent.lr=0.1,0.2"),
    Row("n_actors=0", "n_actors: 0 is out of range|>= 1"),
    Row("env.id=${nothing}", "env.id|nothing"),
    Row(
        "agent=c51 agent.v_min=500",
        "agent.v_min=500 agent.v_max=100: 51 atoms|allowed: v_min < v_max",
    ),
    Row("trainer.lockstep_steps=8", "trainer.lockstep_steps has no effect|with trainer.lockstep=true"),
    Row("env.id=Acrobot-v1", "preset=dqn_cartpole|CartPole-v1|Acrobot-v1|preset=none"),
    Row("preset=dqn_atari", "preset=dqn_atari was tuned for ALE/*|preset=none"),
    Row("agent=sac env=pendulum preset=td3_pendulum", "was tuned for another agent|preset=none"),
    Row(
        "env=catch agent.kernels=[5]",
        "agent.channels, kernels and strides have 3, 1 and 0 values|as many in each",
    ),
    Row(
        "env=catch agent.encoder=impala agent.channels=[]",
        "agent.encoder=impala has no stage|agent.channels=",
    ),
    Row("agent.encoder=nets.Mine", "there is no 'nets.Mine'|nearest: nets:Mine|an import path module:name"),
    Row("agent.encoder_kwargs.width=8", "agent.encoder_kwargs has no effect with agent.encoder=convolutions"),
    Row("agent=flashsac env=pendulum agent.weight_decay=0.1", "agent.weight_decay has no effect on FlashSAC"),
    Row("trainer.stop_return=9 evaluator.episodes=1", "needs an interval|evaluator.episodes of at least 2"),
]

PREFLIGHT = [
    Row("env=gym env.id=CartPol-v1", "CartPol-v1|CartPole-v1"),
    Row("env=gym env.id=Env-v0 env.imports=[no_such_module]", "no_such_module"),
    Row("env=gym env.id=Unheard/Of-v1", "env.imports=[module:function] calls a function"),
    Row("env=gym env.entry_point=unsupported_spaces:TextEnv", "Text|Box"),
    Row("step_processor=no_such_module", "step_processor: there is no module 'no_such_module'"),
    Row("env=gym env.entry_point=unreadable:It", "unreadable failed on import|SyntaxError", code=1),
    *(
        Row(f"env=gym env.entry_point={path}", message)
        for path, message in (
            ("own_envs:MyENV", "own_envs has no 'MyENV'|nearest: own_envs:MyEnv"),
            ("./own_envs.py:MyEnv", "there is no module './own_envs.py'|nearest: own_envs:MyEnv"),
            ("my-envs:MyENV", "my-envs has no 'MyENV'|nearest: my-envs:MyEnv"),
            ("own_env:MyEnv", "there is no module 'own_env'|nearest: own_envs:MyEnv"),
            ("own_envs", "'own_envs' names no class or function|allowed: module:name"),
        )
    ),
    Row("env.kwargs.no_such_argument=1", "no_such_argument"),
    Row(
        "env=gym env.entry_point=tests.envs:ResetWithoutSeed",
        "env: reset() takes no seed|gymnasium's API",
    ),
    Row("env=gym env.entry_point=tests.envs:FourValues", "env: step() returns 4 values"),
    Row(
        "env=gym env.entry_point=tests.envs:OutOfItsSpace",
        "error: env: environment 0, episode 1|its space says",
    ),
    Row("env=gym env.imports=[tests.envs] env.id=tests/NoEnv-v0", "raised when it was made|gymnasium.Env"),
    Row("env=gym env.id=Pendulum-v1", "Discrete"),
    Row("agent.strides=[8,8,8] agent.kernels=[8,8,8]", "agent.kernels has no effect|agent.hidden"),
    Row("agent.channels=[8]", "agent.channels has no effect|none of them is an image|agent.hidden"),
    Row("buffer.capacity=1e12", "GiB|buffer.capacity", RESOURCES),
    Row("device=cuda:63", "device|cuda:63"),
    Row("init_from=empty", "empty"),
    Row("hydra.run.dir=taken", "taken already holds a run|nearest: resume=taken"),
    Row("hydra.run.dir=taken/config.yaml/below", "taken/config.yaml/below cannot be made"),
]

EVAL = [
    Row("nowhere", "nowhere"),
    Row("empty", "empty"),
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
    """Working directory: empty/ is no run, taken/ has no checkpoint, the checkpoint of broken/ does not verify."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "unsupported_spaces.py").write_text(TEXT_ENV, encoding="utf-8")
    for name in ("own_envs.py", "my-envs.py"):
        (tmp_path / name).write_text("class MyEnv:\n    pass\n", encoding="utf-8")
    (tmp_path / "unreadable.py").write_text("class It(:\n", encoding="utf-8")
    for name in ("taken", "broken"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(CONFIG, encoding="utf-8")
    step = tmp_path / "broken" / "checkpoints" / "step-000000010"
    step.mkdir(parents=True)
    (step / "manifest.json").write_text("{", encoding="utf-8")
    return tmp_path


def assert_refused(command, row: Row, folder: Path, capsys) -> None:
    before = sorted(folder.rglob("*"))
    code = command(row.args.split())
    err = capsys.readouterr().err
    lines = err.splitlines()
    assert code == row.code, err
    assert 1 <= len(lines) <= 3, err
    assert "Traceback" not in err
    for fragment in row.fragments.split("|"):
        assert fragment in err
    assert not (folder / "runs").exists()
    assert [path for path in sorted(folder.rglob("*")) if "__pycache__" not in path.parts] == before


@pytest.mark.parametrize("row", sampled(COMPOSITION, 3), ids=lambda row: row.args)
def test_i5_refused_while_composing(row, folder, capsys):
    assert_refused(main, row, folder, capsys)


@pytest.mark.parametrize("row", sampled(PREFLIGHT, 3), ids=lambda row: row.args)
def test_i5_refused_before_training(row, folder, capsys):
    assert_refused(main, row, folder, capsys)


def test_a_missing_extra_is_named_with_its_install_command(folder, capsys):
    """A Box2D module that cannot be imported hides the real one in the child process that makes the environment."""
    (folder / "Box2D.py").write_text("raise ModuleNotFoundError(__name__)\n", encoding="utf-8")
    assert_refused(
        main, Row("env=lunarlander", "LunarLander-v3|pip install 'border-cli[box2d]'"), folder, capsys
    )


def test_a_runs_folder_that_cannot_be_made_is_refused(folder, capsys):
    (folder / "runs").touch()
    assert main(["env=cartpole"]) == USAGE
    lines = capsys.readouterr().err.splitlines()
    assert 1 <= len(lines) <= 3
    assert "runs" in lines[0]
    assert (folder / "runs").read_bytes() == b""


@pytest.mark.parametrize("row", EVAL, ids=lambda row: f"eval {row.args}")
def test_i5_refused_by_the_evaluation(row, folder, capsys):
    assert_refused(evaluate, row, folder, capsys)
