"""The module of docs/guides/simulators.md for MuJoCo Playground. It needs `pip install playground`."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from border_cli.cli.train import main
from tests.real_runs import Run, tiny

pytest.importorskip("mujoco_playground")
PAGE = Path(__file__).parents[2] / "docs" / "guides" / "simulators.md"
pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]  # of JAX and Warp


@pytest.fixture
def module(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (code,) = re.findall(
        r"```python\n# my_playground.py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    (workplace / "my_playground.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(workplace))
    yield importlib.import_module("my_playground")


def test_an_episode_ends_with_its_own_last_observation(module: Any) -> None:
    simulator = module.Playground(3, episode_length=2)
    first, _ = simulator.reset(seed=1)
    first = first.clone()
    action = torch.full((3, 1), 0.5)
    seen, _, _, truncated, info = simulator.step(action)
    assert not truncated.any()
    assert torch.equal(seen, info["final_obs"])
    began, reward, terminated, truncated, info = simulator.step(action)
    assert truncated.all() and not terminated.any()
    assert torch.equal(began, first)
    assert (info["final_obs"] != first).any(1).all()
    assert reward.shape == (3,)


@pytest.mark.parametrize("agent", ["flashsac", "sac"])
def test_a_run_ends(agent: str, module: Any) -> None:
    del module
    words = ("trainer=device", "env=simulator", "env.entry_point=my_playground:Playground")
    lengths = (
        "env.kwargs={episode_length:50}",
        "actor_manager.envs_per_actor=4",
        "trainer.max_env_steps=400",
    )
    intervals = ("trainer.opt_interval=8", "trainer.eval_interval=20", "hydra.run.dir=run")
    assert main(tiny(*words, *lengths, *intervals, f"agent={agent}")) == 0
    run = Run(Path("run"))
    assert run.counts[1] == 400
    assert run.steps("eval/return_mean")
