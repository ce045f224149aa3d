"""Each environment of a run has a number of its own, for simulators of which one can run per port."""

from __future__ import annotations

from pathlib import Path

import pytest

from border_cli.cli.eval import main as evaluate
from border_cli.cli.train import main
from tests.real_runs import tiny, train

SIMULATOR = ("env=gym", "env.entry_point=tests.envs:OnePerPort", "env.kwargs.folder=ports", "seed=1")
PORT = 'env.kwargs.port="${instance:${seed}000}"'
ADDRESS = "env.kwargs.address='tcp://localhost:${instance:1000}'"
ENVS = "actor_manager.envs_per_actor=2"
EVALUATED = ("trainer.max_opts=40", "trainer.eval_interval=20", "evaluator.n_envs=3", "evaluator.episodes=3")


def ports() -> list[int]:
    """Return the ports of the environments that were made since the last call."""
    file = Path("ports/made")
    made = [int(line) - 1000 for line in file.read_text().splitlines()]
    file.unlink()
    return sorted(made)


@pytest.mark.parametrize(
    ("mode", "actors"),
    [
        (("n_actors=2", "evaluator=process", "evaluator.video_interval=20"), [7, 8, 9, 10]),
        (("n_actors=2", "trainer.lockstep=true"), [7, 8, 9, 10]),
        (("trainer=sync",), [7, 8]),
    ],
    ids=["free", "lockstep", "sync"],
)
def test_every_environment_has_another_number(
    workplace: Path, mode: tuple[str, ...], actors: list[int]
) -> None:
    Path("ports").mkdir()
    run = train(*SIMULATOR, PORT, ADDRESS, ENVS, *EVALUATED, *mode)
    film = [3] if "evaluator.video_interval=20" in mode else []
    assert ports() == [0, 2, *film, 4, 5, 6, *actors]  # twice in the trial, and three in the evaluation
    assert run.config.env.kwargs["port"] == "${instance:1000}"
    assert evaluate([str(run.path), "episodes=2", "trust=true"]) == 0
    assert ports() == [1000, 1001]


def test_a_port_that_is_in_use_names_the_way_out(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("ports").mkdir()
    assert main(tiny(*SIMULATOR, "env.kwargs.port=5005", "n_actors=2", "actor_manager.restarts=0")) != 0
    assert "env.kwargs.port='${instance:5005}'" in capsys.readouterr().err
    assert main(tiny(*SIMULATOR, "env.kwargs.port=${instance:first}")) == 2
    assert "env.kwargs.port" in capsys.readouterr().err
