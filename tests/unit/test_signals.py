"""The stop flag: what the first signal does, and that everything is as before afterwards."""

from __future__ import annotations

import os
import signal
import threading

from border_cli.core.errors import ExitCode
from border_cli.runtime.signals import StopFlag

NUMBERS = (signal.SIGINT, signal.SIGTERM)


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in NUMBERS]


def test_the_first_signal_sets_the_flag_and_gives_sigint_back() -> None:
    before = handlers()
    with StopFlag() as stop:
        assert not stop()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop()
        assert stop.code == ExitCode.SIGTERM
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    assert handlers() == before
    assert stop()


def test_the_first_code_stays() -> None:
    with StopFlag() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        stop.request(ExitCode.SIGTERM)
    assert stop.code == ExitCode.SIGINT


def test_another_thread_may_only_request() -> None:
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
