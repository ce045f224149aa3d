"""Hostile run directories: no code runs, and no file outside is read or written (rows I1 to I4).

Somebody else's run is read by `border-eval` and by `resume`. `resume` reads the configuration from config.yaml,
`border-eval` and `border_cli.load` read it from model.json.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import struct
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from border_cli.checkpoints import store
from border_cli.cli.eval import main as border_eval
from border_cli.cli.train import main as border_train
from border_cli.core.state import MAX_JSON_BYTES
from tests.faults.amounts import sampled
from tests.real_runs import Run
from tests.trained import FILES, OPT_STEPS, WORDS

STEP = Path("checkpoints") / store.step_name(OPT_STEPS)
EVIL = "evil_module"
SECRET = "a-token-of-the-user"
MORE = f"trainer.max_opts={OPT_STEPS + 5}"
Config = dict[str, Any]


@pytest.fixture
def run(workplace: Path, stored_run: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A copy of a stored run with only its newest checkpoint, which is not trusted; and a module that could be imported."""
    monkeypatch.setenv("SECRET", SECRET)
    monkeypatch.syspath_prepend(str(workplace / "evil"))
    (workplace / "evil").mkdir()
    (workplace / "evil" / f"{EVIL}.py").write_text("import os\nos.mkdir('executed')\n")
    run = Run(shutil.copytree(stored_run, workplace / "run"))
    shutil.rmtree(run.path / "checkpoints" / store.step_name(OPT_STEPS // 2))
    yield run
    sys.modules.pop(EVIL, None)


def evaluate(run: Run) -> int:
    return border_eval([str(run.path), "checkpoint=last", "episodes=1"])


def resume(run: Run, *args: str) -> int:
    return border_train(
        [f"resume={run.path}", *([] if any("max_opts" in arg for arg in args) else [MORE]), *args]
    )


def refused(act: Callable[[Run], int], run: Run, capsys: pytest.CaptureFixture[str], code: int = 7) -> str:
    """Check that the action exits with `code` and prints at most three lines, and return them."""
    assert act(run) == code
    lines = capsys.readouterr().err.splitlines()
    assert 1 <= len(lines) <= 3, lines
    return "\n".join(lines)


def forge(path: Path, name: str, content: bytes) -> None:
    """Write this content into a file of a checkpoint, and its checksum into the manifest."""
    (path / name).unlink(missing_ok=True)
    (path / name).write_bytes(content)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (path / "manifest.json").write_text(json.dumps(manifest))


# -- I1: nothing is unpickled ---------------------------------------------------


class Evil:
    """Creates the folder `executed` when it is unpickled."""

    def __reduce__(self) -> Any:
        return Path.mkdir, (Path("executed"),)


def test_i1_files_beside_the_checkpoint_are_never_opened(run: Run) -> None:
    for folder in (".", "best", STEP, "checkpoints"):
        for name in ("model.pt", "replay.pkl", "weights.npz", "sitecustomize.py"):
            (run.path / folder / name).write_bytes(pickle.dumps(Evil()))
    assert evaluate(run) == 0
    assert resume(run) == 0
    assert not Path("executed").exists()
    pickle.loads(pickle.dumps(Evil()))  # a negative control
    assert Path("executed").exists()


@pytest.mark.parametrize("name", sampled(FILES, 7))
def test_i1_a_pickle_instead_of_any_file_is_refused(
    run: Run, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    evil = pickle.dumps({"weights": [Evil()]})
    if name == "manifest.json":
        (run.path / STEP / name).write_bytes(evil)
    else:
        forge(run.path / STEP, name, evil)
    if name.partition(".")[0] in ("manifest", "model"):
        assert name in refused(evaluate, run, capsys)
    assert name in refused(resume, run, capsys)
    assert not Path("executed").exists()


# -- I2: code that the configuration names is not run ---------------------------

NAMED: dict[str, tuple[Config, str]] = {
    "a target": ({"agent": {"_target_": "os.system", "command": "mkdir executed"}}, "_target_"),
    "a nested target": (
        {"env": {"kwargs": {"a": [{"_target_": "os.mkdir", "path": "executed"}]}}},
        "CartPole",
    ),
    "an entry point": (
        {"env": {"id": "", "entry_point": "os:mkdir", "kwargs": {"path": "executed"}}},
        "env.entry_point os:mkdir",
    ),
    "an id that imports": ({"env": {"id": f"{EVIL}:CartPole-v1"}}, f"env.id {EVIL}:CartPole-v1"),
    "an import": ({"env": {"imports": ["json", EVIL]}}, f"env.imports json, {EVIL}"),
    "a wrapper": ({"env": {"wrappers": [f"{EVIL}:Wrapper"]}}, f"env.wrappers {EVIL}:Wrapper"),
    "a plugin": ({"plugins": [EVIL]}, f"plugins {EVIL}"),
    "an agent of a plugin": ({"agent": {"type": EVIL}}, f"there is no '{EVIL}'"),
    "an interpolation": ({"env": {"kwargs": {"a": "${oc.env:SECRET}"}}}, "CartPole"),
    "an interpolated id": ({"env": {"id": "${oc.env:SECRET}"}}, "env.id ${oc.env:SECRET}"),
}
"""What a run says of itself, and what the refusal must hold: what to type, or what is wrong."""


def set_values(run: Run, config: Config) -> None:
    """Write these values into all configurations of the run."""

    def joined(data: Config) -> Config:
        data = deepcopy(data)
        for name, value in config.items():
            data[name] = data[name] | value if isinstance(value, dict) else value
        return data

    path = run.path / "config.yaml"
    path.write_text(yaml.safe_dump(joined(yaml.safe_load(path.read_text()))))
    if "evaluator" not in config:
        model = json.loads((run.path / STEP / "model.json").read_text())
        forge(run.path / STEP, "model.json", json.dumps(joined(model)).encode())


def assert_harmless(
    act: Callable[[Run], int], run: Run, capsys: pytest.CaptureFixture[str], message: str
) -> None:
    """Check that the run is refused with this message, that no code ran, and that no file changed."""

    def everything() -> dict[str, bytes]:
        return {name: data for name, data in Run(run.path.parent).files(".").items() if name != "run/.lock"}

    before = everything()
    text = refused(act, run, capsys, code=2)
    assert message in text and SECRET not in text
    assert everything() == before
    assert EVIL not in sys.modules and not Path("executed").exists()


@pytest.mark.parametrize(("act", "what"), sampled([*product([evaluate, resume], NAMED)], 4))
def test_i2_code_named_by_a_run_is_not_run(
    run: Run, capsys: pytest.CaptureFixture[str], act: Callable[[Run], int], what: str
) -> None:
    config, message = NAMED[what]
    set_values(run, config)
    assert_harmless(act, run, capsys, message)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.max_opts=${oc.env:SECRET}", "trainer.max_opts: '${oc.env:SECRET}' is of the wrong type"),
        ("env.kwargs.a=${oc.env:SECRET}", "env.kwargs.a: null → ${oc.env:SECRET}"),
        ("+env.kwargs={_target_:os.mkdir,path:executed}", "cannot change within a run: env.kwargs"),
    ],
)
def test_i2_overrides_with_resume_are_plain_data(
    run: Run, capsys: pytest.CaptureFixture[str], override: str, message: str
) -> None:
    assert_harmless(lambda run: resume(run, override), run, capsys, message)


@pytest.mark.parametrize(
    "kwargs", ["!!python/object/apply:os.system [mkdir executed]", "{a: !!python/name:os.system ''}"]
)
def test_i2_yaml_with_more_than_plain_data_is_refused(
    run: Run, capsys: pytest.CaptureFixture[str], kwargs: str
) -> None:
    config = run.path / "config.yaml"
    before, empty, after = config.read_text().partition("kwargs: {}")
    assert empty
    config.write_text(f"{before}kwargs: {kwargs}{after}")
    assert_harmless(resume, run, capsys, "config.yaml")


def test_i2_i3_resume_auto_imports_nothing_and_writes_no_lock_through_a_link(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """It finds the run of somebody else below the runs folder. An evaluator is inherited from the command."""
    path = Path("runs") / "2026-11-22" / "10-15-00_dqn_cartpole"
    path.parent.mkdir(parents=True)
    run.path.rename(path)
    set_values(Run(path), {"evaluator": {"type": f"{EVIL}:Evaluator"}})
    (path / "summary.json").write_text(json.dumps(Run(path).summary | {"status": "running"}))
    Path("precious").write_text("precious")
    (path / ".lock").symlink_to(Path("precious").resolve())
    command = [*(word for word in WORDS if not word.startswith("trainer.max_opts")), MORE, "resume=auto"]
    assert border_train(command) == 2
    assert "is a link or no plain file" in capsys.readouterr().err
    assert Path("precious").read_text() == "precious"
    (path / ".lock").unlink()
    assert border_train(command) == 0
    assert Run(path).summary["counters"]["opt_steps"] == OPT_STEPS + 5
    assert EVIL not in sys.modules and not Path("executed").exists()


# -- I3: nothing outside is read or written -------------------------------------


def as_link(path: Path) -> None:
    path.rename("outside.safetensors")
    path.symlink_to(Path("outside.safetensors").absolute())


def as_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def as_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


NOT_PLAIN = product(
    ("model.safetensors", "manifest.json", "replay.rows"),
    (as_link, as_pipe, as_device, as_folder),
)


@pytest.mark.parametrize(("name", "instead"), sampled([*NOT_PLAIN], 4))
def test_i3_a_link_pipe_device_or_folder_is_not_read(
    run: Run, capsys: pytest.CaptureFixture[str], name: str, instead: Callable[[Path], None]
) -> None:
    (file,) = (run.path / STEP).glob(f"{name}*")
    instead(file)
    for act in (evaluate, resume):
        assert name in refused(act, run, capsys)


FOLDERS = ("checkpoints", "best", "tensorboard")
WRITTEN = ("config.yaml", "metrics.jsonl", "summary.json", "train.log", ".lock", ".summary.json.tmp")
LINKS = [*product((*FOLDERS, *WRITTEN), ["symbolic"]), *product(WRITTEN, ["hard"])]


@pytest.mark.parametrize(("name", "how"), sampled(LINKS, 5))
def test_i3_a_run_is_not_resumed_through_links(
    run: Run, capsys: pytest.CaptureFixture[str], name: str, how: str
) -> None:
    outside, path = Path("outside").absolute(), run.path / name
    if path.exists():
        path.rename(outside)
    elif name in FOLDERS:
        outside.mkdir()
    else:
        outside.write_text("precious")
    if how == "symbolic":
        path.symlink_to(outside)
    else:
        path.hardlink_to(outside)
    before = outside.read_bytes() if outside.is_file() else Run(outside).files("")
    assert "is a link or no plain file" in refused(resume, run, capsys, code=2)
    assert before == (outside.read_bytes() if outside.is_file() else Run(outside).files(""))


@pytest.mark.parametrize("name", ["eval", f"eval/{STEP.name}-seed0-episodes1.json"])
def test_i3_an_evaluation_is_not_written_through_links_and_does_not_wait_for_a_pipe(
    run: Run, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    outside = Path("outside").absolute()
    outside.mkdir()
    (outside / "precious").write_text("precious")
    (run.path / name).parent.mkdir(exist_ok=True)
    (run.path / name).symlink_to(outside if name == "eval" else outside / "precious")
    as_pipe(run.path / "summary.json")
    for act in (evaluate, resume):
        assert "is a link or no plain file" in refused(act, run, capsys, code=2)
    assert Run(outside).files("") == {"precious": b"precious"}


def test_i3_a_trusted_run_may_have_its_checkpoints_elsewhere(run: Run) -> None:
    """Links are allowed there, for example to a larger disk."""
    folder = run.path / "checkpoints"
    folder.rename("large-disk")
    folder.symlink_to(Path("large-disk").absolute())
    assert resume(run, "trust=true") == 0
    assert run.checkpoints[-1] == store.step_name(OPT_STEPS + 5)


# -- I4: unfit content is refused, see also test_nonsense.py ----------------------


def header(shape: list[int], nbytes: int) -> bytes:
    """Return a safetensors file that declares an array of this shape and has no data."""
    text = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, nbytes]}}).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.json", b"[" * 2**19),
        ("model.safetensors", header([2**62, 2**62], 0)),
        ("manifest.json", b" " * (MAX_JSON_BYTES + 1)),
    ],
    ids=["nesting", "an overflow in the header", "too large"],
)
def test_i4_invalid_content_of_a_checkpoint_is_refused(
    run: Run, capsys: pytest.CaptureFixture[str], name: str, content: bytes
) -> None:
    if name == "manifest.json":
        (run.path / STEP / name).write_bytes(content)
    else:
        forge(run.path / STEP, name, content)
    assert name in refused(evaluate, run, capsys)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("replay.json", {"rows": 10**12}),
        ("replay.json", {"rows": -3}),
        ("replay.json", {"capacity": 10**12}),
        ("loop.json", {"records": {"jsonl": "x"}}),
        ("loop.json", {"records": []}),
    ],
    ids=str,
)
def test_i4_counts_that_are_none_are_refused(
    run: Run, capsys: pytest.CaptureFixture[str], name: str, change: Config
) -> None:
    data = json.loads((run.path / STEP / name).read_text())
    forge(run.path / STEP, name, json.dumps(data | change).encode())
    assert "cannot be resumed from" in refused(resume, run, capsys)
