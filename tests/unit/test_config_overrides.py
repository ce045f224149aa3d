"""The words of the command line, as they are read and as Hydra sees them."""

from __future__ import annotations

import pytest

from border_cli.cli import overrides
from border_cli.core.errors import UsageError

OPTIONS = {"agent": ["dqn", "iqn"], "env": ["acrobot", "cartpole", "gym"], "experiment": ["big"]}


def choices(group):
    return OPTIONS.get(group, [])


def for_hydra(*words):
    return overrides.for_hydra(overrides.parse_words(words), choices)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("agent.lr=1", "++agent.lr=1"),
        ("+agent.lr=1", "++agent.lr=1"),
        ("++agent.lr=1", "++agent.lr=1"),
        ("seed=1,2", "++seed=1,2"),
        ("env.kwargs={a: 'x y'}", "++env.kwargs={a: 'x y'}"),
        ("nobody.knows=1", "++nobody.knows=1"),
        ("agent=iqn", "agent=iqn"),
        ("+agent=iqn", "agent=iqn"),
        ("agent=dqn,iqn", "agent=dqn,iqn"),
        ("env=glob(*a*)", "env=glob(*a*)"),
        ("experiment=big", "+experiment=big"),
        ("+experiment=big", "+experiment=big"),
        ("hydra.run.dir=x", "hydra.run.dir=x"),
        ("hydra/launcher=joblib", "hydra/launcher=joblib"),
        ("~env.kwargs.n", "~env.kwargs.n"),
    ],
)
def test_a_word_as_hydra_sees_it(word, expected):
    assert for_hydra(word) == [expected]


def test_every_swept_choice_is_looked_at():
    with pytest.raises(UsageError, match="there is no 'iqm'"):
        for_hydra("agent=dqn,iqm")


def test_typed_values_have_plain_keys_and_the_last_wins():
    parsed = overrides.parse_words(
        ["+a.b=1", "agent=dqn", "++a.b=x=y".replace("x=y", "'x=y'"), "~env.kwargs.n"]
    )
    assert overrides.typed_values(parsed) == {"a.b": "'x=y'", "agent": "dqn"}


def test_a_sweep_expands_in_the_order_of_the_basic_sweeper():
    words = ["env=glob(*t*)", "++seed=range(1,3)", "++n=5", "++k=1,2", "++k=7"]
    assert list(overrides.expand(words, choices)) == [
        ["env=acrobot", "++seed=1", "++n=5", "++k=7"],
        ["env=acrobot", "++seed=2", "++n=5", "++k=7"],
        ["env=cartpole", "++seed=1", "++n=5", "++k=7"],
        ["env=cartpole", "++seed=2", "++n=5", "++k=7"],
    ]


def test_of_a_large_sweep_only_the_first_jobs_are_checked():
    jobs = list(overrides.expand(["++a=range(0,100)", "++b=range(0,100)"], choices))
    assert len(jobs) == 200
    assert jobs[-1] == ["++a=1", "++b=99"]


@pytest.mark.parametrize("text", ["plain", "with 'quotes'", "back\\slash", "a,b=[c]{d}: ${e}", "trailing\\"])
def test_quoted_text_comes_back(text):
    (parsed,) = overrides.parse_words([f"key={overrides.quoted(text)}"])
    assert parsed.value() == text
