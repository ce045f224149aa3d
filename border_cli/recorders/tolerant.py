"""A recorder that may fail for a while, such as on a full disk, without ending the run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from border_cli.core.errors import ResourceError
from border_cli.core.protocols import Recorder
from border_cli.core.record import Record

FIRST_RETRY_S, LAST_RETRY_S = 1.0, 30.0
WARN_S = 60.0
_LACKS = (OSError, ResourceError)
"""What a sink raises when the system does not take what it writes. Anything else is a defect, and is raised."""
_logger = logging.getLogger(__name__)


class TolerantRecorder:
    """Passes records on to `recorder`. Those that it could not write are counted in `dropped`.

    After a failure it is left alone for FIRST_RETRY_S, then twice as long each time, up to LAST_RETRY_S: records that
    come meanwhile are dropped too. name: for warnings, of which there is one in WARN_S at most.
    now: a clock in seconds that never goes back.
    """

    def __init__(self, recorder: Recorder, name: str, now: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.dropped = 0
        self._recorder = recorder
        self._now = now
        self._retry_s = 0.0  # 0 while all is well
        self._retry_at = 0.0
        self._warn_at = 0.0

    def write(self, record: Record) -> None:
        """Pass it on, or count it as dropped."""
        if self._retry_s and self._now() < self._retry_at:
            self.dropped += 1
            return
        try:
            self._recorder.write(record)
        except _LACKS as e:
            self.dropped += 1
            self._failed(e)
        else:
            self._recovered()

    def positions(self) -> dict[str, int]:
        """Of what was written: what was dropped is in no file."""
        return self._recorder.positions()

    def flush(self) -> None:
        """Flush, unless it fails at present."""
        if self._retry_s:
            return
        try:
            self._recorder.flush()
        except _LACKS as e:
            self._failed(e)

    def close(self) -> None:
        """Close; what cannot be brought to the disk then is said and no error."""
        try:
            self._recorder.close()
        except _LACKS as e:
            self._failed(e)
        if self.dropped:
            _logger.warning("%s lacks %d records", self.name, self.dropped)

    def _failed(self, error: Exception) -> None:
        self._retry_s = min(2 * self._retry_s, LAST_RETRY_S) or FIRST_RETRY_S
        self._retry_at = self._now() + self._retry_s
        if self._now() >= self._warn_at or not self._warn_at:
            self._warn_at = self._now() + WARN_S
            first = str(error).splitlines()[0]
            _logger.warning("%s; %d records dropped so far, training goes on", first, self.dropped)

    def _recovered(self) -> None:
        if self._retry_s:
            self._retry_s = 0.0
            _logger.info("%s is written again; it lacks %d records", self.name, self.dropped)
