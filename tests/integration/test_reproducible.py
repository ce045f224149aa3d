"""The same seed gives the same bits under `trainer=sync` (contract C8), in whatever process, folder and order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import border_cli.agents.dqn.agent  # noqa: F401 - declares its metrics
from border_cli.core.metrics import is_clock
from tests.real_runs import Run, tiny

ROOT = Path(__file__).parents[2]
COMMON = (
    "trainer=sync",
    "trainer.max_opts=230",
    "trainer.eval_interval=100",
    "trainer.save_interval=70",
    "trainer.record_interval=50",
    "agent.target_interval=40",
    "agent.epsilon_env_steps=150",
    "checkpoint.keep=10",
)
CASES = {
    "plain": ("seed=11",),
    "three environments and n-step returns": (
        "seed=11",
        "actor_manager.envs_per_actor=3",
        "buffer.n_step=3",
        "trainer.opt_interval=0.5",
    ),
    "an environment that draws": ("seed=11", "env=gym", "env.id=Blackjack-v1"),
    "another seed": ("seed=12",),
}
SAVED_OFTEN = "saved at other times"
EXTRA = {SAVED_OFTEN: (*CASES["three environments and n-step returns"], "trainer.save_interval=29")}
"""Cases for comparisons of their own; several opt steps per env step, so that some saves come between two of them."""
PROGRAM = """
import json, sys
from border_cli.cli.train import main
for words in json.loads(sys.argv[1]):
    code = main(words)
    if code:
        sys.exit(code)
"""


def train_all(folder: Path, names: list[str], hash_seed: str) -> dict[str, Run]:
    """Every case in one process of its own, in this order, in runs below `folder`."""
    folder.mkdir()
    words = [[*tiny(*_settings(name)), f"hydra.run.dir='{name}'"] for name in names]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(words)],
        cwd=folder,
        env=os.environ
        | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed, "XDG_STATE_HOME": str(folder / "state")},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return {name: Run(folder / name) for name in names}


def _settings(name: str) -> list[str]:
    own = (CASES | EXTRA)[name]
    keys = {word.partition("=")[0] for word in own}
    return [*(word for word in COMMON if word.partition("=")[0] not in keys), *own]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Run], dict[str, Run]]:
    """Twice the same, from two processes, the second in the opposite order."""
    folder = tmp_path_factory.mktemp("reproducible")
    names = list(CASES)
    return train_all(folder / "one", names, "1"), train_all(
        folder / "another place", [*names[::-1], *EXTRA], "2"
    )


def without_clock(run: Run) -> list[dict[str, Any]]:
    """The records without their time and what is declared as clock; a record of nothing else stays as its steps."""
    own = ("opt_steps", "env_steps")
    return [
        {
            name: value
            for name, value in record.items()
            if name in own or (name != "time" and not is_clock(name))
        }
        for record in run.records
    ]


every_case = pytest.mark.parametrize("case", list(CASES))


@every_case
def test_checkpoints_and_best_are_the_same_bytes(
    runs: tuple[dict[str, Run], dict[str, Run]], case: str
) -> None:
    one, other = (both[case].files("checkpoints", "best") for both in runs)
    assert {name.split("/")[1] for name in one if name.startswith("checkpoints/")} == {
        "step-000000070",
        "step-000000140",
        "step-000000210",
        "step-000000230",
    }
    assert {"best/manifest.json", "best/model.safetensors", "best/score.json"} <= one.keys()
    assert one.keys() == other.keys()
    assert [name for name in one if one[name] != other[name]] == []


@every_case
def test_records_are_the_same_but_for_the_clock(
    runs: tuple[dict[str, Run], dict[str, Run]], case: str
) -> None:
    one, other = (without_clock(both[case]) for both in runs)
    assert one == other
    assert {"agent/loss", "train/episode_return", "eval/return_mean", "replay/size"} <= {
        name for record in one for name in record
    }


def test_another_seed_is_another_run(runs: tuple[dict[str, Run], dict[str, Run]]) -> None:
    one, other = runs[0]["plain"], runs[0]["another seed"]
    assert without_clock(one) != without_clock(other)
    differing = {
        name
        for name, content in one.files("checkpoints").items()
        if other.files("checkpoints").get(name) != content
    }
    assert {
        f"checkpoints/step-000000070/{name}" for name in ("model.safetensors", "generators.json")
    } <= differing


def test_saving_changes_nothing(runs: tuple[dict[str, Run], dict[str, Run]]) -> None:
    often, seldom = (runs[1][case] for case in (SAVED_OFTEN, "three environments and n-step returns"))
    assert len(often.checkpoints) > len(seldom.checkpoints)
    last = "checkpoints/step-000000230/"
    one, other = (
        {name: content for name, content in run.files("checkpoints").items() if name.startswith(last)}
        for run in (often, seldom)
    )
    assert one == other


def test_what_the_runs_do_differ_in_is_where_and_when(runs: tuple[dict[str, Run], dict[str, Run]]) -> None:
    """So that the comparison above is known to compare two runs, not one with itself."""
    one, other = (both["plain"] for both in runs)
    assert one.path != other.path
    assert one.json("provenance.json")["run_id"] != other.json("provenance.json")["run_id"]
    assert [record["time"] for record in one.records] != [record["time"] for record in other.records]
