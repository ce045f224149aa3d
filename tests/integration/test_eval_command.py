"""`border-eval`, called as its entry point and as a process."""

from __future__ import annotations

import json
import os
import signal
import sys
import types
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest

from border_cli.cli.eval import main
from border_cli.config.schema import EnvConfig
from border_cli.envs import make
from border_cli.envs.group import GymEnv
from border_cli.envs.gym_spaces import env_spec
from tests.trained import describe, save_model, save_run

CARTPOLE = EnvConfig(id="CartPole-v1")
SPEC = env_spec(gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32), gymnasium.spaces.Discrete(2))


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.setenv("COLUMNS", "200")
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def cartpole_spec() -> Any:
    env = GymEnv(CARTPOLE)
    env.close()
    return env.spec


def make_run(run_dir: str = "run", **saved: Any) -> Path:
    save_run(Path(run_dir), describe(CARTPOLE, cartpole_spec()), **saved)
    return Path(run_dir)


def result(run_dir: Path) -> dict[str, Any]:
    (file,) = (run_dir / "eval").glob("*.json")
    data: dict[str, Any] = json.loads(file.read_text())
    return data


def refused(capsys: pytest.CaptureFixture[str], *args: str, code: int = 2) -> str:
    """Return stderr, which must have one to three lines and no traceback."""
    assert main(list(args)) == code
    err = capsys.readouterr().err
    assert 1 <= len(err.splitlines()) <= 3
    assert "Traceback" not in err
    return err


# -- evaluating ---------------------------------------------------------


def test_the_result_is_printed_and_written(capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(best=20)
    assert main(["run", "episodes=12"]) == 0
    out = capsys.readouterr().out
    data = result(run)
    returns = np.array(data["returns"])
    assert len(returns) == len(data["lengths"]) == data["episodes"] == 12
    assert data["returns"] == data["lengths"]  # CartPole pays 1 for each env step
    assert (data["mean"], data["std"]) == (returns.mean(), returns.std())
    assert (data["min"], data["max"]) == (returns.min(), returns.max())
    half = 2.2010 * returns.std(ddof=1) / np.sqrt(12)
    assert data["interval"] == pytest.approx([returns.mean() - half, returns.mean() + half])
    assert (data["model"], data["opt_steps"], data["env"], data["seed"]) == ("best", 20, "CartPole-v1", 0)
    assert "run/best (opt step 20)" in out
    assert f"{returns.mean():.2f} ± {returns.std():.2f}" in out or f"{returns.mean():.1f} ± " in out
    assert "written: run/eval/best-000000020-seed0-episodes12.json" in out


def test_the_seed_determines_the_episodes() -> None:
    run = make_run()
    first = main(["run", "episodes=3"]), result(run)
    assert (main(["run", "episodes=3"]), result(run)) == first
    assert main(["run", "episodes=3", "seed=1"]) == 0
    other = json.loads((run / "eval" / "best-000000020-seed1-episodes3.json").read_text())
    assert other["returns"] != first[1]["returns"]


@pytest.mark.parametrize(
    ("best", "args", "model"), [(15, ["checkpoint=10"], "step-000000010"), (None, [], "step-000000020")]
)
def test_the_checkpoint_can_be_chosen(
    capsys: pytest.CaptureFixture[str], best: int | None, args: list[str], model: str
) -> None:
    run = make_run(
        "env=cartpole,seed=1", best=best, steps=(10, 20)
    )  # the name of a job looks like an override
    assert main([str(run), "episodes=1", "max_episode_steps=3", *args]) == 0
    assert (result(run)["model"], result(run)["lengths"], result(run)["interval"]) == (model, [3], None)
    assert ("note: no evaluation has found a best model yet" in capsys.readouterr().out) == (best is None)


def test_the_result_of_a_model_without_a_run_is_written_beside_it(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_model(workplace / "shared", describe(CARTPOLE, cartpole_spec()), 5)
    assert main(["shared/best", "episodes=2"]) == 0
    file = workplace / "shared" / "eval-best-000000005-seed0-episodes2.json"
    assert file.exists() and f"written: {file}" in capsys.readouterr().out


# -- arguments ------------------------------------------------------------


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == main(["-h"]) == 0
    assert "episodes=100" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("border-cli 0.")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["run", "episode=5"], "nearest: episodes="),
        (
            ["run", "env_id=5"],
            "allowed: episodes, checkpoint, seed, max_episode_steps, render, video, debug, trust, plugins, env.<key>",
        ),
        (["run", "episodes=0"], "a whole number >= 1"),
        (["run", "checkpoint=bset"], "allowed: best, last, or an opt step"),
        (["run", "render=humna"], "nearest: human"),
        (["run", "plugins=a"], "plugins: there is no module 'a'"),
        (["run", "--seed", "3"], "nearest: seed=<value>"),
        (["run", "other"], "two models"),
        (["rnu"], "rnu is not there"),
        (["run/seed=3"], "is not there"),
        ([], "no run below runs"),
        (["run", "env.max_episode_steps=many"], "env.max_episode_steps: 'many' is of the wrong type"),
        (["run", "env.kwarg.x=1"], "nearest: env.kwargs"),
        (["run", "env.frame_skip=2"], "env.frame_skip has no effect"),
        (["run", "env.kwargs.x=1,2"], "has several values"),
        (["run", "env.kwargs.nonsense=1"], "cannot be made"),
        (["run", "env.id=Acrobot-v1"], "observation obs has shape (4,), here (6,)"),
    ],
)
def test_invalid_arguments_are_refused(
    capsys: pytest.CaptureFixture[str], args: list[str], message: str
) -> None:
    make_run()
    assert message in refused(capsys, *args)


# -- environments ------------------------------------------------------------


def test_a_stored_environment_that_is_not_installed_is_refused_with_a_traceback_if_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    save_run(Path("run"), describe(EnvConfig(id="CartPoel-v1"), SPEC))
    assert "CartPoel-v1" in refused(capsys, "run", "episodes=1")
    assert main(["run", "debug=true"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_an_environment_that_raises_in_an_episode_ends_the_evaluation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = EnvConfig(entry_point="tests.counting:CountingEnv", kwargs={"fault": "raise", "fault_step": 2})
    save_run(Path("run"), describe(config, GymEnv(config).spec))
    assert main(["run", f"env.entry_point={config.entry_point}"]) == 5
    err = capsys.readouterr().err
    assert "in _strike_at" in err
    assert err.splitlines()[-1].startswith("error: the evaluation failed while stepping, after 10 env steps")


def test_a_full_disk_behind_stdout_does_not_prevent_the_result_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert "stdout: No space left on device" in refused(capsys, "run", "episodes=2", code=3)
    assert len(result(run)["lengths"]) == 2


@pytest.mark.parametrize("override", ["env.max_episode_steps=4", "env.kwargs.sutton_barto_reward=true"])
def test_env_overrides_change_the_environment(capsys: pytest.CaptureFixture[str], override: str) -> None:
    run = make_run()
    assert main(["run", "episodes=2", override]) == 0
    assert f"CartPole-v1 {override}" in capsys.readouterr().out
    data = result(run)
    assert (run / "eval" / f"best-000000020-seed0-episodes2,{override}.json").is_file()
    assert data["env_overrides"] == dict([override.split("=")])
    if "max_episode_steps" in override:
        assert data["lengths"] == [4, 4]
    else:
        assert main(["run", "episodes=2", "seed=0"]) == 0
        plain = json.loads((run / "eval" / "best-000000020-seed0-episodes2.json").read_text())
        assert data["lengths"] == plain["lengths"] and data["returns"] == [-1.0, -1.0]


# -- trust ------------------------------------------------------------


@pytest.mark.parametrize("trust", ["env.entry_point=foreign_envs:make", "trust=true"])
def test_code_is_imported_only_if_it_was_typed_or_the_run_is_trusted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trust: str
) -> None:
    """tests/unit/test_trust.py has every key that can name code."""
    (tmp_path / "foreign_envs.py").write_text(
        "import gymnasium\nopen('imported', 'w').close()\ndef make():\n    return gymnasium.make('CartPole-v1')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "foreign_envs", raising=False)
    make.register.cache_clear()  # it imports a module only once per process
    save_run(Path("run"), describe(EnvConfig(entry_point="foreign_envs:make"), cartpole_spec()))
    message = refused(capsys, "run", "episodes=1")
    assert "foreign_envs" in message and "trust=true" in message
    assert not Path("imported").exists()
    assert main(["run", "episodes=1", trust]) == 0
    assert Path("imported").exists()


# -- rendering and signals ------------------------------------------------------------


class DrawingEnv(gymnasium.Env[np.ndarray, int]):
    """Episodes of three env steps; can render."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    metadata: ClassVar = {"render_modes": ["rgb_array", "human"], "render_fps": 30}
    instances: ClassVar[list[DrawingEnv]] = []

    def __init__(self, render_mode: str | None = None, interrupting: bool = False) -> None:
        self.render_mode = render_mode
        self._interrupting = interrupting
        self._time, self._was_reset = 0, False
        DrawingEnv.instances.append(self)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._time, self._was_reset = 0, True
        return np.zeros(4, np.float32), {}

    def step(self, action: int) -> Any:
        # once: a second SIGINT would end the process
        if self._interrupting and self is DrawingEnv.instances[0]:
            os.kill(os.getpid(), signal.SIGINT)
        self._time += 1
        return np.zeros(4, np.float32), 1.0, self._time == 3, False, {}

    def render(self) -> Any:
        if not self._was_reset:  # like gymnasium's OrderEnforcing
            raise gymnasium.error.ResetNeeded("reset first")
        return np.full((30, 40, 3), self._time * 40, np.uint8)


@pytest.fixture
def drawing_env(monkeypatch: pytest.MonkeyPatch) -> list[DrawingEnv]:
    module = types.ModuleType("drawing_envs")
    module.DrawingEnv = DrawingEnv  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "drawing_envs", module)
    monkeypatch.setattr(DrawingEnv, "instances", [])
    return DrawingEnv.instances


def save_drawing(**kwargs: Any) -> None:
    env = EnvConfig(entry_point="drawing_envs:DrawingEnv", kwargs=kwargs)
    spec = env_spec(DrawingEnv.observation_space, DrawingEnv.action_space)
    save_run(Path("run"), describe(env, spec))


def test_without_a_display_an_environment_of_gymnasium_is_not_rendered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    env = gymnasium.make("CartPole-v1")
    spec = env_spec(env.observation_space, env.action_space)
    save_run(Path("run"), describe(EnvConfig(id="CartPole-v1"), spec))
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    assert main(["run", "render=human"]) == 2
    assert "there is no display" in capsys.readouterr().err


def test_render_human_opens_one_window(drawing_env: list[DrawingEnv]) -> None:
    save_drawing()
    assert main(["run", "trust=true", "episodes=4", "render=human"]) == 0
    assert [env.render_mode for env in drawing_env] == ["human"]


def test_films_are_beside_the_result(
    capsys: pytest.CaptureFixture[str], drawing_env: list[DrawingEnv]
) -> None:
    save_drawing()
    assert main(["run", "trust=true", "episodes=3", "video=2"]) == 0
    assert [env.render_mode for env in drawing_env] == [None] * 3 + ["rgb_array"]
    result = "best-000000020-seed0-episodes3"
    films = [f"{result}-episode{episode}.mp4" for episode in (0, 1)]
    assert sorted(path.name for path in Path("run/eval").iterdir()) == [*films, f"{result}.json"]
    assert "episode0.mp4 (return 3.00, 3 env steps)" in capsys.readouterr().out


NO_PYGAME = gymnasium.error.DependencyNotInstalled("pygame is not installed")
NO_OPENGL = RuntimeError("an OpenGL platform library has not been loaded into this process")


@pytest.mark.parametrize(
    ("method", "error", "arg", "said"),
    [
        ("", None, "video=1", "pip install 'border-cli[video]'"),
        ("step", NO_PYGAME, "render=human", "pip install 'border-cli[render]'"),
        ("render", NO_OPENGL, "video=1", "cannot draw: RuntimeError: an OpenGL platform"),
        ("render", NO_OPENGL, "video=1", "MUJOCO_GL=egl"),
    ],
)
def test_what_is_missing_for_drawing_is_named(
    drawing_env: list[DrawingEnv],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    error: Exception | None,
    arg: str,
    said: str,
) -> None:
    def fail(*_: object) -> None:
        assert error is not None
        raise error

    if error is None:
        monkeypatch.setitem(sys.modules, "av", None)
    else:
        monkeypatch.setattr(DrawingEnv, method, fail)
    save_drawing()
    assert said in refused(capsys, "run", "trust=true", "episodes=1", arg)


def test_ctrl_c_exits_with_130_and_writes_no_result(
    capsys: pytest.CaptureFixture[str], drawing_env: list[DrawingEnv]
) -> None:
    save_drawing(interrupting=True)
    handler = signal.getsignal(signal.SIGINT)
    assert main(["run", "trust=true", "episodes=3"]) == 130
    assert signal.getsignal(signal.SIGINT) is handler
    assert capsys.readouterr().err == ""
    assert not Path("run/eval").exists()
