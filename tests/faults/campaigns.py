"""Long campaigns of faults against the real command, with a printed seed: `python -m tests.faults.campaigns <name>`.

kills: runs killed as a whole at a random moment and gone on with by the same command; in lockstep to the same bits.
storms: random signals to random processes at random times; nothing stays behind, and every run can be gone on with.
soak: half an hour with eight actors, one killed every minute; memory, descriptors and threads stay level.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from border_cli.checkpoints.store import list_steps, verify
from tests.faults.commands import COMMAND
from tests.faults.processes import GONE_S, ROOT, processes, wait_until
from tests.interrupted import value_records
from tests.real_runs import Run

ENDS_S = 300.0
"""A run that has not ended by then hangs."""
WORDS = (
    "agent=dqn",
    "env=cartpole",
    "preset=none",
    "recorder.console=none",
    "evaluator.episodes=5",
    "trainer.warmup_period=200",
    "resume=auto",
)


class Started:
    """`border-train` in a session of its own, with these words, in `folder`."""

    def __init__(self, folder: Path, words: Sequence[str]) -> None:
        folder.mkdir(exist_ok=True)
        environment = os.environ | {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state")}
        self._errors = folder / "errors"
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [str(COMMAND), *words],
                cwd=folder,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
                preexec_fn=_as_from_a_terminal,  # noqa: PLW1509 - there are no other threads here
            )

    def end(self) -> int:
        """Its exit code, once it has ended and nothing of its session lives. Raises AssertionError otherwise."""
        try:
            code = self.process.wait(ENDS_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise AssertionError("it did not end") from None
        wait_until(lambda: not processes(session=self.process.pid), "its processes to leave", GONE_S)
        return code

    def end_well(self) -> None:
        """Raises AssertionError unless it ends with 0."""
        code = self.end()
        assert code == 0, f"exit code {code}: {self._errors.read_text()[-1500:]}"


def _as_from_a_terminal() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def only_run(folder: Path) -> Run:
    """The run in a folder where one command was given again and again."""
    found = [Run(path.parent) for path in sorted(folder.glob("runs/[0-9]*/*/config.yaml"))]
    assert len(found) == 1, [(run.path.name, run.summary["status"], run.checkpoints) for run in found]
    return found[0]


def check_whole(run: Run, opt_steps: int) -> None:
    """It is done, its checkpoints verify, and every step of every curve is there once."""
    summary = run.summary
    assert (summary["status"], summary["counters"]["opt_steps"]) == ("done", opt_steps), summary
    for path in list_steps(run.path / "checkpoints"):
        verify(path)
    points = Counter((name, record["opt_steps"]) for record in run.records for name in record if "/" in name)
    twice = [point for point, n in points.items() if n > 1]
    assert not twice, twice[:3]


# -- kills --------------------------------------------------------------


def kills(runs: int, seed: int, lockstep: bool, opt_steps: int) -> int:
    """How many runs failed."""
    words = [
        *WORDS,
        "n_actors=2",
        f"trainer.max_opts={opt_steps}",
        f"trainer.eval_interval={opt_steps // 6}",
        f"trainer.save_interval={opt_steps // 10}",
        f"trainer.lockstep={str(lockstep).lower()}",
    ]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        began = time.monotonic()
        Started(root / "whole", words).end_well()
        seconds = time.monotonic() - began
        whole = only_run(root / "whole")
        check_whole(whole, opt_steps)
        failed = 0
        for i in range(runs):
            at = random.Random(f"{seed} {i}").uniform(0, 0.85 * seconds)
            error = _attempt(_killed_once, root / str(i), words, at, opt_steps, whole if lockstep else None)
            failed += bool(error)
            _say(f"kill {i} at {at:.2f} s of {seconds:.1f}: {error or 'well'}")
            if not error:
                shutil.rmtree(root / str(i))
    return failed


def _killed_once(folder: Path, words: list[str], at: float, opt_steps: int, whole: Run | None) -> None:
    victim = Started(folder, words)
    with contextlib.suppress(subprocess.TimeoutExpired):
        victim.process.wait(at)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(victim.process.pid, signal.SIGKILL)
    if victim.end() == 0:
        raise AssertionError("it was done before it was killed")
    if not list(folder.glob("runs/[0-9]*/*/summary.json")):
        shutil.rmtree(folder / "runs", ignore_errors=True)  # killed while it began: there is no run yet
    Started(folder, words).end_well()
    run = only_run(folder)
    check_whole(run, opt_steps)
    if whole is not None:
        last = f"checkpoints/{whole.checkpoints[-1]}"
        ours, theirs = run.files(last, "best"), whole.files(last, "best")
        assert ours.keys() == theirs.keys()
        assert [name for name in ours if ours[name] != theirs[name]] == []
        assert value_records(run) == value_records(whole)


# -- storms -------------------------------------------------------------

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGKILL, signal.SIGSTOP)


def storms(runs: int, seed: int, first: int = 0) -> int:
    """How many failed. first: number of the first one, to have one of them again."""
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for i in range(first, first + runs):
            rng = random.Random(f"{seed} {i}")
            error = _attempt(_storm, Path(folder) / str(i), rng)
            failed += bool(error)
            _say(f"storm {i}: {error or 'well'}")
            if not error:
                shutil.rmtree(Path(folder) / str(i))
    return failed


def _storm(folder: Path, rng: random.Random) -> None:
    words = [
        *WORDS,
        "n_actors=3",
        "trainer.max_opts=1500",
        "trainer.eval_interval=200",
        "trainer.save_interval=100",
        "actor_manager.heartbeat_timeout_s=2",
        "actor_manager.stop_timeout_s=2",
        rng.choice(["trainer.lockstep=true", "actor_manager.restart_delay_s=0.1"]),
        rng.choice(["evaluator=inline", "evaluator=process"]),
    ]
    started = Started(folder, words)
    frozen: list[int] = []
    for _ in range(rng.randint(1, 4)):
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.process.wait(rng.uniform(0.0, 2.5))
        if started.process.poll() is not None:
            break
        _strike(started.process.pid, rng, frozen)
    for pid in frozen:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    started.end()
    if not list(folder.glob("runs/[0-9]*/*/summary.json")):
        shutil.rmtree(folder / "runs", ignore_errors=True)
    done = [Run(path.parent) for path in folder.glob("runs/[0-9]*/*/summary.json")]
    if not any(run.summary["status"] == "done" for run in done):
        Started(folder, words).end_well()
    check_whole(only_run(folder), 1500)


def _strike(main: int, rng: random.Random, frozen: list[int]) -> None:
    number = rng.choice(SIGNALS)
    target = rng.choice(["main", "group", "any"])
    members = sorted(processes(session=main))
    pid = main if target != "any" or not members else rng.choice(members)
    with contextlib.suppress(ProcessLookupError):
        if number == signal.SIGSTOP:
            os.kill(pid, number)
            frozen.append(pid)
        elif target == "group":
            os.killpg(main, number)
        else:
            os.kill(pid, number)


# -- soak ---------------------------------------------------------------


def soak(minutes: int) -> int:
    """1 if anything grew, or a restart is missing, or it did not learn."""
    words = [
        "agent=dqn",
        "env=cartpole",
        "n_actors=8",
        "recorder.console=none",
        "trainer.max_env_steps=null",
        f"trainer.max_time={60 * minutes}",
    ]
    with tempfile.TemporaryDirectory() as folder:
        started = Started(Path(folder), words)
        main, killed, samples = started.process.pid, 0, []
        began = time.monotonic()
        for minute in range(minutes):
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.process.wait(max(0.0, began + 60 * minute + 45 - time.monotonic()))
            actors = _actors(main)
            if not actors:
                break
            os.kill(actors[minute % len(actors)], signal.SIGKILL)
            killed += 1
            samples.append(_sample(main))
            _say(json.dumps({"minute": minute, "killed": killed, **samples[-1]}))
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
        _say(json.dumps({"code": code, "killed": killed, "restarts": restarts, "best": best, "level": level}))
    grew = level["descriptors"][1] > level["descriptors"][0] or level["threads"][1] > level["threads"][0]
    grew = grew or level["rss_kib"][1] > 1.02 * level["rss_kib"][0]
    return int(code != 0 or restarts != killed or best < 475 or grew)


def _actors(main: int) -> list[int]:
    """Processes of the session that step environments: those nicer than the learner."""
    nicer = []
    for pid in sorted(processes(session=main)):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if int(fields[16]) > 0:
                nicer.append(pid)
    return nicer


def _sample(pid: int) -> dict[str, int]:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        "rss_kib": int(status["VmRSS"].split()[0]),
        "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "threads": int(status["Threads"]),
    }


# -- command ------------------------------------------------------------


def _attempt(what: Callable[..., None], *arguments: object) -> str:
    """What went wrong, in one line; empty if nothing did."""
    try:
        what(*arguments)
    except AssertionError as e:
        return " ".join(str(e).split())[:500] or "an assertion failed"
    return ""


def _say(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("campaign", choices=["kills", "kills-lockstep", "storms", "soak"])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--opt-steps", type=int, default=3000)
    parser.add_argument("--minutes", type=int, default=30)
    words = parser.parse_args()
    _say(f"seed {words.seed}")
    if words.campaign == "soak":
        failed = soak(words.minutes)
    elif words.campaign == "storms":
        failed = storms(words.runs, words.seed, words.first)
    else:
        failed = kills(words.runs, words.seed, words.campaign == "kills-lockstep", words.opt_steps)
    _say(f"{words.campaign}: {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
