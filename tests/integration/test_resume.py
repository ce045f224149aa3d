"""`resume=RUN` and `resume=auto`: what continues, what is refused, and the messages."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from border_cli import compose
from border_cli.checkpoints.contents import read_model, read_run_state
from border_cli.cli.overrides import parse_overrides
from border_cli.cli.start import stored_config
from border_cli.cli.train import main
from border_cli.config.convert import known_keys, to_plain
from border_cli.config.resolve import Change, changes, check_changes, is_reproducible
from border_cli.config.schema import ActorManagerConfig
from border_cli.core.errors import ExitCode, Interrupted, UsageError
from border_cli.core.spaces import ActionSpec
from border_cli.core.types import Evaluation
from border_cli.replay.streams import ENV_BITS
from border_cli.run.directory import locked, write_config
from border_cli.run.resume import check_spec, describe
from border_cli.run.summary import Resumed
from border_cli.training.evaluators import EpisodeRunner
from tests.interrupted import assert_same_bits, resume, run_killed, run_whole, signal_at
from tests.real_runs import Run, tiny
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
STEP = "checkpoints/step-000000065"


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


def jsonl_points(run: Run, count: str) -> list[tuple[str, int]]:
    return sorted((name, record[count]) for record in run.records for name in record if "/" in name)


# -- resumed ------------------------------------------------------------


def test_h2_after_a_crash_every_step_of_every_curve_is_recorded_once(folder: Path) -> None:
    run = run_killed(folder / "killed", *ARGS, at=75)
    assert main([f"resume={run.path}"]) == 0
    again = Run(run.path)
    points = jsonl_points(again, "opt_steps")
    assert [point for point, n in Counter(points).items() if n > 1] == []
    assert [step for name, step in points if name == "agent/loss"] == [20, 40, 60, 80, 100, 120]
    times = [record["time"] for record in again.records]
    assert times == sorted(times)
    # TensorBoard shows the same, and else only what the launch before recorded at the env step of its last checkpoint
    events = EventAccumulator(str(run.path / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    tags = set(events.Tags()["scalars"]) - {"opt_steps"}
    shown = Counter((tag, point.step) for tag in tags for point in events.Scalars(tag))
    expected = Counter(jsonl_points(again, "env_steps"))
    assert expected - shown == Counter()
    assert len({step for _, step in shown - expected}) <= 1


def test_a_free_running_run_resumes_with_its_replay_ratio_and_scores(
    copy: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    state = read_run_state(copy.path / STEP, with_replay=True)
    assert state.replay is not None and state.replay.values["rows"] > 65
    assert main([f"resume={copy.path}", "trainer.max_opts=130", "recorder.console=plain"]) == 0
    out = capsys.readouterr().out
    assert "resumed  step-000000065: 65 opt steps" in out and "trainer.max_opts: 120 → 130" in out
    again = Run(copy.path)
    assert again.counts[0] == again.config.trainer.max_opts == 130
    assert again.checkpoints[-1] == "step-000000130"
    launches = again.json("provenance.json")["launches"]
    assert [launch["command"].split()[1][:7] for launch in launches][1] == "resume="
    actors = again.summary["actors"]
    assert [actor["incarnation"] for actor in actors] == [1, 1]  # new incarnations, which have new seeds
    assert sum(actor["env_steps"] for actor in actors) == again.counts[1]
    assert again.summary["exact"] is None
    assert again.steps("eval/return_mean") == [50, 100, 130]
    totals = dict(again.series("throughput/samples_total"))
    assert totals[120] >= 50 + 120
    for step, ratio in again.series("throughput/samples_per_opt_step"):
        if step > 60:  # the tolerance is 128 env steps
            assert 1 <= ratio <= 1 + (1 + 128) / step


def test_b4_without_its_replay_a_run_warms_up_first(copy: Run) -> None:
    """It collects as many env steps as a new run's warm-up. After that the replay ratio still holds."""
    before = read_run_state(copy.path / STEP, with_replay=False)
    env_steps = before.loop["limiter"]["env_steps"]
    assert main([f"resume={copy.path}", "checkpoint.replay=none", "trainer.record_interval=1"]) == 0
    again = Run(copy.path)
    totals = {step: total for step, total in again.series("throughput/samples_total") if step > 65}
    assert totals[66] >= env_steps + 50
    assert all(total >= env_steps + 50 + step - 65 for step, total in totals.items())
    assert not any("replay" in file.name for file in (again.path / "checkpoints/step-000000120").iterdir())


@pytest.mark.parametrize(("max_env_steps", "is_told"), [(200, True), (201, False), (None, False)])
def test_b4_a_warm_up_that_takes_the_rest_of_the_budget_is_announced(
    stopped: Run, max_env_steps: int | None, is_told: bool
) -> None:
    state = read_run_state(stopped.path / STEP, with_replay=False)
    trainer = replace(stopped.config.trainer, warmup_period=50, max_env_steps=max_env_steps)
    text = describe(replace(stopped.config, trainer=trainer), Resumed(Path(STEP), state, 65, env_steps=150))
    assert ("all that is left of max_env_steps: nothing more is learned" in text) == is_told


def test_b4_a_budget_that_ends_before_there_is_a_batch_again_ends_the_run(folder: Path) -> None:
    args = ("agent.batch_size=32", "trainer.warmup_period=10", "trainer.max_env_steps=100")
    run = Run(folder / "short")
    with signal_at(60):
        assert main([*tiny(*args, "trainer.ratio_tolerance=24"), f"hydra.run.dir={run.path}"]) == 143
    opt_steps, env_steps = run.counts
    assert 70 <= env_steps < 100
    # If the learner waited for a batch, max_time would end the run.
    assert main([f"resume={run.path}", "checkpoint.replay=none", "trainer.max_time=30"]) == 0
    assert run.counts == (opt_steps, 100)
    assert run.summary["ended_by"] == "max_env_steps"


def test_b1_g4_a_run_continues_with_fewer_actors_and_then_with_more(copy: Run) -> None:
    """The episodes of a removed actor end in the replay. test_limiter.py shows that no budget is exceeded."""
    assert main([f"resume={copy.path}", "n_actors=1", "trainer.max_opts=70"]) == 0
    assert len(copy.summary["actors"]) == 1
    replay = read_run_state(copy.path / "checkpoints/step-000000070", with_replay=True).replay
    assert replay is not None
    blocks = [block.arrays() for block in replay.blocks]
    final, stream = (np.concatenate([rows[name] for rows in blocks]) for name in ("final", "stream"))
    assert final[stream == 1 << ENV_BITS][-1]
    # An actor that comes back later counts on, and has seeds of its own.
    assert main([f"resume={copy.path}", "n_actors=2", "trainer.max_opts=90"]) == 0
    assert sum(actor["env_steps"] for actor in copy.summary["actors"]) == copy.counts[1]
    assert [actor["incarnation"] for actor in copy.summary["actors"]] == [2, 1]


def test_a_run_killed_before_its_first_checkpoint_begins_again_in_its_directory(copy: Run) -> None:
    shutil.rmtree(copy.path / "checkpoints")
    summary = copy.path / "summary.json"
    summary.write_text(json.dumps(copy.summary | {"status": "running", "saved": None}))
    assert (copy.path / "best").exists()
    assert main([f"resume={copy.path}", "trainer.eval_interval=null"]) == 0
    assert Run(copy.path).steps("agent/loss") == [20, 40, 60, 80, 100, 120]
    assert not (copy.path / "best").exists()  # the model of a launch whose opt steps are lost


def test_a_reproducible_run_continues_from_the_replay_and_the_best_of_its_checkpoint(folder: Path) -> None:
    """A later best/ does not count. Full blocks of the replay are linked, until their rows are overwritten."""
    args = ("trainer=sync", "trainer.max_opts=120", "trainer.save_interval=20", "buffer.capacity=100")
    args += ("trainer.eval_interval=30", "checkpoint.keep=99")
    run = Run(folder / "wrapped, resumed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("border_cli.replay.buffer.rows_per_block", lambda capacity, row_bytes: 16)
        whole = run_whole(folder / "wrapped", *args)
        with signal_at(31):
            assert main([*tiny(*args), f"hydra.run.dir='{run.path}'"]) == 143
        best = read_checkpoint(run.path / "best").model
        save_best(run.path, best.info.arrays, best.description, Evaluation(31, (500.0, 500.0), (500, 500)))
        resume(run.path)
    assert_same_bits(run, whole)
    blocks = {
        int(path.name[5:]): {block.name: block.stat().st_ino for block in path.glob("replay.rows-*")}
        for path in (run.path / "checkpoints").iterdir()
    }
    first = "replay.rows-000000000-000000000.safetensors"  # the first 16 rows
    assert len({blocks[step][first] for step in (20, 31, 40)}) == 1
    assert first not in blocks[60]
    for path in sorted((whole.path / "checkpoints").iterdir()):
        rows = read_run_state(path, True).replay
        assert rows is not None
        slots = sum(len(block.arrays()["action"]) for block in rows.blocks)
        assert slots == min(rows.values["rows"], 100)


def test_a_recorder_that_was_off_for_one_launch_appends_to_its_records(folder: Path) -> None:
    """Its records up to the checkpoint stay. It has no records of the launch in which it was off."""
    path = folder / "off and on"
    args = tiny(*SYNC, "trainer.record_interval=10", "trainer.max_opts=60", "trainer.eval_interval=null")
    with signal_at(23):
        assert main([*args, f"hydra.run.dir={path}"]) == 143
    with signal_at(38):
        assert main([f"resume={path}", "recorder.jsonl=false"]) == 143
    assert main([f"resume={path}", "recorder.jsonl=true"]) == 0
    assert Run(path).steps("agent/loss") == [10, 20, 40, 50, 60]


def test_a_run_with_init_from_resumes_without_the_source_run(done: Run, folder: Path) -> None:
    source = Path(shutil.copytree(done.path, folder / "source"))
    args = [*tiny(*SYNC), f"init_from={source}", f"hydra.run.dir='{folder / 'with weights'}'"]
    with signal_at(15):
        assert main(args) == 143
    shutil.rmtree(source)
    assert main([f"resume={folder / 'with weights'}"]) == 0


def test_a_run_stopped_in_its_last_evaluation_is_evaluated_when_it_is_resumed(folder: Path) -> None:
    """By then it has taken longer than trainer.max_time, which is no count."""
    run = Run(folder / "last evaluation")
    args = tiny(*SYNC, "trainer.max_opts=null", "trainer.max_time=1", "trainer.eval_interval=100000")

    def stop(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EpisodeRunner, "evaluate", stop)
        assert main([*args, f"hydra.run.dir='{run.path}'"]) == 143
    assert (run.summary["status"], run.summary["ended_by"]) == ("stopped", "sigterm")
    assert run.summary["last_score"] is None and run.summary["saved"]["seconds"] > 1
    assert main([f"resume={run.path}"]) == 0
    assert (run.summary["status"], run.summary["ended_by"]) == ("done", "max_time")
    assert len(run.steps("eval/return_mean")) == 1


# -- resume=auto --------------------------------------------------------


def test_the_same_command_resumes_its_run_and_a_different_one_starts_a_new_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_forkserver: None
) -> None:
    monkeypatch.chdir(tmp_path)
    args = [*tiny(*SYNC, "trainer.eval_interval=20"), "resume=auto"]
    with signal_at(25):
        assert main(args) == 143
    first = Path("runs/latest").resolve()
    with locked(first):
        assert main(args) == 2  # it is alive
    assert main([*args, "trainer.eval_interval=30"]) == 0  # a safe change continues the same run
    assert Run(first).counts[0] == 40
    log = (first / "train.log").read_text()
    assert "trainer.eval_interval: 20 → 30" in log
    assert "action_mask: " not in log  # "auto", which the run resolved, is no change
    with signal_at(10):
        assert main([*args, "agent.lr=0.01"]) == 143  # an unsafe change starts a new run
    assert len(list(Path("runs").glob("[0-9]*/*/config.yaml"))) == 2


# -- refused ------------------------------------------------------------


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(list(args)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert 1 <= len(lines) <= 3
    return "\n".join(lines)


def files(run: Run) -> dict[str, bytes]:
    """The files that neither a refused nor a stopped resume may change."""
    return {name: data for name, data in run.files("").items() if name not in (".lock", "train.log")}


def test_c8_a_run_that_is_alive_is_not_touched(copy: Run, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(copy)
    with locked(copy.path):
        assert "is being trained by another process (pid " in refused(capsys, f"resume={copy.path}")
    assert files(copy) == before


def test_a_stop_before_the_saved_state_is_loaded_keeps_the_results(
    copy: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise Interrupted(ExitCode.SIGINT)

    before = files(copy)
    monkeypatch.setattr("border_cli.run.build.make_loop", interrupted)
    assert main([f"resume={copy.path}"]) == 130
    assert files(copy) == before


def test_a_run_ended_by_stop_return_needs_another_stop_return(
    copy: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"resume={copy.path}", "trainer.stop_return=-100", "trainer.eval_interval=10"]) == 0
    assert copy.summary["ended_by"] == "stop_return"
    more = [f"resume={copy.path}", "trainer.max_opts=130"]
    assert "has reached trainer.stop_return=-100\nallowed: trainer.stop_return=null" in refused(capsys, *more)
    assert main([*more, "trainer.stop_return=null"]) == 0
    assert Run(copy.path).counts[0] == 130


@pytest.mark.parametrize("budget", [(), ("trainer.max_opts=100",)])
def test_a_run_that_is_done_needs_a_larger_budget(
    done: Run, capsys: pytest.CaptureFixture[str], budget: tuple[str, ...]
) -> None:
    message = refused(capsys, f"resume={done.path}", *budget)
    assert "has done 120 opt steps and " in message and "such as trainer.max_opts=240" in message


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["agent=dqn"], "agent=dqn chooses a group"),
        (["agent.lr=0.5"], "cannot change within a run: agent.lr: 0.0003 → 0.5"),
        (["trainer.max_opt=9"], "nearest: trainer.max_opts"),
        (["hydra.run.dir=x"], "is not possible with it"),
        (["trainer.max_opts=1,2"], "has several values"),
        (["-m"], "resume continues one run, and -m starts several"),
        (["--cfg", "job"], "--cfg is about composing"),
    ],
)
def test_c10_overrides_that_are_refused_with_resume(
    stopped: Run, capsys: pytest.CaptureFixture[str], args: list[str], message: str
) -> None:
    before = files(stopped)
    assert message in refused(capsys, f"resume={stopped.path}", *args)
    assert files(stopped) == before


def test_what_is_not_a_run_and_auto_with_a_run_directory_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "is not there" in refused(capsys, f"resume={tmp_path / 'nowhere'}")
    assert "is not a run" in refused(capsys, f"resume={tmp_path}")
    message = refused(capsys, *tiny(*ARGS), "resume=auto", "hydra.run.dir=mine")
    assert "hydra.run.dir has no effect" in message and "resume=mine" in message


SAFE = {
    "env": {"action_mask"},
    "agent": {"compile", "lr_opt_steps"},
    "buffer": {"beta_opt_steps", "device"},
    "trainer": {"max_opts", "max_env_steps", "max_time", "stop_return"}
    | {"eval_interval", "save_interval", "record_interval"},
    "actor_manager": {"start_timeout_s", "heartbeat_timeout_s", "stop_timeout_s", "restarts"},
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
        if names is None or name in names:
            check_changes(config, [Change(key, 1, 2)])
        else:
            with pytest.raises(UsageError, match=f"cannot change within a run: {key}"):
                check_changes(config, [Change(key, 1, 2)])


def test_c10_an_environment_with_other_spaces_is_refused(stopped: Run) -> None:
    resumed = Resumed(stopped.path / STEP)
    spec = read_model(stopped.path / STEP).description.spec
    check_spec(resumed, spec)
    with pytest.raises(UsageError, match="the spaces of the environment are not those of step-000000065: "):
        check_spec(resumed, replace(spec, action=ActionSpec("discrete", n=3)))


def test_g4_the_log_of_a_free_running_run_says_that_it_is_not_reproducible(done: Run) -> None:
    assert "not reproducible" in (done.path / "train.log").read_text()


def test_a_run_on_a_cluster_may_be_resumed_with_processes(tmp_path: Path) -> None:
    """The keys of Ray's actors go; one that is typed is still refused."""
    config = compose("agent=dqn", "env=cartpole", "actor_manager=ray", "n_actors=2")
    write_config(tmp_path, config)
    stored, changed = stored_config(tmp_path, parse_overrides(["actor_manager.type=process"]), False)
    assert (stored.actor_manager.type, type(changed.actor_manager)) == ("ray", ActorManagerConfig)
    check_changes(stored, changes(stored, changed))
    words = ["actor_manager.type=process", "actor_manager.address=auto"]
    with pytest.raises(UsageError, match=r"actor_manager\.address"):
        stored_config(tmp_path, parse_overrides(words), False)


@pytest.mark.parametrize(
    ("budgets", "kept"),
    [(["trainer.max_opts=10", "trainer.max_env_steps=200"], 200), (["trainer.max_env_steps=100"], None)],
)
def test_a_typed_budget_leaves_another_one_that_was_chosen_too(
    tmp_path: Path, budgets: list[str], kept: int | None
) -> None:
    write_config(tmp_path, compose(*tiny("agent=dqn", "env=cartpole", *budgets)))
    _, changed = stored_config(tmp_path, parse_overrides(["trainer.max_opts=20"]), False)
    assert (changed.trainer.max_opts, changed.trainer.max_env_steps) == (20, kept)
