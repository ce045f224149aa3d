"""Row I2: hostile configurations that name code. The code does not run, and an error of three lines says why.

`resume` reads the configuration from config.yaml, `border-eval` and `border_cli.load` read it from model.json. The named
code would leave a file if it ran.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import yaml

from border_cli.checkpoints import store
from border_cli.cli.train import main
from tests.faults import hostile
from tests.faults.amounts import sampled
from tests.faults.hostile import evaluate, refused, resume
from tests.real_runs import Run
from tests.stored_run import OPT_STEPS, WORDS

STEP = Path("checkpoints") / store.step_name(OPT_STEPS)
EVIL = "evil_module"
SECRET = "a-token-of-the-user"
Config = dict[str, Any]


@pytest.fixture
def run(workplace: Path, stored_run: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A copy of a stored run that is not trusted, and an importable module."""
    monkeypatch.setenv("SECRET", SECRET)
    (workplace / "evil").mkdir()
    (workplace / "evil" / f"{EVIL}.py").write_text("import os\nos.mkdir('executed')\n")
    (workplace / "evil" / "weights.pt").write_bytes(hostile.evil_pickle(workplace / "executed"))
    monkeypatch.syspath_prepend(str(workplace / "evil"))
    yield Run(shutil.copytree(stored_run, workplace / "run"))
    sys.modules.pop(EVIL, None)


def env(**section: Any) -> Config:
    return {"env": section}


MKDIR = {"_target_": "os.mkdir", "path": "executed"}
"""What Hydra's `instantiate` would run."""
NAMED: dict[str, tuple[Config, str]] = {
    "os.system as a target": ({"agent": {"_target_": "os.system", "command": "mkdir executed"}}, "_target_"),
    "logging.os.system": (
        {"agent": {"_target_": "logging.os.system", "_args_": ["mkdir executed"]}},
        "no such key",
    ),
    "Path.touch": ({"env": {"_target_": "pathlib.Path.touch", "self": "executed"}}, "_target_"),
    "a nested target": (env(kwargs={"a": {"b": [MKDIR]}}), "CartPole"),
    "an entry point": (
        env(id="", entry_point="os:mkdir", kwargs={"path": "executed"}),
        "env.entry_point os:mkdir",
    ),
    "an entry point in a module of a module": (
        env(id="", entry_point="logging.os:mkdir", kwargs={"path": "executed"}),
        "env.entry_point logging.os:mkdir",
    ),
    "torch.load": (
        env(id="", entry_point="torch:load", kwargs={"f": "evil/weights.pt", "weights_only": False}),
        "env.entry_point torch:load",
    ),
    "pip": (
        env(id="", entry_point="pip._internal:main", kwargs={"args": ["--log", "executed", "list"]}),
        "env.entry_point pip._internal:main",
    ),
    "an id that imports": ({"env": {"id": f"{EVIL}:CartPole-v1"}}, f"env.id {EVIL}:CartPole-v1"),
    "an import": (env(imports=["json", EVIL]), f"env.imports json, {EVIL}"),
    "a wrapper": (env(wrappers=[f"{EVIL}:Wrapper"]), f"env.wrappers {EVIL}:Wrapper"),
    "a plugin": ({"plugins": [EVIL]}, f"plugins {EVIL}"),
    "an agent of a plugin": ({"agent": {"type": EVIL}}, f"there is no '{EVIL}'"),
    "interpolations": (env(kwargs={"a": "${oc.env:SECRET}", "b": "${hydra:runtime.cwd}"}), "CartPole"),
    "an interpolated plugin": (
        {"plugins": ["${oc.decode:evil_module}"]},
        "plugins ${oc.decode:evil_module}",
    ),
    "an interpolated id": ({"env": {"id": "${oc.env:SECRET}"}}, "env.id ${oc.env:SECRET}"),
    "an interpolated key": ({"agent": {"${oc.env:SECRET}": 1}}, "${oc.env:SECRET}"),
}
"""What a run says of itself, and what the refusal must hold: what to type, or what is wrong."""


def set_values(run: Run, config: Config) -> None:
    """Write these values into all configurations of the run."""
    set_config(run, config)
    model = json.loads((run.path / STEP / "model.json").read_text())
    hostile.forge(run.path / STEP, "model.json", json.dumps(joined(model, config)).encode())


def set_config(run: Run, config: Config) -> None:
    """Write these values into config.yaml."""
    path = run.path / "config.yaml"
    path.write_text(yaml.safe_dump(joined(yaml.safe_load(path.read_text()), config)))


def joined(data: Config, config: Config) -> Config:
    data = deepcopy(data)
    for name, value in config.items():
        data[name] = data[name] | value if isinstance(value, dict) else value
    return data


def everything(run: Run) -> dict[str, bytes]:
    """Return every file in the parent folder of the run, without the lock."""
    return {name: content for name, content in Run(run.path.parent).files(".").items() if name != "run/.lock"}


def assert_harmless(
    act: Callable[[Run], int], run: Run, capsys: pytest.CaptureFixture[str], message: str
) -> None:
    """Check that the run is refused with this message, that no code ran, and that no file changed."""
    before = everything(run)
    text = refused(act, run, capsys, code=2)
    assert message in text
    assert SECRET not in text
    assert everything(run) == before
    assert not Path("executed").exists()
    assert EVIL not in sys.modules


@pytest.mark.parametrize(("act", "what"), sampled([*product([evaluate, resume], NAMED)], 2))
def test_i2_code_named_by_a_run_is_not_run(
    run: Run, capsys: pytest.CaptureFixture[str], act: Callable[[Run], int], what: str
) -> None:
    config, message = NAMED[what]
    set_values(run, config)
    assert_harmless(act, run, capsys, message)


@pytest.fixture
def unfinished(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The run of somebody else, where `resume=auto` finds it."""
    monkeypatch.chdir(run.path.parent)
    path = Path("runs") / "2026-11-22" / "10-15-00_dqn_cartpole"
    path.parent.mkdir(parents=True)
    run.path.rename(path)
    (path / "summary.json").write_text(json.dumps(Run(path).summary | {"status": "running"}))
    return Run(path)


def resume_auto() -> int:
    config = [word for word in WORDS if not word.startswith("trainer.max_opts")]
    return main([*config, f"trainer.max_opts={OPT_STEPS + 5}", "resume=auto"])


def test_i2_resume_auto_imports_no_code_that_only_the_run_names(unfinished: Run) -> None:
    set_config(unfinished, {"evaluator": {"type": f"{EVIL}:Evaluator"}})
    assert resume_auto() == 0
    assert len(list(Path("runs").glob("2*/*/config.yaml"))) == 1  # it was continued
    assert Run(unfinished.path).summary["counters"]["opt_steps"] == OPT_STEPS + 5
    assert EVIL not in sys.modules and not Path("executed").exists()


def test_i3_resume_auto_writes_no_lock_through_a_link(
    unfinished: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("precious").write_text("precious")
    (unfinished.path / ".lock").symlink_to(Path("precious").resolve())
    assert resume_auto() == 2
    assert "is no plain file or folder" in capsys.readouterr().err
    assert Path("precious").read_text() == "precious"


def cartpole(path: str) -> Any:
    """Make CartPole and ignore the path."""
    return gymnasium.make("CartPole-v1")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.max_opts=${oc.env:SECRET}", "trainer.max_opts: '${oc.env:SECRET}' is of the wrong type"),
        ("env.kwargs.a=${oc.env:SECRET}", "env.kwargs.a: null → ${oc.env:SECRET}"),
        ("+agent._target_=os.mkdir", "agent._target_: there is no such key"),
        ("+env.kwargs={_target_:os.mkdir,path:executed}", "cannot change within a run: env.kwargs"),
    ],
)
def test_i2_overrides_with_resume_are_plain_data(
    run: Run, capsys: pytest.CaptureFixture[str], override: str, message: str
) -> None:
    assert_harmless(lambda run: resume(run, override), run, capsys, message)


NOT_PLAIN = {
    "a call": "kwargs: !!python/object/apply:os.system [mkdir executed]",
    "a call as a key": "kwargs: {? !!python/object/apply:os.mkdir [executed] : 1}",
    "a module": f"kwargs: {{a: !!python/module:{EVIL} ''}}",
    "a name": "kwargs: {a: !!python/name:os.system ''}",
    "an object": "kwargs: {a: !!python/object/new:os.mkdir [executed]}",
}
"""What stands in config.yaml in the place of the environment's empty kwargs."""


@pytest.mark.parametrize("what", sampled([*NOT_PLAIN], 2))
def test_i2_yaml_with_more_than_plain_data_is_refused(
    run: Run, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    config = run.path / "config.yaml"
    before, empty, after = config.read_text().partition("kwargs: {}")
    assert empty
    config.write_text(before + NOT_PLAIN[what] + after)
    assert_harmless(resume, run, capsys, "config.yaml")


PARTS: list[tuple[Config, str]] = [
    *(
        ({group: {"type": f"{EVIL}:run"}}, f"{group}.type")
        for group in ("actor_manager", "evaluator", "recorder")
    ),
    ({"step_processor": f"{EVIL}:run"}, "step_processor"),
]
