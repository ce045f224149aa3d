"""The fastest form of the opt step on this machine, found by timing the forms while the run goes on."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from border_cli.agents.agent import NetworkAgent
from border_cli.agents.compiler import GraphCompiler
from border_cli.agents.params import TensorBatch

_logger = logging.getLogger(__name__)
TURN_S, TURN_OPT_STEPS = 0.2, 5
"""A turn lasts at least so long: what the kernel schedules otherwise weighs too much."""
_WARM_UP_S = 0.02
"""The start of a turn does not count: caches are cold, and threads asleep."""
PAIRS = 5
CLEARLY_FASTER = 1.03
_HOPELESS = 2 / 3
"""One pair of turns is enough for a form with at most this share of the speed."""
FIRST_LOOK_S, LOOK_S = 2.0, 10.0
_COST = 0.02
"""Share of the run that turns of slower forms may cost."""


@dataclass(frozen=True)
class Form:
    """A way to do opt steps."""

    compiled: bool = False
    threads: int = 1

    def __str__(self) -> str:
        count = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{'compiled' if self.compiled else 'eager'} with {count}"


class FormChooser:
    """Does opt steps in the fastest of several forms.

    Now and then, each other form competes with the one in use: they take short turns, A B, B A, A B …, and the run goes on
    meanwhile. What counts is the speed of the run, waiting for experience included. A machine's speed drifts by a factor of
    two within minutes, so only neighbouring turns are compared, and the best of five pairs decide.

    Args:
        use: does opt steps in this form from now on.
        tell: gets what was chosen, and by how much.
        clock: [s].
    """

    def __init__(
        self,
        forms: Sequence[Form],
        use: Callable[[Form], None],
        tell: Callable[[str], None],
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.form = forms[0]
        self._forms = list(forms)
        self._use, self._tell, self._clock = use, tell, clock
        self._next_look = clock() + FIRST_LOOK_S
        self._others: list[Form] = []
        """Those that have not competed yet in this look; the first of them competes now."""
        self._rates: list[float] = []
        """Opt steps/s of the turns of this competition: A B, B A, …"""
        self._speeds: dict[Form, float] = {}
        """Of the forms that have competed in this look, over that of the form in use."""
        self._others_s = 0.0  # in this competition, in turns of the other form
        self._lost_s = 0.0  # in this look
        self._told: Form | None = None
        self._turn_began = self._began = 0.0
        self._opt_steps = 0  # since `_began`
        use(self.form)

    def add(self, forms: Sequence[Form]) -> None:
        """Use one of these forms, which are new and likely to be faster, and compare all forms at once."""
        self._forms += forms
        self.form = next(form for form in forms if form.threads == self.form.threads)
        self._others, self._rates, self._others_s = [], [], 0.0
        self._use(self.form)
        self._next_look = self._clock()

    def step(self) -> None:
        """To be called before each opt step."""
        now = self._clock()
        if not self._others:
            if now >= self._next_look:
                self._look()
                self._begin_turn(now)
            return
        if now - self._turn_began < _WARM_UP_S:
            self._began, self._opt_steps = now, 0
            return
        self._opt_steps += 1
        seconds = now - self._began
        is_hopeless = self._rates and self._opt_steps / seconds < _HOPELESS / 2 * self._rates[0]
        if seconds >= TURN_S and (self._opt_steps >= TURN_OPT_STEPS or is_hopeless):
            self._end_turn(self._opt_steps / seconds, now)
            self._begin_turn(now)

    def _look(self) -> None:
        """Let the other forms compete, of those with other numbers of threads only the next ones."""
        counts = sorted({form.threads for form in self._forms})
        i = counts.index(self.form.threads)
        near = [form for form in self._forms if form.threads in counts[max(0, i - 1) : i + 2]]
        self._others = [form for form in near if form != self.form]
        self._speeds = {self.form: 1.0}
        self._lost_s, self._next_look = 0.0, math.inf

    def _begin_turn(self, now: float) -> None:
        if self._others:
            self._turn_began, self._began, self._opt_steps = now, now, 0
            self._use(self._others[0] if self._is_others_turn() else self.form)

    def _end_turn(self, rate: float, now: float) -> None:
        if self._is_others_turn():
            self._others_s += now - self._turn_began
        self._rates.append(rate)
        if len(self._rates) % 2:
            return
        pairs = zip(self._rates[::2], self._rates[1::2], strict=True)
        ratios = [a / b if i % 2 else b / a for i, (a, b) in enumerate(pairs)]
        faster = sum(ratio > CLEARLY_FASTER for ratio in ratios)
        decided = max(faster, len(ratios) - faster) > PAIRS // 2
        if decided or ratios[0] <= _HOPELESS:
            self._decide(sorted(ratios)[len(ratios) // 2], faster > PAIRS // 2, now)

    def _is_others_turn(self) -> bool:
        return len(self._rates) % 4 in (1, 2)

    def _decide(self, ratio: float, faster: bool, now: float) -> None:
        """End a competition. ratio: of the speeds of the other form and the one in use."""
        other = self._others.pop(0)
        self._lost_s += self._others_s * max(0.0, 1.0 - ratio)
        self._others_s, self._rates = 0.0, []
        if faster:
            self._speeds = {form: speed / ratio for form, speed in self._speeds.items()}
            self.form = other
        self._speeds[other] = 1.0 if faster else ratio
        if not self._others:
            self._use(self.form)
            self._next_look = now + max(LOOK_S, self._lost_s / _COST)
            self._report()

    def _report(self) -> None:
        if self.form == self._told:
            return
        others = sorted((speed, str(form)) for form, speed in self._speeds.items() if form != self.form)
        compared = ", ".join(f"{form} {speed:.2f}" for speed, form in reversed(others))
        text = f"the fastest opt steps here are {self.form}; as a share of their speed: {compared}"
        _logger.info("%s", text)
        if self._told is None:
            self._tell(text)
        self._told = self.form


class OptStepForms:
    """Prepares the opt steps of a free-running run: they are compiled once that pays, and done in the fastest form.

    Args:
        threads: the numbers of threads to choose from.
        compiler: None where opt steps stay eager.
        only_compiled: do not compare compiled opt steps with eager ones.
        tell: as in `FormChooser`.
    """

    def __init__(
        self,
        agent: NetworkAgent,
        threads: Sequence[int],
        compiler: GraphCompiler | None,
        only_compiled: bool,
        tell: Callable[[str], None],
    ) -> None:
        self._algorithm = agent.algorithm
        self._threads = threads
        self._compiler = compiler
        self._only_compiled = only_compiled
        self._tell = tell
        self._graphs = agent.algorithm.graphs
        self._chooser = FormChooser([Form(False, n) for n in threads], self._use, tell)

    def prepare(self, batch: TensorBatch) -> bool:
        """To be called before each opt step. False: it has to be called again."""
        if self._compiler is not None and self._compiler.poll(batch):
            self._compiler = None
            self._graphs = dict(self._algorithm.graphs)
            compiled = [Form(True, n) for n in self._threads] if self._graphs else []
            if compiled and self._only_compiled:
                self._chooser = FormChooser(compiled, self._use, self._tell)
            elif compiled:
                self._chooser.add(compiled)
        self._chooser.step()
        return False

    def _use(self, form: Form) -> None:
        torch.set_num_threads(form.threads)
        self._algorithm.graphs = self._graphs if form.compiled else {}
