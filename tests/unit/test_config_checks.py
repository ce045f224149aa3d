"""Checks of several values together, at the limits of what is allowed; what `auto` becomes; what a resumed run keeps."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from border_cli.actors.sampler import RowProcessor, Sampler
from border_cli.actors.spec import ActorId
from border_cli.agents.dqn.config import DqnConfig
from border_cli.config import resolve
from border_cli.config.convert import dotted, to_config, to_plain
from border_cli.config.resolve import changes, ratio_tolerance
from border_cli.config.schema import ActorManagerConfig, BufferConfig, EnvConfig, TrainConfig, TrainerConfig
from border_cli.config.validate import check_effect, validate
from border_cli.core.errors import UsageError
from border_cli.replay.buffer import RowReplayBuffer
from border_cli.replay.samplers import UniformSampler
from border_cli.run.initial_weights import with_saved_sizes
from border_cli.training.ratio_limiter import RatioLimiter
from tests.fakes import COUNTING_SPEC, NumpyPolicy, make_counting_env
from tests.faults.amounts import sampled

SMALL = (
    "agent.type=dqn agent.batch_size=10 env.id=CartPole-v1 buffer.capacity=100 trainer.warmup_period=20 "
    "trainer.max_env_steps=1000"
)


def config(words: str = "") -> TrainConfig:
    data: dict[str, Any] = {}
    for word in f"{SMALL} {words}".split():
        key, _, value = word.partition("=")
        *path, leaf = key.split(".")
        section = data
        for name in path:
            section = section.setdefault(name, {})
        section[leaf] = yaml.safe_load(value) if value else ""
    return to_config(data)


@pytest.mark.parametrize(
    "words",
    [
        "",
        "buffer.capacity=22",
        "trainer.max_env_steps=null trainer.max_time=1",
        "trainer.ratio_tolerance=8 n_actors=4 actor_manager.envs_per_actor=2",
        # 0 + 1 + 10 env steps are allowed; a batch of 10 and the newest step of one environment need 11
        "trainer.warmup_period=0 trainer.ratio_tolerance=10",
        "trainer.opt_interval=null",
        "agent.type=sac agent.critics=3 agent.critic_subset=3",
        "device=cuda:1 env.id= env.entry_point=mine:Env",
    ],
)
def test_values_at_the_limit_are_allowed(words: str) -> None:
    validate(config(words))


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        ("trainer.warmup_period=101", "warmup_period=101|capacity=100"),
        # with episodes of one env step, 10 of 21 rows are final observations and the newest is pending
        ("buffer.capacity=21", "capacity=21|batch_size=10|= 22"),
        ("trainer.max_env_steps=20", "max_env_steps=20 ends before the first opt step|21"),
        ("trainer.max_env_steps=null", "without a budget|max_opts, trainer.max_env_steps, trainer.max_time"),
        ("trainer.ratio_tolerance=7 n_actors=8", "ratio_tolerance=7|>= 1·n_actors·envs_per_actor = 8"),
        ("trainer.ratio_tolerance=15 n_actors=8 env.vector=true", "15|>= 2·n_actors·envs_per_actor = 16"),
        (
            "env.wrappers=[a:b] env.preprocess=atari env.vector=true",
            "env.preprocess and env.wrappers|vector=false",
        ),
        ("trainer.warmup_period=0 trainer.ratio_tolerance=9", "10 env steps|needs 11|+ opt_interval"),
        ("trainer.opt_interval=null trainer.type=sync", "opt_interval=null|trainer=async"),
        ("n_actors=3 actor_manager.min_actors=4", "min_actors=4 are more than n_actors=3"),
        ("agent.compile=true device=mps", "agent.compile=true|device=mps|device=cpu"),
        ("buffer.device=cuda", "buffer.device=cuda|device=cpu|buffer.device=cpu"),
        ("buffer.her=future buffer.n_step=3", "buffer.her=future|buffer.n_step=3|buffer.n_step=1"),
        ("buffer.her=future buffer.device=cuda device=cuda", "buffer.her=future|main memory"),
        ("agent.type=sac agent.critic_subset=3", "critic_subset=3 is not for 2 critics|up to critics"),
        ("agent.type=tqc agent.critic_subset=2", "of 25 quantiles|agent.quantiles=1"),
        ("device=gpu", "no 'gpu'|cuda"),
        ("env.id=", "env.id|env.entry_point=module:name"),
        ("env.entry_point=mine:Env", "two environments|env=gym env.entry_point=mine:Env"),
        ("preset.name=dqn_atari preset.env_id=ALE/*", "preset=dqn_atari|ALE/*|CartPole-v1|preset=none"),
        ("trainer.stop_return=1 trainer.eval_interval=null", "stop_return|eval_interval=null"),
    ],
)
def test_values_beyond_the_limit_are_refused(words: str, fragments: str) -> None:
    with pytest.raises(UsageError) as refusal:
        validate(config(words))
    message = str(refusal.value)
    assert 2 <= len(message.splitlines()) <= 3
    assert all(fragment in message for fragment in fragments.split("|")), message


@pytest.mark.parametrize(
    ("typed", "budgets"),
    [
        ({}, (500, 1000)),
        ({"trainer.max_opts": "500"}, (500, None)),
        ({"trainer.max_env_steps": "1000"}, (None, 1000)),
        ({"trainer.max_opts": "500", "trainer.max_env_steps": "1000"}, (500, 1000)),
        ({"trainer.max_time": "60"}, (500, 1000)),
    ],
)
def test_one_typed_budget_drops_the_other(typed: dict[str, str], budgets: tuple[Any, Any]) -> None:
    trainer = resolve.with_typed_budget(config("trainer.max_opts=500"), typed).trainer
    assert (trainer.max_opts, trainer.max_env_steps) == budgets
    no_opts = resolve.with_typed_budget(config(), {"trainer.max_opts": "null"}).trainer
    assert (no_opts.max_opts, no_opts.max_env_steps) == (None, 1000)


SYNC, LOCKSTEP, ASYNC = "trainer.type=sync", "trainer.lockstep=true", "n_actors=2"
NO_EVALUATIONS = "trainer.eval_interval=null"


@pytest.mark.parametrize(
    ("key", "unused_in", "used_in"),
    [
        ("trainer.sync_interval", SYNC, ASYNC),
        ("trainer.ratio_tolerance", "trainer.opt_interval=null", SYNC),
        ("trainer.lockstep_steps", ASYNC, LOCKSTEP),
        ("actor_manager.restarts", SYNC, ASYNC),
        ("actor_manager.restarts", SYNC, f"{SYNC} evaluator.type=process"),
        ("actor_manager.restarts", LOCKSTEP, f"{LOCKSTEP} evaluator.type=process"),
        ("agent.epsilon_ladder", SYNC, f"{LOCKSTEP} {ASYNC}"),
        ("agent.lr_opt_steps", "", "agent.lr_schedule=linear"),
        ("actor_manager.restart_delay_s", "actor_manager.restarts=0", ""),
        ("evaluator.video_interval", NO_EVALUATIONS, f"{NO_EVALUATIONS} evaluator.video_interval=9"),
        ("buffer.her_ratio", "", "buffer.her=future"),
        ("agent.critic_dropout", "agent.type=crossq", "agent.type=sac agent.norm=layer"),
        ("recorder.project", "", "recorder.mlflow=sqlite:///mlflow.db"),
        ("evaluator.n_envs", "evaluator.episodes=5 evaluator.n_envs=6", "evaluator.n_envs=20"),
    ],
)
def test_a_typed_key_without_effect_is_refused(key: str, unused_in: str, used_in: str) -> None:
    check_effect(config(used_in), {key})
    check_effect(config(unused_in), ())
    with pytest.raises(UsageError, match=rf"{key} has no effect .*\nallowed: ") as refusal:
        check_effect(config(unused_in), {key})
    assert len(str(refusal.value).splitlines()) == 2


# -- values resolved later ----------------------------------------------------


def resolved(c: TrainConfig, **facts: Any) -> TrainConfig:
    seen = {name: facts.pop(name, default) for name, default in (("action_mask", "none"), ("categories", {}))}
    usual = {"replay_fits": True, "screen": False, "init_from": None, "cpus": 2}
    return resolve.resolve(resolve.with_env_facts(c, **seen), **usual | facts)


PRIORITIZED, LINEAR = "buffer.type=prioritized", "agent.lr_schedule=linear"
ONLY_TIME = "trainer.max_env_steps=null trainer.max_time=9"


@pytest.mark.parametrize(
    ("words", "facts", "expected"),
    [
        # agent.compile and threads of a free-running run are chosen by timing
        ("", {}, "trainer.ratio_tolerance=128 agent.compile=auto threads=null trainer.lockstep_steps=null"),
        ("", {}, "agent.lr_opt_steps=null buffer.device=cpu recorder.console=plain checkpoint.replay=full"),
        ("n_actors=8 actor_manager.envs_per_actor=16 threads=2", {}, "trainer.ratio_tolerance=256 threads=2"),
        (f"{LOCKSTEP} n_actors=3", {}, "trainer.lockstep_steps=21 threads=1 agent.compile='false'"),
        (f"{SYNC} agent.compile=true", {}, "agent.compile='true' threads=1"),
        ("", {"action_mask": "info", "categories": {"a": [3]}}, "env.action_mask=info env.categories.a=[3]"),
        ("env.categories={a:[4]}", {"categories": {"b": [3]}}, "env.categories.a=[4]"),
        (f"{PRIORITIZED} {LINEAR} trainer.opt_interval=2", {}, "buffer.beta_opt_steps=490"),
        (f"{PRIORITIZED} {ONLY_TIME}", {}, "buffer.beta_opt_steps=50000"),
        ("device=cuda", {"replay_on_gpu": True}, "agent.compile='true' threads=1 buffer.device=cuda"),
        ("", {"replay_fits": False, "screen": True}, "checkpoint.replay=none recorder.console=screen"),
        ("agent.type=crossq device=cuda", {}, "agent.critic_hidden=[1024,1024]"),
        ("agent.type=flashsac device=cuda", {}, "agent.critic_hidden=[256,256]"),
        ("agent.type=flashsac", {}, "agent.hidden=[64,64]"),
        ("agent.type=crossq agent.hidden=[9] trainer.max_opts=9", {}, "agent.critic_hidden=[9]"),
        ("agent.type=crossq device=cuda agent.critic_hidden=[7]", {}, "agent.critic_hidden=[7]"),
        ("init_from=runs/latest", {"init_from": "/runs/a/best"}, "init_from=/runs/a/best"),
    ],
)
def test_auto_values_are_resolved(words: str, facts: dict[str, Any], expected: str) -> None:
    c = config(words)
    before = to_plain(c)
    values = dotted(to_plain(resolved(c, **facts)))
    assert to_plain(c) == before  # the input is not changed
    for word in expected.split():
        key, _, value = word.partition("=")
        assert values[key] == yaml.safe_load(value), key
    assert "auto" not in [value for key, value in values.items() if key != "agent.compile"]
    again = resolved(resolved(c, **facts), action_mask="x", replay_fits=False, screen=True)
    assert again.trainer == resolved(c, **facts).trainer


@pytest.mark.parametrize(
    ("cpus", "words", "expected"),
    [
        (2, "", "process"),
        (1, "", "inline"),
        (8, SYNC, "inline"),
        (1, f"{LOCKSTEP} evaluator.type=process", "process"),
    ],
)
def test_where_evaluations_run(cpus: int, words: str, expected: str) -> None:
    stored = resolved(config(words), cpus=cpus)
    assert stored.evaluator.type == expected
    # The run keeps it on a machine with another number of CPUs.
    elsewhere = resolved(resolve.inherit(config(words), stored), cpus=3 - min(cpus, 2))
    assert elsewhere.evaluator.type == expected


CROSSQ = "agent.type=crossq device=cuda"


@pytest.mark.parametrize("words", ["", f"{LOCKSTEP} {PRIORITIZED}", f"{LINEAR} agent.compile=true", CROSSQ])
def test_the_same_command_finds_its_run_without_changes(words: str) -> None:
    facts = {"action_mask": "info", "categories": {"obs": [2, 3]}, "replay_fits": False}
    stored = resolve.reopen(resolved(config(words), **facts))
    again = resolve.inherit(config(words), stored)
    assert changes(stored, resolve.reopen(again)) == []
    assert resolved(again) == resolved(config(words), **facts)


def test_a_command_without_sizes_is_not_that_of_a_run_with_other_sizes() -> None:
    stored = resolve.reopen(resolved(config("agent.type=sac agent.critic_hidden=[8]")))
    again = resolve.inherit(config("agent.type=sac"), stored)
    assert [change.key for change in changes(stored, resolve.reopen(again))] == ["agent.critic_hidden"]


def test_a_schedule_over_a_budget_without_opt_steps_is_refused() -> None:
    with pytest.raises(UsageError, match=r"agent\.lr_schedule=linear ends with the budget"):
        resolved(config(f"{LINEAR} {ONLY_TIME}"))


def test_derived_values_follow_their_sources_on_resume() -> None:
    stored = resolve.reopen(resolved(config(PRIORITIZED)))
    stored.n_actors, stored.trainer.max_env_steps = 100, 2000
    assert resolved(stored).trainer.ratio_tolerance == 200
    assert resolved(stored).buffer.beta_opt_steps == 980, "a larger budget keeps the schedule of beta"


@pytest.mark.parametrize(
    ("typed", "stored", "is_inherited"),
    [
        ("a", "a/best", True),
        ("latest/best", "b/best", True),  # a link that was another one when the run began
        ("ab", "a/best", False),
    ],
)
def test_weights_of_another_run_are_another_configuration(tmp_path, monkeypatch, typed, stored, is_inherited):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latest").symlink_to("a")
    source = str(tmp_path / stored)
    inherited = resolve.inherit(config(f"init_from={typed}"), resolved(config(), init_from=source))
    assert (inherited.init_from == source) == is_inherited


# -- B2: a grid of settings around every limit, with the real limiter, step processors and replay ---


OPT_STEPS = 5
GRID = list(
    itertools.product(
        (1, 3),  # n_actors
        (1, 2),  # envs_per_actor
        (1, 3),  # n_step
        (0.3, 1.0, 4.0),  # opt_interval
        (0, 6, 20),  # warmup_period
        (1, 5, 6, 16),  # ratio_tolerance
        (1, 8, 20),  # batch_size
        (20, 60),  # capacity
    )
)


def grid_config(values: tuple[float, ...]) -> TrainConfig:
    n_actors, envs, n_step, interval, warmup, tolerance, batch, capacity = values
    return TrainConfig(
        agent=DqnConfig(batch_size=int(batch)),
        env=EnvConfig(entry_point="tests.counting:CountingEnv", kwargs={"lengths": [1, 4]}),
        buffer=BufferConfig(capacity=int(capacity), n_step=int(n_step)),
        actor_manager=ActorManagerConfig(envs_per_actor=int(envs)),
        trainer=TrainerConfig(
            opt_interval=interval,
            warmup_period=int(warmup),
            ratio_tolerance=int(tolerance),
            max_opts=OPT_STEPS,
        ),
        n_actors=int(n_actors),
    )


def sampler(c: TrainConfig, actor: int) -> Sampler:
    n_envs = c.actor_manager.envs_per_actor
    env = make_counting_env(ActorId(actor, 0, c.n_actors, n_envs, 0), c.env)
    processor = RowProcessor(COUNTING_SPEC, n_envs)
    sampler = Sampler(env, NumpyPolicy(), processor, lambda env, episode: None if episode else 0)
    sampler.begin()
    return sampler


def opt_steps_done(c: TrainConfig) -> int:
    """Return OPT_STEPS, or fewer if learner and actors wait for each other."""
    n, group, interval = c.n_actors, c.actor_manager.envs_per_actor, c.trainer.opt_interval
    limiter = RatioLimiter(interval, c.trainer.warmup_period, ratio_tolerance(c), None, n, group)
    uniform = UniformSampler(np.random.default_rng(0))
    buffer = RowReplayBuffer(c.buffer.capacity, COUNTING_SPEC, uniform, c.buffer.n_step)
    actors, taken = [sampler(c, actor) for actor in range(n)], [0] * n
    while limiter.opt_steps < OPT_STEPS:
        if limiter.may_opt() and len(buffer) >= c.agent.batch_size:
            buffer.batch(c.agent.batch_size)
            limiter.count_opt()
            continue
        limiter.grant()
        if list(limiter.credits) == taken:
            break
        for actor in range(n):
            while (credit := limiter.credits[actor] - taken[actor]) > 0:
                k = min(group, credit)
                buffer.push(actors[actor].sample([(taken[actor] + i) % group for i in range(k)], 0), actor)
                taken[actor] += k
                limiter.inserted(actor, k)
    return limiter.opt_steps


def test_b2_settings_are_refused_or_learn() -> None:
    refused = 0
    for values in (grid := sampled(GRID, 5)):
        c = grid_config(values)
        try:
            validate(c)
        except UsageError as e:
            refused += 1
            assert 2 <= len(str(e).splitlines()) <= 3, values
            continue
        assert opt_steps_done(c) == OPT_STEPS, values
    assert len(grid) // 4 < refused < len(grid) * 3 // 4  # the grid has many of both kinds


@pytest.mark.parametrize("values", [(3, 2, 3, 1.0, 0, 6, 20, 100), (1, 1, 1, 0.3, 0, 5, 8, 60)])
def test_b2_refused_settings_would_wait_for_ever(values: tuple[float, ...]) -> None:
    c = grid_config(values)
    with pytest.raises(UsageError, match=r"warmup_period \+ opt_interval \+ ratio_tolerance"):
        validate(c)
    assert opt_steps_done(c) < OPT_STEPS


def test_widths_that_are_left_open_are_those_of_the_loaded_weights() -> None:
    stored = {"type": "flashsac", "hidden": [128, 128], "critic_hidden": [256, 256]}
    saved: Any = SimpleNamespace(description=SimpleNamespace(agent=stored))
    agent: Any = with_saved_sizes(saved, config("agent.type=flashsac agent.critic_hidden=[32]")).agent
    assert (agent.hidden, agent.critic_hidden) == ([128, 128], [32])
    other: Any = with_saved_sizes(saved, config("agent.type=crossq device=cuda")).agent
    assert other.critic_hidden == []
