"""Optuna's study of a tuning: it draws the values of trials, and learns from what they reach.

The study is in the sweep's folder, in Optuna's journal.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from border_cli.core.errors import UsageError

STUDY_FILE = "study.log"
_STUDY_NAME = "border-cli"
SAMPLERS = ("tpe", "gp", "cmaes", "random")
PRUNERS = ("median", "halving", "none")
_DRAWS, _RANDOM_DRAWS = 5, 100
"""Draws in a row that may repeat an earlier trial: first of the sampler, which may insist on what it has found best, then
random ones. After them the search space counts as exhausted."""
_STARTUP = 5
"""Trials that end before the median prunes any."""


class Study:
    """A new study in this folder, or that of earlier launches.

    Args:
        space: Optuna's distribution of each key.
        sampler: one of `SAMPLERS`. seed: of the sampler.
        pruner: one of `PRUNERS`. prunes_from: the opt step from which on it prunes · reduction: of halving.
    """

    def __init__(
        self,
        folder: Path,
        space: Mapping[str, Any],
        sampler: str,
        seed: int,
        pruner: str = "none",
        prunes_from: int = 0,
        reduction: int = 2,
    ) -> None:
        self._optuna = import_optuna()
        self._space = dict(space)
        self._seed = seed
        self._states = self._optuna.trial.TrialState
        pruners = self._optuna.pruners
        make: dict[str, Callable[[], Any]] = {
            "median": lambda: pruners.MedianPruner(_STARTUP, n_warmup_steps=prunes_from),
            "halving": lambda: pruners.SuccessiveHalvingPruner(max(1, prunes_from), reduction),
            "none": pruners.NopPruner,
        }
        self._study = _open(self._optuna, folder / STUDY_FILE, sampler, seed, make[pruner]())

    @property
    def trials(self) -> list[Any]:
        """All trials as Optuna has them."""
        found: list[Any] = self._study.trials
        return found

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
                params = {key: value_text(value, self._space[key]) for key, value in asked.params.items()}
                if params not in tried:
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
        """The number of a trial that is to run on. One that has failed runs again as another trial of Optuna's."""
        before = self.trials[number]
        if before.state is not self._states.FAIL:
            return number
        values = {"params": before.params, "distributions": before.distributions}
        self._study.add_trial(self._optuna.trial.create_trial(state=self._states.RUNNING, **values))
        return len(self.trials) - 1

    def fail_others(self, known: Collection[int]) -> None:
        """Mark running trials that are not in `known` as failed: they were drawn just before a kill, and have no jobs."""
        for one in self.trials:
            if one.state is self._states.RUNNING and one.number not in known:
                self.tell(one.number, "FAIL")


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


def _open(optuna: Any, path: Path, sampler: str, seed: int, pruner: Any) -> Any:
    _repair(path)
    backend: Any = importlib.import_module("optuna.storages.journal")
    # The path is absolute because Optuna's lock is a link to it.
    storage = optuna.storages.JournalStorage(backend.JournalFileBackend(str(path.absolute())))
    study = optuna.create_study(
        study_name=_STUDY_NAME,
        storage=storage,
        direction="maximize",
        pruner=pruner,
        load_if_exists=True,
    )
    if study.trials:  # a launch that continues must not draw the same values again
        seed = _seed_after(seed, len(study.trials))
    samplers = optuna.samplers
    # TPE takes each value on its own: with few trials it learns less from the joint density of all values.
    make: dict[str, Callable[[], Any]] = {
        "tpe": lambda: samplers.TPESampler(constant_liar=True, seed=seed),
        "random": lambda: samplers.RandomSampler(seed=seed),
        "gp": lambda: samplers.GPSampler(seed=seed),
        "cmaes": lambda: samplers.CmaEsSampler(seed=seed, consider_pruned_trials=True),
    }
    with _quiet():
        try:
            study.sampler = make[sampler]()
        except ImportError as e:
            raise UsageError(
                f"hydra.sweeper.sampler={sampler}: {str(e).splitlines()[0]}",
                allowed="pip install 'border-cli[tune]'",
            ) from e
    return study
