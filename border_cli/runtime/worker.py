"""A child process that goes on working, and its pipe, as the learner holds them: from its start until it is released.

Nothing here waits for the child, except `end`, which kills it first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

from border_cli.runtime import forkserver
from border_cli.runtime.parcel import Parcel
from border_cli.runtime.pipe import LogLine, new_pipe

_LAST_WORDS = 10_000
"""More messages than fit into the pipe of a process that is gone."""
_MESSAGES_AT_ONCE = 64  # one that never stops logging must not keep the learner from its work


class Worker:
    """A process that runs entry(links(its end of the pipe, the order)).

    Whatever needs imports goes into the order, because importing may already fail. Raises ResourceError when memory,
    descriptors or processes are too few.
    """

    def __init__(
        self,
        name: str,
        entry: Callable[..., None],
        links: Callable[[Connection, Parcel], object],
        order: object,
    ) -> None:
        with contextlib.closing(Parcel(order, f"the order of {name}")) as parcel:
            self._pipe, theirs = new_pipe(name)
            try:
                self._process = forkserver.start_process(entry, (links(theirs, parcel),), name)
            except BaseException:
                self._pipe.close()
                raise
            finally:
                theirs.close()
        self._silent = False

    @property
    def pid(self) -> int | None:
        """Process id."""
        return self._process.pid

    @property
    def descriptors(self) -> list[int]:
        """What becomes readable when there is news: the pipe, and the end of the process."""
        return [self._pipe.fileno(), self._process.sentinel]

    @property
    def silent(self) -> bool:
        """Whether it was heard that nothing more will be said."""
        return self._silent

    def send(self, message: object) -> None:
        """Say something short to the process. Nothing happens if it has died, which `gone` will tell."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._pipe.send(message)

    def heard(self, last: bool = False) -> Iterator[object]:
        """What it has said since the last time, without waiting. Log lines are logged.

        last: it has ended, or is about to be, and what it said before that is not left to the next time.
        """
        try:
            for _ in range(_LAST_WORDS if last else _MESSAGES_AT_ONCE):
                if not self._pipe.poll():
                    return
                message = self._pipe.recv()
                if isinstance(message, LogLine):
                    message.log()
                else:
                    yield message
        except (EOFError, ConnectionResetError, BrokenPipeError):
            self._silent = True

    def gone(self) -> bool:
        """Whether there is no process any more: its end was reported and its id is free."""
        pid = self._process.pid
        # An end that is reported because the forkserver went away says nothing yet about the process itself.
        return self._process.exitcode is not None and (pid is None or forkserver.pid_gone(pid))

    @property
    def end_words(self) -> str:
        """How it ended, such as "was killed by SIGKILL"."""
        return forkserver.describe_exit(self._process.exitcode)

    def kill(self) -> None:
        """End it at once, whatever it is doing."""
        if not self.gone():
            self._process.kill()

    def end(self, grace_s: float = 0.0) -> None:
        """Close the pipe, kill the process unless it leaves within grace_s [s], and end what it has started."""
        pid = self._process.pid
        self._pipe.close()
        forkserver.end_process(self._process, grace_s)
        if pid is not None:
            forkserver.end_group(pid)
