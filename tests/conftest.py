"""Fixtures for tests that start processes, and the audit of every test that shows a row of the fault table.

What imports torch is imported where it is used: the main process of pytest-xdist runs no test.
"""

from __future__ import annotations

import atexit
import gc
import os
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from border_cli.runtime import forkserver
from tests import kinds, warm  # noqa: F401 - kinds: before any plugin of a test is imported
from tests.faults.amounts import FULL, SEED

# Workers with one torch thread per core wait for each other, which makes small operations a hundred times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # where a test has two threads
gc.disable()  # until the tests are collected: imports are faster
_SHOWS_A_ROW = re.compile(r"test_[a-j]\d+_")
if not FULL:
    forkserver._start_server = warm.fork_server
collect_ignore_glob = [] if sys.platform == "linux" else ["faults/test_*.py"]  # these tests read /proc


def pytest_configure(config: pytest.Config) -> None:
    """The workers of pytest-xdist share a warm process."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput") and not FULL:
        warm.start()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if find_spec("Box2D") is None:  # it has no wheel for Python 3.14
        for item in items:
            if re.search(r"Box2D|[Ll]unar|[Bb]ipedal|CarRacing", item.nodeid):
                item.add_marker(pytest.mark.skip(reason="needs Box2D"))


def pytest_collection_finish() -> None:
    """Let no garbage collection, which would take a tenth of a second, look through all that was imported."""
    gc.freeze()
    gc.enable()
    atexit.register(gc.freeze)


def pytest_report_header() -> str:
    return f"FAULTS_SEED={SEED} TEST_FULL={int(FULL)}"


@pytest.fixture(autouse=True)
def audit_of_a_row(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that tests in tests/faults, and tests named after rows of the fault table, leave nothing behind."""
    is_row = request.path.parent.name == "faults" or _SHOWS_A_ROW.match(request.node.name)
    if not is_row or "[ray" in request.node.name:  # the cluster of `ray_cluster` stays, with its connections
        yield
        return
    from tests.faults.processes import nothing_left

    with nothing_left():
        yield


@pytest.fixture(scope="session")
def light_forkserver() -> None:
    """Start a forkserver without torch, unless one runs. It is enough for actors with a NumpyPolicy."""
    from tests.fakes import LIGHT_PRELOAD

    forkserver.start_early(LIGHT_PRELOAD)


@pytest.fixture(scope="session")
def full_forkserver() -> None:
    """Let the fork server import torch, as the command starts it."""
    forkserver.start_early()


@pytest.fixture(scope="session")
def stored_run(tmp_path_factory: pytest.TempPathFactory, full_forkserver: None) -> Path:
    """A run directory that tests copy."""
    from tests.trained import make_stored_run

    return make_stored_run(tmp_path_factory.mktemp("stored"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, full_forkserver: None) -> Iterator[Path]:
    """A working directory that the tests of a file share."""
    from tests.real_runs import in_folder

    with in_folder(tmp_path_factory.mktemp("folder")) as path:
        yield path


@pytest.fixture
def workplace(tmp_path: Path, full_forkserver: None) -> Iterator[Path]:
    """An empty working directory."""
    from tests.real_runs import in_folder

    with in_folder(tmp_path) as folder:
        yield folder


@pytest.fixture
def ray_cluster() -> None:
    """A Ray cluster that all runs of this process use, until it ends. Skips the test where Ray is not installed."""
    ray = pytest.importorskip("ray")
    if not ray.is_initialized():
        ray.init(
            "local", num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20
        )
