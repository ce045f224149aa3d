"""Fixtures for tests that train for real, and the audit of every test that shows a row of the fault table."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from multiprocessing import forkserver as server
from pathlib import Path
from typing import Any

import pytest

from border_cli.runtime import forkserver
from tests.faults.amounts import FULL, SEED
from tests.faults.audited import nothing_left
from tests.real_runs import in_folder

# Several workers with a thread per core each wait for one another: small operations then take a hundred times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
_SHOWS_A_ROW = re.compile(r"test_[a-i]\d+_")


def pytest_report_header() -> str:
    return f"FAULTS_SEED={SEED} FAULTS_FULL={int(FULL)}"


@pytest.fixture(autouse=True)
def audit_of_a_row(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that is named after rows of the fault table leaves nothing behind."""
    if not _SHOWS_A_ROW.match(request.node.name):
        yield
        return
    with nothing_left():
        yield


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
