"""Checks over more than one value, at the edge of what is allowed."""

from __future__ import annotations

import pytest

from border_cli.cli.resume import take_over
from border_cli.config import checks
from border_cli.config.convert import to_config
from border_cli.config.resuming import changes
from border_cli.core.errors import UsageError

SMALL = {
    "agent.type": "dqn",
    "agent.batch_size": 10,
    "env.id": "CartPole-v1",
    "buffer.capacity": 100,
    "trainer.warmup_period": 20,
    "trainer.max_env_steps": 1000,
}


def config(**changes):
    data: dict = {}
    for key, value in (SMALL | {name.replace("__", "."): value for name, value in changes.items()}).items():
        *path, leaf = key.split(".")
        section = data
        for name in path:
            section = section.setdefault(name, {})
        section[leaf] = value
    return to_config(data)


def refusal(**changes):
    with pytest.raises(UsageError) as caught:
        checks.check(config(**changes))
    lines = str(caught.value).splitlines()
    assert 2 <= len(lines) <= 3
    return "\n".join(lines)


def test_the_small_configuration_passes():
    checks.check(config())


@pytest.mark.parametrize(
    "changes",
    [
        {"buffer__capacity": 22},
        {"trainer__warmup_period": 100},
        {"trainer__max_env_steps": 21},
        {"trainer__max_env_steps": None, "trainer__max_time": 1.0},
        {"trainer__ratio_tolerance": 8, "n_actors": 4, "actor_manager__envs_per_actor": 2},
        # 0 + 1 + 10 env steps may be taken, a batch of 10 and the newest step of one environment need 11
        {"trainer__warmup_period": 0, "trainer__ratio_tolerance": 10},
        # with n_step 3 the newest 5 steps cannot be sampled
        {"trainer__warmup_period": 4, "trainer__ratio_tolerance": 10, "buffer__n_step": 3},
        {"trainer__opt_interval": None},
        {"actor_manager__n_buffer": 64, "actor_manager__ring_rows": 130},
        {"trainer__type": "sync", "actor_manager__envs_per_actor": 4, "actor_manager__ring_rows": 16},
        {"device": "cuda:1"},
        {"env__id": "", "env__entry_point": "mine:Env"},
        {"preset__name": "dqn_cartpole", "preset__env_id": "CartPole-v1"},
        {"trainer__stop_return": 475.0},
        {"evaluator__type": "process", "trainer__type": "sync"},
        {"evaluator__confirm_episodes": 50},
        {"evaluator__confirm": False},
    ],
)
def test_the_edge_is_allowed(changes):
    checks.check(config(**changes))


@pytest.mark.parametrize(
    ("changes", "fragments"),
    [
        ({"buffer__capacity": 9}, ["capacity=9", "batch_size=10", "capacity >= batch_size"]),
        ({"trainer__warmup_period": 101}, ["warmup_period=101", "capacity=100"]),
        # with episodes of one env step, 10 of 21 rows are final observations and the newest may still wait
        ({"buffer__capacity": 21}, ["capacity=21", "batch_size=10", "= 22"]),
        ({"buffer__capacity": 23, "buffer__n_step": 3}, ["capacity=23", "(n_step + 1) = 24"]),
        ({"trainer__max_env_steps": 20}, ["max_env_steps=20 ends before the first opt step", "21"]),
        ({"trainer__max_env_steps": None}, ["without a budget", "max_opts", "max_env_steps", "max_time"]),
        (
            {"trainer__ratio_tolerance": 7, "n_actors": 4, "actor_manager__envs_per_actor": 2},
            ["ratio_tolerance=7", "n_actors·envs_per_actor = 8"],
        ),
        (
            {"trainer__warmup_period": 0, "trainer__ratio_tolerance": 9},
            ["10 env steps", "needs 11", "warmup_period + opt_interval + ratio_tolerance"],
        ),
        (
            {"trainer__warmup_period": 3, "trainer__ratio_tolerance": 10, "buffer__n_step": 3},
            ["14 env steps", "needs 15", "n_step"],
        ),
        ({"trainer__opt_interval": None, "trainer__type": "sync"}, ["opt_interval=null", "trainer=async"]),
        ({"trainer__type": "sync", "n_actors": 8}, ["n_actors=8", "trainer=async"]),
        ({"actor_manager__n_buffer": 64, "actor_manager__ring_rows": 129}, ["ring_rows=129", "= 130"]),
        ({"device": "gpu"}, ["no 'gpu'", "cuda"]),
        ({"device": "cuda:"}, ["no 'cuda:'"]),
        ({"env__id": ""}, ["env.id", "env.entry_point=module:name"]),
        ({"env__entry_point": "mine:Env"}, ["two environments", "env=gym env.entry_point=mine:Env"]),
        (
            {"preset__name": "dqn_acrobot", "preset__env_id": "Acrobot-v1"},
            ["preset=dqn_acrobot", "Acrobot-v1", "CartPole-v1", "preset=none"],
        ),
        (
            {"trainer__stop_return": 1.0, "trainer__eval_interval": None},
            ["stop_return", "eval_interval=null"],
        ),
    ],
)
def test_beyond_the_edge_is_refused(changes, fragments):
    message = refusal(**changes)
    for fragment in fragments:
        assert fragment in message


@pytest.mark.parametrize(
    ("n_actors", "envs_per_actor", "given", "expected"),
    [(1, 1, None, 64), (32, 1, None, 64), (33, 1, None, 66), (8, 16, None, 256), (8, 16, 130, 130)],
)
def test_tolerance_follows_from_the_actors(n_actors, envs_per_actor, given, expected):
    c = config(
        n_actors=n_actors, actor_manager__envs_per_actor=envs_per_actor, trainer__ratio_tolerance=given
    )
    assert checks.ratio_tolerance(c) == expected


@pytest.mark.parametrize(
    ("typed", "values", "expected"),
    [
        ({}, (500, 1000), (500, 1000)),
        ({"trainer.max_opts": "500"}, (500, 1000), (500, None)),
        ({"trainer.max_env_steps": "1000"}, (500, 1000), (None, 1000)),
        ({"trainer.max_opts": "500", "trainer.max_env_steps": "1000"}, (500, 1000), (500, 1000)),
        ({"trainer.max_opts": "null"}, (None, 1000), (None, 1000)),
        ({"trainer.max_time": "60"}, (500, 1000), (500, 1000)),
    ],
)
def test_one_typed_budget_drops_the_other(typed, values, expected):
    c = config(trainer__max_opts=values[0], trainer__max_env_steps=values[1])
    checks.apply_typed_budget(c, typed)
    assert (c.trainer.max_opts, c.trainer.max_env_steps) == expected


def test_where_values_come_from_cannot_be_typed():
    with pytest.raises(UsageError, match=r"preset\.name"):
        checks.check_typed({"preset.name": "x"})
    checks.check_typed({"preset": "none", "agent.lr": "1"})


def test_what_only_a_process_has_may_be_typed_with_one_alone():
    typed = {"evaluator.restarts": "1", "evaluator.heartbeat_timeout_s": "9"}
    checks.check_effect(config(evaluator__type="process"), typed)
    checks.check_effect(config(), {"evaluator.episodes": "9"})
    for key in typed:
        with pytest.raises(UsageError, match=key):
            checks.check_effect(config(), {key: "1"})


def test_more_actors_are_not_needed_than_there_are():
    checks.check(config(n_actors=3, actor_manager__min_actors=3))
    assert refusal(n_actors=3, actor_manager__min_actors=4) == (
        "actor_manager.min_actors=4 are more than n_actors=3\nallowed: min_actors <= n_actors"
    )


@pytest.mark.parametrize("mode", [{"trainer__type": "sync"}, {"trainer__lockstep": True}])
def test_what_a_reproducible_run_cannot_do_is_refused_where_it_was_typed(mode: dict[str, object]):
    key = "actor_manager.on_env_error"
    reproducible = config(**mode)
    checks.check_effect(reproducible, ())
    checks.check_effect(config(), (key, "actor_manager.restarts"))
    checks.check_effect(config(**mode, actor_manager__on_env_error="stop"), (key,))
    for typed in (key, "actor_manager.restarts", "actor_manager.min_actors"):
        with pytest.raises(UsageError, match=r"allowed: actor_manager\.on_env_error=stop, or trainer=async"):
            checks.check_effect(reproducible, (typed,))


@pytest.mark.parametrize(
    "key", ["trainer.sync_interval", "trainer.ratio_tolerance", "actor_manager.n_buffer"]
)
def test_what_has_no_meaning_in_lockstep_is_refused_where_it_was_typed(key: str):
    checks.check_effect(config(), (key,))
    with pytest.raises(UsageError, match=rf"allowed: {key} with trainer\.lockstep=false"):
        checks.check_effect(config(trainer__lockstep=True), (key,))


# -- a run that goes on -------------------------------------------------


def settled(beta_opt_steps: int | None = None, action_mask: str = "auto"):
    buffer = {"buffer__type": "prioritized", "buffer__beta_opt_steps": beta_opt_steps}
    return config(**buffer, env__action_mask=action_mask)


def test_the_same_words_take_over_what_the_run_has_settled():
    stored, again = settled(24_500, "none"), settled()
    take_over(stored, again, {})
    assert changes(stored, again) == []


def test_what_is_typed_is_not_taken_over():
    again = settled()
    take_over(settled(24_500, "none"), again, {"buffer.beta_opt_steps": "null", "env.action_mask": "auto"})
    assert changes(settled(), again) == []
