"""MuJoCo's warnings go to the log, each once: left alone they fill the screen and a MUJOCO_LOG.TXT where one stands."""

from __future__ import annotations

import functools
import logging

_logger = logging.getLogger(__name__)


@functools.cache
def log_warnings() -> None:
    """From now on, in this process; nothing where MuJoCo is not installed."""
    try:
        import mujoco  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ModuleNotFoundError:
        return
    mujoco.set_mju_user_warning(_log)


@functools.cache
def _log(message: str) -> None:
    _logger.info("MuJoCo: %s", message)
