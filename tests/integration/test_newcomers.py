"""Command lines of people who know other tools: what border-train answers, and that the answer works when it is typed.

The lines were written down before any of them was tried.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from border_cli.cli import train
from border_cli.cli.overrides import parse_overrides
from border_cli.cli.train import main
from border_cli.config.convert import all_keys
from border_cli.config.other_tools import table
from tests.faults.amounts import sampled

WORDS = table()["words"]
LINES = {
    # stable-baselines3 and RL Zoo3
    "--algo dqn --env CartPole-v1": "agent=dqn env=cartpole",
    "--algo dqn --env CartPole-v1 --seed 3 -n 100000 --tensorboard-log /tmp/x": (
        "agent=dqn env=cartpole seed=3 trainer.max_env_steps=100000"
    ),
    "--algo sac --env HalfCheetah-v5 --eval-freq 5000 --eval-episodes 10 --n-eval-envs 2": (
        "agent=sac env=halfcheetah trainer.eval_interval=5000 evaluator.episodes=10 evaluator.n_envs=2"
    ),
    "--algo tqc --env Hopper-v5 -P": "agent=tqc env=hopper",
    "--algo dqn --env PongNoFrameskip-v4 --save-freq 100000": (
        "agent=dqn env=pong trainer.save_interval=25000"
    ),
    "--algo td3 --env Pendulum-v1 --hyperparams learning_rate:0.001 buffer_size:50000": (
        "agent=td3 env=pendulum agent.lr=0.001 buffer.capacity=50000"
    ),
    "--algo qrdqn --env LunarLander-v3 --track --wandb-project-name lunar": (
        "agent=qrdqn env=lunarlander recorder.wandb=online recorder.project=lunar"
    ),
    "--algo ppo --env CartPole-v1": "agent=dqn env=cartpole",
    "--algo dqn --env CartPole-v1 -i logs/dqn/CartPole-v1_1/best_model.zip": "agent=dqn env=cartpole",
    "--algo dqn --env MountainCar-v0 --device cuda --vec-env subproc --n-envs 8": (
        "agent=dqn env=mountaincar device=cuda actor_manager.envs_per_actor=8"
    ),
    "--algo sac --env Pendulum-v1 -optimize --n-trials 50": (
        "agent=sac env=pendulum -m hydra/sweeper=border_optuna hydra.sweeper.n_trials=50"
    ),
    "--algo dqn --env CartPole-v1 --verbose 1 --log-interval 100": "agent=dqn env=cartpole",
    "DQN MlpPolicy CartPole-v1 total_timesteps=100000": "agent=dqn env=cartpole trainer.max_env_steps=100000",
    "agent=DQN env=CartPole-v1 learning_rate=1e-3 buffer_size=100000 learning_starts=1000": (
        "agent=dqn env=cartpole agent.lr=1e-3 buffer.capacity=100000 trainer.warmup_period=1000"
    ),
    "agent=sac env=HalfCheetah-v4 ent_coef=auto tau=0.005 train_freq=1 gradient_steps=1": (
        "agent=sac env=halfcheetah agent.entropy_coef=auto agent.target_tau=0.005 trainer.opt_interval=1"
    ),
    "agent=dqn env=cartpole policy_kwargs.net_arch=[256,256]": (
        "agent=dqn env=cartpole agent.hidden=[256,256]"
    ),
    "agent=dqn env=cartpole exploration_fraction=0.2 exploration_final_eps=0.05": (
        "agent=dqn env=cartpole agent.epsilon_env_steps=20000 agent.epsilon_final=0.05"
    ),
    "agent=dqn env=cartpole target_update_interval=500 verbose=1": (
        "agent=dqn env=cartpole agent.target_interval=100"
    ),
    # CleanRL
    "--env-id CartPole-v1 --total-timesteps 500000": "env=cartpole trainer.max_env_steps=500000",
    "--env-id BreakoutNoFrameskip-v4 --track --capture-video --seed 1": (
        "env=breakout recorder.wandb=online evaluator.video_interval=10000 seed=1"
    ),
    "--env-id HalfCheetah-v4 --no-cuda --batch-size 256 --policy-lr 3e-4 --q-lr 1e-3": (
        "agent=sac env=halfcheetah device=cpu agent.batch_size=256 agent.lr=3e-4 agent.critic_lr=1e-3"
    ),
    "env_id=CartPole-v1 cuda=true track=true capture_video=true": (
        "env=cartpole device=cuda recorder.wandb=online evaluator.video_interval=10000"
    ),
    "--exp-name test --env-id Acrobot-v1 --wandb-entity me": "name=test env=acrobot",
    "--learning-rate 2.5e-4 --num-envs 4 --env-id CartPole-v1 --buffer-size 10000 --gamma 0.99": (
        "agent.lr=2.5e-4 actor_manager.envs_per_actor=4 env=cartpole buffer.capacity=10000 agent.gamma=0.99"
    ),
    "--start-e 1 --end-e 0.05 --exploration-fraction 0.5 --learning-starts 10000 --train-frequency 10"
    " --env-id CartPole-v1": (
        "agent.epsilon_start=1 agent.epsilon_final=0.05 agent.epsilon_env_steps=50000 "
        "trainer.warmup_period=10000 trainer.opt_interval=10 env=cartpole"
    ),
    "--env-id ALE/Pong-v5 --total-timesteps 10000000 --target-network-frequency 1000": (
        "env=pong trainer.max_env_steps=10000000 agent.target_interval=250"
    ),
    "--torch-deterministic --seed 1 --env-id CartPole-v1": "trainer.lockstep=true seed=1 env=cartpole",
    "--env-id Pendulum-v1 --autotune --tau 0.005 --policy-frequency 2": (
        "agent=sac env=pendulum agent.entropy_coef=auto agent.target_tau=0.005 agent.policy_interval=2"
    ),
    # Gymnasium, and plain words
    "dqn cartpole": "agent=dqn env=cartpole",
    "CartPole-v1": "env=cartpole",
    "env=CartPole-v1": "env=cartpole",
    "env=HalfCheetah-v5 agent=sac": "env=halfcheetah agent=sac",
    "env=Pong-v5 agent=dqn": "env=pong agent=dqn",
    "agent=rainbow env=atari env.id=Pong": "agent=rainbow env=atari env.id=ALE/Pong-v5",
    "agent=dqn env=ALE/Breakout-v5": "agent=dqn env=breakout",
    "env=gym env.id=FrozenLake-v1 env.is_slippery=false": (
        "env=gym env.id=FrozenLake-v1 env.kwargs.is_slippery=false"
    ),
    "agent=dqn env=cartpole render_mode=human": "agent=dqn env=cartpole",
    # Hydra
    "--config-path own --config-name train agent=dqn": "--config-dir own agent=dqn",
    "agent=dqn env=cartpole +agent.hidden_size=128": "agent=dqn env=cartpole agent.hidden=128",
    # Weights & Biases, units, anything
    "agent=dqn env=cartpole wandb=true wandb.project=test wandb_mode=offline run_name=my_run": (
        "agent=dqn env=cartpole recorder.project=test recorder.wandb=offline name=my_run"
    ),
    "agent=dqn env=cartpole trainer.max_time=1h max_env_steps=100k buffer.capacity=1M batch_size=128 hidden=64 "
    "gpu=0": (
        "agent=dqn env=cartpole trainer.max_time=1h trainer.max_env_steps=100k buffer.capacity=1M "
        "agent.batch_size=128 agent.hidden=64 device=cuda:0"
    ),
    # Hints on words of ours
    "recorder.wandb=true": "recorder.wandb=online",
    "--agent dqn --trainer.max_opts=5": "agent=dqn trainer.max_opts=5",
    "-m agent=DQN,IQN env=CartPole-v1,LunarLander-v2": "-m agent=dqn,iqn env=cartpole,lunarlander",
    "env=Enduro-v5": "env=gym env.id=Enduro-v5",
    "env=EnduroNoFrameskip-v4": "env=atari env.id=ALE/Enduro-v5",
    "env=FrozenLake-v1": "env=gym env.id=FrozenLake-v1",
}
"""What is typed, and what the answer suggests."""
AT_ONCE = (
    "agent=dqn env=cartpole trainer.max_time=1h trainer.max_env_steps=100k buffer.capacity=1_000_000",
    "-m agent=dqn,iqn env=cartpole seed=1,2,3 hydra.sweep.dir=out",
    "--cfg job agent=dqn env=cartpole",
)


@pytest.fixture(autouse=True)
def composes_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs and sweeps are composed and checked, and do not start."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()

    class Done:
        code = 0

    monkeypatch.setattr(train, "start_run", lambda *_: Done())
    monkeypatch.setattr(train, "run_sweep", lambda composer, launch, *_: bool(composer.argv()))


def answer(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    """Type words that are refused. Returns what is suggested."""
    assert main(words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) <= 3
    assert lines[1].startswith("nearest: border-train "), lines
    return lines[1].removeprefix("nearest: border-train ")


def composes(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code = main(words)
    assert code in (0, True), capsys.readouterr().err  # True: a sweep with arguments


@pytest.mark.parametrize("typed", sampled(list(LINES), 4))
def test_a_line_of_another_tool_is_answered_with_one_that_works(
    typed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    suggested = answer(capsys, shlex.split(typed))
    assert shlex.split(suggested) == LINES[typed].split()
    composes(shlex.split(suggested), capsys)


@pytest.mark.parametrize("typed", AT_ONCE)
def test_a_line_that_is_right_is_taken(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    composes(shlex.split(typed), capsys)


SAMPLES = {
    **{"agent": "dqn", "env": "CartPole-v1", "name": "x", "init_from": "runs/x", "device": "0"},
    **{"agent.atoms": "51", "agent.drop_quantiles": "2", "buffer.capacity": "10k", "recorder.project": "x"},
    **{"trainer.max_env_steps": "100k", "trainer.warmup_period": "1000", "env.imports": "json"},
    "recorder.wandb": "offline",
}
"""Values, for keys that 1 does not fit."""
BESIDE = {
    **{"agent.atoms": "agent=c51", "agent.quantiles": "agent=qrdqn", "agent.drop_quantiles": "agent=tqc"},
    **{"agent.target_noise": "agent=td3", "buffer.alpha": "buffer=prioritized"},
    **{
        "recorder.project": "recorder.wandb=online",
        "hydra.sweeper.n_trials": "-m hydra/sweeper=border_optuna",
    },
    **dict.fromkeys(("agent.critic_lr", "agent.policy_interval", "agent.entropy_coef"), "agent=sac"),
    **dict.fromkeys(("agent.random_env_steps", "agent.critics", "agent.entropy_coef=auto"), "agent=sac"),
}
"""What a key needs beside it."""
MORE_THAN_A_VALUE = ("resume", "env.kwargs", "--config-dir")


@pytest.mark.parametrize(
    "target", sampled([t for t in WORDS if t[0] != "#" and t not in MORE_THAN_A_VALUE], 8)
)
def test_every_word_of_the_table_leads_to_a_line_that_works(
    target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    key = target.partition(" [")[0]
    value = [] if "=" in target else [SAMPLES.get(key, "1")]
    for word in WORDS[target].split():
        typed = [*BESIDE.get(key, "").split(), f"--{word.replace('_', '-')}", *value]
        composes(shlex.split(answer(capsys, typed)), capsys)


def test_the_table_names_keys_that_exist_and_each_word_once() -> None:
    words = [word for words in WORDS.values() for word in words.split()]
    assert len(words) == len(set(words))
    for target in WORDS:
        if not target.startswith(("#", "-", "hydra")):
            key = re.split(r"=| \[", target)[0]
            assert key in (*all_keys(), "agent", "env", "resume"), key


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("--config-name mine", "--config-dir DIR, with DIR/env/mine.yaml for env=mine"),
        ("+experiment=foo", "--config-dir DIR, with DIR/experiment/<option>.yaml"),
        ("agent=dqn env=minigrid", "env=gym env.id=<id> env.imports=[<package>]"),
        ("--algo ppo --env CartPole-v1", "ppo (on-policy: border-train has off-policy agents only)"),
        ("--env HalfCheetah-v4", "HalfCheetah-v4 (env=halfcheetah is HalfCheetah-v5)"),
        ("--seed 3 --no-such-thing 5", "--no-such-thing 5 (there is no such setting)"),
    ],
)
def test_what_has_no_word_here_is_said(typed: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(typed)) == 2
    assert said in capsys.readouterr().err


def test_own_files_and_plugins_may_have_any_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own" / "track").mkdir()
    (tmp_path / "own" / "track" / "long.yaml").write_text("# @package _global_\nseed: 7\n")
    composes(["--config-dir", "own", "track=long"], capsys)
    assert [o.key_or_group for o in parse_overrides(["track=long"])] == ["track"]
