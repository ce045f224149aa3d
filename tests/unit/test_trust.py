"""The code and the addresses that a run names, and what allows their use."""

from __future__ import annotations

from typing import Any

import pytest

from border_cli.cli.overrides import parse_overrides, typed_names
from border_cli.core.errors import UsageError
from border_cli.run.directory import check_code

WRAPPERS = ["TimeAwareObservation", {"name": "my_envs:W", "kwargs": {"a": 1}}, {"name": "RecordVideo"}]
NAMED: list[tuple[dict[str, Any], str, str, str | None]] = [
    ({"plugins": ["a", "b"]}, "plugins a, b", "plugins=[a]", "plugins=[b,a]"),
    ({"env": {"imports": ["m", "n"]}}, "env.imports m, n", "env.imports=[m]", "env.imports=[n,m]"),
    ({"env": {"id": "m.sub:Mine-v0"}}, "env.id m.sub:Mine-v0", "plugins=[m.sub]", "env.id=m.sub:Mine-v0"),
    (
        {"env": {"entry_point": "os:system", "kwargs": {"command": "true"}}},
        "env.entry_point os:system",
        "env.entry_point=os:popen",
        "env.entry_point=os:system",
    ),
    (
        {"env": {"id": "CartPole-v1", "wrappers": WRAPPERS}},
        "env.wrappers my_envs:W, RecordVideo",
        "env.wrappers=[RecordVideo]",
        "env.wrappers=[{name: 'my_envs:W'},RecordVideo]",
    ),
    ({"env": {"id": "GymV26Environment-v0"}}, "GymV26Environment-v0", "env.id=GymV26Environment-v0", None),
    ({"evaluator": {"type": "m:E"}}, "evaluator.type m:E", "recorder.type=m:E", "evaluator.type='m:E'"),
    ({"step_processor": "m:f"}, "step_processor m:f", "plugins=[m]", "step_processor='m:f'"),
    (
        {"actor_manager": {"type": "ray", "address": "ray://h:1"}},
        "actor_manager.address ray://h:1",
        "actor_manager.address=auto",
        "actor_manager.address='ray://h:1'",
    ),
    ({"recorder": {"mlflow": "http://h"}}, "http://h", "recorder.mlflow=null", "recorder.mlflow='http://h'"),
]


@pytest.mark.parametrize(("data", "said", "another", "typed"), NAMED, ids=[case[1] for case in NAMED])
def test_i2_code_that_a_run_names_must_be_typed_or_trusted(
    data: dict[str, Any], said: str, another: str, typed: str | None
) -> None:
    for words in ([], [another]):
        with pytest.raises(UsageError) as caught:
            check_code(data, typed_names(parse_overrides(words)), trusted=False)
        first, second = str(caught.value).splitlines()
        assert said in first and "trust=true" in second
    if typed is not None:
        check_code(data, typed_names(parse_overrides([typed])), trusted=False)
    check_code(data, {}, trusted=True)


@pytest.mark.parametrize(
    "data",
    [
        {"env": {"id": "CartPole-v1", "kwargs": {"sutton_barto_reward": True}, "wrappers": WRAPPERS[:1]}},
        {
            "plugins": [],
            "evaluator": {"type": "process"},
            "actor_manager": {"type": "ray", "address": "local"},
        },
        {"env": "no section", "plugins": None},
    ],
)
def test_what_belongs_to_border_cli_and_gymnasium_needs_no_trust(data: dict[str, Any]) -> None:
    check_code(data, {}, trusted=False)
