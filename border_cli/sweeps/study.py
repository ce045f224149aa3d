"""Optuna's study of a tuning: it draws the values of trials, learns from what they reach, and keeps them in its journal."""

from __future__ import annotations

import contextlib
import importlib
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from border_cli.config.schema import option
from border_cli.core.errors import UsageError

STUDY_FILE = "study.log"
_STUDY_NAME = "border-cli"
SAMPLERS = ("tpe", "gp", "cmaes", "random")
PRUNERS = ("median", "halving", "none")
OBJECTIVES = ("best", "last", "area")
_DRAWS, _RANDOM_DRAWS = 5, 100
"""Draws in a row that may repeat an earlier trial: first of the sampler, which may insist on what it has found best, then
random ones. After them the search space counts as exhausted."""
_STARTUP = 5
"""Trials that end before the median prunes any."""


@dataclass(frozen=True)
class TuningSettings:
    """The keys of `hydra.sweeper`."""

    n_trials: int = option(40, "configurations to try", ge=1)
    sampler: str = option("tpe", "what draws the values of a trial", choices=SAMPLERS)
    pruner: str = option("median", "what stops bad trials", choices=PRUNERS)
    seeds: int = option(1, "runs of each trial, with seeds from `seed` of the run on", ge=1)
    objective: str = option("best", "which score is maximised, see `objective`", choices=OBJECTIVES)
    reduction: int = option(2, "of pruner=halving: one of so many trials runs on from each rung", ge=2)
    top: int = option(3, "trials that are confirmed at the end, on fresh seeds", ge=0)
    top_seeds: int = option(5, "runs of each of them", ge=1)
    seed: int = option(0, "of the sampler", ge=0)
    space: str | None = option(
        None, "agent, or file that ends in .yaml, whose search space is used by default"
    )


class Study:
    """A new study in this folder, or that of earlier launches.

    Args:
        space: Optuna's distribution of each key.
        prunes_from: the opt step from which on trials may be pruned.

    Raises:
        UsageError: the earlier launches have searched another space.
    """

    def __init__(
        self, folder: Path, space: Mapping[str, Any], settings: TuningSettings, prunes_from: int
    ) -> None:
        self._optuna = import_optuna()
        self._space = dict(space)
        self._seed = settings.seed
        self._states = self._optuna.trial.TrialState
        pruners = self._optuna.pruners
        make: dict[str, Callable[[], Any]] = {
            "median": lambda: pruners.MedianPruner(_STARTUP, n_warmup_steps=prunes_from),
            "halving": lambda: pruners.SuccessiveHalvingPruner(max(1, prunes_from), settings.reduction),
            "none": pruners.NopPruner,
        }
        self._study = self._open(folder / STUDY_FILE, make[settings.pruner]())
        # A launch that continues must not draw the same values again.
        n_trials = len(self.trials)
        seed = _seed_after(settings.seed, n_trials) if n_trials else settings.seed
        self._study.sampler = self._make_sampler(settings.sampler, seed)
        keys = {key: str(distribution) for key, distribution in space.items()}
        if self.notes.get("space", keys) != keys:
            raise UsageError(
                f"{folder} has tuned in another search space",
                allowed="that one, or hydra.sweep.dir=<new folder>",
            )
        self.note("space", keys)

    def _open(self, path: Path, pruner: Any) -> Any:
        _repair(path)
        backend: Any = importlib.import_module("optuna.storages.journal")
        # The path is absolute because Optuna's lock is a link to it.
        storage = self._optuna.storages.JournalStorage(backend.JournalFileBackend(str(path.absolute())))
        return self._optuna.create_study(
            study_name=_STUDY_NAME, storage=storage, direction="maximize", pruner=pruner, load_if_exists=True
        )

    def _make_sampler(self, name: str, seed: int) -> Any:
        samplers = self._optuna.samplers
        # TPE takes each value on its own: with few trials it learns less from the joint density of all values.
        make: dict[str, Callable[[], Any]] = {
            "tpe": lambda: samplers.TPESampler(constant_liar=True, seed=seed),
            "random": lambda: samplers.RandomSampler(seed=seed),
            "gp": lambda: samplers.GPSampler(seed=seed),
            "cmaes": lambda: samplers.CmaEsSampler(seed=seed, consider_pruned_trials=True),
        }
        try:
            with _quiet():
                return make[name]()
        except ImportError as e:
            raise UsageError(
                f"hydra.sweeper.sampler={name}: {str(e).splitlines()[0]}",
                allowed="pip install 'border-cli[tune]'",
            ) from e

    @property
    def notes(self) -> dict[str, Any]:
        """What was noted with `note`, also in earlier launches."""
        notes: dict[str, Any] = self._study.user_attrs
        return notes

    def note(self, name: str, value: Any) -> None:
        """Store a value of JSON in the journal."""
        self._study.set_user_attr(name, value)

    @property
    def trials(self) -> list[Any]:
        """All trials as Optuna has them."""
        trials: list[Any] = self._study.trials
        return trials

    def params(self, trial: Any) -> dict[str, str]:
        """The values of a trial, as they are typed."""
        return {key: value_text(trial.params[key], distribution) for key, distribution in self._space.items()}

    def draw(self, tried: Collection[Mapping[str, str]]) -> tuple[int, dict[str, str]] | None:
        """Number in the study and values of a new trial, as they are typed; None if all that is drawn has been tried.

        tried: values of all trials.
        """
        sampler = self._study.sampler
        try:
            for i in range(_DRAWS + _RANDOM_DRAWS):
                if i >= _DRAWS:
                    seed = _seed_after(self._seed, len(self.trials))
                    self._study.sampler = self._optuna.samplers.RandomSampler(seed=seed)
                with _quiet():
                    asked = self._study.ask(self._space)
                if (params := self.params(asked)) not in tried:
                    return asked.number, params
                self.tell(asked.number, "FAIL")
            return None
        finally:
            self._study.sampler = sampler

    def report(self, number: int, opt_step: int, score: float) -> bool:
        """Note a score of a running trial. Returns whether the pruner would stop it."""
        trial = self._optuna.trial.Trial(self._study, self.trials[number]._trial_id)
        with _quiet():  # a run that has resumed from before its last report reports that again
            trial.report(score, opt_step)
        return bool(trial.should_prune())

    def tell(self, number: int, state: str, score: float | None = None) -> None:
        """Note that a trial has ended as COMPLETE, PRUNED or FAIL; a second time is no error."""
        if not self.trials[number].state.is_finished():
            self._study.tell(number, score, self._states[state])

    def again(self, number: int) -> int:
        """The number of the trial with which one that has failed runs again: it takes no more reports itself."""
        before = self.trials[number]
        values = {"params": before.params, "distributions": before.distributions}
        self._study.add_trial(self._optuna.trial.create_trial(state=self._states.RUNNING, **values))
        return len(self.trials) - 1


def _seed_after(seed: int, n_trials: int) -> int:
    return int(np.random.SeedSequence((seed, n_trials)).generate_state(1)[0])


def value_text(value: Any, distribution: Any) -> str:
    """A value as it is typed: with four significant digits, unless they lie outside of the distribution."""
    if not isinstance(value, float) or not hasattr(distribution, "low"):
        return str(value)
    text = f"{value:.4g}"
    return text if distribution.low <= float(text) <= distribution.high else repr(value)


def import_optuna() -> Any:
    """The package. Raises UsageError where it is not installed."""
    try:
        optuna: Any = importlib.import_module("optuna")
    except ModuleNotFoundError as e:
        raise UsageError(
            f"hydra/sweeper=border_optuna: the package {e.name} is not installed",
            allowed="pip install 'border-cli[tune]'",
        ) from e
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drop Optuna's warnings: about experimental arguments, and steps that are reported again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _repair(path: Path) -> None:
    """Undo what a killed launch has left of a write to the journal: Optuna's lock, and part of a line.

    The sweep is locked, so no other launch is writing.
    """
    Path(f"{path}.lock").unlink(missing_ok=True)
    if path.exists():
        whole = path.read_bytes().rpartition(b"\n")
        if whole[2]:
            os.truncate(path, len(whole[0]) + len(whole[1]))
