"""Environment variables do not get into the files of a run, and a configuration must not read them (row I7)."""

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
    code, *args = ENDS[end]
    if end == "defect":

        def fail(*_: object) -> None:
            token = TOKEN  # a local variable in the traceback
            raise RuntimeError(f"a defect of {len(token)}")

        monkeypatch.setattr("border_cli.training.evaluation.EvalManager.submit", fail)
    if trainer == "async":
        args += ["actor_manager.restarts=0"]
    assert main(tiny(*SHORT, *args, f"trainer={trainer}")) == code
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
    """Check for at most three lines without the token, and for no run directory."""
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) <= 3
    assert lines[0].startswith(f"error: {key}") and "oc.env:SECRET_TOKEN" in lines[0]
    assert "an environment that reads the variable itself" in lines[1]
    assert TOKEN not in "".join(lines)
    assert not (workplace / "runs").exists()


@pytest.mark.parametrize(("key", "flags"), [*((key, []) for key in INTERPOLATED), ("seed", ["-m"])])
def test_i7_a_value_from_an_environment_variable_is_refused(
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    key: str,
    flags: list[str],
) -> None:
    """Otherwise config.yaml and the files of each model would contain the value."""
    monkeypatch.setenv("SECRET_TOKEN", TOKEN)
    args = {"env": "gym", "env.entry_point": "tests.counting:CountingEnv", key: INTERPOLATED[key]}
    assert main([*flags, *tiny(*(f"{name}={value}" for name, value in args.items()))]) == 2
    assert_refused(workplace, capsys, key)


def test_i7_a_value_from_an_environment_variable_is_refused_in_a_file_too(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", TOKEN)
    file = workplace / "conf" / "env" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("id: CartPole-v1\nkwargs: {token: '${oc.env:SECRET_TOKEN}'}\n")
    assert main(["--config-dir", "conf", *tiny("env=mine")]) == 2
    assert_refused(workplace, capsys, "env.kwargs.token")


def test_i7_the_run_directory_may_come_from_an_environment_variable(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """hydra.run.dir belongs to Hydra and is not stored in config.yaml."""
    monkeypatch.setenv("SCRATCH", str(workplace / "scratch"))
    args = ("env=cartpole", "trainer=sync", "trainer.max_opts=2", "hydra.run.dir=${oc.env:SCRATCH}/run")
    assert main(tiny(*args, "trainer.eval_interval=null")) == 0
    assert (workplace / "scratch" / "run" / "summary.json").exists()
