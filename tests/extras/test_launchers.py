"""Launchers of Hydra's plugins: their jobs have the results of single runs, and a second command runs only what is left."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

import pytest

from border_cli.cli.train import main
from border_cli.sweeps.jobs import Sweep
from tests.real_runs import Run, tiny, train

pytestmark = [pytest.mark.usefixtures("workplace"), pytest.mark.timeout(300)]
SHORT = ("trainer=sync", "trainer.max_opts=30", "trainer.eval_interval=20", "trainer.save_interval=20")


@pytest.mark.parametrize(
    ("launcher", "package"),
    [
        ("submitit_local", "hydra_plugins.hydra_submitit_launcher"),
        ("joblib", "hydra_plugins.hydra_joblib_launcher"),
    ],
)
def test_jobs_of_another_launcher(launcher: str, package: str, capsys: pytest.CaptureFixture[str]) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    words = ["-m", f"hydra/launcher={launcher}", *tiny(*SHORT, "seed=1,2")]
    words = [word for word in words if not word.startswith("recorder.console")]
    assert main(words) == 0
    (folder,) = Path("runs/sweeps").glob("*/*")
    first, second = (Run(job.run_dir) for job in Sweep.read(folder).jobs)
    assert second.files("best") == train(*SHORT, "seed=2").files("best")
    assert [job.state for job in Sweep.read(folder).jobs] == ["done", "done"]
    finished = (first.path / "summary.json").stat().st_mtime_ns
    shutil.rmtree(second.path)
    capsys.readouterr()
    assert main(words) == 0
    assert "continuing" in capsys.readouterr().out
    assert (first.path / "summary.json").stat().st_mtime_ns == finished
    assert Run(second.path).summary["status"] == "done"


@pytest.mark.parametrize("launcher", ["submitit_local", "joblib"])
def test_the_cause_of_a_failed_job_of_another_launcher_is_printed_once(
    launcher: str, workplace: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(f"hydra_plugins.hydra_{launcher.partition('_')[0]}_launcher")
    words = [word for word in tiny(*SHORT, "seed=1,2", "env.kwargs={bad: 1}") if "console" not in word]
    assert main(["-m", f"hydra/launcher={launcher}", *words]) == 2
    out, err = capfd.readouterr()
    causes = [
        line for line in err.splitlines() if "error: " in line and "unexpected keyword argument 'bad'" in line
    ]
    assert [re.findall("seed=([12])", line) for line in causes] == [["1"], ["2"]]
    assert "sweep.retry=true with the same command runs failed jobs again" in out
