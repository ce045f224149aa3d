"""A sweep's list of jobs, how many run at once, and what its finished runs say."""

from __future__ import annotations

import json
import multiprocessing
import re
from multiprocessing import reduction
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console

from border_cli.cli.sweep_run import results
from border_cli.core.errors import UsageError
from border_cli.core.progress import JobProgress, Progress
from border_cli.display.output import Output, output
from border_cli.recorders.files import read_jsonl
from border_cli.run.directory import create_sweep
from border_cli.runtime import machine
from border_cli.runtime.worker import Reporter
from border_cli.sweeps.job_table import make_sweep_view, print_sweep_tables
from border_cli.sweeps.jobs import Job, Sweep, job_argv, newest_sweep
from border_cli.sweeps.local_jobs import JobEnd, JobView, Need, divide
from tests.fakes import Paper

GIB = 1 << 30


def ended(
    run_dir: Path, seed: int, score: float, status: str = "done", env: str = "CartPole-v1", lr: float = 0.1
) -> None:
    """Write what a run leaves that the results read."""
    run_dir.mkdir(parents=True)
    (run_dir / "config.yaml").write_text("{}\n")
    config = {"agent": {"type": "dqn", "lr": lr}, "env": {"id": env}, "seed": seed}
    summary = {
        "status": status,
        "best_score": {"mean": score},
        "last_score": {"mean": score / 2},
        "seconds": 3.0,
    }
    (run_dir / "summary.json").write_text(
        json.dumps(summary | {"config": config, "counters": {"env_steps": 10}})
    )
    (run_dir / "metrics.jsonl").write_text(
        '{"env_steps": 1, "opt_steps": 1, "time": 1.0, "eval/return_mean": 1.0}\n'
    )


def add(sweep: Sweep, *overrides: str) -> Job:
    return sweep.add(overrides, lambda number: sweep.folder / str(number))


@pytest.mark.parametrize(
    ("before", "status", "after"),
    [
        ("running", "running", "stopped"),
        ("running", "failed", "failed"),
        ("running", "done", "done"),
        ("waiting", "failed", "waiting"),  # the scheduler has put it back
    ],
)
def test_the_state_of_a_job_is_in_its_directory(tmp_path: Path, before: str, status: str, after: str) -> None:
    job = Job(0, ("seed=1",), tmp_path / "run")
    job.refresh()
    assert (job.state, job.best, job.progress.seconds) == ("waiting", None, None)
    job.run_dir.mkdir()
    (job.run_dir / "config.yaml").write_text("{}\n")
    if status:
        (job.run_dir / "summary.json").write_text(f'{{"status": "{status}"}}')
    job.state = before
    for _ in range(2):
        job.refresh()
        assert job.state == after
    assert job.exit_code == (0 if after == "done" else None)


def test_a_sweep_is_read_as_it_was_saved_and_keeps_what_its_jobs_have_reached(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, ["seed=1,2"])
    ended(tmp_path / "0", 1, 8.0)
    add(sweep, "seed=1", "+a=1")
    refused = add(sweep, "seed=2", "+a=1", "recorder.console=none")
    refused.state, refused.exit_code, refused.error = "failed", 2, "no such thing"
    sweep.save()
    again = Sweep.read(tmp_path)
    assert (again.sweep_id, again.argv) == (sweep.sweep_id, ["seed=1,2"])
    done = again.add(["seed=1", "+a=1"], lambda number: tmp_path / "elsewhere")
    assert (done.state, done.best, done.last, done.run_dir) == ("done", 8.0, 4.0, tmp_path / "0")
    failed = add(again, "seed=2", "+a=1", "debug=true")  # which does not change what it learns
    assert (failed.state, failed.exit_code, failed.error) == ("failed", 2, "no such thing")
    assert again.settings(done) == "seed=1"
    assert add(again, "seed=3", "+a=1").number == 2  # other values are another job
    entry = read_jsonl(tmp_path / "sweep.jsonl")[1]
    assert (entry["seed"], entry["best"], entry["env_steps"], entry["run"]) == (1, 8.0, 10, "0")


def test_a_torn_last_line_of_a_killed_sweep_is_ignored_and_cut_off(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, [])
    job = add(sweep, "a=1")
    sweep.save()
    whole = (tmp_path / "sweep.jsonl").read_bytes()
    job.state = "running"
    sweep.save(job)
    torn = (tmp_path / "sweep.jsonl").read_bytes()[:-9]
    (tmp_path / "sweep.jsonl").write_bytes(torn)
    again = Sweep.read(tmp_path)
    assert [job.state for job in again.jobs] == ["waiting"]
    again.jobs[0].state = "failed"
    again.save()
    assert (tmp_path / "sweep.jsonl").read_bytes().startswith(whole + b'{"number": 0')
    assert [job.state for job in Sweep.read(tmp_path).jobs] == ["failed"]


@pytest.mark.parametrize(
    "text", ["", "[]\n", '{"argv": [], "sweep_id": "1"}\n{"number": 0}\n', '{"argv"\n{}\n']
)
def test_a_sweep_file_that_cannot_be_read_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "sweep.jsonl").write_text(text)
    with pytest.raises(UsageError, match="cannot be read"):
        Sweep.read(tmp_path)


def test_the_newest_sweep_of_a_command_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = job_argv(["-m", "agent=dqn", "seed=1,2", "sweep.slots=2", "recorder.console=plain", "debug=true"])
    assert argv == ["agent=dqn", "seed=1,2"]
    older, newer, other = (create_sweep(tmp_path) for _ in range(3))
    for folder, typed in ((older, argv), (newer, argv), (other, ["seed=1,2"])):
        Sweep(folder, typed).save()
    monkeypatch.setattr("border_cli.sweeps.jobs.RUNS", tmp_path)
    assert newest_sweep(argv) == newer
    assert newest_sweep(["seed=1"]) is None


@pytest.mark.parametrize(
    ("cpus", "free", "n_jobs", "busy", "device", "count", "each"),
    [
        (2, 64, 12, 1.2, "cpu", 2, 1),  # 2 / 1.2 = 1.67: the second job finds two thirds of what it would use
        (2, 64, 12, 1.9, "cpu", 1, 2),  # 2 / 1.9 = 1.05: the second would find a twentieth
        (16, 4, 12, 1.0, "cpu", 3, 5),  # 0.9 · 4 GiB / 1 GiB
        (16, 64, 12, 1.0, "cuda", 2, 8),  # one per GPU
        (16, 64, 12, 1.0, "cuda:1", 1, 16),
    ],
)
def test_jobs_share_cpus_memory_and_gpus(monkeypatch, cpus, free, n_jobs, busy, device, count, each):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    monkeypatch.setattr(machine, "cpus", lambda: cpus)
    monkeypatch.setattr(machine, "available_memory", lambda: free * GIB)
    slots = divide(Need(busy, GIB), device, n_jobs)
    assert (slots.count, slots.cpus) == (count, each)


def test_results_group_runs_by_all_but_the_seed_and_the_best_comes_first(
    tmp_path: Path,
) -> None:
    sweep = Sweep(tmp_path, [])
    runs = [
        (1, 10.0, "A", 0.1),
        (2, 30.0, "A", 0.1),
        (1, 40.0, "A", 0.2),
        (1, 5.0, "B", 0.1),
        (1, 6.0, "B", 0.2),
    ]
    for n, (seed, score, env, lr) in enumerate(runs):
        ended(tmp_path / str(n), seed, score, env=env, lr=lr)
        add(sweep, f"n={n}")
    add(sweep, "n=5")  # never started
    assert [(result.env, [job.number for job in result.jobs], result.best) for result in results(sweep)] == [
        ("A", [2], 40.0),
        ("A", [0, 1], 20.0),
        ("B", [4], 6.0),
        ("B", [3], 5.0),
    ]


def test_without_a_terminal_a_change_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = Sweep(tmp_path, [])
    ended(tmp_path / "0", 1, 8.0)
    job = add(sweep, "+a=1")
    with output() as out:
        view = make_sweep_view(out, sweep, "auto")
        view.changed(job)
        view.note("job 0: error: no")
        view.close()
    captured = capsys.readouterr()
    assert captured.out == "job 0 (a=1): done best=8.00 last=4.00 time=0:00:03\n"
    assert captured.err == "job 0: error: no\n"


def test_a_narrow_terminal_shows_the_settings_of_the_jobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "80")
    sweep = Sweep(tmp_path, [])
    for n in range(2):
        add(sweep, f"agent.lr=0.00{n}", f"seed={n}")
    rows = [(job, JobProgress("training", 5.0, 0.5, 600.0, last=123.4, best=123.4)) for job in sweep.jobs]
    paper = Paper()
    view = make_sweep_view(cast(Output, paper), sweep, "screen")
    view.show(rows, 60.0, "")
    live = "\n".join(paper.shown())
    print_sweep_tables(Console(), sweep, [])
    end = capsys.readouterr().out
    assert "agent.lr=0.001 seed=1" in live and "agent.lr=0.001 seed=1" in end
    assert max(map(len, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", f"{live}\n{end}").splitlines())) <= 80


def test_the_cause_of_a_failed_job_is_its_message_not_a_line_of_the_traceback() -> None:
    text = 'Traceback:\n    raise ValueError("error: in the code")\nerror: the cause\nthis is a bug'
    assert JobEnd(1, text).cause == "the cause"


def test_a_job_tells_the_sweep_its_progress() -> None:
    """20 of 100 opt steps, ten in a second."""
    sweep, job = multiprocessing.Pipe()
    view = JobView(Reporter(job))
    view.show(Progress("training", opt_steps=20, max_opts=100, opt_steps_per_sec=10.0))
    progress = reduction.ForkingPickler.loads(sweep.recv_bytes()[1:])
    assert (progress.fraction, progress.eta_s) == (0.2, 8.0)
