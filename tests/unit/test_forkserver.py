"""Running a function in a child, and telling how children end."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from border_cli.core.errors import ResourceError
from border_cli.runtime import forkserver
from tests.fakes import LIGHT_PRELOAD

TIMEOUT_S = 30.0


@pytest.fixture(autouse=True)
def _light_forkserver() -> None:
    forkserver.start_early(LIGHT_PRELOAD)


def describe_self(word: str) -> dict[str, Any]:
    return {
        "word": word,
        "pid": os.getpid(),
        "threads": os.environ["OMP_NUM_THREADS"],
        "devices": os.environ["CUDA_VISIBLE_DEVICES"],
        "sigint": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    }


@pytest.mark.parametrize("error", [EOFError(), OSError(errno.EAGAIN, "Resource temporarily unavailable")])
def test_f4_no_process_left_is_something_that_the_machine_lacks(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """EOFError: the forkserver could not fork, and ended over it."""

    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(forkserver.forkserver.ForkServer, "connect_to_new_process", refuse)
    monkeypatch.setattr("multiprocessing.forkserver.connect_to_new_process", refuse)
    with pytest.raises(ResourceError, match="Resource temporarily unavailable\nallowed: a smaller n_actors"):
        forkserver.run_in_child(os.getpid, (), TIMEOUT_S)


def fail(message: str) -> None:
    raise KeyError(message)


def hang() -> None:
    threading.Event().wait()


def test_the_result_comes_back_and_the_environment_was_the_childs() -> None:
    before = dict(os.environ)
    result = forkserver.run_in_child(describe_self, ("hello",), TIMEOUT_S)
    assert result["pid"] != os.getpid()
    assert (result["word"], result["threads"], result["devices"]) == ("hello", "1", "")
    assert not result["sigint"]
    assert dict(os.environ) == before
    assert forkserver.pid_gone(result["pid"])


@pytest.mark.parametrize(("script", "runs"), [("border-train", False), ("my_training.py", True)])
def test_a_child_runs_the_main_script_again_unless_it_is_our_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, runs: bool
) -> None:
    main, mark = ModuleType("__main__"), tmp_path / "mark"
    main.__file__ = str(tmp_path / script)
    Path(main.__file__).write_text(f"open({str(mark)!r}, 'w').close()\n")
    monkeypatch.setitem(sys.modules, "__main__", main)
    forkserver.run_in_child(os.getpid, (), TIMEOUT_S)
    assert mark.exists() == runs
    assert main.__file__ == str(tmp_path / script)


def test_an_exception_comes_back_by_name_with_its_traceback() -> None:
    with pytest.raises(forkserver.ChildError, match="no such thing") as error:
        forkserver.run_in_child(fail, ("no such thing",), TIMEOUT_S)
    assert error.value.error_type == "KeyError"
    assert "in fail" in error.value.details


def test_a_child_that_dies_is_described() -> None:
    with pytest.raises(forkserver.ChildError, match="the process exited with code 7"):
        forkserver.run_in_child(os._exit, (7,), TIMEOUT_S)


def test_a_child_that_hangs_is_ended() -> None:
    with pytest.raises(TimeoutError, match=r"no answer within 0\.3 s"):
        forkserver.run_in_child(hang, (), 0.3)


def test_being_asked_to_stop_ends_the_wait() -> None:
    with pytest.raises(forkserver.ChildStopped):
        forkserver.run_in_child(hang, (), TIMEOUT_S, should_stop=lambda: True)


@pytest.mark.parametrize(
    ("exitcode", "words"),
    [
        (0, "exited with code 0"),
        (3, "exited with code 3"),
        (-9, "was killed by SIGKILL"),
        (-35, "was killed by signal 35"),
        (None, "has not ended"),
    ],
)
def test_ends_in_words(exitcode: int | None, words: str) -> None:
    assert forkserver.describe_exit(exitcode) == words


def test_this_process_is_not_gone() -> None:
    assert not forkserver.pid_gone(os.getpid())


def test_where_there_is_no_forkserver_children_are_spawned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forkserver, "_has_forkserver", lambda: False)
    result = forkserver.run_in_child(describe_self, ("hello",), TIMEOUT_S)
    assert (result["threads"], result["devices"], result["sigint"]) == ("1", "", False)
