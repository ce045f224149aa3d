"""The stop flag: the first signal sets it, and afterwards handlers are restored."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest

from border_cli.core.errors import ExitCode
from border_cli.runtime import stopping
from border_cli.runtime.stopping import StopFlag

NUMBERS = (signal.SIGINT, signal.SIGTERM)


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in NUMBERS]


@pytest.mark.parametrize("number", NUMBERS)
def test_the_first_signal_sets_the_flag_with_its_code_and_restores_sigint(number: signal.Signals) -> None:
    before, code = handlers(), ExitCode[number.name]
    with StopFlag() as stop:
        assert not stop()
        os.kill(os.getpid(), number)
        assert stop()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
        os.kill(os.getpid(), signal.SIGTERM)
        stop.request(ExitCode.SIGINT if code == ExitCode.SIGTERM else ExitCode.SIGTERM)
    assert stop() and stop.code == code
    assert handlers() == before


def test_d10_a_second_ctrl_c_also_ends_process_1_of_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel drops signals to it that have no handler."""
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    this = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with StopFlag():
        os.kill(this, signal.SIGINT)
        os.kill(this, signal.SIGINT)
    assert ended == [ExitCode.SIGINT]


def test_a_sigint_that_follows_at_once_is_the_same_key_press(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrappers forward the SIGINT that the terminal has sent to the whole group already."""
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(stopping, "sleep", wait)
    with StopFlag() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.code == ExitCode.SIGINT
    assert len(waits) == 1


def test_another_thread_can_only_request_a_stop() -> None:
    before = handlers()
    codes: list[ExitCode | None] = []

    def use() -> None:
        with StopFlag() as stop:
            stop.request(ExitCode.SIGTERM)
        codes.append(stop.code)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert codes == [ExitCode.SIGTERM]
    assert handlers() == before


@pytest.mark.parametrize(("before", "code"), [(signal.SIG_DFL, ExitCode.SIGTERM), (signal.SIG_IGN, None)])
def test_a_closed_terminal_stops_a_run_unless_nohup_started_it(before: Any, code: ExitCode | None) -> None:
    previous = signal.signal(signal.SIGHUP, before)
    try:
        with StopFlag() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
        assert stop.code == code
        assert signal.getsignal(signal.SIGHUP) is before
    finally:
        signal.signal(signal.SIGHUP, previous)
