"""What is in the environment of a process stays there (row I7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from border_cli.cli.train import main
from tests.real_runs import Run, tiny

TOKEN = "hf_0123456789abcdefPLANTED"
SHORT = ("env=gym", "trainer.max_opts=100", "recorder.tensorboard=true", "trainer.eval_interval=60")
ENDS: dict[str, tuple[Any, ...]] = {
    "done": (0, "env.entry_point=border_cli.envs.counting:CountingEnv"),
    "actor lost": (5, "env.entry_point=tests.envs:Leaving", "actor_manager.on_env_error=stop"),
    "defect": (1, "env.entry_point=border_cli.envs.counting:CountingEnv"),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("trainer", ["async", "sync"])
def test_i7_a_token_in_the_environment_is_in_no_file_of_the_run(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, end: str, trainer: str
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", TOKEN)
    monkeypatch.setenv("WANDB_API_KEY", TOKEN)
    code, *words = ENDS[end]
    if end == "defect":

        def fail(*_: object) -> None:
            token = TOKEN  # in a frame of the traceback
            raise RuntimeError(f"a defect of {len(token)}")

        monkeypatch.setattr("border_cli.trainers.judging._routine_values", fail)
    assert main(tiny(*SHORT, *words, f"trainer={trainer}")) == code
    run = Run(Path("runs/latest").resolve())
    files = {path: path.read_bytes() for path in workplace.rglob("*") if path.is_file()}
    assert run.path / "provenance.json" in files
    assert (run.path / "crash.json" in files) == (end != "done")
    assert [path for path, content in files.items() if TOKEN.encode() in content] == []
