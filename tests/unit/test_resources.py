"""What the machine leaves, read from file trees as the kernel shows them; and what is made of it."""

from __future__ import annotations

import math
import resource
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from border_cli import parts, room
from border_cli.agents.dqn.config import DqnConfig
from border_cli.config import plan
from border_cli.config.plan import AgentBytes, Sizes
from border_cli.config.schema import BufferConfig, EnvConfig, TrainConfig, TrainerConfig
from border_cli.core.errors import ResourceError, UsageError
from border_cli.core.spaces import ActionSpec, EnvSpec, ObsLeaf, ObsSpec
from border_cli.recorders.figures import size
from border_cli.runtime import resources
from tests.fakes import COUNTING_SPEC

GIB = 2**30
SIZES = Sizes(replay=1_000_000_000, ring=1_000_000, channel=1_000, agent=AgentBytes(1_000, 4_000))
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = {"proc/meminfo": f"MemTotal: 99 kB\nMemAvailable:   {8 * GIB // 1024} kB\n"}
V1 = "9:name=systemd:/\n4:memory:/docker/x\n3:pids:/docker/x\n0::/\n"


def config(n_actors: int = 2, capacity: int = 1_000_000, **trainer: object) -> TrainConfig:
    return TrainConfig(
        agent=DqnConfig(),
        env=EnvConfig(id="CartPole-v1"),
        buffer=BufferConfig(capacity=capacity),
        trainer=TrainerConfig(**trainer),  # type: ignore[arg-type]
        n_actors=n_actors,
    )


# -- memory -------------------------------------------------------------


def test_without_control_groups_it_is_what_the_kernel_calls_available(tmp_path: Path) -> None:
    assert resources.available_memory(write(tmp_path, MEMINFO)) == 8 * GIB


@pytest.mark.parametrize("path", ["/", "/user/job", "/not/in/this/mount"])
def test_a_limit_of_version_2_counts_less_what_is_used(tmp_path: Path, path: str) -> None:
    """Pages of files that were read are given back when needed, so they count as free."""
    files = {
        "proc/self/cgroup": f"0::{path}\n",
        "sys/fs/cgroup/memory.max": f"{4 * GIB}\n",
        "sys/fs/cgroup/memory.current": f"{3 * GIB}\n",
        "sys/fs/cgroup/memory.stat": f"anon 5\ninactive_file {GIB}\nactive_file 7\n",
        "sys/fs/cgroup/user/job/memory.max": "max\n",
    }
    assert resources.available_memory(write(tmp_path, MEMINFO | files)) == 2 * GIB


def test_the_tightest_group_of_those_around_counts(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/user/job\n"}
    for group, limit in (("", 6), ("/user", 2), ("/user/job", 5)):
        files[f"sys/fs/cgroup{group}/memory.max"] = str(limit * GIB)
        files[f"sys/fs/cgroup{group}/memory.current"] = str(GIB)
    assert resources.available_memory(write(tmp_path, MEMINFO | files)) == GIB


def test_a_limit_of_version_1_counts_too(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": V1,
        "sys/fs/cgroup/memory/memory.limit_in_bytes": str(4 * GIB),
        "sys/fs/cgroup/memory/memory.usage_in_bytes": str(3 * GIB),
        "sys/fs/cgroup/memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}\n",
    }
    assert resources.available_memory(write(tmp_path, MEMINFO | files)) == 2 * GIB


def test_no_limit_and_more_used_than_allowed(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}
    files["sys/fs/cgroup/memory.current"] = "5"
    assert resources.available_memory(write(tmp_path, MEMINFO | files)) == 8 * GIB
    files["sys/fs/cgroup/memory.max"] = "4"
    assert resources.available_memory(write(tmp_path, MEMINFO | files)) == 0


IMAGES = EnvSpec(
    ObsSpec((ObsLeaf("obs", (), "box", (84, 84, 4), "uint8", 0.0, 255.0),)), ActionSpec("discrete", n=4)
)


@pytest.mark.parametrize(
    ("spec", "capacity"), [(COUNTING_SPEC, 10_000), (IMAGES, 300)], ids=["small rows", "images"]
)
def test_b5_predicted_replay_bytes_are_what_it_really_takes(spec: EnvSpec, capacity: int) -> None:
    """Within 5 %, and not by its own account: by what the allocator handed out."""
    small = config(capacity=capacity)
    parts.make_buffer(config(capacity=100), spec)  # what it imports is no part of it
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        buffer = parts.make_buffer(small, spec)
        real = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert buffer.capacity == capacity
    assert real > capacity * sum(
        math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in spec.obs.leaves
    )
    assert parts.buffer_bytes(small, spec) == pytest.approx(real, rel=0.05)


def test_sizes_are_those_of_the_parts() -> None:
    from border_cli.core.items import item_columns
    from border_cli.transport.model_channel import ModelChannel, model_layout
    from border_cli.transport.ring import Ring

    c = config()
    sizes = parts.sizes(c, COUNTING_SPEC)
    agent = parts.make_agent(c, COUNTING_SPEC)
    ring = Ring(item_columns(COUNTING_SPEC), c.actor_manager.ring_rows)
    channel = ModelChannel(model_layout(agent.model_info()))
    assert (sizes.ring, sizes.channel) == (ring._block.size, channel._block.size)
    assert sizes.agent.model == sum(a.nbytes for a in agent.model_info().arrays.values())
    assert sizes.agent.training == sum(a.nbytes for a in agent.state().arrays.values())


def test_b5_too_little_memory_names_what_takes_how_much_and_what_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    c = config()
    others = sum(plan.memory_need(c, SIZES).values()) - SIZES.replay
    free = (others + SIZES.replay // 2) / 0.9
    monkeypatch.setattr(resources, "available_memory", lambda: int(free) + 1)
    with pytest.raises(ResourceError) as caught:
        room.check_memory(c, SIZES)
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert "replay 953.7 MiB" in lines[1] and "rings 1.9 MiB" in lines[1] and "learner" in lines[1]
    assert lines[2] == "allowed: buffer.capacity up to 500000"
    room.check_memory(c, Sizes(SIZES.replay // 2, SIZES.ring, SIZES.channel, SIZES.agent))


def test_where_no_replay_fits_the_actors_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "available_memory", lambda: 1_000_000)
    with pytest.raises(ResourceError, match=r"a smaller n_actors or actor_manager\.ring_rows"):
        room.check_memory(config(), SIZES)
    monkeypatch.setattr(resources, "available_memory", lambda: None)
    room.check_memory(config(), SIZES)


# -- disk ---------------------------------------------------------------


def test_too_little_disk_names_both_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full, none = config(), config()
    full.checkpoint.replay, none.checkpoint.replay = "full", "none"
    need = sum(plan.disk_need(full, SIZES, True).values())
    monkeypatch.setattr(resources, "free_disk", lambda path: need)
    room.check_disk(full, SIZES, tmp_path)
    monkeypatch.setattr(resources, "free_disk", lambda path: need - 1)
    room.check_disk(none, SIZES, tmp_path)
    with pytest.raises(ResourceError) as caught:
        room.check_disk(full, SIZES, tmp_path)
    assert len(str(caught.value).splitlines()) == 3
    assert f"{size(need)} of disk, and {size(need - 1)} are free" in str(caught.value)
    assert "checkpoint.keep=3" in str(caught.value)


def test_the_replay_is_saved_where_there_is_room_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need = sum(plan.disk_need(config(), SIZES, True).values())
    for free, settled in ((need, "full"), (need - 1, "none")):
        monkeypatch.setattr(resources, "free_disk", lambda path, free=free: free)
        left_open, typed = config(), config()
        typed.checkpoint.replay = "full"
        for one in (left_open, typed):
            room.settle_replay(one, SIZES, tmp_path)
        assert (left_open.checkpoint.replay, typed.checkpoint.replay) == (settled, "full")


def test_free_disk_is_that_of_the_nearest_folder_there_is(tmp_path: Path) -> None:
    assert resources.existing(tmp_path / "a" / "b") == tmp_path
    assert resources.free_disk(tmp_path / "a" / "b") > 0


def test_a_folder_is_written_to_and_nothing_stays(tmp_path: Path) -> None:
    room.check_folder(tmp_path / "runs")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be made: Not a directory"):
        room.check_folder(tmp_path / "file" / "runs")


# -- descriptors --------------------------------------------------------


@pytest.fixture
def descriptors(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the limit is raised to."""
    raised: list[int] = []
    monkeypatch.setattr(resources, "raise_descriptor_limit", raised.append)
    return raised


def test_f4_the_soft_limit_is_raised_where_that_suffices(
    descriptors: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    need = plan.descriptors_need(config(n_actors=32))
    for soft, hard in ((need, need), (need + 1, None), (None, None)):
        monkeypatch.setattr(resources, "descriptor_limits", lambda soft=soft, hard=hard: (soft, hard))
        room.check_descriptors(config(n_actors=32))
    assert descriptors == []
    for hard in (need, None):
        monkeypatch.setattr(resources, "descriptor_limits", lambda hard=hard: (need - 1, hard))
        room.check_descriptors(config(n_actors=32))
    assert descriptors == [need, need]


def test_f4_a_hard_limit_that_is_too_low_is_named(
    descriptors: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    hard = plan.LEARNER_DESCRIPTORS + 10 * plan.ACTOR_DESCRIPTORS
    monkeypatch.setattr(resources, "descriptor_limits", lambda: (32, hard))
    need = plan.descriptors_need(config(n_actors=32))
    with pytest.raises(ResourceError, match=rf"`ulimit -n {need}`\), or n_actors up to 10"):
        room.check_descriptors(config(n_actors=32))
    assert descriptors == []


@linux
def test_the_limit_that_was_raised_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(resources, "_soft_before", None)
    assert resources.raised_descriptor_limit() is None
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
    try:
        resources.raise_descriptor_limit(210)
        resources.raise_descriptor_limit(220)
        assert resources.raised_descriptor_limit() == (200, 220)
        assert resources.descriptor_limits()[0] == 220
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


# -- processes ----------------------------------------------------------


def test_pids_max_counts_in_both_versions(tmp_path: Path) -> None:
    two = {"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/pids.max": "100\n"}
    two["sys/fs/cgroup/job/pids.current"] = "40\n"
    assert resources.free_tasks(write(tmp_path / "2", two)) == 60
    one = {
        "proc/self/cgroup": V1,
        "sys/fs/cgroup/pids/pids.max": "50",
        "sys/fs/cgroup/pids/pids.current": "60",
    }
    assert resources.free_tasks(write(tmp_path / "1", one)) == 0
    none = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/pids.max": "max\n"}
    assert resources.free_tasks(write(tmp_path / "0", none)) is None


def test_a_limit_per_user_counts_the_threads_of_all_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = "Name:\tx\nUid:\t{user}\t{user}\t{user}\t{user}\nThreads:\t{threads}\nCapEff:\t{capable}\n"
    files = {
        "proc/self/status": status.format(user=7, threads=3, capable="0"),
        "proc/1/status": status.format(user=0, threads=50, capable="0"),
        "proc/20/status": status.format(user=7, threads=3, capable="0"),
        "proc/30/status": status.format(user=7, threads=4, capable="0"),
    }
    root = write(tmp_path, files)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (10, 10))
    monkeypatch.setattr("os.getuid", lambda: 7)
    assert resources.free_tasks(root) == 3
    write(root, {"proc/self/status": status.format(user=7, threads=3, capable=f"{1 << 24:x}")})
    assert resources.free_tasks(root) is None


def test_too_few_processes_are_refused_with_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    c = config(n_actors=8)
    need = plan.tasks_need(c, resources.cpus())
    monkeypatch.setattr(resources, "free_tasks", lambda: need)
    room.check_tasks(c)
    monkeypatch.setattr(resources, "free_tasks", lambda: need - 3)
    with pytest.raises(ResourceError, match=r"pids\.max of the control group\), or n_actors up to 6"):
        room.check_tasks(c)
