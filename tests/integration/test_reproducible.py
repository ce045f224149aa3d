"""The same seed gives the same bits under `trainer=sync`, in any process, folder and order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interrupted import run_whole, value_records
from tests.real_runs import Run, in_folder, tiny

ROOT = Path(__file__).parents[2]
COMMON = (
    "trainer=sync",
    "trainer.max_opts=70",
    "trainer.eval_interval=50",
    "trainer.record_interval=20",
    "agent.target_interval=16",
    "agent.epsilon_env_steps=100",
    "checkpoint.keep=10",
)
N_STEP = "three environments and n-step returns"
DRAWING = "an environment that draws"
OTHER_SEED = "another seed"
SAVED_OFTEN = "saved at other times"
"""With several opt steps per env step, so that some saves come between two of them."""
SAVES = "trainer.save_interval=30"
_SHAPE = ("actor_manager.envs_per_actor=3", "buffer.n_step=3", "trainer.opt_interval=0.5")
CASES = {
    N_STEP: ("seed=11", SAVES, *_SHAPE),
    DRAWING: ("seed=11", SAVES, "env=gym", "env.id=Blackjack-v1"),
    OTHER_SEED: ("seed=12", SAVES, *_SHAPE),
    SAVED_OFTEN: ("seed=11", "trainer.save_interval=13", *_SHAPE),
}
PROGRAM = """
import json, sys
from border_cli.cli.train import main
for args in json.loads(sys.argv[1]):
    code = main(args)
    if code:
        sys.exit(code)
"""
Runs = tuple[dict[str, Run], dict[str, Run]]


def in_this_process(folder: Path, names: list[str]) -> dict[str, Run]:
    folder.mkdir()
    with in_folder(folder):
        return {name: run_whole(folder / name, *COMMON, *CASES[name]) for name in names}


def in_another_process(folder: Path, names: list[str]) -> dict[str, Run]:
    folder.mkdir()
    args = [[*tiny(*COMMON, *CASES[name]), f"hydra.run.dir='{name}'"] for name in names]
    own = {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "2"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(args)],
        cwd=folder,
        env=os.environ | own,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    return {name: Run(folder / name) for name in names}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, full_forkserver: None) -> Runs:
    """The same runs in two processes: with different string hashes, and in opposite order."""
    folder = tmp_path_factory.mktemp("reproducible")
    return (
        in_this_process(folder / "one", [N_STEP, DRAWING, OTHER_SEED]),
        in_another_process(folder / "another place", [DRAWING, N_STEP, SAVED_OFTEN]),
    )


@pytest.mark.parametrize("case", [N_STEP, DRAWING])
def test_checkpoints_best_and_all_records_except_times_are_the_same(runs: Runs, case: str) -> None:
    one, other = (both[case].files("checkpoints", "best") for both in runs)
    saved = {name.split("/")[1] for name in one if name.startswith("checkpoints/")}
    assert saved == {f"step-000000{step:03}" for step in (30, 60, 70)}
    assert {"best/manifest.json", "best/model.safetensors", "best/score.json"} <= one.keys()
    assert one.keys() == other.keys()
    assert [name for name in one if one[name] != other[name]] == []
    records, others = (value_records(both[case]) for both in runs)
    assert records == others
    assert {"agent/loss", "train/episode_return", "eval/return_mean", "replay/size"} <= {
        name for record in records for name in record
    }


def test_another_seed_gives_another_run(runs: Runs) -> None:
    one, other = runs[0][N_STEP], runs[0][OTHER_SEED]
    assert value_records(one) != value_records(other)
    ours, theirs = one.files("checkpoints"), other.files("checkpoints")
    for name in ("model.safetensors", "generators.json"):
        path = f"checkpoints/step-000000030/{name}"
        assert ours[path] != theirs[path]


def test_saving_changes_nothing(runs: Runs) -> None:
    often, seldom = (runs[1][case] for case in (SAVED_OFTEN, N_STEP))
    assert len(often.checkpoints) > len(seldom.checkpoints)
    one, other = (run.files("checkpoints/step-000000070") for run in (often, seldom))
    assert one == other


def test_the_compared_runs_are_two_runs(runs: Runs) -> None:
    """Guards the tests above against comparing a run with itself."""
    one, other = (both[N_STEP] for both in runs)
    assert one.path != other.path
    assert one.json("provenance.json")["run_id"] != other.json("provenance.json")["run_id"]
    assert [record["time"] for record in one.records] != [record["time"] for record in other.records]
