"""Complete runs with the inline and the process evaluator: the same scores, with effect at the same opt steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real_runs import Run, in_folder, train

EVAL, END = 40, 130
SYNC = (
    "trainer=sync",
    "seed=3",
    f"trainer.max_opts={END}",
    f"trainer.eval_interval={EVAL}",
    "trainer.record_interval=10",
    "trainer.save_interval=50",
    "evaluator.episodes=5",
    "agent.eval_epsilon=0.1",  # the random draws of the policy must be the same too
)
EVALUATED = [40, 80, 120, 130]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, full_forkserver: None) -> dict[str, Run]:
    """The same run with either evaluator."""
    done = {}
    for name in ("inline", "process"):
        with in_folder(tmp_path_factory.mktemp("run")):
            done[name] = train(*SYNC, f"evaluator={name}")
    return done


def test_both_evaluators_give_the_same_scores(runs: dict[str, Run]) -> None:
    inline, process = runs["inline"], runs["process"]
    for name in ("return_mean", "return_std", "return_min", "return_max", "length_mean"):
        assert inline.series(f"eval/{name}") == process.series(f"eval/{name}")
    assert inline.steps("eval/return_mean") == EVALUATED
    assert inline.files("best") == process.files("best")
    for name in ("best_score", "last_score"):
        assert inline.summary[name] == process.summary[name]
    assert inline.json("best/score.json")["confirmed"] is True


def test_a_result_takes_effect_when_the_next_evaluation_is_due(runs: dict[str, Run]) -> None:
    """In the records a result comes right before the record of the next evaluation's opt step."""
    order = [(record["opt_steps"], "eval/return_mean" in record) for record in runs["process"].records[1:]]
    expected: list[tuple[int, bool]] = []
    for opt_steps in range(10, END + 10, 10):
        if opt_steps % EVAL == 0 and opt_steps > EVAL:
            expected.append((opt_steps - EVAL, True))
        expected.append((opt_steps, False))
    # At the end the run waits for open results. The record of the last opt step comes last.
    assert order == [*expected[:-1], (120, True), (130, True), (130, False)]


@pytest.mark.parametrize("evaluator", ["inline", "process"])
@pytest.mark.usefixtures("workplace")
def test_a12_by_default_evaluation_episodes_are_cut_at_ten_times_those_of_training(evaluator: str) -> None:
    """The first episode of each environment takes 150 env steps, and the second never ends."""
    run = train(
        *("env=gym", "env.entry_point=tests.counting:CountingEnv", "env.kwargs.lengths=[150,1000000000]"),
        *("trainer.max_opts=300", "trainer.eval_interval=300", "evaluator.confirm=false"),
        *(f"evaluator={evaluator}", "evaluator.episodes=2", "evaluator.n_envs=1"),
    )
    assert run.series("eval/length_mean") == [(300, (150 + 1500) / 2)]


@pytest.mark.parametrize("evaluator", ["inline", "process"])
@pytest.mark.usefixtures("workplace")
def test_stop_return_ends_a_run_that_surely_reaches_it(evaluator: str) -> None:
    """The return of an episode of 9 env steps is 45."""
    run = train(
        *("env=gym", "env.entry_point=tests.counting:CountingEnv", "env.kwargs.lengths=[9]"),
        *("trainer.stop_return=45", "trainer.eval_interval=30", f"evaluator={evaluator}"),
    )
    assert run.summary["ended_by"] == "stop_return"
    if evaluator == "inline":
        assert run.counts[0] == 30
        assert run.steps("eval/return_mean") == [30]
        assert run.checkpoints == ["step-000000030"]
    score = run.json("best/score.json")
    assert run.summary["best_score"] == {"opt_steps": score["opt_steps"], "mean": score["mean"]}


def test_a_run_without_evaluations_makes_no_evaluation_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_forkserver: None
) -> None:
    monkeypatch.chdir(tmp_path)
    made = []
    monkeypatch.setattr("border_cli.run.factories.evaluation_env", lambda *given: made.append(given))
    run = train("trainer.eval_interval=null", "trainer.max_opts=20", "trainer=sync")
    assert (run.counts[0], made) == (20, [])
