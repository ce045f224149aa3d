"""Resume of runs with damaged checkpoints, by the real command (rows C3, C5, C9 and D5)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
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
from tests.trained import OPT_STEPS

INTERVAL = 20
MORE = f"trainer.max_opts={OPT_STEPS + 10}"


@pytest.fixture
def run(workplace: Path, stored_run: Path) -> Run:
    """A copy of a stored run with two checkpoints."""
    return Run(shutil.copytree(stored_run, workplace / "run"))


def flip(pattern: str) -> Callable[[Run], None]:
    """Flip one bit in a file of each checkpoint. In a manifest it makes the JSON invalid."""

    def spoil(run: Run) -> None:
        rng = seeded(pattern)
        for file in (run.path / "checkpoints").glob(f"*/{pattern}"):
            content = bytearray(file.read_bytes())
            content[0 if pattern == "manifest.json" else rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            file.write_bytes(content)

    return spoil


def remove(run: Run) -> None:
    shutil.rmtree(run.path / "checkpoints")


def renew(run: Run) -> None:
    for file in run.path.rglob("manifest.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"format_version": 2}))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (flip("training.safetensors"), "training.safetensors does not verify"),
        (flip("manifest.json"), "manifest.json does not verify"),
        (flip(f"{REPLAY}.rows-*"), "checkpoint.replay=none"),
        (remove, "has saved checkpoints, and they are gone"),
        (renew, "format_version 2; this border-cli reads 1"),
    ],
    ids=["weights", "manifest", "replay", "gone", "c9_newer"],
)
def test_c5_c9_if_no_checkpoint_verifies_the_run_is_not_changed(
    run: Run, capsys: pytest.CaptureFixture[str], spoil: Callable[[Run], None], said: str
) -> None:
    spoil(run)
    before = run.files("")
    assert main([f"resume={run.path}", MORE]) == ExitCode.NO_VALID_CHECKPOINT
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) <= 3 and said in "\n".join(lines)
    after = run.files("")
    del after[".lock"]  # whose content is the last that held it
    assert after == before


def test_c3_c5_a_damaged_checkpoint_is_skipped_and_a_damaged_replay_is_left_out(run: Run) -> None:
    newest = store.list_steps(run.path / "checkpoints")[0]
    file = newest / "training.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert main([f"resume={run.path}", MORE]) == 0
    assert saved_steps(run) == [50, 40, 20]
    assert run.steps("agent/loss") == [10, 20, 30, 40, 50]
    flip(f"{REPLAY}.rows-*")(run)
    assert main([f"resume={run.path}", "trainer.max_opts=60", "checkpoint.replay=none"]) == 0
    assert run.counts[0] == 60


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
