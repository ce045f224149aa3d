"""Actors on Ray beside actors in processes, and what follows for many actors.

    python -m bench.cluster [--repetitions 3] [--print-only]

Two actors in CartPole on a cluster of this machine, chunks of 16 to 1,024 env steps, both managers in turn. Writes two
tables into docs/cluster.md. About five minutes on two cores.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.report import machine, markdown, number, write_between_marks
from border_cli import compose
from border_cli.actors.remote import Reply
from border_cli.actors.spec import ActorState
from border_cli.config.registry import ACTOR_MANAGERS
from border_cli.core.types import Chunk
from border_cli.envs.group import GymEnv
from border_cli.run import build
from border_cli.run.probes import made_up
from border_cli.runtime.ray_cluster import Cluster

PAGE = Path(__file__).parents[1] / "docs" / "cluster.md"
OVERRIDES = ("agent=dqn", "env=cartpole", "preset=none", "agent.hidden=[64,64]")
SIZES = (16, 64, 256, 1024)
MANY = (10, 100, 1000)
N_ACTORS = 2
SECONDS = 4.0
WARM_UP_CHUNKS = 20


@dataclass(frozen=True)
class Measured:
    """One run of actors. env_steps: per second · rows: mean of a chunk · busy: CPU time of the learner's thread for
    collecting, as a share of the duration · per_chunk: that of looks that brought chunks, for a chunk [s].
    """

    env_steps: float
    rows: float
    busy: float
    per_chunk: float


def acted(kind: str, size: int) -> Measured:
    """Let actors act on unlimited credit, with a learner that only collects."""
    config = compose(*OVERRIDES, f"actor_manager={kind}", f"actor_manager.n_buffer={size}")
    spec = GymEnv(config.env).spec
    entry: Any = ACTOR_MANAGERS[kind]
    columns = build.run_columns(config, spec)
    manager = entry.load()(
        build.actor_spec(config), columns, N_ACTORS, config.actor_manager, lambda: False, lambda _: None
    )
    try:
        manager.start(build.make_agent(config, spec).model_info())
        manager.grant([10**9] * N_ACTORS)
        arrived = 0
        while arrived < WARM_UP_CHUNKS:
            arrived += len(manager.collect())
            time.sleep(0.001)
        chunks, steps, used, in_vain, began = 0, 0, 0.0, 0.0, time.perf_counter()
        while time.perf_counter() - began < SECONDS:
            before = (
                time.thread_time()
            )  # actors compete for the cores, so that a clock would count their time, too
            found = manager.collect()
            if found:
                used += time.thread_time() - before
            else:
                in_vain += time.thread_time() - before
            chunks += len(found)
            steps += sum(chunk.env_steps for chunk in found)
            time.sleep(0.001)  # the learner is busy in between
        seconds = time.perf_counter() - began
        return Measured(steps / seconds, steps / chunks, (used + in_vain) / seconds, used / chunks)
    finally:
        manager.stop()


def serialisation(ray: Any, items: Any, rows: int) -> tuple[float, float, int]:
    """Seconds that an actor and the learner need to write and to read the reply with one chunk, and its bytes."""
    chunk = Chunk(0, 0, 0, rows, 0, {name: array[:rows] for name, array in items.items()})
    write, read, size = [], [], 0
    for _ in range(200):
        began = time.perf_counter()
        reply = Reply([chunk], [], [], ActorState.ACTING, 0, 0.0, 0)
        data = ray.cloudpickle.dumps(reply, protocol=5)
        middle = time.perf_counter()
        ray.cloudpickle.loads(data)
        read.append(time.perf_counter() - middle)
        write.append(middle - began)
        size = len(data)
    return statistics.median(write), statistics.median(read), size


@dataclass(frozen=True)
class Row:
    """Medians over the repetitions for one size of chunks, and the ratio of each repetition.

    here, there: env steps/s of processes and of Ray · rows: env steps in a chunk · write, read: seconds for a chunk, of an
    actor and of the learner · busy: share of the learner's time for collecting · per_chunk: its seconds for one chunk.
    """

    size: int
    here: float
    there: float
    ratios: Sequence[float]
    rows: float
    write: float
    read: float
    busy: float
    per_chunk: float
    bytes_per_step: float

    @property
    def cells(self) -> list[str]:
        """The row as it is printed."""
        chunks_per_second = self.there / self.rows
        return [
            f"{self.size:,}",
            number(self.here),
            number(self.there),
            f"{statistics.median(self.ratios):.2f} ({min(self.ratios):.2f} to {max(self.ratios):.2f})",
            number(self.rows),
            f"{self.write * chunks_per_second / N_ACTORS:.1%}",
            f"{self.read * chunks_per_second:.1%}",
            f"{self.busy:.1%}",
            f"{1e3 * self.per_chunk:.2f} ms",
            number(self.bytes_per_step),
        ]


HEAD = (
    *("chunk", "processes, env steps/s", "Ray, env steps/s", "ratio", "env steps in a chunk"),
    *("serialisation, of an actor's time", "serialisation, of the learner's time"),
    *("collecting, of the learner's time", "collecting a chunk", "bytes per env step"),
)
CEILING_HEAD = ("actors", "env steps/s at most", "chunks/s", "MB/s", "collecting, of the learner's time")


def measured(ray: Any, items: Any, size: int, repetitions: int) -> Row:
    """Both managers in turn, with chunks of this size."""
    here, there = [], []
    for _ in range(repetitions):
        here.append(acted("process", size))
        there.append(acted("ray", size))
        print(size, here[-1], there[-1], file=sys.stderr, flush=True)
    rows = statistics.median([one.rows for one in there])
    whole = min(size, round(rows))
    write, read, data = serialisation(ray, items, whole)
    return Row(
        size,
        here=statistics.median([one.env_steps for one in here]),
        there=statistics.median([one.env_steps for one in there]),
        ratios=[ours.env_steps / theirs.env_steps for theirs, ours in zip(here, there, strict=True)],
        rows=rows,
        write=write,
        read=read,
        busy=statistics.median([one.busy for one in there]),
        per_chunk=statistics.median([one.per_chunk for one in there]),
        bytes_per_step=data / whole,
    )


def ceiling(row: Row) -> list[list[str]]:
    """What follows for many actors with chunks of this size."""
    lines = []
    for n in MANY:
        env_steps = n * row.there / N_ACTORS
        chunks = env_steps / row.size
        megabytes, share = env_steps * row.bytes_per_step / 1e6, chunks * row.per_chunk
        lines.append([f"{n:,}", number(env_steps), number(chunks), number(megabytes), f"{share:.0%}"])
    return lines


def main() -> None:
    """Measure, and write both tables."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.cluster", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--print-only", action="store_true")
    args = parser.parse_args()
    cluster = Cluster("address", "local", N_ACTORS)
    config = compose(*OVERRIDES)
    spec = GymEnv(config.env).spec
    items = made_up(spec, max(SIZES), config)
    found = {size: measured(cluster.ray, items, size, args.repetitions) for size in SIZES}
    cluster.close()
    table = markdown(HEAD, [row.cells for row in found.values()])
    text = f"\n{args.repetitions} repetitions with {N_ACTORS} actors on {machine()}.\n\n{table}\n"
    many = markdown(CEILING_HEAD, ceiling(found[256]))
    print(text, many, sep="\n")
    if not args.print_only:
        write_between_marks(PAGE, text)
        write_between_marks(PAGE, f"\n{many}\n", "ceiling")


if __name__ == "__main__":
    main()
