"""`border-train` without training: pages, composition, presets, sweeps, folders, exit codes.

In the place of `border_cli.run` and `border_cli.preflight`, between the command line and training, is a stand-in
that notes its calls.
"""

from __future__ import annotations

import math
import subprocess
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

import border_cli
from border_cli.cli.compose import Composer
from border_cli.cli.train import main
from border_cli.core.errors import ActorLostError, ExitCode, Interrupted, NonFiniteError, UsageError

HEAVY = ("torch", "gymnasium", "tensorboard")


@dataclass
class StandIn:
    """In the place of `border_cli.run`: `fail` maps a seed to what its job raises."""

    calls: list = field(default_factory=list)
    fail: dict = field(default_factory=dict)
    refuse: BaseException | None = None

    def preflight(self, config, stop=None, folder=None):
        self.calls.append(("preflight", config))
        if self.refuse is not None:
            raise self.refuse
        return "spec"

    def train(self, config, spec, run_dir, launch, stop=None):
        assert spec == "spec"
        self.calls.append(("train", config, run_dir, launch))
        if config.seed in self.fail:
            raise self.fail[config.seed]
        return types.SimpleNamespace(code=ExitCode.DONE, score=float(config.seed))

    @property
    def trained(self):
        return [call[1:] for call in self.calls if call[0] == "train"]


@pytest.fixture
def build(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "border_cli.run", stand_in)
    monkeypatch.setattr(border_cli, "build", stand_in, raising=False)
    monkeypatch.setitem(sys.modules, "border_cli.preflight", stand_in)
    return stand_in


@pytest.fixture
def shown(monkeypatch, tmp_path, capsys):
    """The checked configuration of some words, as `--cfg job` shows it."""
    monkeypatch.chdir(tmp_path)

    def show(*words):
        assert main([*words, "--cfg", "job"]) == 0
        return yaml.safe_load(capsys.readouterr().out)

    return show


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


# Pages


def test_help_is_a_page_for_a_person(capsys):
    assert main(["--help"]) == 0
    page = capsys.readouterr().out
    assert "acrobot, ant, atari, beamrider, breakout, cartpole, catch, gym" in page
    assert max(map(len, page.splitlines())) < 145
    assert page.count("\n  border-train ") == 7  # the form and five examples
    for words in ("trainer.opt_interval", "[env steps] env steps per opt step", "--multirun", "dqn_cartpole"):
        assert words in page


def test_help_lists_options_of_the_users_folder(tmp_path, capsys):
    write(tmp_path / "env" / "mine.yaml", "id: CartPole-v1\n")
    assert main(["--help", "--config-dir", str(tmp_path)]) == 0
    assert "lunarlandercontinuous, mine, mountaincar" in " ".join(capsys.readouterr().out.split())


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"border-cli {border_cli.__version__}\n"


@pytest.mark.parametrize(
    "words",
    [["--help"], ["--version"], ["--cfg", "job"], ["--cfg", "all"], ["--info", "defaults"], ["agent.lrr=1"]],
)
def test_nothing_heavy_is_imported_for_a_page_or_a_mistake(words, tmp_path):
    program = (
        "import sys; from border_cli.cli.train import main; main(sys.argv[1:]);"
        f"sys.exit(sum(name in sys.modules for name in {HEAVY!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("env=lun", "env=lunarlander env=lunarlandercontinuous"),
        ("trainer.max_o", "trainer.max_opts="),
        ("agent=dqn agent.epsilon_f", "agent.epsilon_final="),
    ],
)
def test_the_shell_completes_without_torch(line, expected, tmp_path, monkeypatch):
    typed = f"border-train {line}"
    program = (
        "import sys; from border_cli.cli.train import main; main(sys.argv[1:]);"
        f"sys.exit(sum(name in sys.modules for name in {HEAVY!r}))"
    )
    monkeypatch.setenv("COMP_LINE", typed)
    monkeypatch.setenv("COMP_POINT", str(len(typed)))
    done = subprocess.run(
        [sys.executable, "-c", program, "-sc", "query=bash"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.strip()) == (0, expected), done.stderr


def test_one_part_of_the_configuration_can_be_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["--cfg", "job", "-p", "buffer"]) == 0
    assert capsys.readouterr().out == "# @package buffer\ntype: uniform\ncapacity: 100000\nn_step: 1\n"
    assert main(["--cfg", "job", "-p", "agent.hidden"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == [256, 256]
    assert main(["n_actors=3", "--cfg", "job", "-p", "n_actors"]) == 0
    assert capsys.readouterr().out == "3\n"


# Composition


def test_a_preset_comes_by_itself_and_loses_to_what_is_typed(shown):
    by_itself = shown()
    assert by_itself["preset"]["name"] == "dqn_cartpole"
    assert by_itself["agent"]["lr"] == 2.3e-3
    typed = shown("agent.lr=0.5", "trainer.opt_interval=4")
    assert typed["preset"]["name"] == "dqn_cartpole"
    assert (typed["agent"]["lr"], typed["trainer"]["opt_interval"]) == (0.5, 4.0)
    assert typed["agent"]["epsilon_final"] == 0.04


def test_without_a_preset_the_defaults_stand(shown):
    assert shown("preset=none")["agent"]["lr"] == 1e-3
    by_id = shown("env=gym", "env.id=CartPole-v1")
    assert (by_id["preset"]["name"], by_id["agent"]["lr"]) == ("none", 1e-3)
    named = shown("env=gym", "env.id=CartPole-v1", "preset=dqn_cartpole")
    assert (named["preset"]["name"], named["agent"]["lr"]) == ("dqn_cartpole", 2.3e-3)


@pytest.mark.parametrize("env", ["acrobot", "cartpole", "lunarlander", "mountaincar"])
@pytest.mark.parametrize("trainer", ["async", "sync"])
def test_every_option_composes(shown, env, trainer):
    config = shown(f"env={env}", f"trainer={trainer}", "recorder=none")
    assert config["preset"]["name"] == f"dqn_{env}"
    assert config["env"]["id"] == config["preset"]["env_id"]
    assert config["trainer"]["type"] == trainer
    assert config["recorder"] == {"jsonl": False, "tensorboard": False, "console": "none"}


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_a_plus_makes_no_difference(shown, plus):
    config = shown(f"{plus}agent.lr=0.25", f"{plus}env.kwargs.n=11", f"{plus}agent=dqn")
    assert config["agent"]["lr"] == 0.25
    assert config["env"]["kwargs"] == {"n": 11}


def test_values_of_many_kinds_arrive_as_they_are_typed(shown):
    words = ["env.kwargs={map: [a, 1, null], deep: {x: 1.5}}", "env.kwargs.text='a b=c'", "agent.hidden=[8]"]
    config = shown(*words, "trainer.max_opts=1e4", "trainer.eval_interval=null", "env.imports=[my.pkg]")
    assert config["env"]["kwargs"] == {"map": ["a", 1, None], "deep": {"x": 1.5}, "text": "a b=c"}
    assert config["agent"]["hidden"] == [8]
    assert config["trainer"]["max_opts"] == 10_000
    assert config["trainer"]["eval_interval"] is None
    assert config["env"]["imports"] == ["my.pkg"]


def test_one_typed_budget_drops_the_presets(shown):
    assert shown()["trainer"]["max_env_steps"] == 50_000
    trainer = shown("trainer.max_opts=7")["trainer"]
    assert (trainer["max_opts"], trainer["max_env_steps"]) == (7, None)


# The user's own files


def test_a_users_file_takes_missing_keys_from_the_schema(shown, tmp_path):
    write(tmp_path / "my conf" / "env" / "mine.yaml", "id: Acrobot-v1\nkwargs:\n  n: 1\n")
    write(tmp_path / "my conf" / "agent" / "small.yaml", "type: dqn\nhidden: [4]\n")
    write(tmp_path / "my conf" / "buffer" / "tiny.yaml", "capacity: 2000\n")
    config = shown("--config-dir", "my conf", "env=mine", "agent=small", "buffer=tiny", "env.kwargs.m=2")
    assert config["env"]["kwargs"] == {"n": 1, "m": 2}
    assert config["env"]["max_episode_steps"] is None
    assert (config["agent"]["hidden"], config["agent"]["lr"]) == ([4], 1e-3)
    assert config["buffer"] == {"type": "uniform", "capacity": 2000, "n_step": 1}


def test_hydras_search_path_works_too(shown, tmp_path):
    write(tmp_path / "a" / "env" / "one.yaml", "id: Acrobot-v1\n")
    write(tmp_path / "b" / "env" / "two.yaml", "id: CartPole-v1\n")
    assert shown("hydra.searchpath=[a]", "env=one")["env"]["id"] == "Acrobot-v1"
    assert shown("--config-dir", "b", "hydra.searchpath=[a]", "env=two")["env"]["id"] == "CartPole-v1"


def test_a_users_preset_is_picked_and_named(shown, tmp_path):
    write(tmp_path / "c" / "env" / "mine.yaml", "id: Acrobot-v1\n")
    write(tmp_path / "c" / "preset" / "dqn_mine.yaml", "# @package _global_\nagent:\n  lr: 0.125\n")
    config = shown("--config-dir", "c", "env=mine")
    assert (config["preset"]["name"], config["agent"]["lr"]) == ("dqn_mine", 0.125)


def test_a_group_of_the_users_own_can_be_added(shown, tmp_path):
    write(tmp_path / "c" / "experiment" / "big.yaml", "# @package _global_\nn_actors: 4\nagent:\n  lr: 0.5\n")
    config = shown("--config-dir", "c", "+experiment=big")
    assert (config["n_actors"], config["agent"]["lr"]) == (4, 0.5)


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        ("id: Acrobot-v1\nkwarg: {}\n", ["env.kwarg", "env/mine.yaml", "nearest: env.kwargs"]),
        ("id: Acrobot-v1\nmax_episode_steps: many\n", ["env.max_episode_steps", "'many'", "env/mine.yaml"]),
        ("id: [1\nx: 3\n", ["mine.yaml", "not valid YAML", "line 2"]),
        ("- 1\n", ["env", "keys with values"]),
        ("id: ${nothing}\n", ["env.id", "nothing"]),
        ("defaults: [gim]\n", ["env/mine", "env/gim"]),
    ],
)
def test_a_mistake_in_a_users_file_names_file_or_key(text, fragments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "c" / "env" / "mine.yaml", text)
    assert main(["--config-dir", "c", "env=mine"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert 1 <= len(lines) <= 3
    for fragment in fragments:
        assert fragment in "\n".join(lines)
    assert not (tmp_path / "runs").exists()


def test_a_plugin_registers_an_agent_that_can_be_chosen(shown, tmp_path, monkeypatch):
    write(
        tmp_path / "my_plugin.py",
        "from dataclasses import dataclass\n"
        "from border_cli.config.options import option\n"
        "from border_cli.config.registry import register_agent\n"
        "from border_cli.config.schema import AgentConfig\n"
        "@dataclass\n"
        "class MyConfig(AgentConfig):\n"
        "    type: str = option('mine', 'which')\n"
        "    power: float = option(2.0, 'how much', gt=0.0)\n"
        "register_agent('mine', MyConfig, 'my_plugin')\n",
    )
    monkeypatch.syspath_prepend(tmp_path)
    from border_cli.config.registry import AGENTS

    monkeypatch.delitem(sys.modules, "my_plugin", raising=False)
    try:
        config = shown("plugins=[my_plugin]", "agent=mine", "agent.power=3")
    finally:
        AGENTS.pop("mine", None)
    assert config["agent"] == {
        "type": "mine",
        "batch_size": 64,
        "gamma": 0.99,
        "reward_clip": None,
        "power": 3.0,
    }


# Runs


def test_a_run_gets_its_folder_its_configuration_and_its_launch(build, tmp_path):
    argv = ["env=gym", "env.id=CartPole-v1", "n_actors=2", "agent.lr=0.5"]
    assert main(argv) == 0
    assert [call[0] for call in build.calls] == ["preflight", "train"]
    ((config, run_dir, launch),) = build.trained
    assert (config.n_actors, config.agent.lr) == (2, 0.5)
    assert run_dir.name.endswith("_dqn_CartPole-v1")
    assert (tmp_path / "runs" / "latest").resolve() == run_dir.resolve()
    assert yaml.safe_load((run_dir / "config.yaml").read_text())["agent"]["lr"] == 0.5
    assert {path.name for path in (run_dir / ".hydra").iterdir()} == {
        "config.yaml",
        "hydra.yaml",
        "overrides.yaml",
    }
    assert launch.argv == argv
    assert launch.typed == {"env": "gym", "env.id": "CartPole-v1", "n_actors": "2", "agent.lr": "0.5"}


def test_a_typed_folder_is_taken_once(build, tmp_path, capsys):
    words = ["hydra.run.dir='my runs/${env.id}'"]
    assert main(words) == 0
    assert build.trained[0][1] == Path("my runs/CartPole-v1").absolute()
    assert not (tmp_path / "runs").exists()
    assert main(words) == 2
    assert "already holds a run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NonFiniteError("loss is nan"), 4),
        (ActorLostError("actor 3 died"), 5),
        (Interrupted(ExitCode.SIGTERM), 143),
        (KeyboardInterrupt(), 130),
    ],
)
def test_how_training_ends_is_the_exit_code(build, capsys, error, code):
    build.fail[0] = error
    assert main([]) == code
    assert "Traceback" not in capsys.readouterr().err


def _stumbles():
    try:
        raise KeyboardInterrupt
    finally:
        raise ValueError("half done")


def _makes_an_error_of_it():
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt as e:
        raise UsageError("the environment raised KeyboardInterrupt") from e


@pytest.mark.parametrize(
    ("composing", "code", "said"), [(_stumbles, 130, False), (_makes_an_error_of_it, 2, True)]
)
def test_an_error_over_an_interrupted_composition_is_the_interruption(
    build, monkeypatch, capsys, composing, code, said
):
    monkeypatch.setattr(Composer, "words", lambda _: composing())
    assert main([]) == code
    assert bool(capsys.readouterr().err) == said


def test_what_an_environment_raised_is_shown(build, capsys):
    build.fail[0] = ActorLostError("actor 3 died", "Traceback of the actor\n")
    assert main([]) == 5
    assert capsys.readouterr().err == "Traceback of the actor\nerror: actor 3 died\n"


def test_a_refusal_before_training_leaves_no_folder(build, tmp_path, capsys):
    build.refuse = UsageError("env.id: there is no such environment")
    assert main([]) == 2
    assert capsys.readouterr().err == "error: env.id: there is no such environment\n"
    assert list(tmp_path.iterdir()) == []


def test_a_defect_keeps_its_traceback(build, capsys):
    build.fail[0] = ZeroDivisionError("oh")
    assert main([]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "error: ZeroDivisionError: oh" in err


def test_debug_shows_the_traceback_of_a_refusal(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["agent.lr=fast", "debug=true"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_hydras_state_is_left_as_it_was(build):
    argv = list(sys.argv)
    assert main([]) == 0
    assert main(["seed=1"]) == 0
    assert sys.argv == argv
    assert [config.seed for config, _, _ in build.trained] == [0, 1]


# Sweeps


def test_a_sweep_runs_every_combination_in_a_folder_of_its_own(build, tmp_path):
    assert main(["-m", "env=cartpole,acrobot", "seed=1,2", "agent.lr=0.5"]) == 0
    jobs = build.trained
    assert [(c.env.id, c.seed, c.agent.lr) for c, _, _ in jobs] == [
        ("CartPole-v1", 1, 0.5),
        ("CartPole-v1", 2, 0.5),
        ("Acrobot-v1", 1, 0.5),
        ("Acrobot-v1", 2, 0.5),
    ]
    assert [run_dir.name for _, run_dir, _ in jobs] == [
        "0_dqn_cartpole",
        "1_dqn_cartpole",
        "2_dqn_acrobot",
        "3_dqn_acrobot",
    ]
    assert {run_dir.parent.parent.parent for _, run_dir, _ in jobs} == {tmp_path / "runs" / "sweeps"}
    assert all((run_dir / "config.yaml").is_file() for _, run_dir, _ in jobs)
    assert jobs[0][2].typed == {"env": "cartpole", "seed": "1", "agent.lr": "0.5"}
    assert not (tmp_path / "runs" / "latest").exists()


def test_a_sweep_over_an_id_names_its_folders_by_it(build):
    assert main(["-m", "env=gym", "env.id=CartPole-v1,Acrobot-v1"]) == 0
    assert [run_dir.name for _, run_dir, _ in build.trained] == ["0_dqn_CartPole-v1", "1_dqn_Acrobot-v1"]


def test_a_sweep_takes_options_of_the_users_folder(build, tmp_path):
    write(tmp_path / "c" / "env" / "mine.yaml", "id: Acrobot-v1\n")
    assert main(["-m", "--config-dir", "c", "env=mine,cartpole", "env.kwargs.n=1"]) == 0
    assert [(c.env.id, c.env.kwargs) for c, _, _ in build.trained] == [
        ("Acrobot-v1", {"n": 1}),
        ("CartPole-v1", {"n": 1}),
    ]


def test_every_job_is_checked_before_the_first_starts(build, tmp_path, capsys):
    assert main(["-m", "seed=1,2", "n_actors=1,0"]) == 2
    assert "n_actors: 0 is out of range" in capsys.readouterr().err
    assert build.calls == []
    assert list(tmp_path.iterdir()) == []


def test_a_failed_job_is_reported_and_the_sweep_goes_on(build, capsys):
    build.fail = {2: NonFiniteError("loss is nan"), 3: UsageError("no")}
    assert main(["-m", "seed=1,2,3,4"]) == 4
    assert [config.seed for config, _, _ in build.trained] == [1, 2, 3, 4]
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["job 1 (seed=2): error: loss is nan", "job 2 (seed=3): error: no"]


def test_an_interruption_ends_the_whole_sweep(build):
    build.fail = {2: Interrupted(ExitCode.SIGINT)}
    assert main(["-m", "seed=1,2,3"]) == 130
    assert [config.seed for config, _, _ in build.trained] == [1, 2]


def test_a_job_returns_its_score(build):
    from border_cli.cli import jobs

    sweep = jobs._Sweep([], [])
    returned = []
    original = sweep.job
    build.fail = {2: NonFiniteError("loss is nan")}

    def spy(composed):
        returned.append(original(composed))
        return returned[-1]

    jobs._call_hydra(["--multirun", "++seed=1,2", "hydra.sweep.dir=s"], spy)
    assert returned[0] == 1.0
    assert math.isnan(returned[1])
    assert [(job.number, job.settings, job.exit_code) for job in sweep.jobs] == [
        (0, "seed=1", 0),
        (1, "seed=2", 4),
    ]
    assert [job.run_dir for job in sweep.jobs] == ["s/0_dqn_cartpole", "s/1_dqn_cartpole"]


def test_a_sweep_ends_with_a_table_of_its_jobs(build, capsys):
    build.fail = {2: NonFiniteError("loss is nan")}
    assert main(["-m", "seed=1,2"]) == 4
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    header, first, second = (row for row in rows if row)
    assert header == ["job", "settings", "best score", "exit code", "run"]
    assert first[:4] == ["0", "seed=1", "1.00", "0"]
    assert second[:4] == ["1", "seed=2", "-", "4"]
    assert first[4].startswith("runs/sweeps/")
    assert main(["-m", "seed=1,2", "recorder.console=none"]) == 4
    assert capsys.readouterr().out == ""
