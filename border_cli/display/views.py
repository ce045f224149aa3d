"""Views of a run, and what bounds its speed: a frame in a terminal, redrawn below its messages; lines of key=value text."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import IO

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from border_cli.core import format
from border_cli.core.metrics import Record
from border_cli.core.progress import ENDED, Progress, View
from border_cli.core.protocols import Recorder
from border_cli.display.output import Output, printable, write_line

ECHO = 2
"""Columns left free at the right: a terminal writes ^C there, and a line that wraps would break the frame."""
_CURVE_WIDTH = 32
_PHASE_STYLES = {"training": "bold green", "done": "bold green", "stopping": "bold red", "failed": "bold red"}


# -- what ends and what bounds a run ----------------------------------------------


@dataclass(frozen=True)
class Budget:
    """One budget: `used` of `limit`, in `unit`. eta_s: seconds until it is used up and the last model evaluated, None while
    that is unknown.
    """

    unit: str
    used: float
    limit: float
    eta_s: float | None

    @property
    def fraction(self) -> float:
        """Share of it that is used, between 0 and 1."""
        return min(1.0, max(0.0, self.used / self.limit)) if self.limit > 0 else 1.0


def first_to_end(p: Progress) -> Budget | None:
    """The budget with the least time left, or None without one; the one used most while a rate is not known."""
    # Actors run as fast as they can in the warm-up, so rates from there say nothing about the rest of the run.
    rates = (p.opt_steps_per_sec, p.samples_per_sec) if p.opt_steps > 0 else (None, None)
    budgets = []
    for unit, used, limit, per_sec in (
        ("opt steps", p.opt_steps, p.max_opts, rates[0]),
        ("env steps", p.env_steps, p.max_env_steps, rates[1]),
        ("s", p.seconds, p.max_time, 1.0),
    ):
        if limit is not None:
            left = max(0.0, limit - used)
            # Once it is used up, the last evaluations may take long.
            eta_s = left / per_sec if left and per_sec else None
            budgets.append(Budget(unit, used, limit, eta_s))
    if any(budget.eta_s is None for budget in budgets):
        return max(budgets, key=lambda budget: budget.fraction)
    return min(budgets, key=lambda budget: budget.eta_s or 0.0, default=None)


WAITS = 0.2
"""A side counts as waiting from this share of blocked time on; less is noise of chunks and scheduling."""
_HEADROOM = 1.1
"""Actors are never equally fast: a suggested number of actors has this factor in reserve."""
_FURTHEST = 4
"""The most that is suggested: this many times the present number of actors."""
_PHASES = {
    "starting": "starting: making the environments; each actor loads the first model",
    "compiling": "compiling: the first opt step waits for its machine code, so that the same seed gives the same bits",
    "stopping": "stopping: writing the last records and a checkpoint",
}


def advice(p: Progress, cores: int | None = None) -> str:
    """One line for a person. cores: processor cores of this machine, where known; they limit the suggestions."""
    if p.phase in _PHASES:
        return _PHASES[p.phase]
    if p.phase == "warm-up":
        left = max(0, p.warmup_period - p.env_steps)
        return f"warm-up: {format.counted(left, 'env step')} to go before the first opt step"
    budget = first_to_end(p) if p.phase == "evaluating" else None
    if budget is not None and budget.fraction == 1.0:
        return "the budget is used up: the last evaluations"
    # Evaluations and checkpoints are short: during them, what limited the run before stays the answer.
    if not p.asynchronous:
        return (
            "one thread: acting and opt steps take turns; with single environments trainer=async lets them overlap, "
            "but the same seed no longer gives the same bits"
        )
    if p.opt_steps == 0 or p.actors_blocked is None or p.learner_blocked is None:
        return "not measured yet: what bounds the speed of the run"
    if p.ratio_target is None:
        return "ratio not enforced: trainer.opt_interval=<env steps per opt step> would make runs comparable"
    return _slower_side(p, p.actors_blocked, p.learner_blocked, cores)


def _slower_side(p: Progress, actors: float, learner: float, cores: int | None) -> str:
    """Which side limits the other, by the share of time that each is blocked, and what would help."""
    actors_wait, learner_waits = (f"{format.share(share)} of the time" for share in (actors, learner))
    if actors < WAITS and learner < WAITS:
        return (
            f"balanced: the actors wait {actors_wait}, the learner {learner_waits}; "
            "only faster hardware, or cheaper env steps and opt steps, would help"
        )
    if actors >= WAITS and learner >= WAITS:
        return (
            f"hand-over-bound: the actors wait {actors_wait}, the learner {learner_waits}; "
            "a larger trainer.ratio_tolerance lets both work at the same time"
        )
    if actors >= WAITS:  # more actors would only wait more
        enough = max(1, math.ceil(p.n_actors * (1.0 - actors) * _HEADROOM))
        if enough >= p.n_actors:
            return (
                f"well-chosen: n_actors={p.n_actors} is enough, with {actors_wait} to spare; a smaller "
                "agent.batch_size or another device makes opt steps faster, a larger trainer.opt_interval needs fewer"
            )
        return (
            f"learner-bound: the actors wait {actors_wait}; n_actors={enough} would be enough; "
            "a larger trainer.opt_interval uses more env steps, with fewer opt steps on each"
        )
    instead = "or a smaller trainer.opt_interval does more opt steps per env step"
    more = math.ceil(p.n_actors / max(1.0 - learner, 1.0 / _FURTHEST))
    more = more if cores is None else min(more, cores - 1)  # one core stays with the learner
    if more > p.n_actors:
        return (
            f"actor-bound: the learner waits {learner_waits}; n_actors={more} would keep it busy, {instead}"
        )
    return (
        f"actor-bound: the learner waits {learner_waits}; if env steps use the CPU, try a larger "
        f"actor_manager.envs_per_actor, if they only wait, a larger n_actors; {instead}"
    )


# -- the live view ------------------------------------------------------------------


def frame(p: Progress, title: str, cores: int | None = None) -> Panel:
    """A panel that shows a run and fits any width. cores: processor cores of this machine, for the advice."""
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(style="dim", no_wrap=True, overflow="crop")
    grid.add_column(ratio=1, overflow="fold")
    for label, content in _rows(p):
        if content is not None:
            grid.add_row(label, content)
    bound = Text(advice(p, cores))
    bound.highlight_regex(r"^[\w-]+:", "bold yellow")
    content, heading = Group(grid, Text(), bound), Text(printable(title), "bold")
    return Panel(content, title=heading, title_align="left", border_style="dim")


def _rows(p: Progress) -> Iterator[tuple[str, RenderableType | None]]:
    """Label and content of each row; a content of None leaves the row out."""
    phase = Text(p.phase, _PHASE_STYLES.get(p.phase, "bold yellow"))
    totals = (
        _figure(format.count(p.env_steps), "env steps"),
        _figure(format.count(p.opt_steps), "opt steps"),
    )
    yield "phase", _fields(phase, Text(format.duration(p.seconds)), *totals)
    yield "budget", _budget(p)
    yield "", Text()
    returns = p.recent_returns
    mean = fmean(returns) if returns else None
    said = f"mean of {format.counted(len(returns), 'episode')}" if returns else "no episode has ended"
    yield "return", _score(mean, said, format.sparkline(returns, _CURVE_WIDTH), "cyan")
    if p.evaluations:
        curve = format.sparkline([mean for _, mean in p.evaluations], _CURVE_WIDTH)
        at, score = p.evaluations[-1]
        yield "evaluation", _score(score, f"at opt step {format.count(at)}", curve, "green")
        if p.eval_infos:
            yield "", _fields(*(_figure(format.number(value), key) for key, value in p.eval_infos.items()))
    else:
        yield "evaluation", _score(None, "none so far")
    if p.best is not None:
        said = "" if p.best_confirmed else ", unconfirmed"
        yield "best", _score(p.best[1], f"at opt step {format.count(p.best[0])}{said}")
    yield "", Text()
    opt_steps, samples = format.number(p.opt_steps_per_sec), format.number(p.samples_per_sec)
    yield "speed", _fields(_figure(opt_steps, "opt steps/s"), _figure(samples, "samples/s"))
    target = "none" if p.ratio_target is None and p.opt_steps > 0 else format.number(p.ratio_target)
    actual = _figure(format.number(p.ratio_actual), "env steps per opt step")
    yield "ratio", _fields(actual, Text.assemble(("target ", "dim"), (target, "bold")))
    if p.asynchronous:
        # One actor that waits is no fault: there cannot be fewer.
        actors = _share("actors", p.actors_blocked, p.n_actors > 1)
        yield "blocked", _fields(actors, _share("learner", p.learner_blocked))
        lag = Text.assemble(("policy lag ", "dim"), _figure(format.number(p.policy_lag_mean), "opt steps"))
        missing = p.actors_alive < p.n_actors and p.phase in ("warm-up", "training")
        alive = (f"{p.actors_alive}/{p.n_actors}", "bold red" if missing else "bold")
        # At the end no actor is alive, and the table of actors says how each ended.
        yield "actors", lag if p.phase in ENDED else _fields(Text.assemble(alive, (" alive", "dim")), lag)
    fill = p.replay_size / p.replay_capacity if p.replay_capacity > 0 else None
    rows = Text(f"{format.count(p.replay_size)} of {format.count(p.replay_capacity)} rows", "dim")
    yield "replay", _fields(_figure(format.share(fill), "full"), rows)


def _budget(p: Progress) -> RenderableType | None:
    budget = first_to_end(p)
    if budget is None:
        return None
    in_time = budget.unit == "s"
    limit = format.duration(budget.limit) if in_time else f"{format.count(budget.limit)} {budget.unit}"
    percent = math.floor(100 * budget.fraction)  # 100% only at the end
    eta = Text()
    if p.phase not in ENDED:
        when = (format.duration(budget.eta_s), "bold")
        eta = Text.assemble(("ETA ", "dim"), when, overflow="crop", no_wrap=True)
    row = Table.grid(padding=(0, 2), expand=True)
    row.add_column(ratio=1)
    bar = ProgressBar(total=1.0, completed=budget.fraction, complete_style="green")
    row.add_row(bar, Text(f"{percent}% of {limit}", overflow="crop", no_wrap=True), eta)
    return row


def _fields(*fields: Text) -> Text:
    return Text("  ").join(field for field in fields if field.plain)


def _figure(value: str, unit: str) -> Text:
    return Text.assemble((value, "bold"), (f" {unit}", "dim"))


def _score(value: float | None, said: str, curve: str = "", style: str = "") -> Text:
    return _fields(Text(format.number(value).rjust(6), "bold"), Text(curve, style), Text(said, "dim"))


def _share(label: str, blocked: float | None, matters: bool = True) -> Text:
    style = "bold red" if matters and blocked is not None and blocked >= WAITS else "bold"
    return Text.assemble((f"{label} ", "dim"), (format.share(blocked), style))


def is_live(console: Console) -> bool:
    """Whether this console can draw the frame, and redraw it; otherwise `PlainView` is the view to take."""
    return console.is_terminal and not console.is_dumb_terminal and console.encoding.startswith("utf")


def terminal_text(console: Console, *renderables: RenderableType) -> str:
    """What the console would print, with its colours, as text; at most as many lines as a terminal shows."""
    with console.capture() as capture:
        console.print(Group(*renderables))
    lines = capture.get().splitlines(keepends=True)
    return "".join(lines[: max(1, console.height - 1)])


class ScreenView(View):
    """A `View` with a frame that is redrawn in place, below its messages. `close` leaves the last frame on the screen.

    cores: processor cores, for the advice.
    """

    def __init__(self, output: Output, console: Console, title: str, cores: int | None) -> None:
        self._output = output
        self._console = console
        self._title = title
        self._cores = cores
        self._latest: Progress | None = None

    def show(self, progress: Progress) -> None:
        """Draw this progress from now on, with its later changes."""
        self._latest = progress
        self._output.draw(self._text)

    def note(self, message: str) -> None:
        write_line(self._output.stdout, message)

    def close(self) -> None:
        """Leave the last state below all messages. Closing again does nothing."""
        self._output.draw(None)
        if self._latest is not None:
            self._output.stdout.write(self._text())
            self._latest = None

    def _text(self) -> str:
        latest = copy.copy(self._latest) or Progress()  # the learner changes it meanwhile
        panel = frame(latest, self._title, self._cores)
        panel.width = max(1, self._console.width - ECHO)
        return terminal_text(self._console, panel)


# -- plain lines --------------------------------------------------------------------

SILENCE_S = 25.0
"""Print a line after this long without one [s]; below 30 s even if `show` is called a few seconds late."""


class PlainView(View, Recorder):
    """Writes a line of `key=value` words for each record, and after a long silence, to a stream.

    Lines are flushed at once and never wrapped. now: a monotonic clock in seconds.
    """

    def __init__(self, stream: IO[str], now: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._now = now
        self._progress = Progress()
        self._due = now()  # the first `show` prints, so that the start of the run is visible

    def show(self, progress: Progress) -> None:
        """Print a line with the progress, if nothing was printed for SILENCE_S."""
        self._progress = progress
        if self._now() >= self._due:
            self._line(progress.seconds, progress.opt_steps, progress.env_steps)

    def note(self, message: str) -> None:
        self._due = self._now() + SILENCE_S
        write_line(self._stream, message)

    def write(self, record: Record) -> None:
        """Print a line with the progress when the record was taken, and its loss."""
        self._line(record.time, record.opt_steps, record.env_steps, record.values.get("agent/loss"))

    def _line(self, seconds: float, opt_steps: int, env_steps: int, loss: float | None = None) -> None:
        p, budget = self._progress, first_to_end(self._progress)
        words = {
            "time": format.duration(seconds),
            "opt_steps": str(opt_steps),
            "env_steps": str(env_steps),
            "phase": p.phase,
            "warmup_period": str(p.warmup_period) if p.phase == "warm-up" else "",
            "actors": f"{p.actors_alive}/{p.n_actors}" if p.asynchronous else "",
            "return": format.number(fmean(p.recent_returns)) if p.recent_returns else "",
            "eval": format.number(p.evaluations[-1][1]) if p.evaluations else "",
            **{f"eval/{key}": format.number(value) for key, value in p.eval_infos.items()},
            "loss": "" if loss is None else format.number(loss),
            "opt_steps/s": format.number(p.opt_steps_per_sec),
            "samples/s": format.number(p.samples_per_sec),
            "done": format.share(budget.fraction) if budget else "",
            "eta": format.duration(budget.eta_s) if budget and p.phase not in ENDED else "",
        }
        line = " ".join(f"{key}={word}" for key, word in words.items() if word)
        self.note(line.replace(",", ""))  # commas are for tables: a line is read by programs too
