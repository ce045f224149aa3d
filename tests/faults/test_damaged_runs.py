"""Resume of runs with damaged checkpoints, by the real command (rows C5 and D5)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from signal import SIGKILL, SIGTERM

import pytest

from border_cli.checkpoints import store
from border_cli.checkpoints.contents import REPLAY
from border_cli.cli.train import main
from border_cli.core.errors import ExitCode
from tests.faults.amounts import FULL, seeded
from tests.faults.commands import border_train, saved_steps
from tests.real_runs import Run, in_folder
from tests.stored_run import OPT_STEPS

INTERVAL = 20
MORE = f"trainer.max_opts={OPT_STEPS + 10}"


@pytest.fixture
def run(workplace: Path, stored_run: Path) -> Run:
    """A copy of a stored run with two checkpoints."""
    return Run(shutil.copytree(stored_run, workplace / "run"))


def damage(run: Run, pattern: str) -> None:
    """Flip one bit in a file of each checkpoint. In a manifest it makes the JSON invalid."""
    rng = seeded(pattern)
    for file in (run.path / "checkpoints").glob(f"*/{pattern}"):
        content = bytearray(file.read_bytes())
        content[0 if pattern == "manifest.json" else rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        file.write_bytes(content)


def resume(run: Run, capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, list[str]]:
    """Return the exit code and the lines of stderr."""
    code = main([f"resume={run.path}", MORE, *args])
    return code, capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("pattern", ["training.safetensors", "manifest.json"])
def test_c5_if_no_checkpoint_verifies_the_run_is_not_changed(
    run: Run, capsys: pytest.CaptureFixture[str], pattern: str
) -> None:
    damage(run, pattern)
    before = run.files("")
    code, lines = resume(run, capsys)
    assert code == ExitCode.NO_VALID_CHECKPOINT
    assert len(lines) <= 3
    assert f"{pattern} does not verify" in lines[0]
    assert "none of the checkpoints" in lines[1] and "2 tried" in lines[1]
    after = run.files("")
    del after[".lock"]  # whose content is the last that held it
    assert after == before


def test_c5_a_run_whose_checkpoints_are_gone_does_not_start_over(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run.path / "checkpoints")
    before = run.files("")
    code, lines = resume(run, capsys)
    assert code == ExitCode.NO_VALID_CHECKPOINT
    assert len(lines) <= 3
    assert "has saved checkpoints, and they are gone" in lines[0]
    assert f"init_from={run.path}" in lines[1]
    after = run.files("")
    del after[".lock"]
    assert after == before


def test_c5_a_run_whose_replays_are_all_damaged_can_resume_without(
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


def test_c3_the_run_resumes_from_the_previous_checkpoint(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = store.list_steps(run.path / "checkpoints")[0]
    file = newest / "training.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    code, _ = resume(run, capsys)
    assert code == 0
    assert run.counts[0] == OPT_STEPS + 10
    assert saved_steps(run) == [50, 40, 20]
    assert run.steps("agent/loss") == [10, 20, 30, 40, 50]


def test_c9_a_checkpoint_with_a_newer_format_version_is_refused(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in run.path.rglob("manifest.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"format_version": 2}))
    before = run.files("checkpoints", "best")
    code, lines = resume(run, capsys)
    assert code == ExitCode.NO_VALID_CHECKPOINT
    assert len(lines) <= 3 and "format_version 2; this border-cli reads 1" in lines[0]
    assert run.files("checkpoints", "best") == before


@pytest.mark.parametrize("held", range(1, 21) if FULL else [2])
def test_d5_killed_while_it_saves_after_a_sigterm_it_can_be_resumed(
    tmp_path: Path, full_forkserver: None, held: int
) -> None:
    """A scheduler sends SIGKILL before the save after SIGTERM has finished, be it the first or a later save."""
    with border_train(tmp_path, f"trainer.save_interval={INTERVAL}", faults=f"hold_save:{held}") as command:
        command.wait_for_trap()
        command.send(SIGTERM, "group")
        command.wait_for_handling()
        command.send(SIGKILL, "group")
        assert command.end() == 137
    run = command.run
    assert saved_steps(run) == [(held - i) * INTERVAL for i in range(1, 4) if held > i]
    assert len(list((run.path / "checkpoints").glob(".*"))) == 1
    last = held * INTERVAL + 5
    with in_folder(tmp_path):
        assert main([f"resume={run.path}", "trust=true", f"trainer.max_opts={last}"]) == 0
    assert run.summary["status"] == "done"
    assert saved_steps(run)[0] == last
    assert list((run.path / "checkpoints").glob(".*")) == []
