"""A sweep's list of jobs, how many run at once, and what its finished runs say."""

from __future__ import annotations

import json
import multiprocessing
import re
from multiprocessing import reduction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from border_cli.agents.dqn.config import DqnConfig
from border_cli.config.convert import load
from border_cli.config.schema import BufferConfig, EnvConfig, TrainConfig
from border_cli.core.errors import UsageError
from border_cli.core.progress import JobProgress, Progress
from border_cli.display.output import Output, output
from border_cli.recorders.files import read_jsonl
from border_cli.report.stats import Interval, Line
from border_cli.run.directory import create_sweep
from border_cli.runtime import machine
from border_cli.runtime.worker import Reporter
from border_cli.sweeps.job_process import JobView
from border_cli.sweeps.jobs import Job, Sweep, job_argv, newest_sweep
from border_cli.sweeps.results import Result, results, winners, write_preset
from border_cli.sweeps.screen import make_sweep_view, print_sweep_tables
from border_cli.sweeps.slots import Need, divide, executor
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


def test_the_state_of_a_job_follows_from_its_directory(tmp_path: Path) -> None:
    job = Job(0, ("seed=1",), tmp_path / "run")
    job.refresh()
    assert (job.state, job.best, job.seconds) == ("waiting", None, None)
    job.run_dir.mkdir()
    (job.run_dir / "config.yaml").write_text("{}\n")
    job.refresh()
    assert job.state == "stopped"
    for status, state in (
        ("running", "stopped"),
        ("stopped", "stopped"),
        ("failed", "failed"),
        ("done", "done"),
    ):
        (job.run_dir / "summary.json").write_text(f'{{"status": "{status}"}}')
        job.refresh()
        assert job.state == state
    assert job.exit_code == 0


def test_a_job_that_was_put_back_after_it_failed_is_not_a_failed_one(tmp_path: Path) -> None:
    """The scheduler puts back a job that had no room beside others."""
    job = Job(0, ("seed=1",), tmp_path / "run", state="waiting")
    job.run_dir.mkdir()
    (job.run_dir / "config.yaml").write_text("{}\n")
    (job.run_dir / "summary.json").write_text('{"status": "failed"}')
    for _ in range(2):
        job.refresh()
        assert job.state == "waiting"


def test_a_sweep_is_read_as_it_was_saved_and_keeps_what_its_jobs_have_reached(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, ["seed=1,2"])
    ended(tmp_path / "0", 1, 8.0)
    sweep.add(0, ["seed=1", "+a=1"], tmp_path / "0")
    refused = sweep.add(1, ["seed=2", "+a=1"], tmp_path / "1")
    refused.state, refused.exit_code, refused.error = "failed", 2, "no such thing"
    sweep.save()
    again = Sweep.read(tmp_path)
    assert (again.sweep_id, again.argv) == (sweep.sweep_id, ["seed=1,2"])
    done = again.add(0, ["seed=1", "+a=1"], tmp_path / "elsewhere")
    assert (done.state, done.best, done.last, done.run_dir) == ("done", 8.0, 4.0, tmp_path / "0")
    failed = again.add(1, ["seed=2", "+a=1"], tmp_path / "1")
    assert (failed.state, failed.exit_code, failed.error) == ("failed", 2, "no such thing")
    assert again.settings(done) == "seed=1"
    entry = read_jsonl(tmp_path / "sweep.jsonl")[1]
    assert (entry["seed"], entry["best"], entry["env_steps"], entry["run"]) == (1, 8.0, 10, "0")


def bytes_written(tmp_path: Path, n_jobs: int) -> int:
    """What a sweep writes whose jobs all start and end."""
    sweep = Sweep(tmp_path / str(n_jobs), ["seed=range(0,1000)"])
    sweep.folder.mkdir()
    jobs = [sweep.add(n, [f"seed={n}"], sweep.folder / str(n)) for n in range(n_jobs)]
    io = Path("/proc/self/io")
    before = int(re.search(r"wchar: (\d+)", io.read_text())[1])  # type: ignore[index]
    sweep.save()
    for state in ("running", "done"):
        for job in jobs:
            job.state = state
            sweep.save(job)
    return int(re.search(r"wchar: (\d+)", io.read_text())[1]) - before  # type: ignore[index]


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="what a process writes is not counted here")
def test_what_a_sweep_writes_of_its_jobs_grows_with_their_number(tmp_path: Path) -> None:
    assert bytes_written(tmp_path, 400) < 11 * bytes_written(tmp_path, 40)


def test_a_torn_last_line_of_a_killed_sweep_is_ignored_and_cut_off(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, [])
    job = sweep.add(0, ["a=1"], tmp_path / "0")
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
    "text", ["", "[]\n", "{}\n", '{"argv": [], "sweep_id": "1"}\n{"number": 0}\n', '{"argv"\n{}\n']
)
def test_a_sweep_file_that_cannot_be_read_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="is not a sweep"):
        Sweep.read(tmp_path)
    (tmp_path / "sweep.jsonl").write_text(text)
    with pytest.raises(UsageError, match="cannot be read"):
        Sweep.read(tmp_path)


def test_a_sweeper_that_draws_other_values_in_another_launch_has_other_jobs(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, [])
    for number, lr in enumerate((0.1, 0.2, 0.2)):
        assert sweep.numbered(number, [f"lr={lr}"]) == number
        sweep.add(number, [f"lr={lr}"], tmp_path / str(number))
    assert sweep.numbered(0, ["lr=0.1"]) == 0
    assert sweep.numbered(0, ["lr=0.2"]) == 1
    assert sweep.numbered(2, ["lr=0.2"]) == 2
    assert sweep.numbered(0, ["lr=0.3"]) == 3


def test_jobs_are_known_by_what_they_learn(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, [])
    job = sweep.add(0, ["seed=1", "recorder.console=none"], tmp_path / "0")
    job.state = "failed"
    assert sweep.numbered(0, ["seed=1", "debug=true"]) == 0
    assert sweep.add(0, ["seed=1", "debug=true"], tmp_path / "0") is job
    assert (job.overrides, job.state) == (("seed=1",), "failed")


def test_the_newest_sweep_of_a_command_is_found_by_its_arguments(tmp_path: Path) -> None:
    argv = job_argv(["-m", "agent=dqn", "seed=1,2", "sweep.slots=2", "recorder.console=plain", "debug=true"])
    assert argv == ["agent=dqn", "seed=1,2"]
    older, newer, other = (create_sweep(tmp_path) for _ in range(3))
    for folder, typed in ((older, argv), (newer, argv), (other, ["seed=1,2"])):
        Sweep(folder, typed).save()
    assert newest_sweep(argv, tmp_path) == newer
    assert newest_sweep(["seed=1"], tmp_path) is None


@pytest.mark.parametrize(
    ("cpus", "free", "n_jobs", "busy", "count", "each"),
    [
        (2, 64, 12, 1.2, 2, 1),  # 2 / 1.2 = 1.67: the second job finds two thirds of what it would use
        (2, 64, 12, 1.9, 1, 2),  # 2 / 1.9 = 1.05: the second would find a twentieth
        (16, 64, 12, 1.0, 12, 1),  # there are no more jobs
        (16, 64, 3, 4.0, 3, 5),
        (16, 4, 12, 1.0, 3, 5),  # 0.9 · 4 GiB / 1 GiB
        (1, 64, 12, 3.0, 1, 1),
    ],
)
def test_jobs_share_cpus_and_memory(
    monkeypatch: pytest.MonkeyPatch, cpus: int, free: int, n_jobs: int, busy: float, count: int, each: int
) -> None:
    monkeypatch.setattr(machine, "cpus", lambda: cpus)
    monkeypatch.setattr(machine, "available_memory", lambda: free * GIB)
    slots = divide(Need(busy, GIB, "cpu"), n_jobs)
    assert (slots.count, slots.cpus, slots.gpus) == (count, each, ())


def test_jobs_on_gpus_have_one_each_unless_more_are_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    monkeypatch.setattr(machine, "cpus", lambda: 16)
    slots = divide(Need(1.0, GIB, "cuda"), 12)
    assert (slots.count, slots.gpus) == (2, ("0", "3"))
    assert executor(6, "cuda").gpus == ("0", "3")


def test_jobs_on_a_certain_gpu_see_all_and_share_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    monkeypatch.setattr(machine, "cpus", lambda: 16)
    slots = divide(Need(1.0, GIB, "cuda:1"), 12)
    assert (slots.count, slots.gpus) == (1, ())
    assert executor(6, "cuda:1").gpus == ()


def test_results_group_runs_without_their_seed_and_the_best_of_each_environment_wins(tmp_path: Path) -> None:
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
        sweep.add(n, [f"n={n}"], tmp_path / str(n))
    sweep.add(5, ["n=5"], tmp_path / "never started")
    found = results(sweep)
    assert [(one.env, [job.number for job in one.jobs], one.best) for one in found] == [
        ("A", [2], 40.0),
        ("A", [0, 1], 20.0),
        ("B", [4], 6.0),
        ("B", [3], 5.0),
    ]
    assert [one.jobs[0].number for one in winners(found)] == [2, 4]


def test_a_preset_has_what_differs_from_the_groups_alone(tmp_path: Path) -> None:
    base = TrainConfig(agent=DqnConfig(type="dqn"), env=EnvConfig(id="A"))
    config = TrainConfig(
        agent=DqnConfig(type="dqn", lr=0.5, hidden=[8]), env=EnvConfig(id="A"), buffer=BufferConfig(n_step=3)
    )
    config.seed, config.trainer.lockstep, config.n_actors = 7, True, 4
    scores = Line("lr=0.5", 1, 1, 1, 10, Interval(9.0, 9.0, 9.0), Interval(1.0, 1.0, 1.0), 1.0, 0, None)
    result = Result("A", [Job(0, (), tmp_path)], scores)
    write_preset(tmp_path / "best.yaml", config, base, result.expect, "a sweep", "border-train env=x")
    assert load(tmp_path / "best.yaml") == {
        "preset": {
            "env_id": "A",
            "expect": "mean return of 9.00 with the best models of 1 run",
            "source": "a sweep",
        },
        "agent": {"lr": 0.5, "hidden": [8]},
        "buffer": {"n_step": 3},
        "n_actors": 4,
    }
    assert "\n# border-train env=x\n" in (tmp_path / "best.yaml").read_text()


def test_without_a_terminal_a_change_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = Sweep(tmp_path, [])
    ended(tmp_path / "0", 1, 8.0)
    job = sweep.add(0, ["+a=1"], tmp_path / "0")
    with output() as out:
        view = make_sweep_view(out, sweep, "title", "auto")
        view.changed(job)
        view.note("job 0: error: no")
        view.close()
    captured = capsys.readouterr()
    assert captured.out == "job 0 (a=1): done best=8.00 last=4.00 time=0:00:03\n"
    assert captured.err == "job 0: error: no\n"


def test_the_table_of_a_tuning_says_at_which_trial_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    sweep, paper = Sweep(tmp_path, []), Paper()
    job = sweep.add(0, ["+a=1"], tmp_path / "0")
    view = make_sweep_view(cast(Output, paper), sweep, "title", "screen")
    view.show([(job, JobProgress("waiting", None))], 60.0, "trial 1 of 4")
    assert "trial 1 of 4   1 job: 1 waiting" in "\n".join(paper.shown())
    view.close()
    assert paper.shown() == []


def test_a_narrow_terminal_shows_the_settings_of_the_jobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "80")
    sweep = Sweep(tmp_path, [])
    for n in range(2):
        sweep.add(n, [f"agent.lr=0.00{n}", f"seed={n}"], tmp_path / f"{n}_dqn_cartpole")
    rows = [
        (job, JobProgress("training", 5.0, 0.5, 600.0, last=123.4, best=123.4, opt_steps_per_sec=1000.0))
        for job in sweep.jobs
    ]
    paper = Paper()
    view = make_sweep_view(cast(Output, paper), sweep, "title", "screen")
    view.show(rows, 60.0, "")
    live = "\n".join(paper.shown())
    print_sweep_tables(Console(), sweep, [])
    end = capsys.readouterr().out
    assert "agent.lr=0.001 seed=1" in live and "agent.lr=0.001 seed=1" in end
    assert max(map(len, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", f"{live}\n{end}").splitlines())) <= 80


def read(pipe: Connection) -> Any:
    """The message that is on a pipe, in one piece."""
    return reduction.ForkingPickler.loads(pipe.recv_bytes()[1:])


def test_the_cause_of_a_failed_job_is_its_message_not_a_line_of_the_traceback() -> None:
    sweep, job = multiprocessing.Pipe()
    text = (
        'Traceback:\n    raise ValueError("error: in the code")\njob 0 (a=1): error: the cause\nthis is a bug'
    )
    JobView(Reporter(job)).fail(text)
    assert read(sweep).cause == "the cause"


def test_a_job_tells_the_sweep_its_progress() -> None:
    """20 of 100 opt steps, ten in a second."""
    sweep, job = multiprocessing.Pipe()
    view = JobView(Reporter(job))
    view.show(Progress("training", opt_steps=20, max_opts=100, opt_steps_per_sec=10.0))
    progress = read(sweep)
    assert (progress.fraction, progress.eta_s) == (0.2, 8.0)
