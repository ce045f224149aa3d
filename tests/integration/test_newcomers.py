"""Command lines of people who know other tools: what border-train answers, and that the answer works when it is typed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from border_cli.cli.compose import Composer
from border_cli.cli.overrides import parse_overrides
from border_cli.cli.train import main
from border_cli.cli.translate import check_words, table
from border_cli.config.convert import all_keys
from border_cli.core.errors import UsageError
from tests.faults.amounts import sampled

LINES = {
    # stable-baselines3 and RL Zoo3
    "--algo dqn --env CartPole-v1 --seed 3 -n 100000 --tensorboard-log /tmp/x": (
        "agent=dqn env=cartpole seed=3 trainer.max_env_steps=100000"
    ),
    "--algo dqn --env PongNoFrameskip-v4 -P -i best_model.zip": "agent=dqn env=pong",
    "--algo qrdqn --env LunarLander-v3 --track --wandb-project-name lunar": (
        "agent=qrdqn env=lunarlander recorder.wandb=online recorder.project=lunar"
    ),
    "--algo ppo --env Pendulum-v1": "agent=sac env=pendulum",
    "--algo td3 --env Pendulum-v1 --hyperparams learning_rate:0.001 buffer_size:50000": "agent=td3 env=pendulum",
    "--algo dqn --env MountainCar-v0 --device cuda --vec-env subproc --n-envs 8": (
        "agent=dqn env=mountaincar device=cuda actor_manager.envs_per_actor=8"
    ),
    "--algo sac --env Pendulum-v1 -optimize --n-trials 50": (
        "agent=sac env=pendulum -m hydra/sweeper=border_optuna hydra.sweeper.n_trials=50"
    ),
    "--algo dqn --env CartPole-v1 --env-kwargs gravity:5": "agent=dqn env=cartpole env.kwargs.gravity=5",
    "DQN MlpPolicy CartPole-v1 total_timesteps=100000": "agent=dqn env=cartpole trainer.max_env_steps=100000",
    "agent=sac env=HalfCheetah-v4 ent_coef=auto tau=0.005 train_freq=1 gradient_steps=1": (
        "agent=sac env=halfcheetah agent.entropy_coef=auto agent.target_tau=0.005 trainer.opt_interval=1"
    ),
    "agent=dqn env=cartpole policy_kwargs.net_arch=[256,256]": (
        "agent=dqn env=cartpole agent.hidden=[256,256]"
    ),
    # CleanRL
    "--env-id HalfCheetah-v4 --no-cuda --batch-size 256 --policy-lr 3e-4 --q-lr 1e-3": (
        "agent=sac env=halfcheetah device=cpu agent.batch_size=256 agent.lr=3e-4 agent.critic_lr=1e-3"
    ),
    "env_id=CartPole-v1 cuda=true track=true capture_video=true": (
        "env=cartpole device=cuda recorder.wandb=online evaluator.video_interval=10000"
    ),
    "--start-e 1 --exploration-fraction 0.5 --torch-deterministic --env-id CartPole-v1": (
        "agent.epsilon_start=1 trainer.lockstep=true env=cartpole"
    ),
    # Gymnasium, Hydra, Weights & Biases, plain words
    "dqn cartpole": "agent=dqn env=cartpole",
    "env=Pong-v5 agent=dqn": "env=pong agent=dqn",
    "agent=rainbow env=atari env.id=Pong": "agent=rainbow env=atari env.id=ALE/Pong-v5",
    "env=EnduroNoFrameskip-v4": "env=atari env.id=ALE/Enduro-v5",
    "env=FrozenLake-v1 env.is_slippery=false": "env=gym env.id=FrozenLake-v1 env.kwargs.is_slippery=false",
    "--config-path own --config-name train agent=dqn": "--config-dir own agent=dqn",
    "agent=dqn +agent.hidden_size=128 wandb=true wandb.project=test run_name=my_run gpu=0": (
        "agent=dqn agent.hidden=128 recorder.wandb=online recorder.project=test name=my_run"
    ),
    "recorder.wandb=true": "recorder.wandb=online",
    "--agent dqn --trainer.max_opts=5": "agent=dqn trainer.max_opts=5",
    "agent QR-DQN env = cartpole, seed=1": "agent=qrdqn env=cartpole seed=1",
    "trainer.max_steps=50000 trainer.max_env_steps=50000": "trainer.max_env_steps=50000",
    "-m agent=DQN,IQN env=CartPole-v1,LunarLander-v2": "-m agent=dqn,iqn env=cartpole,lunarlander",
}
"""What is typed, and what the answer suggests."""
AT_ONCE = (
    "agent=dqn env=cartpole trainer.max_time=1h trainer.max_env_steps=100k buffer.capacity=1_000_000 "
    "hydra.sweep.dir=out",
    "--config-dir own -m track=long",  # own files may have any names
    "--cfg job ++agent.lr=1",
)


def answer(typed: str) -> tuple[list[str], str]:
    """The words that are suggested, and the whole message."""
    with pytest.raises(UsageError) as refusal:
        check_words(shlex.split(typed), "border-train")
    lines = str(refusal.value).splitlines()
    assert len(lines) <= 3
    return shlex.split(lines[1].removeprefix("nearest: border-train ")), str(refusal.value)


@pytest.mark.parametrize("typed", LINES)
def test_a_line_of_another_tool_is_answered_with_ours(typed: str) -> None:
    suggested, _ = answer(typed)
    assert suggested == LINES[typed].split()
    check_words(suggested, "border-train")


@pytest.mark.parametrize("typed", sampled([typed for typed in LINES if "-m" not in LINES[typed]], 6))
def test_the_answer_composes(typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    words = LINES[typed].replace("--config-dir own ", "").split()
    Composer(parse_overrides(words)).compose()


@pytest.mark.parametrize("typed", AT_ONCE)
def test_a_line_that_is_right_is_taken(typed: str) -> None:
    check_words(shlex.split(typed), "border-train")


def test_the_table_names_keys_that_exist_and_each_word_once() -> None:
    words = [word for words in table()["words"].values() for word in words.split()]
    assert len(words) == len(set(words))
    for target in table()["words"]:
        if not target.startswith(("#", "-", "hydra")):
            key = target.partition("=")[0]
            assert key in (*all_keys(), "agent", "env", "resume"), key


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("--config-name mine", "--config-dir DIR, with DIR/env/mine.yaml for env=mine"),
        ("--algo ppo --env CartPole-v1", "ppo (on-policy: border-train has off-policy agents only)"),
        ("--algo= --env CartPole-v1", "--algo= (the value is missing)"),
        ("--env HalfCheetah-v4", "HalfCheetah-v4 (env=halfcheetah is HalfCheetah-v5)"),
        (
            "--algo sac --env Pendulum-v1 --exploration-final-eps 0.1",
            "agent.epsilon_final=0.1 (agent=sac has no such setting)",
        ),
        ("--cuda false", "--cuda false (it is off by default)"),
        ("--seed 3 --no-such-thing 5", "--no-such-thing 5 (there is no such setting)"),
        ("target_update_interval=500", "target_update_interval=500 (agent.target_interval is in opt steps)"),
    ],
)
def test_what_has_no_word_here_is_said(typed: str, said: str) -> None:
    assert said in answer(typed)[1]


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("--sweep.slots 4 -m seed=1,2", "nearest: border-train sweep.slots=4 -m seed=1,2"),
        ("+experiment=foo", "--config-dir DIR, with DIR/experiment/<option>.yaml"),
        ("agent=dqn env=minigrid", "env=gym env.id=<id> env.imports=[<package>]"),
    ],
)
def test_the_command_prints_the_answer(typed: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(typed)) == 2
    assert said in capsys.readouterr().err
