"""Training from Python: what `border-train` does, with parts of the caller's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from border_cli.config.schema import TrainConfig
from border_cli.core.progress import RunResult
from border_cli.core.protocols import Evaluator, Recorder
from border_cli.run.factories import UserParts
from border_cli.runtime.stopping import StopFlag


def compose(*overrides: str, config_dir: str | None = None) -> TrainConfig:
    """Return the configuration of `border-train <overrides>`.

    `compose("agent=dqn", "env=cartpole", "n_actors=8")` picks the agent, the environment and its preset by name.

    Raises:
        UsageError: an override is refused.
    """
    from border_cli.cli.compose import Composer
    from border_cli.cli.overrides import parse_overrides
    from border_cli.config import registry

    registry.import_installed_plugins()
    return Composer(parse_overrides(overrides), config_dir).compose().config


def train_async(
    config: TrainConfig | Sequence[str],
    run_dir: Path | str,
    *,
    recorder: Recorder | None = None,
    evaluator: Evaluator | None = None,
) -> RunResult:
    """Train with asynchronous actors in a new run directory.

    Call it under `if __name__ == "__main__":`, because actors are processes that import the main module.

    Args:
        config: `TrainConfig(agent=DqnConfig(), env=EnvConfig(id="CartPole-v1"), n_actors=4)`, or overrides as the command
            line has them: `["agent=dqn", "env=cartpole", "n_actors=4"]`.
        run_dir: the run directory; it must not hold a run yet.
        recorder: gets every record beside the files, such as a `border_cli.BufferedRecorder`.
        evaluator: evaluates models in place of the configured evaluator; the run stores `evaluator.type=inline`.

    Returns:
        How the run ended: its best and last evaluation, its speed, and an `ActorStat` per actor.

    Raises:
        BorderError: the run failed. Interrupted: it was asked to stop.
    """
    with StopFlag() as stop:
        return _train(_composed(config), Path(run_dir), UserParts(recorder, evaluator), stop)


def train(
    config: TrainConfig | Sequence[str],
    run_dir: Path | str,
    *,
    recorder: Recorder | None = None,
    evaluator: Evaluator | None = None,
) -> RunResult:
    """Train in this thread, with `trainer.type=sync`. Arguments, result and errors are those of `train_async`."""
    config = _composed(config, "trainer=sync")
    config = replace(config, trainer=replace(config.trainer, type="sync"))
    with StopFlag() as stop:
        return _train(config, Path(run_dir), UserParts(recorder, evaluator), stop)


def _composed(config: TrainConfig | Sequence[str], *words: str) -> TrainConfig:
    return config if isinstance(config, TrainConfig) else compose(*words, *config)


def _train(config: TrainConfig, run_dir: Path, user: UserParts, stop: StopFlag) -> RunResult:
    from border_cli.config.convert import to_config, to_plain
    from border_cli.config.validate import validate
    from border_cli.run import directory, run
    from border_cli.run.preflight import preflight

    config = to_config(to_plain(config))  # each value against its declared type and range, as for the command
    validate(config)
    if user.evaluator is not None:  # it is called in this thread, and there is no process for it
        config = replace(config, evaluator=replace(config.evaluator, type="inline"))
    config, spec, decided = preflight(config, stop, run_dir)
    with directory.exclusive(run_dir) as path:
        directory.write_config(path, config)
        launch = directory.Launch([], command="train" if config.trainer.type == "sync" else "train_async")
        return run.train(config, spec, path, launch, stop, user=user, decided=decided)
