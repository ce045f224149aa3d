"""`border-bench`: measures, predicts and recommends, beside the speed of a run; it leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from border_cli import compose
from border_cli.agents.sac.agent import SacPolicy
from border_cli.agents.sac.network import PolicyArrays
from border_cli.cli.bench import main
from border_cli.cli.compose import Composer
from border_cli.cli.overrides import parse_overrides
from border_cli.core.spaces import Obs
from border_cli.run import probes
from tests.real_runs import tiny
from tests.unit.test_plan import cells

SHORT = ("env=cartpole", "trainer.max_opts=40", "trainer.eval_interval=null")
ALONE = "one actor, 1 environment", "one actor, 16 environments", "opt step, 1 thread"


def rate(cell: str) -> float:
    """The number that `format.number` has shown: 31,000 or 12.3."""
    return float(cell.partition(" ")[0].replace(",", "").replace("M", "e6"))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "BENCH_S", 0.02)


def test_every_part_is_measured_and_the_recommendation_can_be_typed(
    workplace: Path, short: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(tiny(*SHORT, "agent.compile=false", "actor_manager.envs_per_actor=3")) == 0
    text = capsys.readouterr().out
    rows = cells(text)
    assert all(rate(rows[part]) > 0 for part in (*ALONE, "one actor, 3 environments"))
    assert "opt step, compiled, 1 thread" not in rows
    rates = [rate(rows[f"{side} steps/s"]) for side in ("env", "eager opt")]
    assert rates[0] == pytest.approx(rates[1], rel=0.01)  # opt_interval=1
    assert rate(rows["opt steps/s with what is recommended"]) > 0
    assert rows["slower side"].startswith("the ")
    recommended = text.splitlines()[-1]
    keys = [word.partition("=")[0] for word in recommended.split()[1:]]
    assert keys == ["n_actors", "actor_manager.envs_per_actor", "trainer.opt_interval"]
    with Composer(parse_overrides(["env=cartpole", *recommended.split()[1:]])) as composer:
        assert composer.compose().config.trainer.opt_interval == 1
    assert len(text.splitlines()) <= 30
    assert [path.name for path in workplace.iterdir() if path.name != "state"] == []


def test_an_environment_with_masks_and_categories_is_measured(
    workplace: Path, short: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """It raises when it is given an action that its mask forbids."""
    args = ("env=gym", "env.entry_point=tests.envs:MaskedGrid", "trainer.eval_interval=null")
    assert main(tiny(*args, "agent.compile=false")) == 0
    rows = cells(capsys.readouterr().out)
    assert all(rate(rows[part]) > 0 for part in ALONE)


def test_an_actor_is_measured_as_it_acts_in_most_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with the random actions at the start, and with the copied weights that actors use once they were sent some."""
    seen: list[bool] = []
    given = SacPolicy._given

    def noted(self: SacPolicy, obs: Obs) -> Any:
        assert isinstance(self._arrays, PolicyArrays)
        seen.append(self._arrays._hidden._layers is not self._arrays._hidden._in_place)
        return given(self, obs)

    monkeypatch.setattr(SacPolicy, "_given", noted)
    config = compose("agent=sac", "env=pendulum", "agent.random_env_steps=1000", "agent.hidden=[4]")
    (rate,) = probes.act_alone([config], 0.0)
    assert rate > 0 and seen and all(seen)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["plan=true"],
            "plan has no effect in border-bench, which trains nothing\nallowed: border-train plan=…",
        ),
        (["resume=runs/latest"], "resume has no effect in border-bench"),
        (["agent.typo=1"], "agent.typo: there is no such key"),
        (["agent=dqm"], "agent: there is no 'dqm'"),
        (["-m", "seed=1,2"], "there is no flag -m"),
        (["n_actors=4", "trainer=sync"], "n_actors=4: trainer=sync acts in the learner's own thread"),
    ],
)
def test_mistakes(workplace: Path, capsys: pytest.CaptureFixture[str], args: list[str], message: str) -> None:
    assert main(args) == 2
    assert message in capsys.readouterr().err


def test_the_installed_command(workplace: Path) -> None:
    command = [str(Path(sys.executable).parent / "border-bench"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("border-bench measures each part of a run alone")
