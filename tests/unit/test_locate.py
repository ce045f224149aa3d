"""Finding the model of a path or choice."""

from __future__ import annotations

from pathlib import Path

import pytest

from border_cli.checkpoints import store
from border_cli.core.errors import BorderError, NoValidCheckpointError, UsageError
from border_cli.run.find import Located, model_directory, parse_checkpoint

FIRST, SECOND = "checkpoints/step-000000100", "checkpoints/step-000000200"


def make_run(run_dir: Path, best: bool = True, steps: tuple[int, ...] = (100, 200)) -> Path:
    run_dir.mkdir(parents=True)
    (run_dir / "config.yaml").write_text("{}")
    for step in steps:
        store.write(run_dir / "checkpoints", store.step_name(step), {"model.json": b"{}"}, step)
    if best:
        store.write(run_dir, "best", {"model.json": b"{}"}, 150)
    return run_dir


def break_model(path: Path) -> None:
    (path / "model.json").write_bytes(b"no")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "checkpoint", "found"),
    [
        ("", None, "best"),
        ("", "last", SECOND),
        ("", 100, FIRST),
        ("checkpoints", "last", SECOND),
        ("best", None, "best"),
        (FIRST, None, FIRST),
    ],
)
def test_a_run_means_its_chosen_model(run: Path, name: str, checkpoint: str | int | None, found: str) -> None:
    assert model_directory(run / name, checkpoint) == Located(run / found, run)
    (run / "best").rename(store.aside(run / "best"))  # by a writer that was killed
    assert model_directory(run).path == run / "best"


def test_what_is_used_instead_is_noted(tmp_path: Path, run: Path) -> None:
    located = model_directory(make_run(tmp_path / "young", best=False))
    assert located.path.name == "step-000000200"
    assert "no evaluation has found a best model yet" in located.note
    break_model(run / SECOND)
    note = "step-000000200 does not verify: this is step-000000100"
    assert model_directory(run, "last") == Located(run / FIRST, run, note)
    alone = store.write(tmp_path / "alone", "model", {"model.json": b"{}"}, 3)
    assert model_directory(alone) == Located(alone, None)


def test_without_a_path_the_latest_run_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no run below runs" in refused(None)
    make_run(Path("runs/2026-01-01/10-00-00.000_dqn_a"))
    second = make_run(Path("runs/2026-01-02/09-00-00.000_dqn_a"))
    assert model_directory().path == second / "best"
    Path("runs/latest").symlink_to("2026-01-01/10-00-00.000_dqn_a")
    assert model_directory().path == Path("runs/2026-01-01/10-00-00.000_dqn_a/best")


def refused(
    path: Path | None, checkpoint: str | int | None = None, error: type[BorderError] = UsageError
) -> str:
    with pytest.raises(error) as caught:
        model_directory(path, checkpoint)
    assert 1 <= len(str(caught.value).splitlines()) <= 3
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "checkpoint", "message"),
    [
        ("../rnu", None, "nearest: {run}"),
        ("config.yaml", None, "is a file"),
        ("../empty", None, "is not a run"),
        ("..", None, "is a folder with 1 run in it\nallowed: a run, such as {run}"),
        ("", 190, "\nnearest: checkpoint=200\nallowed: best, last, 200, 100"),
        ("best", "last", "checkpoint=last chooses among those of a run"),
    ],
)
def test_errors_name_what_is_allowed(
    run: Path, name: str, checkpoint: str | int | None, message: str
) -> None:
    (run.parent / "empty").mkdir()
    assert message.format(run=run) in refused((run / name).resolve(), checkpoint)


@pytest.mark.parametrize(("checkpoint", "allowed"), [("last", "checkpoint=best"), (100, "best")])
def test_a_run_with_only_best(tmp_path: Path, checkpoint: str | int, allowed: str) -> None:
    error = refused(make_run(tmp_path / "run", steps=()), checkpoint)
    assert error.splitlines()[1] == f"allowed: {allowed}"


def test_a_run_without_a_checkpoint_that_verifies_has_no_last_one(run: Path) -> None:
    for path in (FIRST, SECOND):
        break_model(run / path)
    assert "/model.json" in refused(run, "last", NoValidCheckpointError)


@pytest.mark.parametrize(("text", "choice"), [("best", "best"), ("last", "last"), ("1000", 1000)])
def test_choices_are_parsed(text: str, choice: str | int) -> None:
    assert parse_checkpoint(text) == choice


@pytest.mark.parametrize("text", ["bset", "-1", "1.5", "", "²"])
def test_invalid_choices_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="allowed: best, last, or an opt step"):
        parse_checkpoint(text)
