"""Which form of the opt step is chosen, from durations that are made up: by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from border_cli.agents.chooser import Form, FormChooser

EAGER, EAGER2, FAST, FAST2 = (Form(kind, n) for kind in ("eager", "compiled") for n in (1, 2))
ALL = (EAGER, EAGER2, FAST, FAST2)


class FakeRun:
    """Opt steps whose durations [s] depend on their form and on the time."""

    def __init__(
        self, forms: tuple[Form, ...], duration: Callable[[Form, float], float], cpus: float = 16.0
    ) -> None:
        self.now, self.opt_steps = 0.0, 0
        self.idle_s = 0.0
        self._cpus = cpus
        self.spent: dict[Form, float] = {}
        self.notes: list[str] = []
        self._duration = duration
        self._form = forms[0]
        self.chooser = FormChooser(forms, self._use, self.notes.append, lambda: self.idle_s, lambda: self.now)

    def _use(self, form: Form) -> None:
        self._form = form

    def until(self, seconds: float) -> Form:
        """Do opt steps until this time. Returns the form in use."""
        while self.now < seconds:
            self.chooser.step()
            took = self._duration(self._form, self.now)
            self.spent[self._form] = self.spent.get(self._form, 0.0) + took
            self.now += took
            self.idle_s += took * max(0.0, self._cpus - self._form.threads)
            self.opt_steps += 1
        return self.chooser.form


def constant(**ms: float) -> Callable[[Form, float], float]:
    return lambda form, _: ms[f"{form.kind.replace('compiled', 'fast')}{form.threads}"] / 1000


@pytest.mark.parametrize(
    ("durations", "best"),
    [
        ({"eager1": 10, "eager2": 12, "fast1": 7, "fast2": 6}, FAST2),
        # two threads are bad in one form alone
        ({"eager1": 10, "eager2": 6, "fast1": 7, "fast2": 12}, EAGER2),
        ({"eager1": 5, "eager2": 4.9, "fast1": 5, "fast2": 4.9}, EAGER),  # 1.02 times is not clearly faster
        ({"eager1": 5, "eager2": 4.8, "fast1": 5, "fast2": 5}, EAGER2),
        # slow opt steps have longer turns
        ({"eager1": 500, "eager2": 300, "fast1": 400, "fast2": 290}, FAST2),
    ],
)
def test_the_fastest_form_is_kept(durations: dict[str, float], best: Form) -> None:
    run = FakeRun(ALL, constant(**durations))
    assert run.until(200.0) == best


@pytest.mark.parametrize("slow", [12, 100, 3000])
def test_slower_forms_cost_little(slow: float) -> None:
    run = FakeRun((EAGER, EAGER2), constant(eager1=10, eager2=slow))
    run.until(600.0)
    assert run.opt_steps >= 0.985 * 600.0 / 0.010
    assert run.spent[EAGER2] > 0.5


def test_when_the_machine_changes_the_choice_does() -> None:
    """Threads are twice as fast at first, and from 100 s on half as fast: another program has taken the second core."""

    def duration(form: Form, now: float) -> float:
        return 0.010 if form.threads == 1 else 0.005 if now < 100.0 else 0.020

    run = FakeRun((EAGER, EAGER2), duration)
    assert run.until(99.0) == EAGER2
    assert run.until(115.0) == EAGER
    assert len(run.notes) == 1, "later changes are in the log alone"


@pytest.mark.parametrize(("cpus", "tried"), [(1.4, {1}), (1.6, {1, 2}), (3.6, {1, 2, 4})])
def test_more_threads_are_tried_only_on_cpus_that_were_idle(cpus: float, tried: set[int]) -> None:
    """CPUs that nothing but this run uses. Threads that wait for a CPU slow an opt step down a hundredfold."""
    forms = tuple(Form("eager", n) for n in (1, 2, 4))
    run = FakeRun(forms, lambda form, _: 0.01 / form.threads, cpus)
    run.until(100.0)
    assert {form.threads for form in run.spent} == tried


def test_a_form_that_is_added_is_used_and_compared_at_once() -> None:
    run = FakeRun((EAGER, EAGER2), constant(eager1=10, eager2=7, fast1=20, fast2=5))
    assert run.until(50.0) == EAGER2
    run.chooser.add([FAST, FAST2])
    assert run.chooser.form == FAST2
    run.until(50.6)
    assert run.spent[FAST2] == pytest.approx(0.6, abs=0.02)
    assert run.until(60.0) == FAST2
