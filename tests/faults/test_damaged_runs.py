"""Going on from what a fault has left of a run's checkpoints: rows C5 and D5, through the real command."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from signal import SIGKILL, SIGTERM

import pytest

from border_cli.checkpoints import store
from border_cli.checkpoints.contents import REPLAY
from border_cli.cli.train import main
from border_cli.core.errors import ExitCode
from tests.data.make_format_1 import FORMAT_1, OPT_STEPS
from tests.faults.amounts import seeded, times
from tests.faults.commands import border_train, verified_checkpoints
from tests.real_runs import Run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

INTERVAL = 20
GO_ON = f"trainer.max_opts={OPT_STEPS + 10}"


@pytest.fixture
def run(workplace: Path) -> Run:
    """A copy of a stored run with two checkpoints."""
    return Run(shutil.copytree(FORMAT_1, workplace / "run"))


def damage(run: Run, pattern: str) -> None:
    """One flipped bit in a file of each checkpoint."""
    rng = seeded(pattern)
    for file in (run.path / "checkpoints").glob(f"*/{pattern}"):
        content = bytearray(file.read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        file.write_bytes(content)


def resume(run: Run, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str]]:
    """The exit code, and the lines on stderr."""
    code = main([f"resume={run.path}", GO_ON, *words])
    return code, capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("pattern", ["training.safetensors", "loop.json", "manifest.json", "actors.json"])
def test_c5_where_no_checkpoint_verifies_nothing_is_touched(
    run: Run, capsys: pytest.CaptureFixture[str], pattern: str
) -> None:
    damage(run, pattern)
    before = run.files("")
    code, lines = resume(run, capsys)
    assert code == ExitCode.NO_VALID_CHECKPOINT
    assert len(lines) <= 3
    assert f"{pattern} does not verify" in lines[0] or pattern == "manifest.json"
    assert "none of the checkpoints" in lines[1] and "2 tried" in lines[1]
    after = run.files("")
    del after[".lock"]  # whose content is the last that held it
    assert after == before


def test_c5_a_replay_that_is_damaged_everywhere_can_be_done_without(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(run, f"{REPLAY}.rows-*")
    before = run.files("checkpoints", "best")
    code, lines = resume(run, capsys)
    assert code == ExitCode.NO_VALID_CHECKPOINT
    assert len(lines) == 3 and "checkpoint.replay=none" in lines[2]
    assert run.files("checkpoints", "best") == before
    code, _ = resume(run, capsys, "checkpoint.replay=none")
    assert code == 0
    assert run.counts[0] == OPT_STEPS + 10


def test_c3_the_run_goes_on_from_the_one_before(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    newest = store.list_steps(run.path / "checkpoints")[0]
    file = newest / "training.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    code, _ = resume(run, capsys)
    assert code == 0
    assert run.counts[0] == OPT_STEPS + 10
    assert [checkpoint.opt_steps for checkpoint in verified_checkpoints(run)] == [50, 40, 20]
    assert run.steps("agent/loss") == [10, 20, 30, 40, 50]


@pytest.mark.parametrize("held", range(1, 1 + times(3, 20)))
def test_d5_killed_while_it_saves_after_a_sigterm_it_can_be_gone_on_with(
    tmp_path: Path, full_forkserver: None, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    """The grace of a scheduler was too short for the save that was under way, the first one or a later one."""
    words = (
        "plugins=[tests.faults.held_save]",
        f"trainer.save_interval={INTERVAL}",
        "env.kwargs.place=nowhere",
        "env.kwargs.at=make",
    )
    with border_train(tmp_path, *words, held_save=held) as command:
        command.wait_for_trap()
        command.send(SIGTERM, "group")
        command.wait_for_handling()
        command.send(SIGKILL, "group")
        assert command.end() == 137
    run = command.run
    kept = [(held - i) * INTERVAL for i in range(1, 4) if held > i]
    assert [checkpoint.opt_steps for checkpoint in verified_checkpoints(run)] == kept
    assert len(list((run.path / "checkpoints").glob(".*"))) == 1
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(
        store, "_write_file", store._write_file
    )  # which the run's plugin replaces in this process
    monkeypatch.chdir(tmp_path)
    last = held * INTERVAL + 5
    assert main([f"resume={run.path}", f"trainer.max_opts={last}"]) == 0
    assert run.summary["status"] == "done"
    assert verified_checkpoints(run)[0].opt_steps == last
    assert list((run.path / "checkpoints").glob(".*")) == []
