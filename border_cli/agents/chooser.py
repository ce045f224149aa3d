"""The fastest form of the opt step on this machine, found by timing the forms during the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch

from border_cli.agents.agent import NetworkAgent
from border_cli.agents.compiler import GraphCompiler
from border_cli.agents.params import TensorBatch

_logger = logging.getLogger(__name__)
TURN_S, TURN_OPT_STEPS = 0.2, 5
"""A turn lasts at least so long: what the kernel schedules otherwise weighs too much."""
WARM_UP_S = 0.02
"""The start of a turn does not count: caches are cold, and threads asleep."""
_PAIRS = 5
_CLEARLY_FASTER, _HOPELESS = 1.03, 0.8
"""Speeds of another form, over that of the form in use: above the first it is taken; below the second one pair decides."""
_FIRST_LOOK_S, _LOOK_S = 1.0, 10.0
_COST = 0.01
"""Share of the run that turns of slower forms may cost."""
_Steps = Generator[None, None, None]


@dataclass(frozen=True)
class Form:
    """A way to do opt steps. kind: eager, or as in `GraphCompiler.graphs`."""

    kind: str
    threads: int

    def __str__(self) -> str:
        return f"{self.kind} with {self.threads} thread{'s' if self.threads > 1 else ''}"


class FormChooser:
    """Does opt steps in the fastest of several forms.

    Now and then, each other form competes with the one in use: they take short turns, A B, B A, A B …, while the run
    continues. What counts is the speed of the run, waiting for experience included. A machine's speed drifts by a factor of
    two within minutes, so only neighbouring turns are compared, and the best of five pairs decide. More threads are tried
    only on CPUs that were idle before.

    Args:
        use: does opt steps in this form from now on.
        tell: gets what was chosen, and by how much.
        idle_s: seconds that CPUs have been idle, summed.
        clock: [s].
    """

    def __init__(
        self,
        forms: Sequence[Form],
        use: Callable[[Form], None],
        tell: Callable[[str], None],
        idle_s: Callable[[], float],
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.form = forms[0]
        self._use, self._tell, self._idle_s, self._clock = use, tell, idle_s, clock
        self._forms: list[Form] = []
        self._reported: Form | None = None
        self.add(forms)

    def add(self, forms: Sequence[Form], alone: bool = False) -> None:
        """Use one of these forms, which are new and likely to be faster, and compare all soon, or these alone."""
        self._forms = [*forms] if alone else [*self._forms, *forms]
        self.form = next(form for form in forms if form.threads == self.form.threads)
        self._use(self.form)
        self._steps = self._looks()

    def step(self) -> None:
        """To be called before each opt step."""
        next(self._steps)

    def _looks(self) -> _Steps:
        """Yields before each opt step."""
        rest_s = _FIRST_LOOK_S
        while True:
            began, idle_s = self._clock(), self._idle_s()
            while self._clock() - began < rest_s or len(self._forms) == 1:
                yield
            idle_cpus = (self._idle_s() - idle_s) / (self._clock() - began)
            speeds, lost_s = {self.form: 1.0}, 0.0
            for other in self._near(idle_cpus):
                ratio, faster, seconds = yield from self._compete(other)
                lost_s += seconds * max(0.0, 1.0 - ratio)
                speeds[other] = ratio * speeds[self.form]
                if faster:
                    self.form = other
            self._use(self.form)
            self._report({form: speed / speeds[self.form] for form, speed in speeds.items()})
            rest_s = max(_LOOK_S, lost_s / _COST)

    def _near(self, idle_cpus: float) -> list[Form]:
        """The other forms with at most the next larger number of threads, if there are CPUs for it, or the next smaller."""
        counts = sorted({form.threads for form in self._forms})
        i = counts.index(self.form.threads)
        near = [n for n in counts[max(0, i - 1) : i + 2] if n - self.form.threads <= idle_cpus + 0.5]
        return [form for form in self._forms if form.threads in near and form != self.form]

    def _compete(self, other: Form) -> Generator[None, None, tuple[float, bool, float]]:
        """Returns the other form's speed over that of the one in use, whether it is clearly faster, and its time [s]."""
        ratios, seconds, slowest = list[float](), 0.0, 0.0
        while True:
            rates = {}
            for form in (self.form, other) if len(ratios) % 2 == 0 else (other, self.form):
                began = self._clock()
                rates[form] = yield from self._turn(form, slowest)
                slowest = slowest or rates[self.form] * _HOPELESS / 2
                seconds += self._clock() - began if form == other else 0.0
            ratios.append(rates[other] / rates[self.form])
            faster = sum(ratio > _CLEARLY_FASTER for ratio in ratios)
            if max(faster, len(ratios) - faster) > _PAIRS // 2 or ratios[0] <= _HOPELESS:
                return median(ratios), faster > _PAIRS // 2, seconds

    def _turn(self, form: Form, slowest: float) -> Generator[None, None, float]:
        """Returns opt steps/s of this form. It ends early if they are fewer than `slowest`."""
        self._use(form)
        start = began = self._clock()
        opt_steps = 0
        while True:
            yield
            now = self._clock()
            if now - start < WARM_UP_S:
                began, opt_steps = now, 0
                continue
            opt_steps += 1
            rate = opt_steps / (now - began)
            if now - began >= TURN_S and (opt_steps >= TURN_OPT_STEPS or rate < slowest):
                return rate

    def _report(self, speeds: dict[Form, float]) -> None:
        """speeds: of all forms that have competed, over that of the one in use."""
        if self.form == self._reported or len(speeds) == 1:
            return
        others = sorted((speed, str(form)) for form, speed in speeds.items() if form != self.form)
        compared = ", ".join(f"{form} {speed:.2f}" for speed, form in reversed(others))
        text = f"the fastest opt steps here are {self.form}; as a share of their speed: {compared}"
        _logger.info("%s", text)
        if self._reported is None:
            self._tell(text)
        self._reported = self.form


class OptStepForms:
    """Prepares the opt steps of a free-running run: they are traced and compiled if that pays, and take the fastest form.

    Args:
        threads: the numbers of threads to choose from.
        compiler: None where opt steps stay eager.
        only_compiled: once they are compiled, no other form is compared.
        tell, idle_s: as in `FormChooser`.
    """

    def __init__(
        self,
        agent: NetworkAgent,
        threads: Sequence[int],
        compiler: GraphCompiler | None,
        only_compiled: bool,
        tell: Callable[[str], None],
        idle_s: Callable[[], float],
    ) -> None:
        self._algorithm, self._threads, self._only_compiled = agent.algorithm, threads, only_compiled
        self._poll = compiler.poll if compiler is not None else lambda _: True
        self._graphs = {} if compiler is None else compiler.graphs
        self._done, self._kinds = False, {"eager"}
        self._chooser = FormChooser(self._forms("eager"), self._use, tell, idle_s)

    def prepare(self, batch: TensorBatch) -> bool:
        """To be called before each opt step. False: it has to be called again."""
        self._done = self._done or self._poll(batch)
        for kind in self._graphs.keys() - self._kinds:
            self._kinds.add(kind)
            self._chooser.add(self._forms(kind), alone=kind == "compiled" and self._only_compiled)
        self._chooser.step()
        return False

    def _forms(self, kind: str) -> list[Form]:
        return [Form(kind, n) for n in self._threads]

    def _use(self, form: Form) -> None:
        torch.set_num_threads(form.threads)
        self._algorithm.graphs = self._graphs.get(form.kind, {})
