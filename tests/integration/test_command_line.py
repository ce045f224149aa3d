"""`border-train` without training: pages, completion, composition, folders, sweeps, exit codes.

A stand-in replaces `border_cli.run.run` and `border_cli.run.preflight` and records its calls.
"""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.core.utils import run_job
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from omegaconf import open_dict

from border_cli.cli.compose import Composer
from border_cli.cli.entry import command
from border_cli.cli.help import complete, suggestions
from border_cli.cli.overrides import parse_overrides
from border_cli.cli.report import main as report
from border_cli.cli.train import main
from border_cli.core.errors import ActorLostError, ExitCode, Interrupted, NonFiniteError, UsageError, notes
from border_cli.run.summary import write_json
from tests.warm import finished

HERE = "hydra/launcher=basic"
"""The jobs of a sweep one after the other, in this process."""


@dataclass
class StandIn:
    """Replaces both modules. fail: the exception that the job of a seed raises. refuse: raised by the preflight."""

    calls: list = field(default_factory=list)
    fail: dict = field(default_factory=dict)
    refuse: BaseException | None = None

    def preflight(self, config, stop=None, folder=None, overrides=()):
        self.calls.append(("preflight", config))
        if self.refuse is not None:
            raise self.refuse
        return config, "spec", "why"

    def train(self, config, spec, run_dir, launch, stop=None, *, decided, view=None):
        assert (spec, decided) == ("spec", "why")
        self.calls.append(("train", config, run_dir, launch))
        if config.seed in self.fail:
            raise self.fail[config.seed]
        write_json(run_dir / "summary.json", {"status": "done", "best_score": {"mean": config.seed}})
        return types.SimpleNamespace(code=ExitCode.DONE, best=types.SimpleNamespace(mean=float(config.seed)))

    @property
    def trained(self):
        return [call[1:] for call in self.calls if call[0] == "train"]


@pytest.fixture
def build(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "border_cli.run.run", stand_in)
    monkeypatch.setitem(sys.modules, "border_cli.run.preflight", stand_in)
    return stand_in


def composed(*args, config_dir=None):
    return Composer(parse_overrides(args), config_dir).compose().config


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


# Pages


def test_help_lists_options_keys_and_presets(tmp_path, capsys):
    """The options are those of the user's folder too; presets stand beside the agents that have them."""
    write(tmp_path / "env" / "mine.yaml", "id: CartPole-v1\n")
    write(tmp_path / "agent" / "my_agent.yaml", "type: dqn\n")
    write(tmp_path / "preset" / "my_agent_my_env.yaml", "# @package _global_\nseed: 1\n")
    assert main(["--help", "--config-dir", str(tmp_path)]) == 0
    page = capsys.readouterr().out
    assert max(map(len, page.splitlines())) <= 150
    assert page.count("\n  border-train ") == 8  # the form and seven examples
    for text in (
        "acrobot, ant, atari, beamrider, bipedalwalker, breakout, cartpole, catch, gym",
        "lunarlandercontinuous, mine, mountaincar",
        "trainer.opt_interval",
        "[env steps] env steps per opt step",
        "\n  agent          The algorithm.\n",
        "\n  dqn: catch\n",
        "\n  my_agent: my_env\n",
        "\n  crossq, flashsac, sac, td3, tqc: ant, halfcheetah, hopper, humanoid, walker2d",
        "flashsac_mujoco, flashsac_wide, iqn_atari",
    ):
        assert text in page or text in " ".join(page.split()), text
    assert page.index("Presets:") + 800 > page.index("Most used keys")


def test_help_shows_the_keys_and_values_of_the_composed_agent(capsys):
    words = ["agent=sac", "env=pendulum", "agent.lr=0.25", "++env.kwargs.g=9"]
    assert main([*words, "resume=nowhere", "--help", "agent", "env"]) == 0
    page = capsys.readouterr().out
    assert "agent=btr | c51 | crossq | dqn | dsac | flashsac | iqn" in page
    assert "agent.random_env_steps" in page and "agent.epsilon_start" not in page
    assert "with the values of agent=sac env=pendulum preset=sac_pendulum" in page
    assert " 0.25  [rate] Adam's learning rate" in page
    (line,) = (line for line in page.splitlines() if line.startswith("  env.kwargs "))
    assert '{"g": 9}' in line


def test_nothing_typed_shows_three_commands_that_compose(capsys):
    assert main([]) == 0
    page = capsys.readouterr().out
    commands = [line.split()[1:] for line in page.splitlines() if line.startswith("  border-train")]
    assert len(commands) == 3 and len(page.splitlines()) <= 10
    for words in commands:
        composed(*(word for word in words if "=" in word))


def test_values_of_every_setting_may_stand_in_quotes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["resume='a path'"]) == 2
    assert "error: a path is not there" in capsys.readouterr().err
    assert report(['out="a path"', "runs"]) == 2
    assert "a path" not in capsys.readouterr().err


def test_torch_is_imported_for_a_run_alone_and_never_its_compiler(tmp_path, monkeypatch):
    """Pages and mistakes need no heavy module. Some operations on the meta device would import torch._dynamo."""
    monkeypatch.setenv("COMP_LINE", "border-train env=lun")
    program = (
        "import sys; from border_cli.cli import help\n"
        "help.complete(['-sc', 'query=fish']); assert 'hydra' not in sys.modules\n"
        "from border_cli.cli import eval, train\n"
        "for args in ['--help'], ['--cfg', 'job'], ['agent.lrr=1']: train.main(args)\n"
        "eval.main(['--help']); eval.main(['nowhere'])\n"
        "assert not sys.modules.keys() & {'torch', 'gymnasium', 'tensorboard'}\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    run = ["agent=rainbow", "env=cartpole", "preset=none", "trainer=sync", "trainer.max_opts=1"]
    done = finished("tests.integration.test_command_line:train_without_compiler", *run, folder=tmp_path)
    assert done.returncode == 0, done.stderr


def train_without_compiler() -> int:
    code = main(sys.argv[1:])
    assert "torch" in sys.modules and "torch._dynamo" not in sys.modules
    return code


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("env=lun", "env=lunarlander env=lunarlandercontinuous"),
        ("agent=dqn agent.epsilon_f", "agent.epsilon_final="),
        ("resume=runs/l", "resume=runs/latest/"),
        ("device=", "device=cpu device=cuda device=mps"),
        ("trainer.lockstep=", "trainer.lockstep=true trainer.lockstep=false"),
        ("recorder.wandb=o", "recorder.wandb=online recorder.wandb=offline"),
        ("-m sweep.", "sweep.slots= sweep.retry= sweep.new="),
        ("agent=dqn env=pong preset=", "preset=dqn_pong preset=dqn_pong_fast"),
        ("agent=dqn,i", "agent=dqn,iqn"),
        ("env.id=Half", "env.id=HalfCheetah-v5"),
        ("trainer", "trainer= trainer."),
        ("--config-dir own env=mi", "env=mine"),
        ("--v", "--version"),
    ],
)
def test_the_shell_completes(line, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "latest").mkdir(parents=True)
    write(tmp_path / "own" / "env" / "mine.yaml", "id: CartPole-v1\n")
    assert suggestions(f"border-train {line}") == expected.split()


def test_completion_is_installed_by_hydras_scripts(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["border-train"])
    assert complete(["-sc", "install=bash"]) == 0
    assert "-F hydra_bash_completion border-train" in capsys.readouterr().out
    assert complete(["-sc", "install=csh"]) == 2
    assert "allowed: -sc install=bash" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--version"], ["-sc", "install=zsh"]], ids=" ".join)
def test_a_page_with_a_closed_stdout_is_no_error(words: list[str]) -> None:
    command = [sys.executable, "-m", "border_cli", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


# Composition


def test_a_preset_is_chosen_automatically_and_typed_values_replace_its_values():
    config = composed("agent.lr=0.5", "trainer.max_opts=7")
    assert (config.preset.name, config.agent.hidden, config.agent.lr) == ("dqn_cartpole", [128, 64], 0.5)
    assert (config.trainer.max_opts, config.trainer.max_env_steps) == (7, None)
    assert composed("preset=none").agent.hidden == [256, 256]
    by_id = composed("env=gym", "env.id=CartPole-v1")
    assert (by_id.preset.name, by_id.agent.hidden) == ("none", [256, 256])
    assert composed("env=gym", "env.id=CartPole-v1", "preset=dqn_cartpole").agent.hidden == [128, 64]


def test_cfg_job_shows_values_of_many_kinds_and_a_plus_makes_no_difference(capsys):
    args = ["env.kwargs={map: [a, 1, null], deep: {x: 1.5}}", "env.kwargs.text='a b=c'", "agent.hidden=[8]"]
    args += ["+agent.lr=0.25", "++env.kwargs.n=11", "+agent=dqn", "trainer.max_opts=1e4"]
    assert main([*args, "trainer.eval_interval=null", "env.imports=[my.pkg]", "--cfg", "job"]) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    kwargs = {"map": ["a", 1, None], "deep": {"x": 1.5}, "text": "a b=c", "n": 11}
    assert (config["env"]["kwargs"], config["env"]["imports"]) == (kwargs, ["my.pkg"])
    assert (config["agent"]["hidden"], config["agent"]["lr"]) == ([8], 0.25)
    assert (config["trainer"]["max_opts"], config["trainer"]["eval_interval"]) == (10_000, None)


def test_a_users_files_take_missing_keys_from_the_schema(tmp_path):
    write(tmp_path / "my conf" / "env" / "mine.yaml", "id: Acrobot-v1\nkwargs:\n  n: 1\n")
    write(tmp_path / "my conf" / "agent" / "small.yaml", "defaults: [dqn, _self_]\nhidden: [4]\n")
    write(tmp_path / "more" / "buffer" / "tiny.yaml", "capacity: ${trainer.max_env_steps}\n")
    words = (
        "env=mine",
        "agent=small",
        "buffer=tiny",
        "env.kwargs.m=2",
        f"hydra.searchpath=[{tmp_path}/more]",
    )
    config = composed(*words, config_dir=str(tmp_path / "my conf"))
    assert config.env.kwargs == {"n": 1, "m": 2}
    assert (config.agent.hidden, config.agent.lr) == ([4], 3e-4)
    assert (config.buffer.type, config.buffer.capacity) == ("uniform", 50_000)


def test_a_users_preset_is_picked_and_groups_of_the_users_own_can_be_added(tmp_path):
    write(tmp_path / "env" / "mine.yaml", "id: Acrobot-v1\n")
    write(tmp_path / "preset" / "dqn_mine.yaml", "# @package _global_\nagent:\n  lr: 0.125\n")
    write(tmp_path / "experiment" / "big.yaml", "# @package _global_\nn_actors: 4\nagent:\n  gamma: 0.5\n")
    config = composed("env=mine", "+experiment=big", config_dir=str(tmp_path))
    assert (config.preset.name, config.agent.lr) == ("dqn_mine", 0.125)
    assert (config.n_actors, config.agent.gamma) == (4, 0.5)
    chosen = "# @package _global_\ndefaults:\n  - override /agent: sac\n  - override /env: halfcheetah\n"
    write(tmp_path / "experiment" / "hc.yaml", chosen)
    config = composed("experiment=hc", config_dir=str(tmp_path))
    assert (config.preset.name, config.trainer.max_env_steps) == ("sac_halfcheetah", 1_000_000)


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        ("id: Acrobot-v1\nkwarg: {}\n", ["env.kwarg", "nearest: env.kwargs"]),
        ("id: [1\nx: 3\n", ["not valid YAML", "line 2"]),
        ("id: Acrobot-v1\nmax_episode_steps: ${nowhere}\n", ["env.max_episode_steps", "nowhere"]),
        ("defaults: [gim]\n", ["env/mine", "env/gim"]),
        ("- a list\n", ["env", "keys with values"]),
    ],
)
def test_a_mistake_in_a_users_file_names_the_file(text, fragments, tmp_path):
    write(tmp_path / "env" / "mine.yaml", text)
    with pytest.raises(UsageError) as refusal:
        composed("env=mine", config_dir=str(tmp_path))
    assert len(str(refusal.value).splitlines()) <= 3
    said = "\n".join([str(refusal.value), *notes(refusal.value)])
    assert all(fragment in said for fragment in fragments)
    assert said.count("mine.yaml") == 1


@pytest.mark.parametrize(
    "words",
    [
        ("env.max_episode_steps=many",),
        ("n_actors=3", "trainer=sync"),
        ("actor_manager.restart_delay_s=2", "actor_manager.restarts=0"),
        ("agent=nope",),
    ],
)
def test_a_mistake_that_was_typed_names_no_file(words, tmp_path):
    write(tmp_path / "env" / "mine.yaml", "id: Acrobot-v1\n")
    with pytest.raises(UsageError) as refusal:
        composed("env=mine", *words, config_dir=str(tmp_path))
    assert not notes(refusal.value)


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("out/${env.idd}", "hydra.run.dir: Interpolation key 'env.idd' not found"),
        ("", "hydra.run.dir=: the value is missing"),
    ],
)
def test_mistakes_in_hydra_run_dir_are_named(folder, message):
    with pytest.raises(UsageError, match=message):
        composed(f"hydra.run.dir={folder}")


# Runs


def test_a_run_gets_its_folder_its_configuration_and_its_launch(build, tmp_path):
    argv = ["env=gym", "env.id=CartPole-v1", "n_actors=2", "agent.lr=0.5"]
    before = list(sys.argv)
    assert main(argv) == 0
    assert sys.argv == before
    assert [call[0] for call in build.calls] == ["preflight", "train"]
    ((config, run_dir, launch),) = build.trained
    assert (config.n_actors, config.agent.lr) == (2, 0.5)
    assert run_dir.name.endswith("_dqn_CartPole-v1")
    assert (tmp_path / "runs" / "latest").resolve() == run_dir.resolve()
    assert yaml.safe_load((run_dir / "config.yaml").read_text())["agent"]["lr"] == 0.5
    hydras = {"config.yaml", "hydra.yaml", "overrides.yaml"}
    assert {path.name for path in (run_dir / ".hydra").iterdir()} == hydras
    assert launch.argv == argv
    assert launch.typed == {"env": "gym", "env.id": "CartPole-v1", "n_actors": "2", "agent.lr": "0.5"}
    assert main(["name=my run"]) == 0
    assert build.trained[-1][1].name.endswith("_my-run")


def test_a_typed_folder_may_have_interpolations_and_is_used_for_one_run_only(build, tmp_path, capsys):
    args = ["hydra.run.dir='my runs/${hydra:runtime.choices.env}_${trainer.sync_interval}_${seed}'", "seed=3"]
    assert main(args) == 0
    assert build.trained[0][1] == tmp_path / "my runs" / "cartpole_10_3"
    assert not (tmp_path / "runs").exists()
    assert main(args) == 2
    assert "already holds a run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "lines"),
    [
        (NonFiniteError("loss is nan"), 4, ["error: loss is nan"]),
        (ActorLostError("actor died", "Traceback of it\n"), 5, ["Traceback of it", "error: actor died"]),
        (Interrupted(ExitCode.SIGTERM), 143, []),
        (KeyboardInterrupt(), 130, []),
    ],
)
def test_the_exit_code_says_how_a_command_ended(capsys, error, code, lines):
    @command
    def fail(argv):
        raise error

    assert fail([]) == code
    assert capsys.readouterr().err.splitlines() == lines


def test_a_refusal_before_training_leaves_no_folder(build, tmp_path, capsys):
    build.refuse = UsageError("env.id: there is no such environment")
    assert main(["env=cartpole"]) == 2
    assert capsys.readouterr().err == "error: env.id: there is no such environment\n"
    assert main(["-m", "seed=1,2", "n_actors=1,0"]) == 2  # every job is checked before the first starts
    assert "n_actors: 0 is out of range" in capsys.readouterr().err
    assert [call[0] for call in build.calls] == ["preflight"]
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_tracebacks(build, capsys):
    """They are shown for a refused configuration, for a run that fails, and for a job of a sweep."""
    build.fail = {0: NonFiniteError("loss is nan")}
    for words in (["agent.lrr=1"], ["seed=0"], ["-m", HERE, "seed=0"]):
        assert main([*words, "debug=true"]) in (2, 4)
        assert "Traceback" in capsys.readouterr().err


# Sweeps


def test_a_sweep_runs_every_combination_in_a_folder_of_its_own(build, tmp_path, capsys):
    write(tmp_path / "c" / "env" / "mine.yaml", "id: Acrobot-v1\n")
    args = ["env=cartpole,mine", "seed=1,2", "agent.lr=0.5", "recorder.console=none"]
    assert main(["-m", HERE, "--config-dir", "c", *args]) == 0
    jobs = build.trained
    of_jobs = [("CartPole-v1", 1), ("CartPole-v1", 2), ("Acrobot-v1", 1), ("Acrobot-v1", 2)]
    assert [(config.env.id, config.seed, config.agent.lr) for config, _, _ in jobs] == [
        (*job, 0.5) for job in of_jobs
    ]
    names = ["0_dqn_cartpole", "1_dqn_cartpole", "2_dqn_mine", "3_dqn_mine"]
    assert [run_dir.name for _, run_dir, _ in jobs] == names
    assert {run_dir.parent.parent.parent for _, run_dir, _ in jobs} == {tmp_path / "runs" / "sweeps"}
    assert all((run_dir / "config.yaml").is_file() for _, run_dir, _ in jobs)
    typed = {"env": "cartpole", "seed": "1", "agent.lr": "0.5", "recorder.console": "none"}
    assert jobs[0][2].typed == typed
    assert not (tmp_path / "runs" / "latest").exists()
    assert capsys.readouterr().out == ""  # not even the table of the jobs


def test_an_interruption_ends_the_whole_sweep(build):
    build.fail = {1: Interrupted(ExitCode.SIGINT)}
    assert main(["-m", HERE, "seed=1,2"]) == 130
    assert [config.seed for config, _, _ in build.trained] == [1]


class ElsewhereLauncher(Launcher):
    """Passes jobs and their results through pickle, as the launchers for joblib and Slurm do."""

    __module__ = "hydra_plugins.elsewhere"  # Hydra wants plugins there

    def setup(self, *, hydra_context, task_function, config):
        self.context, self.task, self.config = hydra_context, task_function, config

    def launch(self, job_overrides, initial_job_idx):
        return [self.run(overrides, n) for n, overrides in enumerate(job_overrides, initial_job_idx)]

    def run(self, overrides, number):
        task, config = pickle.loads(pickle.dumps((self.task, self.config)))
        job = self.context.config_loader.load_sweep_config(config, list(overrides))
        with open_dict(job):
            job.hydra.job.id = job.hydra.job.num = number
        done = run_job(task, job, "hydra.sweep.dir", "hydra.sweep.subdir", self.context)
        return pickle.loads(pickle.dumps(done))


def install(monkeypatch, plugin, group, name):
    """Make a plugin of Hydra an option of this group."""
    Plugins.instance().register(plugin)
    module = types.ModuleType(plugin.__module__)
    setattr(module, plugin.__name__, plugin)
    monkeypatch.setitem(sys.modules, plugin.__module__, module)
    node = {"_target_": f"{plugin.__module__}.{plugin.__name__}"}
    ConfigStore.instance().store(group=group, name=name, node=node)


class TryingSweeper(Sweeper):
    """Asks for a seed in each of two batches, and for that with the higher score again."""

    __module__ = "hydra_plugins.trying"

    def setup(self, *, hydra_context, task_function, config):
        self.launcher = Plugins.instance().instantiate_launcher(hydra_context, task_function, config)

    def sweep(self, arguments):
        scores = {seed: self.launch(arguments, seed) for seed in (1, 2)}
        assert self.launch(arguments, max(scores, key=scores.get)) == 2.0

    def launch(self, arguments, seed):
        (job,) = self.launcher.launch([[*arguments, f"seed={seed}"]], 0)
        return job.return_value


def test_a_sweeper_of_a_plugin_gets_the_scores_of_its_batches(build, capsys, monkeypatch):
    install(monkeypatch, TryingSweeper, "hydra/sweeper", "trying")
    assert main(["-m", HERE, "hydra/sweeper=trying", "agent.lr=0.5"]) == 0
    assert [(config.seed, config.agent.lr) for config, _, _ in build.trained] == [(1, 0.5), (2, 0.5)]
    assert "1 job of 1 ended in an earlier launch" in capsys.readouterr().out


def test_jobs_that_a_launcher_pickles_are_in_exit_code_and_table(build, capsys, monkeypatch):
    install(monkeypatch, ElsewhereLauncher, "hydra/launcher", "elsewhere")
    build.fail = {2: NonFiniteError("loss is nan")}
    assert main(["-m", "hydra/launcher=elsewhere", "seed=1,2", "agent.lr=0.5"]) == 4
    assert [(config.seed, config.agent.lr) for config, _, _ in build.trained] == [(1, 0.5), (2, 0.5)]
    out, err = capsys.readouterr()
    assert err.splitlines() == ["job 1 (seed=2): error: loss is nan"]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines() if line[:1] == "|"]
    header, first, second = rows
    assert header == ["job", "settings", "state", "time", "last", "best"]
    assert (first[0], first[2], first[5]) == ("0", "done", "1.00")
    assert (second[0], second[2], second[5]) == ("1", "failed", "-")
    words = ["-m", "hydra/launcher=elsewhere", "seed=1,2", "agent.lr=0.5"]
    assert main(words) == 0
    assert "2 jobs of 2 ended in an earlier launch, 1 of them failed" in capsys.readouterr().out
    build.fail = {}
    (failed,) = Path("runs/sweeps").glob("*/*/1_*")
    shutil.rmtree(failed)  # there is nothing to resume
    assert main([*words, "sweep.retry=true"]) == 0
    assert [config.seed for config, _, _ in build.trained] == [1, 2, 2]
