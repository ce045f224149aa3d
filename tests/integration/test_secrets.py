"""What is in the environment of a process stays there, and does not come into a run by its configuration (row I7)."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from border_cli.cli.train import main
from tests.faults.amounts import sampled
from tests.real_runs import Run, tiny

TOKEN = "hf_0123456789abcdefPLANTED"
SHORT = ("env=gym", "trainer.max_opts=100", "recorder.tensorboard=true", "trainer.eval_interval=60")
ENDS: dict[str, tuple[Any, ...]] = {
    "done": (0, "env.entry_point=tests.counting:CountingEnv"),
    "actor lost": (5, "env.entry_point=tests.envs:Leaving"),
    "defect": (1, "env.entry_point=tests.counting:CountingEnv"),
}


@pytest.mark.parametrize(("end", "trainer"), sampled([*product(ENDS, ["async", "sync"])], 2))
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

        monkeypatch.setattr("border_cli.training.evaluation.EvalManager.submit", fail)
    if trainer == "async":
        words += ["actor_manager.restarts=0"]
    assert main(tiny(*SHORT, *words, f"trainer={trainer}")) == code
    run = Run(Path("runs/latest").resolve())
    files = {path: path.read_bytes() for path in workplace.rglob("*") if path.is_file()}
    assert run.path / "provenance.json" in files
    assert (run.path / "crash.json" in files) == (end != "done")
    assert [path for path, content in files.items() if TOKEN.encode() in content] == []


INTERPOLATED = {
    "env.kwargs.token": "${oc.env:SECRET_TOKEN}",
    "env.kwargs.nested": "{list: [1, 'Bearer ${oc.decode:${oc.env:SECRET_TOKEN}}']}",
    "env.entry_point": "${oc.env:SECRET_TOKEN,tests.counting:CountingEnv}",
    "seed": "${oc.env:SECRET_TOKEN}",
}


def assert_refused(workplace: Path, capsys: pytest.CaptureFixture[str], key: str) -> None:
    """In three lines without the token; there is no file at all."""
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) <= 3
    assert lines[0].startswith(f"error: {key}") and "oc.env:SECRET_TOKEN" in lines[0]
    assert "an environment that reads the variable itself" in lines[1]
    assert TOKEN not in "".join(lines)
    assert not (workplace / "runs").exists()


@pytest.mark.parametrize(("key", "flags"), [*((key, []) for key in INTERPOLATED), ("seed", ["-m"])])
def test_i7_a_value_out_of_the_environment_is_refused(
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    key: str,
    flags: list[str],
) -> None:
    """A run's values stand in its config.yaml, which is needed to go on with it, and beside each of its models."""
    monkeypatch.setenv("SECRET_TOKEN", TOKEN)
    words = {"env": "gym", "env.entry_point": "tests.counting:CountingEnv", key: INTERPOLATED[key]}
    assert main([*flags, *tiny(*(f"{name}={value}" for name, value in words.items()))]) == 2
    assert_refused(workplace, capsys, key)


def test_i7_a_value_out_of_the_environment_is_refused_in_a_file_too(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", TOKEN)
    file = workplace / "conf" / "env" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("id: CartPole-v1\nkwargs: {token: '${oc.env:SECRET_TOKEN}'}\n")
    assert main(["--config-dir", "conf", *tiny("env=mine")]) == 2
    assert_refused(workplace, capsys, "env.kwargs.token")


def test_i7_where_a_run_lies_may_come_out_of_the_environment(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is Hydra's own section, and no secret."""
    monkeypatch.setenv("SCRATCH", str(workplace / "scratch"))
    words = ("env=cartpole", "trainer=sync", "trainer.max_opts=2", "hydra.run.dir=${oc.env:SCRATCH}/run")
    assert main(tiny(*words, "trainer.eval_interval=null")) == 0
    assert (workplace / "scratch" / "run" / "summary.json").exists()
