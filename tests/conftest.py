"""Fixtures for tests that train for real. None of them is used unless a test asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import forkserver as server
from pathlib import Path
from typing import Any

import pytest

from border_cli.runtime import forkserver
from tests.faults.amounts import FULL, SEED
from tests.real_runs import in_folder


def pytest_report_header() -> str:
    return f"FAULTS_SEED={SEED} FAULTS_FULL={int(FULL)}"


@pytest.fixture(scope="session")
def full_forkserver() -> None:
    """A forkserver as the command starts it: the one that other tests have started may be without torch."""
    running: Any = server._forkserver
    running._stop()
    forkserver.start_early()


@pytest.fixture
def workplace(tmp_path: Path, full_forkserver: None) -> Iterator[Path]:
    """An empty working directory, and a list of own runs with nothing in it."""
    with in_folder(tmp_path) as folder:
        yield folder
