"""Optuna's study of a tuning: it draws the values of trials, and learns from what they reach.

The study is in the sweep's folder, in Optuna's journal. Each rung that a trial reaches is a finished trial there, pruned
below the last rung: so the sampler learns from it at once.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from border_cli.core.errors import UsageError

STUDY_FILE = "study.log"
_STUDY_NAME = "border-cli"
SAMPLERS = ("gp", "tpe", "cmaes", "random")
_DRAWS, _RANDOM_DRAWS = 5, 100
"""Draws in a row that may repeat an earlier trial: first of the sampler, which may insist on what it has found best, then
random ones. After them the search space counts as exhausted."""
_STARTUP = 10
"""Trials with a score before a Gaussian process is fitted."""
_RANDOM_EVERY = 3
"""One of so many trials stays random, as in BOHB (Falkner et al., 2018): a model of few scores insists on a region."""
_LINE = 3
"""Trials that a line from one rung to the next needs."""


class Study:
    """A new study in this folder, or that of earlier launches.

    Args:
        space: Optuna's distribution of each key.
        sampler: one of `SAMPLERS`. seed: of the sampler.
        pruner: "halving", "median" for Optuna's own, which `report` asks, or "none".
    """

    def __init__(self, folder: Path, space: Mapping[str, Any], sampler: str, seed: int, pruner: str) -> None:
        self._optuna = import_optuna()
        self._space = dict(space)
        self._seed = seed
        self._states = self._optuna.trial.TrialState
        self._study = _open(self._optuna, folder / STUDY_FILE, sampler, seed, pruner == "median")
        # Optuna's Gaussian process learns from trials that are complete, not from pruned ones. Halving completes few.
        self._has_model = (sampler, pruner) == ("gp", "halving")

    @property
    def trials(self) -> list[Any]:
        """All trials as Optuna has them."""
        found: list[Any] = self._study.trials
        return found

    def draw(
        self, tried: Collection[Mapping[str, str]], scores: Mapping[int, Sequence[float]]
    ) -> tuple[int, dict[str, str]] | None:
        """Number in the study and values of a new trial, as they are typed; None if all that is drawn has been tried.

        tried: values of all trials · scores: number in the study → what the trial has reached at each rung so far.
        """
        sampler = self._study.sampler
        try:
            for i in range(_DRAWS + _RANDOM_DRAWS):
                with _quiet():
                    has_model = self._has_model and sum(map(bool, scores.values())) >= _STARTUP
                    if i >= _DRAWS or (has_model and len(scores) % _RANDOM_EVERY == 0):
                        self._study.sampler = self._optuna.samplers.RandomSampler(seed=self._new_seed())
                    elif has_model:
                        values = self._modelled(scores)
                        self._study.sampler = self._optuna.samplers.PartialFixedSampler(values, sampler)
                    asked = self._study.ask(self._space)
                params = {key: value_text(value, self._space[key]) for key, value in asked.params.items()}
                if params not in tried:
                    return asked.number, params
                self._study.tell(asked.number, state=self._states.FAIL)
            return None
        finally:
            self._study.sampler = sampler

    def _modelled(self, scores: Mapping[int, Sequence[float]]) -> dict[str, Any]:
        """Values that a Gaussian process of the expected scores proposes."""
        scored = [number for number in scores if scores[number]]
        optuna, states, trials = self._optuna, self._states, self.trials
        expected = dict(zip(scored, expected_scores([scores[number] for number in scored]), strict=True))
        model = optuna.create_study(
            direction="maximize", sampler=optuna.samplers.GPSampler(seed=self._new_seed())
        )
        for number in scores:
            known = {"params": trials[number].params, "distributions": trials[number].distributions}
            if number in expected:
                known |= {"state": states.COMPLETE, "value": expected[number]}
            elif trials[number].state is states.RUNNING:
                known |= {"state": states.RUNNING}
            else:  # failed before it had a score
                continue
            model.add_trial(optuna.trial.create_trial(**known))
        params: dict[str, Any] = model.ask(self._space).params
        return params

    def _new_seed(self) -> int:
        """Another seed for each trial, and for each seed of the sampler."""
        return _seed_after(self._seed, len(self.trials))

    def report(self, number: int, opt_step: int, score: float) -> bool:
        """Note a score of a running trial. Returns whether the pruner would stop it.

        A trial that failed and runs again has ended here already, and the pruner lets it run.
        """
        if self.trials[number].state.is_finished():
            return False
        handle = self._handle(number)
        with _quiet():  # a run that has resumed from before its last report reports that again
            handle.report(score, opt_step)
        return bool(handle.should_prune())

    def tell(self, number: int, rung: int, scores: Mapping[int, float], final: float | None) -> None:
        """Note what a trial has reached; a second time is no error.

        scores: at the opt steps of its rungs so far · final: that of the whole budget; None for a trial that has paused or
        was pruned.
        """
        state = self._states.PRUNED if final is None else self._states.COMPLETE
        asked = self.trials[number]
        if rung == 0 and asked.state is not self._states.FAIL:  # a failed one may have run again
            if not asked.state.is_finished():
                for opt_step, score in scores.items():
                    self._handle(number).report(score, opt_step)
                self._study.tell(number, final, state)
            return
        key = {"trial": number, "rung": rung}
        if any(one.user_attrs == key for one in self.trials):
            return
        self._study.add_trial(
            self._optuna.trial.create_trial(
                state=state,
                value=final,
                params=asked.params,
                distributions=asked.distributions,
                intermediate_values=dict(scores),
                user_attrs=key,
            )
        )

    def fail(self, number: int) -> None:
        """Note that a trial has failed, if it has not ended."""
        if not self.trials[number].state.is_finished():
            self._study.tell(number, state=self._states.FAIL)

    def fail_others(self, known: Collection[int]) -> None:
        """Mark running trials that are not in `known` as failed: they were drawn just before a kill, and have no jobs."""
        for one in self.trials:
            if one.state is self._states.RUNNING and one.number not in known:
                self._study.tell(one.number, state=self._states.FAIL)

    def _handle(self, number: int) -> Any:
        """Optuna's object for a trial that was drawn in this launch or an earlier one."""
        return self._optuna.trial.Trial(self._study, self.trials[number]._trial_id)


def expected_scores(scores: Sequence[Sequence[float]]) -> list[float]:
    """The score of each trial at the furthest rung that enough trials have reached.

    scores: of each trial at its rungs, one or more. A trial that has not come so far gets a prediction: from each rung to
    the next, by the least-squares line through the trials that have reached both. Few trials with similar scores make a
    poor line. So one made-up trial takes part in the fit: it lies above the mean by the standard deviation of all trials,
    and gains as much as the mean does. A negative slope becomes 0.
    """
    at = np.array([one[0] for one in scores], np.float64)
    for rung in range(1, max(map(len, scores))):
        reached = np.array([len(one) > rung for one in scores])
        if reached.sum() < _LINE:
            break
        before, after = np.array([one[rung - 1 : rung + 1] for one in scores if len(one) > rung]).T
        away = before - before.mean()
        variance = 0.0 if np.isclose(at.min(), at.max()) else at.var()
        slope = max(0.0, (away @ after + variance) / (away @ away + variance)) if variance else 1.0
        at = after.mean() + slope * (at - before.mean())
        at[reached] = after
    return [float(score) for score in at]


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
            f"hydra/sweeper=border_optuna: the package {e.name} is not installed\nallowed: pip install 'border-cli[tune]'"
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


def _open(optuna: Any, path: Path, sampler: str, seed: int, median: bool) -> Any:
    _repair(path)
    backend: Any = importlib.import_module("optuna.storages.journal")
    # The path is absolute because Optuna's lock is a link to it.
    storage = optuna.storages.JournalStorage(backend.JournalFileBackend(str(path.absolute())))
    study = optuna.create_study(
        study_name=_STUDY_NAME,
        storage=storage,
        direction="maximize",
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5) if median else optuna.pruners.NopPruner(),
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
                f"hydra.sweeper.sampler={sampler}: {str(e).splitlines()[0]}\n"
                "allowed: pip install 'border-cli[tune]'"
            ) from e
    return study
