"""Complete runs with the inline and the process evaluator: the same scores, with effect at the same opt steps."""

from __future__ import annotations

import pytest

from tests.real_runs import Run, in_folder, train


def test_both_evaluators_give_the_same_scores_and_process_applies_them_when_the_next_is_due(
    tmp_path_factory: pytest.TempPathFactory, full_forkserver: None
) -> None:
    args = (
        *("trainer=sync", "seed=3", "trainer.max_opts=70", "trainer.eval_interval=20"),
        *("trainer.record_interval=10", "evaluator.episodes=5"),
        "agent.eval_epsilon=0.1",  # the random draws of the policy must be the same too
    )
    runs = dict[str, Run]()
    for name in ("inline", "process"):
        with in_folder(tmp_path_factory.mktemp("run")):
            runs[name] = train(*args, f"evaluator={name}")
    inline, process = runs["inline"], runs["process"]
    for name in ("return_mean", "return_std", "return_min", "return_max", "length_mean"):
        assert inline.series(f"eval/{name}") == process.series(f"eval/{name}")
    assert inline.steps("eval/return_mean") == [20, 40, 60, 70]
    assert inline.files("best") == process.files("best")
    assert all(inline.summary[name] == process.summary[name] for name in ("best_score", "last_score"))
    # In the records a result comes right before the record of the next evaluation's opt step.
    order = [(record["opt_steps"], "eval/return_mean" in record) for record in process.records[1:]]
    evaluated = [*((step, True) for step in (20, 40, 60, 70))]
    plain = [(step, False) for step in range(10, 80, 10)]
    assert order == [*plain[:3], evaluated[0], *plain[3:5], evaluated[1], plain[5], *evaluated[2:], plain[6]]


@pytest.mark.parametrize("evaluator", ["inline", "process"])
@pytest.mark.usefixtures("workplace")
def test_a12_by_default_evaluation_episodes_are_cut_at_ten_times_those_of_training(evaluator: str) -> None:
    """The first episode of each environment takes 150 env steps, and the second never ends."""
    run = train(
        *("env=gym", "env.entry_point=tests.counting:CountingEnv", "env.kwargs.lengths=[150,1000000000]"),
        *("trainer.max_opts=200", "trainer.eval_interval=200", "evaluator.confirm=false"),
        *(f"evaluator={evaluator}", "evaluator.episodes=2", "evaluator.n_envs=1"),
    )
    assert run.series("eval/length_mean") == [(200, (150 + 1500) / 2)]
