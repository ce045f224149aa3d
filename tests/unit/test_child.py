"""A child process and its client: what the child gets, how it ends, and that nothing in it blocks the client."""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from border_cli.core.errors import ResourceError
from border_cli.runtime import forkserver
from border_cli.runtime.child import Child, ChildError, output_to
from border_cli.runtime.forkserver_process import MOST_OUTPUT
from border_cli.runtime.worker import MESSAGE_BYTES, Ended, Failed, Reporter, Returned
from tests.fakes import LIGHT_PRELOAD
from tests.faults.processes import TIMEOUT_S, run_in_child, wait_gone, wait_until

SETUP = bytes(range(256)) * 20_000
"""Many times what fits into a pipe."""


@pytest.fixture(autouse=True)
def _light_forkserver() -> None:
    forkserver.start_early(LIGHT_PRELOAD)


@contextlib.contextmanager
def started(main: Callable[..., Any], *args: Any) -> Iterator[Child]:
    """Start a child in a thread. A start that blocks fails the test."""
    children: list[Child] = []
    thread = threading.Thread(target=lambda: children.append(Child("worker", main, args)), daemon=True)
    thread.start()
    thread.join(TIMEOUT_S)
    assert children, "the client waits for the child"
    try:
        yield children[0]
    finally:
        children[0].end()


def heard(child: Child) -> list[object]:
    """Everything that a child sends until it has ended."""
    messages = list[object]()
    wait_until(lambda: messages.extend(child.receive()) or child.exited(), "its end")
    return [*messages, *child.receive()]


def describe_self(word: str) -> dict[str, Any]:
    return {
        "word": word,
        "pid": os.getpid(),
        "threads": os.environ["OMP_NUM_THREADS"],
        "devices": os.environ["CUDA_VISIBLE_DEVICES"],
        "variable": os.environ.get("BORDER_TEST"),
        "cpus": os.sched_getaffinity(0),
        "gc": gc.isenabled(),
        "name": multiprocessing.current_process().name,
    }


def test_a_child_has_the_present_variables_and_cpus_of_its_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_in_child(os.getpid, (), TIMEOUT_S)  # the server is there by now
    monkeypatch.setenv("BORDER_TEST", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    before = dict(os.environ)
    of_child = run_in_child(describe_self, ("hello",), TIMEOUT_S)
    pid = of_child.pop("pid")
    assert pid != os.getpid() and forkserver.pid_gone(pid)
    cpus = os.sched_getaffinity(0)
    assert of_child == {
        "word": "hello", "threads": "1", "devices": "", "variable": "1", "cpus": cpus, "gc": True,
        "name": "describe_self",
    }  # fmt: skip
    assert dict(os.environ) == before


def test_a_child_knows_what_the_main_script_defines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main, mark = ModuleType("__main__"), tmp_path / "mark"
    main.__file__ = str(tmp_path / "my_training.py")
    Path(main.__file__).write_text(f"open({str(mark)!r}, 'w').close()\n")
    monkeypatch.setitem(sys.modules, "__main__", main)
    run_in_child(os.getpid, (), TIMEOUT_S)
    assert mark.exists()
    main.__file__ = "<stdin>"  # of a program that was piped into Python
    assert run_in_child(abs, (-1,), TIMEOUT_S) == 1


def fail(message: str) -> None:
    raise KeyError(message)


def hang() -> None:
    threading.Event().wait()


def leave() -> None:
    os._exit(7)


def say_and_abort() -> None:
    sys.stderr.write("assertion failed in the simulator\n")
    os.abort()


@pytest.mark.parametrize(
    ("function", "args", "options", "error", "message"),
    [
        (fail, ("no such thing",), {}, ChildError, "no such thing"),
        (leave, (), {}, ChildError, "^the process exited with code 7$"),
        (say_and_abort, (), {}, ChildError, "SIGABRT\nits last output: assertion failed in the simulator$"),
        (hang, (), {"timeout_s": 0.3}, TimeoutError, r"no answer within 0\.3 s"),
        (hang, (), {"waiting": lambda: fail("stop")}, KeyError, "stop"),
    ],
    ids=["raises", "dies", "aborts", "hangs", "stopped"],
)
def test_a_child_without_a_result_is_an_error(
    function: Any, args: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as raised:
        run_in_child(function, args, **{"timeout_s": TIMEOUT_S, **options})
    if function is fail:
        assert raised.value.error_type == "KeyError"  # type: ignore[attr-defined]
        assert "in fail" in raised.value.details  # type: ignore[attr-defined]


def test_f4_a_process_limit_is_reported_as_a_resource_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Any:
        ours, theirs = forkserver.connected("")
        theirs.send(Ended(1, errno=errno.EAGAIN))
        theirs.close()
        return ours

    monkeypatch.setattr(forkserver, "start", refuse)
    with pytest.raises(ResourceError, match="Resource temporarily unavailable\nallowed: a smaller n_actors"):
        run_in_child(os.getpid, (), TIMEOUT_S)


def stop_before_reading(reporter: Reporter, setup: bytes) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def send_back(reporter: Reporter, setup: bytes) -> bytes:
    return setup


def test_arguments_of_any_size_can_be_sent_to_a_child_that_never_reads_them() -> None:
    before = psutil.Process().num_fds()
    with started(stop_before_reading, SETUP) as child:
        wait_until(lambda: child.pid is not None, "its process id")
    assert forkserver.pid_gone(int(child.pid or 0))
    assert psutil.Process().num_fds() <= before


def test_arguments_and_results_of_any_size_arrive_completely() -> None:
    with started(send_back, SETUP) as child:
        assert heard(child) == [Returned(SETUP)]


def log_much(reporter: Reporter) -> None:
    for i in range(300):
        logging.getLogger("tests").warning("message %d %s", i, "x" * 2 * MESSAGE_BYTES if i == 0 else "")
    raise SystemExit("x" * MESSAGE_BYTES + " it is over")


def test_an_exception_and_hundred_log_lines_arrive(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with output_to(tmp_path / "output.log"), started(log_much) as child:
        (failed,) = heard(child)
        assert isinstance(failed, Failed)
        assert failed.error.startswith("[…] xx") and failed.error.endswith("xx it is over")
        assert max(len(failed.error), len(failed.message)) < 1_100 and len(failed.traceback) < 13_000
        assert child.exit_reason == "exited with code 1"
    first, *others = caplog.records
    assert (first.name, first.levelname) == ("tests", "WARNING")
    assert first.getMessage().startswith("[…] xx") and len(first.getMessage()) < 13_000
    assert len(others) == 99 and "from here on is in output.log" in others[-1].getMessage()
    assert "worker: message 299" in (tmp_path / "output.log").read_text()


def print_for_a_while(reporter: Reporter, megabytes: int) -> float:
    began = time.monotonic()
    for _ in range(megabytes):
        sys.stdout.write("x" * (1 << 20) + "\n")
    subprocess.run(["echo", "last words"], check=True)
    return time.monotonic() - began


def test_j2_children_print_to_a_file_of_limited_size(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with output_to(tmp_path / "output.log"), started(print_for_a_while, 20) as child:
        heard(child)
    old, text = ((tmp_path / name).read_text() for name in ("output.log.old", "output.log"))
    assert max(len(old), len(text)) <= MOST_OUTPUT + 100_000 and len(old) >= MOST_OUTPUT
    assert old.startswith("==> worker <==\nxxx") and text.startswith("==> worker <==\n")
    assert text.endswith("x\nlast words\n")
    assert len(list(tmp_path.iterdir())) == 2
    assert capfd.readouterr() == ("", "")


def leave_behind(reporter: Reporter, ends: str) -> None:
    """Start a process in its own session, one that ignores SIGTERM, and one that has lost its parent."""
    commands = (
        "exec sleep 1000",
        "trap '' TERM; sleep 1000 & wait; sleep 1000",
        "(setsid sleep 1000 & echo $!); exec sleep 1000",
    )
    pids = []
    for command in commands:
        process = subprocess.Popen(
            ["bash", "-c", command], start_new_session=True, stdout=subprocess.PIPE, text=True
        )
        pids.append(process.pid)
        assert process.stdout is not None
        if "echo" in command:
            pids.append(int(process.stdout.readline()))
    wait_until(lambda: len(psutil.Process(pids[1]).children()) == 1, "its child")
    reporter.send([*pids, *(child.pid for child in psutil.Process(pids[1]).children())])
    if ends == "killed":
        hang()
    if ends == "crashes":
        os.abort()


@pytest.mark.parametrize("ends", ["returns", "crashes", "killed"])
def test_j6_whatever_a_child_has_started_ends_with_it(ends: str) -> None:
    with started(leave_behind, ends) as child:
        messages = list[Any]()
        wait_until(lambda: messages.extend(child.receive()) or messages, "the processes")
        if ends == "killed":
            for pid in messages[0]:
                os.kill(pid, 0)
            child.kill()
        wait_until(child.exited, "its end")
        assert [pid for pid in messages[0] if not forkserver.pid_gone(pid)] == []


def train_like(reporter: Reporter) -> int:
    """A job: it starts a child of its own, and waits to be killed."""
    child = Child("grandchild", send_pid, ())
    child.poll(TIMEOUT_S)
    reporter.send(child.result())
    hang()
    return 0


def send_pid(reporter: Reporter) -> int:
    reporter.answer(os.getpid())
    hang()
    return 0


def test_children_of_a_job_end_with_it() -> None:
    job = Child("job", train_like, (), trains=True)
    messages = list[Any]()
    wait_until(lambda: messages.extend(job.receive()) or messages, "its child")
    os.kill(int(job.pid or 0), signal.SIGKILL)
    wait_gone(messages[0])
    job.end()
