"""Half an hour with eight actors, one of which is killed every minute. Memory, descriptors and threads must not grow."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from tests.campaigns.started import Started, only_run, say


def soak(minutes: int) -> int:
    """Return 1 if anything grew, a restart is missing or the run did not learn, else 0."""
    args = [
        "agent=dqn",
        "env=cartpole",
        "n_actors=8",
        "recorder.console=none",
        "trainer.max_env_steps=null",
        f"trainer.max_time={60 * minutes}",
    ]
    with tempfile.TemporaryDirectory() as folder:
        started = Started(Path(folder), args)
        main, killed, samples = started.pid, 0, []
        began = time.monotonic()
        for minute in range(minutes):
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.wait(max(0.0, began + 60 * minute + 45 - time.monotonic()))
            actors = started.workers()
            if not actors:
                break
            os.kill(actors[minute % len(actors)], signal.SIGKILL)
            killed += 1
            samples.append(_sample(main))
            say(json.dumps({"minute": minute, "killed": killed, **samples[-1]}))
        code = started.end()
        run = only_run(Path(folder))
        restarts = sum(actor["incarnation"] for actor in run.summary["actors"])
        best = run.summary["best_score"]["mean"]
        half = len(samples) // 2
        level = {
            name: (
                statistics.median(s[name] for s in samples[2:half]),
                statistics.median(s[name] for s in samples[half:]),
            )
            for name in samples[0]
        }
        say(json.dumps({"code": code, "killed": killed, "restarts": restarts, "best": best, "level": level}))
    grew = level["descriptors"][1] > level["descriptors"][0] or level["threads"][1] > level["threads"][0]
    grew = grew or level["rss_kib"][1] > 1.02 * level["rss_kib"][0]
    return int(code != 0 or restarts != killed or best < 475 or grew)


def _sample(pid: int) -> dict[str, int]:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        "rss_kib": int(status["VmRSS"].split()[0]),
        "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "threads": int(status["Threads"]),
    }
