"""Free resources, read from file trees like those of the kernel, and the checks that use them."""

from __future__ import annotations

import contextlib
import math
import resource
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from border_cli.agents.dqn.config import DqnConfig
from border_cli.config import resource_checks
from border_cli.config.registry import BUFFERS
from border_cli.config.resource_checks import Sizes
from border_cli.config.schema import BufferConfig, EnvConfig, TrainConfig, TrainerConfig
from border_cli.core.errors import ResourceError
from border_cli.core.format import size
from border_cli.core.spaces import ActionSpec, EnvSpec, ObsLeaf, ObsSpec
from border_cli.core.types import item_columns
from border_cli.run import factories
from border_cli.runtime import machine
from border_cli.runtime.transport import ModelChannel, Ring, model_layout
from tests.fakes import COUNTING_SPEC

GIB = 2**30
SIZES = Sizes(replay=1_000_000_000, ring=1_000_000, channel=1_000, model=1_000, training=4_000)


def config(n_actors: int = 2, capacity: int = 1_000_000, **trainer: object) -> TrainConfig:
    return TrainConfig(
        agent=DqnConfig(),
        env=EnvConfig(id="CartPole-v1"),
        buffer=BufferConfig(capacity=capacity),
        trainer=TrainerConfig(**trainer),  # type: ignore[arg-type]
        n_actors=n_actors,
    )


@pytest.fixture(autouse=True)
def eight_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=8 * GIB, total=9 * GIB))


# -- control groups -----------------------------------------------------------


def write(root: Path, group: str, files: dict[str, str]) -> Path:
    """A tree with the control group of this process, and files below /sys/fs/cgroup."""
    texts = {"proc/self/cgroup": group} | {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V1 = "9:name=systemd:/\n4:memory:/docker/x\n3:pids:/docker/x\n2:cpu:/job\n0::/\n"
V2 = {
    "memory.max": f"{4 * GIB}\n",
    "memory.current": f"{3 * GIB}\n",
    "memory.stat": f"anon 5\ninactive_file {GIB}\nactive_file 7\n",
    "user/job/memory.max": "max\n",
}
V1_MEMORY = {
    "memory/memory.limit_in_bytes": str(4 * GIB),
    "memory/memory.usage_in_bytes": str(3 * GIB),
    "memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}\n",
}
NESTED = {f"{group}memory.current": str(GIB) for group in ("", "user/", "user/job/")}
NESTED |= {"memory.max": str(6 * GIB), "user/memory.max": str(2 * GIB), "user/job/memory.max": str(5 * GIB)}


@pytest.mark.parametrize(
    ("group", "files", "expected"),
    [
        ("", {}, 8 * GIB),  # without control groups: MemAvailable
        ("0::/user/job\n", V2, 2 * GIB),  # the page cache is released when needed, so it counts as free
        (V1, V1_MEMORY, 2 * GIB),
        ("0::/user/job\n", NESTED, GIB),  # the smallest limit of the enclosing groups counts
        ("0::/\n", {"memory.current": "5", "memory.max": "4"}, 0),  # more is used than allowed
    ],
)
def test_available_memory_within_control_groups(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, group: str, files: dict[str, str], expected: int
) -> None:
    monkeypatch.setattr(machine, "ROOT", write(tmp_path, group, files))
    assert machine.available_memory() == expected


@pytest.mark.parametrize(
    ("group", "files", "expected"),
    [
        ("0::/job\n", {}, 4),
        ("0::/job\n", {"job/cpu.max": "10000 100000\n", "cpu.max": "300000 100000\n"}, 1),
        (V1, {"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
    ],
)
def test_the_cpus_within_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, files: dict[str, str], expected: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(machine, "ROOT", write(tmp_path, group, files))
    assert machine.cpus() == expected
    monkeypatch.setattr(machine, "_cpu_share", 2)
    assert machine.cpus() == min(2, expected)


# -- predicted sizes --------------------------------------------------------------

FRAMES = ObsLeaf("obs", (), "box", (4, 84, 84), "uint8", 0.0, 255.0, stack=4)
IMAGES = EnvSpec(ObsSpec((FRAMES,)), ActionSpec("discrete", n=4))


@pytest.mark.parametrize(
    ("spec", "buffer", "capacity"),
    [(COUNTING_SPEC, "prioritized", 10_000), (IMAGES, "uniform", 300)],
    ids=["small rows", "stacks of images"],
)
def test_b5_predicted_replay_bytes_are_what_it_takes(spec: EnvSpec, buffer: str, capacity: int) -> None:
    """The prediction is within 5 % of what the allocator returned."""
    small = replace(config(), buffer=BUFFERS[buffer].config(type=buffer, capacity=capacity))
    factories.make_buffer(config(capacity=100), spec)  # imports do not count
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        replay = factories.make_buffer(small, spec)
        real = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert replay.capacity == capacity
    (leaf,) = spec.obs.leaves
    assert real > capacity * math.prod(leaf.row_shape) * np.dtype(leaf.dtype).itemsize
    assert factories.buffer_bytes(small, spec) == pytest.approx(real, rel=0.05)


def test_predicted_sizes_equal_those_of_the_components() -> None:
    c = config()
    sizes = factories.sizes(c, COUNTING_SPEC)
    agent = factories.make_agent(c, COUNTING_SPEC)
    ring = Ring(item_columns(COUNTING_SPEC), 4 * (64 + 1))  # credit for 128 env steps, which two actors share
    channel = ModelChannel(model_layout(agent.model_info()))
    assert sizes.ring == ring._block.size
    assert sizes.channel == pytest.approx(channel._block.size, rel=0.01)
    assert sizes.model == sum(a.nbytes for a in agent.model_info().arrays.values())
    assert sizes.training == sum(a.nbytes for a in agent.state().arrays.values())


# -- refusals ---------------------------------------------------------------------


def test_b5_too_little_memory_names_the_largest_part_and_what_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    c = config(max_env_steps=None, max_opts=10**6)
    others = sum(resource_checks.memory_need(c, SIZES).values()) - SIZES.replay
    free = (others + SIZES.replay // 2) / 0.9
    monkeypatch.setattr(machine, "available_memory", lambda: int(free) + 1)
    with pytest.raises(ResourceError) as caught:
        resource_checks.check_memory(c, SIZES)
    _, parts, nearest = str(caught.value).splitlines()
    assert "replay 953.7 MiB" in parts and "rings 1.9 MiB" in parts and "learner" in parts
    assert nearest == "nearest: buffer.capacity=450000"
    # It still fits when a little less memory is free than the message was computed for.
    monkeypatch.setattr(machine, "available_memory", lambda: int(0.96 * free))
    smaller = replace(c, buffer=BufferConfig(capacity=450_000))
    resource_checks.check_memory(smaller, replace(SIZES, replay=SIZES.replay * 45 // 100))
    monkeypatch.setattr(machine, "available_memory", lambda: 1_000_000)  # too little for any replay
    with pytest.raises(ResourceError, match=r"a smaller n_actors, and then a smaller buffer"):
        resource_checks.check_memory(c, SIZES)


def test_rows_that_the_budget_cannot_fill_need_no_memory() -> None:
    """Every env step is a row, and the end of each episode is another one. The kernel gives no memory before it is used."""
    need = [
        resource_checks.memory_need(config(max_env_steps=n), SIZES)["replay"]
        for n in (3000, 400_000, 600_000)
    ]
    assert need == [SIZES.replay * 6000 // 10**6, SIZES.replay * 8 // 10, SIZES.replay]
    whole = replace(SIZES, replay=10 * GIB)  # more than the kernel lets a program ask for
    assert resource_checks.memory_need(config(max_env_steps=3000), whole)["replay"] == 10 * GIB
    on_gpu = replace(config(), buffer=BufferConfig(capacity=1_000_000, device="cuda"))
    assert "replay" not in resource_checks.memory_need(on_gpu, SIZES)


def test_the_error_of_a_full_disk_names_both_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full, none = config(), config()
    full.checkpoint.replay, none.checkpoint.replay = "full", "none"
    need = sum(resource_checks.disk_need(full, SIZES, True).values())
    monkeypatch.setattr(machine, "free_disk", lambda path: need)
    resource_checks.check_disk(full, SIZES, tmp_path)
    monkeypatch.setattr(machine, "free_disk", lambda path: need - 1)
    resource_checks.check_disk(none, SIZES, tmp_path)
    with pytest.raises(ResourceError) as caught:
        resource_checks.check_disk(full, SIZES, tmp_path)
    assert f"{size(need)} of disk, and {size(need - 1)} are free" in str(caught.value)
    assert "checkpoint.keep=3" in str(caught.value)


@contextlib.contextmanager
def limited(soft: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_f4_a_soft_limit_of_descriptors_is_raised_a_hard_one_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    c = config(n_actors=32)
    need = resource_checks.descriptors_need(c)
    for soft, raised in ((need + 1, need + 1), (need - 10, need)):
        with limited(soft):
            resource_checks.check_descriptors(c)
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == raised
    monkeypatch.setattr(resource, "getrlimit", lambda which: (32, need - 1))
    with pytest.raises(
        ResourceError, match=rf"n_actors=32 needs {need} file descriptors.*\n.*`ulimit -n {need}`"
    ):
        resource_checks.check_descriptors(c)
