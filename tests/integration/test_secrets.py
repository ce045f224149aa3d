"""Environment variables do not get into the files of a run, and a configuration must not read them (row I7)."""

from __future__ import annotations

from pathlib import Path

import pytest

from border_cli.cli.compose import Composer
from border_cli.cli.overrides import parse_overrides
from border_cli.cli.train import main
from border_cli.core.errors import UsageError
from tests.faults.amounts import sampled
from tests.real_runs import Run, tiny

TOKEN = "hf_0123456789abcdefPLANTED"
SHORT = ("env=gym", "trainer.max_opts=40", "recorder.tensorboard=true", "trainer.eval_interval=20")
ENDS = {
    "done": (0, "env.entry_point=tests.counting:CountingEnv", "trainer=async"),
    "defect": (1, "env.entry_point=tests.counting:CountingEnv", "trainer=sync"),
    "actor lost": (5, "env.entry_point=tests.envs:Leaving", "trainer=async actor_manager.restarts=0"),
}


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SECRET_TOKEN", "WANDB_API_KEY"):
        monkeypatch.setenv(name, TOKEN)


@pytest.mark.parametrize("end", sampled([*ENDS], 2))
def test_i7_a_token_in_the_environment_is_in_no_file_of_the_run(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    code, env, trainer = ENDS[end]
    if end == "defect":

        def fail(*_: object) -> None:
            token = TOKEN  # a local variable in the traceback
            raise RuntimeError(f"a defect of {len(token)}")

        monkeypatch.setattr("border_cli.training.eval_manager.EvalManager.submit", fail)
    assert main(tiny(*SHORT, env, *trainer.split())) == code
    run = Run(Path("runs/latest").resolve())
    files = {path: path.read_bytes() for path in workplace.rglob("*") if path.is_file()}
    assert run.path / "provenance.json" in files
    assert (run.path / "crash.json" in files) == (end != "done")
    assert [path for path, content in files.items() if TOKEN.encode() in content] == []


def refused(*words: str, config_dir: Path | None = None) -> str:
    with pytest.raises(UsageError) as refusal:
        Composer(parse_overrides(words), config_dir and str(config_dir)).compose()
    lines = str(refusal.value).splitlines()
    assert len(lines) <= 3 and TOKEN not in str(refusal.value)
    assert "oc.env:SECRET_TOKEN" in lines[0] and "an environment that reads the variable itself" in lines[1]
    return lines[0]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("env.kwargs.token", "${oc.env:SECRET_TOKEN}"),
        ("env.kwargs.nested", "{list: [1, 'Bearer ${oc.decode:${oc.env:SECRET_TOKEN}}']}"),
        ("env.entry_point", "${oc.env:SECRET_TOKEN,tests.counting:CountingEnv}"),
        ("seed", "${oc.env:SECRET_TOKEN}"),
    ],
)
def test_i7_a_value_from_an_environment_variable_is_refused(key: str, value: str) -> None:
    """Otherwise config.yaml and the files of each model would contain the value."""
    assert refused(f"{key}={value}").startswith(key)


def test_i7_a_value_from_an_environment_variable_is_refused_in_a_file_and_in_a_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "mine.yaml").write_text(
        "id: CartPole-v1\nkwargs: {token: '${oc.env:SECRET_TOKEN}'}\n"
    )
    assert refused("env=mine", config_dir=tmp_path).startswith("env.kwargs.token")
    monkeypatch.chdir(tmp_path)
    assert main(["-m", "seed=${oc.env:SECRET_TOKEN}"]) == 2
    assert TOKEN not in capsys.readouterr().err
    assert not Path("runs").exists()


def test_i7_the_run_directory_may_come_from_an_environment_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """hydra.run.dir belongs to Hydra and is not stored in config.yaml."""
    monkeypatch.setenv("SCRATCH", str(tmp_path))
    composed = Composer(parse_overrides(["hydra.run.dir=${oc.env:SCRATCH}/run"])).compose()
    assert composed.run_dir == tmp_path / "run"
