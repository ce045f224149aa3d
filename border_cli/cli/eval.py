"""`border-eval` plays new episodes with the model of a run, and `border-export` writes its policy for other programs.

Nothing imports torch or gymnasium before the command line is accepted and the model has verified.
"""

from __future__ import annotations

import os
import re
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from hydra.core.override_parser.types import Override

from border_cli.checkpoints.contents import SavedModel, read_model, score_data
from border_cli.cli.entry import command, show
from border_cli.cli.overrides import Parser, override_values, typed_names, with_values
from border_cli.config.convert import to_config
from border_cli.config.registry import require_package
from border_cli.config.schema import EnvConfig, option
from border_cli.config.validate import check_effect
from border_cli.core.errors import ActorLostError, ExitCode, Interrupted, UsageError
from border_cli.core.format import counted, number
from border_cli.core.metrics import mean_interval
from border_cli.core.protocols import ActingPolicy, Env
from border_cli.core.types import Evaluation
from border_cli.display.output import write_line
from border_cli.display.text import table_text
from border_cli.run import load
from border_cli.run.directory import check_code, check_plain, shown, writing
from border_cli.run.find import Located, model_directory
from border_cli.run.summary import write_json
from border_cli.runtime import seeding
from border_cli.runtime.stopping import Deadline, StopFlag
from border_cli.training.evaluators import EpisodeRunner

_ENVS = 10
"""Episodes stepped together."""
_SILENCE_S = 10.0
"""Time between two lines that say how far the evaluation is [s]."""
MAX_EPISODE_STEPS = 30_000
"""By default."""


@dataclass
class _Settings:
    """The settings of border-eval, without the overrides of the environment."""

    episodes: int = option(100, "number of episodes", unit="episodes", ge=1)
    checkpoint: str | None = option(None, "best, last, or an opt step")
    seed: int = option(0, "seed of the episodes", unit="seed", ge=0)
    max_episode_steps: int = option(MAX_EPISODE_STEPS, "a longer episode is cut here", unit="env steps", ge=1)
    render: str | None = option(None, "a window with the episodes", choices=("human",))
    video: int = option(0, "films of this many episodes", unit="episodes", ge=0)
    debug: bool = option(False, "show tracebacks")
    trust: bool = option(False, "import the code that the run names")


_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")


@command
def main(argv: Sequence[str]) -> None:
    """The command."""
    parser = Parser("border-eval", _Settings, ("plugins=", "env."))
    flags, paths, overrides = parser.read_paths(argv)
    if parser.answers(flags):
        return
    located, saved, stored = _find_model(flags, paths, overrides)
    if flags.video:
        require_package("av", "video", "video")  # its absence should not be noticed after the episodes
    env = _env_config(stored, overrides)
    check_code({"env": asdict(env)}, typed_names(overrides), flags.trust)
    import torch

    torch.set_num_threads(1)  # batches of ten observations are too small to share among threads
    _evaluate(flags, located, saved, env, override_values(overrides))


@dataclass
class _ExportSettings:
    format: str = option("numpy", "what to write", choices=("onnx", "numpy"))
    out: str | None = option(None, "the folder to write to")
    checkpoint: str | None = option(None, "best, last, or an opt step")
    debug: bool = option(False, "show tracebacks")
    trust: bool = option(False, "import the code that the run names")


@command
def export(argv: Sequence[str]) -> None:
    """The command."""
    parser = Parser("border-export", _ExportSettings, ("plugins=",))
    flags, paths, overrides = parser.read_paths(argv)
    if parser.answers(flags):
        return
    located, saved, env = _find_model(flags, paths, overrides)
    policy, model = load.make_policy(saved, 0), saved.description
    from border_cli.export.write import write_policy

    folder = Path(flags.out or (located.run_dir or located.path) / "export" / flags.format)
    if flags.out and (folder / "README.md").exists() and not list(folder.glob("policy.*")):
        raise UsageError(f"out={folder} has a README.md of something else", allowed="out=<a new folder>")
    title = f"{model.agent['type']} on {env.name}, opt step {saved.info.version:,}"
    with writing(folder, "out=<another folder>"):
        files = write_policy(policy, model.spec, folder, flags.format, title, env.action_mask == "info")
    show("\n".join(["written", *(f"  {shown(path.absolute())}" for path in files)]))


def _find_model(
    flags: Namespace, paths: Sequence[Path], overrides: Sequence[Override]
) -> tuple[Located, SavedModel, EnvConfig]:
    """Find and read the model of a command line and its environment, for a command that also writes to its run.

    Raises UsageError for two of them, where there is none, and for links or plugins of a run that is not trusted.
    """
    if len(paths) > 1:
        raise UsageError(f"{paths[0]} and {paths[1]} are two models", allowed="one at a time")
    located = model_directory(paths[0] if paths else None, flags.checkpoint)
    if located.note:
        show(f"note: {located.note}")
    if located.run_dir is not None:
        check_plain(located.run_dir, flags.trust)
    saved = read_model(located.path)
    # Plugins may define the environment's keys.
    load.import_plugins(saved.description, typed_names(overrides).get("plugins", ()), flags.trust)
    return located, saved, load.stored_config(saved.description).env


def _evaluate(
    flags: Namespace, located: Located, saved: SavedModel, env: EnvConfig, typed: Mapping[str, str]
) -> None:
    """Run the episodes, write and show the results. typed: the overrides of the environment, by key."""
    policy = load.make_policy(saved, flags.seed)
    evaluation = _run_episodes(flags, saved, env, policy)
    returns, lengths = evaluation.returns, evaluation.lengths
    low_and_high, length_mean = mean_interval(returns), sum(lengths) / len(lengths)
    changed = {key: value for key, value in typed.items() if key not in ("plugins", "env.imports")}
    data = {
        "model": located.path.resolve().name,
        "env": env.name,
        "env_overrides": changed,
        "seed": flags.seed,
        "max_episode_steps": flags.max_episode_steps,
        "interval_is": "95% interval of the mean, Student's t",
        "interval": low_and_high,
        "length_mean": length_mean,
        "length_min": min(lengths),
        "length_max": max(lengths),
        "infos": evaluation.infos,
        **score_data(evaluation),
    }
    path = _result_path(flags, located, evaluation.opt_steps, changed)
    try:
        path.parent.mkdir(exist_ok=True)
        write_json(path, data)
        written = f"written: {path}"
    except OSError as e:  # somebody else's run can be evaluated, too
        written = f"not written: {path}: {e.strerror or e}"
    rows = {
        "model": f"{located.path} (opt step {evaluation.opt_steps:,})",
        "environment": " ".join([env.name, *(f"{key}={value}" for key, value in changed.items())]),
        "episodes": f"{len(returns):,} (seed {flags.seed})",
        "return (mean ± std)": str(evaluation),
        "95% interval of the mean": "-" if low_and_high is None else " to ".join(map(number, low_and_high)),
        "smallest, largest return": f"{number(min(returns))}, {number(max(returns))}",
        "episode length": f"{number(length_mean)} ({min(lengths):,} to {max(lengths):,})",
        **{f"mean {key}": number(mean) for key, mean in evaluation.infos.items()},
    }
    show(f"{table_text(list(rows.items())).rstrip()}\n{written}")
    if flags.video:
        _film(flags, saved, env, policy, path)


def _env_config(stored: EnvConfig, overrides: Sequence[Override]) -> EnvConfig:
    """The stored environment with the overrides, checked like those of a training."""
    stored_values = {"agent": {"type": "dqn"}, "env": asdict(stored)}
    data, keys = with_values(stored_values, overrides, command="border-eval"), override_values(overrides)
    if "env.id" in keys:
        data["env"]["entry_point"] = None
    elif "env.entry_point" in keys:
        data["env"]["id"] = ""
    config = to_config(data)
    check_effect(config, keys)
    config.env.imports = list(dict.fromkeys([*stored.imports, *config.env.imports]))
    return config.env


def _run_episodes(flags: Namespace, saved: SavedModel, config: EnvConfig, policy: ActingPolicy) -> Evaluation:
    """Run the episodes. Raises Interrupted when asked to stop meanwhile."""
    from gymnasium.error import DependencyNotInstalled

    # gymnasium's would draw into nothing, those of users may print; SDL_VIDEODRIVER is a choice of the user's
    has_display = sys.platform != "linux" or any(map(os.environ.get, (*_DISPLAYS, "SDL_VIDEODRIVER")))
    if flags.render and not has_display and config.entry_point is None and not config.imports:
        raise UsageError(
            f"render={flags.render}: there is no display, neither {' nor '.join(_DISPLAYS)} is set",
            allowed="video=<episodes>, which writes films",
        )
    n_envs = 1 if flags.render == "human" else min(_ENVS, flags.episodes)  # a person watches one window
    if config.type == "simulator":
        n_envs = flags.episodes  # each of its environments plays one
    seeds = [seeding.integer(flags.seed, seeding.EVAL_COMMAND, i) for i in range(flags.episodes)]
    with StopFlag() as stop, closing(_make_env(config, n_envs, flags.render)) as env:
        if env.spec != saved.description.spec:
            raise UsageError(
                "the environment's spaces are not those that the model was trained with\n"
                f"{saved.description.spec.difference(env.spec)}"
            )
        runner = EpisodeRunner(env, flags.max_episode_steps, stop, config.info_keys)
        silence = Deadline(_SILENCE_S)

        def tick() -> None:
            nonlocal silence
            if silence.passed:
                longest = f"the longest of the others has taken {counted(runner.longest, 'env step')}"
                write_line(sys.stderr, f"{runner.ended} of {flags.episodes} episodes have ended, {longest}")
                silence = Deadline(_SILENCE_S)

        try:
            evaluation = runner.evaluate(policy, saved.info.version, seeds, tick)
        except ActorLostError as e:
            # Only the first frame shows that the package for drawing is missing.
            if flags.render is None or not isinstance(e.__cause__, DependencyNotInstalled):
                raise
            raise UsageError(
                f"render={flags.render} needs a package that is not installed",
                allowed="pip install 'border-cli[render]'",
            ) from e
        if evaluation is None:
            raise Interrupted(stop.code or ExitCode.SIGINT)
    return evaluation


def _make_env(config: EnvConfig, n_envs: int, render_mode: str | None) -> Env:
    from border_cli.envs.group import evaluation_envs

    try:
        return evaluation_envs(config, n_envs, render_mode=render_mode)
    except ActorLostError as e:
        cause = e.__cause__
        raise UsageError(f"the environment cannot be made: {type(cause).__name__}: {cause}") from e


def _film(flags: Namespace, saved: SavedModel, config: EnvConfig, policy: ActingPolicy, path: Path) -> None:
    """Film episodes with the seeds of the first ones, each to a file beside the results, and say where.

    Where the policy or the environment draws random numbers, an episode may differ from that of the evaluation.
    """
    from border_cli.training.videos import film_episode

    with StopFlag() as stop, closing(_make_env(config, 1, "rgb_array")) as env:
        for episode in range(min(flags.video, flags.episodes)):
            target = path.with_name(f"{path.stem}-episode{episode}.mp4")
            seed = seeding.integer(flags.seed, seeding.EVAL_COMMAND, episode)
            filmed = film_episode(
                env, policy, saved.info.version, seed, target, flags.max_episode_steps, stop
            )
            if filmed is None:
                raise Interrupted(stop.code or ExitCode.SIGINT)
            steps = counted(filmed.lengths[0], "env step")
            show(f"written: {target} (return {number(filmed.returns[0])}, {steps})")


def _result_path(flags: Namespace, located: Located, opt_steps: int, changed: Mapping[str, str]) -> Path:
    """In the run's eval/ folder; for a model outside of a run beside its directory."""
    name = located.path.resolve().name
    model = name if name.startswith("step-") else f"{name}-{opt_steps:09d}"
    parts = [f"{model}-seed{flags.seed}-episodes{flags.episodes}"]
    if flags.max_episode_steps != MAX_EPISODE_STEPS:
        parts.append(f"max_episode_steps={flags.max_episode_steps}")
    parts += [re.sub(r"[^\w.=-]+", "-", f"{key}={value}") for key, value in changed.items()]
    file = f"{','.join(parts)[:200]}.json"
    if located.run_dir is None:
        return located.path.resolve().parent / f"eval-{file}"
    return located.run_dir / "eval" / file
