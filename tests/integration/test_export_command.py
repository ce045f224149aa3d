"""`border-export` on a real run."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import border_cli
from border_cli.agents import numpy_policy
from border_cli.cli.eval import export as main


def test_a_run_is_exported_and_the_policy_acts_as_the_loaded_model(
    stored_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(stored_run, run)
    assert main([str(run), f"out={tmp_path}/mine", "checkpoint=last"]) == 0
    assert (tmp_path / "mine" / "policy.npz").exists()
    capsys.readouterr()
    assert main([str(run)]) == 0
    folder = run / "export" / "numpy"
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "policy.json",
        "policy.npz",
        "policy.py",
    ]
    assert str(folder / "policy.npz") in capsys.readouterr().out
    model, policy = border_cli.load(run), numpy_policy.load(folder)
    (part,) = policy.inputs
    obs = np.random.default_rng(0).integers(0, 9, (100, *part["shape"])).astype(part["dtype"])
    np.testing.assert_array_equal(policy(obs), model.sample(obs))
    assert policy(obs[0]) == model.sample(obs[0])


def test_the_readme_of_something_else_stays(
    stored_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "README.md").write_text("mine")
    assert main([str(stored_run), f"out={tmp_path}"]) == 2
    assert "README.md of something else" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["format=numpi", "checkpoint=last"], "nearest: numpy"),
        (["nowhere"], "nowhere"),
        (["outt=x"], "nearest: out="),
        (["out=/proc/x"], "allowed: out=<another folder>"),
    ],
)
def test_mistakes_are_named(
    stored_run: Path, capsys: pytest.CaptureFixture[str], args: list[str], message: str
) -> None:
    named = [] if args == ["nowhere"] else [str(stored_run)]
    assert main([*named, *args]) in (2, 3)
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) <= 3


def test_a_missing_onnx_is_named(
    stored_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert main([str(stored_run), "format=onnx", f"out={tmp_path}"]) == 2
    assert "pip install 'border-cli[export]'" in capsys.readouterr().err
