"""Which model is meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from border_cli.checkpoints import store
from border_cli.core.errors import BorderError, ExitCode, NoValidCheckpointError, UsageError
from border_cli.runs.locate import Located, model_directory, parse_checkpoint


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


def test_the_best_of_a_run(run: Path) -> None:
    assert model_directory(run) == model_directory(run, "best") == Located(run / "best", run)


def test_the_last_of_a_run(run: Path) -> None:
    assert model_directory(run, "last") == Located(run / "checkpoints" / "step-000000200", run)


def test_one_step_of_a_run(run: Path) -> None:
    assert model_directory(run, 100) == Located(run / "checkpoints" / "step-000000100", run)


def test_without_a_best_the_last_is_taken_and_that_is_said(tmp_path: Path) -> None:
    located = model_directory(make_run(tmp_path / "run", best=False))
    assert located.path.name == "step-000000200"
    assert "no evaluation has found a best model yet" in located.note


def test_a_last_one_that_does_not_verify_is_passed_over_and_that_is_said(run: Path) -> None:
    break_model(run / "checkpoints" / "step-000000200")
    located = model_directory(run, "last")
    assert located.path.name == "step-000000100"
    assert located.note == "step-000000200 does not verify: this is step-000000100"


@pytest.mark.parametrize("name", ["best", "checkpoints/step-000000100"])
def test_a_model_directory_itself(run: Path, name: str) -> None:
    assert model_directory(run / name) == Located(run / name, run.resolve())


def test_the_folder_of_the_checkpoints(run: Path) -> None:
    assert model_directory(run / "checkpoints", "last").path.name == "step-000000200"


def test_a_model_outside_of_any_run(tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    path = store.write(tmp_path / "alone", "model", {"model.json": b"{}"}, 3)
    assert model_directory(path) == Located(path, None)


def test_nothing_typed_is_the_latest_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(Path("runs/2026-01-01/10-00-00.000_dqn_a"))
    second = make_run(Path("runs/2026-01-02/09-00-00.000_dqn_a"))
    assert model_directory().path == second / "best"
    Path("runs/latest").symlink_to("2026-01-01/10-00-00.000_dqn_a")
    assert model_directory().path == Path("runs/2026-01-01/10-00-00.000_dqn_a/best")


def test_a_writer_that_was_killed_between_two_renames(run: Path) -> None:
    (run / "best").rename(store.aside(run / "best"))
    assert model_directory(run).path == run / "best"
    store.verify(run / "best")


def refused(path: Path | None, checkpoint: str | int | None = None) -> BorderError:
    with pytest.raises(BorderError) as caught:
        model_directory(path, checkpoint)
    assert 1 <= len(str(caught.value).splitlines()) <= 3
    return caught.value


def test_no_run_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    error = refused(None)
    assert error.code == ExitCode.USAGE and "no run below runs" in str(error)


def test_a_path_that_is_not_there_with_the_nearest(run: Path) -> None:
    error = refused(run.parent / "rnu")
    assert error.code == ExitCode.USAGE
    assert str(error).splitlines()[-1] == f"nearest: {run}"


def test_a_file(run: Path) -> None:
    assert "is a file" in str(refused(run / "config.yaml"))


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    assert "is no run" in str(refused(tmp_path))


def test_a_folder_of_runs(run: Path) -> None:
    assert f"it holds 1\nallowed: one of them, such as {run}" in str(refused(run.parent))


def test_a_run_that_has_nothing_yet(tmp_path: Path) -> None:
    error = refused(make_run(tmp_path / "run", best=False, steps=()))
    assert error.code == ExitCode.USAGE and "no checkpoint yet" in str(error)


def test_a_step_that_is_not_there_with_those_that_are(run: Path) -> None:
    lines = str(refused(run, 190)).splitlines()
    assert lines[1:] == ["allowed: best, last, 200, 100", "nearest: 200"]


def test_a_step_of_a_run_that_has_only_a_best(tmp_path: Path) -> None:
    error = refused(make_run(tmp_path / "run", steps=()), 100)
    assert str(error).splitlines()[1] == "allowed: best"


def test_the_last_of_a_run_that_has_only_a_best(tmp_path: Path) -> None:
    error = refused(make_run(tmp_path / "run", steps=()), "last")
    assert str(error).splitlines()[1] == "allowed: checkpoint=best"


def test_a_step_that_does_not_verify_while_others_do(run: Path) -> None:
    break_model(run / "checkpoints" / "step-000000100")
    error = refused(run, 100)
    assert isinstance(error, UsageError)
    assert "step-000000100/model.json" in str(error) and "allowed: best, 200" in str(error)


def test_a_best_that_does_not_verify_is_not_replaced_in_silence(run: Path) -> None:
    break_model(run / "best")
    error = refused(run)
    assert isinstance(error, UsageError)
    assert "best/model.json" in str(error) and "checkpoint=last" in str(error)


@pytest.mark.parametrize("checkpoint", [None, "best", "last", 100])
def test_nothing_verifies(run: Path, checkpoint: str | int | None) -> None:
    for path in (run / "best", *(run / "checkpoints").iterdir()):
        break_model(path)
    error = refused(run, checkpoint)
    assert isinstance(error, NoValidCheckpointError) and error.code == 7
    assert "model.json" in str(error)


def test_a_model_directory_that_does_not_verify(run: Path) -> None:
    break_model(run / "best")
    assert isinstance(refused(run / "best"), NoValidCheckpointError)


def test_a_choice_among_one(run: Path) -> None:
    assert "checkpoint=last chooses among those of a run" in str(refused(run / "best", "last"))


@pytest.mark.parametrize(("text", "choice"), [("best", "best"), ("last", "last"), ("0", 0), ("1000", 1000)])
def test_choices(text: str, choice: str | int) -> None:
    assert parse_checkpoint(text) == choice


@pytest.mark.parametrize("text", ["bset", "-1", "1.5", "", "²"])
def test_what_is_no_choice(text: str) -> None:
    with pytest.raises(UsageError, match="allowed: best, last, or an opt step"):
        parse_checkpoint(text)
