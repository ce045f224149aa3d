"""Fixtures for tests that start processes, and the audit of every test that shows a row of the fault table."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from multiprocessing import forkserver as server
from pathlib import Path
from typing import Any

import pytest

from border_cli.runtime import forkserver
from tests import stored_run as stored_run_module
from tests.fakes import LIGHT_PRELOAD
from tests.faults.amounts import FULL, SEED
from tests.faults.processes import nothing_left
from tests.real_runs import in_folder

# Several workers with a thread per core each wait for one another: small operations then take a hundred times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
_SHOWS_A_ROW = re.compile(r"test_[a-i]\d+_")
collect_ignore_glob = [] if sys.platform == "linux" else ["faults/test_*.py"]  # they look into /proc


def pytest_report_header() -> str:
    return f"FAULTS_SEED={SEED} FAULTS_FULL={int(FULL)}"


@pytest.fixture(autouse=True)
def audit_of_a_row(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test of tests/faults, or one that is named after rows of the fault table, leaves nothing behind."""
    if request.path.parent.name != "faults" and not _SHOWS_A_ROW.match(request.node.name):
        yield
        return
    with nothing_left():
        yield


@pytest.fixture(scope="session")
def light_forkserver() -> None:
    """A forkserver without torch, unless another one is there: it is enough for actors with a NumpyPolicy."""
    forkserver.start_early(LIGHT_PRELOAD)


@pytest.fixture(scope="session")
def full_forkserver() -> None:
    """A forkserver as the command starts it: the one that other tests have started may be without torch."""
    running: Any = server._forkserver
    running._stop()
    forkserver.start_early()


@pytest.fixture(scope="session")
def stored_run(tmp_path_factory: pytest.TempPathFactory, full_forkserver: None) -> Path:
    """A run directory that tests copy. See `tests.stored_run`."""
    return stored_run_module.make(tmp_path_factory.mktemp("stored"))


@pytest.fixture
def workplace(tmp_path: Path, full_forkserver: None) -> Iterator[Path]:
    """An empty working directory, and a list of own runs with nothing in it."""
    with in_folder(tmp_path) as folder:
        yield folder
