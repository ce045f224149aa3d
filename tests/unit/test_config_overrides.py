"""Overrides on the command line: how they are parsed and passed to Hydra."""

from __future__ import annotations

import pytest

from border_cli.cli import overrides
from border_cli.core.errors import UsageError

OPTIONS = {"agent": ["dqn", "iqn"], "env": ["acrobot", "cartpole", "gym"], "experiment": ["big"]}


def for_hydra(*argv):
    parsed = overrides.parse_overrides(argv)
    return [overrides.for_hydra(override, lambda group: OPTIONS.get(group, [])) for override in parsed]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("agent.lr=1", "++agent.lr=1"),
        ("+agent.lr=1", "++agent.lr=1"),
        ("env.kwargs={a: 'x y'}", "++env.kwargs={a: 'x y'}"),
        ("+agent=iqn", "agent=iqn"),
        ("env=glob(*a*)", "env=glob(*a*)"),
        ("experiment=big", "+experiment=big"),
        ("hydra/launcher=joblib", "hydra/launcher=joblib"),
        ("~env.kwargs.n", "~env.kwargs.n"),
    ],
)
def test_overrides_are_passed_to_hydra(override, expected):
    assert for_hydra(override) == [expected]


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["agent.foo=a:[1", "agent.foo=2]"], "; quote it: 'agent.foo=…'"),  # agent.foo={a:[1,2]}
        (["env.wrappers=[name:X]", "env.wrappers=[kwargs:{a:1}]"], "; quote it: 'env.wrappers=…'"),
        (["env.id=a b(", "seed=1"], ""),
    ],
)
def test_a_word_that_a_shell_has_split_is_to_be_quoted(argv, hint):
    with pytest.raises(UsageError, match="cannot be read as key=value") as refusal:
        overrides.parse_overrides(argv)
    last = str(refusal.value).splitlines()[-1]
    assert last.endswith(hint) if hint else "quote" not in last


def test_every_choice_of_a_sweep_is_checked():
    with pytest.raises(UsageError, match="there is no 'iqm'"):
        for_hydra("agent=dqn,iqm")


def test_keys_set_by_options_cannot_be_typed():
    for key in ("preset.name", "agent.type", "env.type"):
        with pytest.raises(UsageError, match=key):
            overrides.parse_overrides([f"{key}=x"])
    assert len(overrides.parse_overrides(["preset=none", "agent.lr=1", "evaluator.type=mine:Evaluator"])) == 3


def test_override_values_have_plain_keys_and_the_last_one_wins():
    parsed = overrides.parse_overrides(["+a.b=1", "agent=dqn", "++a.b='x=y'", "~env.kwargs.n"])
    assert overrides.override_values(parsed) == {"a.b": "'x=y'", "agent": "dqn"}


@pytest.mark.parametrize("text", ["plain", "with 'quotes'", "back\\slash", "a,b=[c]{d}: ${e}", "trailing\\"])
def test_quoted_text_round_trips(text):
    (parsed,) = overrides.parse_overrides([f"key={overrides.quoted(text)}"])
    assert parsed.value() == text
