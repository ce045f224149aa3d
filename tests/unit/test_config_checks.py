"""Checks of several values together, at the limits of what is allowed."""

from __future__ import annotations

import pytest

from border_cli.config import resolve, validate
from border_cli.config.convert import to_config, to_plain
from border_cli.config.resolve import changes
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


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n_actors": 3, "actor_manager__min_actors": 3},
        {"buffer__capacity": 22},
        {"trainer__warmup_period": 100},
        {"trainer__max_env_steps": 21},
        {"trainer__max_env_steps": None, "trainer__max_time": 1.0},
        {"trainer__ratio_tolerance": 8, "n_actors": 4, "actor_manager__envs_per_actor": 2},
        # 0 + 1 + 10 env steps are allowed; a batch of 10 and the newest step of one environment need 11
        {"trainer__warmup_period": 0, "trainer__ratio_tolerance": 10},
        # with n_step 3 the newest 5 steps cannot be sampled
        {"trainer__warmup_period": 4, "trainer__ratio_tolerance": 10, "buffer__n_step": 3},
        {"trainer__opt_interval": None},
        {"device": "cuda:1", "env__id": "", "env__entry_point": "mine:Env"},
        {"evaluator__episodes": 2, "evaluator__n_envs": 2, "trainer__stop_return": 475.0},
    ],
)
def test_values_at_the_limit_are_allowed(changes):
    validate.validate(config(**changes))


@pytest.mark.parametrize(
    ("changes", "fragments"),
    [
        ({"trainer__warmup_period": 101}, ["warmup_period=101", "capacity=100"]),
        # with episodes of one env step, 10 of 21 rows are final observations and the newest is pending
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
        (
            {"n_actors": 3, "actor_manager__min_actors": 4},
            ["min_actors=4 are more than n_actors=3", "min_actors <= n_actors"],
        ),
        ({"agent__compile": True, "device": "mps"}, ["agent.compile=true", "device=mps", "device=cpu"]),
        ({"buffer__device": "cuda"}, ["buffer.device=cuda", "device=cpu", "buffer.device=cpu"]),
        ({"device": "gpu"}, ["no 'gpu'", "cuda"]),
        ({"env__id": ""}, ["env.id", "env.entry_point=module:name"]),
        ({"env__entry_point": "mine:Env"}, ["two environments", "env=gym env.entry_point=mine:Env"]),
        (
            {"preset__name": "dqn_atari", "preset__env_id": "ALE/*"},
            ["preset=dqn_atari", "ALE/*", "CartPole-v1", "preset=none"],
        ),
        (
            {"trainer__stop_return": 1.0, "trainer__eval_interval": None},
            ["stop_return", "eval_interval=null"],
        ),
    ],
)
def test_values_beyond_the_limit_are_refused(changes, fragments):
    with pytest.raises(UsageError) as caught:
        validate.validate(config(**changes))
    message = str(caught.value)
    assert 2 <= len(message.splitlines()) <= 3
    assert all(fragment in message for fragment in fragments), message


@pytest.mark.parametrize(
    ("typed", "before", "after"),
    [
        ({}, (500, 1000), (500, 1000)),
        ({"trainer.max_opts": "500"}, (500, 1000), (500, None)),
        ({"trainer.max_env_steps": "1000"}, (500, 1000), (None, 1000)),
        ({"trainer.max_opts": "500", "trainer.max_env_steps": "1000"}, (500, 1000), (500, 1000)),
        ({"trainer.max_opts": "null"}, (None, 1000), (None, 1000)),
        ({"trainer.max_time": "60"}, (500, 1000), (500, 1000)),
    ],
)
def test_one_typed_budget_drops_the_other(typed, before, after):
    given = config(trainer__max_opts=before[0], trainer__max_env_steps=before[1])
    found = resolve.with_typed_budget(given, typed).trainer
    assert (found.max_opts, found.max_env_steps) == after
    assert (given.trainer.max_opts, given.trainer.max_env_steps) == before


# -- typed keys without effect --------------------------------------------

SYNC, LOCKSTEP, ASYNC = {"trainer__type": "sync"}, {"trainer__lockstep": True}, {"n_actors": 2}
NO_EVALUATIONS = {"trainer__eval_interval": None}


@pytest.mark.parametrize(
    ("key", "unused_in", "used_in"),
    [
        ("trainer.sync_interval", SYNC, ASYNC),
        ("trainer.ratio_tolerance", LOCKSTEP, ASYNC),
        ("trainer.ratio_tolerance", {"trainer__opt_interval": None}, SYNC),
        ("trainer.lockstep_steps", ASYNC, LOCKSTEP),
        ("actor_manager.restarts", SYNC, ASYNC),
        ("actor_manager.min_actors", LOCKSTEP, ASYNC),
        ("actor_manager.serial_init", {"n_actors": 1}, ASYNC),
        ("agent.epsilon_ladder", {"n_actors": 1}, ASYNC),
        ("agent.epsilon_ladder", SYNC, LOCKSTEP | ASYNC),
        ("agent.lr_opt_steps", {}, {"agent__lr_schedule": "linear"}),
        ("env.noop_max", {}, {"env__preprocess": "atari"}),
        ("evaluator.restarts", {"evaluator__type": "inline"}, {}),
        ("evaluator.restarts", LOCKSTEP, LOCKSTEP | {"evaluator__type": "process"}),
        ("actor_manager.restart_delay_s", {"actor_manager__restarts": 0}, {}),
        ("evaluator.video_interval", NO_EVALUATIONS, NO_EVALUATIONS | {"evaluator__video_interval": 9}),
        ("evaluator.episodes", NO_EVALUATIONS | {"evaluator__video_interval": 9}, {}),
        ("actor_manager.heartbeat_timeout_s", SYNC, ASYNC),
        ("recorder.project", {}, {"recorder__mlflow": "sqlite:///mlflow.db"}),
        ("recorder.finish_s", {}, {"recorder__type": "mine:Recorder"}),
        ("evaluator.n_envs", {"evaluator__episodes": 5, "evaluator__n_envs": 6}, {"evaluator__n_envs": 20}),
    ],
)
def test_a_typed_key_without_effect_is_refused(key, unused_in, used_in):
    validate.check_effect(config(**used_in), {key})
    validate.check_effect(config(**unused_in), ())
    with pytest.raises(UsageError, match=rf"{key} has no effect .*\nallowed: ") as caught:
        validate.check_effect(config(**unused_in), {key})
    assert len(str(caught.value).splitlines()) == 2


# -- values resolved later ----------------------------------------------------


def resolved(c, **facts):
    seen = {name: facts.pop(name, default) for name, default in (("action_mask", "none"), ("categories", {}))}
    usual = {"replay_fits": True, "screen": False, "init_from": None, "cpus": 2}
    return resolve.resolve(resolve.with_env_facts(c, **seen), **usual | facts)


PRIORITIZED, TIMED = {"buffer__type": "prioritized"}, {"trainer__max_time": 9.0}
LINEAR = {"agent__lr_schedule": "linear"}
ATARI = {"env__id": "ALE/Pong-v5", "env__preprocess": "atari", "actor_manager__envs_per_actor": 2}


@pytest.mark.parametrize(
    ("changes", "facts", "key", "expected"),
    [
        ({}, {}, "trainer.ratio_tolerance", 128),
        ({"n_actors": 8, "actor_manager__envs_per_actor": 16}, {}, "trainer.ratio_tolerance", 256),
        ({"trainer__ratio_tolerance": 130}, {}, "trainer.ratio_tolerance", 130),
        (LOCKSTEP | {"n_actors": 3}, {}, "trainer.lockstep_steps", 21),
        (LOCKSTEP | {"trainer__lockstep_steps": 5}, {}, "trainer.lockstep_steps", 5),
        ({}, {}, "trainer.lockstep_steps", None),
        ({}, {"categories": {"image": [3, 2]}}, "env.categories", {"image": [3, 2]}),
        ({"env__categories": {"a": [4]}}, {"categories": {"image": [3]}}, "env.categories", {"a": [4]}),
        (PRIORITIZED | {"trainer__opt_interval": 2.0}, {}, "buffer.beta_opt_steps", 490),
        (PRIORITIZED | {"trainer__max_env_steps": None, **TIMED}, {}, "buffer.beta_opt_steps", 50_000),
        (LINEAR | {"trainer__opt_interval": 2.0}, {}, "agent.lr_opt_steps", 490),
        (LINEAR | {"agent__lr_opt_steps": 7}, {}, "agent.lr_opt_steps", 7),
        ({}, {}, "agent.lr_opt_steps", None),
        ({}, {}, "agent.compile", "auto"),  # chosen by timing during the run
        ({"device": "cuda"}, {}, "agent.compile", "true"),
        ({"device": "cuda", "agent__compile": False}, {}, "agent.compile", "false"),
        ({"trainer__type": "sync"}, {}, "agent.compile", "false"),
        ({"agent__compile": True, "trainer__type": "sync"}, {}, "agent.compile", "true"),
        ({}, {}, "threads", None),
        ({"threads": 2}, {}, "threads", 2),
        ({"trainer__type": "sync"}, {}, "threads", 1),
        ({"device": "cuda"}, {}, "threads", 1),
        ({}, {"action_mask": "info"}, "env.action_mask", "info"),
        ({"env__action_mask": "none"}, {"action_mask": "info"}, "env.action_mask", "none"),
        ({}, {}, "buffer.device", "cpu"),
        ({"device": "cuda"}, {"replay_on_gpu": True}, "buffer.device", "cuda"),
        ({"device": "cuda", "buffer__device": "cpu"}, {"replay_on_gpu": True}, "buffer.device", "cpu"),
        ({}, {"replay_fits": True}, "checkpoint.replay", "full"),
        ({}, {"replay_fits": False}, "checkpoint.replay", "none"),
        ({}, {"screen": True}, "recorder.console", "screen"),
        ({}, {"screen": False}, "recorder.console", "plain"),
        ({"recorder__console": "none"}, {"screen": True}, "recorder.console", "none"),
        ({"init_from": "runs/latest"}, {"init_from": "/runs/a/best"}, "init_from", "/runs/a/best"),
    ],
)
def test_auto_values_are_resolved(changes, facts, key, expected):
    c = config(**changes)
    before, found = to_plain(c), to_plain(resolved(c, **facts))
    assert to_plain(c) == before  # the input is not changed
    group, _, name = key.rpartition(".")
    assert (found[group] if group else found)[name] == expected
    del found["agent"]["compile"]  # a free-running run decides it again and again
    assert "auto" not in str(found)
    assert resolved(resolved(c, **facts), action_mask="x", replay_fits=False, screen=True).trainer == (
        resolved(c, **facts).trainer
    )


@pytest.mark.parametrize(
    ("cpus", "changes", "expected"),
    [
        (2, {}, "process"),
        (1, {}, "inline"),
        (8, SYNC, "inline"),
        (8, {"trainer__eval_interval": None}, "inline"),
        (8, {"evaluator__type": "inline"}, "inline"),
        (1, LOCKSTEP | {"evaluator__type": "process"}, "process"),
    ],
)
def test_where_evaluations_run(cpus, changes, expected):
    stored = resolved(config(**changes), cpus=cpus)
    assert stored.evaluator.type == expected
    # The run keeps it on a machine with another number of CPUs.
    elsewhere = {"cpus": 3 - min(cpus, 2)}
    assert resolved(resolve.inherit(config(**changes), stored), **elsewhere).evaluator.type == expected


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"trainer__ratio_tolerance": 100, "recorder__console": "plain"},
        LOCKSTEP,
        PRIORITIZED,
        LINEAR,
        {"agent__compile": True},
    ],
)
def test_the_same_command_finds_its_run_without_changes(given):
    facts = {"action_mask": "info", "categories": {"obs": [2, 3]}, "replay_fits": False}
    stored = resolve.reopen(resolved(config(**given), **facts))
    again = resolve.inherit(config(**given), stored)
    assert changes(stored, resolve.reopen(again)) == []
    assert resolved(again) == resolved(config(**given), **facts)


@pytest.mark.parametrize(
    ("device", "chosen", "expected"),
    [
        ("cuda:1", (), ("true", "cuda")),
        ("cpu", (), ("auto", "auto")),
        ("cpu", ("buffer.device",), ("auto", "cuda")),
        ("mps", ("agent.compile",), ("true", "auto")),
    ],
)
def test_what_a_gpu_decided_is_open_again_on_another_device(device, chosen, expected):
    stored = config(device="cuda", buffer__device="cuda", agent__compile=True)
    resumed = config(device=device, buffer__device="cuda", agent__compile=True)
    found = resolve.reopen_for_device(resumed, stored, chosen)
    assert (found.agent.compile, found.buffer.device) == expected
    assert (resumed.agent.compile, resumed.buffer.device) == ("true", "cuda")  # the input is not changed


def test_a_schedule_over_a_budget_without_opt_steps_is_refused():
    with pytest.raises(UsageError, match=r"agent\.lr_schedule=linear ends with the budget"):
        resolved(config(**LINEAR, trainer__max_env_steps=None, **TIMED))


def test_derived_values_follow_their_sources_on_resume():
    stored = resolve.reopen(resolved(config()))
    stored.n_actors = 100
    assert resolved(stored).trainer.ratio_tolerance == 200


@pytest.mark.parametrize(
    ("typed", "stored", "is_inherited"),
    [
        ("a", "a/best", True),
        ("a/best", "a/best", True),
        ("latest", "b/best", True),  # a link that was another one when the run began
        ("latest/best", "b/best", True),
        ("b", "a/best", False),
        ("ab", "a/best", False),
    ],
)
def test_weights_of_another_run_are_another_configuration(tmp_path, monkeypatch, typed, stored, is_inherited):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latest").symlink_to("a")
    source = str(tmp_path / stored)
    inherited = resolve.inherit(config(init_from=typed), resolved(config(), init_from=source))
    assert (inherited.init_from == source) == is_inherited
