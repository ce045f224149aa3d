"""`resume=RUN` and `resume=auto`: what continues, what is refused, and the messages."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from border_cli import compose
from border_cli.checkpoints.contents import read_run_state
from border_cli.cli.overrides import parse_overrides
from border_cli.cli.train import main, stored_config
from border_cli.config.convert import known_keys, to_plain
from border_cli.config.resolve import Change, changes, is_reproducible, safe
from border_cli.config.schema import ActorManagerConfig
from border_cli.core.errors import ExitCode, Interrupted, UsageError
from border_cli.core.types import Evaluation
from border_cli.run.directory import locked, read_config, write_config
from tests.faults.amounts import sampled
from tests.interrupted import assert_same_bits, resume, run_interrupted, run_killed, run_whole, signal_at
from tests.real_runs import Run, tiny, train
from tests.trained import read_checkpoint, save_best

ARGS = (
    "n_actors=2",
    "evaluator=inline",  # so that scores are known at fixed opt steps
    "trainer.max_opts=120",
    "trainer.eval_interval=50",
    "trainer.save_interval=40",
    "trainer.record_interval=20",
    "recorder.tensorboard=true",
)
SYNC = ("trainer=sync", "trainer.max_opts=40")


@pytest.fixture(scope="module")
def done(folder: Path) -> Run:
    """A finished run."""
    return run_whole(folder / "done", *ARGS)


@pytest.fixture(scope="module")
def stopped(folder: Path) -> Run:
    """A run that was stopped at opt step 65. Tests must not change it."""
    with signal_at(65):
        assert main([*tiny(*ARGS), f"hydra.run.dir={folder / 'stopped'}"]) == 143
    return Run(folder / "stopped")


@pytest.fixture
def copy(stopped: Run, tmp_path: Path) -> Run:
    """A copy of the stopped run, which a test may change."""
    return Run(Path(shutil.copytree(stopped.path, tmp_path / "copy")))


def tensorboard_points(run: Run) -> list[tuple[str, int]]:
    """(tag, env steps) of every scalar that TensorBoard shows, except the count of opt steps."""
    events = EventAccumulator(str(run.path / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return sorted(
        (tag, point.step)
        for tag in events.Tags()["scalars"]
        for point in events.Scalars(tag)
        if tag != "opt_steps"
    )


def jsonl_points(run: Run, count: str) -> list[tuple[str, int]]:
    return sorted((name, record[count]) for record in run.records for name in record if "/" in name)


def assert_shown_by_tensorboard(run: Run) -> None:
    """All records of metrics.jsonl, and else only what a former launch recorded at the env step of its last checkpoint."""
    shown, expected = Counter(tensorboard_points(run)), Counter(jsonl_points(run, "env_steps"))
    assert expected - shown == Counter()
    assert len({step for _, step in shown - expected}) <= 1


# -- resumed ------------------------------------------------------------


def test_h2_after_a_crash_every_step_of_every_curve_is_recorded_once(folder: Path) -> None:
    run = run_killed(folder / "killed", *ARGS, at=75)
    assert main([f"resume={run.path}"]) == 0
    again = Run(run.path)
    points = jsonl_points(again, "opt_steps")
    assert [point for point, n in Counter(points).items() if n > 1] == []
    assert [step for name, step in points if name == "agent/loss"] == [20, 40, 60, 80, 100, 120]
    assert_shown_by_tensorboard(again)
    times = [record["time"] for record in again.records]
    assert times == sorted(times)


def test_a_free_running_run_resumes_with_its_replay_ratio_and_scores(copy: Run) -> None:
    state = read_run_state(copy.path / "checkpoints" / "step-000000065", with_replay=True)
    assert state.replay is not None and state.replay.values["rows"] > 65
    resume(copy.path)
    again = Run(copy.path)
    assert again.counts[0] == 120
    assert again.checkpoints[-1] == "step-000000120"
    launches = again.json("provenance.json")["launches"]
    assert [launch["command"].split()[-1][:7] for launch in launches][1] == "resume="
    actors = again.summary["actors"]
    assert [actor["incarnation"] for actor in actors] == [1, 1]  # new incarnations, which have new seeds
    assert sum(actor["env_steps"] for actor in actors) == again.counts[1]
    assert again.summary["exact"] is None
    assert again.steps("eval/return_mean") == [50, 100, 120]
    totals = dict(again.series("throughput/samples_total"))
    assert totals[120] >= 50 + 120
    for step, ratio in again.series("throughput/samples_per_opt_step"):
        if step > 60:  # the tolerance is 128 env steps
            assert 1 <= ratio <= 1 + (1 + 128) / step


def test_a_resume_prints_the_changes_of_its_configuration(
    copy: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [f"resume={copy.path}", "trainer.max_opts=90", "n_actors=3", "recorder.console=plain"]
    assert main(args) == 0
    out = capsys.readouterr().out
    assert "resumed  step-000000065: 65 opt steps" in out
    assert "trainer.max_opts: 120 → 90" in out
    again = Run(copy.path)
    assert (again.config.trainer.max_opts, again.config.n_actors, again.counts[0]) == (90, 3, 90)
    assert len(again.summary["actors"]) == 3


def test_b4_without_its_replay_a_run_warms_up_first(copy: Run) -> None:
    """It collects as many env steps as a new run's warm-up. After that the replay ratio still holds."""
    before = read_run_state(copy.path / "checkpoints" / "step-000000065", with_replay=False)
    env_steps = before.loop["limiter"]["env_steps"]
    assert main([f"resume={copy.path}", "checkpoint.replay=none", "trainer.record_interval=1"]) == 0
    again = Run(copy.path)
    totals = {step: total for step, total in again.series("throughput/samples_total") if step > 65}
    assert totals[66] >= env_steps + 50
    assert all(total >= env_steps + 50 + step - 65 for step, total in totals.items())
    assert not any(
        "replay" in path.name for path in (again.path / "checkpoints" / "step-000000120").iterdir()
    )


def test_a_run_killed_before_its_first_checkpoint_begins_again_in_its_directory(copy: Run) -> None:
    shutil.rmtree(copy.path / "checkpoints")
    summary = copy.path / "summary.json"
    summary.write_text(json.dumps(copy.summary | {"status": "running", "saved": None}))
    assert (copy.path / "best").exists()
    assert main([f"resume={copy.path}", "trainer.eval_interval=null"]) == 0
    assert Run(copy.path).steps("agent/loss") == [20, 40, 60, 80, 100, 120]
    assert not (copy.path / "best").exists()  # the model of a launch whose opt steps are lost


def test_b1_a_budget_is_not_exceeded_when_the_number_of_actors_changes(folder: Path) -> None:
    """Env steps of removed actors stay counted; an actor that is added again continues its count."""
    args = (
        "n_actors=3",
        "trainer.max_env_steps=300",
        "trainer.ratio_tolerance=16",
        "trainer.eval_interval=null",
    )
    run = run_whole(folder / "fewer", *args)
    first = [actor["env_steps"] for actor in run.summary["actors"]]
    assert sum(first) == run.counts[1] == 300
    assert main([f"resume={run.path}", "n_actors=1", "trainer.max_env_steps=340"]) == 0
    (left,) = run.summary["actors"]
    assert (left["env_steps"] - first[0], run.counts[1]) == (40, 340)
    replay = read_run_state(run.path / "checkpoints" / run.checkpoints[-1], with_replay=True).replay
    assert replay is not None
    assert set(replay.arrays["streams"][:, 0].tolist()) <= {0}  # no pending rows of removed actors
    assert main([f"resume={run.path}", "n_actors=2", "trainer.max_env_steps=400"]) == 0
    again = run.summary["actors"]
    assert sum(actor["env_steps"] for actor in again) + first[2] == run.counts[1] == 400
    assert [actor["incarnation"] for actor in again] == [2, 1]


@pytest.mark.parametrize("trainer", sampled(["async", "sync"], 2))
def test_b4_a_budget_that_ends_before_there_is_a_batch_again_ends_the_run(folder: Path, trainer: str) -> None:
    args = (
        f"trainer={trainer}",
        "agent.batch_size=32",
        "trainer.warmup_period=10",
        "trainer.max_env_steps=100",
    )
    with signal_at(60):
        assert main([*tiny(*args, "trainer.ratio_tolerance=24"), f"hydra.run.dir={folder / trainer}"]) == 143
    run = Run(folder / trainer)
    opt_steps, env_steps = run.counts
    assert 70 <= env_steps < 100
    # If the learner waited for a batch, max_time would end the run.
    assert main([f"resume={run.path}", "checkpoint.replay=none", "trainer.max_time=30"]) == 0
    assert run.counts == (opt_steps, 100)
    assert run.summary["ended_by"] == "max_env_steps"


# -- the same command again ---------------------------------------------


def test_the_same_command_resumes_its_run_and_a_different_one_starts_a_new_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_forkserver: None
) -> None:
    monkeypatch.chdir(tmp_path)
    args = [*tiny(*SYNC, "trainer.eval_interval=20"), "resume=auto"]
    with signal_at(25):
        assert main(args) == 143
    first = Path("runs/latest").resolve()
    assert main([*args, "trainer.eval_interval=30"]) == 0  # a safe change continues the same run
    assert Run(first).counts[0] == 40
    log = (first / "train.log").read_text()
    assert (
        "trainer.eval_interval: 20 → 30" in log and "action_mask: " not in log
    )  # "auto", which the run resolved, is no change
    with signal_at(10):
        assert main([*args, "agent.lr=0.01"]) == 143  # an unsafe change starts a new run
    assert len(list(Path("runs").glob("[0-9]*/*/config.yaml"))) == 2


def test_auto_does_not_start_beside_a_run_that_is_alive(
    copy: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(copy.path, "runs/2026-01-01/00-00-00.000_dqn_cartpole")
    with locked(Path("runs/2026-01-01/00-00-00.000_dqn_cartpole")):
        assert main([*tiny(*ARGS), "resume=auto"]) == 2
    assert "is being trained by another process" in capsys.readouterr().err


def test_auto_with_a_run_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    message = refused(capsys, *tiny(*ARGS), "resume=auto", "hydra.run.dir=mine")
    assert "hydra.run.dir has no effect" in message and "resume=mine" in message
    assert list(tmp_path.iterdir()) == []


# -- refused ------------------------------------------------------------


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(list(args)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert 1 <= len(lines) <= 3
    return "\n".join(lines)


def all_but_lock(run: Run) -> dict[str, bytes]:
    return {name: data for name, data in run.files("").items() if name != ".lock"}


def all_but_log_and_lock(run: Run) -> dict[str, bytes]:
    return {name: data for name, data in all_but_lock(run).items() if name != "train.log"}


def test_c8_a_run_that_is_alive_is_not_touched(copy: Run, capsys: pytest.CaptureFixture[str]) -> None:
    before = all_but_lock(copy)
    with locked(copy.path):
        assert "is being trained by another process (pid " in refused(capsys, f"resume={copy.path}")
    assert all_but_lock(copy) == before


def test_a_run_ended_by_stop_return_needs_another_stop_return(
    copy: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"resume={copy.path}", "trainer.stop_return=-100", "trainer.eval_interval=10"]) == 0
    assert copy.summary["ended_by"] == "stop_return"
    more = [f"resume={copy.path}", "trainer.max_opts=130"]
    assert "has reached trainer.stop_return=-100\nallowed: trainer.stop_return=null" in refused(capsys, *more)
    capsys.readouterr()
    assert main([*more, "trainer.stop_return=null"]) == 0
    assert Run(copy.path).counts[0] == 130


def test_a_run_that_is_done_needs_a_larger_budget(done: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert "trainer.max_opts=240" in refused(capsys, f"resume={done.path}")
    assert "has done 120 opt steps" in refused(capsys, f"resume={done.path}", "trainer.max_opts=120")
    assert "has done 120 opt steps" in refused(capsys, f"resume={done.path}", "trainer.max_opts=100")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["agent=dqn"], "agent=dqn chooses a group"),
        (["agent.lr=0.5"], "cannot change within a run: agent.lr: 0.001 → 0.5"),
        (
            ["agent.lr=0.5"],
            "allowed: a new run that starts from its weights, with init_from=<run>, agent.compile",
        ),
        (["trainer.max_opt=9"], "nearest: trainer.max_opts"),
        (["hydra.run.dir=x"], "is not possible with it"),
        (["~agent.lr"], "is not possible with it"),
        (["trainer.max_opts=1,2"], "has several values"),
        (["trainer.max_opts=-1"], "trainer.max_opts"),
        (["-m"], "resume continues one run, and -m starts several"),
        (["--cfg", "job"], "--cfg is about composing"),
        (["--config-dir", "."], "--config-dir is about composing"),
    ],
)
def test_overrides_that_are_refused_with_resume(
    stopped: Run, capsys: pytest.CaptureFixture[str], args: list[str], message: str
) -> None:
    before = all_but_lock(stopped)
    assert message in refused(capsys, f"resume={stopped.path}", *args)
    assert all_but_lock(stopped) == before


@pytest.mark.parametrize(("path", "message"), [("nowhere", "is not there"), (".", "is not a run")])
def test_a_path_that_is_not_a_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], path: str, message: str
) -> None:
    assert message in refused(capsys, f"resume={tmp_path / path}")


def test_resuming_a_sweep_names_its_newest_unfinished_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, status in enumerate(["done", "stopped", "done"]):
        run_dir = tmp_path / "sweep" / f"{number}_dqn_cartpole"
        run_dir.mkdir(parents=True)
        (run_dir / "config.yaml").write_text("agent: {type: dqn}\n", encoding="utf-8")
        (run_dir / "summary.json").write_text(f'{{"status": "{status}"}}', encoding="utf-8")
    message = refused(capsys, f"resume={tmp_path / 'sweep'}")
    assert "is a folder with 3 runs in it" in message
    assert f"allowed: a run, such as {tmp_path}/sweep/1_dqn_cartpole" in message


SAFE = {
    "env": {"nonfinite", "action_mask"},
    "agent": {"compile", "lr_opt_steps"},
    "buffer": {"beta_opt_steps", "device"},
    "trainer": {"max_opts", "max_env_steps", "max_time", "stop_return"}
    | {"eval_interval", "save_interval", "record_interval"},
    "actor_manager": {"start_timeout_s", "heartbeat_timeout_s", "stop_timeout_s"},
    "evaluator": None,
    "recorder": None,
    "checkpoint": None,
    "": {"device", "debug"},
}
SAFE_FREE_RUNNING = {
    "actor_manager": None,
    "trainer": SAFE["trainer"] | {"ratio_tolerance"},
    "": {"device", "debug", "n_actors", "threads"},
}


@pytest.mark.parametrize("lockstep", [False, True])
def test_c10_exactly_these_keys_may_change(done: Run, lockstep: bool) -> None:
    config = done.config
    config.trainer.lockstep = lockstep
    assert is_reproducible(config) is lockstep
    allowed = SAFE if lockstep else SAFE | SAFE_FREE_RUNNING
    for key in known_keys(to_plain(config)):
        group, _, name = key.rpartition(".")
        names = allowed.get(group, set())
        assert safe(config, Change(key, 1, 2)) == (names is None or name in names), key


def test_c10_an_environment_with_other_spaces_is_refused(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = workplace / "width"
    file.write_text("4")
    args = ("trainer=sync", "trainer.max_opts=10", "trainer.eval_interval=null")
    env = ("env=gym", "env.entry_point=tests.faults.cut_to_size:make", f"env.kwargs.file={file}")
    run = run_whole(workplace / "run", *args, *env)
    before = all_but_log_and_lock(run)
    file.write_text("3")
    assert refused(capsys, f"resume={run.path}", "trust=true", "trainer.max_opts=20").splitlines() == [
        "error: resume: the spaces of the environment are not those of step-000000010: "
        "observation obs has shape (4,), here (3,)",
        "allowed: the environment as it was, or a new run",
    ]
    assert all_but_log_and_lock(run) == before
    file.write_text("4")
    assert main([f"resume={run.path}", "trust=true", "trainer.max_opts=20"]) == 0


def test_g4_the_log_of_a_free_running_run_says_that_it_is_not_reproducible(done: Run) -> None:
    assert "not reproducible" in (done.path / "train.log").read_text()


def test_a_sealed_block_of_the_replay_is_written_once(folder: Path) -> None:
    """Later checkpoints of the same and of the next launch link to the same file."""
    args = ("trainer=sync", "trainer.max_opts=60", "trainer.save_interval=10", "checkpoint.keep=99")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("border_cli.replay.buffer.rows_per_block", lambda capacity, row_bytes: 16)
        run = run_interrupted(folder / "sealed", *args, at=35)
    first = "replay.rows-000000000.safetensors"
    names = [path / first for path in sorted((run.path / "checkpoints").iterdir())]
    assert len(names) == 7
    assert len({name.stat().st_ino for name in names}) == 1
    last = sorted(path.name for path in names[-1].parent.glob("replay.rows-*"))
    assert len(last) >= 7  # blocks of 16 rows, for 110 transitions and their final observations
    newest = names[-1].parent / last[-1]
    assert newest.stat().st_nlink == 1


def test_a_replay_that_has_overwritten_its_oldest_rows_is_resumed(folder: Path) -> None:
    """The oldest block was complete at the previous save and is partly overwritten now, so its file is written again."""
    args = ("trainer=sync", "trainer.max_opts=160", "trainer.save_interval=20", "buffer.capacity=100")
    args += ("trainer.eval_interval=null", "checkpoint.keep=99")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("border_cli.replay.buffer.rows_per_block", lambda capacity, row_bytes: 16)
        whole = run_whole(folder / "wrapped", *args)
        resumed = run_interrupted(folder / "wrapped, resumed", *args, at=111)
        assert_same_bits(resumed, whole)
        for path in sorted((whole.path / "checkpoints").iterdir()):
            rows = read_run_state(path, True).replay
            assert rows is not None
            kept = sum(len(block.arrays()["action"]) for block in rows.blocks)
            assert kept == min(rows.values["rows"], 100)


def test_a_stop_before_the_saved_state_is_loaded_keeps_the_results(
    copy: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = all_but_log_and_lock(copy)

    def interrupted(*_: object) -> None:
        raise Interrupted(ExitCode.SIGINT)

    monkeypatch.setattr("border_cli.run.build.make_loop", interrupted)
    assert main([f"resume={copy.path}"]) == 130
    assert all_but_log_and_lock(copy) == before


def test_a_configuration_that_cannot_be_read_is_named(copy: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("border_cli.run.directory.load", refuse)
    with pytest.raises(UsageError, match=r"config\.yaml cannot be read: Permission denied"):
        read_config(copy.path)


def test_a_recorder_that_was_off_for_one_launch_appends_to_its_records(folder: Path) -> None:
    """Its records up to the checkpoint stay. It has no records of the launch in which it was off."""
    path, intervals = folder / "off and on", ("trainer.record_interval=10", "trainer.max_opts=60")
    args = tiny(*SYNC, *intervals, "recorder.tensorboard=true")
    with signal_at(33):
        assert main([*args, f"hydra.run.dir={path}"]) == 143
    run = Run(path)
    lines, points = len(run.records), tensorboard_points(run)
    off, on = (
        [f"recorder.{name}={value}" for name in ("jsonl", "tensorboard")] for value in ("false", "true")
    )
    with signal_at(48):
        assert main([f"resume={path}", *off]) == 143
    run = Run(path)
    assert (len(run.records), tensorboard_points(run)) == (lines, points)
    assert main([f"resume={path}", *on]) == 0
    run = Run(path)
    points = jsonl_points(run, "opt_steps")
    assert {step for _, step in points} >= {10, 20, 30, 50, 60}
    assert 40 not in {step for _, step in points}
    assert [point for point, n in Counter(points).items() if n > 1] == []
    assert_shown_by_tensorboard(run)


def test_a_run_with_init_from_resumes_without_the_source_run(done: Run, folder: Path) -> None:
    source = Path(shutil.copytree(done.path, folder / "source"))
    args = [*tiny(*SYNC), f"init_from={source}", f"hydra.run.dir='{folder / 'with weights'}'"]
    with signal_at(15):
        assert main(args) == 143
    shutil.rmtree(source)
    assert main([f"resume={folder / 'with weights'}"]) == 0


def test_a_reproducible_run_continues_from_the_best_of_its_checkpoint(folder: Path) -> None:
    """No evaluation is due at opt step 30, so a run with the larger budget from the start has no score of it."""
    args = ("trainer=sync", "trainer.eval_interval=16", "trainer.save_interval=30")
    whole = run_whole(folder / "whole", *args, "trainer.max_opts=50")
    run = run_whole(folder / "longer", *args, "trainer.max_opts=30")
    best = read_checkpoint(run.path / "best").model
    save_best(run.path, best.info.arrays, best.description, Evaluation(30, (500.0, 500.0), (500, 500)))
    assert main([f"resume={run.path}", "trainer.max_opts=50"]) == 0
    assert Run(run.path).summary["exact"] is True
    assert Run(run.path).files("best") == whole.files("best")


def test_a_warm_up_that_uses_the_rest_of_the_budget_is_logged(folder: Path) -> None:
    args = (
        "trainer=sync",
        "trainer.max_env_steps=80",
        "checkpoint.replay=none",
        "trainer.eval_interval=null",
    )
    run = run_whole(folder / "no rest", *args)
    resume(run.path, "trainer.max_env_steps=120")
    assert "nothing more is learned" in (run.path / "train.log").read_text().replace("\n         ", " ")
    resume(run.path, "trainer.max_env_steps=200")
    assert (run.path / "train.log").read_text().count("nothing more") == 1


def test_a_run_on_a_cluster_may_be_resumed_with_processes(tmp_path: Path) -> None:
    """The keys of Ray's actors go; one that is typed is still refused."""
    config = compose("agent=dqn", "env=cartpole", "actor_manager=ray", "n_actors=2")
    write_config(tmp_path, config)
    stored, changed = stored_config(tmp_path, parse_overrides(["actor_manager.type=process"]), False)
    assert (stored.actor_manager.type, type(changed.actor_manager)) == ("ray", ActorManagerConfig)
    assert all(safe(stored, one) for one in changes(stored, changed))
    words = ["actor_manager.type=process", "actor_manager.address=auto"]
    with pytest.raises(UsageError, match=r"actor_manager\.address"):
        stored_config(tmp_path, parse_overrides(words), False)


def test_a_typed_budget_leaves_another_one_that_was_chosen_too(workplace: Path) -> None:
    words = ("trainer=sync", "trainer.eval_interval=null")
    both = train(*words, "trainer.max_opts=10", "trainer.max_env_steps=200")
    assert main([f"resume={both.path}", "trainer.max_opts=20"]) == 0
    assert (both.config.trainer.max_opts, both.config.trainer.max_env_steps) == (20, 200)
    alone = train(*words, "trainer.max_env_steps=100")
    assert main([f"resume={alone.path}", "trainer.max_opts=80"]) == 0
    assert (alone.config.trainer.max_opts, alone.config.trainer.max_env_steps) == (80, None)


def test_budgets_below_what_a_run_has_done_are_refused_and_all_used_ones_are_named(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(
        "trainer=sync", "trainer.eval_interval=null", "trainer.max_opts=10", "trainer.max_env_steps=60"
    )
    assert run.summary["counters"] == {"opt_steps": 10, "env_steps": 60, **run.summary["counters"]}
    capsys.readouterr()
    assert main([f"resume={run.path}", "trainer.max_opts=5"]) == 2
    assert "has done 10 opt steps and 60 env steps already\nallowed: a larger" in capsys.readouterr().err
    assert main([f"resume={run.path}", "trainer.max_env_steps=59"]) == 2
    assert "has done 10 opt steps and 60 env steps already\nallowed: a larger" in capsys.readouterr().err
    assert main([f"resume={run.path}"]) == 2
    assert "such as trainer.max_opts=20 trainer.max_env_steps=120" in capsys.readouterr().err
    assert main([f"resume={run.path}", "trainer.max_opts=20", "trainer.max_env_steps=120"]) == 0
