"""`border-eval`: find a model, judge it on new episodes, print the figures and write them into the run directory.

Nothing imports torch or gymnasium before the words are accepted and the model has verified.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import border_cli
from border_cli.checkpoints.contents import SavedModel, read_model
from border_cli.cli.eval_arguments import HELP, EvalArguments, parse_arguments
from border_cli.cli.eval_table import eval_table
from border_cli.cli.output import exit_code, open_missing_streams, show
from border_cli.config.schema import EnvConfig
from border_cli.core.errors import ActorLostError, BorderError, ExitCode, Interrupted, UsageError
from border_cli.core.protocols import ActingPolicy, Evaluation
from border_cli.envs.guarded import GuardedEnv
from border_cli.evaluation.episodes import EpisodeRunner
from border_cli.evaluation.film import Film
from border_cli.evaluation.statistics import INTERVAL, Statistics, summarise
from border_cli.runs import load
from border_cli.runs.directory import check_plain
from border_cli.runs.json_file import write_json
from border_cli.runs.locate import Located, model_directory
from border_cli.runs.trust import check_env
from border_cli.runtime.seeding import judgement_seed
from border_cli.runtime.signals import StopFlag

if TYPE_CHECKING:
    from border_cli.envs.gym_env import GymEnv

_ENVS = 10
"""Episodes stepped together."""


@dataclass(frozen=True)
class _Judged:
    """A model with what its episodes brought."""

    located: Located
    env_name: str
    evaluation: Evaluation
    statistics: Statistics


def main(argv: list[str] | None = None) -> int:
    """The command. argv: the words after its name, by default those of the process. Returns the exit code."""
    words = sys.argv[1:] if argv is None else argv
    if argv is None:
        open_missing_streams()
    debug = any(word.lower() == "debug=true" for word in words)
    return exit_code(lambda: _dispatch(parse_arguments(words)), debug)


def _dispatch(arguments: EvalArguments) -> int:
    if arguments.help:
        show(HELP)
    elif arguments.version:
        show(f"border-cli {border_cli.__version__}")
    else:
        _judge_and_tell(arguments)
    return ExitCode.DONE


def _judge_and_tell(arguments: EvalArguments) -> None:
    located = model_directory(arguments.run, arguments.checkpoint)
    if located.note:
        show(f"note: {located.note}")
    saved = read_model(located.path)
    own = load.is_own_code(located, saved.description)
    env = load.env_config(saved.description)
    check_env(env, arguments.code, own)
    load.import_plugins(saved.description, arguments.code, own)
    _use_one_thread()
    policy = load.make_policy(saved, arguments.seed)
    evaluation, film = _judge(arguments, saved, _with_typed(env, arguments), policy)
    judged = _Judged(located, env.name, evaluation, summarise(evaluation))
    show(eval_table(judged.statistics, _facts(arguments, judged)))
    _keep(arguments, judged, film)


def _use_one_thread() -> None:
    """Batches of ten observations are too small to share: waiting for each other, threads take far longer."""
    import torch

    torch.set_num_threads(1)


def _judge(
    arguments: EvalArguments, saved: SavedModel, env_config: EnvConfig, policy: ActingPolicy
) -> tuple[Evaluation, Film | None]:
    """Run the episodes. Raises Interrupted when asked to stop meanwhile."""
    with StopFlag() as stop:
        # A person can follow one window; elsewhere more at a time are faster.
        n_envs = 1 if arguments.render == "human" else min(_ENVS, arguments.episodes)
        env = _make_env(env_config, n_envs, arguments.render)
        try:
            if env.spec != saved.description.spec:
                raise UsageError(
                    "the environment's spaces are not those that the model was trained with\n"
                    "the version of its package is probably another one"
                )
            film = Film(env.render) if arguments.render == "rgb_array" else None
            runner = EpisodeRunner(
                GuardedEnv(env, "the evaluation"),
                arguments.max_episode_steps,
                stop,
                film.shoot if film else _nothing,
            )
            seeds = [judgement_seed(arguments.seed, episode) for episode in range(arguments.episodes)]
            evaluation = _drawing(
                lambda: runner.evaluate(policy, saved.info.version, seeds), arguments.render
            )
        finally:
            env.close()
        if evaluation is None:
            raise Interrupted(stop.code or ExitCode.SIGINT)
    return evaluation, film


def _make_env(config: EnvConfig, n_envs: int, render: str | None) -> GymEnv:
    from border_cli.envs.gym_env import GymEnv

    try:
        return GymEnv(config, n_envs, render)
    except BorderError:
        raise
    except Exception as e:
        raise UsageError(f"the environment cannot be made: {type(e).__name__}: {e}") from e


def _drawing(evaluate: Callable[[], Evaluation | None], render: str | None) -> Evaluation | None:
    """Evaluate; a missing package for drawing, which shows at the first frame only, is the user's to mend."""
    from gymnasium.error import DependencyNotInstalled

    try:
        return evaluate()
    except (DependencyNotInstalled, ActorLostError) as e:
        if not isinstance(e, DependencyNotInstalled) and not isinstance(e.__cause__, DependencyNotInstalled):
            raise
        raise UsageError(
            f"render={render} needs a package that is not installed\n"
            "install it with: pip install 'border-cli[render]'"
        ) from e


def _with_typed(env: EnvConfig, arguments: EvalArguments) -> EnvConfig:
    """The stored environment, with the modules typed to import beside its own.

    What leaves its space is told and no error, as in the evaluations of the run (`parts.evaluation_env`).
    """
    imports = list(dict.fromkeys([*env.imports, *arguments.code.imports]))
    return replace(env, imports=imports, out_of_bounds="warn")


def _nothing() -> None:
    """There is nothing to do between env steps."""


def _facts(arguments: EvalArguments, judged: _Judged) -> list[tuple[str, str]]:
    return [
        ("model", f"{judged.located.path} (opt step {judged.evaluation.opt_steps:,})"),
        ("environment", judged.env_name),
        ("episodes", f"{judged.statistics.episodes:,} (seed {arguments.seed})"),
    ]


def _keep(arguments: EvalArguments, judged: _Judged, film: Film | None) -> None:
    """Write the figures, and the film, and say where. A folder that cannot be written to is no error."""
    path, run_dir = _result_path(arguments, judged), judged.located.run_dir
    try:
        if run_dir is not None and not load.is_own_run(judged.located):
            check_plain(run_dir)
        path.parent.mkdir(exist_ok=True)
        write_json(path, _result(arguments, judged))
        show(f"written: {path}")
        if film is not None:
            film.save(path.with_suffix(".gif"))
            show(f"written: {path.with_suffix('.gif')}")
    except OSError as e:
        show(f"not written: {path}: {e.strerror or e}")
    except UsageError as e:
        show(f"not written: {str(e).splitlines()[0]}")


def _result_path(arguments: EvalArguments, judged: _Judged) -> Path:
    """In the run's eval/; for a model outside of a run beside its directory."""
    path, run_dir = judged.located.path, judged.located.run_dir
    name = path.resolve().name
    model = name if name.startswith("step-") else f"{name}-{judged.evaluation.opt_steps:09d}"
    file = f"{model}-seed{arguments.seed}-episodes{arguments.episodes}.json"
    return run_dir / "eval" / file if run_dir is not None else path.resolve().parent / f"eval-{file}"


def _result(arguments: EvalArguments, judged: _Judged) -> dict[str, Any]:
    return {
        "model": judged.located.path.resolve().name,
        "opt_steps": judged.evaluation.opt_steps,
        "env": judged.env_name,
        "seed": arguments.seed,
        "max_episode_steps": arguments.max_episode_steps,
        "interval_is": INTERVAL,
        **asdict(judged.statistics),
        "returns": judged.evaluation.returns,
        "lengths": judged.evaluation.lengths,
    }


if __name__ == "__main__":
    sys.exit(main())
