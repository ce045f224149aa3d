"""Functions that run in a child process, and the ends of children."""

from __future__ import annotations

import errno
import gc
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from border_cli.core.errors import ResourceError
from border_cli.runtime import forkserver
from tests.fakes import LIGHT_PRELOAD

TIMEOUT_S = 30.0


@pytest.fixture(scope="module", autouse=True)
def _no_light_forkserver_for_later_tests() -> Iterator[None]:
    yield
    forkserver.end_forkserver()


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
def test_f4_a_process_limit_is_reported_as_a_resource_error(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """EOFError: the forkserver exited because it could not fork."""

    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(forkserver.forkserver.ForkServer, "connect_to_new_process", refuse)
    monkeypatch.setattr("multiprocessing.forkserver.connect_to_new_process", refuse)
    with pytest.raises(ResourceError, match="Resource temporarily unavailable\nallowed: a smaller n_actors"):
        forkserver.run_in_child(os.getpid, (), TIMEOUT_S)


def limits() -> tuple[int, bool]:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0], gc.isenabled()


def test_children_get_the_limit_of_descriptors_that_was_set_before_the_forkserver_was_ended() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert forkserver.run_in_child(limits, (), TIMEOUT_S) == (soft, True)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        assert forkserver.run_in_child(limits, (), TIMEOUT_S) == (soft, True)
        forkserver.end_forkserver()
        assert forkserver.forkserver_pid() is None
        assert forkserver.run_in_child(limits, (), TIMEOUT_S) == (soft - 1, True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        forkserver.end_forkserver()


def fail(message: str) -> None:
    raise KeyError(message)


def hang() -> None:
    threading.Event().wait()


@pytest.mark.parametrize("has_forkserver", [True, False])
def test_the_result_is_returned_and_the_environment_of_the_parent_is_unchanged(
    monkeypatch: pytest.MonkeyPatch, has_forkserver: bool
) -> None:
    """Without a forkserver children are spawned."""
    monkeypatch.setattr(forkserver, "_has_forkserver", lambda: has_forkserver)
    before = dict(os.environ)
    result = forkserver.run_in_child(describe_self, ("hello",), TIMEOUT_S)
    assert result["pid"] != os.getpid()
    assert (result["word"], result["threads"], result["devices"]) == ("hello", "1", "")
    assert not result["sigint"]
    assert dict(os.environ) == before
    assert forkserver.pid_gone(result["pid"])
    assert not forkserver.pid_gone(os.getpid())


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


@pytest.mark.parametrize(
    ("function", "args", "options", "error", "message"),
    [
        (fail, ("no such thing",), {}, forkserver.ChildError, "no such thing"),
        (os._exit, (7,), {}, forkserver.ChildError, "the process exited with code 7"),
        (hang, (), {"timeout_s": 0.3}, TimeoutError, r"no answer within 0\.3 s"),
        (hang, (), {"should_stop": lambda: True}, forkserver.ChildStopped, "^$"),
    ],
    ids=["raises", "dies", "hangs", "stopped"],
)
def test_a_child_without_a_result_is_an_error(
    function: Any, args: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as raised:
        forkserver.run_in_child(function, args, **{"timeout_s": TIMEOUT_S, **options})
    if function is fail:
        assert raised.value.error_type == "KeyError"
        assert "in fail" in raised.value.details


def test_ends_of_processes_are_described() -> None:
    assert {code: forkserver.describe_exit(code) for code in (0, 3, -9, -35, None)} == {
        0: "exited with code 0",
        3: "exited with code 3",
        -9: "was killed by SIGKILL",
        -35: "was killed by signal 35",
        None: "has not ended",
    }
