"""Runs with `trainer=device`: the same bits, signals, resuming, evaluations, and what is refused."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import border_cli
from border_cli.cli.eval import main as evaluate
from border_cli.cli.train import main
from tests.interrupted import assert_same_bits, resume, run_whole, signal_at
from tests.real_runs import Run, tiny
from tests.simulators import CLOSED

SIMULATOR = ("trainer=device", "env=simulator", "actor_manager.envs_per_actor=8")
CARTPOLE = (*SIMULATOR, "agent=dqn", "env.entry_point=tests.simulators:CartPole")
SHORT = (
    "env.kwargs.limit=30",
    "trainer.opt_interval=4",
    "trainer.max_env_steps=500",
    "trainer.eval_interval=40",
    "trainer.save_interval=30",
    "trainer.record_interval=20",
)


@pytest.fixture(scope="module")
def done(folder: Path) -> Run:
    return run_whole(folder / "done", *CARTPOLE, *SHORT)


def test_the_same_seed_gives_the_same_bits(done: Run, folder: Path) -> None:
    assert done.counts == (111, 496)  # 50 env steps of warm-up, then 4 per opt step; 500 is no multiple of 8
    assert done.summary["exact"] is True
    assert done.steps("eval/return_mean") == [40, 80, 111]
    CLOSED.clear()
    assert_same_bits(done, run_whole(folder / "again", *CARTPOLE, *SHORT))
    assert sorted(CLOSED) == [2, 8]  # that of the evaluations has an environment per episode
    other = run_whole(folder / "other", *CARTPOLE, *SHORT, "seed=1")
    assert other.series("eval/return_mean") != done.series("eval/return_mean")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_the_run_resumes_in_new_episodes(
    folder: Path, number: signal.Signals, code: int
) -> None:
    run_dir = folder / f"stopped-{code}"
    with signal_at(50, number):
        assert main([*tiny(*CARTPOLE, *SHORT), f"hydra.run.dir='{run_dir}'"]) == code
    run = Run(run_dir)
    assert run.checkpoints[-1] == "step-000000050"
    resume(run_dir)
    run = Run(run_dir)
    assert run.counts == (111, 496)
    assert run.summary["exact"] is False
    assert [actor["env_steps_before"] for actor in run.summary["actors"]] == [256]
    log = (run_dir / "train.log").read_text(encoding="utf-8")
    assert "the bits may not be those of an uninterrupted run" in log
    assert "a simulator cannot be resumed exactly: new episodes start in all its environments" in log


def test_evaluations_can_share_the_simulator(folder: Path) -> None:
    CLOSED.clear()
    run = run_whole(folder / "shared", *CARTPOLE, *SHORT, "evaluator=shared", "evaluator.episodes=5")
    assert CLOSED == [8]  # the only one, after the last evaluation
    assert run.counts == (111, 496)
    assert run.steps("eval/return_mean") == [40, 80, 111]
    assert run.summary["best_score"]["mean"] > 1


def test_a_model_is_evaluated_in_a_simulator_of_its_own(
    done: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate([str(done.path), "episodes=12", "trust=true"])
    assert "12 (seed 0)" in capsys.readouterr().out
    policy = border_cli.load(done.path / "best")
    assert policy.sample([0.0, 0.0, 0.0, 0.0]) in (0, 1)


def test_a_continuous_task_with_groups_of_observations(folder: Path) -> None:
    words = ("trainer.opt_interval=8", "trainer.max_env_steps=400", "trainer.eval_interval=30")
    point = run_whole(
        folder / "point", *SIMULATOR, "agent=td3", "env.entry_point=tests.simulators:Point", *words
    )
    assert point.counts[1] == 400
    flashsac = ("agent=flashsac", "agent.hidden=[8]", "agent.critic_hidden=[8]")
    run = run_whole(
        folder / "flashsac", *SIMULATOR, *flashsac, "env.entry_point=tests.simulators:Point", *words
    )
    assert run.counts[1] == 400
    groups = ("env.entry_point=tests.simulators:TwoGroups", "env.obs_keys=[policy]")
    run = run_whole(folder / "groups", *SIMULATOR, "agent=dqn", *groups, *words)
    assert run.counts[1] == 400


def test_an_exception_of_the_simulator_ends_the_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = folder / "failed"
    words = [*tiny(*CARTPOLE, *SHORT, "env.kwargs.fails_at=40"), f"hydra.run.dir='{run_dir}'"]
    assert main(words) == 5
    message = capsys.readouterr().err
    assert "the simulator of the training failed when it was stepped, after 312 env steps" in message
    assert "RuntimeError: the GPU is on fire" in message
    assert Run(run_dir).checkpoints[-1] == "step-000000065"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("trainer=async",), "trainer=async and env=tests.simulators:CartPole"),
        (("env=cartpole",), "trainer=device and env=CartPole-v1"),
        (("env.entry_point=null",), "env.entry_point=module:function"),
        (("env.frame_stack=4",), "env.frame_stack: not possible with a simulator"),
        (
            ("env.max_episode_steps=9", "env.info_keys=[a]"),
            "env.max_episode_steps, env.info_keys: not possible",
        ),
        (("actor_manager.envs_per_actor=auto",), "envs_per_actor=auto: not possible"),
        (("n_actors=2",), "n_actors=2: trainer=device has one actor"),
        (("evaluator=process",), "evaluator=process: a simulator is in the learner's process"),
        (("evaluator=shared", "evaluator.episodes=9"), "each of the 9 episodes"),
        (("evaluator.n_envs=2",), "evaluator.n_envs has no effect with env=simulator"),
        (
            ("agent=r2d2", "agent.sequence_length=1", "agent.burn_in=0"),
            "agent=r2d2 cannot choose actions by tensors",
        ),
        (("agent=sac",), "agent=sac needs a continuous action space"),
        (("plan=true",), "only a run shows how fast a simulator is"),
        (("env.entry_point=tests.simulators:always_three",), r"obs has shape (3, 4), its space says (8, 4)"),
        (("env.kwargs.fails=1",), "env: the simulator of the training failed when it was made"),
    ],
)
def test_what_a_simulator_cannot_do_is_refused(
    words: tuple[str, ...], message: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = {word.partition("=")[0] for word in words}
    rest = [word for word in (*CARTPOLE, *SHORT[1:3]) if word.partition("=")[0] not in typed]
    assert main(tiny(*rest, *words)) == 2
    assert message in capsys.readouterr().err
    assert not (workplace / "runs").exists()


def test_only_a_simulator_is_shared(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tiny("agent=dqn", "env=cartpole", "evaluator=shared")) == 2
    assert "only a simulator can be shared" in capsys.readouterr().err
