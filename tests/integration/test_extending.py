"""docs/extending/: every module on these pages is complete, and its command works."""

from __future__ import annotations

import csv
import importlib
import re
import runpy
import shlex
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hydra.core.config_store import ConfigStore

import border_cli
from border_cli.agents.dqn.agent import NO_STEP_NOISE
from border_cli.agents.params import TensorBatch
from border_cli.cli.eval import export
from border_cli.cli.eval import main as evaluate
from border_cli.cli.train import main
from border_cli.config import registry
from border_cli.core.errors import UsageError
from border_cli.core.spaces import ActionSpec, EnvSpec, ObsLeaf, ObsSpec
from border_cli.report.runs import read_run
from tests.real_runs import Run, tiny
from tests.warm import finished

PAGES = sorted((Path(__file__).parents[2] / "docs" / "extending").glob("*.md"))
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
MODULES = dict(re.findall(r"```python\n# (my_\w+)\.py\n(.*?)```", TEXT, re.DOTALL))
COMMANDS = [shlex.split(line) for line in re.findall(r"```bash\nborder-train (.*)\n```", TEXT)]


@pytest.fixture
def modules(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make the modules of the pages importable, and restore the registry afterwards."""
    for name, text in MODULES.items():
        (workplace / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(workplace))
    monkeypatch.setenv("PYTHONPATH", str(workplace))
    yield workplace
    forget_modules()


def forget_modules() -> None:
    """Undoes the imports of the pages' modules, as in a new process."""
    for group, table in registry.TABLES.items():
        for name in [name for name, entry in table.items() if entry.factory.startswith("my_")]:
            del table[name]
            ConfigStore.instance().repo.get(group, {}).pop(f"{name}.yaml", None)  # the option of that name
    for name in MODULES:
        sys.modules.pop(name, None)


def module_of(args: list[str]) -> str:
    (module,) = set(re.findall(r"my_\w+", " ".join(args)))
    return module


def test_the_pages_have_a_command_for_each_module_but_the_script() -> None:
    assert sorted([*map(module_of, COMMANDS), "my_script"]) == sorted(MODULES)


@pytest.mark.parametrize("args", COMMANDS, ids=module_of)
def test_its_command_trains(modules: Path, args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    short = ["trainer.max_opts=40", "trainer.eval_interval=20", "hydra.run.dir=run"]
    kept = [word for word in args if not word.startswith("trainer.")]
    run, name = Run(modules / "run"), module_of(args)
    mode = "n_actors=2" if name in ("my_corridor", "my_processor") else "trainer=sync"
    assert main(tiny(*kept, mode, *short)) == 0
    assert run.summary["counters"]["opt_steps"] == 40
    if name == "my_recorder":
        rows = list(csv.reader((run.path / "evaluations.csv").read_text(encoding="utf-8").splitlines()))
        assert [int(row[0]) for row in rows] == run.steps("eval/return_mean")
        assert [float(row[2]) for row in rows] == [mean for _, mean in run.series("eval/return_mean")]
    if name == "my_evaluator":
        assert {mean for _, mean in run.series("eval/return_mean")} == {
            0.0
        }  # no episode is solved within 40 opt steps
    if name == "my_corridor":
        assert run.config.env.length == 8  # type: ignore[attr-defined]
        assert read_run(run.path).title == "dqn on corridor"
        forget_modules()
        assert evaluate(["run", "episodes=2", "trust=true"]) == 0
        forget_modules()
        assert border_cli.load("run", trust=True).sample([0.0]) in (0, 1)
        forget_modules()
        assert main(["resume=run", "trust=true", "trainer.max_opts=50"]) == 0
    if name == "my_features":
        forget_modules()
        for refused in (["run", "episodes=2"], ["run", "episodes=2", "checkpoint=last"]):
            assert evaluate(refused) == 2
            assert "agent.encoder my_features:FourierFeatures" in capsys.readouterr().err
        with pytest.raises(UsageError, match="my_features:FourierFeatures"):
            border_cli.load("run")
        assert main(["resume=run", "trainer.max_opts=50"]) == 2
        assert "agent.encoder my_features:FourierFeatures" in capsys.readouterr().err
        assert "my_features" not in sys.modules
        assert evaluate(["run", "episodes=2", "trust=true"]) == 0
        forget_modules()
        assert border_cli.load("run", trust=True).sample([0.0] * 4) in (0, 1)
        forget_modules()
        assert main(["resume=run", "trust=true", "trainer.max_opts=50"]) == 0
        assert export(["run", "format=numpy", "trust=true"]) == 2
        assert "format=numpy is not for an encoder of your own" in capsys.readouterr().err
    if name == "my_advantage":
        assert run.config.agent.alpha == 0.5  # type: ignore[attr-defined]


def test_its_script_trains(modules: Path) -> None:
    script = modules / "my_script.py"
    script.write_text(
        MODULES["my_script"].replace("max_env_steps=3000", "max_env_steps=1100"), encoding="utf-8"
    )
    done = finished("tests.integration.test_extending:run_script", script.name, folder=modules)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 actors" in done.stdout


def run_script() -> None:
    """Entry point of the process that runs the script."""
    warnings.simplefilter("error")
    runpy.run_path(sys.argv[1], run_name="__main__")


def test_targets_of_advantage_learning_by_hand(modules: Path) -> None:
    module = importlib.import_module("my_advantage")
    spec = EnvSpec(ObsSpec((ObsLeaf("obs", (), "box", (1,), "float32"),)), ActionSpec("discrete", n=2))
    algorithm = module.make_agent(module.AdvantageConfig(hidden=[], alpha=0.5), spec, 0).algorithm
    with torch.no_grad():  # Q(s) = (s, 2s); the online network chooses the first action in s' = -1
        for network in (algorithm.networks["online"], algorithm.networks["target"]):
            network.layers[0].weight[:] = torch.tensor([[1.0], [2.0]])
            network.layers[0].bias[:] = 0.0
    now, later = ({"obs": torch.tensor([[x], [x]])} for x in (3.0, -1.0))
    discount, terminated = torch.full((2,), 0.9), torch.tensor([False, True])
    batch = TensorBatch(now, torch.tensor([1, 0]), torch.ones(2), discount, terminated, later)
    with torch.no_grad():
        targets = algorithm.targets(batch, NO_STEP_NOISE)[:, 0]
    # the first row has the best action, the second one loses half of the gap of 3
    assert targets.tolist() == pytest.approx([1.0 + 0.9 * -1.0, 1.0 - 0.5 * 3.0])
    with pytest.raises(UsageError, match="targets of its own"):
        module.make_agent(module.AdvantageConfig(gru=4), spec, 0)
