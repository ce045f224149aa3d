"""Optuna's study of a tuning: what draws the values of trials, what prunes them, and its journal."""

from __future__ import annotations

import contextlib
import importlib
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from border_cli.config.registry import require_package
from border_cli.config.schema import option
from border_cli.core.errors import UsageError

STUDY_FILE = "study.log"
_STUDY_NAME = "border-cli"
_STARTUP = 5
"""Trials that end before the median prunes any."""


@dataclass(frozen=True)
class TuningSettings:
    """The keys of `hydra.sweeper`."""

    n_trials: int = option(40, "configurations to try", ge=1)
    sampler: str = option("tpe", "what draws the values of a trial", choices=("tpe", "gp", "cmaes", "random"))
    pruner: str = option("median", "what stops bad trials", choices=("median", "none"))
    seeds: int = option(1, "runs of each trial, with seeds from `seed` of the run on", ge=1)
    objective: str = option(
        "best", "which score is maximised, see `objective`", choices=("best", "last", "area")
    )
    top: int = option(3, "trials that are confirmed at the end, on fresh seeds", ge=0)
    top_seeds: int = option(5, "runs of each of them", ge=1)
    seed: int = option(0, "of the sampler", ge=0)
    space: str | None = option(
        None, "agent, or file that ends in .yaml, whose search space is used by default"
    )


def import_optuna() -> Any:
    """The package. Raises UsageError where it is not installed."""
    require_package("optuna", "hydra/sweeper=border_optuna", "tune")
    optuna: Any = importlib.import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def open_study(optuna: Any, folder: Path, settings: TuningSettings, prunes_from: int) -> Any:
    """A new study in this folder, or that of earlier launches, with sampler and pruner."""
    path = (folder / STUDY_FILE).absolute()  # Optuna's lock is a link to it
    # A killed launch may have left Optuna's lock, and part of a line. The sweep is locked: no other launch is writing.
    Path(f"{path}.lock").unlink(missing_ok=True)
    if path.exists():
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
    backend: Any = importlib.import_module("optuna.storages.journal")
    pruners = optuna.pruners
    median = settings.pruner == "median"
    study = optuna.create_study(
        study_name=_STUDY_NAME,
        storage=optuna.storages.JournalStorage(backend.JournalFileBackend(str(path))),
        direction="maximize",
        pruner=pruners.MedianPruner(_STARTUP, n_warmup_steps=prunes_from) if median else pruners.NopPruner(),
        load_if_exists=True,
    )
    seed = seed_after(settings.seed, len(study.trials)) if study.trials else settings.seed
    samplers = optuna.samplers
    # TPE takes each value on its own: with few trials it learns less from the joint density of all values.
    make: dict[str, Callable[[], Any]] = {
        "tpe": lambda: samplers.TPESampler(constant_liar=True, seed=seed),
        "random": lambda: samplers.RandomSampler(seed=seed),
        "gp": lambda: samplers.GPSampler(seed=seed),
        "cmaes": lambda: samplers.CmaEsSampler(seed=seed, consider_pruned_trials=True),
    }
    try:
        with quiet():
            study.sampler = make[settings.sampler]()
    except ImportError as e:
        raise UsageError(
            f"hydra.sweeper.sampler={settings.sampler}: {str(e).splitlines()[0]}",
            allowed="pip install 'border-cli[tune]'",
        ) from e
    return study


def seed_after(seed: int, n_trials: int) -> int:
    """The seed of a sampler that begins after this number of trials, so that it does not draw the same values again."""
    return int(np.random.SeedSequence((seed, n_trials)).generate_state(1)[0])


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Drop Optuna's warnings: about experimental arguments, and steps that are reported again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def value_text(value: Any, distribution: Any) -> str:
    """A value as it is typed: with four significant digits, unless they lie outside of the distribution."""
    if not isinstance(value, float) or not hasattr(distribution, "low"):
        return str(value)
    text = f"{value:.4g}"
    return text if distribution.low <= float(text) <= distribution.high else repr(value)
